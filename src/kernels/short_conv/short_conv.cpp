// Blocks of tokens, each over all channels: a token's W input rows are in the cache from the tokens before
// it. Weights are transposed once a block, so that channels fill the vectors; inputs before a sequence's
// start come from a history of W-1 rows, made from its carried-in state.
#include "kernels/common/targets.h"
#include "kernels/short_conv/blocks.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/short_conv/short_conv.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include "kernels/common/silu-inl.h"
#include "kernels/common/workspace.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class Storage>
struct ConvBuffers {
  using T = RealOf<Storage>;
  ConvBuffers(Carver& memory, int64_t channels, int64_t width, int64_t gradient_rows)
      : row(round_up(channels, lanes<T>())),
        weights(memory.take<T>(width * row)),
        bias(memory.take<T>(row)),
        history(memory.take<Storage>((width - 1) * channels)),
        taps(memory.take<const Storage*>(width)),
        d_pre(memory.take<T>(gradient_rows * row)) {}
  int64_t row;
  T *weights, *bias;     // [W, row], [row]; zeros after the channels
  Storage* history;      // [W-1, D]: the rows before the sequence in hand
  const Storage** taps;  // the W input rows of the token in hand
  T* d_pre;              // [tokens of the block + W - 1, row]: gradients before the activation
};

template <class Storage>
struct Conv {
  using T = RealOf<Storage>;
  const ShortConvShape& shape;
  const ShortConvInputs& in;
  const ConvBuffers<Storage>& at;

  void load_weights() const {
    for (int64_t j = 0; j < shape.width; ++j)
      for (int64_t c = 0; c < at.row; ++c)
        at.weights[j * at.row + c] =
            c < shape.channels ? to_real(static_cast<const Storage*>(in.weight)[c * shape.width + j]) : T(0);
    for (int64_t c = 0; c < at.row; ++c)
      at.bias[c] = in.bias && c < shape.channels ? to_real(static_cast<const Storage*>(in.bias)[c]) : T(0);
  }

  void load_history(int64_t sequence) const {
    const int64_t D = shape.channels, rows = shape.width - 1;
    const auto* const state = static_cast<const Storage*>(in.initial_state);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < D; ++c)
        at.history[i * D + c] = state ? state[(sequence * D + c) * rows + i] : Storage{};
  }

  /// Input row at `token` of the sequence that starts at `start`, which may lie up to W-1 before it.
  const Storage* input(int64_t token, int64_t start) const {
    if (token >= start) return row_of<Storage>(in.x, token, 0, 0);
    return at.history + (token - start + shape.width - 1) * shape.channels;
  }
  void load_taps(int64_t token, int64_t start) const {
    for (int64_t j = 0; j < shape.width; ++j) at.taps[j] = input(token - shape.width + 1 + j, start);
  }

  /// bias + sum_j weight_j x_{t-W+1+j} of the loaded taps.
  template <bool kWhole>
  HWY_INLINE hn::Vec<Tag<T>> sum(Columns c) const {
    const Tag<T> d;
    auto result = hn::Load(d, at.bias + c.first);
    for (int64_t j = 0; j < shape.width; ++j)
      result = hn::MulAdd(hn::Load(d, at.weights + j * at.row + c.first), load_columns<kWhole>(at.taps[j], c),
                          result);
    return result;
  }
};

/// Tokens [begin, end) of one sequence.
void conv_tokens(const ShortConvShape& shape, const ShortConvInputs& in, void* y, const ConvBlock& block) {
  with_storage(shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    using T = RealOf<Storage>;
    const Conv<Storage> conv{
        shape, in, buffers_of_thread<ConvBuffers<Storage>>(shape.channels, shape.width, int64_t{0})};
    conv.load_weights();
    if (block.begin - block.start < shape.width - 1) conv.load_history(block.sequence);
    for (int64_t token = block.begin; token < block.end; ++token) {
      conv.load_taps(token, block.start);
      for_columns(shape.channels, lanes<T>(), [&](auto whole, Columns c) {
        constexpr bool kWhole = decltype(whole)::value;
        const auto pre = conv.template sum<kWhole>(c);
        store_columns<kWhole, T>(shape.silu ? silu<T>(pre).value : pre,
                                 static_cast<Storage*>(y) + token * shape.channels, c);
      });
    }
  });
}

/// d_pre of tokens [block.begin, end) and, for the block's own tokens, the sums of dweight and dbias.
template <class Storage>
HWY_INLINE void conv_pre_gradients(const Conv<Storage>& conv, const View& dy, const ConvBlock& block,
                                   int64_t end, RealOf<Storage>* sums) {
  using T = RealOf<Storage>;
  const Tag<T> d;
  const ShortConvShape& shape = conv.shape;
  for (int64_t token = block.begin; token < end; ++token) {
    conv.load_taps(token, block.start);
    const Storage* const upstream = row_of<Storage>(dy, token, 0, 0);
    T* const d_pre = conv.at.d_pre + (token - block.begin) * conv.at.row;
    for_columns(shape.channels, lanes<T>(), [&](auto whole, Columns c) {
      constexpr bool kWhole = decltype(whole)::value;
      auto g = load_columns<kWhole>(upstream, c);
      if (shape.silu) g = hn::Mul(g, silu<T>(conv.template sum<kWhole>(c)).slope);
      hn::Store(g, d, d_pre + c.first);
      if (!sums || token >= block.end) return;
      for (int64_t j = 0; j < shape.width; ++j) {
        T* const sum = sums + j * shape.channels;
        store_columns<kWhole, T>(
            hn::MulAdd(g, load_columns<kWhole>(conv.at.taps[j], c), load_columns<kWhole>(sum, c)), sum, c);
      }
      T* const sum = sums + shape.width * shape.channels;
      store_columns<kWhole, T>(hn::Add(g, load_columns<kWhole>(sum, c)), sum, c);
    });
  }
}

