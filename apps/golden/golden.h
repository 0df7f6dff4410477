#pragma once
// Checks of the product's operations against files of golden vectors.
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "prism/core/safetensors.h"

namespace prism::golden {

using Tensors = std::map<std::string, at::Tensor>;

/// Where and how the operations run.
struct Setting {
  at::Device device = at::kCPU;
  int64_t widths = 0;  ///< head widths of a recurrence are filled up with zeros to a multiple of this: same
                       ///< numbers, and the fused GPU kernels, which want 32, 64, ..., take part
};

/// One call of an operation: inputs in the type under test, and the file's metadata.
struct Call {
  Tensors inputs;
  const std::map<std::string, std::string>& metadata;
  Setting setting;

  const at::Tensor& at(const std::string& name) const { return inputs.at(name); }
  std::optional<at::Tensor> find(const std::string& name) const;
  double number(const std::string& key) const;
};

/// An operation of the files, computed by the product. A new mixer is one more row of a table below.
struct Mixer {
  const char* name;
  Tensors (*run)(const Call& call);
  /// Inputs that stay fp32 when activations are bf16.
  std::vector<std::string> wide = {};
};
/// The mixers on prism_chunk with a scalar gate or none.
std::vector<Mixer> scalar_gate_mixers();
/// Mixture of Memories and HSTU.
std::vector<Mixer> routed_and_pointwise_mixers();
/// The mixers with a gate a channel, on vector_gate.
std::vector<Mixer> vector_gate_mixers();
/// All of them.
const std::vector<Mixer>& mixers();
/// Those whose weights learn as they are read: TTT, Titans, ATLAS, Miras, LaCT.
std::vector<Mixer> fast_weight_mixers();
const Mixer* find_mixer(const std::string& name);

/// What a tensor of a file may miss, relative L2: outputs, gradients, gradients of gates.
double tolerance(const Safetensors& file, const Mixer& mixer, const std::string& tensor, at::ScalarType type);

/// Errors of every output and gradient of a file in `type`, by name.
std::map<std::string, double> check_file(const Safetensors& file, const Mixer& mixer, at::ScalarType type,
                                         const Setting& setting);

}  // namespace prism::golden
