#include "chunk_layout.h"

#include <ATen/TensorIndexing.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <numeric>

#include "index_tensor.h"

namespace prism {
namespace {

/// [B,P,C,A,H,W] and [P,B,H,A,C,W] are the same numbers seen by token and by chunk.
at::Tensor by_chunk(const at::Tensor& by_token) { return by_token.permute({1, 0, 4, 3, 2, 5}); }

}  // namespace

ChunkLayout::ChunkLayout(const std::vector<int64_t>& offsets, bool packed, int64_t chunk, at::Device device,
                         const std::vector<int64_t>& open)
    : packed_(packed), sequences_(int64_t(offsets.size()) - 1), chunk_(chunk) {
  const int64_t total = offsets.back();
  batch_ = packed ? 1 : sequences_;
  tokens_ = batch_ ? total / batch_ : 0;
  if (packed) {
    plan_packed(offsets, open, device);
    return;
  }
  const int64_t positions = (tokens_ + chunk - 1) / chunk;
  for (int64_t p = 0; p < positions; ++p) {
    active_.push_back(sequences_);
    first_.push_back(p * sequences_);
    lengths_.insert(lengths_.end(), sequences_, std::min(chunk, tokens_ - p * chunk));
    held_before_.insert(held_before_.end(), sequences_, 0);
  }
  chunks_ = positions * sequences_;
}

void ChunkLayout::plan_packed(const std::vector<int64_t>& offsets, const std::vector<int64_t>& open,
                              at::Device device) {
  const auto opened = [&](int64_t n) { return open.empty() ? 0 : open[n]; };
  const auto chunks_of = [&](int64_t n) {
    const int64_t tokens = offsets[n + 1] - offsets[n];
    return tokens ? (opened(n) + tokens + chunk_ - 1) / chunk_ : 0;
  };
  std::vector<int64_t> order(sequences_), rank(sequences_), final_entry(sequences_);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t m, int64_t n) { return chunks_of(m) > chunks_of(n); });
  for (int64_t i = 0; i < sequences_; ++i) rank[order[i]] = final_entry[order[i]] = i;

  std::vector<int64_t> token_of_slot, chunk_of_token(tokens_), slot_of_token(tokens_), start_entry;
  const int64_t positions = sequences_ ? chunks_of(order[0]) : 0;
  int64_t running = sequences_;
  for (int64_t p = 0; p < positions; ++p) {
    while (chunks_of(order[running - 1]) <= p) --running;
    active_.push_back(running);
    first_.push_back(chunks_);
    for (int64_t i = 0; i < running; ++i) {
      const int64_t n = order[i], start = offsets[n] + p * chunk_ - opened(n);
      const int64_t begin = std::max(start, offsets[n]), end = std::min(start + chunk_, offsets[n + 1]);
      lengths_.push_back(end - begin);
      held_before_.push_back(begin - start);
      start_entry.push_back(before(p).begin + i);
      final_entry[n] = sequences_ + chunks_ + i;
      for (int64_t t = begin; t < begin + chunk_; ++t) {
        token_of_slot.push_back(t < end ? t : -1);
        if (t < end) chunk_of_token[t] = chunks_ + i, slot_of_token[t] = t - begin;
      }
    }
    chunks_ += running;
  }
  const at::Tensor tokens_of = index_tensor(token_of_slot, device);
  is_padding_ = tokens_of.lt(0).view({chunks_, 1, 1, chunk_, 1});
  token_of_slot_ = tokens_of.clamp_min(0);
  chunk_of_token_ = index_tensor(chunk_of_token, device);
  slot_of_token_ = index_tensor(slot_of_token, device);
  order_ = index_tensor(order, device);
  rank_ = index_tensor(rank, device);
  start_entry_ = index_tensor(start_entry, device);
  final_entry_ = index_tensor(final_entry, device);
}

ChunkLayout::Range ChunkLayout::before(int64_t position) const {
  return {position == 0 ? 0 : sequences_ + first_[position - 1], active_[position]};
}

at::Tensor ChunkLayout::gather(const at::Tensor& x, at::ScalarType type) const {
  const int64_t A = x.size(2), H = x.size(3), W = x.size(4);
  at::Tensor y = at::empty({chunks_, H, A, chunk_, W}, x.options().dtype(type));
  if (packed_) {
    const at::Tensor slots = x.select(0, 0).index_select(0, token_of_slot_);
    y.copy_(slots.view({chunks_, chunk_, A, H, W}).permute({0, 3, 2, 1, 4}));
    return y.masked_fill_(is_padding_, 0);
  }
  const int64_t whole = tokens_ / chunk_, rest = tokens_ % chunk_;
  const at::Tensor y_PBHACW = y.view({-1, batch_, H, A, chunk_, W});
  if (whole > 0)
    y_PBHACW.narrow(0, 0, whole)
        .copy_(by_chunk(x.narrow(1, 0, whole * chunk_).unflatten(1, {whole, chunk_})));
  if (rest > 0) {
    const at::Tensor tail = y_PBHACW.narrow(0, whole, 1);
    tail.narrow(4, 0, rest).copy_(by_chunk(x.narrow(1, whole * chunk_, rest).unsqueeze(1)));
    tail.narrow(4, rest, chunk_ - rest).zero_();
  }
  return y;
}

at::Tensor ChunkLayout::scatter(const at::Tensor& y, at::ScalarType type) const {
  const int64_t H = y.size(1), A = y.size(2), W = y.size(4);
  if (packed_) {
    const at::Tensor x = y.permute({0, 3, 2, 1, 4}).index({chunk_of_token_, slot_of_token_});
    return x.to(type).unsqueeze(0);
  }
  at::Tensor x = at::empty({batch_, tokens_, A, H, W}, y.options().dtype(type));
  const int64_t whole = tokens_ / chunk_, rest = tokens_ % chunk_;
  const at::Tensor y_PBHACW = y.view({-1, batch_, H, A, chunk_, W});
  if (whole > 0)
    by_chunk(x.narrow(1, 0, whole * chunk_).unflatten(1, {whole, chunk_}))
        .copy_(y_PBHACW.narrow(0, 0, whole));
  if (rest > 0)
    by_chunk(x.narrow(1, whole * chunk_, rest).unsqueeze(1))
        .copy_(y_PBHACW.narrow(0, whole, 1).narrow(4, 0, rest));
  return x;
}

at::Tensor ChunkLayout::chunk_starts(const at::Tensor& buffer, int64_t count) const {
  if (!packed_) return buffer.narrow(0, 0, chunks_);
  at::Tensor starts = at::empty({count, buffer.size(1), buffer.size(2), buffer.size(3)}, buffer.options());
  starts.narrow(0, 0, chunks_).copy_(buffer.index_select(0, start_entry_));
  starts.narrow(0, chunks_, count - chunks_).zero_();
  return starts;
}

at::Tensor ChunkLayout::finals(const at::Tensor& buffer) const {
  if (packed_) return buffer.index_select(0, final_entry_);
  return buffer.narrow(0, chunks_, sequences_).clone();
}

void ChunkLayout::put_finals(at::Tensor& buffer, const at::Tensor& states) const {
  if (packed_) {
    buffer.index_copy_(0, final_entry_, states.to(buffer.scalar_type()));
  } else {
    buffer.narrow(0, chunks_, sequences_).copy_(states);
  }
}

at::Tensor ChunkLayout::sorted(const at::Tensor& states) const {
  return packed_ ? states.index_select(0, order_) : states;
}

at::Tensor ChunkLayout::unsorted(const at::Tensor& states) const {
  return packed_ ? states.index_select(0, rank_) : states;
}

}  // namespace prism
