#include "serve/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/ops/cuda_kernels.h"

namespace prism {
namespace {

void say_once_that_steps_are_not_recorded() {
  static std::once_flag said;
  std::call_once(said, [] {
    info(
        "generate: the model has a mixer whose steps differ from token to token (its state grows, or it "
        "learns in mini-batches): they are not recorded as a graph of the GPU");
  });
}

/// A tensor of the state, and what a step wants there.
using Move = std::pair<at::Tensor, at::Tensor>;

/// What model.step gave anew. A view of another tensor of the state is copied first: it may be overwritten.
std::vector<Move> moves(const LanguageModelState& from, const LanguageModelState& to) {
  std::vector<Move> all;
  for (size_t block = 0; block < to.blocks.size(); ++block)
    for (const auto& [name, place] : to.blocks[block].tensors) {
      const at::Tensor& value = from.blocks[block].tensors.at(name);
      if (value.is_same(place)) continue;
      check(value.sizes() == place.sizes(), "decode: a step changed the size of block {}'s state {}",
            block + 1, name);
      all.emplace_back(place, value);
    }
  for (Move& move : all)
    for (const MixerState& block : to.blocks)
      for (const auto& [name, place] : block.tensors)
        if (move.second.is_alias_of(place)) move.second = move.second.clone();
  return all;
}

}  // namespace

at::Tensor step_in_place(LanguageModel& model, const at::Tensor& tokens_B, LanguageModelState& state) {
  LanguageModelState next = state;  // the same tensors
  at::Tensor h = model.step(tokens_B, next);
  for (const auto& [place, value] : moves(next, state)) place.copy_(value);
  return h;
}

at::Tensor likeliest_tokens(const at::Tensor& logits_BV) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const auto [value, token] = logits_BV.nan_to_num(-kInfinite, kInfinite, -kInfinite).max(-1);
  return at::where(value.isneginf(), -1, token);
}

Decoder::Decoder(LanguageModel& model, LanguageModelState& state, const DecoderOptions& options)
    : model_(model),
      state_(state),
      device_(model.embedding().device()),
      autocast_(device_.type(), options.precision) {
  if (!device_.is_cuda() || !options.record) return;
  if (!model_.steps_repeat())
    say_once_that_steps_are_not_recorded();
  else if (cuda_kernels())
    recorded_.emplace(device_, "generate");
}

at::Tensor Decoder::step(const at::Tensor& tokens_B) {
  const at::NoGradGuard no_gradient;
  place(tokens_B);
  const bool started = !state_.blocks.empty() && !state_.blocks.front().empty();
  if (!started || !model_.steps_repeat()) return logits_BV_ = model_.logits(model_.step(tokens_B_, state_));
  const auto work = [&] { logits_BV_ = model_.logits(step_in_place(model_, tokens_B_, state_)); };
  if (recorded_)
    recorded_->run(/*repeats=*/true, work);
  else
    work();
  for (MixerState& block : state_.blocks)
    for (int64_t& length : block.lengths) ++length;
  return logits_BV_;
}

/// Puts the tokens where those of the step before were.
void Decoder::place(const at::Tensor& tokens_B) {
  if (tokens_B_.defined() && tokens_B_.sizes() == tokens_B.sizes())
    tokens_B_.copy_(tokens_B);
  else
    tokens_B_ = tokens_B.to(device_, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace prism
