#include "vector_gate_chunks.h"

#include <ATen/ATen.h>

#include "chunk_options.h"

namespace prism {

using at::Tensor;

GateChunks::GateChunks(const GateCall& call)
    : call_(call),
      layout_(sequence_starts("vector_gate", call.cu_seqlens, call.batch(), call.tokens()),
              call.cu_seqlens.has_value(), call.chunk, call.q.device()),
      type_(gate_type(call.q.scalar_type())),
      H_(call.heads()),
      J_(call.key_heads()),
      C_(call.chunk),
      K_(call.key_width()),
      V_(call.value_width()) {}

Tensor GateChunks::of_value_heads(const Tensor& x) const {
  return layout_.gather(x.unsqueeze(2), type_).view({-1, C_, x.size(-1)});
}

Tensor GateChunks::of_key_heads(const Tensor& x) const {
  const Tensor gathered = layout_.gather(x.unsqueeze(2), type_).view({-1, J_, 1, C_, x.size(-1)});
  return gathered.expand({-1, -1, H_ / J_, -1, -1}).reshape({-1, C_, x.size(-1)});
}

Tensor GateChunks::gates() const { return of_value_heads(call_.g).clamp_min_(-1000.0); }

Tensor GateChunks::upstream(const std::optional<Tensor>& d_o) const {
  if (d_o) return of_value_heads(*d_o);
  return at::zeros({layout_.chunks() * H_, C_, call_.output_width()}, call_.g.options());
}

Tensor GateChunks::value_heads_back(const Tensor& x, at::ScalarType type) const {
  return layout_.scatter(x.view({layout_.chunks(), H_, 1, C_, x.size(-1)}), type).squeeze(2);
}

Tensor GateChunks::key_heads_back(const Tensor& x, at::ScalarType type) const {
  Tensor summed = x.reshape({-1, J_, H_ / J_, C_, x.size(-1)});
  summed = H_ == J_ ? summed : summed.sum(2, true);
  return layout_.scatter(summed, type).squeeze(2);
}

Tensor GateChunks::empty_buffer() const {
  return at::zeros({layout_.sequences() + layout_.chunks(), H_, K_, V_}, call_.g.options());
}

Tensor GateChunks::run_states(const Advance& advance) const {
  Tensor buffer = empty_buffer();
  if (call_.initial_state)
    buffer.narrow(0, 0, layout_.sequences()).copy_(layout_.sorted(*call_.initial_state));
  for (int64_t p = 0; p < layout_.positions(); ++p) {
    const auto [begin, count] = layout_.chunks_at(p);
    const Tensor before = buffer.narrow(0, layout_.before(p).begin, count).view({-1, K_, V_});
    buffer.narrow(0, layout_.after(p).begin, count)
        .copy_(advance(before, {begin * H_, count * H_}).view({count, H_, K_, V_}));
  }
  return buffer;
}

Tensor GateChunks::run_gradients(const std::optional<Tensor>& d_final_state, const Advance& go_back) const {
  Tensor buffer = empty_buffer();
  if (d_final_state) layout_.put_finals(buffer, *d_final_state);
  for (int64_t p = layout_.positions() - 1; p >= 0; --p) {
    const auto [begin, count] = layout_.chunks_at(p);
    const Tensor after = buffer.narrow(0, layout_.after(p).begin, count).view({-1, K_, V_});
    buffer.narrow(0, layout_.before(p).begin, count)
        .copy_(go_back(after, {begin * H_, count * H_}).view({count, H_, K_, V_}));
  }
  return buffer;
}

Tensor GateChunks::starts(const Tensor& buffer) const {
  const int64_t count = call_.cu_seqlens ? call_.tokens() / C_ + layout_.sequences() : layout_.chunks();
  return layout_.chunk_starts(buffer, count);
}

Tensor GateChunks::matrices(const Tensor& chunk_states) const {
  return chunk_states.narrow(0, 0, layout_.chunks()).reshape({-1, K_, V_});
}

Tensor GateChunks::after_chunks(const Tensor& buffer) const {
  return buffer.narrow(0, layout_.sequences(), layout_.chunks()).reshape({-1, K_, V_});
}

Tensor GateChunks::initial_gradient(const Tensor& buffer) const {
  return layout_.unsorted(buffer.narrow(0, 0, layout_.sequences())).clone();
}

}  // namespace prism
