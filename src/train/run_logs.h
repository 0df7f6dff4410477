#pragma once
#include <cstdint>

#include "prism/train/metric_map.h"
#include "prism/train/run_folder.h"
#include "train/append_file.h"

namespace prism {

/// What one optimiser step did.
struct StepRow {
  int64_t epoch = 0, step = 0;  ///< both count from 1
  double loss = 0, learning_rate = 0, gradient_norm = 0;
  bool skipped = false;  ///< loss or gradient were not finite, so the weights stayed
};

/// What one epoch came to.
struct EpochRow {
  int64_t epoch = 0, step = 0;
  double loss = 0, learning_rate = 0, seconds = 0, positions_per_second = 0;
  MetricMap valid;  ///< empty when the epoch was not validated
  bool best = false;
};

/// metrics.jsonl and the TensorBoard event file of a run, row for row the same.
class RunLogs {
 public:
  /// Opens both and cuts them to the sizes that a checkpoint remembers (0: a new run).
  RunLogs(const RunFolder& folder, int64_t metrics_bytes, int64_t events_bytes);

  void add(const StepRow& row);
  void add(const EpochRow& row);

  /// Waits until all rows are on the disk.
  void sync();
  int64_t metrics_bytes() const { return metrics_.size(); }
  int64_t events_bytes() const { return events_.size(); }

 private:
  AppendFile metrics_, events_;
};

}  // namespace prism
