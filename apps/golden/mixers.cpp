// The golden files' operations in terms of the product's. Symbols as in the files' README.
#include <ATen/ATen.h>

#include <string>

#include "golden.h"
#include "prism/mixers/sasrec_block.h"
#include "prism/ops/attention.h"
#include "prism/ops/prism_chunk.h"
#include "prism/ops/prism_refine.h"

namespace prism::golden {
namespace {

using at::Tensor;

/// prism_chunk with the file's state, packing and scale.
Tensors recurrence(const Call& call, PrismChunkArgs args) {
  args.initial_state = call.find("initial_state");
  args.cu_seqlens = call.find("cu_seqlens");
  args.scale = call.number("scale");
  args.return_final_state = true;
  const PrismChunkResult result = prism_chunk(args);
  return {{"o", result.o}, {"final_state", result.final_state}};
}

/// [B,T,H,...] as the only one of L = 1 steps.
Tensor one_step(const Tensor& x) { return x.unsqueeze(2); }
/// A gated write in the type of the activations.
Tensor gated(const Tensor& gate, const Tensor& value) {
  return (gate.unsqueeze(-1) * value).to(value.scalar_type());
}
Tensor no_gate(const Call& call) {
  const Tensor& q = call.at("q");
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::zeros({q.size(0), q.size(1), call.at("v").size(2)},
                   q.options().dtype(type).requires_grad(false));
}

Tensors linear(const Call& call) {
  return recurrence(call, {.q = call.at("q"),
                           .k = one_step(call.at("k")),
                           .w = one_step(call.at("v")),
                           .b = no_gate(call),
                           .g = no_gate(call)});
}

/// q = C, k = B, w = dt x, g = dt A, and the skip D x.
Tensors mamba2(const Call& call) {
  const Tensor &x = call.at("x"), &dt = call.at("dt");
  Tensors out = recurrence(call, {.q = call.at("C"),
                                  .k = one_step(call.at("B")),
                                  .w = one_step(gated(dt, x)),
                                  .b = at::zeros_like(dt).detach(),
                                  .g = dt * call.at("A")});
  out["o"] = out["o"] + call.at("D").unsqueeze(-1) * x;
  return out;
}

Tensors delta(const Call& call) {
  const Tensor& beta = call.at("beta");
  return recurrence(call, {.q = call.at("q"),
                           .k = one_step(call.at("k")),
                           .w = one_step(gated(beta, call.at("v"))),
                           .b = beta,
                           .g = call.find("g").value_or(no_gate(call))});
}

/// The erase reads the undecayed state: e^g (I - b k p^T) with b = beta e^-g is e^g I - beta k p^T. The large
/// b meets the decay of its own token again before it meets anything else, so gates of -20 keep their digits.
Tensors comba(const Call& call) {
  const Tensor &beta = call.at("beta"), &g = call.at("g");
  return recurrence(call, {.q = call.at("q"),
                           .k = one_step(call.at("k")),
                           .w = one_step(gated(beta, call.at("v"))),
                           .b = beta * g.neg().exp(),
                           .g = g,
                           .erase_read = call.at("p")});
}

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
  const Tensor positions = at::arange(q.size(1), at::kLong).expand({q.size(0), q.size(1)});
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
        {"linear", linear, {"initial_state"}},
        {"mamba2", mamba2, {"dt", "A", "D", "initial_state"}},
        {"delta", delta, {"beta", "initial_state"}},
        {"gdn", delta, {"beta", "g", "initial_state"}},
        {"comba", comba, {"beta", "g", "initial_state"}},
        {"prism", prism, {"b", "g", "initial_state"}},
        {"prism_delta", prism_delta, {"beta", "g", "initial_state"}},
        {"prism_refine", refine},
        {"softmax", softmax},
        {"sasrec_block", sasrec},
    };
    for (const auto& part : {vector_gate_mixers(), fast_weight_mixers()})
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
