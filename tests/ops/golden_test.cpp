// The program behind `./run golden`, run as a user runs it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "prism/core/safetensors.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int status;
  std::string output;
};

Outcome run_golden(const std::string& arguments) {
  const std::string command = std::string(PRISM_BINARY_DIR) + "/bin/prism_golden " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  std::string output;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    output.append(buffer.data(), count);
  return {WEXITSTATUS(pclose(pipe)), output};
}

TEST(Golden, EveryVectorFileIsMatched) {
  const fs::path folder = fs::path(PRISM_SHARED_DIR) / "golden";
  if (!fs::exists(folder)) GTEST_SKIP() << "skipped: " << folder << " is absent";
  const Outcome outcome = run_golden(folder.string());
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  for (const char* op :
       {"linear",       "linear_norm",  "efla",         "pgdn",          "mom",           "hstu",
        "mamba2",       "delta",        "gdn",          "comba",         "prism",         "prism_delta",
        "prism_refine", "softmax",      "sasrec_block", "gla",           "gsa",           "kda",
        "pkda",         "rwkv7",        "ttt_linear",   "ttt_mlp",       "titans_linear", "titans_mlp",
        "atlas",        "miras_moneta", "miras_yaad",   "miras_yaad_l2", "miras_memora",  "lact"})
    EXPECT_NE(outcome.output.find(std::string("\n") + op + " "), std::string::npos) << op;
}

TEST(Golden, AWrongValueAndAWrongFolderFail) {
  const fs::path source = fs::path(PRISM_SHARED_DIR) / "golden" / "gdn-T7-B2-H3-V24-zero-mild.safetensors";
  if (!fs::exists(source)) GTEST_SKIP() << "skipped: " << source << " is absent";
  const fs::path folder = fs::path(testing::TempDir()) / "prism_golden_test";
  fs::create_directories(folder);
  Safetensors file = read_safetensors(source);
  file.tensors.at("d_k").mutable_data_ptr<double>()[5] += 0.1;
  write_safetensors(folder / "edited.safetensors", file);
  const Outcome wrong = run_golden(folder.string());
  fs::remove_all(folder);
  EXPECT_EQ(wrong.status, 1);
  EXPECT_NE(wrong.output.find("OVER"), std::string::npos) << wrong.output;
  EXPECT_EQ(run_golden(folder.string()).status, 1);
}

}  // namespace
}  // namespace prism
