#include "column_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism {
namespace {

constexpr std::string_view kUserNames[] = {"userid",    "user",       "uid",       "reviewerid",
                                           "visitorid", "customerid", "customer",  "memberid",
                                           "accountid", "profileid",  "sessionid", "session"};
constexpr std::string_view kItemNames[] = {
    "itemid",  "item",   "iid",       "movieid", "movie",      "productid", "product", "parentasin",
    "asin",    "sku",    "articleid", "bookid",  "isbn",       "trackid",   "songid",  "artistid",
    "videoid", "newsid", "gameid",    "appid",   "businessid", "venueid",   "poiid",   "contentid"};
constexpr std::string_view kTimeNames[] = {
    "timestamp", "time", "ts", "unixreviewtime", "datetime", "date", "eventtime", "createdat", "unixtime"};
constexpr std::string_view kRatingNames[] = {"rating", "ratings", "stars", "score", "overall"};
constexpr std::string_view kEventNames[] = {"event", "eventtype", "action", "behavior", "behaviour", "type"};
constexpr std::string_view kTitleNames[] = {"title", "movietitle", "itemtitle",   "producttitle", "booktitle",
                                            "name",  "itemname",   "productname", "moviename"};

std::span<const std::string_view> names_of(Role role) {
  switch (role) {
    case Role::kUser:
      return kUserNames;
    case Role::kItem:
      return kItemNames;
    case Role::kTime:
      return kTimeNames;
    case Role::kRating:
      return kRatingNames;
    case Role::kEvent:
      return kEventNames;
    case Role::kTitle:
      return kTitleNames;
  }
  return {};
}

// "User ID", "user_id" and "userId" are one name.
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z')
      out += static_cast<char>(c - 'A' + 'a');
    else if (c != '_' && c != '-' && c != ' ' && c != '.')
      out += c;
  }
  return out;
}

}  // namespace

int recognised_column(const std::vector<std::string>& columns, Role role) {
  for (const std::string_view name : names_of(role)) {
    const auto found = std::find_if(columns.begin(), columns.end(),
                                    [&](const auto& column) { return plain(column) == name; });
    if (found == columns.end()) continue;
    check(std::find(found + 1, columns.end(), *found) == columns.end(),
          "column \"{}\" occurs twice; give the columns other names with --columns", shortened(*found));
    return static_cast<int>(found - columns.begin());
  }
  return -1;
}

int named_column(const std::vector<std::string>& columns, const std::string& name, const std::string& option,
                 const std::string& where) {
  const auto found = std::find(columns.begin(), columns.end(), name);
  if (found == columns.end())
    fail("{}: no column \"{}\" ({}){}; the columns are: {}", where, shortened(name), option,
         did_you_mean(name, columns), shortened(fmt::format("{}", fmt::join(columns, ", ")), 200));
  check(std::find(found + 1, columns.end(), name) == columns.end(),
        "{}: column \"{}\" occurs twice; give the columns other names with --columns", where,
        shortened(name));
  return static_cast<int>(found - columns.begin());
}

}  // namespace prism
