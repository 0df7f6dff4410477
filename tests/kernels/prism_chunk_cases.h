#pragma once
// One list of cases for every test of prism_chunk; a new fault becomes a new line here.
#include <string>
#include <vector>

#include "kernels/numbers.h"
#include "prism/kernels/prism_chunk.h"

namespace prism::kernels::testing {

enum class Gates { kZero, kWeak, kMixed, kStrong, kClosed };  ///< 0; -1e-4..; 0..-20; -20; -100 and -inf
enum class Keys { kRandom, kRepeated };

struct Case {
  std::string name;
  std::vector<int64_t> lengths = {67};
  int64_t L = 1, Hk = 2, H = 2, K = 16, V = 16, chunk = 0;
  Gates gates = Gates::kWeak;
  Keys keys = Keys::kRandom;
  double b = -1;  ///< -1: uniform in [0, 1]
  bool erase_read = false, initial = true, strided = false;
};

inline const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {.name = "one token", .lengths = {1}},
      {.name = "odd tail", .lengths = {67}},
      {.name = "rank 2", .L = 2},
      {.name = "rank 3", .lengths = {35}, .L = 3},
      {.name = "wide", .lengths = {80}, .L = 2, .K = 128, .V = 128, .gates = Gates::kMixed},
      {.name = "K < V, odd", .lengths = {40}, .L = 2, .K = 5, .V = 37},
      {.name = "K > V, odd", .lengths = {40}, .L = 2, .K = 33, .V = 3},
      {.name = "K = V = 1", .lengths = {20}, .K = 1, .V = 1},
      {.name = "packed with empty", .lengths = {0, 1, 64, 0, 30, 1, 0}, .L = 2, .gates = Gates::kMixed},
      {.name = "no tokens", .lengths = {0, 0}},
      {.name = "grouped heads", .lengths = {33, 5}, .L = 2, .Hk = 2, .H = 6, .gates = Gates::kMixed},
      {.name = "one key head", .lengths = {33}, .Hk = 1, .H = 4, .erase_read = true},
      {.name = "erase read", .lengths = {50}, .L = 2, .gates = Gates::kMixed, .erase_read = true},
      {.name = "zeros at first", .lengths = {50, 3}, .initial = false},
      {.name = "strided", .lengths = {20, 21}, .L = 2, .K = 13, .V = 7, .erase_read = true, .strided = true},
      {.name = "no gate", .gates = Gates::kZero},
      {.name = "gates to -20", .gates = Gates::kMixed},
      {.name = "gates at -20", .L = 2, .gates = Gates::kStrong},
      {.name = "gates closed", .L = 2, .gates = Gates::kClosed},
      {.name = "identical keys", .keys = Keys::kRepeated},
      {.name = "identical keys, b = 1", .L = 2, .gates = Gates::kZero, .keys = Keys::kRepeated, .b = 1},
      {.name = "identical keys, b = 2", .gates = Gates::kZero, .keys = Keys::kRepeated, .b = 2},
      {.name = "b = 0", .L = 2, .b = 0},
      {.name = "b = 2", .L = 2, .gates = Gates::kMixed, .b = 2},
      {.name = "long chunk", .lengths = {150}, .L = 2, .chunk = 70, .gates = Gates::kMixed},
      {.name = "small heads", .lengths = {50, 50}, .L = 2, .K = 32, .V = 32},
  };
  return list;
}

/// The inputs of a case in one dtype. Every random number is drawn in the same order whatever the dtype.
template <class Storage>
struct Problem {
  using Real = RealOf<Storage>;
  explicit Problem(const Case& c);

  PrismChunkShape shape;
  std::vector<int64_t> offsets;
  Tensor<Storage> q, k, w, erase_read, d_o;
  Tensor<Real> b, g;
  std::vector<Real> initial_state, d_final;

  PrismChunkInputs inputs() const {
    return {q.as_view(),
            k.as_view(),
            w.as_view(),
            b.as_view(),
            g.as_view(),
            erase_read.as_view(),
            initial_state.empty() ? nullptr : initial_state.data()};
  }
  int64_t state_count() const {
    return shape.sequences.count * shape.heads * shape.key_width * shape.value_width;
  }
};

template <class Storage>
Problem<Storage>::Problem(const Case& c) : offsets{0} {
  for (const int64_t length : c.lengths) offsets.push_back(offsets.back() + length);
  const int64_t N = offsets.back();
  shape = {.dtype = kScalarOf<Storage>,
           .sequences = {static_cast<int64_t>(c.lengths.size()), offsets.data()},
           .steps = c.L,
           .key_heads = c.Hk,
           .heads = c.H,
           .key_width = c.K,
           .value_width = c.V,
           .scale = 1 / std::sqrt(double(c.K)),
           .chunk = c.chunk};
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const auto draw = [&](auto...) { return normal(random); };
  const auto unit = [&](Tensor<Storage>& x) {  // rows of length one, also after rounding
    x.fill([&](auto...) { return normal(random); });
    for (int64_t t = 0; t < x.sizes[0]; ++t)
      for (int64_t l = 0; l < x.sizes[1]; ++l)
        for (int64_t h = 0; h < x.sizes[2]; ++h) {
          double norm = 0;
          for (int64_t i = 0; i < c.K; ++i) norm += x.get(t, l, h, i) * x.get(t, l, h, i);
          for (int64_t i = 0; i < c.K; ++i)
            x.at(t, l, h, i) = c.keys == Keys::kRepeated && t > 0
                                   ? x.at(0, l, h, i)
                                   : stored<Storage>(x.get(t, l, h, i) / std::sqrt(1.01 * norm));
        }
  };
  q = Tensor<Storage>(N, 1, c.Hk, c.K, c.strided);
  q.fill(draw);
  k = Tensor<Storage>(N, c.L, c.Hk, c.K, c.strided);
  unit(k);
  w = Tensor<Storage>(N, c.L, c.H, c.V, c.strided);
  w.fill(draw);
  d_o = Tensor<Storage>(N, 1, c.H, c.V, c.strided);
  d_o.fill(draw);
  b = Tensor<Real>(N, 1, c.H, 1, c.strided);
  b.fill([&](auto...) { return c.b < 0 ? uniform(random) : c.b; });
  g = Tensor<Real>(N, 1, c.H, 1, c.strided);
  g.fill([&](int64_t t, auto...) {
    const double mixed[] = {0, -1e-4, -1, -20, -uniform(random)};
    switch (c.gates) {
      case Gates::kZero:
        return 0.0;
      case Gates::kWeak:
        return -0.3 * uniform(random);
      case Gates::kMixed:
        return mixed[random() % 5];
      case Gates::kStrong:
        return -20.0;
      case Gates::kClosed:
        break;
    }
    return t % 3 == 0 ? -0.1 : t % 3 == 1 ? -100.0 : -std::numeric_limits<double>::infinity();
  });
  if (c.erase_read) {
    erase_read = Tensor<Storage>(N, 1, c.Hk, c.K, c.strided);
    unit(erase_read);
  }
  for (int64_t i = 0; i < state_count(); ++i) {
    if (c.initial) initial_state.push_back(static_cast<Real>(normal(random)));
    d_final.push_back(static_cast<Real>(normal(random)));
  }
}

}  // namespace prism::kernels::testing
