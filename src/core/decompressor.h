#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace prism {

/// Unpacks a stream of compressed bytes that comes in pieces.
class Decompressor {
 public:
  virtual ~Decompressor() = default;
  /// Consumes from the front of `in` and writes to the front of `out`, until one of them is empty or a part
  /// of the stream has ended. Error, naming the file, for damaged data.
  virtual void run(std::string_view& in, std::span<char>& out) = 0;
  /// Whether the stream may end here.
  virtual bool may_end() const = 0;
};

/// By the first bytes of a file: gzip, zstd, or nullptr for anything else. `file` opens error messages.
std::unique_ptr<Decompressor> make_decompressor(std::string_view first_bytes, const std::string& file);

}  // namespace prism
