#include "prism/kernels/precondition.h"

#include "kernels/common/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/precondition/precondition.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include <hwy/contrib/math/math-inl.h>

#include <cmath>

#include "kernels/common/rows-inl.h"
#include "kernels/common/workspace.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class T>
struct Curvature {
  Curvature(Carver& memory, int64_t tokens, int64_t width)
      : row(round_up(width, lanes<T>())),
        a(memory.take<T>((tokens + 1) * row)),
        da(memory.take<T>(row)),
        dc(memory.take<T>(row)) {}
  int64_t row;
  T *a, *da,
      *dc;  // a_0 (the initial one) .. a_T; the gradient that comes from later tokens; of c, by channel
};

/// The preconditioner of one vector of channels and its derivative in log a.
template <class T>
struct Squashed {
  hn::Vec<Tag<T>> value, slope;
};
template <class T>
HWY_INLINE Squashed<T> squash(hn::Vec<Tag<T>> shifted, T log_scale, T log_squash) {
  const Tag<T> d;
  const auto one = hn::Set(d, T(1));
  const auto r = hn::Sub(hn::Log(d, shifted), hn::Set(d, log_scale));
  const auto inverse = hn::Div(one, hn::Add(one, hn::Abs(r)));
  const auto rate = hn::Mul(hn::Set(d, -log_squash), inverse);
  const auto value = hn::Exp(d, hn::Mul(rate, r));
  return {value, hn::Mul(value, hn::Mul(rate, inverse))};
}

/// One head of one sequence.
template <class Storage>
struct Row {
  using T = RealOf<Storage>;
  Row(const PreconditionShape& call, const PreconditionInputs& inputs, int64_t sequence, int64_t of_head)
      : shape(call),
        in(inputs),
        head(of_head),
        state((sequence * call.heads + of_head) * call.width),
        begin(call.sequences.offsets[sequence]),
        end(call.sequences.offsets[sequence + 1]),
        log_scale(static_cast<const T*>(inputs.log_scale)[of_head]),
        log_squash(static_cast<T>(std::log(call.squash))) {}

  const Storage* key(int64_t token) const { return row_of<Storage>(in.k, token, 0, head); }
  T beta(int64_t token) const { return *row_of<T>(in.beta, token, 0, head); }
  T decay(int64_t token) const { return std::exp(*row_of<T>(in.g, token, 0, head)); }
  int64_t place(int64_t token) const { return (token * shape.heads + head) * shape.width; }
  void load_initial(T* a, int64_t padded) const {
    std::fill_n(a, padded, T(0));
    if (in.initial) std::copy_n(static_cast<const T*>(in.initial) + state, shape.width, a);
  }
  /// exp(g) a + beta k^2.
  template <bool kWhole>
  HWY_INLINE hn::Vec<Tag<T>> next(const Storage* k, T decay, T beta, const T* a, Columns c) const {
    const Tag<T> d;
    const auto key = load_columns<kWhole>(k, c);
    return hn::MulAdd(hn::Set(d, decay), hn::Load(d, a + c.first),
                      hn::Mul(hn::Set(d, beta), hn::Mul(key, key)));
  }
  HWY_INLINE Squashed<T> preconditioner(hn::Vec<Tag<T>> a) const {
    return squash<T>(hn::Add(a, hn::Set(Tag<T>(), static_cast<T>(shape.eps))), log_scale, log_squash);
  }

  const PreconditionShape& shape;
  const PreconditionInputs& in;
  int64_t head, state, begin, end;
  T log_scale, log_squash;
};

template <class Storage>
HWY_INLINE void forward_row(const Row<Storage>& row, Storage* y, RealOf<Storage>* final) {
  using T = RealOf<Storage>;
  const Tag<T> d;
  const auto at = buffers_of_thread<Curvature<T>>(int64_t{0}, row.shape.width);
  row.load_initial(at.a, at.row);
  for (int64_t t = row.begin; t < row.end; ++t) {
    const T decay = row.decay(t), beta = row.beta(t);
    for_columns(row.shape.width, lanes<T>(), [&](auto whole, Columns c) {
      constexpr bool kWhole = decltype(whole)::value;
      const auto a = row.template next<kWhole>(row.key(t), decay, beta, at.a, c);
      hn::Store(a, d, at.a + c.first);
      store_columns<kWhole, T>(hn::Mul(row.preconditioner(a).value, load_columns<kWhole>(row.key(t), c)),
                               y + row.place(t), c);
    });
  }
  if (final) std::copy_n(at.a, row.shape.width, final + row.state);
}

