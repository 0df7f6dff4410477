#pragma once
// Tests whose ranks are processes: a test starts programs with the variables that torchrun would set.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "prism/core/files.h"

namespace prism {

/// A port that nothing listens on at this moment.
inline int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(descriptor);
  return ntohs(address.sin_port);
}

/// A child process with variables added to the environment; what it prints goes to `output`.out and .err.
class RankProcess {
 public:
  RankProcess(std::vector<std::string> words, std::vector<std::string> variables,
              std::filesystem::path output)
      : output_(std::move(output)) {
    for (char** inherited = environ; *inherited; ++inherited) variables.emplace_back(*inherited);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string out = path("out"), err = path("err");
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0644);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0644);
    ::posix_spawn(&id_, words[0].c_str(), &actions, nullptr, pointers(words).data(),
                  pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
  }
  ~RankProcess() {
    if (waited_) return;
    kill(SIGKILL);
    wait();
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  void kill(int signal) const { ::kill(id_, signal); }
  /// The exit status, or minus the signal that ended it.
  int wait() {
    int status = 0;
    ::waitpid(id_, &status, 0);
    waited_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string out() const { return read_file(path("out")); }
  std::string err() const { return read_file(path("err")); }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> all;
    for (std::string& word : words) all.push_back(word.data());
    all.push_back(nullptr);
    return all;
  }
  std::string path(const char* stream) const { return output_.string() + "." + stream; }

  std::filesystem::path output_;
  pid_t id_ = 0;
  bool waited_ = false;
};

/// What torchrun sets for one process of a machine.
inline std::vector<std::string> rank_variables(int64_t rank, int64_t size, int port) {
  return {"RANK=" + std::to_string(rank),
          "WORLD_SIZE=" + std::to_string(size),
          "LOCAL_RANK=" + std::to_string(rank),
          "LOCAL_WORLD_SIZE=" + std::to_string(size),
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(port)};
}

/// The same program as `size` ranks.
inline std::vector<std::unique_ptr<RankProcess>> start_ranks(int64_t size,
                                                             const std::vector<std::string>& words,
                                                             const std::filesystem::path& output) {
  const int port = free_port();
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int64_t rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<RankProcess>(words, rank_variables(rank, size, port),
                                                  output.string() + "-rank" + std::to_string(rank)));
  return ranks;
}

/// Runs a test of this program, disabled on its own, as every one of `size` ranks; expects them all to pass.
inline void expect_ranks_pass(int64_t size, const std::string& test) {
  const auto output = std::filesystem::path(testing::TempDir()) / test;
  auto ranks = start_ranks(size,
                           {std::filesystem::read_symlink("/proc/self/exe").string(),
                            "--gtest_filter=" + test, "--gtest_also_run_disabled_tests"},
                           output);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ranks[rank]->wait(), 0) << "rank " << rank << " of " << size << ":\n"
                                      << ranks[rank]->out() << ranks[rank]->err();
    EXPECT_NE(ranks[rank]->out().find("[  PASSED  ] 1 test"), std::string::npos) << ranks[rank]->out();
  }
}

}  // namespace prism
