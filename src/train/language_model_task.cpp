#include "train/language_model_task.h"

#include <algorithm>
#include <cmath>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/random.h"
#include "prism/core/text.h"
#include "prism/ops/softmax_loss.h"

namespace prism {

LanguageModelTask::LanguageModelTask(const LanguageModelRecipe& recipe, const TokenSplit& split,
                                     const Tokenizer& tokenizer, std::shared_ptr<LanguageModel> model,
                                     c10::Device device, Ranks* ranks)
    : recipe_(recipe),
      split_(split),
      tokenizer_(tokenizer.fingerprint()),
      bytes_(token_bytes(tokenizer)),
      model_(std::move(model)),
      device_(device),
      ranks_(ranks),
      windows_(*split.train, 0, split.train_end, recipe.data.length) {
  model_->set_activation_checkpointing(recipe.train.activation_checkpointing);
}

int64_t LanguageModelTask::rounds() const {
  return (recipe_.train.updates + recipe_.train.validate_every - 1) / recipe_.train.validate_every;
}

int64_t LanguageModelTask::units(int64_t round) const {
  const int64_t done = round * recipe_.train.validate_every;
  return std::min(recipe_.train.validate_every, recipe_.train.updates - done) * recipe_.train.batch_size;
}

void LanguageModelTask::open_round(int64_t round) {
  opened_ = round * recipe_.train.validate_every * recipe_.train.batch_size;
}

/// On the host; of several ranks that divide tokens, this one's.
TokenBatch LanguageModelTask::batch_of(const StepPart& part) const {
  std::vector<TokenWindow> chosen;
  const int64_t size = windows_.size();
  for (int64_t i = 0; i < part.count; ++i) {
    const int64_t sequence = opened_ + part.first + i;
    const Permutation order(static_cast<uint64_t>(size), static_cast<uint64_t>(recipe_.run.seed), "shuffle",
                            static_cast<uint64_t>(sequence / size));
    chosen.push_back(windows_.at(static_cast<int64_t>(order(static_cast<uint64_t>(sequence % size)))));
  }
  const TokenBatch whole = make_token_batch(*split_.train, chosen, c10::kCPU);
  return ranks_ ? part_of(whole, ranks_->rank(), ranks_->size()) : whole;
}

/// Puts a batch on the device; true: where the one before it was.
bool LanguageModelTask::place(const TokenBatch& batch, size_t index) {
  TokenBatch& fixed = fixed_[index];
  const bool placed =
      !batch.packing.is_packed() && fixed.tokens.defined() && fixed.tokens.sizes() == batch.tokens.sizes();
  if (placed) {
    fixed.tokens.copy_(batch.tokens.pin_memory(), /*non_blocking=*/true);
    fixed.targets.copy_(batch.targets.pin_memory(), /*non_blocking=*/true);
    staged_[index] = fixed;
    return true;
  }
  staged_[index] = {batch.tokens.to(device_), batch.targets.to(device_), batch.packing};
  if (!batch.packing.is_packed() && !fixed.tokens.defined() && device_.is_cuda()) fixed = staged_[index];
  return false;
}

bool LanguageModelTask::stage(std::span<const StepPart> parts) {
  staged_.resize(parts.size());
  fixed_.resize(parts.size());
  bool repeats = recipe_.model.model.dropout == 0;
  if (!repeats && !parts.empty()) repeats = model_->stage_dropout_step(parts.front().step);
  for (size_t i = 0; i < parts.size(); ++i)
    if (!place(batch_of(parts[i]), i)) repeats = false;
  return repeats;
}

at::Tensor LanguageModelTask::hidden(const TokenBatch& batch) {
  if (ranks_) return model_->forward_in_parts(batch.tokens, batch.packing, *ranks_);
  return model_->forward(batch.tokens, batch.packing);
}

TaskLoss LanguageModelTask::loss(const StepPart& part) {
  const TokenBatch& batch = staged_.at(static_cast<size_t>(part.index));
  model_->set_dropout_step(part.step, part.position);
  return {.mean = full_softmax_loss(hidden(batch).flatten(0, 1), model_->embedding(), batch.targets),
          .auxiliary = model_->auxiliary_loss(),
          .share = static_cast<double>(batch.targets.numel()) /
                   static_cast<double>(positions(part.first, part.count))};
}

MetricMap LanguageModelTask::validate() {
  const TextLoss loss = measure_text(*model_, *split_.valid, split_.valid_begin, split_.valid->size(), bytes_,
                                     {.context = recipe_.data.length, .stride = recipe_.data.length});
  return {
      {"loss", loss.nats_per_token()}, {"perplexity", loss.perplexity()}, {kMetric, loss.bits_per_byte()}};
}

void LanguageModelTask::tell(const EpochRow& row) {
  info("step {:>9}  loss {:.4f}  validation {:.4f} ({:.4f} bits a byte)  {} tokens/s{}",
       with_commas(row.step), row.loss, row.valid.at("loss"), row.valid.at(kMetric),
       with_commas(std::llround(row.positions_per_second)), row.best ? "  best" : "");
}

std::string LanguageModelTask::label(int64_t round) const {
  const int64_t first = round * recipe_.train.validate_every;
  return fmt::format("steps {} to {} of {}", first + 1,
                     std::min(first + recipe_.train.validate_every, recipe_.train.updates),
                     recipe_.train.updates);
}

void LanguageModelTask::complete(Checkpoint& checkpoint) const { checkpoint.items = tokenizer_; }

void LanguageModelTask::require_own(const Checkpoint& checkpoint, const std::string& file) const {
  check_same_settings(recipe_.settings.to_json(), checkpoint.settings, file,
                      LanguageModelRecipe::may_change_on_resume);
  check(checkpoint.items == tokenizer_, "{}: was made with the tokenizer {}, the tokens with {}", file,
        checkpoint.items, tokenizer_);
}

std::string LanguageModelTask::divergence_advice() const {
  return fmt::format("lower --learning-rate (now {}) or --clip-norm (now {}), or use --precision fp32",
                     recipe_.train.learning_rate, recipe_.train.clip_norm);
}

std::string LanguageModelTask::memory_advice() const {
  return fmt::format("{}raise --micro-batches (now {}), or lower --batch-size (now {} sequences) or --length",
                     recipe_.train.activation_checkpointing ? "" : "use --activation-checkpointing, ",
                     recipe_.train.micro_batches, recipe_.train.batch_size);
}

}  // namespace prism
