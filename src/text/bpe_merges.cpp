#include "text/bpe_merges.h"

#include <functional>
#include <queue>
#include <tuple>

namespace prism {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

/// The symbols of a word as a chain from which merged ones drop out.
struct Chain {
  explicit Chain(const std::vector<int32_t>& symbols)
      : symbol(symbols), before(symbols.size()), after(symbols.size()) {
    for (size_t i = 0; i < symbols.size(); ++i)
      before[i] = static_cast<int32_t>(i) - 1, after[i] = static_cast<int32_t>(i) + 1;
    if (!after.empty()) after.back() = -1;
  }
  std::vector<int32_t> symbol, before, after;  // -1: none; symbol -1: merged into the one before
};

}  // namespace

void BpeMerges::add(int32_t left, int32_t right, int32_t merged) {
  merges_.try_emplace(pair_key(left, right), Merge{static_cast<int32_t>(merges_.size()), merged});
}

const BpeMerges::Merge* BpeMerges::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeMerges::apply(std::vector<int32_t>& symbols) const {
  Chain chain(symbols);
  using Candidate = std::tuple<int32_t, int32_t, int32_t>;  // rank, place of the left one, merged token
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](int32_t left) {
    if (left < 0 || chain.after[left] < 0) return;
    if (const Merge* merge = find(chain.symbol[left], chain.symbol[chain.after[left]]))
      candidates.emplace(merge->rank, left, merge->merged);
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  while (!candidates.empty()) {
    const auto [rank, left, merged] = candidates.top();
    candidates.pop();
    const int32_t right = chain.after[left];
    if (chain.symbol[left] < 0 || right < 0) continue;
    const Merge* merge = find(chain.symbol[left], chain.symbol[right]);
    if (!merge || merge->rank != rank) continue;  // one of the two has changed since
    chain.symbol[left] = merged;
    chain.symbol[right] = -1;
    chain.after[left] = chain.after[right];
    if (chain.after[left] >= 0) chain.before[chain.after[left]] = left;
    consider(chain.before[left]);
    consider(left);
  }
  symbols.clear();
  for (const int32_t symbol : chain.symbol)
    if (symbol >= 0) symbols.push_back(symbol);
}

}  // namespace prism
