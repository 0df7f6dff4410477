#include <ATen/core/Tensor.h>

#include "chunk_options.h"
#include "vector_gate_call.h"

namespace prism {
namespace {

/// The checks of one call: `check` remembers the shapes it has seen for its messages.
class GateCheck {
 public:
  GateCheck(const char* op, int64_t token_dims, const GateCall& call)
      : check_(op), step_(token_dims == 1), call_(call) {}

  void run() {
    const at::ScalarType type = call_.q.scalar_type();
    activation("q", call_.q, call_.read_values ? "[B,T,Hk,V]" : "[B,T,Hk,K]",
               call_.read_values ? "[B,Hk,V]" : "[B,Hk,K]");
    activation("k", call_.k, "[B,T,Hk,K]", "[B,Hk,K]");
    activation("w", call_.w, "[B,T,Hv,V]", "[B,Hv,V]");
    if (type != at::kDouble && type != at::kFloat && type != at::kBFloat16 && type != at::kHalf)
      check_.fail_with("q is {}, expected Double, Float, BFloat16 or Half", c10::toString(type));
    check_.size("k", call_.k, -2, "heads", call_.q.sym_size(-2), "q has");
    const auto& wide = call_.read_values ? call_.w : call_.k;
    check_.size("q", call_.q, -1, "channels a head", wide.sym_size(-1),
                call_.read_values ? "w has" : "k has");
    if (call_.k.sym_size(-2) < 1 || call_.w.sym_size(-2) < 1 || call_.k.sym_size(-1) < 1 ||
        call_.w.sym_size(-1) < 1)
      check_.fail_with("heads and head widths must be at least 1");
    if (call_.w.sym_size(-2) % call_.k.sym_size(-2) != 0)
      check_.fail_with("the heads of w must be a multiple of those of q and k");
    gates();
    erase();
    const c10::SymInt sequences = check_packing(check_, call_.q, call_.cu_seqlens);
    if (const at::Tensor* state = present(call_.initial_state))
      check_state(check_, step_ ? "state" : "initial_state", *state, type,
                  {sequences, call_.w.sym_size(-2), call_.k.sym_size(-1), call_.w.sym_size(-1)}, "k has");
  }

 private:
  void activation(const char* name, const at::Tensor& tensor, const char* layout, const char* step_layout) {
    check_.tensor(name, tensor, step_ ? 3 : 4, step_ ? step_layout : layout);
    check_.dtype(name, tensor, call_.q.scalar_type(), "as q");
    same_tokens(name, tensor);
  }
  void same_tokens(const char* name, const at::Tensor& tensor) const {
    check_.size(name, tensor, 0, "rows", call_.q.sym_size(0), "q has");
    if (!step_) check_.size(name, tensor, 1, "tokens", call_.q.sym_size(1), "q has");
  }
  void gate(const char* name, const at::Tensor& tensor, int64_t dims, const char* layout,
            const char* step_layout) {
    check_.tensor(name, tensor, step_ ? dims - 1 : dims, step_ ? step_layout : layout);
    const at::ScalarType type = call_.q.scalar_type();
    check_.dtype(name, tensor, gate_type(type), fmt::format("beside q of {}", c10::toString(type)));
    same_tokens(name, tensor);
    check_.size(name, tensor, step_ ? 1 : 2, "heads", call_.w.sym_size(-2), "w has");
  }
  void gates() {
    gate("g", call_.g, 4, "[B,T,Hv,K]", "[B,Hv,K]");
    check_.size("g", call_.g, -1, "channels a head", call_.k.sym_size(-1), "k has");
    if (const at::Tensor* b = present(call_.b)) gate("b", *b, 3, "[B,T,Hv]", "[B,Hv]");
  }
  void erase() {
    for (const auto& [name, given] :
         {std::pair{"erase_read", &call_.erase_read}, std::pair{"erase_key", &call_.erase_key}}) {
      const at::Tensor* tensor = present(*given);
      if (!tensor) continue;
      activation(name, *tensor, "[B,T,Hk,K]", "[B,Hk,K]");
      check_.size(name, *tensor, -2, "heads", call_.k.sym_size(-2), "k has");
      check_.size(name, *tensor, -1, "channels a head", call_.k.sym_size(-1), "k has");
    }
    const bool erases = present(call_.b) || present(call_.erase_read) || present(call_.erase_key);
    if (call_.read_values && erases) check_.fail_with("read_values takes no b, erase_read or erase_key");
    if (call_.erase_undecayed && !erases)
      check_.fail_with("erase_undecayed without b, erase_read or erase_key erases nothing");
  }

  ArgumentCheck check_;
  bool step_;
  const GateCall& call_;
};

}  // namespace

void check_gate_arguments(const char* op, int64_t token_dims, const GateCall& call) {
  GateCheck(op, token_dims, call).run();
}

}  // namespace prism
