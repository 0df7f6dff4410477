#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "prism/evaluate/text_loss.h"
#include "prism/evaluate/token_windows.h"
#include "prism/models/language_model.h"
#include "prism/text/tokenizer.h"
#include "prism/train/language_model_recipe.h"
#include "train/train_task.h"

namespace prism {

/// Which tokens a recipe trains on and which it validates on.
struct TokenSplit {
  const TokenDataset* train;
  const TokenDataset* valid;
  int64_t train_end, valid_begin;  ///< of the two datasets; training begins at 0, validation ends at the end
};

/// A language model and a row of tokens. A round is what lies between two validations, a unit a sequence of
/// `length` inputs. Sequence s of the whole training is window P(s mod n) of the n windows, in an order P
/// that each pass draws anew from the stream {seed, "shuffle", pass}.
class LanguageModelTask final : public TrainTask {
 public:
  static constexpr auto kMetric = "bits_per_byte";

  /// All referents must outlive the task. `ranks`: those that divide the tokens of each sequence; nullptr
  /// where none do.
  LanguageModelTask(const LanguageModelRecipe& recipe, const TokenSplit& split, const Tokenizer& tokenizer,
                    std::shared_ptr<LanguageModel> model, c10::Device device, Ranks* ranks = nullptr);

  torch::nn::Module& model() override { return *model_; }
  int64_t rounds() const override;
  int64_t units(int64_t round) const override;
  void open_round(int64_t round) override;
  int64_t positions(int64_t, int64_t count) const override { return count * windows_.length(); }
  bool stage(std::span<const StepPart> parts) override;
  TaskLoss loss(const StepPart& part) override;
  bool validates_after(int64_t) const override { return true; }
  MetricMap validate() override;
  void tell(const EpochRow& row) override;
  std::string label(int64_t round) const override;
  void complete(Checkpoint& checkpoint) const override;
  void require_own(const Checkpoint& checkpoint, const std::string& file) const override;
  std::string divergence_advice() const override;
  std::string memory_advice() const override;

  /// Sequences that one pass over the training tokens has.
  int64_t sequences() const { return windows_.size(); }

 private:
  TokenBatch batch_of(const StepPart& part) const;
  at::Tensor hidden(const TokenBatch& batch);
  bool place(const TokenBatch& batch, size_t index);

  const LanguageModelRecipe& recipe_;
  TokenSplit split_;
  std::string tokenizer_;  // its fingerprint
  std::vector<int32_t> bytes_;
  std::shared_ptr<LanguageModel> model_;
  c10::Device device_;
  Ranks* ranks_;
  TokenWindows windows_;
  int64_t opened_ = 0;              // first sequence of the round, of the whole training
  std::vector<TokenBatch> staged_;  // the parts of the step, on the device
  std::vector<TokenBatch> fixed_;   // those without a border inside a window: always the same tensors
};

}  // namespace prism
