#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "prism/data/interactions.h"
#include "prism/data/split.h"
#include "prism/models/recommender.h"
#include "prism/train/checkpoint.h"
#include "prism/train/recipe.h"
#include "prism/train/run_folder.h"

namespace prism {

/// A run folder opened for use: the model of the best epoch and what its indices mean.
struct Run {
  RunFolder folder;
  std::unique_ptr<Recipe> recipe = {};
  Vocabulary items = {};                 ///< row i of the item table is items.name(i)
  std::vector<std::string> titles = {};  ///< [items] or empty where the log has none; "" for an item without
  at::Tensor item_counts = {};           ///< int64 [items]: occurrences in training, the popularity
  TrainState state = {};                 ///< of the checkpoint that `model` holds
  std::shared_ptr<Recommender> model = {};
};

/// Opens a run and puts its best weights (the last ones, with a warning, before the first validation) on
/// `device` in evaluation mode. Usage error for a folder that is no run; Error for a damaged one.
Run open_run(const std::filesystem::path& root, c10::Device device);

/// What a run keeps of its log: vocabularies, titles and dataset.json with the log's fingerprint.
/// `titles` [items] or empty; `summary` is JSON about the log that `prism info` shows.
void write_dataset(const RunFolder& folder, const Interactions& log, const std::vector<std::string>& titles,
                   const std::string& summary);

/// A checksum of users, items, order and times. Equal logs have equal fingerprints on every machine.
std::string log_fingerprint(const Interactions& log);

/// "crc32:0123abcd" over the names in order.
std::string checksum_of_names(const Vocabulary& names);

/// Error unless `log` is the one that the run was started with.
void check_same_log(const RunFolder& folder, const Interactions& log);

/// Gives the items of `log` the indices of `known`, and the next free ones to new items; items that only
/// `known` has stay candidates. Returns the number of new items.
int64_t adopt_items(const Vocabulary& known, Interactions& log);

/// Copies every weight of `from` into `into`, whose item table may have more rows at its end: those keep
/// their fresh values.
void adopt_weights(const Recommender& from, Recommender& into);

}  // namespace prism
