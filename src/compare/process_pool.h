#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace prism {

/// A program with its arguments; what it prints is appended to `log`.
struct Job {
  std::vector<std::string> command;
  std::filesystem::path log;
};

/// Runs every job in a process of its own, at most `at_once` at a time, and calls ended(job, status) as each
/// one ends: its exit status, or 128 + the signal that ended it. SIGINT and SIGTERM are handed to the running
/// jobs, no more are started, and once they have ended the signal is returned; otherwise 0. Jobs do not
/// outlive this process.
int run_jobs(const std::vector<Job>& jobs, int64_t at_once, const std::function<void(size_t, int)>& ended);

}  // namespace prism
