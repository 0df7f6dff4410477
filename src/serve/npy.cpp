#include "serve/npy.h"

#include <fmt/format.h>

#include <bit>
#include <string>

#include "prism/core/files.h"

namespace prism {

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
void write_npy(const std::filesystem::path& path, const float* data, int64_t rows, int64_t columns) {
  static_assert(std::endian::native == std::endian::little);
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  constexpr size_t kBefore = 10;  // magic, version, length of the header
  header.resize((kBefore + header.size() + 1 + 63) / 64 * 64 - kBefore, ' ');
  header.back() = '\n';
  const auto length = static_cast<uint16_t>(header.size());
  AtomicFile file(path);
  file.write(std::string_view("\x93NUMPY\x01\x00", 8));
  file.write(&length, sizeof length);
  file.write(header);
  file.write(data, static_cast<size_t>(rows * columns) * sizeof(float));
  file.commit();
}

}  // namespace prism
