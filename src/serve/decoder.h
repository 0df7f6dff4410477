#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "prism/models/language_model.h"
#include "prism/ops/recorded_step.h"
#include "prism/train/train_config.h"
#include "train/autocast.h"

namespace prism {

struct DecoderOptions {
  Precision precision = Precision::kFp32;  ///< of matrix products
  bool record =
      true;  ///< on a GPU: a step is recorded as a graph and replayed, where the model's steps repeat
};

/// Decodes: a token of each sequence at a time. While one lives, its thread's LibTorch calls run in its
/// precision and on its stream of the GPU.
class Decoder {
 public:
  /// `state` is continued; both must outlive the decoder.
  Decoder(LanguageModel& model, LanguageModelState& state, const DecoderOptions& options);

  /// Reads one token of each sequence, int64 [B]: logits [B, vocabulary] on the model's device, valid until
  /// the next step.
  at::Tensor step(const at::Tensor& tokens_B);
  bool replays() const { return recorded_ && recorded_->replays(); }

 private:
  void place(const at::Tensor& tokens_B);

  LanguageModel& model_;
  LanguageModelState& state_;
  c10::Device device_;
  Autocast autocast_;  // holds the weights' casts, which the graph reads
  at::Tensor tokens_B_, logits_BV_;
  std::optional<RecordedStep> recorded_;
};

/// model.step that leaves its state in the tensors where it found it (`lengths` are the caller's): the mixers
/// either write there or give new tensors of the same sizes, which are copied. Error where the sizes differ.
at::Tensor step_in_place(LanguageModel& model, const at::Tensor& tokens_B, LanguageModelState& state);

/// The likeliest token of each row, the lower id of equals: int64 [B] on the logits' device; -1 where every
/// logit is NaN or -infinity.
at::Tensor likeliest_tokens(const at::Tensor& logits_BV);

}  // namespace prism
