#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "prism/core/config.h"

namespace prism {

/// Synthetic tasks that ask one thing of a sequence model (PRISM, arXiv 2602.10796, section 5.5): a few
/// tokens with a meaning lie in noise, and the token that follows the last one is to be told.
enum class ProbeTask {
  kMqar,         ///< pairs key_i value_i in the first half;    QUERY key_i            -> value_i
  kPolyRecall,   ///< context_i key value_i, one key;           context_i key          -> value_i
  kVarTracking,  ///< a = value, b = a, c = b, chain by chain;  QUERY c                -> value
  kParity,       ///< bits OP in a block;                       QUERY                  -> sum mod 2
  kLocalXor,   ///< a b OP;                                   QUERY                  -> (a mod 2) != (b mod 2)
  kModuloAdd,  ///< a b OP;                                   QUERY                  -> (a + b) mod M
  kPalindrome,   ///< a b c OP;                                 QUERY                  -> a == c
  kSilenceGate,  ///< ON or OFF, key value;                     QUERY key              -> value if ON, else
                 ///< NULL
  kMux           ///< selector 0 or 1, ch0 ch1 OP;              QUERY                  -> the selected channel
};
template <>
struct EnumNames<ProbeTask> {
  static constexpr std::array names{"mqar",       "poly_recall", "var_tracking", "parity", "local_xor",
                                    "modulo_add", "palindrome",  "silence_gate", "mux"};
};

/// Which stream a sample comes from; the three never share a random number.
enum class ProbePart { kTrain, kValid, kTest };

/// Sizes of a task.
struct ProbeShape {
  int64_t vocabulary = 64, length = 128;
  int64_t count = 1;   ///< pairs (mqar), contexts (poly_recall), chains (var_tracking), bits (parity)
  int64_t values = 2;  ///< distinct values, and distinct keys where there are keys; M of modulo_add
};

/// The three disjoint sets of the vocabulary: control tokens [0, data), data tokens [data, noise), noise
/// tokens [noise, size). Half of the vocabulary is data.
struct ProbeVocabulary {
  /// Control tokens.
  enum Control : int32_t { kQuery, kOperator, kEquals, kOn, kOff, kNull, kSelector0, kSelector1, kControls };
  int32_t data = kControls, noise = 0, size = 0;
};

struct ProbeSample {
  std::vector<int32_t> tokens;  ///< [length]; only the last position is scored
  int32_t label = 0;            ///< a token: the truth 0 and 1 are the first two data tokens
};

/// A task at one size. sample() is a pure function of (task, shape, seed, part, index).
class Probe {
 public:
  /// Usage errors where the vocabulary or the length does not hold the task.
  Probe(ProbeTask task, const ProbeShape& shape);

  /// Sample `index` of a part. Among classes() samples from a multiple of classes() on, each class occurs
  /// once.
  ProbeSample sample(uint64_t seed, ProbePart part, uint64_t index) const;

  /// Balanced cases: the answer, and with silence_gate and mux also the gate.
  int64_t classes() const;
  /// Accuracy of the best answer without the deciding relation: a constant, or a blind choice among the
  /// values in the sequence where that is better.
  double chance() const;
  ProbeTask task() const { return task_; }
  const ProbeShape& shape() const { return shape_; }
  const ProbeVocabulary& vocabulary() const { return vocabulary_; }

 private:
  ProbeTask task_;
  ProbeShape shape_;
  ProbeVocabulary vocabulary_;
};

/// "2 key-value pairs over 16 keys and 16 values".
std::string probe_text(const Probe& probe);

}  // namespace prism
