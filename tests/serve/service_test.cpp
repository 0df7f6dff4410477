#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/evaluate/evaluate_model.h"
#include "serve/service_fixture.h"

namespace prism::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> ids(const Recommendations& list) {
  std::vector<std::string> out;
  for (const auto& item : list.items) out.push_back(item.id);
  return out;
}

TEST(RecommenderService, ListsItemsInTheRanksThatEvaluateCounts) {
  const Interactions log = small_log(80, 90, 30);
  const Split split(log, DataConfig{});
  RecommenderService service = small_service("prism", 90);
  for (const bool filter_seen : {true, false}) {
    const auto counts = rank_cases(service.model(), log, split, Part::kTest, {.filter_seen = filter_seen});
    for (size_t c = 0; c < counts.size(); ++c) {
      const Case& one = split.cases(Part::kTest)[c];
      const auto history = split.history(one);
      if (filter_seen && std::find(history.begin(), history.end(), one.target) != history.end()) continue;
      const auto list = ids(service.recommend(names_of(history), {.top = 90, .filter_seen = filter_seen}));
      const auto found = std::find(list.begin(), list.end(), "i" + std::to_string(one.target));
      EXPECT_EQ(found - list.begin() + 1, counts[c].rank()) << "case " << c;
    }
  }
}

TEST(RecommenderService, AllUsersGetTheListsOfSingleUsers) {
  const Interactions log = small_log(150, 70, 30);
  RecommenderService service = small_service("prism", 70, true);
  const RecommendOptions options{.top = 9, .exclude = {"i3", "i4", "new"}};
  const int threads = at::get_num_threads();
  for (const int n : {1, 2}) {
    at::set_num_threads(n);
    int64_t users = 0;
    const auto unknown =
        service.recommend_all(log, options, [&](int64_t first, const BatchRecommendations& lists) {
          EXPECT_EQ(first, users);
          for (size_t u = 0; u < lists.found.size(); ++u, ++users) {
            const auto single = service.recommend(names_of(log.history(users)), options, log.times(users));
            EXPECT_EQ(lists.found[u], static_cast<int64_t>(single.items.size()));
            for (size_t i = 0; i < single.items.size(); ++i) {
              const size_t at = u * static_cast<size_t>(lists.top) + i;
              EXPECT_EQ("i" + std::to_string(lists.items[at]), single.items[i].id);
              EXPECT_EQ(lists.scores[at], single.items[i].score);
            }
          }
          return true;
        });
    EXPECT_EQ(users, 150);
    EXPECT_THAT(unknown, ElementsAre("new"));
  }
  at::set_num_threads(threads);
}

TEST(RecommenderService, FiltersAndTitles) {
  RecommenderService service = small_service("prism", 20);
  const std::vector<std::string> history = {"i1", "i2", "i3"};
  const auto filtered = ids(service.recommend(history, {.top = 20}));
  EXPECT_EQ(filtered.size(), 17U);
  for (const auto& seen : history) EXPECT_EQ(std::count(filtered.begin(), filtered.end(), seen), 0);
  EXPECT_EQ(service.recommend(history, {.top = 20, .filter_seen = false}).items.size(), 20U);

  const auto allowed =
      service.recommend(history, {.top = 5, .allow = {"i4", "i2", "i6", "nothing"}, .exclude = {"i6"}});
  ASSERT_THAT(ids(allowed), ElementsAre("i4"));
  EXPECT_EQ(allowed.items[0].title, "Title 4");
  EXPECT_THAT(allowed.unknown, ElementsAre("nothing"));
  EXPECT_THAT(allowed.note, HasSubstr("1 of 5 items asked for"));
  for (const auto& item : service.recommend(history, {.top = 20}).items)
    EXPECT_EQ(item.title.empty(), (item.id.back() - '0') % 2 == 1) << item.id;
}

TEST(RecommenderService, UnknownItemsAreNamedAndSkipped) {
  RecommenderService service = small_service("prism", 20);
  const std::vector<std::string> known = {"i1", "i2"}, mixed = {"x", "i1", "y", "i2"};
  const auto list = service.recommend(mixed);
  EXPECT_THAT(list.unknown, ElementsAre("x", "y"));
  EXPECT_EQ(ids(list), ids(service.recommend(known)));
  EXPECT_FALSE(list.by_popularity);
}

TEST(RecommenderService, EmptyHistoryFallsBackToPopularityAndSaysSo) {
  RecommenderService service = small_service("prism", 10);
  for (const std::vector<std::string>& history : {std::vector<std::string>{}, {"unknown"}}) {
    const auto list = service.recommend(history, {.top = 3});
    EXPECT_TRUE(list.by_popularity);
    EXPECT_THAT(list.note, HasSubstr("most popular"));
    EXPECT_THAT(ids(list), ElementsAre("i6", "i5", "i4"));
    EXPECT_EQ(list.items[0].score, 6);
  }
  EXPECT_THAT(ids(service.recommend({}, {.top = 3, .exclude = {"i5"}})), ElementsAre("i6", "i4", "i3"));
}

TEST(RecommenderService, HistoryOfEverythingGivesAnEmptyListAndAReason) {
  RecommenderService service = small_service("prism", 5);
  const std::vector<std::string> all = {"i4", "i3", "i2", "i1", "i0"};
  const auto none = service.recommend(all);
  EXPECT_THAT(none.items, IsEmpty());
  EXPECT_THAT(none.note, HasSubstr("every one of the 5 items"));
  const auto five = service.recommend(all, {.top = 10, .filter_seen = false});
  EXPECT_EQ(five.items.size(), 5U);
  EXPECT_THAT(five.note, HasSubstr("only 5 items"));
}

TEST(RecommenderService, WrongPartsAndOptionsAreErrors) {
  RecommenderService service = small_service("prism", 5);
  EXPECT_THROW(service.recommend({}, {.top = 0}), Error);
  const std::vector<std::string> two = {"i1", "i2"};
  const std::vector<int64_t> one = {5};
  EXPECT_THROW(service.recommend(two, {}, one), Error);
  ServiceParts parts{.model = small_model("prism", 3), .items = {}, .titles = {}, .item_counts = {1, 2, 3}};
  parts.items.add("a");
  EXPECT_THROW(RecommenderService(std::move(parts)), Error);
}

TEST(RecommenderApiPage, QuotesTheExampleThatTheTestsBuild) {
  const std::string source = PRISM_SOURCE_DIR;
  const std::string page = read_file(source + "/docs/recommender-api.md");
  EXPECT_THAT(page, HasSubstr(read_file(source + "/examples/find_package/main.cpp")));
}

}  // namespace
}  // namespace prism::test
