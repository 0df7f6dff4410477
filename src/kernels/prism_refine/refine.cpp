// The refinement loop, a token and head at a time: its L steps stay in the first-level cache, and the
// backward makes residuals and slopes again instead of reading stored ones.
#include "kernels/common/targets.h"
#include "prism/kernels/prism_refine.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prism_refine/refine.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include "kernels/common/gelu-inl.h"
#include "kernels/common/workspace.h"

namespace prism::kernels {
#ifndef PRISM_KERNELS_REFINE_CALLS_
#define PRISM_KERNELS_REFINE_CALLS_
/// Tokens [begin, end) of a call.
struct RefineForward {
  const PrismRefineShape& shape;
  const PrismRefineInputs& in;
  void *w, *delta, *residual;
  int64_t begin, end;
};
struct RefineBackward {
  const PrismRefineShape& shape;
  const PrismRefineInputs& in;
  const View &dw, &ddelta, &dresidual;
  const PrismRefineGradients& out;
  int64_t begin, end;
};
#endif
}  // namespace prism::kernels

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

/// Rows of one token and head; views without data give null rows, which stand for a constant.
template <class Storage>
struct RefineRows {
  using T = RealOf<Storage>;
  RefineRows(const PrismRefineShape& s, const PrismRefineInputs& inputs, int64_t t, int64_t h)
      : shape(s), in(inputs), token(t), head(h) {}
  const Storage* row(const View& view, int64_t l = 0) const {
    return view.data ? row_of<Storage>(view, token, l, head) : nullptr;
  }
  T beta(int64_t l) const { return in.beta.data ? *row_of<T>(in.beta, token, l, head) : T(1); }
  Storage* out(void* to) const {
    return to ? static_cast<Storage*>(to) + (token * shape.heads + head) * shape.width : nullptr;
  }
  Storage* out(void* to, int64_t l) const {
    return to ? static_cast<Storage*>(to) + ((token * shape.steps + l) * shape.heads + head) * shape.width
              : nullptr;
  }
  const PrismRefineShape& shape;
  const PrismRefineInputs& in;
  int64_t token, head;
};

template <class T>
HWY_INLINE Gelu<T> apply(Nonlinearity nonlinearity, hn::Vec<Tag<T>> x) {
  if (nonlinearity == Nonlinearity::kGelu) return gelu(x);
  return {x, hn::Set(Tag<T>(), T(1))};
}

template <class Storage>
HWY_INLINE void refine_row(const RefineForward& call, const RefineRows<Storage>& at) {
  using T = RealOf<Storage>;
  const Tag<T> d;
  const PrismRefineShape& shape = call.shape;
  const Storage *const v = at.row(call.in.v), *const u = at.row(call.in.u);
  Storage* const residual_row = at.out(call.residual);
  for_columns(shape.width, lanes<T>(), [&](auto whole, Columns c) {
    constexpr bool kWhole = decltype(whole)::value;
    auto r = load_columns<kWhole>(v, c);
    if (u) r = hn::Sub(r, load_columns<kWhole>(u, c));
    for (int64_t l = 0; l < shape.steps; ++l) {
      const Storage* const p = at.row(call.in.p, l);
      const auto delta = apply<T>(shape.nonlinearity, p ? hn::Mul(load_columns<kWhole>(p, c), r) : r).value;
      if (Storage* const w = at.out(call.w, l))
        store_columns<kWhole, T>(hn::Mul(hn::Set(d, at.beta(l)), delta), w, c);
      if (Storage* const to = at.out(call.delta, l)) store_columns<kWhole, T>(delta, to, c);
      if (shape.residual == Residual::kSubtract) r = hn::Sub(r, delta);
    }
    if (residual_row) store_columns<kWhole, T>(r, residual_row, c);
  });
}

template <class T>
struct RefineBuffers {
  RefineBuffers(Carver& memory, int64_t steps)
      : residual(memory.take<T>(steps * lanes<T>())),
        slope(memory.take<T>(steps * lanes<T>())),
        dbeta(memory.take<T>(steps * lanes<T>())) {}
  T *residual, *slope, *dbeta;  // one vector a step: r_l, phi'(p_l r_l), and dw_l d_l summed over the vectors
};

