#include "byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "prism/core/error.h"

namespace prism {
namespace {

using namespace std::string_view_literals;

constexpr size_t kInputBytes = size_t{1} << 18;
constexpr std::string_view kGzipMagic = "\x1f\x8b"sv;

struct Archive {
  std::string_view magic, name;
};
constexpr std::array kOtherArchives{Archive{"PK\x03\x04"sv, "zip"}, Archive{"BZh"sv, "bzip2"},
                                    Archive{"\xFD"
                                            "7zXZ"sv,
                                            "xz"},
                                    Archive{"\x28\xB5\x2F\xFD"sv, "zstd"}, Archive{"7z\xBC\xAF"sv, "7z"}};

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
          "{} is a {} archive; unpack it first (plain and gzip files are read)", name_, archive.name);
  if (input_.starts_with(kGzipMagic)) {
    inflater_ = std::make_unique<z_stream>();
    begin_member();
  }
}

ByteSource::~ByteSource() {
  if (inflater_) ::inflateEnd(inflater_.get());
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
  if (inflater_) return read_inflated(out, count);
  const size_t left = input_.size() - input_begin_;
  if (left == 0) return read_raw(out, count);
  count = std::min(count, left);
  std::memcpy(out, input_.data() + input_begin_, count);
  input_begin_ += count;
  return count;
}

void ByteSource::begin_member() {
  const bool first = inflater_->state == nullptr;
  const int status =
      first ? ::inflateInit2(inflater_.get(), 16 + MAX_WBITS) : ::inflateReset(inflater_.get());
  check(status == Z_OK, "cannot read {}: zlib has not enough memory", name_);
  in_member_ = true;
}

size_t ByteSource::read_inflated(char* out, size_t count) {
  z_stream& stream = *inflater_;
  stream.next_out = reinterpret_cast<Bytef*>(out);
  stream.avail_out = static_cast<uInt>(std::min(count, size_t{1} << 30));
  const uInt wanted = stream.avail_out;
  while (stream.avail_out == wanted) {
    if (input_begin_ == input_.size() && !refill()) {
      check(!in_member_, "{}: the compressed data ends too early (the file is cut off)", name_);
      return 0;
    }
    if (!in_member_) begin_member();
    stream.next_in = reinterpret_cast<Bytef*>(input_.data() + input_begin_);
    stream.avail_in = static_cast<uInt>(input_.size() - input_begin_);
    const int status = ::inflate(&stream, Z_NO_FLUSH);
    input_begin_ = input_.size() - stream.avail_in;
    if (status == Z_STREAM_END)
      in_member_ = false;
    else
      check(status == Z_OK || status == Z_BUF_ERROR, "{}: the compressed data is damaged ({})", name_,
            stream.msg ? stream.msg : "unknown reason");
  }
  return wanted - stream.avail_out;
}

}  // namespace prism
