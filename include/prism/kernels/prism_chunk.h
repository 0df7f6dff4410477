#pragma once
// The gated recurrence with one erase and L writes a token (eq. 18 of arXiv 2602.10796), on raw pointers:
//   S_t = exp(g_t) (I - b_t k_1 e_t^T) S_{t-1} + sum_l k_l w_l^T,   o_t = scale S_t^T q_t
// with e = k_1, or `erase_read` where given. S is [K, V] a head.
#include "prism/kernels/types.h"

namespace prism::kernels {

struct PrismChunkShape {
  Scalar dtype = Scalar::kFloat32;
  Sequences sequences;
  int64_t steps = 1;      ///< L >= 1
  int64_t key_heads = 1;  ///< Hk: heads of q, k and erase_read
  int64_t heads = 1;      ///< Hv: heads of w, b, g, o and the states; a multiple of key_heads.
                          ///< Value head h reads key head h / (heads / key_heads).
  int64_t key_width = 1, value_width = 1;  ///< K, V
  double scale = 1;
  int64_t chunk = 0;  ///< tokens a chunk; 0 lets the kernel choose. Backward needs the forward's value.
  int64_t tokens() const { return sequences.count ? sequences.offsets[sequences.count] : 0; }
};

/// q [N,Hk,K], k [N,L,Hk,K], w [N,L,Hv,V], b [N,Hv], g [N,Hv], erase_read [N,Hk,K] or null.
/// initial_state [sequences,Hv,K,V] contiguous or null (zeros), in the state type: double with kFloat64, else
/// float.
struct PrismChunkInputs {
  View q, k, w, b, g, erase_read;
  const void* initial_state = nullptr;
};

/// The chunk length used for `shape` when shape.chunk is 0. Depends on K, V, L and the dtype alone, so that a
/// sequence's bits do not depend on the batch.
int64_t prism_chunk_length(const PrismChunkShape& shape);

/// Number of chunks of all sequences: sum over sequences of ceil(length / chunk). Chunk-start states are
/// stored for these, in order of sequence and position: [chunks, Hv, K, V].
int64_t prism_chunk_count(const PrismChunkShape& shape, int64_t chunk);

/// Forward. o [N,Hv,V] contiguous. final_state [sequences,Hv,K,V] and chunk_states [chunks,Hv,K,V] may be
/// null. All state buffers are in the state type. Every element of every given output is written.
void prism_chunk_forward(const PrismChunkShape& shape, const PrismChunkInputs& in, void* o, void* final_state,
                         void* chunk_states);

/// Contiguous gradients in the inputs' shapes: dq, dk, dw, derase_read in `dtype`, db and dg in the gate
/// type, dinitial_state in the state type. derase_read and dinitial_state may be null.
struct PrismChunkGradients {
  void *dq = nullptr, *dk = nullptr, *dw = nullptr, *db = nullptr, *dg = nullptr, *derase_read = nullptr,
       *dinitial_state = nullptr;
};

/// Backward of the forward that wrote chunk_states. do [N,Hv,V] in `dtype`; dfinal_state in the state type or
/// null.
void prism_chunk_backward(const PrismChunkShape& shape, const PrismChunkInputs& in, const void* chunk_states,
                          const View& d_o, const void* dfinal_state, const PrismChunkGradients& out);

/// One token a sequence: `state` [sequences,Hv,K,V] (state type) is updated in place, o [sequences,Hv,V]
/// written. `in.initial_state` is ignored; tokens and sequences coincide.
void prism_step(const PrismChunkShape& shape, const PrismChunkInputs& in, void* state, void* o);

/// The definition, as a token loop in double whatever the dtype of the inputs; o [N,Hv,V] and final_state in
/// double. initial_state is read in the state type.
void prism_chunk_reference(const PrismChunkShape& shape, const PrismChunkInputs& in, double* o,
                           double* final_state);

}  // namespace prism::kernels
