#pragma once
// One list of mixers and settings drives every test of the mixer contract; a new mixer is a new line.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "mixers/input_conv.h"
#include "prism/core/config.h"
#include "prism/mixers/mixer.h"

namespace prism::test {

struct MixerCase {
  std::string name, mixer;
  std::vector<std::pair<std::string, std::string>> settings = {};
  int64_t width = 8;
  bool fill_zeros = false;  ///< random values for parameters that start at zero and would hide others
  /// How much more a mixer turns rounding, and a step of finite differences, into error than a linear state
  /// does: Newton-Schulz and norms inside the learning memory.
  double amplifies = 1;
  int64_t max_length = 64;
  int64_t input_conv = 0;  ///< a convolution of this width before the mixer
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
      {"prism_no_decay", "prism", {{"decay", "none"}}},
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
      {"gated_delta_net_negative",
       "gated_delta_net",
       {{"negative_eigenvalues", "true"}, {"norm_eps", "0.001"}}},
      {"linear_attention", "linear_attention"},
      {"linear_attention_plain",
       "linear_attention",
       {{"feature_map", "identity"}, {"normaliser", "false"}, {"rotary", "true"}, {"output_gate", "true"}}},
      {"linear_attention_grouped",
       "linear_attention",
       {{"heads", "4"}, {"key_heads", "2"}, {"key_width", "6"}, {"output_norm", "false"}}},
      {"mamba2", "mamba2", {{"state_width", "6"}}},
      {"mamba2_groups", "mamba2", {{"state_width", "5"}, {"heads", "4"}, {"groups", "2"}, {"expand", "1"}}},
      {"delta_net", "delta_net"},
      {"delta_net_negative", "delta_net", {{"negative_eigenvalues", "true"}, {"output_gate", "true"}}},
      {"efla", "efla"},
      {"efla_grouped", "efla", {{"heads", "4"}, {"key_heads", "2"}, {"key_width", "6"}}},
      {"comba", "comba"},
      {"comba_grouped",
       "comba",
       {{"heads", "4"}, {"key_heads", "2"}, {"output_norm", "false"}, {"correction", "0.02"}}},
      {"preconditioned_delta_net", "preconditioned_delta_net"},
      {"preconditioned_delta_net_without_gate",
       "preconditioned_delta_net",
       {{"gate", "none"}, {"squash", "2"}}},
      {"preconditioned_delta_net_grouped",
       "preconditioned_delta_net",
       {{"heads", "4"}, {"key_heads", "2"}, {"key_width", "6"}, {"value_width", "5"}}},
      {"mom", "mom"},
      {"mom_one_memory", "mom", {{"memories", "1"}, {"top_k", "1"}, {"shared_memory", "false"}}},
      {"mom_of_delta_net", "mom", {{"base", "delta_net"}, {"memories", "3"}, {"shared_memory", "false"}}},
      {"mom_of_efla", "mom", {{"base", "efla"}, {"top_k", "1"}, {"output_norm", "false"}}},
      {"mom_of_comba", "mom", {{"base", "comba"}, {"memories", "2"}}},
      {"mom_of_preconditioned_delta_net", "mom", {{"base", "preconditioned_delta_net"}, {"top_k", "3"}}},
      {"ttt_linear", "ttt_linear", {{"mini_batch", "4"}}},
      {"ttt_linear_long_batch", "ttt_linear", {{"output_gate", "false"}}, 8, false, 10},
      {"ttt_linear_conv", "ttt_linear", {{"mini_batch", "1"}, {"conv_width", "4"}}},
      {"ttt_mlp", "ttt_mlp", {{"mini_batch", "3"}}},
      {"titans", "titans", {{"mini_batch", "4"}}},
      {"titans_sequential",
       "titans",
       {{"mini_batch", "1"}, {"key_width", "3"}, {"value_width", "5"}, {"conv_width", "0"}}},
      {"titans_residual", "titans", {{"residual_norm", "true"}, {"output_norm", "false"}}},
      {"titans_mlp", "titans", {{"memory", "mlp"}, {"mini_batch", "3"}}},
      {"titans_mlp_residual",
       "titans",
       {{"memory", "mlp"}, {"mini_batch", "2"}, {"residual_norm", "true"}, {"output_gate", "false"}},
       8,
       false,
       10},
      {"atlas", "atlas", {{"mini_batch", "4"}, {"key_width", "2"}}, 8, false, 50},
      {"atlas_linear_features",
       "atlas",
       {{"mini_batch", "3"}, {"degree", "1"}, {"window", "6"}, {"key_width", "3"}},
       8,
       false,
       50},
      {"atlas_beyond_the_sequence",
       "atlas",
       {{"mini_batch", "65536"}, {"window", "4096"}, {"key_width", "2"}},
       8,
       false,
       50},
      {"omega_net",
       "atlas",
       {{"momentum", "false"}, {"newton_schulz", "false"}, {"mini_batch", "2"}, {"conv_width", "0"}}},
      {"miras_moneta", "miras", {{"mini_batch", "4"}}},
      {"miras_yaad", "miras", {{"variant", "yaad"}, {"mini_batch", "3"}, {"key_width", "3"}}},
      {"miras_yaad_norm", "miras", {{"variant", "yaad"}, {"huber", "norm"}, {"output_gate", "false"}}},
      {"miras_memora", "miras", {{"variant", "memora"}, {"mini_batch", "2"}, {"conv_width", "0"}}},
      {"lact", "lact", {{"chunk", "4"}}, 8, false, 50},
      {"lact_plain", "lact", {{"chunk", "3"}, {"muon", "false"}, {"momentum", "false"}, {"conv_width", "4"}}},
      {"lact_prenorm",
       "lact",
       {{"chunk", "2"}, {"prenorm", "true"}, {"expansion", "2"}, {"key_width", "3"}},
       8,
       false,
       50},
      {"gla", "gla"},
      {"gla_grouped",
       "gla",
       {{"heads", "4"}, {"key_heads", "2"}, {"key_width", "3"}, {"value_width", "5"}, {"conv_width", "4"}}},
      {"gla_bare_output", "gla", {{"output_norm", "false"}, {"output_gate", "false"}}},
      {"gsa", "gsa"},
      {"gsa_slots", "gsa", {{"slots", "3"}, {"key_width", "5"}, {"value_width", "6"}}},
      {"kda", "kda"},
      {"kda_grouped",
       "kda",
       {{"heads", "4"}, {"key_heads", "2"}, {"key_width", "6"}, {"value_width", "5"}, {"gate_rank", "3"}}},
      {"kda_bounded", "kda", {{"decay", "bounded"}, {"output_norm", "false"}, {"output_gate", "false"}}},
      {"pkda", "pkda"},
      {"pkda_grouped", "pkda", {{"heads", "4"}, {"key_heads", "2"}, {"key_width", "6"}, {"squash", "2"}}},
      {.name = "rwkv7", .mixer = "rwkv7", .fill_zeros = true},
      {.name = "rwkv7_ranks",
       .mixer = "rwkv7",
       .settings = {{"heads", "1"}, {"decay_rank", "3"}, {"rate_rank", "2"}, {"gate_rank", "5"}},
       .fill_zeros = true},
      {"softmax_attention", "softmax_attention"},
      {"softmax_attention_grouped", "softmax_attention", {{"heads", "4"}, {"key_heads", "2"}}},
      {"sasrec_block", "sasrec_block"},
      {"sasrec_block_post", "sasrec_block", {{"norm", "post"}}},
      {"hstu", "hstu"},
      {"hstu_without_time", "hstu", {{"time_bias", "false"}, {"key_width", "3"}, {"value_width", "5"}}},
      {.name = "conv_then_gated_delta_net", .mixer = "gated_delta_net", .input_conv = 4},
      {.name = "conv_then_attention", .mixer = "softmax_attention", .input_conv = 3},
  };
}

inline std::shared_ptr<Mixer> build(const MixerCase& c, uint64_t seed = 1) {
  at::manual_seed(seed);
  const auto spec = make_mixer_spec(c.mixer);
  Settings settings;
  spec->bind(settings, "mixer");
  for (const auto& [name, value] : c.settings) settings.set_text(name, value, "test");
  std::shared_ptr<Mixer> mixer = spec->build(c.width, c.max_length);
  if (c.input_conv > 0) mixer = std::make_shared<InputConv>(mixer, c.width, c.input_conv);
  mixer->to(at::kDouble);
  const at::NoGradGuard no_gradient;
  for (auto& parameter : mixer->parameters())
    if (c.fill_zeros && !parameter.count_nonzero().item<int64_t>()) parameter.normal_(0, 0.3);
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

}  // namespace prism::test
