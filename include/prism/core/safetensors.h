#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace prism {

/// Content of a .safetensors file: named tensors and text metadata, both in the order of their names.
/// Types: F64 F32 F16 BF16 I64 I32 U8 BOOL.
struct Safetensors {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads a whole file into CPU tensors, or those of its tensors whose names begin with `prefix`. Every size
/// and offset is checked before memory is taken for it: a torn or edited file throws Error with the file's
/// name, the tensor and what is wrong.
Safetensors read_safetensors(const std::filesystem::path& path, std::string_view prefix = "");

/// Writes the file atomically (see AtomicFile). Tensors may live on any device and have any strides. Throws
/// Error for a type outside the list above, an undefined tensor or a name that is not UTF-8.
void write_safetensors(const std::filesystem::path& path, const Safetensors& content);

/// CRC-32 of the metadata, but for the entry "checksum", and of the tensors: "crc32:0123abcd". A file that
/// keeps it as metadata["checksum"] shows when it was damaged or edited.
std::string checksum_of(const Safetensors& content);

}  // namespace prism
