// Blocks that keep only their inputs have the bits of those that keep everything.
#include "models/checkpointed.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>

#include "prism/core/error.h"
#include "prism/models/language_model.h"
#include "prism/ops/softmax_loss.h"
#include "train/autocast.h"

namespace prism {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 29;

/// One training step's worth of a small model.
struct Pass {
  std::string mixer;
  double dropout = 0.2;
  bool packed = false;
  Precision precision = Precision::kFp32;
  int64_t micro_batches = 1;
};

std::shared_ptr<LanguageModel> model_of(const Pass& pass) {
  LanguageModelSpec spec(pass.mixer);
  Settings settings;
  spec.bind(settings);
  spec.model.width = 32, spec.model.blocks = 3, spec.model.ffn_width = 48, spec.model.dropout = pass.dropout;
  auto model = std::make_shared<LanguageModel>(spec, kTokens, 7);
  model->train();
  return model;
}

Tensor loss_of(LanguageModel& model, const Pass& pass, int64_t part) {
  const Autocast autocast(at::kCPU, pass.precision);
  model.set_dropout_step(5, part * 74);
  const Tensor all = (at::arange(75, at::kLong) * 7 + part * 3).remainder(kTokens),
               tokens = all.narrow(0, 0, 74).view({pass.packed ? 1 : 2, -1});
  const Packing packing = pass.packed ? Packing::packed({33, 1, 0, 40}) : Packing::rows();
  const Tensor h = model.forward(tokens, packing).flatten(0, 1);
  const Tensor loss = full_softmax_loss(h, model.embedding(), all.narrow(0, 1, 74)),
               auxiliary = model.auxiliary_loss();
  return auxiliary.defined() ? loss + auxiliary : loss;
}

/// The losses of the micro-batches, and the gradients of all of them together.
std::map<std::string, Tensor> results(const Pass& pass, bool checkpointing) {
  const auto model = model_of(pass);
  model->set_activation_checkpointing(checkpointing);
  std::map<std::string, Tensor> all;
  for (int64_t part = 0; part < pass.micro_batches; ++part) {
    const Tensor loss = loss_of(*model, pass, part);
    loss.backward();
    all["loss " + std::to_string(part)] = loss.detach();
  }
  for (const auto& parameter : model->named_parameters()) all[parameter.key()] = parameter.value().grad();
  return all;
}

void expect_same_bits(const Pass& pass) {
  const auto expected = results(pass, false), found = results(pass, true);
  ASSERT_EQ(expected.size(), found.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(tensor.defined(), found.at(name).defined()) << name;
    if (tensor.defined()) {
      EXPECT_TRUE(at::equal(tensor, found.at(name))) << pass.mixer << " " << name;
    }
  }
}

/// `mom` has an auxiliary loss.
class CheckpointedBlocks : public ::testing::TestWithParam<std::string> {};

TEST_P(CheckpointedBlocks, HaveTheSameLossAndGradients) {
  expect_same_bits({.mixer = GetParam(), .dropout = 0});
  expect_same_bits({.mixer = GetParam()});
  expect_same_bits({.mixer = GetParam(), .packed = true});
}

TEST_P(CheckpointedBlocks, AddUpOverMicroBatches) {
  expect_same_bits({.mixer = GetParam(), .micro_batches = 3});
}

TEST_P(CheckpointedBlocks, HaveTheSameBitsUnderAutocast) {
  expect_same_bits({.mixer = GetParam(), .precision = Precision::kBf16});
  expect_same_bits({.mixer = GetParam(), .packed = true, .precision = Precision::kBf16, .micro_batches = 2});
}

INSTANTIATE_TEST_SUITE_P(Mixers, CheckpointedBlocks,
                         ::testing::Values("prism", "gated_delta_net", "softmax_attention", "mom", "mamba2",
                                           "prism*2,softmax_attention"),
                         [](const auto& chosen) {
                           std::string name = chosen.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
                           return name;
                         });

/// Bytes of tensors that live, of those that are made on this thread while it is watched.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    live += bytes;
    most = std::max(most, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live = 0, most = 0;
};

struct Bytes {
  int64_t between, most;
};

/// What forward keeps for backward, and the most at any moment of both.
Bytes bytes_of(const Pass& pass, bool checkpointing) {
  const auto model = model_of(pass);
  model->set_activation_checkpointing(checkpointing);
  const auto bytes = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, bytes);
  const Tensor loss = loss_of(*model, pass, 0);
  const int64_t between = bytes->live;
  loss.backward();
  return {between, bytes->most};
}

