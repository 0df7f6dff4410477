#include "ops/chunk_cases.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace prism::test {

using at::Tensor;

namespace {

/// Tensors this small gain nothing from threads, and threads that wait for each other cost a busy machine
/// minutes. The tests about threads set their own number.
class OneThread : public testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
[[maybe_unused]] const auto* const kOneThread = testing::AddGlobalTestEnvironment(new OneThread);

}  // namespace

const std::vector<ChunkCase>& chunk_cases() {
  static const std::vector<ChunkCase> cases = {
      {.name = "one token", .T = 1},
      {.name = "one token, rank 2", .T = 1, .L = 2, .initial_state = false},
      {.name = "odd length", .T = 67, .L = 2},
      {.name = "longer than two chunks", .B = 1, .T = 133, .L = 2, .H = 1, .Hk = 1},
      {.name = "rank 3", .T = 37, .L = 3},
      {.name = "rank 4, no state", .T = 21, .L = 4, .initial_state = false},
      {.name = "no gate", .T = 41, .gates = Gates::kZero},
      {.name = "tiny gates", .T = 41, .L = 2, .gates = Gates::kTiny},
      {.name = "gates of -1", .T = 41, .L = 2, .gates = Gates::kOne},
      {.name = "gates of -20", .T = 41, .L = 2, .gates = Gates::kStrong},
      {.name = "gates from 0 to -20", .T = 71, .L = 2, .gates = Gates::kMixed},
      {.name = "identical keys", .T = 71, .L = 2, .keys = Keys::kIdentical},
      {.name = "identical keys, b 1",
       .T = 71,
       .L = 2,
       .gates = Gates::kZero,
       .keys = Keys::kIdentical,
       .erase = Erase::kOne},
      {.name = "identical keys, b 2",
       .T = 71,
       .L = 2,
       .gates = Gates::kZero,
       .keys = Keys::kIdentical,
       .erase = Erase::kTwo},
      {.name = "b 0", .T = 41, .L = 2, .erase = Erase::kZero},
      {.name = "b 1", .T = 41, .erase = Erase::kOne},
      {.name = "b 2", .T = 41, .erase = Erase::kTwo},
      {.name = "everything extreme",
       .T = 71,
       .L = 2,
       .gates = Gates::kMixed,
       .keys = Keys::kIdentical,
       .erase = Erase::kMixed},
      {.name = "grouped heads", .T = 35, .L = 2, .H = 6, .Hk = 2},
      {.name = "one key head", .T = 35, .H = 3, .Hk = 1},
      {.name = "widths of 1", .T = 7, .L = 2, .K = 1, .V = 1},
      {.name = "odd widths", .T = 35, .L = 2, .H = 1, .Hk = 1, .K = 17, .V = 33},
      {.name = "wide keys", .B = 1, .T = 35, .L = 1, .H = 1, .Hk = 1, .K = 96, .V = 16},
      {.name = "widths of 32", .B = 3, .T = 50, .L = 2, .K = 32, .V = 32},
      {.name = "widths of 128", .B = 1, .T = 70, .L = 2, .H = 1, .Hk = 1, .K = 128, .V = 128},
      {.name = "erase read", .T = 37, .L = 2, .gates = Gates::kMixed, .erase_read = true},
      {.name = "erase read, grouped", .T = 37, .H = 4, .Hk = 2, .erase_read = true},
      {.name = "packed with empty", .L = 2, .gates = Gates::kMixed, .lengths = {0, 1, 64, 0, 130, 3, 0}},
      {.name = "packed, no state", .L = 1, .lengths = {5, 17, 1, 1, 40}, .initial_state = false},
      {.name = "packed, erase read", .L = 2, .H = 4, .Hk = 2, .lengths = {33, 0, 7}, .erase_read = true},
      {.name = "one packed sequence", .L = 2, .lengths = {29}},
  };
  return cases;
}

const ChunkCase& chunk_case(const std::string& name) {
  for (const ChunkCase& c : chunk_cases())
    if (c.name == name) return c;
  throw std::out_of_range("no case is called " + name);
}

