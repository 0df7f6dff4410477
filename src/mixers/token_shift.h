#pragma once
#include <ATen/core/Tensor.h>

#include "prism/mixers/recurrent_mixer.h"

namespace prism {

/// The token before each token of x [B,T,D] (or [B,D], the next tokens): zeros, or the state "shift"
/// [sequences,D], before a sequence's first. Leaves the last token in the state.
at::Tensor token_before(const at::Tensor& x, const TokenStream& stream);

}  // namespace prism
