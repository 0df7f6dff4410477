#pragma once
// One list of cases drives every test of vector_gate and vector_gate_step.
#include <ATen/ATen.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "ops/chunk_cases.h"
#include "prism/ops/vector_gate.h"

namespace prism::test {

/// Which optional tensors a case has: GLA none; KDA b; PKDA b and p; RWKV-7 p and e, undecayed; GSA's slots
/// the values' read. "full" has all three.
enum class Form { kPlain, kStrength, kRead, kOwnKey, kFull, kValues };

struct GateCase {
  std::string name;
  Form form = Form::kPlain;
  bool undecayed = false;
  int64_t B = 2, T = 9, H = 2, Hk = 2, K = 8, V = 6;
  Gates gates = Gates::kMild;
  Keys keys = Keys::kSpread;
  Erase erase = Erase::kMild;
  std::vector<int64_t> lengths = {};  ///< packed (B = 1, T = their sum) when not empty
  bool initial_state = true;

  bool packed() const { return !lengths.empty(); }
};

inline void PrintTo(const GateCase& c, std::ostream* out) { *out << c.name; }

const std::vector<GateCase>& gate_cases();
const GateCase& gate_case(const std::string& name);

/// The tensors of a call, leaves that want gradients. Values fit bf16, so every dtype starts from the same
/// numbers.
struct GateTensors {
  at::Tensor q, k, w, g, b, erase_read, erase_key, initial_state, cu_seqlens;
  at::Tensor up_o, up_final_state;
  bool undecayed = false, read_values = false;

  VectorGateArgs args() const;
  /// Every tensor of a token changed by f; states and offsets stay.
  GateTensors by_token(const std::function<at::Tensor(const at::Tensor&)>& f) const;
  GateTensors to(at::ScalarType type) const;
  std::vector<std::pair<std::string, at::Tensor>> leaves() const;
};
GateTensors make_gate_tensors(const GateCase& c);  ///< fp64

using GateFunction = std::function<VectorGateResult(const VectorGateArgs&)>;
Named outputs_and_gradients(const GateTensors& tensors, const GateFunction& function);
GateFunction gate_with(Implementation implementation, int64_t chunk = 0);

/// The recurrence token by token from differentiable ATen operations.
VectorGateResult gate_loop(const VectorGateArgs& args);

}  // namespace prism::test
