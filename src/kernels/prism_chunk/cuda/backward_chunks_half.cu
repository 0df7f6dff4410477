#include "kernels/prism_chunk/cuda/backward_chunks.cuh"

namespace prism::kernels::cuda {

const char* launch_chunk_gradients_f16(const BackwardParams& params, CUstream_st* stream) {
  return launch_chunk_gradients<__half>(params, stream);
}

}  // namespace prism::kernels::cuda
