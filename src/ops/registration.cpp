// The operators' schemas. Each operator's file registers its implementations.
//
// Public operators carry the default arguments and the autograd and autocast rules; those with an underscore
// are the forward and backward passes that tracers see. Outputs that were not asked for are empty tensors,
// because tracers know no absent ones.
#include <torch/library.h>

TORCH_LIBRARY(prism, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "prism_chunk(Tensor q, Tensor k, Tensor w, Tensor b, Tensor g, *, Tensor? erase_read=None, "
      "Tensor? initial_state=None, Tensor? cu_seqlens=None, float? scale=None, bool "
      "return_final_state=False, "
      "int chunk=0, str implementation='auto') -> (Tensor o, Tensor final_state)",
      tags);
  m.def(
      "_prism_chunk_forward(Tensor q, Tensor k, Tensor w, Tensor b, Tensor g, Tensor? erase_read, "
      "Tensor? initial_state, Tensor? cu_seqlens, float scale, int chunk, str implementation, "
      "bool return_final_state, bool save_states) -> (Tensor o, Tensor final_state, Tensor chunk_states)",
      tags);
  m.def(
      "_prism_chunk_backward(Tensor q, Tensor k, Tensor w, Tensor b, Tensor g, Tensor? erase_read, "
      "Tensor? initial_state, Tensor? cu_seqlens, float scale, int chunk, str implementation, Tensor "
      "chunk_states, "
      "Tensor? d_o, Tensor? d_final_state) -> (Tensor dq, Tensor dk, Tensor dw, Tensor db, Tensor dg, "
      "Tensor derase_read, Tensor dinitial_state)",
      tags);
  m.def(
      "prism_step(Tensor q, Tensor k, Tensor w, Tensor b, Tensor g, Tensor(a!) state, *, Tensor? "
      "erase_read=None, "
      "float? scale=None) -> Tensor",
      tags);
  m.def(
      "prism_refine(Tensor v, Tensor? u=None, Tensor? p=None, Tensor? beta=None, *, str nonlinearity='gelu', "
      "str residual='subtract', bool return_delta_and_residual=False, str implementation='auto') -> "
      "(Tensor w, Tensor delta, Tensor residual)",
      tags);
  m.def(
      "_prism_refine_forward(Tensor v, Tensor? u, Tensor? p, Tensor? beta, str nonlinearity, str residual, "
      "bool return_delta_and_residual, str implementation) -> (Tensor w, Tensor delta, Tensor residual)",
      tags);
  m.def(
      "_prism_refine_backward(Tensor v, Tensor? u, Tensor? p, Tensor? beta, str nonlinearity, str residual, "
      "str implementation, Tensor? d_w, Tensor? d_delta, Tensor? d_residual) -> "
      "(Tensor dv, Tensor du, Tensor dp, Tensor dbeta)",
      tags);
  m.def(
      "vector_gate(Tensor q, Tensor k, Tensor w, Tensor g, *, Tensor? b=None, Tensor? erase_read=None, "
      "Tensor? erase_key=None, Tensor? initial_state=None, Tensor? cu_seqlens=None, float? scale=None, "
      "bool erase_undecayed=False, bool read_values=False, bool return_final_state=False, int chunk=0, "
      "str implementation='auto') -> (Tensor o, Tensor final_state)",
      tags);
  m.def(
      "_vector_gate_forward(Tensor q, Tensor k, Tensor w, Tensor g, Tensor? b, Tensor? erase_read, "
      "Tensor? erase_key, Tensor? initial_state, Tensor? cu_seqlens, float scale, bool erase_undecayed, "
      "bool read_values, int chunk, str implementation, bool return_final_state, bool save_states) -> "
      "(Tensor o, Tensor final_state, Tensor chunk_states)",
      tags);
  m.def(
      "_vector_gate_backward(Tensor q, Tensor k, Tensor w, Tensor g, Tensor? b, Tensor? erase_read, "
      "Tensor? erase_key, Tensor? initial_state, Tensor? cu_seqlens, float scale, bool erase_undecayed, "
      "bool read_values, int chunk, str implementation, Tensor chunk_states, Tensor? d_o, "
      "Tensor? d_final_state) -> (Tensor dq, Tensor dk, Tensor dw, Tensor dg, Tensor db, Tensor derase_read, "
      "Tensor derase_key, Tensor dinitial_state)",
      tags);
  m.def(
      "vector_gate_step(Tensor q, Tensor k, Tensor w, Tensor g, Tensor(a!) state, *, Tensor? b=None, "
      "Tensor? erase_read=None, Tensor? erase_key=None, float? scale=None, bool erase_undecayed=False, "
      "bool read_values=False) -> Tensor",
      tags);
}
