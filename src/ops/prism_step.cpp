// One token a sequence, state in place: the recurrence itself.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/library.h>

#include <cmath>
#include <mutex>

#include "arguments.h"
#include "dispatch.h"
#include "kernel_views.h"
#include "prism/core/log.h"
#include "prism/kernels/prism_chunk.h"
#include "prism/ops/cuda_kernels.h"
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

kernels::PrismChunkShape shape_of(const Tensor& q, const Tensor& k, const Tensor& w,
                                  const std::vector<int64_t>& offsets, double scale) {
  return {.dtype = kernel_scalar(q.scalar_type()),
          .sequences = {.count = q.size(0), .offsets = offsets.data()},
          .steps = k.size(1),
          .key_heads = q.size(1),
          .heads = w.size(2),
          .key_width = q.size(2),
          .value_width = w.size(3),
          .scale = scale,
          .chunk = 0};
}

Tensor step_fused(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                  const Tensor& state, const OptionalTensor& erase_read, double scale) {
  const c10::OptionalDeviceGuard guard(q.device());
  const bool cuda = q.device().is_cuda();
  const std::vector<int64_t> offsets = sequence_offsets({}, q.size(0), 1);
  const kernels::PrismChunkShape shape = shape_of(q, k, w, offsets, scale);
  Tensor held[6];
  const auto view = cuda ? aligned_view_of : view_of;
  kernels::PrismChunkInputs in{.q = view(q, 2, held[0]),
                               .k = view(k, 3, held[1]),
                               .w = view(w, 3, held[2]),
                               .b = view_of(b.unsqueeze(-1), 2, held[3]),
                               .g = view_of(g.unsqueeze(-1), 2, held[4]),
                               .erase_read = {},
                               .initial_state = nullptr};
  if (erase_read) in.erase_read = view(*erase_read, 2, held[5]);
  Tensor o = at::empty({q.size(0), w.size(2), w.size(3)}, q.options());
  // The kernels want a contiguous state; the CPU's computes in it, so a bf16 one is widened and rounded back.
  Tensor working = (cuda ? state : state.to(gate_type(q.scalar_type()))).contiguous();
  if (cuda && reinterpret_cast<uintptr_t>(working.const_data_ptr()) % 16 != 0) working = working.clone();
  if (cuda) {
    check_launch("prism_step", cuda_kernels()->step(shape, in, kernel_scalar(state.scalar_type()),
                                                    working.mutable_data_ptr(), o.mutable_data_ptr(),
                                                    cuda_kernels()->current_stream()));
  } else {
    kernels::prism_step(shape, in, working.mutable_data_ptr(), o.mutable_data_ptr());
  }
  if (!working.is_same(state)) state.copy_(working);
  return o;
}

/// S <- a (S - b k_1 (e^T S)) + k^T w;  o = scale q S, as batched products over [B, Hk, R] heads.
Tensor step_composed(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                     const Tensor& state, const OptionalTensor& erase_read, double scale) {
  const int64_t B = q.size(0), J = q.size(1), K = q.size(2), L = k.size(1), H = w.size(2), V = w.size(3),
                R = H / J;
  const at::ScalarType type = gate_type(q.scalar_type());
  const auto per_value_head = [&](const Tensor& x_BJAK) {  // -> [B*H,A,K]
    return x_BJAK.to(type).unsqueeze(2).expand({B, J, R, -1, K}).reshape({B * H, -1, K});
  };
  const Tensor keys = per_value_head(k.transpose(1, 2));
  const Tensor query = per_value_head(q.unsqueeze(2)).mul(scale);
  const Tensor reads = erase_read ? per_value_head(erase_read->unsqueeze(2)) : keys.narrow(1, 0, 1);
  const Tensor writes = w.to(type).transpose(1, 2).reshape({B * H, L, V});
  const Tensor a = g.exp().reshape({B * H, 1, 1}), erase = b.reshape({B * H, 1, 1});
  const Tensor old = state.to(type).reshape({B * H, K, V});
  const Tensor erased = old - erase * at::bmm(keys.narrow(1, 0, 1).transpose(1, 2), at::bmm(reads, old));
  const Tensor next = (a * erased).baddbmm_(keys.transpose(1, 2), writes);
  state.copy_(next.view({B, H, K, V}));
  return at::bmm(query, next).view({B, H, V}).to(q.scalar_type());
}

/// CPU: all but fp16. CUDA: where the kernels are loaded, widths that are multiples of 8, not fp64.
bool has_fused_step(const Tensor& q, const Tensor& k, const Tensor& w) {
  if (q.device().is_cpu()) return q.scalar_type() != at::kHalf;
  const auto fits = [](int64_t width) { return width % 8 == 0 && width <= kernels::cuda::kMaxStepWidth; };
  return q.device().is_cuda() && cuda_kernels() && cuda_kernels()->step && q.scalar_type() != at::kDouble &&
         fits(q.size(2)) && fits(w.size(3)) && k.size(1) <= kernels::cuda::kMaxStepWrites;
}

void say_once_that_composed_runs(const Tensor& q, const Tensor& k, const Tensor& w) {
  static std::once_flag said;
  std::call_once(said, [&] {
    info(
        "prism_step: no fused kernel for {}, L = {}, K = {}, V = {} on {}; composing it from LibTorch's "
        "operations",
        c10::toString(q.scalar_type()), k.size(1), q.size(2), w.size(3),
        c10::DeviceTypeName(q.device().type(), true));
  });
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
            const Tensor& state, const OptionalTensor& erase_read, std::optional<double> scale) {
  check_step_arguments(q, k, w, b, g, state, erase_read);
  if (state.numel() == 0) return at::empty({q.size(0), w.size(2), w.size(3)}, q.options());
  const OptionalTensor e = present(erase_read) ? erase_read : std::nullopt;
  const bool fused = has_fused_step(q, k, w);
  if (!fused) say_once_that_composed_runs(q, k, w);
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
  Tensor o = call_operator<StepSignature>("prism::prism_step", q, k, w, b, g, state, erase_read, scale);
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