TEST_P(CheckpointedBlocks, KeepLessBetweenForwardAndBackward) {
  const Bytes all = bytes_of({.mixer = GetParam()}, false), few = bytes_of({.mixer = GetParam()}, true);
  EXPECT_GT(few.between, 0);
  EXPECT_LT(few.between * 4, all.between) << "of three blocks, their inputs";
  EXPECT_LT(few.most, all.most);
}

TEST(CheckpointedModel, EvaluationAndInferenceAreUntouched) {
  const auto model = model_of({.mixer = "prism"});
  const Tensor tokens = at::arange(20, at::kLong).view({1, -1});
  model->eval();
  const Tensor expected = model->forward(tokens, Packing::rows());
  model->set_activation_checkpointing(true);
  EXPECT_TRUE(at::equal(model->forward(tokens, Packing::rows()), expected));
  const at::NoGradGuard no_gradient;
  EXPECT_TRUE(at::equal(model->forward(tokens, Packing::rows()), expected));
}

/// Counts the times that a gradient was written, as the gradient buckets of several processes see it.
struct CountingHook final : torch::autograd::FunctionPostHook {
  explicit CountingHook(int& calls) : count(calls) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    ++count;
    return outputs;
  }
  int& count;
};

TEST(CheckpointedModel, AParametersGradientIsWrittenOnce) {
  const Pass pass{.mixer = "prism"};
  const auto model = model_of(pass);
  model->set_activation_checkpointing(true);
  std::map<std::string, int> writes;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;  // autograd holds them weakly
  for (const auto& parameter : model->named_parameters()) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(parameter.value()));
    accumulators.back()->add_post_hook(std::make_unique<CountingHook>(writes[parameter.key()]));
  }
  loss_of(*model, pass, 0).backward();
  EXPECT_EQ(writes.size(), accumulators.size());
  for (const auto& [name, count] : writes) EXPECT_EQ(count, 1) << name;
}

TEST(Checkpointed, FrozenParametersAndInputsHaveNoGradient) {
  const Tensor x = at::ones({3}), frozen = at::full({3}, 2.0), free = at::full({3}, 4.0).requires_grad_();
  int calls = 0;
  const auto work = [&](const Tensor& in) {
    ++calls;
    return std::vector<Tensor>{in * frozen * free, in + frozen};
  };
  const std::vector<Tensor> y = checkpointed(work, x, {frozen, free});
  EXPECT_EQ(calls, 1);
  y[0].sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(at::equal(free.grad(), at::full({3}, 2.0)));
  EXPECT_FALSE(frozen.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Checkpointed, AnOutputThatNobodyUsesIsLeftOut) {
  const Tensor x = at::ones({3}).requires_grad_(), weight = at::full({3}, 4.0).requires_grad_();
  const auto work = [&](const Tensor& in) { return std::vector<Tensor>{in * 3, in * weight}; };
  checkpointed(work, x, {weight})[0].sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({3}, 3.0)));
  EXPECT_FALSE(weight.grad().defined());
}

TEST(Checkpointed, WorkThatChangesIsRefused) {
  const Tensor x = at::ones({3}).requires_grad_();
  size_t calls = 0;
  const auto work = [&](const Tensor& in) { return std::vector<Tensor>(++calls, in * 2); };
  const std::vector<Tensor> y = checkpointed(work, x, {});
  try {
    y[0].sum().backward();
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("checkpointed: 1 outputs in forward, 2 in backward"));
  }
}

TEST(Checkpointed, NothingIsEnough) {
  const Tensor x = at::ones({0, 4}).requires_grad_(), weight = at::ones({4}).requires_grad_();
  const auto work = [&](const Tensor& in) { return std::vector<Tensor>{in * weight}; };
  checkpointed(work, x, {weight})[0].sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::zeros({4})));
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

}  // namespace
}  // namespace prism
