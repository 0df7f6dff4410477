#pragma once
#include <string>

#include "prism/data/interactions.h"
#include "prism/train/run.h"

namespace prism {

/// A log in the indices of a run: item i of the log is item i of the model.
struct RunLog {
  Interactions log;
  std::string file;
  int64_t unknown_items = 0, dropped_rows = 0;  ///< items that the run does not know, and their interactions
};

/// Reads `file`, or where that is empty the log that the run was trained on, by the run's settings.
/// Interactions with items that the run does not know are dropped with a warning. Error naming --data when
/// the file is gone.
RunLog read_run_log(const Run& run, const std::string& file = "");

/// Drops interactions whose item `known` lacks and gives the others its indices. Users keep theirs, also
/// where nothing is left of them.
RunLog align_items(const Vocabulary& known, Interactions log);

}  // namespace prism
