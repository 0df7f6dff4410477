// One token of every sequence: each column tile of a state is read once for the erase and once for the
// update, the second time from the cache.
#include "kernels/common/targets.h"
#include "prism/kernels/prism_chunk.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prism_chunk/step.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include <cmath>

#include "kernels/common/rows-inl.h"
#include "kernels/common/workspace.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class T>
struct StepBuffers {
  StepBuffers(Carver& memory, int64_t steps, int64_t key_width, int64_t value_width)
      : row(round_up(key_width, lanes<T>())),
        value_row(round_up(value_width, lanes<T>())),
        q(memory.take<T>(row)),
        read(memory.take<T>(row)),
        keys(memory.take<T>(steps * row)),
        values(memory.take<T>(steps * value_row)) {}
  int64_t row, value_row;
  T *q, *read, *keys, *values;
};

/// kVectors vectors of columns of the state, from column v; all of them exist unless `count` says how many.
template <int kVectors, bool kWhole, class T, class Storage>
HWY_INLINE void step_columns(const StepBuffers<T>& at, int64_t steps, int64_t K, int64_t V, T a, T b,
                             int64_t v, int64_t count, T* state, Storage* o) {
  const Tag<T> d;
  using Vector = hn::Vec<Tag<T>>;
  const auto load = [&](int64_t k, int j) {
    const T* const from = state + k * V + j * lanes<T>();
    return kWhole ? hn::LoadU(d, from) : load_tail(from, count);
  };
  Vector erased[kVectors], out[kVectors];
  PRISM_UNROLL
  for (int j = 0; j < kVectors; ++j) erased[j] = out[j] = hn::Zero(d);
  for (int64_t k = 0; k < K; ++k) {
    const auto read = hn::Set(d, at.read[k]);
    PRISM_UNROLL
    for (int j = 0; j < kVectors; ++j) erased[j] = hn::MulAdd(read, load(k, j), erased[j]);
  }
  const auto decay = hn::Set(d, a), strength = hn::Set(d, -a * b);
  PRISM_UNROLL
  for (int j = 0; j < kVectors; ++j) erased[j] = hn::Mul(strength, erased[j]);
  for (int64_t k = 0; k < K; ++k) {
    Vector s[kVectors];
    const auto key = hn::Set(d, at.keys[k]), q = hn::Set(d, at.q[k]);
    PRISM_UNROLL
    for (int j = 0; j < kVectors; ++j) s[j] = hn::MulAdd(key, erased[j], hn::Mul(decay, load(k, j)));
    for (int64_t l = 0; l < steps; ++l) {
      const auto write = hn::Set(d, at.keys[l * at.row + k]);
      const T* const value = at.values + l * at.value_row + v;
      PRISM_UNROLL
      for (int j = 0; j < kVectors; ++j) s[j] = hn::MulAdd(write, hn::Load(d, value + j * lanes<T>()), s[j]);
    }
    PRISM_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      out[j] = hn::MulAdd(q, s[j], out[j]);
      store_columns<kWhole, T>(s[j], state + k * V, {j * lanes<T>(), count});
    }
  }
  PRISM_UNROLL
  for (int j = 0; j < kVectors; ++j) store_columns<kWhole, T>(out[j], o, {j * lanes<T>(), count});
}

template <class Storage>
HWY_INLINE void step_row(const PrismChunkShape& shape, const PrismChunkInputs& in, int64_t token,
                         int64_t head, const StepBuffers<RealOf<Storage>>& at, void* states, void* o) {
  using T = RealOf<Storage>;
  const int64_t K = shape.key_width, V = shape.value_width, key_head = head / (shape.heads / shape.key_heads);
  load_row(row_of<Storage>(in.q, token, 0, key_head), K, static_cast<T>(shape.scale), at.q, at.row);
  const View& read = in.erase_read.data ? in.erase_read : in.k;
  load_row(row_of<Storage>(read, token, 0, key_head), K, T(1), at.read, at.row);
  for (int64_t l = 0; l < shape.steps; ++l) {
    load_row(row_of<Storage>(in.k, token, l, key_head), K, T(1), at.keys + l * at.row, at.row);
    load_row(row_of<Storage>(in.w, token, l, head), V, T(1), at.values + l * at.value_row, at.value_row);
  }
  const T a = std::exp(*row_of<T>(in.g, token, 0, head)), b = *row_of<T>(in.b, token, 0, head);
  const int64_t row = token * shape.heads + head;
  T* const state = static_cast<T*>(states) + row * K * V;
  Storage* const out = static_cast<Storage*>(o) + row * V;
  constexpr int kVectors = 4;
  int64_t v = 0;
  for (; v + kVectors * lanes<T>() <= V; v += kVectors * lanes<T>())
    step_columns<kVectors, true>(at, shape.steps, K, V, a, b, v, lanes<T>(), state + v, out + v);
  for (; v + lanes<T>() <= V; v += lanes<T>())
    step_columns<1, true>(at, shape.steps, K, V, a, b, v, lanes<T>(), state + v, out + v);
  if (v < V) step_columns<1, false>(at, shape.steps, K, V, a, b, v, V - v, state + v, out + v);
}

/// Rows [begin, end) of all (token, head) pairs.
void step_rows(const PrismChunkShape& shape, const PrismChunkInputs& in, void* states, void* o, int64_t begin,
               int64_t end) {
  with_storage(shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    const auto at =
        buffers_of_thread<StepBuffers<RealOf<Storage>>>(shape.steps, shape.key_width, shape.value_width);
    for (int64_t row = begin; row < end; ++row)
      step_row<Storage>(shape, in, row / shape.heads, row % shape.heads, at, states, o);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(step_rows);

void prism_step(const PrismChunkShape& shape, const PrismChunkInputs& in, void* state, void* o) {
  const double work = static_cast<double>(shape.tokens()) * shape.heads * shape.key_width * shape.value_width;
  parallel_blocks(shape.tokens() * shape.heads, 4, work, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(step_rows)(shape, in, state, o, begin, end);
  });
}

}  // namespace prism::kernels
#endif
