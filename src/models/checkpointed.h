#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace prism {

/// Tensors from one activation and from parameters. It is called again in backward and must then do the same:
/// random masks included, and nothing else may notice that it is called twice.
using CheckpointedWork = std::function<std::vector<at::Tensor>(const at::Tensor& x)>;

/// work(x) of which only x stays for backward (activation checkpointing, arXiv 1604.06174). Backward calls
/// `work` again, under the autocast of the first call, and goes through what that leaves; gradients of
/// `parameters`, all that `work` reads, then arrive as those of any operation. Same bits as work(x) and its
/// backward. Differentiable once; what `work` refers to must live until then. Tensor hooks of parameters run
/// in both backward passes, hooks of their accumulators once. Error where the second call has another number
/// of outputs.
std::vector<at::Tensor> checkpointed(const CheckpointedWork& work, const at::Tensor& x,
                                     const std::vector<at::Tensor>& parameters);

}  // namespace prism
