#pragma once
// Recommendations from a trained run, for C++ programs (docs/recommender-api.md shows it in use).
//
//   prism::RecommenderService service = prism::RecommenderService::open("runs/ml-100k");
//   const std::vector<std::string> history = {"50", "181", "172"};
//   for (const prism::RecommendedItem& item : service.recommend(history).items)
//     std::cout << item.id << " " << item.title << " " << item.score << "\n";
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "prism/data/vocabulary.h"

namespace prism {

class Recommender;
struct Interactions;
struct ServiceImpl;
struct SessionImpl;

struct RecommendOptions {
  int64_t top = 10;                       ///< items asked for
  bool filter_seen = true;                ///< leave out what is in the history
  std::vector<std::string> allow = {};    ///< when not empty, only these items
  std::vector<std::string> exclude = {};  ///< never these items
};

struct RecommendedItem {
  std::string id;
  std::string title;  ///< "" where the run knows none
  float score = 0;    ///< logit of the model; with Recommendations::by_popularity the number of interactions
};

struct Recommendations {
  std::vector<RecommendedItem> items;  ///< best first; equal scores by first appearance in the log
  std::vector<std::string> unknown;  ///< ids of the history, `allow` or `exclude` that the run does not know
  bool by_popularity = false;        ///< the history had no known item
  std::string note;  ///< why the list is short or by popularity, for a reader; "" when nothing is unusual
};

/// Lists of several users, as indices of items; -1 where a list ends early.
struct BatchRecommendations {
  int64_t top = 0;
  std::vector<int32_t> items;  ///< [users, top]
  std::vector<float> scores;   ///< [users, top]
  std::vector<int64_t> found;  ///< [users]
};

/// What a service is made of, for programs that build their own model instead of opening a run.
struct ServiceParts {
  std::shared_ptr<Recommender> model;
  Vocabulary items;                 ///< ids by item index
  std::vector<std::string> titles;  ///< by item index, or empty
  std::vector<float> item_counts;   ///< interactions by item index, for the popularity list
};

class UserSession;

/// A trained model ready to answer. Calls are safe from one thread at a time; each uses all threads of the
/// process.
class RecommenderService {
 public:
  /// Opens a run folder: settings, best weights, vocabularies, titles. `device` is "cpu", "cuda" or "cuda:N".
  /// Throws Error when the folder is no run or its files are damaged.
  static RecommenderService open(const std::filesystem::path& run, const std::string& device = "cpu");
  explicit RecommenderService(ServiceParts parts);
  RecommenderService(RecommenderService&&) noexcept;
  RecommenderService& operator=(RecommenderService&&) noexcept;
  ~RecommenderService();

  /// What to show someone with this history (item ids, oldest first). Unknown ids are skipped and listed. New
  /// users need no training. `seconds` (Unix time, one an item, or empty) matters to models with time gaps
  /// only.
  Recommendations recommend(std::span<const std::string> history, const RecommendOptions& options = {},
                            std::span<const int64_t> seconds = {});

  /// The same for a user of a log, with the times that the log has.
  Recommendations recommend_user(const Interactions& log, int64_t user, const RecommendOptions& options = {});

  /// Lists for all users of a log from their whole histories, in blocks: `write(first_user, lists)` is called
  /// in the order of users. Items of the log are matched by id. Users without a known item get the popular
  /// items. `write` returns false to stop early. Returns the ids of options.allow and options.exclude that
  /// the model does not know.
  std::vector<std::string> recommend_all(
      const Interactions& log, const RecommendOptions& options,
      const std::function<bool(int64_t first_user, const BatchRecommendations&)>& write);

  /// A session for someone without history.
  UserSession start();
  /// A session saved by UserSession::save with this model. Throws Error for another model's or a damaged
  /// file.
  UserSession restore(const std::filesystem::path& file);

  int64_t items() const;
  const Vocabulary& vocabulary() const;
  std::string_view title(int64_t index) const;  ///< "" where unknown
  Recommender& model();

 private:
  friend class UserSession;
  std::unique_ptr<ServiceImpl> impl_;
};

/// One user's state inside the model: after each item one step, whatever the length of the history, gives
/// what recomputing the history would give (to rounding). The service must outlive its sessions. Histories
/// longer than the model's max_length: the state keeps what it learned from older items; models with learned
/// positions recompute their last max_length items instead.
class UserSession {
 public:
  UserSession(UserSession&&) noexcept;
  UserSession& operator=(UserSession&&) noexcept;
  ~UserSession();

  /// Appends one item; false (and nothing changes) when its id is unknown.
  bool append(const std::string& item, std::optional<int64_t> seconds = {});
  Recommendations recommend(const RecommendOptions& options = {});
  /// Known items so far.
  int64_t length() const;
  /// Writes the state to a safetensors file, atomically.
  void save(const std::filesystem::path& file) const;

 private:
  friend class RecommenderService;
  explicit UserSession(std::unique_ptr<SessionImpl> impl);
  std::unique_ptr<SessionImpl> impl_;
};

}  // namespace prism
