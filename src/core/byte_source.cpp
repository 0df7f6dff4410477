#include "prism/core/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>

#include "core/decompressor.h"
#include "prism/core/error.h"

namespace prism {
namespace {

using namespace std::string_view_literals;

constexpr size_t kInputBytes = size_t{1} << 18;

struct Archive {
  std::string_view magic, name;
};
constexpr std::array kOtherArchives{Archive{"PK\x03\x04"sv, "zip"}, Archive{"BZh"sv, "bzip2"},
                                    Archive{"\xFD"
                                            "7zXZ"sv,
                                            "xz"},
                                    Archive{"7z\xBC\xAF"sv, "7z"}};

}  // namespace

ByteSource::ByteSource(const std::filesystem::path& path) : name_(path.string()) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail("cannot read {}: {}", name_, std::strerror(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail("cannot read {}: {}", name_, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail("cannot read {}: it is a folder", name_);
  size_ = status.st_size;
  refill();
  for (const Archive& archive : kOtherArchives)
    check(!input_.starts_with(archive.magic),
          "{} is a {} archive; unpack it first (plain, gzip and zstd files are read)", name_, archive.name);
  gzip_ = input_.starts_with("\x1f\x8b");
  decompressor_ = make_decompressor(input_, name_);
}

ByteSource::~ByteSource() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

double ByteSource::consumed() const {
  return size_ > 0 ? std::min(1.0, static_cast<double>(position_) / static_cast<double>(size_)) : 0;
}

size_t ByteSource::read_raw(char* out, size_t count) {
  for (;;) {
    const ssize_t got = ::read(descriptor_, out, count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read {}: {}", name_, std::strerror(errno));
    position_ += got;
    return static_cast<size_t>(got);
  }
}

bool ByteSource::refill() {
  input_.resize(kInputBytes);
  input_.resize(read_raw(input_.data(), kInputBytes));
  input_begin_ = 0;
  return !input_.empty();
}

size_t ByteSource::read(char* out, size_t count) {
  if (decompressor_) return read_unpacked(out, count);
  const size_t left = input_.size() - input_begin_;
  if (left == 0) return read_raw(out, count);
  count = std::min(count, left);
  std::memcpy(out, input_.data() + input_begin_, count);
  input_begin_ += count;
  return count;
}

size_t ByteSource::read_unpacked(char* out, size_t count) {
  std::span<char> room(out, count);
  while (room.size() == count) {
    std::string_view in = std::string_view(input_).substr(input_begin_);
    decompressor_->run(in, room);
    input_begin_ = input_.size() - in.size();
    if (room.size() < count || !in.empty() || refill()) continue;
    check(decompressor_->may_end(), "{}: the compressed data ends too early (the file is cut off)", name_);
    return 0;
  }
  return count - room.size();
}

}  // namespace prism
