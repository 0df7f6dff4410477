#pragma once
// How libprism.so reaches the CUDA kernels without linking them: libprism_cuda.so fills this table when it is
// loaded.
#include "prism/kernels/dropout_cuda.h"
#include "prism/kernels/l2norm_cuda.h"
#include "prism/kernels/prism_chunk_cuda.h"
#include "prism/kernels/prism_refine_cuda.h"
#include "prism/kernels/prism_step_cuda.h"
#include "prism/kernels/rms_norm_cuda.h"
#include "prism/kernels/short_conv_cuda.h"
#include "prism/kernels/softmax_loss_cuda.h"
#include "prism/kernels/swiglu_cuda.h"
#include "prism/ops/device_graph.h"

namespace prism {

struct CudaKernels {
  CUstream_st* (*current_stream)() = nullptr;
  decltype(&record_device_graph) record_graph = nullptr;
  decltype(&kernels::cuda::softmax_loss) softmax_loss = nullptr;
  decltype(&kernels::cuda::dropout_add) dropout_add = nullptr;
  decltype(&kernels::cuda::l2norm_forward) l2norm_forward = nullptr;
  decltype(&kernels::cuda::l2norm_backward) l2norm_backward = nullptr;
  decltype(&kernels::cuda::rms_norm_forward) rms_norm_forward = nullptr;
  decltype(&kernels::cuda::rms_norm_backward_workspace) rms_norm_backward_workspace = nullptr;
  decltype(&kernels::cuda::rms_norm_backward) rms_norm_backward = nullptr;
  decltype(&kernels::cuda::swiglu_forward) swiglu_forward = nullptr;
  decltype(&kernels::cuda::swiglu_backward) swiglu_backward = nullptr;
  decltype(&kernels::cuda::prism_refine_forward) refine_forward = nullptr;
  decltype(&kernels::cuda::prism_refine_backward) refine_backward = nullptr;
  decltype(&kernels::cuda::prism_step) step = nullptr;
  decltype(&kernels::cuda::prism_chunk_supports) chunk_supports = nullptr;
  decltype(&kernels::cuda::prism_chunk_forward_workspace) chunk_forward_workspace = nullptr;
  decltype(&kernels::cuda::prism_chunk_forward) chunk_forward = nullptr;
  decltype(&kernels::cuda::prism_chunk_backward_workspace) chunk_backward_workspace = nullptr;
  decltype(&kernels::cuda::prism_chunk_backward) chunk_backward = nullptr;
  decltype(&kernels::cuda::short_conv_forward) short_conv_forward = nullptr;
  decltype(&kernels::cuda::short_conv_backward_workspace) short_conv_backward_workspace = nullptr;
  decltype(&kernels::cuda::short_conv_backward) short_conv_backward = nullptr;
  decltype(&kernels::cuda::short_conv_history) short_conv_history = nullptr;
  decltype(&kernels::cuda::short_conv_step) short_conv_step = nullptr;
};

/// Called once by libprism_cuda.so.
void set_cuda_kernels(const CudaKernels& kernels);
/// The table, or nullptr where the CUDA kernels are not loaded and composed operations serve.
const CudaKernels* cuda_kernels();

}  // namespace prism
