#pragma once
#include "prism/ops/fast_weights.h"

namespace prism {

/// Whether the CPU kernel of TTT-Linear computes this call: TTT's rule and loss, a matrix with a bias, and no
/// sequence inside a mini-batch.
bool fits_ttt_linear_kernel(const FastWeightArgs& args);
FastWeightResult ttt_linear_fused(const FastWeightArgs& args);

}  // namespace prism
