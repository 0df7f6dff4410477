#pragma once
// prism_step on a CUDA device.
#include "prism/kernels/prism_chunk.h"

struct CUstream_st;

namespace prism::kernels::cuda {

/// K and V: any multiple of 8 up to this.
inline constexpr int64_t kMaxStepWidth = 256;
/// L: up to this.
inline constexpr int64_t kMaxStepWrites = 8;

/// One token a sequence: shape, `in`, `state` and o as in prism_chunk.h, in device memory; q, k, w,
/// erase_read and o in fp32, bf16 or fp16, b and g in fp32. The state is fp32 or bf16 (`state_type`);
/// arithmetic is fp32, and a bf16 state is rounded to nearest even when it is stored, after o is made. q, k,
/// w, erase_read and the state start on 16 bytes, and so do their rows: every stride is a multiple of 16
/// bytes. Asynchronous on `stream`; one launch, no host synchronisation, no workspace. Returns nullptr, or
/// what is wrong.
const char* prism_step(const PrismChunkShape& shape, const PrismChunkInputs& in, Scalar state_type,
                       void* state, void* o, CUstream_st* stream);

}  // namespace prism::kernels::cuda
