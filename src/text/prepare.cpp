#include "prism/text/prepare.h"

#include <cmath>
#include <filesystem>

#include "prism/core/error.h"
#include "prism/core/interrupt.h"
#include "prism/core/progress.h"

namespace prism {
namespace {

/// Bytes of the files read so far, as a progress line.
class FileProgress {
 public:
  explicit FileProgress(const std::vector<std::string>& files) : line_("tokens", total(files), "bytes") {}

  void open(const std::string& file) {
    size_ = static_cast<double>(std::filesystem::file_size(file));
    done_ = 0;
  }
  void at(double share) {
    const auto now = std::llround(share * size_);
    line_.advance(now - done_);
    done_ = now;
  }

 private:
  static int64_t total(const std::vector<std::string>& files) {
    int64_t bytes = 0;
    for (const std::string& file : files)
      if (std::filesystem::is_regular_file(file))
        bytes += static_cast<int64_t>(std::filesystem::file_size(file));
    return bytes;
  }
  Progress line_;
  double size_ = 0;
  int64_t done_ = 0;
};

}  // namespace

PrepareOutcome prepare_tokens(const std::vector<std::string>& files, const PrepareConfig& config,
                              const DocumentConfig& documents) {
  if (files.empty()) usage_error("prepare: no text file given");
  if (config.out.empty()) usage_error("prepare: --out names the folder to create");
  for (const std::string& file : files)
    check(std::filesystem::is_regular_file(file), "cannot read {}: there is no such file", file);
  const auto tokenizer = load_tokenizer(config.tokenizer);
  TokenWriter writer(config.out, *tokenizer, config.shard_tokens);
  const InterruptGuard interrupts;
  FileProgress progress(files);
  for (const std::string& file : files) {
    progress.open(file);
    read_documents(
        file, documents,
        [&](std::string_view text) {
          writer.add(tokenizer->encode(text), static_cast<int64_t>(text.size()));
          return InterruptGuard::pending() == 0;
        },
        [&](double share) { progress.at(share); });
    if (const int signal = InterruptGuard::pending()) return {.signal = signal};
  }
  return {.index = writer.finish()};
}

}  // namespace prism
