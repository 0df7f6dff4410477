// Next-item losses: the pass over scores between two matrix products, and losses with sampled negatives.
#include "prism/kernels/item_loss.h"

#include "kernels/common/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/item_loss/item_loss.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include <hwy/contrib/math/math-inl.h>

#include <cmath>

#include "kernels/common/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE float largest(const float* row, int64_t count) {
  const Tag<float> d;
  int64_t c = 0;
  auto best = hn::Set(d, row[0]);
  for (; c + lanes<float>() <= count; c += lanes<float>()) best = hn::Max(best, hn::LoadU(d, row + c));
  float most = hn::GetLane(hn::MaxOfLanes(d, best));
  for (; c < count; ++c) most = std::max(most, row[c]);
  return most;
}

/// row = exp(row - most); returns the sum, in double beyond a vector.
HWY_INLINE double exponentials(float* row, int64_t count, float most) {
  const Tag<float> d;
  const auto shift = hn::Set(d, most);
  double total = 0;
  constexpr int64_t kChunk = 1024;  // fp32 sums stay short
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(count, begin + kChunk);
    auto sum = hn::Zero(d);
    int64_t c = begin;
    for (; c + lanes<float>() <= end; c += lanes<float>()) {
      const auto e = hn::Exp(d, hn::Sub(hn::LoadU(d, row + c), shift));
      hn::StoreU(e, d, row + c);
      sum = hn::Add(sum, e);
    }
    total += hn::GetLane(hn::SumOfLanes(d, sum));
    if (c < end) {
      store_tail<float>(hn::Exp(d, hn::Sub(load_tail(row + c, end - c), shift)), row + c, end - c);
      for (; c < end; ++c) total += row[c];
    }
  }
  return total;
}

void softmax_row(float* row, int64_t items, int64_t target, float* inverse_sum, double* loss) {
  const float most = largest(row, items);
  const double of_target = row[target];
  const double sum = exponentials(row, items, most);
  *inverse_sum = static_cast<float>(1 / sum);
  *loss = std::log(sum) + most - of_target;
}

HWY_INLINE float product(const float* a, const float* b, int64_t width) {
  const Tag<float> d;
  auto sum = hn::Zero(d);
  int64_t c = 0;
  for (; c + lanes<float>() <= width; c += lanes<float>())
    sum = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; c < width; ++c) total += a[c] * b[c];
  return total;
}

HWY_INLINE void add_scaled(const float* from, float scale, int64_t width, float* to) {
  const Tag<float> d;
  const auto factor = hn::Set(d, scale);
  int64_t c = 0;
  for (; c + lanes<float>() <= width; c += lanes<float>())
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, from + c), hn::LoadU(d, to + c)), d, to + c);
  for (; c < width; ++c) to[c] += scale * from[c];
}

/// Scores -> scaled gradients of the softmax loss; the target is candidate 0.
HWY_INLINE double softmax_gradients(const SampledShape& shape, float* scores) {
  float inverse_sum = 0;
  double loss = 0;
  softmax_row(scores, shape.candidates, 0, &inverse_sum, &loss);
  const auto scale = static_cast<float>(shape.scale);
  for (int64_t j = 0; j < shape.candidates; ++j) scores[j] *= inverse_sum * scale;
  scores[0] -= scale;
  return loss;
}

/// Scores -> scaled gradients of the binary loss, from exp(-|s|) alone.
HWY_INLINE double binary_gradients(const SampledShape& shape, float* scores) {
  double loss = 0;
  for (int64_t j = 0; j < shape.candidates; ++j) {
    const float s = scores[j], e = std::exp(-std::abs(s)), sigmoid = (s < 0 ? e : 1.0F) / (1 + e);
    const double weight = j == 0 ? shape.positive_weight : 1.0;
    loss += weight * (std::log1p(e) + std::max(j == 0 ? -s : s, 0.0F));
    scores[j] = static_cast<float>(shape.scale * weight) * (j == 0 ? sigmoid - 1 : sigmoid);
  }
  return loss;
}

void sampled_position(const SampledShape& shape, const float* h, const float* items, const int64_t* ids,
                      const float* correction, float* d_scores, float* d_h, double* loss) {
  for (int64_t j = 0; j < shape.candidates; ++j)
    d_scores[j] = product(h, items + ids[j] * shape.width, shape.width) - (correction ? correction[j] : 0.0F);
  *loss = shape.kind == SampledKind::kSoftmax ? softmax_gradients(shape, d_scores)
                                              : binary_gradients(shape, d_scores);
  std::fill_n(d_h, shape.width, 0.0F);
  for (int64_t j = 0; j < shape.candidates; ++j)
    add_scaled(items + ids[j] * shape.width, d_scores[j], shape.width, d_h);
}

void add_part(const SampledShape& shape, const float* h, const int64_t* ids, const float* d_scores,
              int64_t part, int64_t parts, float* d_items) {
  for (int64_t i = 0; i < shape.positions; ++i)
    for (int64_t j = i * shape.candidates; j < (i + 1) * shape.candidates; ++j)
      if (parts == 1 || ids[j] % parts == part)
        add_scaled(h + i * shape.width, d_scores[j], shape.width, d_items + ids[j] * shape.width);
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(softmax_row);
HWY_EXPORT(sampled_position);
HWY_EXPORT(add_part);

void softmax_rows(float* scores, int64_t rows, int64_t items, const int64_t* targets, float* inverse_sums,
                  double* losses) {
  parallel_for(rows, 10.0 * static_cast<double>(rows) * static_cast<double>(items), [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(softmax_row)(scores + i * items, items, targets[i], inverse_sums + i, losses + i);
  });
}

void sampled_scores(const SampledShape& shape, const float* h, const float* items, const int64_t* ids,
                    const float* correction, float* d_scores, float* d_h, double* losses) {
  const double work = 2.0 * static_cast<double>(shape.positions * shape.candidates * shape.width);
  parallel_for(shape.positions, work, [&](int64_t i) {
    const int64_t first = i * shape.candidates;
    HWY_DYNAMIC_DISPATCH(sampled_position)
    (shape, h + i * shape.width, items, ids + first, correction ? correction + first : nullptr,
     d_scores + first, d_h + i * shape.width, losses + i);
  });
}

void add_item_gradients(const SampledShape& shape, const float* h, const int64_t* ids, const float* d_scores,
                        float* d_items) {
  const double work = static_cast<double>(shape.positions * shape.candidates * shape.width);
  const int64_t parts = omp_get_max_threads();  // each thread owns the items of one residue
  parallel_for(parts, work, [&](int64_t part) {
    HWY_DYNAMIC_DISPATCH(add_part)(shape, h, ids, d_scores, part, parts, d_items);
  });
}

}  // namespace prism::kernels
#endif
