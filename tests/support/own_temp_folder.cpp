// testing::TempDir() of every test process is a folder of its own, removed at the end, so that tests that run
// at the same time, in this clone or another, never share a file.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace {

struct OwnTempFolder {
  OwnTempFolder() {
    path = (std::filesystem::temp_directory_path() / "prism-test-XXXXXX").string();
    if (mkdtemp(path.data())) setenv("TEST_TMPDIR", path.c_str(), 1);
  }
  ~OwnTempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

const OwnTempFolder kFolder;

}  // namespace
