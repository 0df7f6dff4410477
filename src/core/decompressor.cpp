#include "core/decompressor.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>

#include "prism/core/error.h"

namespace prism {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kGzipMagic = "\x1f\x8b"sv, kZstdMagic = "\x28\xB5\x2F\xFD"sv;
constexpr size_t kMostAtOnce = size_t{1} << 30;

/// gzip; a file may hold several members.
class Gzip final : public Decompressor {
 public:
  explicit Gzip(std::string file) : file_(std::move(file)) {
    check(::inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK, "cannot read {}: zlib has not enough memory",
          file_);
  }
  ~Gzip() override { ::inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  bool may_end() const override { return !in_member_; }

  void run(std::string_view& in, std::span<char>& out) override {
    if (!in_member_) {
      if (in.empty()) return;
      ::inflateReset(&stream_);
      in_member_ = true;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(std::min(in.size(), kMostAtOnce));
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(std::min(out.size(), kMostAtOnce));
    const uInt offered = stream_.avail_in, room = stream_.avail_out;
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    in.remove_prefix(offered - stream_.avail_in);
    out = out.subspan(room - stream_.avail_out);
    if (status == Z_STREAM_END)
      in_member_ = false;
    else
      check(status == Z_OK || status == Z_BUF_ERROR, "{}: the compressed data is damaged ({})", file_,
            stream_.msg ? stream_.msg : "unknown reason");
  }

 private:
  std::string file_;
  z_stream stream_{};
  bool in_member_ = false;
};

/// zstd; a file may hold several frames.
class Zstd final : public Decompressor {
 public:
  explicit Zstd(std::string file) : file_(std::move(file)), stream_(::ZSTD_createDStream()) {
    check(stream_ != nullptr, "cannot read {}: zstd has not enough memory", file_);
  }
  ~Zstd() override { ::ZSTD_freeDStream(stream_); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  bool may_end() const override { return !in_frame_; }

  void run(std::string_view& in, std::span<char>& out) override {
    if (!in_frame_ && in.empty()) return;
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const size_t wanted = ::ZSTD_decompressStream(stream_, &output, &input);
    check(!::ZSTD_isError(wanted), "{}: the compressed data is damaged ({})", file_,
          ::ZSTD_getErrorName(wanted));
    in_frame_ = wanted != 0;
    in.remove_prefix(input.pos);
    out = out.subspan(output.pos);
  }

 private:
  std::string file_;
  ZSTD_DStream* stream_;
  bool in_frame_ = false;
};

}  // namespace

std::unique_ptr<Decompressor> make_decompressor(std::string_view first_bytes, const std::string& file) {
  if (first_bytes.starts_with(kGzipMagic)) return std::make_unique<Gzip>(file);
  if (first_bytes.starts_with(kZstdMagic)) return std::make_unique<Zstd>(file);
  return nullptr;
}

}  // namespace prism
