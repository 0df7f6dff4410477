#include "prism/data/item_features.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/core/safetensors.h"

namespace prism {
namespace {

using ::testing::HasSubstr;

std::string path(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / ("prism-features-" + name)).string();
}

/// A .npy file of version 1 as numpy writes it.
std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header + data;
}

std::string floats(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float)};
}

Vocabulary items() {
  Vocabulary names;
  for (const char* name : {"a", "b", "c"}) names.add(name);
  return names;
}

at::Tensor read(const std::string& file) {
  set_log_level(LogLevel::kQuiet);
  DataConfig config;
  config.item_features = file;
  config.item_feature_ids = path("ids.txt");
  return read_item_features(config, items());
}

std::string error_of(const std::string& file) {
  try {
    read(file);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ItemFeatures, RowsFollowTheIdsAndAreScaled) {
  write_file(path("ids.txt"), "c\r\nunknown\r\na\r\n");
  write_file(path("good.npy"), npy("<f4", "(3, 2)", floats({3, 4, 1, 1, 0, 2})));
  const at::Tensor expected = at::tensor({0.F, 1.F, 0.F, 0.F, 0.6F, 0.8F}).view({3, 2});
  EXPECT_TRUE(at::allclose(read(path("good.npy")), expected));
  const at::Tensor matrix = at::tensor({3., 4., 1., 1., 0., 2.}).view({3, 2});
  write_safetensors(path("good.safetensors"), {.tensors = {{"features", matrix}}, .metadata = {}});
  EXPECT_TRUE(at::allclose(read(path("good.safetensors")), expected));
  EXPECT_FALSE(read("").defined());
}

TEST(ItemFeatures, FilesThatDoNotFitAreNamed) {
  write_file(path("ids.txt"), "c\nb\na\n");
  const auto npy_error = [](const std::string& bytes) {
    write_file(path("bad.npy"), bytes);
    return error_of(path("bad.npy"));
  };
  EXPECT_THAT(npy_error("text, not numpy"), HasSubstr("bad.npy: is not a .npy file"));
  EXPECT_THAT(npy_error(npy("<i8", "(3, 2)", "")), HasSubstr("type \"<i8\""));
  EXPECT_THAT(npy_error(npy("<f4", "(6,)", floats({1, 2, 3, 4, 5, 6}))),
              HasSubstr("expected (items, features)"));
  EXPECT_THAT(npy_error(npy("<f4", "(3, 2)", floats({1, 2, 3}))),
              HasSubstr("ends before its 3 x 2 elements"));
  EXPECT_THAT(npy_error(npy("<f4", "(2, 2)", floats({1, 2, 3, 4}))), HasSubstr("has 2 rows"));
  EXPECT_THAT(npy_error(npy("<f4", "(3, 1)", floats({1, 2, NAN}))), HasSubstr("not finite"));
  EXPECT_THAT(error_of("features.csv"), HasSubstr("neither .npy nor .safetensors"));
}

}  // namespace
}  // namespace prism
