#pragma once
// The elementwise and gather parts of next-item losses in fp32; docs in ops/softmax_loss.h.
#include <cstdint>

namespace prism::kernels {

/// In place, a row of scores becomes e_i = exp(s_i - max); inverse_sums gets 1 / sum e, losses gets
/// log(sum e) + max - s_target. scores [rows, items] contiguous.
void softmax_rows(float* scores, int64_t rows, int64_t items, const int64_t* targets, float* inverse_sums,
                  double* losses);

enum class SampledKind { kSoftmax, kBinary };

/// Scores of each position against its own candidates (the target first, then n negatives).
struct SampledShape {
  SampledKind kind = SampledKind::kSoftmax;
  int64_t positions = 0, candidates = 2, width = 1;  ///< candidates = 1 + n
  double positive_weight = 1;                        ///< of the target's term of kBinary
  double scale = 1;                                  ///< of the gradients
};

/// h [N,D], items [I,D], ids [N,1+n], correction [N,1+n] or null. Writes d_scores [N,1+n] (scaled), d_h [N,D]
/// and losses [N] (not scaled).
void sampled_scores(const SampledShape& shape, const float* h, const float* items, const int64_t* ids,
                    const float* correction, float* d_scores, float* d_h, double* losses);

/// d_items[ids] += d_scores h. An item's terms are added in order of position, whatever the threads.
void add_item_gradients(const SampledShape& shape, const float* h, const int64_t* ids, const float* d_scores,
                        float* d_items);

}  // namespace prism::kernels