/// dx of the block, dx_s = sum_j weight_j d_pre_{s+W-1-j}, and its partial sums [W + 1, D] (dbias last) or
/// null. The W-1 tokens after the block are made again here.
void conv_gradient_tokens(const ShortConvShape& shape, const ShortConvInputs& in, const View& dy, void* dx,
                          void* sums, const ConvBlock& block) {
  with_storage(shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    using T = RealOf<Storage>;
    const Tag<T> d;
    const int64_t end = std::min(block.sequence_end, block.end + shape.width - 1);
    const Conv<Storage> conv{
        shape, in, buffers_of_thread<ConvBuffers<Storage>>(shape.channels, shape.width, end - block.begin)};
    conv.load_weights();
    if (block.begin - block.start < shape.width - 1) conv.load_history(block.sequence);
    conv_pre_gradients(conv, dy, block, end, static_cast<T*>(sums));
    if (!dx) return;
    for (int64_t token = block.begin; token < block.end; ++token) {
      for_columns(shape.channels, lanes<T>(), [&](auto whole, Columns c) {
        auto sum = hn::Zero(d);
        for (int64_t t = token; t < std::min(end, token + shape.width); ++t)
          sum =
              hn::MulAdd(hn::Load(d, conv.at.weights + (shape.width - 1 - t + token) * conv.at.row + c.first),
                         hn::Load(d, conv.at.d_pre + (t - block.begin) * conv.at.row + c.first), sum);
        store_columns<decltype(whole)::value, T>(sum, static_cast<Storage*>(dx) + token * shape.channels, c);
      });
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"
#include "kernels/common/partial_sums.h"

namespace prism::kernels {

HWY_EXPORT(conv_tokens);
HWY_EXPORT(conv_gradient_tokens);

namespace {

double work_of(const ShortConvShape& shape) {
  return static_cast<double>(shape.tokens()) * shape.channels * (shape.width + 10);
}

/// The last W-1 inputs of a sequence: those of its state that have not left the window, then its own.
template <class Storage>
void store_state(const ShortConvShape& shape, const ShortConvInputs& in, int64_t sequence, Storage* to) {
  const int64_t rows = shape.width - 1, D = shape.channels;
  const int64_t begin = shape.sequences.offsets[sequence], end = shape.sequences.offsets[sequence + 1];
  const auto* const state = static_cast<const Storage*>(in.initial_state);
  for (int64_t i = 0; i < rows; ++i) {  // ascending, so that `to` may be the initial state
    const int64_t token = end - rows + i, old = i + end - begin;
    for (int64_t c = 0; c < D; ++c) {
      const int64_t channel = (sequence * D + c) * rows;
      to[channel + i] = token >= begin ? row_of<Storage>(in.x, token, 0, 0)[c]
                        : state        ? state[channel + old]
                                       : Storage{};
    }
  }
}

}  // namespace

void short_conv_forward(const ShortConvShape& shape, const ShortConvInputs& in, void* y, void* final_state) {
  const std::vector<ConvBlock> blocks = conv_blocks(shape);
  parallel_for(static_cast<int64_t>(blocks.size()), work_of(shape), [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(conv_tokens)(shape, in, y, blocks[i]);
  });
  if (!final_state) return;
  with_storage(shape.dtype, [&](auto* storage) {
    for (int64_t n = 0; n < shape.sequences.count; ++n)
      store_state(shape, in, n, static_cast<decltype(storage)>(final_state));
  });
}

void short_conv_backward(const ShortConvShape& shape, const ShortConvInputs& in, const View& dy,
                         const ShortConvGradients& out) {
  const std::vector<ConvBlock> blocks = conv_blocks(shape);
  const bool with_sums = out.dweight || out.dbias;
  // A partial sum belongs to a run of blocks, so that many short sequences do not need many of them.
  const std::vector<int64_t> runs = conv_runs(blocks);
  const int64_t count = static_cast<int64_t>(runs.size()) - 1;
  PartialSums sums(shape.dtype, with_sums ? count : 0, (shape.width + 1) * shape.channels);
  parallel_for(count, 2 * work_of(shape), [&](int64_t run) {
    for (int64_t i = runs[run]; i < runs[run + 1]; ++i) HWY_DYNAMIC_DISPATCH(conv_gradient_tokens)
    (shape, in, dy, out.dx, with_sums ? sums.block(run) : nullptr, blocks[i]);
  });
  const int64_t bytes = shape.dtype == Scalar::kFloat64 ? 8 : shape.dtype == Scalar::kFloat32 ? 4 : 2;
  for (int64_t j = 0; out.dweight && j < shape.width; ++j)
    sums.add_up(shape.dtype, j * shape.channels, shape.channels,
                static_cast<std::byte*>(out.dweight) + j * bytes, shape.width);
  if (out.dbias) sums.add_up(shape.dtype, shape.width * shape.channels, shape.channels, out.dbias, 1);
}

}  // namespace prism::kernels
#endif
