#include "prism/evaluate/user_vectors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <vector>

#include "prism/core/error.h"

namespace prism {
namespace {

// What makes a user's bits independent of the other users and the threads, as measured:
// - a batch runs on one thread, so that no elementwise operation is cut at a thread's share;
// - its tokens are a multiple of 64, because LibTorch's vectorised loops take a scalar exponential for what
// is left
//   over, which rounds differently;
// - it has at least 256, because MKL takes other paths for a few rows.
// Batches are filled up with histories that nobody reads.
constexpr int64_t kTokenMultiple = 64, kLeastTokens = 256;

int64_t kept(const History& history, int64_t max_length) {
  return std::min(static_cast<int64_t>(history.items.size()), max_length);
}

/// Writes the gaps before the last `count` items.
void write_gaps(const History& history, int64_t count, int64_t ticks_per_second, int64_t* out) {
  const auto length = history.items.size();
  for (size_t i = length - static_cast<size_t>(count); i < length; ++i)
    *out++ =
        i == 0 || history.times.empty() ? 0 : (history.times[i] - history.times[i - 1]) / ticks_per_second;
}

/// Rows of the last token of each sequence.
at::Tensor last_rows(const Packing& packing, int64_t sequences) {
  std::vector<int64_t> rows;
  for (int64_t s = 0; s < sequences; ++s) rows.push_back(packing.offsets()[static_cast<size_t>(s) + 1] - 1);
  return at::tensor(rows, at::kLong);
}

/// Histories [first, last) of a call.
struct Slice {
  size_t first, last;
};

std::vector<Slice> cut_batches(std::span<const History> histories, int64_t max_length, int64_t batch_tokens) {
  std::vector<Slice> batches;
  for (size_t first = 0; first < histories.size(); first = batches.back().last) {
    size_t last = first;
    for (int64_t tokens = 0; last < histories.size() && tokens < batch_tokens; ++last) {
      check(!histories[last].items.empty(), "user_vectors: history {} has no items", last);
      tokens += kept(histories[last], max_length);
    }
    batches.push_back({first, last});
  }
  return batches;
}

/// The vectors of one batch into out [histories, D].
void run_batch(Recommender& model, std::span<const History> batch, int64_t ticks, const at::Tensor& out) {
  const c10::NoGradGuard no_grad;
  const int64_t max_length = model.config().max_length;
  std::vector<History> histories(batch.begin(), batch.end());
  int64_t tokens = 0;
  for (const History& history : histories) tokens += kept(history, max_length);
  const int64_t wanted =
      std::max(kLeastTokens, (tokens + kTokenMultiple - 1) / kTokenMultiple * kTokenMultiple);
  const std::vector<int32_t> filler(static_cast<size_t>(std::min(max_length, wanted - tokens)), 0);
  for (int64_t left = wanted - tokens; left > 0; left -= kept(histories.back(), max_length))
    histories.push_back(
        {.items = std::span(filler).first(static_cast<size_t>(std::min(left, max_length))), .times = {}});
  const c10::Device device = model_device(model);
  const Batch packed = history_batch(histories, max_length, model.reads_times(), ticks, device);
  const at::Tensor rows = last_rows(packed.packing, static_cast<int64_t>(batch.size()));
  out.copy_(at::index_select(model.forward(packed), 0, rows.to(device)));
}

/// One batch a thread at a time. Operations inside see that they are in a parallel region and stay on their
/// thread.
void run_on_threads(const std::vector<Slice>& batches, const std::function<void(const Slice&)>& run) {
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic)
  for (const Slice& batch : batches) {
    try {
      run(batch);
    } catch (...) {
#pragma omp critical(prism_user_vectors)
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

Batch history_batch(std::span<const History> histories, int64_t max_length, bool gaps,
                    int64_t ticks_per_second, c10::Device device) {
  std::vector<int64_t> lengths;
  int64_t tokens = 0;
  for (const History& history : histories) {
    lengths.push_back(kept(history, max_length));
    tokens += lengths.back();
  }
  at::Tensor items = at::empty({tokens}, at::kLong),
             gap = gaps ? at::empty({tokens}, at::kLong) : at::Tensor();
  auto* item = items.mutable_data_ptr<int64_t>();
  auto* seconds = gaps ? gap.mutable_data_ptr<int64_t>() : nullptr;
  for (size_t h = 0; h < histories.size(); ++h) {
    item = std::copy(histories[h].items.end() - lengths[h], histories[h].items.end(), item);
    if (!gaps) continue;
    write_gaps(histories[h], lengths[h], ticks_per_second, seconds);
    seconds += lengths[h];
  }
  return {
      .items = items.to(device), .gaps = gaps ? gap.to(device) : gap, .packing = Packing::packed(lengths)};
}

at::Tensor user_vectors(Recommender& model, std::span<const History> histories, int64_t ticks,
                        int64_t batch_tokens) {
  const c10::NoGradGuard no_grad;
  const EvaluationMode mode(model);
  at::Tensor out = at::empty({static_cast<int64_t>(histories.size()), model.config().width}, at::kFloat);
  const auto batches = cut_batches(histories, model.config().max_length, batch_tokens);
  const auto run = [&](const Slice& batch) {
    run_batch(model, histories.subspan(batch.first, batch.last - batch.first), ticks,
              out.slice(0, static_cast<int64_t>(batch.first), static_cast<int64_t>(batch.last)));
  };
  if (model_device(model).is_cpu())
    run_on_threads(batches, run);
  else
    for (const Slice& batch : batches) run(batch);
  return out;
}

kernels::ItemPanels item_panels(Recommender& model) {
  const c10::NoGradGuard no_grad;
  const EvaluationMode mode(model);
  const at::Tensor vectors_ID = model.item_vectors().to(at::kCPU, at::kFloat).contiguous();
  return {vectors_ID.const_data_ptr<float>(), vectors_ID.size(0), vectors_ID.size(1)};
}

int64_t ticks_per_second(const Interactions& log) {
  int64_t ticks = 1;
  for (int32_t i = 0; i < log.time_decimals; ++i) ticks *= 10;
  return ticks;
}

c10::Device model_device(Recommender& model) { return model.parameters().front().device(); }

}  // namespace prism
