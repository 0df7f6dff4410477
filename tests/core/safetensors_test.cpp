#include "prism/core/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "prism/core/error.h"
#include "prism/core/files.h"

namespace prism {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() : path_(fs::path(testing::TempDir()) / "prism_safetensors_test.safetensors") {}
  ~SafetensorsTest() override { fs::remove(path_); }

  /// A file with this header text and `data` bytes of zeros.
  void write_raw(const std::string& header, size_t data) {
    std::string bytes(8, '\0');
    const uint64_t size = header.size();
    std::memcpy(bytes.data(), &size, 8);
    write_file(path_, bytes + header + std::string(data, '\0'));
  }

  std::string read_error() {
    try {
      read_safetensors(path_);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path path_;
};

TEST_F(SafetensorsTest, RoundTripOfEveryType) {
  Safetensors written;
  for (const auto type :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte, at::kBool})
    written.tensors[c10::toString(type)] = at::arange(6).reshape({2, 3}).remainder(2).to(type);
  written.tensors["scalar"] = at::scalar_tensor(1.5, at::kDouble);
  written.tensors["empty"] = at::empty({0, 3});
  written.tensors["transposed"] = at::arange(6.0).reshape({2, 3}).t();
  written.metadata = {{"format_version", "1"}, {"unicode", "naïve \"quoted\""}};
  write_safetensors(path_, written);

  const Safetensors read = read_safetensors(path_);
  EXPECT_EQ(read.metadata, written.metadata);
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (const auto& [name, tensor] : written.tensors) {
    const at::Tensor& other = read.tensors.at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(other, tensor)) << name;
  }
}

TEST_F(SafetensorsTest, APrefixReadsTheTensorsUnderIt) {
  write_safetensors(path_,
                    {.tensors = {{"a.x", at::arange(3)}, {"b.x", at::arange(5.0)}, {"b.y", at::ones({2})}},
                     .metadata = {}});
  const Safetensors read = read_safetensors(path_, "b.");
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_TRUE(at::equal(read.tensors.at("b.x"), at::arange(5.0)));
  EXPECT_TRUE(at::equal(read.tensors.at("b.y"), at::ones({2})));
}

TEST_F(SafetensorsTest, SameContentGivesSameBytes) {
  const Safetensors content{.tensors = {{"b", at::ones({3}, at::kByte)}, {"a", at::ones({2})}},
                            .metadata = {}};
  write_safetensors(path_, content);
  const std::string first = read_file(path_);
  write_safetensors(path_, content);
  EXPECT_EQ(read_file(path_), first);
  EXPECT_EQ((first.size() - 3 - 8) % 8, 0u) << "data must start at a multiple of 8";
}

TEST_F(SafetensorsTest, TornFilesNameTheFileAndTheFault) {
  write_safetensors(path_, {.tensors = {{"x", at::ones({4})}}, .metadata = {}});
  const std::string whole = read_file(path_);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    write_file(path_, whole.substr(0, bytes));
    EXPECT_THAT(read_error(), HasSubstr(path_.string())) << bytes;
  }
  write_file(path_, whole + "x");
  EXPECT_THAT(read_error(), HasSubstr("cover 16"));
}

TEST_F(SafetensorsTest, EditedHeadersAreRefused) {
  const auto error_of = [&](const std::string& header, size_t data) {
    write_raw(header, data);
    return read_error();
  };
  EXPECT_THAT(error_of("[]", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"Q4","shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("dtype Q4"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4), HasSubstr("needs 8"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 4),
              HasSubstr("torn or edited"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4),
              HasSubstr("torn or edited"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
              HasSubstr("list of sizes"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4),
              HasSubstr("impossible shape"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1]}})", 4), HasSubstr("damaged header entry"));
  EXPECT_THAT(error_of(R"({"x":7})", 0), HasSubstr("damaged header entry"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                          "y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                       4),
              HasSubstr("expected 4"));
  EXPECT_THAT(error_of(R"({"__metadata__":{"a":1}})", 0), HasSubstr("\"a\" is no text"));
}

TEST_F(SafetensorsTest, UnwritableContentLeavesNoFile) {
  EXPECT_THROW(
      write_safetensors(path_, {.tensors = {{"x", at::zeros({1}, at::kComplexFloat)}}, .metadata = {}}),
      Error);
  EXPECT_THROW(write_safetensors(path_, {.tensors = {{"x", at::Tensor()}}, .metadata = {}}), Error);
  EXPECT_THROW(write_safetensors(path_, {.tensors = {}, .metadata = {{"a", "\xff"}}}), Error);
  EXPECT_FALSE(fs::exists(path_));
}

TEST(SafetensorsGolden, ReadsPublicFiles) {
  const fs::path file =
      fs::path(PRISM_SHARED_DIR) / "golden" / "prism-L2-T64-B2-H2-V16-init-mild.safetensors";
  if (!fs::exists(file)) GTEST_SKIP() << "skipped: " << file << " is absent";
  const Safetensors content = read_safetensors(file);
  EXPECT_EQ(content.metadata.at("mixer"), "prism");
  EXPECT_EQ(content.tensors.at("k").sizes(), (std::vector<int64_t>{2, 64, 2, 2, 16}));
  EXPECT_EQ(content.tensors.at("d_k").scalar_type(), at::kDouble);
}

}  // namespace
}  // namespace prism
