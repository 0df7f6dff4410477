#include "models/negatives.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/random.h"

namespace prism {
namespace {

/// Draws items in proportion to their counts: the cut-point method (Chen and Asau 1974), constant expected
/// time a draw after a table of the items' size.
class PopularityTable {
 public:
  explicit PopularityTable(const at::Tensor& counts)
      : cumulative_(counts.numel() + 1), start_(counts.numel()) {
    const auto* count = counts.const_data_ptr<int64_t>();
    for (size_t i = 0; i < start_.size(); ++i) cumulative_[i + 1] = cumulative_[i] + count[i];
    cell_width_ = total() / counts.numel() + 1;
    int64_t item = 0;
    for (int64_t cell = 0; cell < counts.numel(); ++cell) {
      while (item + 1 < counts.numel() && cumulative_[item + 1] <= cell * cell_width_) ++item;
      start_[cell] = item;
    }
  }
  int64_t total() const { return cumulative_.back(); }
  int64_t count(int64_t item) const { return cumulative_[item + 1] - cumulative_[item]; }
  int64_t draw(RandomStream& stream) const {
    const auto ticket = static_cast<int64_t>(stream.below(total()));
    int64_t item = start_[ticket / cell_width_];
    while (cumulative_[item + 1] <= ticket) ++item;
    return item;
  }

 private:
  int64_t cell_width_ = 1;
  std::vector<int64_t> cumulative_, start_;
};

constexpr int64_t kGrain = 64;

Candidates draw_uniform(const at::Tensor& targets, int64_t items, int64_t negatives, uint64_t seed,
                        int64_t first_position) {
  check(items >= 2, "negatives: the model has {} items, at least 2 are needed", items);
  at::Tensor ids = at::empty({targets.size(0), 1 + negatives}, at::kLong);
  const auto* target = targets.const_data_ptr<int64_t>();
  auto* out = ids.data_ptr<int64_t>();
  at::parallel_for(0, targets.size(0), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      RandomStream stream(seed, "position", static_cast<uint64_t>(first_position + i));
      int64_t* row = out + i * (1 + negatives);
      row[0] = target[i];
      for (int64_t j = 1; j <= negatives; ++j) {
        const auto drawn = static_cast<int64_t>(stream.below(items - 1));
        row[j] = drawn + (drawn >= target[i] ? 1 : 0);
      }
    }
  });
  return {ids, {}};
}

Candidates draw_by_popularity(const at::Tensor& targets, int64_t negatives, const at::Tensor& counts,
                              uint64_t seed, int64_t first_position) {
  const PopularityTable table(counts);
  at::Tensor ids = at::empty({targets.size(0), 1 + negatives}, at::kLong);
  at::Tensor correction = at::empty({targets.size(0), 1 + negatives}, at::kFloat);
  const auto* target = targets.const_data_ptr<int64_t>();
  auto* out = ids.data_ptr<int64_t>();
  auto* log_q = correction.data_ptr<float>();
  for (int64_t i = 0; i < targets.size(0); ++i)
    check(table.total() > table.count(target[i]),
          "negatives: log_q needs training counts of items besides {}", target[i]);
  at::parallel_for(0, targets.size(0), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      RandomStream stream(seed, "position", static_cast<uint64_t>(first_position + i));
      const int64_t row = i * (1 + negatives);
      const double others = static_cast<double>(table.total() - table.count(target[i]));
      out[row] = target[i], log_q[row] = 0;
      for (int64_t j = row + 1; j <= row + negatives; ++j) {
        do out[j] = table.draw(stream);
        while (out[j] == target[i]);
        log_q[j] = static_cast<float>(
            std::log(static_cast<double>(negatives) * static_cast<double>(table.count(out[j])) / others));
      }
    }
  });
  return {ids, correction};
}

}  // namespace

Candidates draw_candidates(const at::Tensor& targets_N, int64_t items, int64_t negatives,
                           const at::Tensor& counts_I, uint64_t seed, int64_t step, int64_t first_position) {
  const uint64_t stream = stream_seed(seed, "negatives", step);
  const at::Tensor targets = targets_N.to(at::kCPU).contiguous();
  check(!counts_I.defined() || counts_I.numel() == items, "negatives: {} counts for {} items",
        counts_I.defined() ? counts_I.numel() : 0, items);
  Candidates drawn = counts_I.defined() ? draw_by_popularity(targets, negatives,
                                                             counts_I.to(at::kCPU, at::kLong).contiguous(),
                                                             stream, first_position)
                                        : draw_uniform(targets, items, negatives, stream, first_position);
  drawn.ids = drawn.ids.to(targets_N.device());
  if (drawn.correction.defined()) drawn.correction = drawn.correction.to(targets_N.device());
  return drawn;
}

}  // namespace prism
