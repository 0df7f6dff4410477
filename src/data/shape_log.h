#pragma once
#include <vector>

#include "prism/data/data_config.h"
#include "prism/data/interactions.h"
#include "prism/data/reader.h"

namespace prism {

/// Puts each user's interactions into time order; ties keep file order or, with TieRule::kItem, go by item id
/// (as numbers where all ids are integers, else bytewise). Counts unsorted users, ties and negative times.
void sort_by_time(Interactions& log, TieRule ties, ReadReport& report);

/// Counts rows equal to an earlier one in user, item and timestamp and, with kDropExact, removes them. Files
/// without timestamps have none: a repeat is a repeat.
void handle_duplicates(Interactions& log, DuplicateRule rule, ReadReport& report);

/// Removes users with fewer than `min_user` and items with fewer than `min_item` interactions until nothing
/// changes, and the vocabulary entries that no interaction uses. The order of indices stays.
void filter_log(Interactions& log, int64_t min_user, int64_t min_item, ReadReport& report);

/// Rank of every item when sorted by id.
std::vector<int32_t> order_of_ids(const Vocabulary& items);

}  // namespace prism
