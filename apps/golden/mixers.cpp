// The golden files' operations in terms of the product's. Symbols as in the files' README.
#include <ATen/ATen.h>

#include <string>

#include "golden.h"
#include "prism/mixers/sasrec_block.h"
#include "prism/ops/attention.h"
#include "prism/ops/prism_refine.h"
#include "recurrence.h"

namespace prism::golden {
namespace {

using at::Tensor;

Tensors prism(const Call& call) {
  return recurrence(
      call, {.q = call.at("q"), .k = call.at("k"), .w = call.at("w"), .b = call.at("b"), .g = call.at("g")});
}

/// beta_1 both erases and gates the first write.
Tensors prism_delta(const Call& call) {
  const Tensor& beta = call.at("beta");
  return recurrence(call, {.q = call.at("q"),
                           .k = call.at("k"),
                           .w = gated(beta, call.at("delta")),
                           .b = beta.select(2, 0),
                           .g = call.at("g")});
}

Tensors refine(const Call& call) {
  const PrismRefineResult result = prism_refine(call.at("v"), call.at("u"), call.at("p"), {},
                                                Nonlinearity::kGelu, Residual::kSubtract, true);
  return {{"delta", result.delta}, {"residual", result.residual}};
}

/// From bf16 storage, rotation and attention run in fp32: rounding the rotated keys alone would move the
/// files' logits, which reach hundreds, by more than one.
Tensors softmax(const Call& call) {
  const auto wide = [&](const char* name) {
    const Tensor& x = call.at(name);
    return x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
  };
  const Tensor q = wide("q"), k = wide("k");
  const double theta = call.number("rope_theta");
  const Tensor positions = at::arange(q.size(1), q.options().dtype(at::kLong)).expand({q.size(0), q.size(1)});
  const Tensor o = causal_attention(rope(q, positions, theta), rope(k, positions, theta), wide("v"),
                                    call.number("scale"), Packing::rows());
  return {{"o", o.to(call.at("q").scalar_type())}};
}

Tensors sasrec(const Call& call) {
  const auto w = [&](const char* name) { return call.at(name); };
  const SasrecWeights weights{.ln1_w = w("ln1_w"),
                              .ln1_b = w("ln1_b"),
                              .ln2_w = w("ln2_w"),
                              .ln2_b = w("ln2_b"),
                              .Wqkv = w("Wqkv"),
                              .bqkv = w("bqkv"),
                              .Wo = w("Wo"),
                              .bo = w("bo"),
                              .W1 = w("W1"),
                              .b1 = w("b1"),
                              .W2 = w("W2"),
                              .b2 = w("b2")};
  const NormPlace norm = call.metadata.at("norm_first") == "True" ? NormPlace::kPre : NormPlace::kPost;
  return {{"o", sasrec_block(call.at("x"), weights, int64_t(call.number("heads")), norm, Packing::rows())}};
}

}  // namespace

const std::vector<Mixer>& mixers() {
  static const std::vector<Mixer> all = [] {
    std::vector<Mixer> table = {
        {"prism", prism, {"b", "g", "initial_state"}},
        {"prism_delta", prism_delta, {"beta", "g", "initial_state"}},
        {"prism_refine", refine},
        {"softmax", softmax},
        {"sasrec_block", sasrec},
    };
    for (const auto& part :
         {scalar_gate_mixers(), routed_and_pointwise_mixers(), vector_gate_mixers(), fast_weight_mixers()})
      table.insert(table.end(), part.begin(), part.end());
    return table;
  }();
  return all;
}

const Mixer* find_mixer(const std::string& name) {
  for (const Mixer& mixer : mixers())
    if (name == mixer.name) return &mixer;
  return nullptr;
}

}  // namespace prism::golden
