#include "prism/train/checkpoint.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/safetensors.h"
#include "support/error_of.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path file(const std::string& name) {
  return fs::path(testing::TempDir()) / ("prism-" + name + ".safetensors");
}

Checkpoint sample() {
  Checkpoint checkpoint{.state = {}, .settings = R"({"model":{"width":8}})", .tensors = {}};
  checkpoint.state.seed = 7;
  checkpoint.state.step = 123;
  checkpoint.state.loss_sum = 0.1 + 0.2;  // not a short decimal
  checkpoint.tensors = {{"model.a", at::randn({3, 4})}, {"model.b", at::randn({5})}};
  return checkpoint;
}

TEST(Checkpoint, RoundTripKeepsEveryBit) {
  const Checkpoint written = sample();
  write_checkpoint(file("round"), written);
  const Checkpoint read = read_checkpoint(file("round"));
  EXPECT_EQ(read.state.loss_sum, written.state.loss_sum);
  EXPECT_EQ(read.state.step, 123);
  EXPECT_EQ(read.state.seed, 7);
  EXPECT_EQ(read.settings, written.settings);
  ASSERT_EQ(read.tensors.size(), 2U);
  EXPECT_TRUE(at::equal(read.tensors.at("model.a"), written.tensors.at("model.a")));
}

TEST(Checkpoint, TornFilesAreRefusedByName) {
  write_checkpoint(file("torn"), sample());
  const std::string whole = read_file(file("torn"));
  for (const size_t size : {size_t{0}, size_t{7}, size_t{60}, whole.size() / 2, whole.size() - 1}) {
    write_file(file("torn"), whole.substr(0, size));
    EXPECT_THAT(error_of([] { read_checkpoint(file("torn")); }), HasSubstr(file("torn").string())) << size;
  }
}

TEST(Checkpoint, EveryEditedByteIsNoticed) {
  write_checkpoint(file("edit"), sample());
  const std::string whole = read_file(file("edit"));
  for (size_t i = 0; i < whole.size(); i += 3) {
    std::string edited = whole;
    edited[i] = static_cast<char>(edited[i] ^ 0x01);
    write_file(file("edit"), edited);
    EXPECT_THAT(error_of([] { read_checkpoint(file("edit")); }), HasSubstr("prism-edit")) << "byte " << i;
  }
}

TEST(Checkpoint, ANewerFormatSaysSo) {
  write_checkpoint(file("newer"), sample());
  Safetensors content = read_safetensors(file("newer"));
  content.metadata["format_version"] = "2";
  write_safetensors(file("newer"), content);
  EXPECT_THAT(error_of([] { read_checkpoint(file("newer")); }), HasSubstr("version 2 is newer"));
}

TEST(Checkpoint, OtherSafetensorsAreNotCheckpoints) {
  write_safetensors(file("other"), {.tensors = {{"x", at::zeros({2})}}, .metadata = {}});
  EXPECT_THAT(error_of([] { read_checkpoint(file("other")); }), HasSubstr("not a checkpoint of prism"));
}

TEST(Checkpoint, RestoreNamesWhatDoesNotFit) {
  const Checkpoint checkpoint = sample();
  const auto restore = [&](const NamedTensors& tensors) {
    return error_of([&] { restore_tensors(checkpoint, "model.", tensors, "f"); });
  };
  const at::Tensor a = at::zeros({3, 4}), b = at::zeros({5});
  EXPECT_EQ(restore({{"a", a}, {"b", b}}), "no error");
  EXPECT_TRUE(at::equal(a, checkpoint.tensors.at("model.a")));
  EXPECT_THAT(restore({{"a", a}, {"c", b}}), HasSubstr("no tensor model.c"));
  EXPECT_THAT(restore({{"a", at::zeros({4, 3})}, {"b", b}}),
              HasSubstr("model.a is [3,4], the model expects [4,3]"));
  EXPECT_THAT(restore({{"a", a}}), HasSubstr("has 2 tensors under model., the model has 1"));
}

}  // namespace
}  // namespace prism
