#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "prism/data/data_config.h"
#include "prism/data/interactions.h"

namespace prism {

enum class Part { kValid, kTest };

/// One question to the model: what follows item[begin, end) of a user? `target` is item[end].
struct Case {
  int32_t user;
  int32_t target;
  int64_t begin, end;  ///< in Interactions::item; begin < end
};

/// Which interactions train and which are asked for. The Interactions must outlive the Split.
///
/// leave_one_out: the last item of a user is the test target, the second last the validation target, the rest
/// trains; users with fewer than 3 interactions only train. time: what happens before the first cut trains;
/// the target of a user is the first interaction after the cut of its part. In both, the history of a test
/// case holds everything before its target, validation items included.
class Split {
 public:
  /// Throws Error for split = time on a file without timestamps and for cuts that leave a part empty.
  Split(const Interactions& interactions, const DataConfig& config);

  /// The training items of a user, a prefix of its history.
  std::span<const int32_t> train(int64_t user) const {
    return interactions_->history(user).first(static_cast<size_t>(train_length_[static_cast<size_t>(user)]));
  }
  /// In the order of users.
  const std::vector<Case>& cases(Part part) const { return part == Part::kValid ? valid_ : test_; }
  std::span<const int32_t> history(const Case& c) const {
    return std::span(interactions_->item)
        .subspan(static_cast<size_t>(c.begin), static_cast<size_t>(c.end - c.begin));
  }
  /// Sum of the lengths of train(user).
  int64_t train_size() const { return train_size_; }
  /// leave_one_out: users with fewer than 3 interactions. time: users without a case in either part.
  int64_t users_not_evaluated() const { return users_not_evaluated_; }
  /// One line, e.g. `leave-one-out: 943 test and 943 validation users, 98,114 training interactions`.
  std::string summary() const;

 private:
  void leave_one_out();
  void by_time(const DataConfig& config);
  void add_case(std::vector<Case>& cases, int64_t user, int64_t position);

  const Interactions* interactions_;
  std::vector<int32_t> train_length_;  ///< [users]
  std::vector<Case> valid_, test_;
  int64_t train_size_ = 0, users_not_evaluated_ = 0;
  std::string rule_;
};

}  // namespace prism
