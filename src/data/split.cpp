#include "prism/data/split.h"

#include <algorithm>

#include "prism/core/error.h"
#include "prism/core/text.h"
#include "timestamp.h"

namespace prism {
namespace {

constexpr int64_t kShortest = 3;  // one interaction each for training, validation and test

// The first time at or after which `fraction` of the interactions happen.
int64_t time_quantile(const std::vector<int64_t>& sorted, double fraction) {
  const auto rank = static_cast<size_t>((1 - fraction) * static_cast<double>(sorted.size()));
  return sorted[std::min(rank, sorted.size() - 1)];
}

int64_t given_time(const std::string& text, const char* option, const Interactions& log) {
  Decimal time;
  const bool number = parse_decimal(text, time) == NumberError::kNone;
  if (!number && !parse_iso_date(text, time))
    usage_error("{} \"{}\" is neither a number nor a date like 2021-05-13T10:00:00", option, shortened(text));
  if (time.decimals > log.time_decimals || !rescale(time, log.time_decimals))
    usage_error("{} \"{}\" has more decimals than the timestamps of the file ({})", option, shortened(text),
                log.time_decimals);
  return time.mantissa;
}

}  // namespace

Split::Split(const Interactions& interactions, const DataConfig& config)
    : interactions_(&interactions), train_length_(static_cast<size_t>(interactions.users.size())) {
  if (config.split == SplitRule::kTime)
    by_time(config);
  else
    leave_one_out();
  for (const int32_t length : train_length_) train_size_ += length;
}

void Split::add_case(std::vector<Case>& cases, int64_t user, int64_t position) {
  const int64_t begin = interactions_->offset(user);
  cases.push_back({.user = static_cast<int32_t>(user),
                   .target = interactions_->item[static_cast<size_t>(begin + position)],
                   .begin = begin,
                   .end = begin + position});
}

void Split::leave_one_out() {
  rule_ = "leave-one-out";
  for (int64_t user = 0; user < interactions_->users.size(); ++user) {
    const int64_t length = interactions_->length(user);
    const bool short_user = length < kShortest;
    users_not_evaluated_ += short_user;
    train_length_[static_cast<size_t>(user)] = static_cast<int32_t>(short_user ? length : length - 2);
    if (short_user) continue;
    add_case(valid_, user, length - 2);
    add_case(test_, user, length - 1);
  }
}

void Split::by_time(const DataConfig& config) {
  const Interactions& log = *interactions_;
  check(!log.time.empty(), "split = time needs timestamps, which this file does not have");
  std::vector<int64_t> sorted = log.time;
  std::sort(sorted.begin(), sorted.end());
  const int64_t test_cut = config.test_time.empty() ? time_quantile(sorted, config.test_fraction)
                                                    : given_time(config.test_time, "--test-time", log);
  const int64_t valid_cut = config.valid_time.empty()
                                ? time_quantile(sorted, config.test_fraction + config.valid_fraction)
                                : given_time(config.valid_time, "--valid-time", log);
  if (valid_cut >= test_cut)
    usage_error("split = time: validation would begin at {} and the test at {}; give other cuts",
                time_text(valid_cut, log.time_decimals), time_text(test_cut, log.time_decimals));
  rule_ = fmt::format("time split at {} and {}", time_text(valid_cut, log.time_decimals),
                      time_text(test_cut, log.time_decimals));
  for (int64_t user = 0; user < log.users.size(); ++user) {
    const auto times = log.times(user);
    const int64_t train = std::lower_bound(times.begin(), times.end(), valid_cut) - times.begin();
    const int64_t before_test = std::lower_bound(times.begin(), times.end(), test_cut) - times.begin();
    train_length_[static_cast<size_t>(user)] = static_cast<int32_t>(train);
    const bool valid = train > 0 && train < before_test;
    const bool test = before_test > 0 && before_test < log.length(user);
    if (valid) add_case(valid_, user, train);
    if (test) add_case(test_, user, before_test);
    users_not_evaluated_ += !valid && !test;
  }
  check(!valid_.empty() && !test_.empty(), "{}: {} validation and {} test users; give other cuts", rule_,
        with_commas(static_cast<int64_t>(valid_.size())), with_commas(static_cast<int64_t>(test_.size())));
}

std::string Split::summary() const {
  std::string line = fmt::format("{}: {} test and {} validation users, {} training interactions", rule_,
                                 with_commas(static_cast<int64_t>(test_.size())),
                                 with_commas(static_cast<int64_t>(valid_.size())), with_commas(train_size_));
  if (users_not_evaluated_ > 0)
    line += fmt::format(
        "; {} {} {} not evaluated", with_commas(users_not_evaluated_),
        users_not_evaluated_ == 1 ? "user" : "users",
        rule_ == "leave-one-out" ? "with fewer than 3 interactions" : "without a target after a cut");
  return line;
}

}  // namespace prism