namespace {

Tensor draw_gates(Gates kind, at::IntArrayRef sizes) {
  const Tensor zeros = at::zeros(sizes, at::kDouble);
  switch (kind) {
    case Gates::kZero:
      return zeros;
    case Gates::kTiny:
      return zeros - 1e-4;
    case Gates::kMild:
      return at::rand(sizes, at::kDouble) * -0.2;
    case Gates::kOne:
      return zeros - 1;
    case Gates::kStrong:
      return zeros - 20;
    case Gates::kMixed:
      break;
  }
  const Tensor choices = at::tensor({0.0, -1e-4, -0.05, -1.0, -20.0}, at::kDouble);
  return choices.index_select(0, at::randint(5, {zeros.numel()}, at::kLong)).view(sizes);
}

Tensor draw_erase(Erase kind, at::IntArrayRef sizes) {
  const Tensor zeros = at::zeros(sizes, at::kDouble);
  switch (kind) {
    case Erase::kMild:
      return at::rand(sizes, at::kDouble) * 0.8 + 0.1;
    case Erase::kZero:
      return zeros;
    case Erase::kOne:
      return zeros + 1;
    case Erase::kTwo:
      return zeros + 2;
    case Erase::kMixed:
      break;
  }
  return at::tensor({0.0, 0.5, 1.0, 2.0}, at::kDouble)
      .index_select(0, at::randint(4, {zeros.numel()}, at::kLong))
      .view(sizes);
}

Tensor unit(const Tensor& x) { return x / x.norm(2, -1, true).clamp_min(1e-3); }

/// Rounded so that the norm of a bf16 key is at most 1: b |k|^2 <= 2 has to hold.
Tensor unit_in_bf16(const Tensor& x) { return (unit(x) * 0.996).to(at::kBFloat16).to(at::kDouble); }

Tensor bf16_exact(const Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); }

}  // namespace

ChunkTensors make_tensors(const ChunkCase& c) {
  at::manual_seed(7);
  const int64_t B = c.packed() ? 1 : c.B, N = c.packed() ? int64_t(c.lengths.size()) : c.B;
  const int64_t T = c.packed() ? std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0}) : c.T;
  const auto normal = [](at::IntArrayRef sizes) { return bf16_exact(at::randn(sizes, at::kDouble)); };
  ChunkTensors x;
  x.q = unit_in_bf16(at::randn({B, T, c.Hk, c.K}, at::kDouble));
  x.k = unit_in_bf16(c.keys == Keys::kSpread
                         ? at::randn({B, T, c.L, c.Hk, c.K}, at::kDouble)
                         : at::randn({1, 1, c.L, c.Hk, c.K}, at::kDouble).expand({B, T, c.L, c.Hk, c.K}));
  x.w = normal({B, T, c.L, c.H, c.V});
  x.b = bf16_exact(draw_erase(c.erase, {B, T, c.H}));
  x.g = bf16_exact(draw_gates(c.gates, {B, T, c.H}));
  if (c.erase_read) x.erase_read = unit_in_bf16(at::randn({B, T, c.Hk, c.K}, at::kDouble));
  if (c.initial_state) x.initial_state = normal({N, c.H, c.K, c.V});
  if (c.packed()) x.cu_seqlens = Packing::packed(c.lengths).cu_seqlens();
  x.up_o = normal({B, T, c.H, c.V});
  x.up_final_state = normal({N, c.H, c.K, c.V});
  return x;
}

PrismChunkArgs ChunkTensors::args() const {
  PrismChunkArgs args{.q = q, .k = k, .w = w, .b = b, .g = g};
  if (erase_read.defined()) args.erase_read = erase_read;
  if (initial_state.defined()) args.initial_state = initial_state;
  if (cu_seqlens.defined()) args.cu_seqlens = cu_seqlens;
  args.return_final_state = true;
  return args;
}

ChunkTensors ChunkTensors::to(at::ScalarType type) const {
  const at::ScalarType gates = type == at::kDouble ? at::kDouble : at::kFloat;
  const auto cast = [](const Tensor& x, at::ScalarType t) {
    return x.defined() ? x.detach().to(t, false, true) : x;
  };
  return {cast(q, type),
          cast(k, type),
          cast(w, type),
          cast(b, gates),
          cast(g, gates),
          cast(erase_read, type),
          cast(initial_state, gates),
          cu_seqlens,
          cast(up_o, type),
          cast(up_final_state, gates)};
}

std::vector<std::pair<std::string, Tensor>> ChunkTensors::leaves() const {
  std::vector<std::pair<std::string, Tensor>> all = {{"q", q}, {"k", k}, {"w", w}, {"b", b}, {"g", g}};
  if (erase_read.defined()) all.emplace_back("erase_read", erase_read);
  if (initial_state.defined()) all.emplace_back("initial_state", initial_state);
  return all;
}

Named outputs_and_gradients(const ChunkTensors& tensors, const ChunkFunction& function) {
  for (const auto& [name, leaf] : tensors.leaves()) leaf.requires_grad_();
  const PrismChunkResult result = function(tensors.args());
  std::vector<Tensor> inputs;
  for (const auto& [name, leaf] : tensors.leaves()) inputs.push_back(leaf);
  const auto gradients = torch::autograd::grad({result.o, result.final_state}, inputs,
                                               {tensors.up_o, tensors.up_final_state}, false, false, true);
  Named named = {{"o", result.o.detach()}, {"final_state", result.final_state.detach()}};
  for (size_t i = 0; i < inputs.size(); ++i)
    named.emplace_back("d_" + tensors.leaves()[i].first, gradients[i]);
  for (const auto& [name, leaf] : tensors.leaves()) leaf.requires_grad_(false);
  return named;
}

