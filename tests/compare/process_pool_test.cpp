#include "compare/process_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "prism/core/files.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Job shell(const std::string& line, const std::string& name) {
  const fs::path log = fs::path(testing::TempDir()) / ("pool-" + name);
  fs::remove(log);
  return {.command = {"/bin/sh", "-c", line}, .log = log};
}

TEST(ProcessPool, RunsEveryJobAndReportsItsStatus) {
  std::vector<Job> jobs;
  for (int i = 0; i < 5; ++i)
    jobs.push_back(shell("echo out; echo err >&2; exit " + std::to_string(i), std::to_string(i)));
  jobs.push_back({.command = {"/no/such/program"}, .log = jobs[0].log});
  jobs.push_back(shell("kill -9 $$", "killed"));
  std::map<size_t, int> statuses;
  EXPECT_EQ(run_jobs(jobs, 2, [&](size_t i, int status) { statuses[i] = status; }), 0);
  EXPECT_EQ(statuses,
            (std::map<size_t, int>{{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 127}, {6, 128 + 9}}));
  EXPECT_THAT(read_file(jobs[4].log), HasSubstr("out"));
  EXPECT_THAT(read_file(jobs[4].log), HasSubstr("err"));
}

TEST(ProcessPool, NeverRunsMoreThanAsked) {
  const std::string file = (fs::path(testing::TempDir()) / "pool-running").string();
  fs::remove(file);
  // A job fails when it finds another one's mark.
  const std::string line = "[ ! -e " + file + " ] || exit 1; touch " + file + "; sleep 0.05; rm " + file;
  const std::vector<Job> jobs(4, shell(line, "one"));
  int failures = 0;
  run_jobs(jobs, 1, [&](size_t, int status) { failures += status != 0; });
  EXPECT_EQ(failures, 0);
}

TEST(ProcessPool, HandsASignalOnAndStartsNothingMore) {
  const std::string ready = (fs::path(testing::TempDir()) / "pool-ready").string();
  fs::remove(ready);
  // The first job tells this process to stop once it can take the signal itself.
  std::vector<Job> jobs = {shell("trap 'exit 7' TERM; kill -TERM " + std::to_string(::getpid()) +
                                     "; while true; do sleep 0.01; done",
                                 "stopped"),
                           shell("touch " + ready, "never")};
  std::map<size_t, int> statuses;
  EXPECT_EQ(run_jobs(jobs, 1, [&](size_t i, int status) { statuses[i] = status; }), SIGTERM);
  EXPECT_EQ(statuses, (std::map<size_t, int>{{0, 7}}));
  EXPECT_FALSE(fs::exists(ready));
}

}  // namespace
}  // namespace prism
