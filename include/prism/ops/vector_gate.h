#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "prism/ops/implementation.h"

namespace prism {

/// Arguments of vector_gate; docs/vector-gate.md says how each mixer fills them. B batch, T tokens, Hk key
/// heads, Hv value heads (a multiple of Hk), K, V widths. q, k, w, erase_read, erase_key: one dtype of fp64,
/// fp32, bf16 (fp16 on GPUs); g, b: fp32 (fp64 with fp64). Any strides.
struct VectorGateArgs {
  at::Tensor q;                                  ///< [B,T,Hk,K]; [B,T,Hk,V] with read_values
  at::Tensor k;                                  ///< [B,T,Hk,K] write key
  at::Tensor w;                                  ///< [B,T,Hv,V] gated write
  at::Tensor g;                                  ///< [B,T,Hv,K] log decay a channel, <= 0
  std::optional<at::Tensor> b = {};              ///< [B,T,Hv] erase strength; default 1
  std::optional<at::Tensor> erase_read = {};     ///< [B,T,Hk,K] p; default k
  std::optional<at::Tensor> erase_key = {};      ///< [B,T,Hk,K] e; default k
  std::optional<at::Tensor> initial_state = {};  ///< [N,Hv,K,V] fp32 (fp64 with fp64)
  std::optional<at::Tensor> cu_seqlens = {};     ///< int64 [N+1], B = 1: packed sequences; any device
  std::optional<double> scale = {};              ///< default (width of q)^-1/2
  bool erase_undecayed = false;                  ///< the erase reads the state before this token's decay
  bool read_values = false;                      ///< o = scale S q instead of scale S^T q; excludes an erase
  bool return_final_state = false;
  int64_t chunk = 0;  ///< 0: chosen; the composed implementation rounds up to a power of two
  Implementation implementation = Implementation::kAuto;
};

struct VectorGateResult {
  at::Tensor o;            ///< [B,T,Hv,V] ([B,T,Hv,K] with read_values) in q's dtype
  at::Tensor final_state;  ///< [N,Hv,K,V], undefined unless asked for
};

/// The gated recurrence with a gate a key channel:
///   u_t = R^T p_t,  R = Diag(exp g_t) S_{t-1}, or S_{t-1} with erase_undecayed
///   S_t = Diag(exp g_t) S_{t-1} - b_t e_t u_t^T + k_t w_t^T,   o_t = scale S_t^T q_t
/// It erases where b, erase_read or erase_key is given. Exact; differentiable once in every tensor but
/// cu_seqlens. Throws Error naming the tensor that does not fit.
VectorGateResult vector_gate(const VectorGateArgs& args);

/// One token a sequence: the T dimension of vector_gate left out everywhere, state [B,Hv,K,V] updated in
/// place (initial_state, cu_seqlens, return_final_state, chunk and implementation are ignored). Returns o
/// [B,Hv,V]. Not differentiable.
at::Tensor vector_gate_step(const VectorGateArgs& args, const at::Tensor& state);

}  // namespace prism
