#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "prism/core/config.h"
#include "prism/mixers/mixer.h"

namespace prism {

/// Which mixer each block of a stack has: one name for all of them, or a list that the blocks repeat, where
/// "name*n" stands for n blocks in a row: "prism*3,softmax_attention" is one attention block after every
/// three of PRISM. Blocks with the same mixer share its settings.
class MixerPattern {
 public:
  /// Usage errors for unknown mixers and counts that are no numbers.
  explicit MixerPattern(const std::string& text);

  const std::string& text() const { return text_; }
  /// One mixer: section "mixer". Several: a section "mixer.NAME" each.
  void bind(Settings& settings);
  /// The mixer of block `index`, counted from 0.
  const MixerSpec& of_block(int64_t index) const;
  /// Blocks after which the pattern repeats.
  int64_t period() const { return static_cast<int64_t>(order_.size()); }

 private:
  size_t add(const std::string& name);

  std::string text_;
  std::vector<std::pair<std::string, std::unique_ptr<MixerSpec>>> mixers_;  // in the order of appearance
  std::vector<size_t> order_;                                               // the blocks of one period
};

}  // namespace prism
