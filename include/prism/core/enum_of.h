#pragma once
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "prism/core/config.h"
#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism {

/// The enumerator called `name`. Usage error, "<where>: no <kind> is called ...", that lists the names.
template <class E>
E enum_of(const std::string& name, std::string_view where, std::string_view kind) {
  const std::vector<std::string> names(EnumNames<E>::names.begin(), EnumNames<E>::names.end());
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    usage_error("{}: no {} is called \"{}\"{}; there are {}", where, kind, name, did_you_mean(name, names),
                fmt::join(names, ", "));
  return static_cast<E>(found - names.begin());
}

}  // namespace prism
