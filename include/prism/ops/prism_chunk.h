#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "prism/ops/implementation.h"
#include "prism/ops/packing.h"

namespace prism {

/// Arguments of prism_chunk; shapes as in docs/op.md. B batch, T tokens, L writes, Hk key heads, Hv value
/// heads (a multiple of Hk), K, V widths. q, k, w: one dtype of fp64, fp32, bf16 (fp16 on GPUs); b, g: fp32
/// (fp64 with fp64). Any strides.
struct PrismChunkArgs {
  at::Tensor q;                                  ///< [B,T,Hk,K]
  at::Tensor k;                                  ///< [B,T,L,Hk,K]; k[:,:,0] is also the erase key
  at::Tensor w;                                  ///< [B,T,L,Hv,V] gated writes
  at::Tensor b;                                  ///< [B,T,Hv] erase strength, b |k_1|^2 <= 2
  at::Tensor g;                                  ///< [B,T,Hv] log decay, <= 0
  std::optional<at::Tensor> erase_read = {};     ///< [B,T,Hk,K]; default k[:,:,0]
  std::optional<at::Tensor> initial_state = {};  ///< [N,Hv,K,V] fp32 (fp64 with fp64)
  std::optional<at::Tensor> cu_seqlens = {};     ///< int64 [N+1], B = 1: packed sequences; any device
  std::optional<double> scale = {};              ///< default K^-1/2
  bool return_final_state = false;
  int64_t chunk = 0;  ///< 0: chosen from K, V, L and dtype
  Implementation implementation = Implementation::kAuto;
};

struct PrismChunkResult {
  at::Tensor o;            ///< [B,T,Hv,V] in q's dtype
  at::Tensor final_state;  ///< [N,Hv,K,V], undefined unless asked for
};

/// S_t = exp(g_t) (I - b_t k_1 k_1^T) S_{t-1} + sum_l k_l w_l^T,  o_t = scale S_t^T q_t  (eq. 18), chunkwise
/// and exact. Differentiable once in every tensor but cu_seqlens. Throws Error naming the tensor that does
/// not fit.
PrismChunkResult prism_chunk(const PrismChunkArgs& args);

/// The offsets of `packing` for args.cu_seqlens where the implementation that will serve these args reads
/// them: on q's device for the CUDA kernels, which then wait for nothing, and on the CPU for the others.
/// Nothing for rows. Offsets elsewhere give the same results and cost a copy and a wait.
std::optional<at::Tensor> prism_chunk_offsets(const PrismChunkArgs& args, const Packing& packing);

/// One token a sequence: q [B,Hk,K], k [B,L,Hk,K], w [B,L,Hv,V], b, g [B,Hv], state [B,Hv,K,V] updated in
/// place. Returns o [B,Hv,V]. Not differentiable.
at::Tensor prism_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& w, const at::Tensor& b,
                      const at::Tensor& g, const at::Tensor& state,
                      const std::optional<at::Tensor>& erase_read = {}, std::optional<double> scale = {});

}  // namespace prism
