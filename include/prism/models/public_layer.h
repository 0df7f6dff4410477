#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "prism/mixers/gated_delta_net.h"

namespace prism {

/// Whose names and orders a Gated DeltaNet layer has; the name is `model_type` in the model's config.json.
/// - qwen3_next: transformers' Qwen3NextGatedDeltaNet. in_proj_qkvz.weight and in_proj_ba.weight go by key
///   head: its q [K], k [K], then v and z [H/Hk V] of its value heads; its b, then its a [H/Hk].
///   conv1d.weight over q, k, v; A_log, dt_bias, norm.weight, out_proj.weight.
/// - gated_deltanet: flash-linear-attention's GatedDeltaNet. {q,k,v,b,a,g,o}_proj.weight,
///   {q,k,v}_conv1d.weight, A_log, dt_bias, o_norm.weight.
enum class PublicLayout { kQwen3Next, kGatedDeltaNet };
template <>
struct EnumNames<PublicLayout> {
  static constexpr std::array names{"qwen3_next", "gated_deltanet"};
};

/// What a public model's config.json says about its Gated DeltaNet layers.
struct PublicLayer {
  PublicLayout layout = PublicLayout::kQwen3Next;
  int64_t width = 0;  ///< model width D
  GatedDeltaNetConfig config = {};
  bool short_conv = true;  ///< false: SiLU alone, which a convolution of width 1 and weight 1 is
};

/// Reads the text of a config.json. `file` opens error messages: an unknown model_type, a setting that is
/// missing or out of range, an activation other than SiLU.
PublicLayer parse_public_layer(std::string_view json, const std::string& file);

/// What the names of layer `index` (from 0) begin with in a file of the whole model:
/// "model.layers.3.linear_attn." or "model.layers.3.attn.".
std::string public_prefix(PublicLayout layout, int64_t index);

/// The weights that `mixer` has in `tensors`, whose names begin with `prefix`, copied into it (any float
/// type; renamed, reordered and joined, never computed with). Error naming the tensor, what was found and
/// what was expected for one that is missing, of another shape, or under `prefix` and unknown.
void copy_public_weights(const PublicLayer& layer, const std::map<std::string, at::Tensor>& tensors,
                         const std::string& prefix, const std::string& file, GatedDeltaNet& mixer);

}  // namespace prism