template <bool kWhole, class Storage, class T>
HWY_INLINE void refine_gradient_columns(const RefineBackward& call, const RefineRows<Storage>& at,
                                        const RefineBuffers<T>& memory, Columns c) {
  const Tag<T> d;
  const PrismRefineShape& shape = call.shape;
  const bool subtract = shape.residual == Residual::kSubtract;
  const auto optional = [&](const Storage* row, T otherwise) {
    return row ? load_columns<kWhole>(row, c) : hn::Set(d, otherwise);
  };
  auto r = hn::Sub(optional(at.row(call.in.v), T(0)), optional(at.row(call.in.u), T(0)));
  for (int64_t l = 0; l < shape.steps; ++l) {
    const auto delta = apply<T>(shape.nonlinearity, hn::Mul(optional(at.row(call.in.p, l), T(1)), r));
    hn::Store(r, d, memory.residual + l * lanes<T>());
    hn::Store(delta.slope, d, memory.slope + l * lanes<T>());
    T* const dbeta = memory.dbeta + l * lanes<T>();
    hn::Store(hn::MulAdd(optional(at.row(call.dw, l), T(0)), delta.value, hn::Load(d, dbeta)), d, dbeta);
    if (subtract) r = hn::Sub(r, delta.value);
  }
  auto dr = optional(at.row(call.dresidual), T(0));
  for (int64_t l = shape.steps - 1; l >= 0; --l) {
    auto d_delta = hn::MulAdd(hn::Set(d, at.beta(l)), optional(at.row(call.dw, l), T(0)),
                              optional(at.row(call.ddelta, l), T(0)));
    if (subtract) d_delta = hn::Sub(d_delta, dr);
    const auto dx = hn::Mul(d_delta, hn::Load(d, memory.slope + l * lanes<T>()));
    if (Storage* const dp = at.out(call.out.dp, l))
      store_columns<kWhole, T>(hn::Mul(dx, hn::Load(d, memory.residual + l * lanes<T>())), dp, c);
    dr = hn::MulAdd(dx, optional(at.row(call.in.p, l), T(1)), dr);
  }
  if (Storage* const dv = at.out(call.out.dv)) store_columns<kWhole, T>(dr, dv, c);
  if (Storage* const du = at.out(call.out.du)) store_columns<kWhole, T>(hn::Neg(dr), du, c);
}

template <class Storage>
HWY_INLINE void refine_gradient_row(const RefineBackward& call, const RefineRows<Storage>& at,
                                    const RefineBuffers<RealOf<Storage>>& memory) {
  using T = RealOf<Storage>;
  const Tag<T> d;
  std::fill_n(memory.dbeta, call.shape.steps * lanes<T>(), T(0));
  for_columns(call.shape.width, lanes<T>(), [&](auto whole, Columns c) {
    refine_gradient_columns<decltype(whole)::value>(call, at, memory, c);
  });
  if (!call.out.dbeta) return;
  for (int64_t l = 0; l < call.shape.steps; ++l)
    static_cast<T*>(call.out.dbeta)[(at.token * call.shape.steps + l) * call.shape.heads + at.head] =
        hn::GetLane(hn::SumOfLanes(d, hn::Load(d, memory.dbeta + l * lanes<T>())));
}

void refine_tokens(const RefineForward& call) {
  with_storage(call.shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    for (int64_t token = call.begin; token < call.end; ++token)
      for (int64_t head = 0; head < call.shape.heads; ++head)
        refine_row(call, RefineRows<Storage>(call.shape, call.in, token, head));
  });
}

void refine_gradient_tokens(const RefineBackward& call) {
  with_storage(call.shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    const auto memory = buffers_of_thread<RefineBuffers<RealOf<Storage>>>(call.shape.steps);
    for (int64_t token = call.begin; token < call.end; ++token)
      for (int64_t head = 0; head < call.shape.heads; ++head)
        refine_gradient_row(call, RefineRows<Storage>(call.shape, call.in, token, head), memory);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(refine_tokens);
HWY_EXPORT(refine_gradient_tokens);

namespace {

/// Calls f(begin, end) for blocks of tokens.
template <class F>
void for_token_blocks(const PrismRefineShape& shape, F f) {
  const double work = 20.0 * static_cast<double>(shape.tokens) * shape.steps * shape.heads * shape.width;
  parallel_blocks(shape.tokens, 64, work, f);
}

}  // namespace

void prism_refine_forward(const PrismRefineShape& shape, const PrismRefineInputs& in, void* w, void* delta,
                          void* residual) {
  for_token_blocks(shape, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(refine_tokens)({shape, in, w, delta, residual, begin, end});
  });
}

void prism_refine_backward(const PrismRefineShape& shape, const PrismRefineInputs& in, const View& dw,
                           const View& ddelta, const View& dresidual, const PrismRefineGradients& out) {
  for_token_blocks(shape, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(refine_gradient_tokens)({shape, in, dw, ddelta, dresidual, out, begin, end});
  });
}

}  // namespace prism::kernels
#endif
