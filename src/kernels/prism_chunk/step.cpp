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

/// Columns [v, v + one vector) of the state; only `count` of them exist.
template <bool kWhole, class T, class Storage>
HWY_INLINE void step_columns(const StepBuffers<T>& at, int64_t steps, int64_t K, int64_t V, T a, T b,
                             int64_t v, int64_t count, T* state, Storage* o) {
  const Tag<T> d;
  const auto load = [&](const T* from) { return kWhole ? hn::LoadU(d, from) : load_tail(from, count); };
  auto erased = hn::Zero(d), out = hn::Zero(d);
  for (int64_t k = 0; k < K; ++k) erased = hn::MulAdd(hn::Set(d, at.read[k]), load(state + k * V), erased);
  erased = hn::Mul(hn::Set(d, -a * b), erased);
  const auto decay = hn::Set(d, a);
  for (int64_t k = 0; k < K; ++k) {
    auto s = hn::MulAdd(hn::Set(d, at.keys[k]), erased, hn::Mul(decay, load(state + k * V)));
    for (int64_t l = 0; l < steps; ++l)
      s = hn::MulAdd(hn::Set(d, at.keys[l * at.row + k]), hn::Load(d, at.values + l * at.value_row + v), s);
    out = hn::MulAdd(hn::Set(d, at.q[k]), s, out);
    if constexpr (kWhole)
      hn::StoreU(s, d, state + k * V);
    else
      store_tail<T>(s, state + k * V, count);
  }
  if constexpr (kWhole)
    store_vector(out, o);
  else
    store_tail<T>(out, o, count);
}

template <class Storage>
void step_row_as(const PrismChunkShape& shape, const PrismChunkInputs& in, int64_t token, int64_t head,
                 void* states, void* o) {
  using T = RealOf<Storage>;
  const int64_t K = shape.key_width, V = shape.value_width, key_head = head / (shape.heads / shape.key_heads);
  const auto at = buffers_of_thread<StepBuffers<T>>(shape.steps, K, V);
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
  int64_t v = 0;
  for (; v + lanes<T>() <= V; v += lanes<T>())
    step_columns<true>(at, shape.steps, K, V, a, b, v, lanes<T>(), state + v, out + v);
  if (v < V) step_columns<false>(at, shape.steps, K, V, a, b, v, V - v, state + v, out + v);
}

void step_row(const PrismChunkShape& shape, const PrismChunkInputs& in, int64_t token, int64_t head,
              void* states, void* o) {
  with_storage(shape.dtype, [&](auto* storage) {
    step_row_as<std::remove_pointer_t<decltype(storage)>>(shape, in, token, head, states, o);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(step_row);

void prism_step(const PrismChunkShape& shape, const PrismChunkInputs& in, void* state, void* o) {
  const double work = static_cast<double>(shape.tokens()) * shape.heads * shape.key_width * shape.value_width;
  parallel_for(shape.tokens() * shape.heads, work, [&](int64_t i) {
    const int64_t token = i / shape.heads, head = i % shape.heads;
    HWY_DYNAMIC_DISPATCH(step_row)(shape, in, token, head, state, o);
  });
}

}  // namespace prism::kernels
#endif
