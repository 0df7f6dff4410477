#include <ATen/core/Tensor.h>

#include "chunk_options.h"
#include "prism_chunk_call.h"

namespace prism {
namespace {

bool is_activation_type(at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

void check_same_tokens(const ArgumentCheck& check, const char* name, const at::Tensor& tensor,
                       const at::Tensor& q, int64_t token_dims) {
  check.size(name, tensor, 0, "rows", q.sym_size(0), "q has");
  if (token_dims == 2) check.size(name, tensor, 1, "tokens", q.sym_size(1), "q has");
}

void check_types(const ArgumentCheck& check, const at::Tensor& q, const at::Tensor& k, const at::Tensor& w,
                 const at::Tensor& b, const at::Tensor& g) {
  const at::ScalarType type = q.scalar_type();
  if (!is_activation_type(type))
    check.fail_with("q is {}, expected Double, Float, BFloat16 or Half", c10::toString(type));
  const std::string like_q = "as q";
  check.dtype("k", k, type, like_q);
  check.dtype("w", w, type, like_q);
  const std::string beside = fmt::format("beside q of {}", c10::toString(type));
  check.dtype("b", b, gate_type(type), beside);
  check.dtype("g", g, gate_type(type), beside);
}

void check_sizes(const ArgumentCheck& check, int64_t token_dims, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& w, const at::Tensor& b, const at::Tensor& g) {
  for (const auto& [name, tensor] :
       {std::pair{"k", &k}, std::pair{"w", &w}, std::pair{"b", &b}, std::pair{"g", &g}})
    check_same_tokens(check, name, *tensor, q, token_dims);
  check.size("k", k, -2, "heads", q.sym_size(-2), "q has");
  check.size("k", k, -1, "channels a head", q.sym_size(-1), "q has");
  check.size("w", w, -3, "steps", k.sym_size(-3), "k has");
  const c10::SymInt heads = w.sym_size(-2), key_heads = q.sym_size(-2);
  if (k.sym_size(-3) < 1 || key_heads < 1 || heads < 1 || q.sym_size(-1) < 1 || w.sym_size(-1) < 1)
    check.fail_with("steps, heads and head widths must be at least 1");
  if (heads % key_heads != 0) check.fail_with("the heads of w must be a multiple of those of q and k");
  check.size("b", b, -1, "heads", heads, "w has");
  check.size("g", g, -1, "heads", heads, "w has");
}

/// `narrow`: whether a bf16 state is taken as well, except beside doubles.
void check_state(ArgumentCheck& check, const at::Tensor& state, const char* name, const at::Tensor& q,
                 const at::Tensor& w, const c10::SymInt& sequences, bool narrow) {
  check.tensor(name, state, 4, "[sequences,heads,K,V]");
  if (!(narrow && state.scalar_type() == at::kBFloat16 && q.scalar_type() != at::kDouble))
    check.dtype(name, state, gate_type(q.scalar_type()),
                fmt::format("beside q of {}", c10::toString(q.scalar_type())));
  check.size(name, state, 0, "sequences", sequences, "the call has");
  check.size(name, state, 1, "heads", w.sym_size(-2), "w has");
  check.size(name, state, 2, "key channels a head", q.sym_size(-1), "q has");
  check.size(name, state, 3, "value channels a head", w.sym_size(-1), "w has");
}

}  // namespace

void check_chunk_arguments(const char* op, int64_t token_dims, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& w, const at::Tensor& b, const at::Tensor& g,
                           const std::optional<at::Tensor>& erase_read,
                           const std::optional<at::Tensor>& initial_state,
                           const std::optional<at::Tensor>& cu_seqlens) {
  const bool chunk = token_dims == 2;
  ArgumentCheck check(op);
  check.tensor("q", q, token_dims + 2, chunk ? "[B,T,Hk,K]" : "[B,Hk,K]");
  check.tensor("k", k, token_dims + 3, chunk ? "[B,T,L,Hk,K]" : "[B,L,Hk,K]");
  check.tensor("w", w, token_dims + 3, chunk ? "[B,T,L,Hv,V]" : "[B,L,Hv,V]");
  check.tensor("b", b, token_dims + 1, chunk ? "[B,T,Hv]" : "[B,Hv]");
  check.tensor("g", g, token_dims + 1, chunk ? "[B,T,Hv]" : "[B,Hv]");
  check_types(check, q, k, w, b, g);
  check_sizes(check, token_dims, q, k, w, b, g);
  if (const at::Tensor* e = present(erase_read)) {
    check.tensor("erase_read", *e, token_dims + 2, chunk ? "[B,T,Hk,K]" : "[B,Hk,K]");
    check.dtype("erase_read", *e, q.scalar_type(), "as q");
    check_same_tokens(check, "erase_read", *e, q, token_dims);
    check.size("erase_read", *e, -2, "heads", q.sym_size(-2), "q has");
    check.size("erase_read", *e, -1, "channels a head", q.sym_size(-1), "q has");
  }
  const c10::SymInt sequences = check_packing(check, q, cu_seqlens);
  if (const at::Tensor* state = present(initial_state))
    check_state(check, *state, chunk ? "initial_state" : "state", q, w, sequences, !chunk);
}

std::vector<int64_t> sequence_offsets(const std::optional<at::Tensor>& cu_seqlens, int64_t batch,
                                      int64_t tokens) {
  return sequence_starts("prism_chunk", cu_seqlens, batch, tokens);
}

c10::SymInt chunk_state_count(const c10::SymInt& batch, const c10::SymInt& tokens,
                              const std::optional<c10::SymInt>& packed_sequences, int64_t chunk) {
  if (packed_sequences) return tokens / chunk + *packed_sequences;
  return batch * ((tokens + (chunk - 1)) / chunk);
}

}  // namespace prism
