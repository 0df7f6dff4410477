#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "prism/ops/implementation.h"

namespace prism {

/// What the memory minimises, e = M(k) - v: its gradient with respect to M(k).
enum class InnerLoss {
  kSquare,      ///< |e|^2: 2 e
  kHalfSquare,  ///< |e|^2 / 2: e
  kCube,        ///< sum |e|^3: 3 e |e|
  kHuberSign,   ///< e where |e| <= delta, else delta sign(e)
  kHuberNorm,   ///< e where |e| <= delta, else delta e / |e|
};

/// The parameters W that a memory is read with, from the A that its gradients accumulate in.
enum class Projection {
  kNone,         ///< W = A
  kQuarticNorm,  ///< W = A / |A|_4^2, over the whole matrix (Moneta); A must not be 0
  kSoftmax,      ///< W = softmax of A over the K rows (Memora); A = log W
};

/// A memory M: x W, or act(x W1) W2. Its weights [N,H,in,out] are those of each sequence.
struct FastMemory {
  bool bias = false;            ///< the last row of every weight is a bias: in is one more
  bool exact_gelu = true;       ///< act of the two-layer memory: exact GELU, or its tanh form
  at::Tensor norm_weight = {};  ///< [H,V], with norm_bias: M(x) = x + LayerNorm(.) (eps 1e-6), K = V
  at::Tensor norm_bias = {};
  InnerLoss loss = InnerLoss::kSquare;
  Projection projection = Projection::kNone;
};

/// How gradients move the weights, token by token. With grad_i the gradient of token i at the weights at the
/// start of the mini-batch that t is in,
///   S_t = momentum_t S_{t-1} + sum over i = t-window+1..t of gradient_weight_i grad_i
///   A_t = retention_t A_{t-1} - step_t D(S_t)                   accumulate
///   A_t = A_0 - step_t S_t, S restarts with the mini-batch      otherwise (TTT)
/// where D is Newton-Schulz (Muon) or nothing. Gates are fp32 (fp64 with fp64), [B,T,H] unless said.
struct FastRule {
  std::optional<at::Tensor> gradient_weight = {};  ///< absent: 1
  std::optional<at::Tensor> momentum = {};         ///< absent: 0, there is no S (TTT: 1)
  std::optional<at::Tensor> retention = {};        ///< absent: 1. May be [B,T,H,V], a gate a value channel
  std::optional<at::Tensor> step = {};             ///< absent: 1. As retention; not differing in form from it
  std::optional<at::Tensor> place_step = {};       ///< [mini_batch]: the step of each place (TTT)
  std::optional<at::Tensor> delta = {};            ///< of the Huber losses
  int64_t window = 1;
  bool newton_schulz = false, accumulate = true;
};

/// What a sequence carries from token to token; N sequences. Empty vectors and undefined tensors: none yet.
struct FastState {
  std::vector<at::Tensor> weights = {};   ///< A after the last token, one a layer
  std::vector<at::Tensor> momentum = {};  ///< S, as weights
  std::vector<at::Tensor> start = {};     ///< A at the start of the open mini-batch; empty: weights
  /// Last tokens of the window, [N,H,rows,.]: window-1 rows, or fewer as long as there were fewer tokens.
  at::Tensor recent_k = {}, recent_v = {}, recent_weight = {};
};

struct FastWeightArgs {
  at::Tensor q, k, v;  ///< [B,T,H,K], [B,T,H,K], [B,T,H,V]; fp64, fp32 or bf16
  FastMemory memory;
  FastRule rule;
  FastState state;                 ///< weights are required
  std::vector<int64_t> seen = {};  ///< tokens of each sequence before these; empty: 0
  int64_t mini_batch = 16;
  std::optional<at::Tensor> cu_seqlens = {};              ///< int64 [N+1], B = 1: packed sequences
  Implementation implementation = Implementation::kAuto;  ///< fused: TTT-Linear on the CPU
};

struct FastWeightResult {
  at::Tensor o;     ///< [B,T,H,V] in q's type
  FastState state;  ///< after the last token of each sequence; fp32 (fp64 with fp64)
};

/// o_t = M(q_t) with the weights after token t: sequences whose weights learn as they are read, in
/// mini-batches whose gradients are all taken at their start. Exact; through the dual form (products of keys
/// and queries instead of one weight matrix a token) wherever A_t is linear in the gradients, with every
/// weight matrix written out where it is not (Newton-Schulz, projections). Inside a mini-batch no loop over
/// tokens. Composed of ATen operations; differentiable once in every floating tensor. Sources: TTT
/// 2407.04620, Titans 2501.00663, ATLAS 2505.23735, Miras 2504.13173.
FastWeightResult fast_weights(const FastWeightArgs& args);

/// ATLAS's phi(x): x [...,K] -> [..., sum_i K^i], the tensor powers x^(tensor i) / sqrt(i!) for i =
/// 0..degree, so that phi(x) . phi(y) = sum_i (x . y)^i / i!.
at::Tensor polynomial_features(const at::Tensor& x, int64_t degree);

}  // namespace prism
