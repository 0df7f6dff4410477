#pragma once
#include "prism/ops/fast_weights.h"

namespace prism {

/// Throws Error naming the tensor of fast_weights that does not fit.
void check_fast_weight_arguments(const FastWeightArgs& args);

}  // namespace prism
