#pragma once
#include <string>
#include <vector>

#include "layout.h"

namespace prism {

/// Position of the first column with one of the usual names of `role` (user_id, userId, reviewerID, ...);
/// earlier entries of the list of names win. -1: none.
int recognised_column(const std::vector<std::string>& columns, Role role);

/// Position of the column called `name`; Error with the names found and the nearest one.
int named_column(const std::vector<std::string>& columns, const std::string& name, const std::string& option,
                 const std::string& where);

}  // namespace prism
