#include "compare/process_pool.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "prism/core/error.h"
#include "prism/core/interrupt.h"

namespace prism {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);

/// In a group of its own, so that the terminal's Ctrl-C reaches this process alone, which hands it on once.
pid_t start(const Job& job) {
  std::vector<char*> words;
  for (const std::string& word : job.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const int log = ::open(job.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  check(log >= 0, "{}: {}", job.log.string(), std::strerror(errno));
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);  // it ended before the line above
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  ::close(log);
  check(child > 0, "compare: cannot start a process: {}", std::strerror(errno));
  return child;
}

int exit_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

int run_jobs(const std::vector<Job>& jobs, int64_t at_once, const std::function<void(size_t, int)>& ended) {
  const InterruptGuard interrupts;
  std::map<pid_t, size_t> running;
  size_t next = 0;
  int told = 0;  // the signal that was handed on
  while (true) {
    while (!told && next < jobs.size() && static_cast<int64_t>(running.size()) < at_once)
      running.emplace(start(jobs[next]), next), ++next;
    if (running.empty()) return told;
    for (auto job = running.begin(); job != running.end();) {
      int status = 0;
      if (::waitpid(job->first, &status, WNOHANG) != job->first) {
        ++job;
        continue;
      }
      const size_t index = job->second;
      job = running.erase(job);
      ended(index, exit_status(status));
    }
    if (!told && (told = InterruptGuard::pending()))
      for (const auto& [process, index] : running) ::kill(process, told);
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace prism
