// The files of Mixture of Memories and HSTU.
#include <ATen/ATen.h>

#include "prism/ops/hstu_attention.h"
#include "prism/ops/memory_routing.h"
#include "prism/ops/prism_chunk.h"
#include "recurrence.h"

namespace prism::golden {
namespace {

using at::Tensor;

/// The files route by the weights: zero means not sent. Every token is sent to `topk` memories.
Tensors mom(const Call& call) {
  const Tensor &q = call.at("q"), &w = call.at("w"), &beta = call.at("beta"), &g = call.at("g");
  const int64_t B = q.size(0), T = q.size(1), M = w.size(2), R = beta.size(2);
  const auto k = static_cast<int64_t>(call.number("topk"));
  const Tensor chosen = std::get<1>(at::topk(w.detach().flatten(0, 1), k, -1));
  std::vector<int64_t> offsets;
  for (int64_t n = 0; n <= B; ++n) offsets.push_back(n * T);
  const MemoryRouting routing(chosen, offsets, M, R > M);
  const auto own = [&](const Tensor& x) { return routing.gather_own(x.flatten(0, 1)); };
  PrismChunkArgs args{.q = routing.gather(q.flatten(0, 1)),
                      .k = one_step(own(call.at("k"))),
                      .w = one_step(own(gated(beta, call.at("v")))),
                      .b = own(beta),
                      .g = own(g),
                      .initial_state = call.at("initial_state").transpose(0, 1).flatten(0, 1),
                      .cu_seqlens = routing.packing().cu_seqlens()};
  args.scale = call.number("scale");
  args.return_final_state = true;
  const PrismChunkResult result = prism_chunk(args);
  const Tensor weights = w.flatten(0, 1).gather(1, chosen);
  return {{"o", routing.combine(result.o, weights).unflatten(0, {B, T})},
          {"final_state", result.final_state.unflatten(0, {R, B}).transpose(0, 1)}};
}

/// From bf16 storage, the attention runs in fp32. Row i looks back from t[i+1], the last from its own time.
Tensors hstu(const Call& call) {
  const auto wide = [&](const char* name) {
    const Tensor& x = call.at(name);
    return x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
  };
  const Tensor lengths = call.at("lengths").contiguous();
  const auto* const first = lengths.const_data_ptr<int64_t>();
  const Tensor& times = call.at("timestamps");  // the files look at the padding's times too
  const int64_t N = times.size(1);
  const Tensor o =
      hstu_attention({.q = wide("q"),
                      .k = wide("k"),
                      .v = wide("v"),
                      .pos_w = call.at("pos_w"),
                      .ts_w = call.at("ts_w"),
                      .seconds = times,
                      .query_seconds = at::cat({times.narrow(1, 1, N - 1), times.narrow(1, N - 1, 1)}, 1),
                      .past = std::vector<int64_t>(lengths.numel(), 0),
                      .lengths = {first, first + lengths.numel()},
                      .n = N});
  return {{"o", o.to(call.at("q").scalar_type())}};
}

}  // namespace

std::vector<Mixer> routed_and_pointwise_mixers() {
  return {{"mom", mom, {"beta", "g", "w", "initial_state"}}, {"hstu", hstu, {"pos_w", "ts_w"}}};
}

}  // namespace prism::golden
