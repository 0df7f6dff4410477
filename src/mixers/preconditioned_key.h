#pragma once
#include <ATen/core/Tensor.h>

#include "prism/mixers/recurrent_mixer.h"

namespace prism {

/// Where the preconditioned mixers' log-scale starts.
constexpr double kCurvatureLogScale = -0.2;

/// The write key P * k of the preconditioned mixers over `stream`, whose state "A" it continues: k
/// [...,Hk,K], beta and g [...,Hk], log_scale [Hk].
at::Tensor preconditioned_key(const TokenStream& stream, const at::Tensor& k, const at::Tensor& beta,
                              const at::Tensor& g, const at::Tensor& log_scale, double squash);

}  // namespace prism
