#include "prism/evaluate/protocol.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "prism/core/text.h"

namespace prism {

std::string Protocol::text() const {
  return fmt::format("{}; full ranking of {} items, {}; ties in time by {}, in score by first appearance",
                     split.summary(), with_commas(candidates),
                     filter_seen ? "items of the history hidden" : "items of the history stay",
                     enum_name(config.ties));
}

std::string Protocol::to_json() const {
  return nlohmann::ordered_json{{"ranking", "full"},
                                {"split", std::string(enum_name(config.split))},
                                {"min_user", config.min_user},
                                {"min_item", config.min_item},
                                {"ties_in_time", std::string(enum_name(config.ties))},
                                {"ties_in_score", "first_appearance_first"},
                                {"filter_seen", filter_seen},
                                {"candidates", candidates},
                                {"training_interactions", split.train_size()},
                                {"test_users", split.cases(Part::kTest).size()},
                                {"valid_users", split.cases(Part::kValid).size()},
                                {"users_not_evaluated", split.users_not_evaluated()},
                                {"text", text()}}
      .dump();
}

}  // namespace prism
