#include "fast_weights_check.h"

#include <string>

#include "arguments.h"

namespace prism {
namespace {

using at::Tensor;

void check_tokens(ArgumentCheck& check, const FastWeightArgs& a) {
  for (const auto& [name, x] : {std::pair{"q", &a.q}, std::pair{"k", &a.k}, std::pair{"v", &a.v}}) {
    check.tensor(name, *x, 4, "[B,T,H,channels]");
    check.dtype(name, *x, a.q.scalar_type(), "as q");
    check.size(name, *x, 0, "rows", a.q.size(0), "q has");
    check.size(name, *x, 1, "tokens", a.q.size(1), "q has");
    check.size(name, *x, 2, "heads", a.q.size(2), "q has");
  }
  check.size("k", a.k, 3, "channels", a.q.size(3), "q has");
}

void check_gate(ArgumentCheck& check, const char* name, const std::optional<Tensor>& gate, bool by_channel,
                const FastWeightArgs& a) {
  if (!gate) return;
  check.tensor(name, *gate, by_channel ? 4 : 3, by_channel ? "[B,T,H,V]" : "[B,T,H]");
  check.dtype(name, *gate, gate_type(a.q.scalar_type()), "beside q of its type");
  for (int64_t dim = 0; dim < 3; ++dim)
    check.size(name, *gate, dim, dim == 0 ? "rows" : dim == 1 ? "tokens" : "heads", a.q.size(dim), "q has");
  if (by_channel) check.size(name, *gate, 3, "channels", a.v.size(3), "v has");
}

void check_rule(ArgumentCheck& check, const FastWeightArgs& a) {
  const FastRule& rule = a.rule;
  const bool by_channel = rule.retention && rule.retention->dim() == 4;
  check_gate(check, "gradient_weight", rule.gradient_weight, false, a);
  check_gate(check, "momentum", rule.momentum, false, a);
  check_gate(check, "retention", rule.retention, by_channel, a);
  check_gate(check, "step", rule.step, by_channel, a);
  check_gate(check, "delta", rule.delta, false, a);
  const bool huber = a.memory.loss == InnerLoss::kHuberSign || a.memory.loss == InnerLoss::kHuberNorm;
  if (huber != rule.delta.has_value())
    check.fail_with("delta goes with the Huber losses, and with them alone");
  if (rule.window < 1) check.fail_with("window is {}, expected at least 1", rule.window);
  if (rule.window > 1 && (huber || !rule.accumulate))
    check.fail_with("a window of {} needs a loss without delta, and weights that accumulate", rule.window);
  if (by_channel && (rule.momentum || rule.window > 1 || rule.newton_schulz || a.state.weights.size() > 1))
    check.fail_with("gates by channel go with a matrix memory without momentum, window and Newton-Schulz");
  if (rule.accumulate == rule.place_step.has_value())
    check.fail_with("place_step goes with weights that do not accumulate, and with them alone");
  if (!rule.accumulate && (rule.momentum || rule.retention || rule.step || rule.newton_schulz))
    check.fail_with("weights that do not accumulate have no momentum, retention, step or Newton-Schulz");
  if (rule.place_step) {
    check.tensor("place_step", *rule.place_step, 1, "[mini_batch]");
    check.size("place_step", *rule.place_step, 0, "entries", a.mini_batch, "the mini-batch has");
  }
}

void check_layers(ArgumentCheck& check, const char* name, const std::vector<Tensor>& layers,
                  const FastWeightArgs& a) {
  const int64_t sequences = a.cu_seqlens ? a.cu_seqlens->size(0) - 1 : a.q.size(0);
  int64_t in = a.k.size(3);
  for (size_t l = 0; l < layers.size(); ++l) {
    check.tensor(name, layers[l], 4, "[N,H,in,out]");
    check.size(name, layers[l], 0, "sequences", sequences, "the tokens have");
    check.size(name, layers[l], 1, "heads", a.q.size(2), "q has");
    check.size(name, layers[l], 2, "rows", in + a.memory.bias, "the layer's input has");
    in = layers[l].size(3);
  }
  if (!layers.empty() && in != a.v.size(3))
    check.fail_with("{} gives {} channels but v has {}", name, in, a.v.size(3));
}

void check_memory(ArgumentCheck& check, const FastWeightArgs& a) {
  const FastMemory& memory = a.memory;
  const size_t layers = a.state.weights.size();
  if (layers < 1 || layers > 2) check.fail_with("{} layers of weights, expected 1 or 2", layers);
  if (!a.state.momentum.empty() && a.state.momentum.size() != layers)
    check.fail_with("momentum of {} layers, weights of {}", a.state.momentum.size(), layers);
  if (!a.state.start.empty() && a.state.start.size() != layers)
    check.fail_with("start of {} layers, weights of {}", a.state.start.size(), layers);
  check_layers(check, "weights", a.state.weights, a);
  check_layers(check, "momentum", a.state.momentum, a);
  check_layers(check, "start", a.state.start, a);
  if (memory.projection != Projection::kNone && layers != 1)
    check.fail_with("a projection needs a matrix memory, not {} layers", layers);
  if (memory.norm_weight.defined() != memory.norm_bias.defined())
    check.fail_with("norm_weight and norm_bias go together");
  if (!memory.norm_weight.defined()) return;
  for (const auto& [name, x] :
       {std::pair{"norm_weight", &memory.norm_weight}, std::pair{"norm_bias", &memory.norm_bias}}) {
    check.tensor(name, *x, 2, "[H,V]");
    check.size(name, *x, 0, "heads", a.q.size(2), "q has");
    check.size(name, *x, 1, "channels", a.v.size(3), "v has");
  }
  check.size("v", a.v, 3, "channels", a.q.size(3), "beside a norm q has");
}

}  // namespace

void check_fast_weight_arguments(const FastWeightArgs& args) {
  ArgumentCheck check("fast_weights");
  if (args.mini_batch < 1) check.fail_with("mini_batch is {}, expected at least 1", args.mini_batch);
  check_tokens(check, args);
  check_rule(check, args);
  check_memory(check, args);
  if (args.cu_seqlens && args.q.size(0) != 1)
    check.fail_with("cu_seqlens goes with one row, not {}", args.q.size(0));
}

}  // namespace prism
