#pragma once
#include <cstdint>

#include "prism/kernels/types.h"

namespace prism::kernels {

/// TTT-Linear (arXiv 2407.04620) through its dual form. A head's state is W [K+1,K], the last row a bias;
/// with x' = (x, 1), a mini-batch's g_j = lr_j d/dz (1/2)|k_j + LN(z) - v_j|^2 at z = W^T k'_j, W from its
/// start, and place i:
///   W_t = W - place_step_i sum_{j<=t} k'_j g_j^T,   o_t = q_t + LN(W_t^T q'_t),   LN(z) = norm_weight zhat +
///   norm_bias
/// The next mini-batch starts from the last W_t. Every sequence starts a mini-batch.
struct TttLinearShape {
  Scalar dtype = Scalar::kFloat32;  ///< of q, k, v, o; all else is double beside kFloat64 and float otherwise
  Sequences sequences;
  int64_t heads = 0, width = 0, mini_batch = 0;

  int64_t tokens() const { return sequences.count ? sequences.offsets[sequences.count] : 0; }
};

struct TttLinearInputs {
  View q, k, v;                                             ///< [tokens,H,K]
  View lr;                                                  ///< [tokens,H,1]
  const void* place_step = nullptr;                         ///< [mini_batch]
  const void *norm_weight = nullptr, *norm_bias = nullptr;  ///< [H,K]
  const void* weights = nullptr;                            ///< [N,H,K+1,K]
};

/// The states after the last token: W_t; W at the start of the open mini-batch (W_t if none is open); the sum
/// of its k'_j g_j^T (0). Contiguous, every element is written; nulls are left out.
struct TttLinearStates {
  void *weights = nullptr, *start = nullptr, *sum = nullptr;  ///< [N,H,K+1,K]
};

/// Mini-batches of all sequences.
int64_t ttt_linear_count(const TttLinearShape& shape);

/// o [tokens,H,K] contiguous; starts [count,H,K+1,K], W at the start of each mini-batch, may be null.
void ttt_linear_forward(const TttLinearShape& shape, const TttLinearInputs& in, void* o,
                        const TttLinearStates& last, void* starts);

/// Contiguous; every element is written. Sums over sequences are left to the caller.
struct TttLinearGradients {
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;     ///< [tokens,H,K]
  void* dlr = nullptr;                                  ///< [tokens,H]
  void* dplace_step = nullptr;                          ///< [N,H,mini_batch]
  void *dnorm_weight = nullptr, *dnorm_bias = nullptr;  ///< [N,H,K]
  void* dweights = nullptr;                             ///< [N,H,K+1,K]
};

/// `starts` are those of the forward; d_o [tokens,H,K]; of `d_last` nulls are zeros.
void ttt_linear_backward(const TttLinearShape& shape, const TttLinearInputs& in, const void* starts,
                         const View& d_o, const TttLinearStates& d_last, const TttLinearGradients& out);

}  // namespace prism::kernels
