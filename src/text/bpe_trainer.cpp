#include "text/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/progress.h"
#include "text/tokenizer_json.h"

namespace prism {
namespace {

constexpr const char* kEnd = "<|endoftext|>";
constexpr int64_t kBytes = 256;

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return std::hash<uint64_t>{}(static_cast<uint64_t>(pair.first) << 32 |
                                 static_cast<uint32_t>(pair.second));
  }
};

/// A word that occurs `count` times, as tokens.
struct Word {
  std::vector<int32_t> symbols;
  int64_t count;
};

/// How often each pair of neighbours occurs, and in which words.
class PairCounts {
 public:
  explicit PairCounts(const std::vector<Word>& words) {
    for (size_t i = 0; i < words.size(); ++i) change(words[i], static_cast<int32_t>(i), +1);
    for (const auto& [pair, entry] : entries_) offer(pair, entry.count);
  }

  /// The most frequent pair, of equals the one with the smaller ids; false when no pair is left.
  bool best(Pair& pair) {
    while (!queue_.empty()) {
      const auto [count, first, second] = queue_.top();
      pair = {-first, -second};
      const int64_t now = entries_[pair].count;
      if (now == count) return count > 0;
      queue_.pop();
      offer(pair, now);
    }
    return false;
  }

  /// Words that have or had the pair, in order.
  std::vector<int32_t> words_of(const Pair& pair) {
    std::vector<int32_t> words = std::move(entries_[pair].words);
    entries_[pair].words.clear();
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    return words;
  }

  /// Counts the pairs of a word in (sign +1) or out (-1).
  void change(const Word& word, int32_t index, int64_t sign) {
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      Entry& entry = entries_[{word.symbols[i], word.symbols[i + 1]}];
      entry.count += sign * word.count;
      if (sign > 0 && (entry.words.empty() || entry.words.back() != index)) entry.words.push_back(index);
    }
  }

  /// Puts the pairs of a word that were counted in up for the next choice.
  void offer_pairs_of(const Word& word) {
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      const Pair pair{word.symbols[i], word.symbols[i + 1]};
      offer(pair, entries_[pair].count);
    }
  }

 private:
  struct Entry {
    int64_t count = 0;
    std::vector<int32_t> words;
  };
  // Counts only fall between two offers of a pair, so a stale entry is never too low.
  void offer(const Pair& pair, int64_t count) {
    if (count > 0) queue_.emplace(count, -pair.first, -pair.second);
  }

  std::unordered_map<Pair, Entry, PairHash> entries_;
  std::priority_queue<std::tuple<int64_t, int32_t, int32_t>> queue_;
};

/// The bytes of every token. Two merges may make the same one: "a" "bc" and "ab" "c".
class Tokens {
 public:
  Tokens() {
    for (int byte = 0; byte < kBytes; ++byte) id_of(std::string(1, static_cast<char>(byte)));
  }
  int32_t id_of(const std::string& bytes) {
    const auto [place, fresh] = ids_.emplace(bytes, static_cast<int32_t>(all_.size()));
    if (fresh) all_.push_back(bytes);
    return place->second;
  }
  const std::string& bytes(int32_t id) const { return all_[static_cast<size_t>(id)]; }
  int64_t size() const { return static_cast<int64_t>(all_.size()); }
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
  std::unordered_map<std::string, int32_t> ids_;
};

/// Replaces each occurrence of the pair, from the left.
void merge(std::vector<int32_t>& symbols, const Pair& pair, int32_t merged) {
  size_t kept = 0;
  for (size_t i = 0; i < symbols.size(); ++i, ++kept) {
    const bool here = i + 1 < symbols.size() && symbols[i] == pair.first && symbols[i + 1] == pair.second;
    symbols[kept] = here ? merged : symbols[i];
    i += here;
  }
  symbols.resize(kept);
}

std::vector<Word> sorted_words(const std::unordered_map<std::string, int64_t>& counted) {
  std::vector<std::pair<std::string, int64_t>> sorted(counted.begin(), counted.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Word> words;
  for (const auto& [text, count] : sorted) {
    Word word{.symbols = {}, .count = count};
    for (const char byte : text) word.symbols.push_back(static_cast<unsigned char>(byte));
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace

BpeTrainer::BpeTrainer() : splitter_(kGpt2Pattern, "tokenizer") {}

void BpeTrainer::add(std::string_view text) {
  splitter_.split(text, [this](std::string_view word) { ++words_[std::string(word)]; });
}

std::string BpeTrainer::train(int64_t vocabulary) {
  if (vocabulary <= kBytes)
    usage_error("tokenizer: a vocabulary of {} has no room for 256 bytes and {}", vocabulary, kEnd);
  std::vector<Word> words = sorted_words(words_);
  PairCounts counts(words);
  Tokens tokens;
  std::vector<std::pair<std::string, std::string>> merges;
  Progress progress("merging", vocabulary - 1 - kBytes, "merges");
  Pair pair;
  while (tokens.size() < vocabulary - 1 && counts.best(pair)) {
    merges.emplace_back(tokens.bytes(pair.first), tokens.bytes(pair.second));
    const int32_t merged = tokens.id_of(merges.back().first + merges.back().second);
    for (const int32_t index : counts.words_of(pair)) {
      Word& word = words[static_cast<size_t>(index)];
      counts.change(word, index, -1);
      merge(word.symbols, pair, merged);
      counts.change(word, index, +1);
      counts.offer_pairs_of(word);
    }
    progress.advance(1);
  }
  return make_tokenizer_json(tokens.all(), merges, kEnd);
}

}  // namespace prism
