// The picture of docs/architecture.md: each layer may include those below it, never above.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>

namespace {

namespace fs = std::filesystem;

const std::map<std::string, int> kHeight = {{"core", 0},     {"kernels", 0}, {"ops", 1},   {"distributed", 2},
                                            {"mixers", 3},   {"models", 4},  {"data", 4},  {"text", 4},
                                            {"evaluate", 5}, {"train", 6},   {"serve", 7}, {"compare", 7}};

void check_file(const fs::path& file, const std::string& layer) {
  static const std::regex kInclude("#include \"(?:prism/)?([a-z]+)/");
  static const std::regex kTorch("#include <(torch|ATen|c10)/");
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::smatch match;
    EXPECT_FALSE(layer == "kernels" && std::regex_search(line, kTorch))
        << file << " includes LibTorch: " << line;
    if (!std::regex_search(line, match, kInclude) || !kHeight.contains(match[1])) continue;
    const std::string other = match[1];
    const bool below =
        other == layer || kHeight.at(other) < kHeight.at(layer) || (layer == "kernels" && other == "core");
    EXPECT_TRUE(below) << file << ": " << layer << " includes " << other;
  }
}

TEST(Layers, NothingIncludesUpwards) {
  int files = 0;
  for (const char* root : {"src", "include/prism"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(PRISM_SOURCE_DIR) / root)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      const std::string layer =
          fs::relative(entry.path(), fs::path(PRISM_SOURCE_DIR) / root).begin()->string();
      ASSERT_TRUE(kHeight.contains(layer)) << entry.path() << " lies in no known layer";
      check_file(entry.path(), layer);
      ++files;
    }
  }
  EXPECT_GT(files, 20);
}

}  // namespace
