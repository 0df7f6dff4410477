#pragma once
// short_conv on a CUDA device: the functions of short_conv.h with device pointers and a stream. Nothing here
// allocates or waits for the device, so calls can be captured in a CUDA graph. Repeats are bit-equal; y and
// dx of a token do not depend on the others in the call, beyond those of its own sequence.
#include "prism/kernels/short_conv.h"

struct CUstream_st;

namespace prism::kernels::cuda {

/// W up to this runs here; more is an error of the caller.
inline constexpr int64_t kMaxConvTaps = 8;

struct ShortConvCudaShape {
  Scalar dtype = Scalar::kFloat32;  ///< of x, y, histories and their gradients
  int64_t tokens = 0;               ///< of all sequences, below 2^30
  int64_t sequences = 0;  ///< with `offsets` any number; without, `tokens` is cut into rows of equal length
  const int64_t* offsets =
      nullptr;  ///< device memory [sequences + 1], 0 = offsets[0] <= ... = tokens, or nullptr
  int64_t channels = 1, width = 4;  ///< D, W
  bool silu = true;
};

/// Inputs as in short_conv.h, but weight and bias are fp32 (fp64 beside fp64) whatever x is. y [tokens, D]
/// contiguous. Asynchronous on `stream`, one launch. Returns nullptr, or the CUDA runtime's message when the
/// launch fails.
const char* short_conv_forward(const ShortConvCudaShape& shape, const ShortConvInputs& in, void* y,
                               CUstream_st* stream);

/// Bytes of device memory that the backward needs as `workspace`, aligned to 256; contents do not matter
/// before or after. 0 where neither dweight nor dbias is wanted.
int64_t short_conv_backward_workspace(const ShortConvCudaShape& shape, bool with_weights);

/// Gradients as in short_conv.h: each may be null, dweight and dbias in the type of the weight. Every element
/// of the given outputs is written. Sums over tokens are cut by the shape alone and added in order.
/// Asynchronous; at most two launches.
const char* short_conv_backward(const ShortConvCudaShape& shape, const ShortConvInputs& in, const View& dy,
                                const ShortConvGradients& out, void* workspace, CUstream_st* stream);

/// The last W-1 inputs of each sequence, `history` [sequences, D, W-1] contiguous, the latest last; of `in`,
/// x and initial_state are read. Asynchronous, one launch.
const char* short_conv_history(const ShortConvCudaShape& shape, const ShortConvInputs& in, void* history,
                               CUstream_st* stream);

/// One token of each sequence (tokens = sequences, no offsets), with the bits of short_conv_forward from the
/// same history [sequences, D, W-1], which is moved on in place; `in.initial_state` is unused. Asynchronous,
/// one launch.
const char* short_conv_step(const ShortConvCudaShape& shape, const ShortConvInputs& in, void* history,
                            void* y, CUstream_st* stream);

}  // namespace prism::kernels::cuda