ChunkFunction with(Implementation implementation, int64_t chunk) {
  return [=](PrismChunkArgs args) {
    args.implementation = implementation;
    args.chunk = chunk;
    return prism_chunk(args);
  };
}

namespace {

/// One sequence: tensors [T,...], state [H,K,V].
std::pair<Tensor, Tensor> loop_sequence(const PrismChunkArgs& a, int64_t row, int64_t begin, int64_t end,
                                        Tensor S) {
  const int64_t H = a.w.size(3), R = H / a.q.size(2);
  const auto heads = [&](const Tensor& x) { return x.repeat_interleave(R, -2); };
  const double scale = a.scale.value_or(1 / std::sqrt(double(a.q.size(3))));
  std::vector<Tensor> o;
  for (int64_t t = begin; t < end; ++t) {
    const Tensor k = heads(a.k[row][t]), w = a.w[row][t];  // [L,H,K], [L,H,V]
    const Tensor e = a.erase_read ? heads((*a.erase_read)[row][t]) : k[0];
    const Tensor b = a.b[row][t].view({-1, 1, 1}), decay = a.g[row][t].exp().view({-1, 1, 1});
    const Tensor read = at::matmul(e.unsqueeze(1), S);  // [H,1,V]
    S = decay * (S - b * k[0].unsqueeze(2) * read) + at::einsum("lhk,lhv->hkv", {k, w});
    o.push_back(scale * at::matmul(heads(a.q[row][t]).unsqueeze(1), S).squeeze(1));
  }
  return {o.empty() ? a.w.new_zeros({0, H, a.w.size(4)}) : at::stack(o), S};
}

}  // namespace

PrismChunkResult token_loop(const PrismChunkArgs& a) {
  std::vector<int64_t> offsets;
  const int64_t T = a.q.size(1);
  if (a.cu_seqlens)
    offsets.assign(a.cu_seqlens->const_data_ptr<int64_t>(),
                   a.cu_seqlens->const_data_ptr<int64_t>() + a.cu_seqlens->numel());
  const int64_t N = a.cu_seqlens ? int64_t(offsets.size()) - 1 : a.q.size(0);
  const Tensor zeros = a.w.new_zeros({a.w.size(3), a.q.size(3), a.w.size(4)});
  std::vector<Tensor> o, states;
  for (int64_t n = 0; n < N; ++n) {
    const auto [begin, end] =
        a.cu_seqlens ? std::pair(offsets[n], offsets[n + 1]) : std::pair<int64_t, int64_t>(0, T);
    auto [o_n, S] =
        loop_sequence(a, a.cu_seqlens ? 0 : n, begin, end, a.initial_state ? (*a.initial_state)[n] : zeros);
    o.push_back(o_n);
    states.push_back(S);
  }
  return {a.cu_seqlens ? at::cat(o).unsqueeze(0) : at::stack(o), at::stack(states)};
}

double relative_error(const Tensor& x, const Tensor& reference) {
  if (!x.isfinite().all().item<bool>()) return std::numeric_limits<double>::infinity();
  const Tensor wide = reference.to(at::kDouble);
  const double floor = 1e-6 * std::sqrt(double(std::max<int64_t>(wide.numel(), 1)));
  return (x.to(at::kDouble) - wide).norm().item<double>() / std::max(wide.norm().item<double>(), floor);
}

double tolerance(const std::string& name, at::ScalarType type) {
  if (type == at::kDouble) return 1e-11;
  if (type == at::kFloat) return 1e-5;
  if (name == "o" || name == "final_state") return 0.005;
  return name == "d_b" || name == "d_g" ? 0.01 : 0.008;
}

void expect_close(const Named& found, const Named& reference, at::ScalarType type, const std::string& note) {
  ASSERT_EQ(found.size(), reference.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const auto& [name, tensor] = found[i];
    ASSERT_TRUE(tensor.defined()) << note << ": " << name;
    ASSERT_EQ(tensor.sizes(), reference[i].second.sizes()) << note << ": " << name;
    EXPECT_LE(relative_error(tensor, reference[i].second), tolerance(name, type)) << note << ": " << name;
  }
}

void expect_same_bits(const Named& a, const Named& b, const std::string& note) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::equal(a[i].second, b[i].second)) << note << ": " << a[i].first;
}

}  // namespace prism::test
