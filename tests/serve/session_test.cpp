#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/mixers/mixer.h"
#include "serve/service_fixture.h"

namespace prism::test {
namespace {

namespace fs = std::filesystem;

class SessionFile {
 public:
  explicit SessionFile(const std::string& name)
      : path_(fs::temp_directory_path() / (name + std::to_string(getpid()))) {}
  ~SessionFile() { fs::remove(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Equal lists, scores to rounding.
void expect_same(const Recommendations& a, const Recommendations& b, float tolerance) {
  ASSERT_EQ(a.items.size(), b.items.size());
  std::map<std::string, float> scores;
  for (const auto& item : b.items) scores[item.id] = item.score;
  for (const auto& item : a.items) {
    ASSERT_TRUE(scores.contains(item.id)) << item.id;
    EXPECT_NEAR(item.score, scores[item.id], tolerance);
  }
}

class EveryMixer : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMixer, AppendingEqualsRecomputing) {
  RecommenderService service = small_service(GetParam(), 40, true);
  UserSession session = service.start();
  std::vector<std::string> history;
  std::vector<int64_t> seconds;
  for (int i = 0; i < 12; ++i) {
    history.push_back("i" + std::to_string(i * 17 % 40));
    seconds.push_back(1000 * i * i);
    ASSERT_TRUE(session.append(history.back(), seconds.back()));
    expect_same(session.recommend({.top = 40}), service.recommend(history, {.top = 40}, seconds), 2e-4F);
  }
  EXPECT_EQ(session.length(), 12);
}

TEST_P(EveryMixer, GoesOnBeyondMaxLength) {
  RecommenderService service = small_service(GetParam(), 40);
  UserSession session = service.start();
  std::vector<std::string> history;
  for (int i = 0; i < 30; ++i) {
    history.push_back("i" + std::to_string(i * 13 % 40));
    ASSERT_TRUE(session.append(history.back()));
  }
  const auto list = session.recommend({.top = 40, .filter_seen = false});
  EXPECT_EQ(list.items.size(), 40U);
  if (service.model().has_positions())
    expect_same(list, service.recommend(history, {.top = 40, .filter_seen = false}), 2e-4F);
}

TEST_P(EveryMixer, SavedAndRestoredSessionGoesOnWithTheSameBits) {
  RecommenderService service = small_service(GetParam(), 40, true);
  UserSession session = service.start();
  for (int i = 0; i < 9; ++i) session.append("i" + std::to_string(i * 3), 500 * i);
  const SessionFile file("session");
  session.save(file.path());
  UserSession restored = service.restore(file.path());
  EXPECT_EQ(restored.length(), 9);
  for (UserSession* one : {&session, &restored}) one->append("i39", 99999);
  const auto a = session.recommend({.top = 40}), b = restored.recommend({.top = 40});
  ASSERT_EQ(a.items.size(), b.items.size());
  for (size_t i = 0; i < a.items.size(); ++i) {
    EXPECT_EQ(a.items[i].id, b.items[i].id);
    EXPECT_EQ(a.items[i].score, b.items[i].score);
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, EveryMixer, ::testing::ValuesIn(mixer_names()));

TEST(UserSession, StartsWithPopularityAndIgnoresUnknownItems) {
  RecommenderService service = small_service("prism", 10);
  UserSession session = service.start();
  EXPECT_TRUE(session.recommend().by_popularity);
  EXPECT_FALSE(session.append("nobody knows it"));
  EXPECT_EQ(session.length(), 0);
  const SessionFile file("empty");
  session.save(file.path());
  EXPECT_EQ(service.restore(file.path()).length(), 0);
}

TEST(UserSession, OtherWeightsAndDamagedFilesAreRefused) {
  RecommenderService service = small_service("prism", 10), other = small_service("prism", 10, false, 6);
  UserSession session = service.start();
  session.append("i1");
  const SessionFile file("refused");
  session.save(file.path());
  try {
    other.restore(file.path());
    FAIL() << "restored";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("other weights"));
  }
  std::string bytes = read_file(file.path());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // a bit of a tensor
  write_file(file.path(), bytes);
  EXPECT_THROW(service.restore(file.path()), Error);
  write_file(file.path(), bytes.substr(0, bytes.size() / 2));
  EXPECT_THROW(service.restore(file.path()), Error);
}

}  // namespace
}  // namespace prism::test
