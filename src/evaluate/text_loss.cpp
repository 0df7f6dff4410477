#include "prism/evaluate/text_loss.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "prism/core/error.h"
#include "prism/ops/target_log_probabilities.h"

namespace prism {
namespace {

/// A window and how many of its targets, the last ones, count.
struct ScoredWindow {
  TokenWindow window;
  int64_t scored;
};

std::vector<ScoredWindow> cut(int64_t begin, int64_t end, const TextLossOptions& options) {
  std::vector<ScoredWindow> windows;
  for (int64_t first = begin + 1; first < end; first += options.stride) {
    const int64_t last = std::min(first + options.stride, end);
    const int64_t from = std::max(begin, last - 1 - options.context);
    windows.push_back({{from, last - 1 - from}, last - first});
  }
  return windows;
}

c10::Device device_of(const LanguageModel& model) { return model.embedding().device(); }

/// Adds a batch of windows.
void add(LanguageModel& model, const TokenDataset& dataset, std::span<const ScoredWindow> scored,
         const std::vector<int32_t>& bytes, TextLoss& loss) {
  std::vector<TokenWindow> windows;
  for (const ScoredWindow& window : scored) windows.push_back(window.window);
  const TokenBatch batch = make_token_batch(dataset, windows, device_of(model));
  const at::Tensor h = model.forward(batch.tokens, batch.packing).flatten(0, 1);
  std::vector<at::Tensor> rows, targets;
  int64_t end = 0;
  for (const ScoredWindow& window : scored) {
    end += window.window.count;
    rows.push_back(h.narrow(0, end - window.scored, window.scored));
    targets.push_back(batch.targets.narrow(0, end - window.scored, window.scored));
  }
  const at::Tensor target = at::cat(targets);
  loss.nats -=
      target_log_probabilities(at::cat(rows), model.embedding(), target).sum(at::kDouble).item<double>();
  loss.tokens += target.size(0);
  const at::Tensor ids = target.cpu();
  for (int64_t i = 0; i < ids.size(0); ++i)
    loss.bytes += bytes[static_cast<size_t>(ids.const_data_ptr<int64_t>()[i])];
}

}  // namespace

double TextLoss::nats_per_token() const { return nats / static_cast<double>(tokens); }
double TextLoss::perplexity() const { return std::exp(nats_per_token()); }
double TextLoss::bits_per_byte() const { return nats / std::numbers::ln2 / static_cast<double>(bytes); }

std::vector<int32_t> token_bytes(const Tokenizer& tokenizer) {
  std::vector<int32_t> bytes;
  for (int64_t id = 0; id < tokenizer.vocabulary_size(); ++id)
    bytes.push_back(static_cast<int32_t>(tokenizer.bytes_of(static_cast<int32_t>(id)).size()));
  bytes[static_cast<size_t>(tokenizer.end_of_document())] = 0;
  return bytes;
}

TextLoss measure_text(LanguageModel& model, const TokenDataset& dataset, int64_t begin, int64_t end,
                      const std::vector<int32_t>& bytes, const TextLossOptions& options) {
  check(options.stride >= 1 && options.stride <= options.context,
        "evaluate: a stride of {} in a context of {}", options.stride, options.context);
  check(end - begin >= 2, "evaluate: {} tokens are too few", end - begin);
  const at::NoGradGuard no_gradient;
  model.eval();
  const std::vector<ScoredWindow> windows = cut(begin, end, options);
  TextLoss loss;
  for (size_t first = 0; first < windows.size();) {
    size_t last = first;
    for (int64_t tokens = 0; last < windows.size() &&
                             (last == first || tokens + windows[last].window.count <= options.batch_tokens);
         ++last)
      tokens += windows[last].window.count;
    add(model, dataset, std::span(windows).subspan(first, last - first), bytes, loss);
    first = last;
  }
  return loss;
}

}  // namespace prism
