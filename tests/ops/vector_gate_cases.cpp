#include "ops/vector_gate_cases.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numeric>
#include <stdexcept>

namespace prism::test {

using at::Tensor;

const std::vector<GateCase>& gate_cases() {
  static const std::vector<GateCase> cases = {
      {.name = "one token", .T = 1},
      {.name = "one token, erased", .form = Form::kStrength, .T = 1, .initial_state = false},
      {.name = "plain, odd length", .T = 67},
      {.name = "plain, gates from 0 to -20", .T = 71, .gates = Gates::kMixed},
      {.name = "plain, grouped", .T = 35, .H = 6, .Hk = 2, .K = 17, .V = 33, .initial_state = false},
      {.name = "strength, longer than two chunks",
       .form = Form::kStrength,
       .B = 1,
       .T = 133,
       .H = 1,
       .Hk = 1},
      {.name = "strength, no gate", .form = Form::kStrength, .T = 41, .gates = Gates::kZero},
      {.name = "strength, gates of -20", .form = Form::kStrength, .T = 41, .gates = Gates::kStrong},
      {.name = "strength, gates from 0 to -20", .form = Form::kStrength, .T = 71, .gates = Gates::kMixed},
      {.name = "strength, identical keys, b 2",
       .form = Form::kStrength,
       .T = 71,
       .gates = Gates::kZero,
       .keys = Keys::kIdentical,
       .erase = Erase::kTwo},
      {.name = "strength, everything extreme",
       .form = Form::kStrength,
       .T = 71,
       .gates = Gates::kMixed,
       .keys = Keys::kIdentical,
       .erase = Erase::kMixed},
      {.name = "strength, grouped", .form = Form::kStrength, .T = 35, .H = 6, .Hk = 2, .K = 12},
      {.name = "strength, widths of 32", .form = Form::kStrength, .B = 3, .T = 50, .K = 32, .V = 32},
      {.name = "strength, undecayed",
       .form = Form::kStrength,
       .undecayed = true,
       .T = 37,
       .gates = Gates::kMixed},
      {.name = "read, gates from 0 to -20", .form = Form::kRead, .T = 41, .gates = Gates::kMixed},
      {.name = "read, undecayed, grouped", .form = Form::kRead, .undecayed = true, .T = 20, .H = 4, .Hk = 2},
      {.name = "own key, odd widths", .form = Form::kOwnKey, .T = 35, .H = 1, .Hk = 1, .K = 33, .V = 17},
      {.name = "own key, undecayed",
       .form = Form::kOwnKey,
       .undecayed = true,
       .T = 71,
       .gates = Gates::kMixed},
      {.name = "own key, undecayed, widths of 64",
       .form = Form::kOwnKey,
       .undecayed = true,
       .B = 1,
       .T = 40,
       .H = 1,
       .Hk = 1,
       .K = 64,
       .V = 64},
      {.name = "everything given, grouped",
       .form = Form::kFull,
       .T = 37,
       .H = 4,
       .Hk = 2,
       .gates = Gates::kMixed,
       .erase = Erase::kMixed},
      {.name = "everything given, undecayed", .form = Form::kFull, .undecayed = true, .T = 37, .V = 1},
      {.name = "values, gates from 0 to -20", .form = Form::kValues, .T = 71, .gates = Gates::kMixed},
      {.name = "values, grouped", .form = Form::kValues, .T = 35, .H = 4, .Hk = 2, .K = 32, .V = 9},
      {.name = "values, one channel", .form = Form::kValues, .T = 19, .K = 1, .V = 1, .initial_state = false},
      {.name = "keys of 128", .form = Form::kStrength, .B = 1, .T = 20, .H = 1, .Hk = 1, .K = 128, .V = 16},
      {.name = "packed with empty", .gates = Gates::kMixed, .lengths = {0, 1, 64, 0, 130, 3, 0}},
      {.name = "packed, erased", .form = Form::kStrength, .H = 4, .Hk = 2, .lengths = {33, 0, 7, 1}},
      {.name = "packed, own key", .form = Form::kFull, .undecayed = true, .lengths = {5, 17, 1, 1, 40}},
      {.name = "packed, values", .form = Form::kValues, .lengths = {29, 0, 2}, .initial_state = false},
  };
  return cases;
}

const GateCase& gate_case(const std::string& name) {
  for (const GateCase& c : gate_cases())
    if (c.name == name) return c;
  throw std::out_of_range("no case is called " + name);
}

GateTensors make_gate_tensors(const GateCase& c) {
  // prism_chunk's cases draw the keys, strengths and gates of every kind; key 0 writes, keys 1 and 2 read and
  // erase.
  const ChunkTensors x = make_tensors(ChunkCase{.name = "",
                                                .B = c.B,
                                                .T = c.T,
                                                .L = 3,
                                                .H = c.H,
                                                .Hk = c.Hk,
                                                .K = c.K,
                                                .V = c.V,
                                                .keys = c.keys,
                                                .erase = c.erase,
                                                .lengths = c.lengths,
                                                .initial_state = c.initial_state});
  const ChunkTensors gates = make_tensors(ChunkCase{.name = "",
                                                    .B = c.B,
                                                    .T = c.T,
                                                    .H = c.H * c.K,
                                                    .Hk = 1,
                                                    .K = 1,
                                                    .V = 1,
                                                    .gates = c.gates,
                                                    .lengths = c.lengths});
  const bool values = c.form == Form::kValues;
  GateTensors y;
  y.q = values ? x.w.select(2, 2).narrow(2, 0, c.Hk).clone() : x.q;
  y.k = x.k.select(2, 0).clone();
  y.w = x.w.select(2, 0).clone();
  y.g = gates.g.unflatten(2, {c.H, c.K}).clone();
  if (c.form == Form::kStrength || c.form == Form::kRead || c.form == Form::kFull) y.b = x.b;
  if (c.form == Form::kRead || c.form == Form::kOwnKey || c.form == Form::kFull)
    y.erase_read = x.k.select(2, 1).clone();
  if (c.form == Form::kOwnKey || c.form == Form::kFull)  // near the read key, or the state could grow
    y.erase_key = (y.erase_read * 0.75).to(at::kBFloat16).to(at::kDouble) + x.k.select(2, 2) * 0.125;
  y.initial_state = x.initial_state;
  y.cu_seqlens = x.cu_seqlens;
  y.up_o = values ? x.k.select(2, 1).repeat_interleave(c.H / c.Hk, 2) : x.up_o;
  y.up_final_state = x.up_final_state;
  y.undecayed = c.undecayed;
  y.read_values = values;
  return y;
}

VectorGateArgs GateTensors::args() const {
  VectorGateArgs a{.q = q, .k = k, .w = w, .g = g};
  const auto given = [](const Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; };
  a.b = given(b), a.erase_read = given(erase_read), a.erase_key = given(erase_key);
  a.initial_state = given(initial_state), a.cu_seqlens = given(cu_seqlens);
  a.erase_undecayed = undecayed, a.read_values = read_values;
  a.return_final_state = true;
  return a;
}

GateTensors GateTensors::by_token(const std::function<Tensor(const Tensor&)>& f) const {
  GateTensors y = *this;
  for (Tensor* x : {&y.q, &y.k, &y.w, &y.g, &y.b, &y.erase_read, &y.erase_key, &y.up_o})
    if (x->defined()) *x = f(*x);
  return y;
}

GateTensors GateTensors::to(at::ScalarType type) const {
  const at::ScalarType gates = type == at::kDouble ? at::kDouble : at::kFloat;
  GateTensors y = *this;
  const auto cast = [](Tensor& x, at::ScalarType t) { x = x.defined() ? x.detach().to(t, false, true) : x; };
  for (Tensor* x : {&y.q, &y.k, &y.w, &y.erase_read, &y.erase_key, &y.up_o}) cast(*x, type);
  for (Tensor* x : {&y.g, &y.b, &y.initial_state, &y.up_final_state}) cast(*x, gates);
  return y;
}

std::vector<std::pair<std::string, Tensor>> GateTensors::leaves() const {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& [name, x] :
       {std::pair{"q", &q}, std::pair{"k", &k}, std::pair{"w", &w}, std::pair{"g", &g}, std::pair{"b", &b},
        std::pair{"erase_read", &erase_read}, std::pair{"erase_key", &erase_key},
        std::pair{"initial_state", &initial_state}})
    if (x->defined()) all.emplace_back(name, *x);
  return all;
}

