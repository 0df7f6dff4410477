#include "mini_batches.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "arguments.h"
#include "prism/core/error.h"
#include "prism_chunk_call.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Plan : torch::CustomClassHolder {
  Plan(std::shared_ptr<const ChunkLayout> chunks, at::ScalarType input_type)
      : layout(std::move(chunks)), type(input_type) {}
  std::shared_ptr<const ChunkLayout> layout;
  at::ScalarType type;  ///< of the gradient
};

c10::intrusive_ptr<Plan> plan_of(const AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Plan>(context->saved_data.at("plan").toCapsule());
}

/// Tokens to slots and back; each is the other's gradient, as every token has one slot.
struct Gather : torch::autograd::Function<Gather> {
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const std::shared_ptr<const ChunkLayout>& layout, at::ScalarType type) {
    context->saved_data["plan"] =
        c10::IValue::make_capsule(c10::make_intrusive<Plan>(layout, x.scalar_type()));
    return layout->gather(x, type);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto plan = plan_of(context);
    return {plan->layout->scatter(grads[0].contiguous(), plan->type), Tensor(), Tensor()};
  }
};

struct Scatter : torch::autograd::Function<Scatter> {
  static Tensor forward(AutogradContext* context, const Tensor& y,
                        const std::shared_ptr<const ChunkLayout>& layout, at::ScalarType type) {
    context->saved_data["plan"] =
        c10::IValue::make_capsule(c10::make_intrusive<Plan>(layout, y.scalar_type()));
    return layout->scatter(y, type);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto plan = plan_of(context);
    return {plan->layout->gather(grads[0], plan->type), Tensor(), Tensor()};
  }
};

/// Slots that hold every sequence's tokens at once where none reaches beyond its open mini-batch; else
/// `size`.
int64_t slots_of(const std::vector<int64_t>& offsets, const std::vector<int64_t>& open, int64_t size) {
  for (size_t n = 0; n < open.size(); ++n)
    if (open[n] + offsets[n + 1] - offsets[n] > size) return size;
  return slots_for(size, longest_sequence(offsets));
}

}  // namespace

int64_t slots_for(int64_t size, int64_t tokens) {
  constexpr int64_t kSmall = 64;
  return std::min(size, std::max(tokens, kSmall));
}

int64_t longest_sequence(const std::vector<int64_t>& offsets) {
  int64_t longest = 0;
  for (size_t n = 1; n < offsets.size(); ++n) longest = std::max(longest, offsets[n] - offsets[n - 1]);
  return longest;
}

MiniBatches::MiniBatches(const Tensor& q, const std::optional<Tensor>& cu_seqlens, int64_t size,
                         const std::vector<int64_t>& seen)
    : batch_(q.size(0)),
      tokens_(q.size(1)),
      heads_(q.size(2)),
      size_(size),
      slots_(size),
      type_(gate_type(q.scalar_type())),
      device_(q.device()) {
  const auto offsets = sequence_offsets(cu_seqlens, batch_, tokens_);
  const int64_t N = int64_t(offsets.size()) - 1;
  check(seen.empty() || int64_t(seen.size()) == N, "mini-batches: {} counts of tokens seen for {} sequences",
        seen.size(), N);
  open_.assign(N, 0);
  for (int64_t n = 0; n < int64_t(seen.size()); ++n) open_[n] = seen[n] % size;
  any_open_ = std::any_of(open_.begin(), open_.end(), [](int64_t tokens) { return tokens > 0; });
  slots_ = !cu_seqlens && tokens_ == 1 ? 1 : slots_of(offsets, open_, size);
  for (int64_t n = 0; slots_ < size_ && n < N; ++n)
    if (offsets[n + 1] > offsets[n]) held_.push_back(open_[n]);
  const bool cut_by_sequence = any_open_ && slots_ == size_;
  layout_ = std::make_shared<ChunkLayout>(offsets, cu_seqlens.has_value() || cut_by_sequence, slots_, device_,
                                          cut_by_sequence ? open_ : std::vector<int64_t>{});
}

int64_t MiniBatches::held_before(int64_t chunk) const {
  return slots_ < size_ ? held_[chunk] : layout_->held_before(chunk);
}

