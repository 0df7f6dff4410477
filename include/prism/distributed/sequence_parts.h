#pragma once
#include <ATen/core/Tensor.h>

#include "prism/distributed/ranks.h"
#include "prism/ops/packing.h"
#include "prism/ops/prism_chunk.h"

namespace prism {

// Context parallelism: one long sequence (or B of them) cut along T into one part a rank, rank 0 having the
// beginning; parts may differ in length and be empty. Packed sequences are cut anywhere: the first sequence
// of a part goes on with the last one of the part before it, and where a sequence begins at the cut an empty
// one stands before it. Forward and backward are meetings of all ranks, so on every rank the loss must depend
// on the results.

/// prism_chunk of the whole sequence: o and gradients of this rank's part. A part is a linear map of the
/// state before it, S -> M S + R (src/kernels/prism_chunk/README.md), and so are its outputs, o = o' + Q S:
///   R, o'  from the part's own tokens and a zero state,
///   M, Q   from its keys alone, w = 0, and the identity as the state;
/// M and R of all ranks are exchanged, folded to the state S before each part, and o corrected by Q S.
/// A part with a border inside has M = 0. `args` and `packing` are this part's, cu_seqlens stay empty; an
/// initial_state is rank 0's alone, and for rows only; final_state [B,H,K,V] (packed: B = 1) is the state
/// after this part. All ranks need the same B, heads and widths. Error otherwise.
PrismChunkResult prism_chunk_in_parts(const PrismChunkArgs& args, const Packing& packing, Ranks& ranks);

/// short_conv of the whole sequence: this rank's part. x [B,T,C], weight [C,W]; every part but the last one
/// needs at least W - 1 tokens, unless a sequence begins in it.
at::Tensor short_conv_in_parts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               const Packing& packing, Ranks& ranks);

}  // namespace prism
