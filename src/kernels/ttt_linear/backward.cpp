// One head of one sequence at a time, from the last mini-batch to the first: everything inside a mini-batch
// is recomputed from W at its start.
#include "kernels/common/targets.h"
#include "kernels/ttt_linear/rows.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ttt_linear/backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include "kernels/ttt_linear/gradient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

/// The sums over the sequence's tokens, in place in the call's results.
template <class T>
struct TttSums {
  T *place_step, *norm_weight, *norm_bias;
};

/// dz_q of the reads, and the gradients of norm, place_step and (first part) q.
template <class T>
HWY_NOINLINE void output_gradient(const TttSizes<T>& z, const T* place_step, int64_t count,
                                  const TttBackwardBuffers<T>& at, T* dplace_step) {
  matmul(at.q, z.k_row, int64_t(1), at.W, z.k_row, at.z_q, z.k_row, count, z.cols, z.inputs);
  matmul(at.scores, z.c_row, int64_t(1), at.g, z.k_row, at.spread, z.k_row, count, z.cols, count, false,
         Part::kLowerDepth);
  for (int64_t t = 0; t < count; ++t) {
    T *const row = at.z_q + t * z.k_row, *const spread = at.spread + t * z.k_row;
    add_row(spread, -place_step[t], z.cols, row);
    layer_norm_gradient(row, at.d_o + t * z.k_row, at.norm, z, at.xhat_q, at.dnorm, row);
    dplace_step[t] -= dot(row, spread, z.cols);
    scale_row(row, -place_step[t], z.cols, at.dspread + t * z.k_row);
  }
}

/// dg of every token, and what the last weights say about the keys (dk, first part) and place_step.
template <class T>
HWY_NOINLINE void gradient_gradient(const TttSizes<T>& z, T last_step, int64_t count,
                                    const TttBackwardBuffers<T>& at, const T* dsum, T* dlast_step) {
  matmul(at.scores, int64_t(1), z.c_row, at.dspread, z.k_row, at.dg, z.k_row, count, z.cols, count, false,
         Part::kUpperDepth);
  transpose(at.dW, z.k_row, z.inputs, z.K, at.turned, z.k_row);
  matmul(at.g, z.k_row, int64_t(1), at.turned, z.k_row, at.dk, z.k_row, count, z.input_cols, z.K);
  for (int64_t j = 0; j < count; ++j) {
    *dlast_step -= dot(at.k + j * z.k_row, at.dk + j * z.k_row, z.input_cols);
    scale_row(at.dk + j * z.k_row, -last_step, z.cols, at.dk + j * z.k_row);
    scale_row(at.k + j * z.k_row, -last_step, z.input_cols, at.scaled + j * z.k_row);
  }
  matmul(at.scaled, z.k_row, int64_t(1), at.dW, z.k_row, at.dg, z.k_row, count, z.cols, z.inputs, true);
  if (!dsum) return;
  transpose(dsum, z.k_row, z.inputs, z.K, at.turned, z.k_row);
  matmul(at.g, z.k_row, int64_t(1), at.turned, z.k_row, at.dk, z.k_row, count, z.cols, z.K, true);
  matmul(at.k, z.k_row, int64_t(1), dsum, z.k_row, at.dg, z.k_row, count, z.cols, z.inputs, true);
}

/// dq, dk and dW of the mini-batch from dz_k and dz_q (in z_q), on top of what is there.
template <class T>
HWY_NOINLINE void product_gradients(const TttSizes<T>& z, int64_t count, const TttBackwardBuffers<T>& at) {
  transpose(at.g, z.k_row, count, z.K, at.gradients_t, z.c_row);
  matmul(at.dspread, z.k_row, int64_t(1), at.gradients_t, z.c_row, at.dscores, z.c_row, count,
         round_up(count, lanes<T>()), z.K, false, Part::kLowerResult);
  keep_lower(at.dscores, z, count);
  transpose(at.W, z.k_row, z.inputs, z.K, at.turned, z.k_row);
  matmul(at.z_q, z.k_row, int64_t(1), at.turned, z.k_row, at.d_o, z.k_row, count, z.cols, z.K, true);
  matmul(at.dscores, z.c_row, int64_t(1), at.k, z.k_row, at.d_o, z.k_row, count, z.cols, count, true,
         Part::kLowerDepth);
  matmul(at.dz, z.k_row, int64_t(1), at.turned, z.k_row, at.dk, z.k_row, count, z.cols, z.K, true);
  matmul(at.dscores, int64_t(1), z.c_row, at.q, z.k_row, at.dk, z.k_row, count, z.cols, count, true,
         Part::kUpperDepth);
  matmul(at.q, int64_t(1), z.k_row, at.z_q, z.k_row, at.dW, z.k_row, z.inputs, z.cols, count, true);
  matmul(at.k, int64_t(1), z.k_row, at.dz, z.k_row, at.dW, z.k_row, z.inputs, z.cols, count, true);
}

