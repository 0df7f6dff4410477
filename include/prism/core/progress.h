#pragma once
#include <cstdint>
#include <string>

namespace prism {

/// One progress line on stderr: done/total, rate, ETA and a suffix of the caller's. On a terminal it redraws
/// in place; elsewhere it prints a plain line every ten seconds. Silent under --quiet. Log lines written
/// meanwhile appear above it. Not thread-safe: one thread advances it.
class Progress {
 public:
  /// total 0: unknown. `unit` names what is counted, e.g. "rows".
  Progress(std::string label, int64_t total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t count, const std::string& suffix = "");
  /// Removes the line; called by the destructor.
  void finish();

 private:
  friend void detail_redraw_progress();
  std::string line() const;
  void draw();

  std::string label_, unit_, suffix_;
  int64_t total_ = 0, done_ = 0;
  double started_ = 0, drawn_ = 0;
  bool terminal_ = false, finished_ = false;
};

}  // namespace prism
