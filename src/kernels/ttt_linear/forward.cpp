// One head of one sequence at a time, mini-batch after mini-batch; W and every matrix stay in the thread's
// cache.
#include "kernels/common/targets.h"
#include "kernels/ttt_linear/rows.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ttt_linear/forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include "kernels/ttt_linear/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class T>
struct TttForwardBuffers {
  TttForwardBuffers(Carver& memory, const TttSizes<T>& z) : norm(memory, z) {
    for (T** tokens : {&q, &k, &v, &z_k, &z_q, &xhat, &h, &g}) *tokens = memory.take<T>(z.token_size);
    keys_t = memory.take<T>(z.turned_size);
    scores = memory.take<T>(z.score_size);
    W = memory.take<T>(z.state_size);
    sum = memory.take<T>(z.state_size);
    size = memory.used();
  }
  TttNorm<T> norm;
  T *q, *k, *v, *z_k, *z_q, *xhat, *h, *g, *keys_t, *scores, *W, *sum;
  size_t size;
};

/// g of the mini-batch's `count` tokens, weighted with lr.
template <class T>
HWY_INLINE void make_gradients(const TttLinearInputs& in, const TttSizes<T>& z, const TttRow& row,
                               int64_t token, int64_t count, const TttForwardBuffers<T>& at) {
  matmul(at.k, z.k_row, int64_t(1), at.W, z.k_row, at.z_k, z.k_row, count, z.cols, z.inputs);
  for (int64_t j = 0; j < count; ++j) {
    T* const g = at.g + j * z.k_row;
    inner_gradient(at.z_k + j * z.k_row, at.k + j * z.k_row, at.v + j * z.k_row, at.norm, z, at.xhat, at.h,
                   g);
    scale_row(g, *row_of<T>(in.lr, token + j, 0, row.head), z.cols, g);
  }
}

/// o = q + LN(q' W - place_step sum_j (q' k'_j) g_j).
template <class T, class Storage>
HWY_INLINE void make_output(const TttLinearShape& shape, const TttSizes<T>& z, const T* place_step,
                            const TttRow& row, int64_t token, int64_t count, const TttForwardBuffers<T>& at,
                            Storage* o) {
  make_scores(at.q, at.keys_t, z, count, at.scores);
  for (int64_t t = 0; t < count; ++t)
    for (int64_t j = 0; j <= t; ++j) at.scores[t * z.c_row + j] *= -place_step[t];
  matmul(at.q, z.k_row, int64_t(1), at.W, z.k_row, at.z_q, z.k_row, count, z.cols, z.inputs);
  matmul(at.scores, z.c_row, int64_t(1), at.g, z.k_row, at.z_q, z.k_row, count, z.cols, count, true,
         Part::kLowerDepth);
  const Tag<T> d;
  for (int64_t t = 0; t < count; ++t) {
    T* const out = at.z_q + t * z.k_row;
    normalise(out, at.norm.ones, z, at.xhat);
    for (int64_t c = 0; c < z.cols; c += lanes<T>()) {
      const auto y = hn::MulAdd(hn::Load(d, at.norm.weight + c), hn::Load(d, at.xhat + c),
                                hn::Load(d, at.norm.bias + c));
      hn::Store(hn::Add(y, hn::Load(d, at.q + t * z.k_row + c)), d, out + c);
    }
    store_row(out, z.K, T(1), o + ((token + t) * shape.heads + row.head) * z.K);
  }
}

template <class Storage>
HWY_NOINLINE void ttt_forward_row_as(const TttLinearShape& shape, const TttLinearInputs& in,
                                     const TttRow& row, void* o, const TttLinearStates& last, void* starts) {
  using T = RealOf<Storage>;
  const TttSizes<T> z(shape);
  const auto at = buffers_of_thread<TttForwardBuffers<T>>(z);
  std::fill_n(reinterpret_cast<std::byte*>(at.norm.weight), at.size, std::byte(0));  // padding takes no NaN
  at.norm.load(in, z, row.head);
  load_weights(weights_at(static_cast<const T*>(in.weights), shape, row.sequence, row.head), z, at.W);
  const auto* const place_step = static_cast<const T*>(in.place_step);
  const auto put = [&](void* to, const T* W, int64_t index) {
    if (to) store_weights(W, z, weights_at(static_cast<T*>(to), shape, index, row.head));
  };

  const int64_t begin = shape.sequences.offsets[row.sequence],
                end = shape.sequences.offsets[row.sequence + 1];
  int64_t batch = row.first_batch;
  for (int64_t token = begin; token < end; token += z.C, ++batch) {
    const int64_t count = std::min(z.C, end - token);
    put(starts, at.W, batch);
    load_tokens<T, Storage>(in.q, z, token, count, row.head, true, at.q);
    load_tokens<T, Storage>(in.k, z, token, count, row.head, true, at.k);
    load_tokens<T, Storage>(in.v, z, token, count, row.head, false, at.v);
    transpose(at.k, z.k_row, count, z.inputs, at.keys_t, z.c_row);
    make_gradients(in, z, row, token, count, at);
    make_output(shape, z, place_step, row, token, count, at, static_cast<Storage*>(o));
    if (count < z.C) {
      put(last.start, at.W, row.sequence);
      matmul(at.keys_t, z.c_row, int64_t(1), at.g, z.k_row, at.sum, z.k_row, z.inputs, z.cols, count);
    }
    for (int64_t j = 0; j < count; ++j)
      scale_row(at.g + j * z.k_row, -place_step[count - 1], z.cols, at.g + j * z.k_row);
    matmul(at.keys_t, z.c_row, int64_t(1), at.g, z.k_row, at.W, z.k_row, z.inputs, z.cols, count, true);
  }
  put(last.weights, at.W, row.sequence);
  put(last.sum, at.sum, row.sequence);
  if ((end - begin) % z.C == 0) put(last.start, at.W, row.sequence);
}

void ttt_forward_row(const TttLinearShape& shape, const TttLinearInputs& in, const TttRow& row, void* o,
                     const TttLinearStates& last, void* starts) {
  with_storage(shape.dtype, [&](auto* storage) {
    ttt_forward_row_as<std::remove_pointer_t<decltype(storage)>>(shape, in, row, o, last, starts);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(ttt_forward_row);

int64_t ttt_linear_count(const TttLinearShape& shape) {
  return chunk_starts(shape.sequences, shape.mini_batch).back();
}

void ttt_linear_forward(const TttLinearShape& shape, const TttLinearInputs& in, void* o,
                        const TttLinearStates& last, void* starts) {
  const std::vector<int64_t> first = chunk_starts(shape.sequences, shape.mini_batch);
  const double work = 4.0 * double(shape.tokens()) * double(shape.heads * shape.width * shape.width);
  parallel_for(shape.sequences.count * shape.heads, work, [&](int64_t i) {
    const int64_t sequence = i / shape.heads;
    HWY_DYNAMIC_DISPATCH(ttt_forward_row)
    (shape, in, {sequence, i % shape.heads, first[sequence]}, o, last, starts);
  });
}

}  // namespace prism::kernels
#endif
