#include "prism/core/safetensors.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/text.h"

// The format: uint64 length of the header, a JSON object {name: {dtype, shape, data_offsets}, "__metadata__":
// {}}, then the data. Offsets count from the end of the header; the tensors cover the data without holes or
// overlaps.
namespace prism {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kMetadataKey = "__metadata__";
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the format's own library

constexpr std::array<std::pair<const char*, at::ScalarType>, 8> kTypes = {{{"F64", at::kDouble},
                                                                           {"F32", at::kFloat},
                                                                           {"F16", at::kHalf},
                                                                           {"BF16", at::kBFloat16},
                                                                           {"I64", at::kLong},
                                                                           {"I32", at::kInt},
                                                                           {"U8", at::kByte},
                                                                           {"BOOL", at::kBool}}};

struct Entry {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

std::string place(const fs::path& path, const std::string& name) {
  return fmt::format("{}: tensor \"{}\"", path.string(), shortened(name));
}

at::ScalarType type_named(const std::string& text, const std::string& where) {
  for (const auto& [name, type] : kTypes)
    if (text == name) return type;
  fail("{} has dtype {}, expected F64, F32, F16, BF16, I64, I32, U8 or BOOL", where, shortened(text));
}

const char* type_name(at::ScalarType type, const std::string& where) {
  for (const auto& [name, known] : kTypes)
    if (type == known) return name;
  fail("{} has type {}, which is not written; expected float64/32/16, bfloat16, int64/32, uint8 or bool",
       where, c10::toString(type));
}

/// Bytes of a tensor of this shape; overflow of a forged shape is an error.
uint64_t bytes_of(const Entry& entry, const std::string& where) {
  uint64_t bytes = c10::elementSize(entry.type);
  for (const int64_t size : entry.shape) {
    if (size != 0 && bytes > uint64_t(std::numeric_limits<int64_t>::max()) / uint64_t(size))
      fail("{} has an impossible shape [{}]", where, fmt::join(entry.shape, ","));
    bytes *= uint64_t(size);
  }
  return bytes;
}

Entry parse_entry(const std::string& name, const json& value, uint64_t data_bytes, const std::string& where) {
  Entry entry;
  entry.name = name;
  try {
    entry.type = type_named(value.at("dtype").get<std::string>(), where);
    for (const json& size : value.at("shape")) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max()))
        fail("{} has a shape that is not a list of sizes", where);
      entry.shape.push_back(size.get<int64_t>());
    }
    const json& offsets = value.at("data_offsets");
    if (offsets.size() != 2 || !offsets.at(0).is_number_unsigned() || !offsets.at(1).is_number_unsigned())
      fail("{} has data_offsets that are not two positions", where);
    entry.begin = offsets.at(0).get<uint64_t>();
    entry.end = offsets.at(1).get<uint64_t>();
  } catch (const json::exception&) {
    fail("{} has a damaged header entry; expected dtype, shape and data_offsets", where);
  }
  if (entry.begin > entry.end || entry.end > data_bytes)
    fail("{} lies at bytes {} to {} of {} bytes of data: the file is torn or edited", where, entry.begin,
         entry.end, data_bytes);
  if (const uint64_t bytes = bytes_of(entry, where); entry.end - entry.begin != bytes)
    fail("{} has {} bytes of data, its shape [{}] needs {}", where, entry.end - entry.begin,
         fmt::join(entry.shape, ","), bytes);
  return entry;
}

void require_full_cover(std::vector<Entry>& entries, uint64_t data_bytes, const fs::path& path) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t position = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != position)
      fail("{} starts at byte {} of the data, expected {}", place(path, entry.name), entry.begin, position);
    position = entry.end;
  }
  if (position != data_bytes)
    fail("{}: {} bytes of data, but its tensors cover {}", path.string(), data_bytes, position);
}

