#include "prism/models/language_model.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "mixers/parameters.h"
#include "mixers/threaded_linear.h"
#include "models/block.h"
#include "models/seeded_weights.h"
#include "prism/core/error.h"
#include "prism/core/random.h"
#include "prism/ops/cuda_kernels.h"
#include "prism/ops/dropout.h"
#include "prism/ops/norm.h"

namespace prism {
namespace {

constexpr double kEmbeddingDeviation = 0.02;

/// Layers, width, heads, SwiGLU's inner width and the rank of PRISM's solver, in the order of ModelSize.
struct Size {
  int64_t blocks, width, heads, ffn_width, solver_rank;
};
constexpr Size kSizes[] = {
    {2, 128, 2, 320, 32}, {12, 768, 6, 2048, 128}, {24, 1024, 8, 2816, 128}, {24, 2048, 16, 5632, 128}};

void check_mixers(const LanguageModelSpec& spec) {
  for (int64_t i = 0; i < std::min(spec.model.blocks, spec.mixer.period()); ++i) {
    const MixerSpec& mixer = spec.mixer.of_block(i);
    if (mixer.needs_positions() || mixer.needs_times())
      usage_error("language model: mixer {} needs {}, which a language model does not have",
                  spec.mixer.text(), mixer.needs_times() ? "times" : "learned positions");
  }
}

}  // namespace

LanguageModelSpec::LanguageModelSpec(const std::string& pattern) : mixer(pattern) { model.mixer = pattern; }

void LanguageModelSpec::bind(Settings& settings) {
  settings.bind("model", model);
  mixer.bind(settings);
}

void LanguageModelSpec::fit_to_size(const Settings& settings) {
  const Size& size = kSizes[static_cast<size_t>(model.size)];
  for (const Setting& setting : settings.all()) {
    if (setting.assigned) continue;
    if (setting.section == "model") {
      if (setting.name == "blocks") setting.assign(size.blocks);
      if (setting.name == "width") setting.assign(size.width);
      if (setting.name == "ffn_width") setting.assign(size.ffn_width);
    } else if (setting.section.starts_with("mixer")) {
      if (setting.name == "heads") setting.assign(size.heads);
      if (setting.name == "solver_rank") setting.assign(size.solver_rank);
    }
  }
}

/// The blocks, which only this file sees.
class LanguageModel::Blocks {
 public:
  std::vector<std::shared_ptr<Block>> all;
};

LanguageModel::LanguageModel(const LanguageModelSpec& spec, int64_t vocabulary, uint64_t seed)
    : config_(spec.model), seed_(seed), blocks_(std::make_shared<Blocks>()) {
  check(vocabulary >= 1, "language model: a vocabulary of {}", vocabulary);
  check_mixers(spec);
  const SeededWeights seeded(seed);
  const int64_t width = config_.width;
  embedding_ = register_parameter("embedding", initial::normal({vocabulary, width}, kEmbeddingDeviation));
  for (int64_t i = 0; i < config_.blocks; ++i)
    blocks_->all.push_back(register_module(
        "block" + std::to_string(i + 1),
        std::make_shared<Block>(spec.mixer.of_block(i), width, config_.ffn_width, config_.max_length,
                                /*input_conv=*/0, FeedForward::kSwiGlu)));
  final_norm_ = register_parameter("final_norm", initial::ones({width}));
}

Dropout LanguageModel::dropout_of(int64_t step) const {
  return {is_training() ? config_.dropout : 0, stream_seed(seed_, "dropout", static_cast<uint64_t>(step)),
          dropout_row_};
}

bool LanguageModel::stage_dropout_step(int64_t step) {
  const c10::Device device = embedding_.device();
  if (!device.is_cuda() || !cuda_kernels() || embedding_.scalar_type() == at::kDouble) return false;
  const at::Tensor seeds = dropout_of(step).seeds(1 + config_.blocks, 2).pin_memory();
  if (!staged_seeds_.defined()) staged_seeds_ = at::empty_like(seeds, seeds.options().device(device));
  staged_seeds_.copy_(seeds, /*non_blocking=*/true);
  staged_step_ = step;
  return true;
}

/// call(block, x, index) for one block after the other, and the final norm.
template <class Call>
at::Tensor LanguageModel::through_blocks(at::Tensor x, const Call& call) const {
  const bool lean = checkpointing_ && is_training() && at::GradMode::is_enabled();
  for (size_t i = 0; i < blocks_->all.size(); ++i) {
    Block& block = *blocks_->all[i];
    if (lean)  // backward calls it again, after this function
      x = block.checkpointed_call(
          x, [&block, call, i](const at::Tensor& input) { return call(block, input, i); });
    else
      x = call(block, x, i);
  }
  return rms_norm(x, final_norm_);
}

at::Tensor LanguageModel::forward(const at::Tensor& tokens_BT, const Packing& packing) {
  Dropout drop = dropout_of(dropout_step_);
  if (staged_step_ == dropout_step_) drop.staged = staged_seeds_;
  const at::Tensor x = dropout(at::embedding(embedding_, tokens_BT), drop.at(0));
  return through_blocks(x, [packing, drop](Block& block, const at::Tensor& input, size_t index) {
    return block.forward(input, packing, {}, drop.at(static_cast<int64_t>(index) + 1));
  });
}

at::Tensor LanguageModel::forward_in_parts(const at::Tensor& tokens_BT, const Packing& packing,
                                           Ranks& ranks) {
  check(takes_parts(), "language model: {} with dropout {} takes no parts of sequences", config_.mixer,
        config_.dropout);
  return through_blocks(at::embedding(embedding_, tokens_BT),
                        [packing, &ranks](Block& block, const at::Tensor& input, size_t /*index*/) {
                          return block.forward_in_parts(input, packing, ranks);
                        });
}

bool LanguageModel::takes_parts() const {
  return config_.dropout == 0 && std::all_of(blocks_->all.begin(), blocks_->all.end(),
                                             [](const auto& block) { return block->mixer()->takes_parts(); });
}

int64_t LanguageModel::shortest_part() const {
  int64_t tokens = 1;
  for (const auto& block : blocks_->all) tokens = std::max(tokens, block->mixer()->shortest_part());
  return tokens;
}

at::Tensor LanguageModel::prefill(const at::Tensor& tokens_BT, const Packing& packing,
                                  LanguageModelState& state) {
  state.blocks.resize(blocks_->all.size());
  at::Tensor x = at::embedding(embedding_, tokens_BT);
  for (size_t i = 0; i < blocks_->all.size(); ++i)
    x = blocks_->all[i]->prefill(x, packing, {}, state.blocks[i]);
  return rms_norm(x, final_norm_);
}

at::Tensor LanguageModel::step(const at::Tensor& tokens_B, LanguageModelState& state) {
  const at::NoGradGuard no_gradient;
  state.blocks.resize(blocks_->all.size());
  at::Tensor x = at::embedding(embedding_, tokens_B);
  for (size_t i = 0; i < blocks_->all.size(); ++i) x = blocks_->all[i]->step(x, {}, state.blocks[i]);
  return rms_norm(x, final_norm_);
}

at::Tensor LanguageModel::logits(const at::Tensor& h) const { return threaded_linear(h, embedding_); }

at::Tensor LanguageModel::auxiliary_loss() const {
  at::Tensor sum;
  for (const auto& block : blocks_->all) {
    const at::Tensor& own = block->mixer()->auxiliary_loss();
    if (own.defined()) sum = sum.defined() ? sum + own : own;
  }
  return sum;
}

int64_t LanguageModel::state_size(int64_t tokens) const {
  int64_t size = 0;
  for (const auto& block : blocks_->all) size += block->mixer()->state_size(tokens);
  return size;
}

bool LanguageModel::steps_repeat() const {
  return std::all_of(blocks_->all.begin(), blocks_->all.end(),
                     [](const auto& block) { return block->mixer()->steps_repeat(); });
}

std::vector<std::pair<std::string, int64_t>> LanguageModel::parameter_counts() const {
  int64_t mixers = 0, others = 0;
  for (const auto& own : named_parameters()) {
    if (own.key() == "embedding") continue;
    (own.key().find(".mixer.") != std::string::npos ? mixers : others) += own.value().numel();
  }
  return {{"embedding", embedding_.numel()}, {"mixers", mixers}, {"feed-forward and norms", others}};
}

int64_t parameter_count(const LanguageModel& model) {
  int64_t total = 0;
  for (const auto& [part, count] : model.parameter_counts()) total += count;
  return total;
}

}  // namespace prism
