#include "prism/core/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

#include "prism/core/clock.h"
#include "prism/core/progress.h"
#include "prism/core/text.h"

namespace prism {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kNormal};
std::mutex g_mutex;
Progress* g_progress = nullptr;  // the line at the bottom of the terminal, if any

constexpr double kTerminalInterval = 0.1, kPlainInterval = 10.0;  // seconds between drawings
constexpr const char* kClearLine = "\r\x1b[K";

}  // namespace

void detail_redraw_progress() {
  if (g_progress && g_progress->terminal_ && g_progress->drawn_ > 0)
    std::fprintf(stderr, "%s", g_progress->line().c_str());
}

namespace detail {

static void write_line(const char* prefix, const std::string& line) {
  const std::lock_guard lock(g_mutex);
  std::fprintf(stderr, "%s%s%s\n", g_progress ? kClearLine : "", prefix, line.c_str());
  detail_redraw_progress();
  std::fflush(stderr);
}

void write_info(const std::string& line) {
  if (log_level() == LogLevel::kNormal) write_line("", line);
}

void write_warning(const std::string& line) {
  if (log_level() != LogLevel::kSilent) write_line("warning: ", line);
}

}  // namespace detail

void set_log_level(LogLevel level) { g_level = level; }
LogLevel log_level() { return g_level; }

Progress::Progress(std::string label, int64_t total, std::string unit)
    : label_(std::move(label)), unit_(std::move(unit)), total_(total), started_(steady_seconds()) {
  terminal_ = isatty(STDERR_FILENO) != 0;
  drawn_ = terminal_ ? 0 : started_;
  const std::lock_guard lock(g_mutex);
  if (terminal_ && !g_progress) g_progress = this;
}

Progress::~Progress() { finish(); }

std::string Progress::line() const {
  const double elapsed = steady_seconds() - started_;
  const double rate = elapsed > 0 ? static_cast<double>(done_) / elapsed : 0;
  std::string text = fmt::format("{} {}", label_, with_commas(done_));
  if (total_ > 0)
    text += fmt::format("/{} ({:.0f} %)", with_commas(total_),
                        100.0 * static_cast<double>(done_) / static_cast<double>(total_));
  text += fmt::format(" {}, {}/s", unit_, with_commas(static_cast<int64_t>(rate)));
  if (total_ > done_ && rate > 0)
    text += ", " + format_duration(static_cast<double>(total_ - done_) / rate) + " left";
  return suffix_.empty() ? text : text + ", " + suffix_;
}

void Progress::draw() {
  const std::lock_guard lock(g_mutex);
  drawn_ = steady_seconds();
  std::fprintf(stderr, terminal_ ? "%s%s" : "%s%s\n", terminal_ ? kClearLine : "", line().c_str());
  std::fflush(stderr);
}

void Progress::advance(int64_t count, const std::string& suffix) {
  done_ += count;
  suffix_ = suffix;
  if (log_level() != LogLevel::kNormal) return;
  if (steady_seconds() - drawn_ >= (terminal_ ? kTerminalInterval : kPlainInterval)) draw();
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  const std::lock_guard lock(g_mutex);
  if (g_progress == this) g_progress = nullptr;
  if (terminal_ && drawn_ > 0) {
    std::fprintf(stderr, "%s", kClearLine);
    std::fflush(stderr);
  }
}

}  // namespace prism
