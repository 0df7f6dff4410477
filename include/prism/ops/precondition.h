#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "prism/ops/packing.h"

namespace prism {

struct PreconditionResult {
  at::Tensor write_key;  ///< P k, [B,T,H,K] in k's dtype
  at::Tensor final_a;    ///< [N,H,K] after each sequence's last token, in the dtype of gates
};

/// Preconditioned write keys (arXiv 2604.21100): along each sequence a_t = exp(g_t) a_{t-1} + beta_t k_t^2,
/// channel by channel, and P_t = x^(-r / (1 + |r|)) with r = log(a_t + eps) - log_scale, between 1/x and x.
/// k [B,T,H,K]; beta >= 0, g <= 0 [B,T,H], log_scale [H], initial_a [N,H,K] (absent: zeros) in the dtype of
/// gates (fp32, fp64 with fp64). x = squash >= 1; a delta rule with |k| <= 1 stays stable up to x = 2.
/// Differentiable once in every tensor. Fused on the CPU, composed elsewhere.
PreconditionResult precondition(const at::Tensor& k, const at::Tensor& beta, const at::Tensor& g,
                                const at::Tensor& log_scale, const Packing& packing,
                                const std::optional<at::Tensor>& initial_a = {}, double squash = 1.5,
                                double eps = 1e-6);

}  // namespace prism
