// libprism_cuda.so: loading it makes the CUDA kernels known to libprism.so.
#include <c10/cuda/CUDAStream.h>

#include "cuda_graph.h"
#include "prism/ops/cuda_kernels.h"

namespace prism {
namespace {

[[maybe_unused]] const bool kRegistered = [] {
  set_cuda_kernels({.current_stream = [] { return c10::cuda::getCurrentCUDAStream().stream(); },
                    .record_graph = record_cuda_graph,
                    .softmax_loss = kernels::cuda::softmax_loss,
                    .dropout_add = kernels::cuda::dropout_add,
                    .l2norm_forward = kernels::cuda::l2norm_forward,
                    .l2norm_backward = kernels::cuda::l2norm_backward,
                    .rms_norm_forward = kernels::cuda::rms_norm_forward,
                    .rms_norm_backward_workspace = kernels::cuda::rms_norm_backward_workspace,
                    .rms_norm_backward = kernels::cuda::rms_norm_backward,
                    .swiglu_forward = kernels::cuda::swiglu_forward,
                    .swiglu_backward = kernels::cuda::swiglu_backward,
                    .refine_forward = kernels::cuda::prism_refine_forward,
                    .refine_backward = kernels::cuda::prism_refine_backward,
                    .step = kernels::cuda::prism_step,
                    .chunk_supports = kernels::cuda::prism_chunk_supports,
                    .chunk_forward_workspace = kernels::cuda::prism_chunk_forward_workspace,
                    .chunk_forward = kernels::cuda::prism_chunk_forward,
                    .chunk_backward_workspace = kernels::cuda::prism_chunk_backward_workspace,
                    .chunk_backward = kernels::cuda::prism_chunk_backward,
                    .short_conv_forward = kernels::cuda::short_conv_forward,
                    .short_conv_backward_workspace = kernels::cuda::short_conv_backward_workspace,
                    .short_conv_backward = kernels::cuda::short_conv_backward,
                    .short_conv_history = kernels::cuda::short_conv_history,
                    .short_conv_step = kernels::cuda::short_conv_step});
  return true;
}();

}  // namespace
}  // namespace prism
