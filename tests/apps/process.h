#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "prism/core/files.h"

namespace prism {

/// The CLI as a child process; stdout and stderr go to files beside each other.
class Process {
 public:
  Process(const std::vector<std::string>& arguments, const std::filesystem::path& output) : output_(output) {
    std::vector<std::string> words = {PRISM_BINARY_DIR "/bin/prism"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    pointers.reserve(words.size() + 1);
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    id_ = ::fork();
    if (id_ != 0) return;
    redirect(STDOUT_FILENO, path("out"));
    redirect(STDERR_FILENO, path("err"));
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }

  void kill(int signal) const { ::kill(id_, signal); }
  /// The exit status, or minus the signal that ended it.
  int wait() const {
    int status = 0;
    ::waitpid(id_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string out() const { return read_file(path("out")); }
  std::string err() const { return read_file(path("err")); }

 private:
  std::string path(const char* stream) const { return output_.string() + "." + stream; }
  static void redirect(int descriptor, const std::string& file) {
    ::dup2(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), descriptor);
  }

  std::filesystem::path output_;
  pid_t id_ = 0;
};

}  // namespace prism
