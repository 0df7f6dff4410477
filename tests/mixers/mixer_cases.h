#pragma once
// One list of mixers and settings drives every test of the mixer contract; a new mixer is a new line.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "prism/core/config.h"
#include "prism/mixers/mixer.h"

namespace prism::testing {

struct MixerCase {
  std::string name, mixer;
  std::vector<std::pair<std::string, std::string>> settings = {};
  int64_t width = 8;
};

inline void PrintTo(const MixerCase& c, std::ostream* out) { *out << c.name; }

inline std::vector<MixerCase> mixer_cases() {
  return {
      {"prism", "prism"},
      {"prism_one_step", "prism", {{"steps", "1"}}},
      {"prism_three_steps", "prism", {{"steps", "3"}, {"heads", "4"}}},
      {"prism_no_steps", "prism", {{"steps", "0"}}},
      {"prism_identity", "prism", {{"nonlinearity", "identity"}}},
      {"prism_token_anchor", "prism", {{"anchor", "token"}}},
      {"prism_constant_gain", "prism", {{"gain", "constant"}}},
      {"prism_residual_none", "prism", {{"residual", "none"}}},
      {"prism_separate", "prism", {{"solver_key", "separate"}}},
      {"prism_shared_tied", "prism", {{"solver_key", "shared_tied"}}},
      {"prism_shared_separate", "prism", {{"solver_key", "shared_separate"}}},
      {"prism_separate_no_steps", "prism", {{"solver_key", "separate"}, {"steps", "0"}}},
      {"prism_sigmoid", "prism", {{"decay", "sigmoid"}}},
      {"prism_low_rank", "prism", {{"solver_rank", "3"}, {"steps", "3"}}},
      {"prism_low_rank_shared", "prism", {{"solver_rank", "2"}, {"solver_key", "shared_tied"}}},
      {"prism_bare_output", "prism", {{"output_norm", "false"}, {"output_gate", "false"}}},
      {"prism_gate_only", "prism", {{"output_norm", "false"}}},
      {"prism_norm_only", "prism", {{"output_gate", "false"}}},
      {"prism_conv_width_1", "prism", {{"conv_width", "1"}}},
      {"prism_grouped", "prism", {{"heads", "4"}, {"key_heads", "2"}, {"key_width", "3"}}},
      {"prism_as_gdn",
       "prism",
       {{"steps", "0"}, {"conv", "projections"}, {"heads", "4"}, {"key_heads", "2"}, {"value_width", "5"}}},
      {"gated_delta_net", "gated_delta_net"},
      {"gated_delta_net_grouped",
       "gated_delta_net",
       {{"heads", "4"}, {"key_heads", "2"}, {"key_width", "6"}, {"value_width", "5"}}},
      {"softmax_attention", "softmax_attention"},
      {"softmax_attention_grouped", "softmax_attention", {{"heads", "4"}, {"key_heads", "2"}}},
      {"sasrec_block", "sasrec_block"},
      {"sasrec_block_post", "sasrec_block", {{"norm", "post"}}},
  };
}

inline std::shared_ptr<Mixer> build(const MixerCase& c, uint64_t seed = 1) {
  at::manual_seed(seed);
  const auto spec = make_mixer_spec(c.mixer);
  Settings settings;
  spec->bind(settings, "mixer");
  for (const auto& [name, value] : c.settings) settings.set_text(name, value, "test");
  auto mixer = spec->build(c.width);
  mixer->to(at::kDouble);
  return mixer;
}

inline at::Tensor random_input(at::IntArrayRef shape, uint64_t seed = 7) {
  at::manual_seed(seed);
  return at::randn(shape, at::kDouble);
}

/// ||a - b|| / max(||b||, 1e-6 sqrt n), the measure of docs/prism.md.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  if (b.numel() == 0) return a.sizes() == b.sizes() ? 0 : 1;
  const double floor = 1e-6 * std::sqrt(static_cast<double>(b.numel()));
  return (a.to(at::kDouble) - b.to(at::kDouble)).norm().item<double>() /
         std::max(b.to(at::kDouble).norm().item<double>(), floor);
}

}  // namespace prism::testing
