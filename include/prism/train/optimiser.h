#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace prism {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Scales every gradient so that their common 2-norm is at most `max_norm` (0: leaves them alone). Undefined
/// gradients count as zero. Returns the norm before, an fp32 scalar on the gradients' device.
at::Tensor clip_gradients(const NamedTensors& parameters, double max_norm);

/// AdamW with decoupled decay (Loshchilov and Hutter 2019), one fused kernel for all parameters of a group.
/// Matrices decay; vectors (norms, biases, gates) and anything named "embedding" do not.
class AdamW {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.98, epsilon = 1e-8, weight_decay = 0.01;
  };
  /// `parameters` in a fixed order with unique names; fp32 leaves that require gradients.
  AdamW(NamedTensors parameters, Options options);

  /// One update from the parameters' gradients; parameters without a gradient stay. Where `skip`, a bool
  /// scalar on their device, is true, it counts as a step and changes nothing; undefined: never.
  void step(double learning_rate, const at::Tensor& skip = {}) {
    begin_step(learning_rate);
    update(skip);
  }
  /// The two halves of a step: its count and rate go to the device, then comes the work there, which is the
  /// same for every step and can be recorded.
  void begin_step(double learning_rate);
  void update(const at::Tensor& skip);
  /// Drops all gradients.
  void zero_grad();

  /// Updates made so far; sets the bias correction.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// Moments, named "first_moment.<parameter>" and "second_moment.<parameter>"; they alias the optimiser's
  /// own, so copying into them restores a checkpoint.
  NamedTensors state() const;
  const NamedTensors& parameters() const { return parameters_; }

 private:
  NamedTensors parameters_;
  std::vector<at::Tensor> first_, second_;
  Options options_;
  int64_t steps_ = 0;
  at::Tensor step_, rate_;  // scalars on the parameters' device
};

}  // namespace prism
