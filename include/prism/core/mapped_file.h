#pragma once
#include <cstddef>
#include <filesystem>
#include <string_view>

namespace prism {

/// The bytes of a file, read only where they are touched. The file must not shrink meanwhile. Error with the
/// path and the reason where it cannot be mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace prism
