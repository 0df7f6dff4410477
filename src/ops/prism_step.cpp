// One token a sequence, state in place: the recurrence itself.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/library.h>

#include <cmath>

#include "arguments.h"
#include "dispatch.h"
#include "kernel_views.h"
#include "prism/kernels/prism_chunk.h"
#include "prism/ops/prism_chunk.h"
#include "prism_chunk_call.h"

namespace prism {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using StepSignature = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const OptionalTensor&, std::optional<double>);

void check_step_arguments(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                          const Tensor& state, const OptionalTensor& erase_read) {
  check(state.defined(), "prism_step: state is undefined");
  check_chunk_arguments("prism_step", 1, q, k, w, b, g, erase_read, state, {});
}

double scale_for(const Tensor& q, std::optional<double> scale) {
  return scale ? *scale : 1.0 / std::sqrt(double(q.size(-1)));
}

Tensor step_fused(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                  const Tensor& state, const OptionalTensor& erase_read, double scale) {
  std::vector<int64_t> offsets = sequence_offsets({}, q.size(0), 1);
  const kernels::PrismChunkShape shape{.dtype = kernel_scalar(q.scalar_type()),
                                       .sequences = {.count = q.size(0), .offsets = offsets.data()},
                                       .steps = k.size(1),
                                       .key_heads = q.size(1),
                                       .heads = w.size(2),
                                       .key_width = q.size(2),
                                       .value_width = w.size(3),
                                       .scale = scale,
                                       .chunk = 0};
  Tensor held[6];
  kernels::PrismChunkInputs in{.q = view_of(q, 2, held[0]),
                               .k = view_of(k, 3, held[1]),
                               .w = view_of(w, 3, held[2]),
                               .b = view_of(b.unsqueeze(-1), 2, held[3]),
                               .g = view_of(g.unsqueeze(-1), 2, held[4]),
                               .erase_read = {},
                               .initial_state = nullptr};
  if (erase_read) in.erase_read = view_of(*erase_read, 2, held[5]);
  const Tensor o = at::empty({q.size(0), w.size(2), w.size(3)}, q.options());
  const Tensor contiguous = state.contiguous();
  kernels::prism_step(shape, in, contiguous.mutable_data_ptr(), o.mutable_data_ptr());
  if (!state.is_contiguous()) state.copy_(contiguous);
  return o;
}

/// S <- a (S - b k_1 (e^T S)) + k^T w;  o = scale q S, as batched products over [B, Hk, R] heads.
Tensor step_composed(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                     const Tensor& state, const OptionalTensor& erase_read, double scale) {
  const int64_t B = q.size(0), J = q.size(1), K = q.size(2), L = k.size(1), H = w.size(2), V = w.size(3),
                R = H / J;
  const at::ScalarType type = state.scalar_type();
  const auto per_value_head = [&](const Tensor& x_BJAK) {  // -> [B*H,A,K]
    return x_BJAK.to(type).unsqueeze(2).expand({B, J, R, -1, K}).reshape({B * H, -1, K});
  };
  const Tensor keys = per_value_head(k.transpose(1, 2));
  const Tensor query = per_value_head(q.unsqueeze(2)).mul(scale);
  const Tensor reads = erase_read ? per_value_head(erase_read->unsqueeze(2)) : keys.narrow(1, 0, 1);
  const Tensor writes = w.to(type).transpose(1, 2).reshape({B * H, L, V});
  const Tensor a = g.exp().reshape({B * H, 1, 1}), erase = b.reshape({B * H, 1, 1});
  const Tensor old = state.reshape({B * H, K, V});
  const Tensor erased = old - erase * at::bmm(keys.narrow(1, 0, 1).transpose(1, 2), at::bmm(reads, old));
  const Tensor next = (a * erased).baddbmm_(keys.transpose(1, 2), writes);
  state.copy_(next.view({B, H, K, V}));
  return at::bmm(query, next).view({B, H, V}).to(q.scalar_type());
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
            const Tensor& state, const OptionalTensor& erase_read, std::optional<double> scale) {
  check_step_arguments(q, k, w, b, g, state, erase_read);
  if (state.numel() == 0) return at::empty({q.size(0), w.size(2), w.size(3)}, q.options());
  const OptionalTensor e = present(erase_read) ? erase_read : std::nullopt;
  const bool fused = q.device().is_cpu() && q.scalar_type() != at::kHalf;
  return (fused ? step_fused : step_composed)(q, k, w, b, g, state, e, scale_for(q, scale));
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                 const Tensor& state, const OptionalTensor& erase_read, std::optional<double>) {
  check_step_arguments(q, k, w, b, g, state, erase_read);
  return q.new_empty_symint({q.sym_size(0), w.sym_size(2), w.sym_size(3)});
}

Tensor step_autograd(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                     const Tensor& state, const OptionalTensor& erase_read, std::optional<double> scale) {
  check(!records_gradients(q, k, w, b, g, state, erase_read),
        "prism_step: not differentiable; call it without gradients (torch.no_grad, at::NoGradGuard) or use "
        "prism_chunk");
  at::AutoDispatchBelowADInplaceOrView guard;
  const Tensor o = call_operator<StepSignature>("prism::prism_step", q, k, w, b, g, state, erase_read, scale);
  torch::autograd::increment_version(state);
  return o;
}

}  // namespace

TORCH_LIBRARY_IMPL(prism, CompositeExplicitAutograd, m) { m.impl("prism_step", step); }
TORCH_LIBRARY_IMPL(prism, Meta, m) { m.impl("prism_step", step_meta); }
TORCH_LIBRARY_IMPL(prism, Autograd, m) { m.impl("prism_step", step_autograd); }

Tensor prism_step(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                  const Tensor& state, const OptionalTensor& erase_read, std::optional<double> scale) {
  return call_operator<StepSignature>("prism::prism_step", q, k, w, b, g, state, erase_read, scale);
}

}  // namespace prism
