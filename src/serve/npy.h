#pragma once
#include <cstdint>
#include <filesystem>

namespace prism {

/// Writes data [rows, columns] as a NumPy file (format 1.0, little-endian float32, C order), atomically.
void write_npy(const std::filesystem::path& path, const float* data, int64_t rows, int64_t columns);

}  // namespace prism