Named outputs_and_gradients(const GateTensors& tensors, const GateFunction& function) {
  const auto leaves = tensors.leaves();
  std::vector<Tensor> inputs;
  for (const auto& [name, leaf] : leaves) inputs.push_back(leaf.requires_grad_());
  const VectorGateResult result = function(tensors.args());
  const auto gradients = torch::autograd::grad({result.o, result.final_state}, inputs,
                                               {tensors.up_o, tensors.up_final_state}, false, false, true);
  Named named = {{"o", result.o.detach()}, {"final_state", result.final_state.detach()}};
  for (size_t i = 0; i < inputs.size(); ++i) named.emplace_back("d_" + leaves[i].first, gradients[i]);
  for (const auto& [name, leaf] : leaves) leaf.requires_grad_(false);
  return named;
}

GateFunction gate_with(Implementation implementation, int64_t chunk) {
  return [=](VectorGateArgs args) {
    args.implementation = implementation;
    args.chunk = chunk;
    return vector_gate(args);
  };
}

namespace {

/// One sequence: S [H,K,V] through the tokens begin..end of a row.
std::pair<Tensor, Tensor> loop_sequence(const VectorGateArgs& a, int64_t row, int64_t begin, int64_t end,
                                        Tensor S) {
  const int64_t R = a.w.size(2) / a.k.size(2);
  const auto heads = [&](const Tensor& x, int64_t t) { return x[row][t].repeat_interleave(R, 0); };
  const double scale = a.scale.value_or(1 / std::sqrt(double(a.q.size(3))));
  std::vector<Tensor> o;
  for (int64_t t = begin; t < end; ++t) {
    const Tensor k = heads(a.k, t), decayed = a.g[row][t].exp().unsqueeze(-1) * S;
    Tensor next = decayed + k.unsqueeze(-1) * a.w[row][t].unsqueeze(-2);
    if (a.b || a.erase_read || a.erase_key) {
      const Tensor p = a.erase_read ? heads(*a.erase_read, t) : k,
                   e = a.erase_key ? heads(*a.erase_key, t) : k;
      Tensor u = at::matmul(p.unsqueeze(1), a.erase_undecayed ? S : decayed);  // [H,1,V]
      if (a.b) u = u * (*a.b)[row][t].view({-1, 1, 1});
      next = next - e.unsqueeze(-1) * u;
    }
    S = next;
    const Tensor q = heads(a.q, t);
    o.push_back(scale * (a.read_values ? at::matmul(S, q.unsqueeze(-1)).squeeze(-1)
                                       : at::matmul(q.unsqueeze(1), S).squeeze(1)));
  }
  return {
      o.empty() ? a.w.new_zeros({0, a.w.size(2), a.read_values ? a.k.size(3) : a.w.size(3)}) : at::stack(o),
      S};
}

}  // namespace

VectorGateResult gate_loop(const VectorGateArgs& a) {
  std::vector<std::array<int64_t, 3>> sequences;  // row, begin, end
  if (a.cu_seqlens) {
    const auto offsets = a.cu_seqlens->accessor<int64_t, 1>();
    for (int64_t n = 1; n < offsets.size(0); ++n) sequences.push_back({0, offsets[n - 1], offsets[n]});
  } else {
    for (int64_t n = 0; n < a.q.size(0); ++n) sequences.push_back({n, 0, a.q.size(1)});
  }
  const Tensor zeros = a.w.new_zeros({a.w.size(2), a.k.size(3), a.w.size(3)});
  std::vector<Tensor> o, states;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const auto [row, begin, end] = sequences[n];
    auto [o_n, S] = loop_sequence(a, row, begin, end, a.initial_state ? (*a.initial_state)[n] : zeros);
    o.push_back(o_n);
    states.push_back(S);
  }
  return {a.cu_seqlens ? at::cat(o).unsqueeze(0) : at::stack(o), at::stack(states)};
}

}  // namespace prism::test