Tensor MiniBatches::gather(const Tensor& x) const {
  const Tensor row = layout_->is_packed() ? x.reshape({1, batch_ * tokens_, x.size(2), x.size(3)}) : x;
  const Tensor y = Gather::apply(row.unsqueeze(2), layout_, type_);  // [chunks,H,1,C,W]
  return y.view({layout_->chunks() * heads_, slots_, x.size(3)});
}

Tensor MiniBatches::scatter(const Tensor& y, at::ScalarType type) const {
  const Tensor x =
      Scatter::apply(y.reshape({layout_->chunks(), heads_, 1, slots_, y.size(2)}), layout_, type);
  return x.reshape({batch_, tokens_, heads_, y.size(2)});
}

/// A value of each chunk for its rows, [Z,1]. Runs of equal values are filled in on the device: copies from
/// the host would end the capture of a CUDA graph, and only packed sequences have many runs.
Tensor MiniBatches::by_row(const std::function<int64_t(int64_t)>& value) const {
  const int64_t chunks = layout_->chunks();
  Tensor values =
      at::empty({chunks}, at::TensorOptions(at::kLong).device(layout_->is_packed() ? at::kCPU : device_));
  for (int64_t begin = 0, end = 0; begin < chunks; begin = end) {
    while (end < chunks && value(end) == value(begin)) ++end;
    values.narrow(0, begin, end - begin).fill_(value(begin));
  }
  return values.to(device_).repeat_interleave(heads_, 0, chunks * heads_).unsqueeze(1);
}

Tensor MiniBatches::last_token() const {
  const Tensor last = by_row([&](int64_t z) { return layout_->length(z) - 1; });
  return last.eq(at::arange(slots_, last.options())).to(type_).unsqueeze(1);
}

Tensor MiniBatches::padding() const {
  const Tensor length = by_row([&](int64_t z) { return layout_->length(z); });
  return length.le(at::arange(slots_, length.options())).to(type_).unsqueeze(2);
}

Tensor MiniBatches::places() const {
  const Tensor first = by_row([&](int64_t z) { return held_before(z); });
  return (first + at::arange(slots_, first.options())).clamp_max_(size_ - 1);
}

MiniBatches::Pieces MiniBatches::pieces(const Tensor& x) const {
  if (!x.defined()) return {};
  std::vector<int64_t> rows;
  for (int64_t p = 0; p < layout_->positions(); ++p) rows.push_back(layout_->chunks_at(p).count * heads_);
  return at::split_with_sizes(x, rows);
}

MiniBatches::Step MiniBatches::step(int64_t position) const {
  const auto [begin, count] = layout_->chunks_at(position);
  Tensor closes = at::empty({count}, at::kBool);
  int64_t closed = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool ends = held_before(begin + i) + layout_->length(begin + i) == size_;
    closes.mutable_data_ptr<bool>()[i] = ends;
    closed += ends;
  }
  Step step{position, begin * heads_, count * heads_, closed == count, closed > 0, {}};
  if (step.any_close && !step.all_close)
    step.closes = closes.to(device_).repeat_interleave(heads_).view({-1, 1, 1});
  return step;
}

MiniBatches::States MiniBatches::run(const States& states,
                                     const std::function<States(const Step&, const States&)>& body) const {
  States now;
  for (const Tensor& state : states) now.push_back(layout_->sorted(state).flatten(0, 1));
  std::vector<States> done(states.size());  // of sequences that have ended, the last in order first
  const auto keep = [&](int64_t count) {
    for (size_t i = 0; i < now.size(); ++i) {
      const int64_t ended = now[i].size(0) - count;
      if (ended == 0) continue;
      done[i].push_back(now[i].narrow(0, count, ended));
      now[i] = now[i].narrow(0, 0, count);
    }
  };
  for (int64_t p = 0; p < layout_->positions(); ++p) {
    const Step at = step(p);
    keep(at.count);
    now = body(at, now);
  }
  States last;
  for (size_t i = 0; i < now.size(); ++i) {
    done[i].push_back(now[i]);
    std::reverse(done[i].begin(), done[i].end());
    const Tensor all = done[i].size() == 1 ? done[i][0] : at::cat(done[i]);
    last.push_back(layout_->unsorted(all.unflatten(0, {sequences(), heads_})));
  }
  return last;
}

}  // namespace prism
