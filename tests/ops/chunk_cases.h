#pragma once
// One list of cases drives every test of prism_chunk and prism_step.
#include <ATen/ATen.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "prism/ops/packing.h"
#include "prism/ops/prism_chunk.h"

namespace prism::test {

enum class Gates {
  kZero,
  kTiny,
  kMild,
  kOne,
  kStrong,
  kMixed
};                                                      ///< 0, -1e-4, (-0.2, 0], -1, -20, all of them
enum class Keys { kSpread, kIdentical };                ///< unit keys
enum class Erase { kMild, kZero, kOne, kTwo, kMixed };  ///< b

struct ChunkCase {
  std::string name;
  int64_t B = 2, T = 9, L = 1, H = 2, Hk = 2, K = 8, V = 6;
  Gates gates = Gates::kMild;
  Keys keys = Keys::kSpread;
  Erase erase = Erase::kMild;
  std::vector<int64_t> lengths = {};  ///< packed (B = 1, T = their sum) when not empty
  bool initial_state = true, erase_read = false;

  bool packed() const { return !lengths.empty(); }
};

inline void PrintTo(const ChunkCase& c, std::ostream* out) { *out << c.name; }

const std::vector<ChunkCase>& chunk_cases();
const ChunkCase& chunk_case(const std::string& name);

/// The tensors of a call, leaves that want gradients. Values fit bf16, so every dtype starts from the same
/// numbers.
struct ChunkTensors {
  at::Tensor q, k, w, b, g, erase_read, initial_state, cu_seqlens;
  at::Tensor up_o, up_final_state;

  PrismChunkArgs args() const;
  /// Copies in another dtype (gates and states: fp32 beside fp32 and bf16).
  ChunkTensors to(at::ScalarType type) const;
  std::vector<std::pair<std::string, at::Tensor>> leaves() const;
};
ChunkTensors make_tensors(const ChunkCase& c);  ///< fp64

/// Named outputs o, final_state and gradients d_q... of sum(o up_o) + sum(final_state up_final_state).
using Named = std::vector<std::pair<std::string, at::Tensor>>;
using ChunkFunction = std::function<PrismChunkResult(const PrismChunkArgs&)>;
Named outputs_and_gradients(const ChunkTensors& tensors, const ChunkFunction& function);
ChunkFunction with(Implementation implementation, int64_t chunk = 0);

/// The recurrence token by token from differentiable ATen operations.
PrismChunkResult token_loop(const PrismChunkArgs& args);

/// |x - reference| / max(|reference|, 1e-6 sqrt n), or infinity when x is not finite.
double relative_error(const at::Tensor& x, const at::Tensor& reference);
/// The table of docs/op.md: what `name` (o, final_state, d_q, ...) may miss in `type`.
double tolerance(const std::string& name, at::ScalarType type);
void expect_close(const Named& found, const Named& reference, at::ScalarType type, const std::string& note);
void expect_same_bits(const Named& a, const Named& b, const std::string& note);

}  // namespace prism::test
