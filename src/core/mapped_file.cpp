#include "prism/core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "prism/core/error.h"

namespace prism {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot read {}: {}", path.string(), std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  size_ = known ? static_cast<size_t>(status.st_size) : 0;
  if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  const int reason = errno;
  ::close(descriptor);
  check(known && data_ != MAP_FAILED, "cannot map {} into memory: {}", path.string(), std::strerror(reason));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace prism
