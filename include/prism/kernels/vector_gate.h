#pragma once
// The recurrence with a gate a key channel, on raw pointers. S is [K, V] a head, R the state that the erase
// reads: Diag(exp(g_t)) S_{t-1}, or S_{t-1} itself with erase_undecayed.
//   u_t = R^T p_t
//   S_t = Diag(exp(g_t)) S_{t-1} - b_t e_t u_t^T + k_t w_t^T,   o_t = scale S_t^T q_t   (scale S_t q_t with
//   read_values)
// Without b, erase_read (p) and erase_key (e) nothing is erased. Where one of them is given, the others
// default to b = 1, p = k, e = k.
#include "prism/kernels/types.h"

namespace prism::kernels {

struct VectorGateShape {
  Scalar dtype = Scalar::kFloat32;
  Sequences sequences;
  int64_t key_heads = 1;  ///< Hk: heads of q, k, erase_read and erase_key
  int64_t heads = 1;      ///< Hv: heads of w, g, b, o and the states; a multiple of key_heads.
                          ///< Value head h reads key head h / (heads / key_heads).
  int64_t key_width = 1, value_width = 1;  ///< K, V
  double scale = 1;
  int64_t chunk =
      0;  ///< tokens between stored states; 0 lets the kernel choose. Backward needs the forward's value.
  bool erase_undecayed = false;
  bool read_values = false;  ///< q and o lie on the other axis: q [N,Hk,V], o [N,Hv,K]. Excludes an erase.
  int64_t tokens() const { return sequences.count ? sequences.offsets[sequences.count] : 0; }
  int64_t query_width() const { return read_values ? value_width : key_width; }
  int64_t output_width() const { return read_values ? key_width : value_width; }
};

/// q [N,Hk,K], k [N,Hk,K], w [N,Hv,V], g [N,Hv,K]; b [N,Hv], erase_read and erase_key [N,Hk,K] or null. g and
/// b are of the gate type. initial_state [sequences,Hv,K,V] contiguous or null (zeros), in the state type:
/// double with kFloat64, else float.
struct VectorGateInputs {
  View q, k, w, g, b, erase_read, erase_key;
  const void* initial_state = nullptr;
  bool erases() const { return b.data || erase_read.data || erase_key.data; }
};

/// Widest key that the kernels take; the definition below takes any.
inline constexpr int64_t kVectorGateMaxKeyWidth = 64;

/// Tokens between stored states when shape.chunk is 0.
int64_t vector_gate_chunk_length(const VectorGateShape& shape);

/// Forward. o [N,Hv,V] contiguous. final_state [sequences,Hv,K,V] and chunk_states [chunks,Hv,K,V] (the state
/// at the start of every chunk, in order of sequence and position) may be null; final_state may be
/// initial_state.
void vector_gate_forward(const VectorGateShape& shape, const VectorGateInputs& in, void* o, void* final_state,
                         void* chunk_states);

/// Contiguous gradients in the inputs' shapes: dq, dk, dw, derase_read, derase_key in `dtype`, dg and db in
/// the gate type, dinitial_state in the state type. Those of absent inputs are null, and dinitial_state may
/// be.
struct VectorGateGradients {
  void *dq = nullptr, *dk = nullptr, *dw = nullptr, *dg = nullptr, *db = nullptr, *derase_read = nullptr,
       *derase_key = nullptr, *dinitial_state = nullptr;
};

/// Backward of the forward that wrote chunk_states. do as o, in `dtype`; dfinal_state in the state type or
/// null.
void vector_gate_backward(const VectorGateShape& shape, const VectorGateInputs& in, const void* chunk_states,
                          const View& d_o, const void* dfinal_state, const VectorGateGradients& out);

/// The definition, as a token loop in double whatever the dtype of the inputs; o and final_state in double.
void vector_gate_reference(const VectorGateShape& shape, const VectorGateInputs& in, double* o,
                           double* final_state);

}  // namespace prism::kernels
