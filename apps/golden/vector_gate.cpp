// The golden files' operations with a gate a channel, in terms of vector_gate. Symbols as in the files'
// README.
#include "prism/ops/vector_gate.h"

#include <ATen/ATen.h>

#include "golden.h"
#include "prism/ops/precondition.h"

namespace prism::golden {
namespace {

using at::Tensor;

/// vector_gate with the file's state, packing and scale.
Tensors gate_recurrence(const Call& call, VectorGateArgs args) {
  args.initial_state = call.find("initial_state");
  args.cu_seqlens = call.find("cu_seqlens");
  args.scale = call.number("scale");
  args.return_final_state = true;
  const VectorGateResult result = vector_gate(args);
  return {{"o", result.o}, {"final_state", result.final_state}};
}

/// A gated write in the type of the activations.
Tensor gated(const Tensor& gate, const Tensor& value) {
  return (gate.unsqueeze(-1) * value).to(value.scalar_type());
}

Tensors gla(const Call& call) {
  return gate_recurrence(call, {.q = call.at("q"), .k = call.at("k"), .w = call.at("v"), .g = call.at("gk")});
}

Tensors kda(const Call& call) {
  const Tensor& beta = call.at("beta");
  return gate_recurrence(
      call,
      {.q = call.at("q"), .k = call.at("k"), .w = gated(beta, call.at("v")), .g = call.at("g"), .b = beta});
}

/// The write key is P k; what k reads is erased.
Tensors pkda(const Call& call) {
  const Tensor &beta = call.at("beta"), &k = call.at("k");
  const PreconditionResult key =
      precondition(k, call.at("beta_atk"), call.at("g_atk"), call.at("log_atk_scale"), Packing::rows(),
                   call.find("initial_A"), call.number("squash_x"), call.number("eps"));
  Tensors out = gate_recurrence(call, {.q = call.at("q"),
                                       .k = key.write_key,
                                       .w = gated(beta, call.at("v")),
                                       .g = call.at("g"),
                                       .b = beta,
                                       .erase_read = k});
  out["final_A"] = key.final_a;
  return out;
}

Tensors rwkv7(const Call& call) {
  const Tensor& kk = call.at("kk");
  VectorGateArgs args{.q = call.at("r"), .k = call.at("k"), .w = call.at("v"), .g = call.at("w")};
  args.erase_read = kk;
  args.erase_key = kk * call.at("a");
  args.erase_undecayed = true;
  return gate_recurrence(call, args);
}

/// Slots of keys, read along the slots; softmax between the slots in the type of gates; slots of values.
Tensors gsa(const Call& call) {
  const Tensor &s = call.at("s"), &g = call.at("g");
  const auto state = [&](const char* name, bool transposed) {
    const auto given = call.find(name);
    return given && transposed ? std::optional(given->transpose(-2, -1)) : given;
  };
  VectorGateArgs keys{.q = call.at("q"), .k = s, .w = call.at("k"), .g = g};
  keys.initial_state = state("initial_state_k", true);
  keys.scale = call.number("scale");
  keys.read_values = true;
  keys.return_final_state = true;
  const VectorGateResult slots = vector_gate(keys);
  VectorGateArgs values{.q = at::softmax(slots.o.to(g.scalar_type()), -1).to(s.scalar_type()),
                        .k = s,
                        .w = call.at("v"),
                        .g = g};
  values.initial_state = state("initial_state_v", false);
  values.scale = 1.0;
  values.return_final_state = true;
  const VectorGateResult result = vector_gate(values);
  return {{"o", result.o},
          {"final_state_k", slots.final_state.transpose(-2, -1)},
          {"final_state_v", result.final_state}};
}

}  // namespace

std::vector<Mixer> vector_gate_mixers() {
  return {
      {"gla", gla, {"gk", "initial_state"}},
      {"kda", kda, {"beta", "g", "initial_state"}},
      {"pkda", pkda, {"beta", "g", "beta_atk", "g_atk", "log_atk_scale", "initial_state", "initial_A"}},
      {"rwkv7", rwkv7, {"w", "initial_state"}},
      {"gsa", gsa, {"g", "initial_state_k", "initial_state_v"}},
  };
}

}  // namespace prism::golden
