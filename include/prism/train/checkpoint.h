#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>

#include "prism/core/config.h"
#include "prism/train/optimiser.h"

namespace prism {

/// Where a training run stands. Every random number is drawn from a stream indexed by these counters, so they
/// and the tensors are all that a resumed run needs to repeat the uninterrupted one bit for bit.
struct TrainState {
  int64_t seed = 0;
  int64_t epoch = 0, step = 0, window = 0;
  double loss_sum = 0;
  int64_t positions = 0;
  double best_metric = 0;
  int64_t best_epoch = 0, stale = 0;
  double seconds = 0;
  int64_t metrics_bytes = 0, events_bytes = 0;
  static constexpr auto fields = std::tuple{
      Field{"seed", &TrainState::seed, Any{}, "", "of every random stream"},
      Field{"epoch", &TrainState::epoch, Range{0, 1e9}, "", "finished epochs"},
      Field{"step", &TrainState::step, Range{0, 1e15}, "", "finished optimiser steps"},
      Field{"window", &TrainState::window, Range{0, 1e15}, "",
            "windows of the current epoch already trained"},
      Field{"loss_sum", &TrainState::loss_sum, Any{}, "", "sum of the epoch's losses over its positions"},
      Field{"positions", &TrainState::positions, Range{0, 1e15}, "", "positions in loss_sum"},
      Field{"best_metric", &TrainState::best_metric, Any{}, "", "validation metric of best_epoch"},
      Field{"best_epoch", &TrainState::best_epoch, Range{0, 1e9}, "", "0: nothing validated yet"},
      Field{"stale", &TrainState::stale, Range{0, 1e9}, "", "validations since best_epoch"},
      Field{"seconds", &TrainState::seconds, Range{0, 1e12}, "s", "spent so far, over all resumes"},
      Field{"metrics_bytes", &TrainState::metrics_bytes, Range{0, 1e15}, "", "size of metrics.jsonl"},
      Field{"events_bytes", &TrainState::events_bytes, Range{0, 1e15}, "", "size of the event file"}};
};

/// A checkpoint: one safetensors file with "model.<name>" and, where training can go on,
/// "optimiser.first_moment.<name>" and "optimiser.second_moment.<name>".
struct Checkpoint {
  TrainState state;
  std::string settings;    ///< the recipe as JSON
  std::string items = {};  ///< checksum_of_names of the items; "" in files of older programs
  std::map<std::string, at::Tensor> tensors;
};

constexpr int64_t kCheckpointVersion = 1;

/// Writes atomically. Metadata: format, format_version, state, settings and a checksum over all of it and the
/// tensors.
void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

/// Throws Error naming the file when it is torn or edited, of a newer format, or no checkpoint at all.
Checkpoint read_checkpoint(const std::filesystem::path& path);

/// Parameters and buffers of a module, in a fixed order.
NamedTensors model_tensors(const torch::nn::Module& model);

/// checkpoint.tensors[prefix + name] = tensor, for each.
void store_tensors(const NamedTensors& tensors, const std::string& prefix, Checkpoint& checkpoint);

/// Copies checkpoint.tensors[prefix + name] into each tensor; `file` opens error messages about missing names
/// and other shapes. Names under `prefix` that nobody asked for are errors too.
void restore_tensors(const Checkpoint& checkpoint, const std::string& prefix, const NamedTensors& tensors,
                     const std::string& file);

}  // namespace prism