/// The gradients of token t, and da for the token before it.
template <class Storage>
HWY_INLINE void gradient_token(const Row<Storage>& row, const Curvature<RealOf<Storage>>& at, int64_t t,
                               const Storage* dy, const PreconditionGradients& out) {
  using T = RealOf<Storage>;
  const Tag<T> d;
  const T decay = row.decay(t), beta = row.beta(t);
  const T *const before = at.a + (t - row.begin) * at.row, *const after = before + at.row;
  auto to_beta = hn::Zero(d), to_g = hn::Zero(d);
  for_columns(row.shape.width, lanes<T>(), [&](auto whole, Columns c) {
    constexpr bool kWhole = decltype(whole)::value;
    const auto k = load_columns<kWhole>(row.key(t), c), up = load_columns<kWhole>(dy, c);
    const auto a = hn::Load(d, after + c.first);
    const auto p = row.preconditioner(a);
    const auto dr = hn::Mul(hn::Mul(up, k), p.slope);
    const auto shifted = hn::Add(a, hn::Set(d, static_cast<T>(row.shape.eps)));
    const auto da = hn::Add(hn::Load(d, at.da + c.first), hn::Div(dr, shifted));
    const auto step = hn::Mul(da, k);
    store_columns<kWhole, T>(hn::MulAdd(up, p.value, hn::Mul(hn::Set(d, 2 * beta), step)),
                             static_cast<Storage*>(out.dk) + row.place(t), c);
    to_beta = hn::MulAdd(step, k, to_beta);
    to_g = hn::MulAdd(da, hn::Load(d, before + c.first), to_g);
    hn::Store(hn::Sub(hn::Load(d, at.dc + c.first), dr), d, at.dc + c.first);
    hn::Store(hn::Mul(da, hn::Set(d, decay)), d, at.da + c.first);
  });
  const int64_t gate = t * row.shape.heads + row.head;
  static_cast<T*>(out.dbeta)[gate] = hn::GetLane(hn::SumOfLanes(d, to_beta));
  static_cast<T*>(out.dg)[gate] = decay * hn::GetLane(hn::SumOfLanes(d, to_g));
}

/// Returns the row's share of dc.
template <class Storage>
HWY_INLINE RealOf<Storage> backward_row(const Row<Storage>& row, const View& dy,
                                        const RealOf<Storage>* dfinal, const PreconditionGradients& out) {
  using T = RealOf<Storage>;
  const Tag<T> d;
  const int64_t width = row.shape.width;
  const auto at = buffers_of_thread<Curvature<T>>(row.end - row.begin, width);
  row.load_initial(at.a, at.row);
  for (int64_t t = row.begin; t < row.end; ++t) {
    T* const a = at.a + (t - row.begin) * at.row;
    const T decay = row.decay(t), beta = row.beta(t);
    for_columns(width, lanes<T>(), [&](auto whole, Columns c) {
      hn::Store(row.template next<decltype(whole)::value>(row.key(t), decay, beta, a, c), d,
                a + at.row + c.first);
    });
  }
  std::fill_n(at.dc, at.row, T(0));
  std::fill_n(at.da, at.row, T(0));
  if (dfinal) std::copy_n(dfinal + row.state, width, at.da);
  for (int64_t t = row.end - 1; t >= row.begin; --t)
    gradient_token(row, at, t, row_of<Storage>(dy, t, 0, row.head), out);
  if (out.dinitial) std::copy_n(at.da, width, static_cast<T*>(out.dinitial) + row.state);
  auto sum = hn::Zero(d);
  for (int64_t c = 0; c < at.row; c += lanes<T>()) sum = hn::Add(sum, hn::Load(d, at.dc + c));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void precondition_row(const PreconditionShape& shape, const PreconditionInputs& in, int64_t sequence,
                      int64_t head, void* y, void* final) {
  with_storage(shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    forward_row(Row<Storage>(shape, in, sequence, head), static_cast<Storage*>(y),
                static_cast<RealOf<Storage>*>(final));
  });
}

/// `dc` [H] of the sequence.
void precondition_gradient_row(const PreconditionShape& shape, const PreconditionInputs& in, const View& dy,
                               const void* dfinal, const PreconditionGradients& out, void* dc,
                               int64_t sequence, int64_t head) {
  with_storage(shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    using T = RealOf<Storage>;
    static_cast<T*>(dc)[head] =
        backward_row(Row<Storage>(shape, in, sequence, head), dy, static_cast<const T*>(dfinal), out);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"
#include "kernels/common/partial_sums.h"

namespace prism::kernels {

HWY_EXPORT(precondition_row);
HWY_EXPORT(precondition_gradient_row);

namespace {

/// f(sequence, head) for every row.
template <class F>
void for_rows(const PreconditionShape& shape, F f) {
  const Sequences& sequences = shape.sequences;
  if (sequences.count == 0) return;
  const double tokens = static_cast<double>(sequences.offsets[sequences.count]);
  parallel_for(sequences.count * shape.heads, 40.0 * tokens * shape.heads * shape.width,
               [&](int64_t row) { f(row / shape.heads, row % shape.heads); });
}

}  // namespace

void precondition_forward(const PreconditionShape& shape, const PreconditionInputs& in, void* y,
                          void* final) {
  for_rows(shape, [&](int64_t sequence, int64_t head) {
    HWY_DYNAMIC_DISPATCH(precondition_row)(shape, in, sequence, head, y, final);
  });
}

void precondition_backward(const PreconditionShape& shape, const PreconditionInputs& in, const View& dy,
                           const void* dfinal, const PreconditionGradients& out) {
  PartialSums dc(shape.dtype, shape.sequences.count, shape.heads);
  for_rows(shape, [&](int64_t sequence, int64_t head) {
    HWY_DYNAMIC_DISPATCH(precondition_gradient_row)
    (shape, in, dy, dfinal, out, dc.block(sequence), sequence, head);
  });
  const Scalar gates = shape.dtype == Scalar::kFloat64 ? Scalar::kFloat64 : Scalar::kFloat32;
  dc.add_up(gates, 0, shape.heads, out.dlog_scale, 1);
}

}  // namespace prism::kernels
#endif