/// One mini-batch: dW holds the gradient of the weights after it and then of those at its start.
template <class Storage, class T>
HWY_INLINE void backward_batch(const TttLinearShape& shape, const TttLinearInputs& in, const TttSizes<T>& z,
                               const TttRow& row, int64_t token, int64_t count, const View& d_o,
                               const T* dsum, const TttBackwardBuffers<T>& at, const TttSums<T>& sums,
                               const TttLinearGradients& out) {
  const auto* const place_step = static_cast<const T*>(in.place_step);
  load_tokens<T, Storage>(in.q, z, token, count, row.head, true, at.q);
  load_tokens<T, Storage>(in.k, z, token, count, row.head, true, at.k);
  load_tokens<T, Storage>(in.v, z, token, count, row.head, false, at.v);
  load_tokens<T, Storage>(d_o, z, token, count, row.head, false, at.d_o);
  transpose(at.k, z.k_row, count, z.inputs, at.keys_t, z.c_row);
  make_scores(at.q, at.keys_t, z, count, at.scores);
  matmul(at.k, z.k_row, int64_t(1), at.W, z.k_row, at.dz, z.k_row, count, z.cols, z.inputs);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t r = j * z.k_row;
    at.stats[j] =
        inner_gradient(at.dz + r, at.k + r, at.v + r, at.norm, z, at.xhat + r, at.h + r, at.plain + r);
    at.lr[j] = *row_of<T>(in.lr, token + j, 0, row.head);
    scale_row(at.plain + r, at.lr[j], z.cols, at.g + r);
  }
  output_gradient(z, place_step, count, at, sums.place_step);
  gradient_gradient(z, place_step[count - 1], count, at, dsum, sums.place_step + count - 1);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t r = j * z.k_row;
    static_cast<T*>(out.dlr)[(token + j) * shape.heads + row.head] = dot(at.dg + r, at.plain + r, z.cols);
    inner_gradient_gradient(at, z, j);
  }
  product_gradients(z, count, at);
  const auto put = [&](void* to, const T* from, T factor) {
    for (int64_t i = 0; i < count; ++i)
      store_row(from + i * z.k_row, z.K, factor,
                static_cast<Storage*>(to) + ((token + i) * shape.heads + row.head) * z.K);
  };
  put(out.dq, at.d_o, T(1));
  put(out.dk, at.dk, T(1));
  put(out.dv, at.derror, T(-1));
}

template <class Storage>
HWY_NOINLINE void ttt_backward_row_as(const TttLinearShape& shape, const TttLinearInputs& in,
                                      const void* starts, const View& d_o, const TttLinearStates& d_last,
                                      const TttRow& row, const TttLinearGradients& out) {
  using T = RealOf<Storage>;
  const TttSizes<T> z(shape);
  const auto at = buffers_of_thread<TttBackwardBuffers<T>>(z);
  std::fill_n(reinterpret_cast<std::byte*>(at.norm.weight), at.size, std::byte(0));  // padding takes no NaN
  at.norm.load(in, z, row.head);
  const int64_t place = row.sequence * shape.heads + row.head;
  const TttSums<T> sums{static_cast<T*>(out.dplace_step) + place * z.C,
                        static_cast<T*>(out.dnorm_weight) + place * z.K,
                        static_cast<T*>(out.dnorm_bias) + place * z.K};
  std::fill_n(sums.place_step, z.C, T(0));

  const auto add = [&](const void* from, T* to) {
    if (!from) return;
    load_weights(weights_at(static_cast<const T*>(from), shape, row.sequence, row.head), z, at.W);
    for (int64_t i = 0; i < z.inputs; ++i) add_row(at.W + i * z.k_row, T(1), z.cols, to + i * z.k_row);
  };
  const int64_t begin = shape.sequences.offsets[row.sequence],
                end = shape.sequences.offsets[row.sequence + 1];
  const int64_t batches = (end - begin + z.C - 1) / z.C;
  const bool open = (end - begin) % z.C != 0;
  add(d_last.weights, at.dW);
  if (open)
    add(d_last.sum, at.dsum);
  else
    add(d_last.start, at.dW);
  for (int64_t b = batches - 1; b >= 0; --b) {
    const int64_t token = begin + b * z.C, count = std::min(z.C, end - token);
    load_weights(weights_at(static_cast<const T*>(starts), shape, row.first_batch + b, row.head), z, at.W);
    const bool is_open = count < z.C;
    backward_batch<Storage>(shape, in, z, row, token, count, d_o, is_open && d_last.sum ? at.dsum : nullptr,
                            at, sums, out);
    if (is_open) add(d_last.start, at.dW);
  }
  store_row(at.dnorm.weight, z.K, T(1), sums.norm_weight);
  store_row(at.dnorm.bias, z.K, T(1), sums.norm_bias);
  store_weights(at.dW, z, weights_at(static_cast<T*>(out.dweights), shape, row.sequence, row.head));
}

void ttt_backward_row(const TttLinearShape& shape, const TttLinearInputs& in, const void* starts,
                      const View& d_o, const TttLinearStates& d_last, const TttRow& row,
                      const TttLinearGradients& out) {
  with_storage(shape.dtype, [&](auto* storage) {
    ttt_backward_row_as<std::remove_pointer_t<decltype(storage)>>(shape, in, starts, d_o, d_last, row, out);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(ttt_backward_row);

void ttt_linear_backward(const TttLinearShape& shape, const TttLinearInputs& in, const void* starts,
                         const View& d_o, const TttLinearStates& d_last, const TttLinearGradients& out) {
  const std::vector<int64_t> first = chunk_starts(shape.sequences, shape.mini_batch);
  const double work = 12.0 * double(shape.tokens()) * double(shape.heads * shape.width * shape.width);
  parallel_for(shape.sequences.count * shape.heads, work, [&](int64_t i) {
    const int64_t sequence = i / shape.heads;
    HWY_DYNAMIC_DISPATCH(ttt_backward_row)
    (shape, in, starts, d_o, d_last, {sequence, i % shape.heads, first[sequence]}, out);
  });
}

}  // namespace prism::kernels
#endif
