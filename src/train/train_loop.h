#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "prism/distributed/ranks.h"
#include "prism/train/checkpoint.h"
#include "prism/train/run_folder.h"
#include "train/run_logs.h"
#include "train/train_task.h"
#include "train/updater.h"

namespace prism {

struct TrainLoopOptions {
  int64_t seed = 0;
  int64_t batch_size = 1;  ///< units of a step
  UpdateOptions update = {};
  std::string metric = {};  ///< which validation metric picks the best weights
  bool lower_is_better = false;
  double stop_at = std::numeric_limits<double>::infinity();  ///< ends training where higher is better
  int64_t patience = 0;                    ///< validations without a better one; 0: all rounds
  double checkpoint_minutes = 0;           ///< inside a round; 0: not by time
  int64_t checkpoint_steps = 0;            ///< inside a round; 0: not by steps
  std::string settings = {};               ///< the recipe as JSON, for checkpoints
  std::shared_ptr<Ranks> ranks = nullptr;  ///< the processes that share the steps; nullptr: this one alone
};

/// Usage error where some of the ranks (nullptr: one) would have nothing of a step.
void require_shareable(int64_t batch_size, const Ranks* ranks);

/// Steps, rounds, validations, log rows, checkpoints, signals and resuming, whatever is trained: the
/// recommender, a probe, a language model. Repeatable from seed and counters alone. Of several ranks each
/// trains its share of every step; rank 0 alone validates, tells and writes.
class TrainLoop {
 public:
  /// All referents must outlive the loop. Without a folder nothing is written.
  TrainLoop(TrainTask& task, TrainLoopOptions options, c10::Device device, const RunFolder* folder);
  ~TrainLoop();

  /// Continues from the folder's last checkpoint; from the beginning where the run was killed before its
  /// first. Error for a checkpoint of another run.
  void resume();
  /// Trains to the end: all rounds, stop_at, or no better validation for `patience` of them. Returns 0, or
  /// the number of the signal that stopped it after the step in progress; the folder can be resumed then.
  /// Non-finite steps are skipped and reported; Error after kMostSkipped of them in a row. LostRank, with
  /// what to do next, when another rank ends.
  int run();
  /// Leaves the weights of the best round in the model. For rank 0.
  void load_best();

  /// Seconds that the first round will take, from `steps` real steps after one more that warms up. Spoils
  /// the model.
  double measure_round(int64_t steps);

  const TrainState& state() const { return state_; }

  static constexpr int64_t kMostSkipped = 10;

 private:
  bool leads() const { return !options_.ranks || options_.ranks->leads(); }
  bool writes() const { return folder_ && leads(); }
  bool finished() const;
  void start_together();
  int train_rounds();
  int train_round();
  int signal_of_all() const;
  void close_round();
  void take_step(int64_t first, int64_t count);
  void look();
  void account(const StepFigures& figures);
  void report_skipped(const StepFigures& figures);
  double mean_loss() const;
  void validate(EpochRow& row);
  void judge(const MetricMap& metrics);
  void share_verdict();
  Checkpoint checkpoint() const;
  void save_best();
  void save_last();
  bool checkpoint_due() const;

  TrainTask& task_;
  TrainLoopOptions options_;
  c10::Device device_;
  const RunFolder* folder_;
  Updater updater_;
  TrainState state_;
  bool reached_ = false;
  int64_t skipped_in_a_row_ = 0;
  int64_t saved_step_ = 0;  // of the last checkpoint; 0: none yet
  // Of this sitting, in steady seconds: when state_.seconds was last advanced, the last checkpoint, and where
  // the round was taken up.
  double clock_ = 0, saved_at_ = 0, round_started_ = 0;
  int64_t round_started_positions_ = 0;
  std::unique_ptr<RunLogs> logs_;
};

}  // namespace prism