json parse_header(std::ifstream& file, uint64_t file_bytes, uint64_t& header_bytes, const fs::path& path) {
  if (file_bytes < 8 || !file.read(reinterpret_cast<char*>(&header_bytes), 8))
    fail("{}: not a safetensors file ({} bytes)", path.string(), file_bytes);
  if (header_bytes > kMaxHeader || header_bytes > file_bytes - 8)
    fail("{}: not a safetensors file, or torn: it announces a header of {} bytes in a file of {}",
         path.string(), header_bytes, file_bytes);
  std::string text(header_bytes, '\0');
  if (!file.read(text.data(), std::streamsize(header_bytes))) fail("cannot read {}", path.string());
  json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) fail("{}: not a safetensors file: its header is no JSON object", path.string());
  return header;
}

std::map<std::string, std::string> parse_metadata(const json& header, const fs::path& path) {
  std::map<std::string, std::string> metadata;
  const auto found = header.find(kMetadataKey);
  if (found == header.end()) return metadata;
  if (!found->is_object()) fail("{}: {} is no object of texts", path.string(), kMetadataKey);
  for (const auto& [key, value] : found->items()) {
    if (!value.is_string()) fail("{}: {} \"{}\" is no text", path.string(), kMetadataKey, shortened(key));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

at::Tensor host_contiguous(const at::Tensor& tensor, const std::string& where) {
  if (!tensor.defined()) fail("{} is undefined and cannot be written", where);
  return tensor.detach().to(at::kCPU).contiguous();
}

}  // namespace

Safetensors read_safetensors(const fs::path& path, std::string_view prefix) {
  if (fs::is_directory(path)) fail("cannot read {}: it is a folder", path.string());
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read {}: {}", path.string(), std::strerror(errno));
  const uint64_t file_bytes = fs::file_size(path);
  uint64_t header_bytes = 0;
  const json header = parse_header(file, file_bytes, header_bytes, path);
  const uint64_t data_bytes = file_bytes - 8 - header_bytes;

  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items())
    if (name != kMetadataKey) entries.push_back(parse_entry(name, value, data_bytes, place(path, name)));
  require_full_cover(entries, data_bytes, path);

  Safetensors content{.tensors = {}, .metadata = parse_metadata(header, path)};
  for (const Entry& entry : entries) {
    if (!entry.name.starts_with(prefix)) continue;
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.type));
    const auto bytes = std::streamsize(entry.end - entry.begin);
    file.seekg(std::streamoff(8 + header_bytes + entry.begin));
    if (bytes > 0 && !file.read(static_cast<char*>(tensor.mutable_data_ptr()), bytes))
      fail("cannot read {}", place(path, entry.name));
    content.tensors.emplace(entry.name, std::move(tensor));
  }
  return content;
}

void write_safetensors(const fs::path& path, const Safetensors& content) {
  // Widest types first, so that every tensor is aligned to its element size, as the format's own library
  // does.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, tensor] : content.tensors) {
    if (name == kMetadataKey) fail("{}: a tensor cannot be named {}", path.string(), kMetadataKey);
    tensors.emplace_back(name, host_contiguous(tensor, place(path, name)));
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });

  json header = json::object();
  if (!content.metadata.empty()) header[kMetadataKey] = content.metadata;
  uint64_t position = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t end = position + tensor.nbytes();
    header[name] = {{"dtype", type_name(tensor.scalar_type(), place(path, name))},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {position, end}}};
    position = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail("{}: a name or a metadata text is not UTF-8", path.string());
  }
  text.append((8 - text.size() % 8) % 8, ' ');

  const uint64_t header_bytes = text.size();
  AtomicFile file(path);
  file.write(&header_bytes, sizeof header_bytes);
  file.write(text);
  for (const auto& [name, tensor] : tensors) file.write(tensor.const_data_ptr(), tensor.nbytes());
  file.commit();
}

std::string checksum_of(const Safetensors& content) {
  uint32_t crc = 0;
  const auto add = [&crc](std::string_view text) { crc = crc32_of(text.data(), text.size(), crc); };
  for (const auto& [key, value] : content.metadata) {
    if (key == "checksum") continue;
    add(key);
    add(value);
  }
  for (const auto& [name, tensor] : content.tensors) {
    const at::Tensor bytes = tensor.detach().cpu().contiguous();
    add(name);
    add(fmt::format("[{}]", fmt::join(tensor.sizes(), ",")));
    add({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  return fmt::format("crc32:{:08x}", crc);
}

}  // namespace prism
