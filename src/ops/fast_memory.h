#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "prism/ops/fast_weights.h"

namespace prism {

/// The memory of a FastMemory on rows of (chunk, head) pairs: x [Z,C,K], weights [Z,in,out].
class MemoryModel {
 public:
  MemoryModel(const FastMemory& memory, int64_t heads) : memory_(memory), heads_(heads) {}

  /// dW_l of token j is inputs[l]_j outputs[l]_j^T.
  struct Gradients {
    std::vector<at::Tensor> inputs, outputs;  ///< [Z,J,in], [Z,J,out]
  };
  /// Of weight_j loss(M(k_j) - v_j) at W; weight [Z,J,1], undefined for 1.
  Gradients gradients(const std::vector<at::Tensor>& W, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& weight, const at::Tensor& delta) const;

  /// What the first layer multiplies: x, and 1 beside a bias.
  at::Tensor lift(const at::Tensor& x) const;
  /// What the second layer multiplies, from the first's product.
  at::Tensor hidden(const at::Tensor& z) const;
  /// M(x) from the last layer's product.
  at::Tensor finish(const at::Tensor& z, const at::Tensor& x) const;
  /// W of any A [...,K,V], and of one that a mini-batch starts from.
  at::Tensor project(const at::Tensor& A) const;
  at::Tensor project_start(const at::Tensor& A) const;
  /// A in the form that a mini-batch starts from: log W of a softmax sums to 1 again.
  at::Tensor settle(const at::Tensor& A) const;

 private:
  at::Tensor loss_gradient(const at::Tensor& e, const at::Tensor& delta) const;
  at::Tensor by_head(const at::Tensor& x, const at::Tensor& parameter_HV) const;

  const FastMemory& memory_;
  int64_t heads_;
};

}  // namespace prism
