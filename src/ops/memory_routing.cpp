#include "prism/ops/memory_routing.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "index_tensor.h"
#include "prism/core/error.h"

namespace prism {
namespace {

using at::Tensor;

}  // namespace

MemoryRouting::MemoryRouting(const Tensor& chosen, const std::vector<int64_t>& offsets, int64_t memories,
                             bool shared)
    : tokens_(chosen.size(0)),
      copies_(chosen.size(1) + (shared ? 1 : 0)),
      memories_(memories + (shared ? 1 : 0)),
      shared_(shared) {
  check(chosen.dim() == 2 && chosen.scalar_type() == at::kLong,
        "memory_routing: chosen must be int64 [tokens,k]");
  check(offsets.back() == tokens_, "memory_routing: sequences of {} tokens, chosen has {}", offsets.back(),
        tokens_);
  const Tensor host = chosen.to(at::kCPU).contiguous();
  const int64_t k = host.size(1);
  const auto* const choice = host.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens_ * k; ++i)
    check(choice[i] >= 0 && choice[i] < memories, "memory_routing: memory {} of {}", choice[i], memories);
  std::vector<int64_t> from, own, back(tokens_ * copies_), lengths;
  for (int64_t m = 0; m < memories_; ++m) {
    for (size_t n = 0; n + 1 < offsets.size(); ++n) {
      const auto before = static_cast<int64_t>(from.size());
      for (int64_t t = offsets[n]; t < offsets[n + 1]; ++t)
        for (int64_t j = 0; j < copies_; ++j) {
          if (m != (j < k ? choice[t * k + j] : memories)) continue;
          back[t * copies_ + j] = static_cast<int64_t>(from.size());
          from.push_back(t * copies_ + j);
          own.push_back(t * memories_ + m);
        }
      lengths.push_back(static_cast<int64_t>(from.size()) - before);
    }
  }
  packing_ = Packing::packed(lengths);
  from_ = index_tensor(from, chosen.device());
  own_ = index_tensor(own, chosen.device());
  back_ = index_tensor(back, chosen.device());
}

Tensor MemoryRouting::gather(const Tensor& x) const {
  auto copies = x.sizes().vec();
  copies.insert(copies.begin() + 1, copies_);
  return x.unsqueeze(1).expand(copies).flatten(0, 1).index_select(0, from_).unsqueeze(0);
}

Tensor MemoryRouting::gather_own(const Tensor& x) const {
  check(x.size(0) == tokens_ && x.size(1) == memories(),
        "memory_routing: [{},{},...] for {} tokens and {} memories", x.size(0), x.size(1), tokens_,
        memories());
  return x.flatten(0, 1).index_select(0, own_).unsqueeze(0);
}

Tensor MemoryRouting::combine(const Tensor& o, const Tensor& weights) const {
  const Tensor copies = o.squeeze(0).index_select(0, back_).unflatten(0, {tokens_, copies_});
  const int64_t routed = copies_ - (shared_ ? 1 : 0);
  const Tensor factor = weights.to(o.scalar_type()).unsqueeze(-1).unsqueeze(-1);
  const Tensor sum = (copies.narrow(1, 0, routed) * factor).sum(1);
  return shared_ ? sum + copies.select(1, routed) : sum;
}

Tensor balance_loss(const Tensor& probabilities, const Tensor& chosen) {
  const int64_t memories = probabilities.size(-1);
  const Tensor one = at::arange(memories, chosen.options());
  const Tensor share = chosen.flatten().unsqueeze(-1).eq(one).to(probabilities.scalar_type()).mean(0);
  return static_cast<double>(memories) * (share * probabilities.flatten(0, -2).mean(0)).sum();
}

}  // namespace prism
