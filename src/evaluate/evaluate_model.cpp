#include "prism/evaluate/evaluate_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "prism/core/log.h"
#include "prism/core/out_of_memory.h"
#include "prism/core/progress.h"
#include "prism/core/random.h"
#include "prism/core/text.h"
#include "prism/evaluate/user_vectors.h"

namespace prism {
namespace {

using kernels::RankCounts;

History history_of(const Interactions& log, const Case& c) {
  const auto begin = static_cast<size_t>(c.begin), count = static_cast<size_t>(c.end - c.begin);
  History history{.items = std::span(log.item).subspan(begin, count), .times = {}};
  if (!log.time.empty()) history.times = std::span(log.time).subspan(begin, count);
  return history;
}

/// The distinct items of each case's history, ascending, one after the other.
struct SeenLists {
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> items;

  SeenLists(const Interactions& log, std::span<const Case> cases) {
    for (const Case& c : cases) {
      const auto history = history_of(log, c).items;
      const auto first = items.insert(items.end(), history.begin(), history.end());
      std::sort(first, items.end());
      items.erase(std::unique(first, items.end()), items.end());
      offsets.push_back(static_cast<int64_t>(items.size()));
    }
  }
  std::span<const int32_t> of(size_t index) const {
    return std::span(items).subspan(static_cast<size_t>(offsets[index]),
                                    static_cast<size_t>(offsets[index + 1] - offsets[index]));
  }
};

/// `count` distinct items other than the target and, with a filter, the seen ones; fewer where there are not
/// so many. Drawn from the user's own stream, so that a sample does not depend on the other users.
std::vector<int32_t> sample_items(const EvaluateOptions& options, int64_t items, const Case& c,
                                  std::span<const int32_t> seen) {
  const auto allowed = [&](int32_t item) {
    return item != c.target && !(options.filter_seen && std::binary_search(seen.begin(), seen.end(), item));
  };
  RandomStream random(options.seed, "evaluation sample", static_cast<uint64_t>(c.user));
  std::vector<int32_t> sample;
  const auto wanted = static_cast<size_t>(options.sampled);
  if (options.sampled * 2 + static_cast<int64_t>(seen.size()) >= items) {  // dense: shuffle all candidates
    for (int32_t item = 0; item < items; ++item)
      if (allowed(item)) sample.push_back(item);
    random.shuffle(std::span(sample));
    sample.resize(std::min(sample.size(), wanted));
    return sample;
  }
  while (sample.size() < wanted) {
    const auto item = static_cast<int32_t>(random.below(static_cast<uint64_t>(items)));
    if (allowed(item) && std::find(sample.begin(), sample.end(), item) == sample.end())
      sample.push_back(item);
  }
  return sample;
}

/// The target among a sample: the scores of these items alone.
RankCounts rank_in_sample(const kernels::ItemPanels& panels, const float* user_vector, int32_t target,
                          std::vector<int32_t> items) {
  items.push_back(target);
  const std::vector<int64_t> rows(items.size(), 0);
  std::vector<float> scores(items.size());
  score_pairs(panels, user_vector, rows.data(), items.data(), static_cast<int64_t>(items.size()),
              scores.data());
  const float own = scores.back();
  RankCounts counts{.candidates = static_cast<int64_t>(items.size())};
  for (const float score : scores) counts.nan += std::isnan(score);
  for (size_t i = 0; i + 1 < items.size(); ++i) {
    const bool equal = std::isnan(own) ? std::isnan(scores[i]) : scores[i] == own;
    counts.equal += equal;
    counts.equal_before += equal && items[i] < target;
    counts.greater += std::isnan(own) ? !std::isnan(scores[i]) : scores[i] > own;
  }
  return counts;
}

/// Ranks one slice of the cases.
void rank_slice(Recommender& model, const kernels::ItemPanels& panels, const Interactions& log,
                std::span<const Case> cases, const EvaluateOptions& options, RankCounts* counts) {
  std::vector<History> histories;
  std::vector<int32_t> targets;
  for (const Case& c : cases) {
    histories.push_back(history_of(log, c));
    targets.push_back(c.target);
  }
  const auto message = [&] {
    return fmt::format(
        "evaluate: out of memory in a forward pass over {} items of histories; let fewer processes share the "
        "device, or lower --batch-tokens of prism evaluate",
        with_commas(options.batch_tokens));
  };
  const at::Tensor vectors_UD = with_memory_error(
      message, [&] { return user_vectors(model, histories, ticks_per_second(log), options.batch_tokens); });
  const auto* vectors = vectors_UD.const_data_ptr<float>();
  const SeenLists seen(log, cases);
  if (options.sampled > 0) {
    for (size_t i = 0; i < cases.size(); ++i)
      counts[i] = rank_in_sample(panels, vectors + static_cast<int64_t>(i) * panels.width(), targets[i],
                                 sample_items(options, panels.items(), cases[i], seen.of(i)));
    return;
  }
  const kernels::RankUsers users{.vectors = vectors,
                                 .count = static_cast<int64_t>(cases.size()),
                                 .seen_offsets = options.filter_seen ? seen.offsets.data() : nullptr,
                                 .seen = seen.items.data(),
                                 .allowed = nullptr};
  rank_targets(panels, users, targets.data(), counts);
}

void report_nan(const std::vector<RankCounts>& counts) {
  int64_t users = 0, scores = 0;
  for (const RankCounts& c : counts) {
    users += c.nan > 0;
    scores += c.nan;
  }
  if (users > 0) warn("evaluate: {} scores of {} users are not numbers (NaN); they rank last", scores, users);
}

}  // namespace

std::vector<RankCounts> rank_cases(Recommender& model, const Interactions& log, const Split& split, Part part,
                                   const EvaluateOptions& options) {
  const kernels::ItemPanels panels = item_panels(model);
  const std::span<const Case> cases(split.cases(part));
  std::vector<RankCounts> counts(cases.size());
  std::unique_ptr<Progress> progress;
  if (options.progress)
    progress = std::make_unique<Progress>("evaluate", static_cast<int64_t>(cases.size()), "users");
  const auto at_once = static_cast<size_t>(std::max<int64_t>(options.users, 1));
  for (size_t first = 0; first < cases.size(); first += at_once) {
    const auto slice = cases.subspan(first, std::min(at_once, cases.size() - first));
    rank_slice(model, panels, log, slice, options, counts.data() + first);
    if (progress) progress->advance(static_cast<int64_t>(slice.size()));
  }
  progress.reset();
  report_nan(counts);
  return counts;
}

RankMetrics evaluate_model(Recommender& model, const Interactions& log, const Split& split, Part part,
                           const std::vector<int64_t>& ks, const EvaluateOptions& options) {
  const std::vector<RankCounts> counts = rank_cases(model, log, split, part, options);
  RankMetrics metrics(ks);
  for (size_t i = 0; i < counts.size(); ++i) {
    const Case& c = split.cases(part)[i];
    const auto history = split.history(c);
    metrics.add(counts[i], std::find(history.begin(), history.end(), c.target) != history.end());
  }
  return metrics;
}

}  // namespace prism
