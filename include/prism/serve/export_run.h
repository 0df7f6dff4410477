#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "prism/data/interactions.h"
#include "prism/train/run.h"

namespace prism {

struct ExportFiles {
  bool tsv = true, npy = true, safetensors = true;
};

/// Writes a run for other programs into `folder` and returns the names of the files:
///   items.tsv                row, id, training interactions, title of every item
///   item_vectors.{tsv,npy,safetensors}   float [items, D]; a score is <user vector, item vector>
///   model.safetensors        all weights by name
///   config.json              every setting: sections data, model, mixer, loss, train
std::vector<std::string> export_run(const Run& run, const std::filesystem::path& folder,
                                    const ExportFiles& files);

/// Writes users.tsv (row, id) and user_vectors.* [users with an item, D]: vectors after whole histories, with
/// which the inner product of item_vectors ranks what comes next.
std::vector<std::string> export_users(const Run& run, const Interactions& log,
                                      const std::filesystem::path& folder, const ExportFiles& files);

}  // namespace prism
