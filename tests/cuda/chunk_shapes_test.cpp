// prism_chunk at the shapes of design page kernels.md, on some of the heads: within the table of tolerances
// of the fp64 operation, and at most 1.5 times as far from it as the same chunkwise form composed of bf16
// products.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "cuda/device.h"

namespace prism::test {
namespace {

using at::Tensor;

using gpu::Shape;

/// Results of a key head and its value heads.
Named one_head(const Named& all, int64_t key_head) {
  const gpu::Problem part = gpu::one_head({.q = all[2].second,
                                           .k = all[3].second,
                                           .w = all[4].second,
                                           .b = all[5].second,
                                           .g = all[6].second,
                                           .initial_state = all[7].second,
                                           .cu_seqlens = {},
                                           .d_o = all[0].second,
                                           .d_final_state = all[1].second},
                                          key_head);
  return {{"o", part.d_o}, {"final_state", part.d_final_state},
          {"d_q", part.q}, {"d_k", part.k},
          {"d_w", part.w}, {"d_b", part.b},
          {"d_g", part.g}, {"d_initial_state", part.initial_state}};
}

/// The chunkwise form from products of bf16 operands with bf16 results, everything else in fp32, states
/// carried in fp32; its gradients by automatic differentiation. Rows of equal length that are multiples of
/// the chunk; one key head.
PrismChunkResult bf16_products(const PrismChunkArgs& a) {
  constexpr int64_t C = 64;
  const int64_t B = a.initial_state->size(0), T = a.q.size(0) * a.q.size(1) / B, L = a.k.size(2),
                H = a.w.size(3), K = a.q.size(3), V = a.w.size(4), Z = T / C;
  const auto mm = [](const Tensor& x, const Tensor& y) {
    return at::matmul(x.to(at::kBFloat16), y.to(at::kBFloat16)).to(at::kFloat);
  };
  const auto t = [](const Tensor& x) { return x.transpose(-2, -1); };
  // [B,H,Z,C,...]
  const auto chunks = [&](const Tensor& x) {
    return x.reshape({B, Z, C, x.size(-2), x.size(-1)}).permute({0, 3, 1, 2, 4}).to(at::kFloat);
  };
  const Tensor q = chunks(a.q) * a.scale.value_or(1 / std::sqrt(double(K))),
               G = chunks(a.g.unsqueeze(-1)).cumsum(3), b = chunks(a.b.unsqueeze(-1)), gamma = G.exp();
  std::vector<Tensor> k, w;
  for (int64_t l = 0; l < L; ++l) {
    k.push_back(chunks(a.k.select(2, l)));
    w.push_back(chunks(a.w.select(2, l)));
  }
  const Tensor lower = at::ones({C, C}, q.options()).tril(), strict = lower.tril(-1),
               decay = ((G - t(G)) * lower).exp() * lower;
  const Tensor A = b * (mm(k[0], t(k[0])) * decay * strict), identity = at::eye(C, q.options());
  const Tensor inverse =
      at::linalg_solve_triangular(A + identity, identity.expand_as(A), /*upper=*/false, /*left=*/true, true);
  Tensor rest = w[0], written = at::zeros_like(w[0]);
  for (int64_t l = 1; l < L; ++l) rest = rest - b * mm(mm(k[0], t(k[l])) * decay * strict, w[l]);
  for (int64_t l = 1; l < L; ++l) written = written + mm(mm(q, t(k[l])) * decay, w[l]);
  const Tensor X = mm(inverse, rest), Y = mm(inverse, b * gamma * k[0]), end = G.narrow(3, C - 1, 1),
               kept = end.exp(), to_end = (end - G).exp(), P = mm(q, t(k[0])) * decay;
  Tensor S = *a.initial_state;
  Tensors o;
  for (int64_t z = 0; z < Z; ++z) {
    const auto at_z = [&](const Tensor& x) { return x.select(2, z); };
    const Tensor U = at_z(X) - mm(at_z(Y), S);
    o.push_back(at_z(gamma) * mm(at_z(q), S) + mm(at_z(P), U) + at_z(written));
    S = at_z(kept) * S + mm(t(at_z(to_end * k[0])), U);
    for (int64_t l = 1; l < L; ++l) S = S + mm(t(at_z(to_end * k[l])), at_z(w[l]));
  }
  const Tensor out = at::stack(o, 2).reshape({B, H, T, V}).transpose(1, 2);
  return {out.reshape({a.q.size(0), a.q.size(1), H, V}).to(at::kBFloat16), S};
}

class CudaShapes : public Cuda {};

void expect_accurate(const Shape& s, int64_t L) {
  const gpu::Problem problem = gpu::draw(s, L, /*states=*/true);
  const Named all = outputs_and_gradients(as_case(problem), with(Implementation::kAuto));
  std::string report = fmt::format("{:<20} L {}:", s.name, L);
  std::vector<double> worst(all.size(), 0), composed_worst(all.size(), 0);
  for (const int64_t key_head : {int64_t{0}, s.Hk - 1}) {
    const ChunkTensors narrow = as_case(gpu::one_head(problem, key_head));
    const Named expected = outputs_and_gradients(narrow.to(at::kDouble), with(Implementation::kComposed)),
                composed = outputs_and_gradients(narrow.to(at::kBFloat16), bf16_products),
                found = one_head(all, key_head);
    for (size_t i = 0; i < all.size(); ++i) {
      const double error = relative_error(found[i].second, expected[i].second),
                   of_composed = relative_error(composed[i].second, expected[i].second);
      const std::string note = fmt::format("{} L {} head {} {}", s.name, L, key_head, all[i].first);
      EXPECT_LE(error, tolerance(all[i].first, at::kBFloat16)) << note;
      EXPECT_LE(error, 1.5 * of_composed) << note;
      worst[i] = std::max(worst[i], error);
      composed_worst[i] = std::max(composed_worst[i], of_composed);
    }
  }
  for (size_t i = 0; i < all.size(); ++i)
    report += fmt::format(" {} {:.4f} ({:.4f})", all[i].first, worst[i], composed_worst[i]);
  fmt::print("{}\n", report);
}

// Printed: the error of each tensor, in brackets that of the composed bf16 form.
TEST_F(CudaShapes, WithOneWrite) {
  for (const Shape& s : gpu::shapes()) expect_accurate(s, 1);
}

TEST_F(CudaShapes, WithTwoWrites) {
  for (const Shape& s : gpu::shapes()) expect_accurate(s, 2);
}

}  // namespace
}  // namespace prism::test
