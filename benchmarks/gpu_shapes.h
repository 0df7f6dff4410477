#pragma once
// The shapes of design page kernels.md, for the GPU benchmark and the GPU tests.
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "prism/ops/packing.h"
#include "prism/ops/prism_chunk.h"

namespace prism::gpu {

/// Milliseconds that issue 4 asks for: inference forward and backward, for L = 1 and 2.
struct Bars {
  double forward[2], backward[2];
};

struct Shape {
  std::string name;
  int64_t B, T, Hk, H, width;
  Bars bars;
  std::vector<int64_t> lengths = {};
};

inline const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"1x32768 64/64", 1, 32768, 64, 64, 128, {{1.3, 2.2}, {4.5, 7.0}}},
      {"1x32768 16/64", 1, 32768, 16, 64, 128, {{1.3, 2.2}, {4.5, 7.0}}},
      {"varlen 8192x4 64/64", 1, 32768, 64, 64, 128, {{1.1, 1.9}, {3.3, 5.5}}, {8192, 8192, 8192, 8192}},
      {"1x16384 8/8", 1, 16384, 8, 8, 128, {{0.25, 0.30}, {0.60, 0.85}}},
      {"8x2048 8/8", 8, 2048, 8, 8, 128, {{0.10, 0.17}, {0.40, 0.62}}},
      {"32x1024 6/6", 32, 1024, 6, 6, 128, {{0.105, 0.18}, {0.40, 0.65}}},
      {"8x4096 32/32 d64", 8, 4096, 32, 32, 64, {{0.45, 0.70}, {1.2, 1.9}}},
  };
  return all;
}

/// Inputs of prism_chunk and upstream gradients.
struct Problem {
  at::Tensor q, k, w, b, g, initial_state, cu_seqlens, d_o, d_final_state;

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all = {q, k, w, b, g};
    if (initial_state.defined()) all.push_back(initial_state);
    return all;
  }
  PrismChunkArgs args() const {
    PrismChunkArgs a{.q = q, .k = k, .w = w, .b = b, .g = g};
    if (initial_state.defined()) a.initial_state = initial_state;
    if (cu_seqlens.defined()) a.cu_seqlens = cu_seqlens;
    return a;
  }
};

/// bf16 operands, unit keys and queries, b in [0, 1], log gates in (-0.2, 0]; states of either kind on
/// request.
inline Problem draw(const Shape& s, int64_t L, bool states) {
  const auto options = at::TensorOptions(at::kCUDA);
  at::manual_seed(31);
  const auto unit = [&](at::IntArrayRef sizes) {
    const at::Tensor x = at::randn(sizes, options);
    return x.div_(x.norm(2, -1, true)).mul_(0.996).to(at::kBFloat16);
  };
  const int64_t N = s.lengths.empty() ? s.B : static_cast<int64_t>(s.lengths.size());
  Problem p;
  p.q = unit({s.B, s.T, s.Hk, s.width});
  p.k = unit({s.B, s.T, L, s.Hk, s.width});
  p.w = at::randn({s.B, s.T, L, s.H, s.width}, options.dtype(at::kBFloat16));
  p.b = at::rand({s.B, s.T, s.H}, options);
  p.g = at::rand({s.B, s.T, s.H}, options).mul_(-0.2);
  if (!s.lengths.empty()) p.cu_seqlens = Packing::packed(s.lengths).cu_seqlens().to(at::kCUDA);
  p.d_o = at::randn({s.B, s.T, s.H, s.width}, options.dtype(at::kBFloat16));
  if (states) {
    p.initial_state = at::randn({N, s.H, s.width, s.width}, options);
    p.d_final_state = at::randn({N, s.H, s.width, s.width}, options);
  }
  return p;
}

/// Key head `key_head` and the value heads that read it; `x` may as well hold the gradients of a problem.
inline Problem one_head(const Problem& x, int64_t key_head) {
  const int64_t group = x.w.size(3) / x.q.size(2);
  const auto key = [&](const at::Tensor& t) { return t.narrow(-2, key_head, 1); };
  const auto value = [&](const at::Tensor& t, int64_t dim) {
    return t.defined() ? t.narrow(dim, key_head * group, group) : t;
  };
  return {.q = key(x.q),
          .k = key(x.k),
          .w = value(x.w, -2),
          .b = value(x.b, -1),
          .g = value(x.g, -1),
          .initial_state = value(x.initial_state, 1),
          .cu_seqlens = x.cu_seqlens,
          .d_o = value(x.d_o, -2),
          .d_final_state = value(x.d_final_state, 1)};
}

}  // namespace prism::gpu
