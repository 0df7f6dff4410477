// TTT-Linear through the CPU kernel, with its hand-written backward.
#include "ttt_linear_fused.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "arguments.h"
#include "dispatch.h"
#include "kernel_views.h"
#include "mini_batches.h"
#include "prism/kernels/ttt_linear.h"
#include "prism_chunk_call.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A call as the kernel takes it; owns the copies of what it cannot read in place.
struct TttKernelCall {
  /// tensors: q, k, v, lr, place_step, norm_weight, norm_bias, W.
  TttKernelCall(const variable_list& tensors, std::vector<int64_t> starts_of_sequences)
      : offsets(std::move(starts_of_sequences)) {
    const Tensor& q = tensors[0];
    shape = {.dtype = kernel_scalar(q.scalar_type()),
             .sequences = {.count = int64_t(offsets.size()) - 1, .offsets = offsets.data()},
             .heads = q.size(2),
             .width = q.size(3),
             .mini_batch = tensors[4].size(0)};
    in.q = view_of(q, 2, held[0]);
    in.k = view_of(tensors[1], 2, held[1]);
    in.v = view_of(tensors[2], 2, held[2]);
    in.lr = view_of(tensors[3].unsqueeze(-1), 2, held[3]);
    const auto type = gate_type(q.scalar_type());
    const void** const targets[] = {&in.place_step, &in.norm_weight, &in.norm_bias, &in.weights};
    for (size_t i = 0; i < 4; ++i) {
      held[4 + i] = tensors[4 + i].to(type).contiguous();
      *targets[i] = held[4 + i].const_data_ptr();
    }
  }
  TttKernelCall(const TttKernelCall&) = delete;
  TttKernelCall& operator=(const TttKernelCall&) = delete;

  Tensor states(int64_t count) const {
    return at::empty({count, shape.heads, shape.width + 1, shape.width}, held[7].options());
  }

  std::vector<int64_t> offsets;
  kernels::TttLinearShape shape;
  kernels::TttLinearInputs in;
  Tensor held[8];
};

struct TttLinear : torch::autograd::Function<TttLinear> {
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& lr, const Tensor& place_step, const Tensor& norm_weight,
                               const Tensor& norm_bias, const Tensor& W, const std::vector<int64_t>& offsets,
                               bool save) {
    const TttKernelCall call({q, k, v, lr, place_step, norm_weight, norm_bias, W}, offsets);
    const int64_t N = call.shape.sequences.count;
    Tensor o = at::empty(v.sizes(), v.options()), last = call.states(N), start = call.states(N),
           sum = call.states(N), starts;
    if (save) starts = call.states(kernels::ttt_linear_count(call.shape));
    kernels::ttt_linear_forward(call.shape, call.in, o.mutable_data_ptr(),
                                {last.mutable_data_ptr(), start.mutable_data_ptr(), sum.mutable_data_ptr()},
                                save ? starts.mutable_data_ptr() : nullptr);
    context->save_for_backward({q, k, v, lr, place_step, norm_weight, norm_bias, W, starts});
    context->saved_data["offsets"] = offsets;
    context->set_materialize_grads(false);
    return {o, last, start, sum};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    variable_list saved = context->get_saved_variables();
    const Tensor starts = saved.back();
    saved.pop_back();
    const TttKernelCall call(saved, context->saved_data["offsets"].toIntVector());
    const int64_t N = call.shape.sequences.count, H = call.shape.heads, K = call.shape.width;
    const auto real = call.held[7].options();
    Tensor held,
        dq = at::empty(saved[0].sizes(), saved[0].options()),
        dk = at::empty(saved[1].sizes(), saved[1].options()),
        dv = at::empty(saved[2].sizes(), saved[2].options()), dlr = at::empty(saved[3].sizes(), real),
        dplace = at::empty({N, H, call.shape.mini_batch}, real), dweight = at::empty({N, H, K}, real),
        dbias = at::empty({N, H, K}, real), dW = call.states(N);
    const Tensor d_o = grads[0].defined() ? grads[0] : at::zeros(saved[2].sizes(), saved[2].options());
    Tensor d_last[3];
    const auto state = [&](size_t i) -> void* {
      if (!grads[i].defined()) return nullptr;
      d_last[i - 1] = grads[i].contiguous();
      return const_cast<void*>(d_last[i - 1].const_data_ptr());
    };
    kernels::ttt_linear_backward(
        call.shape, call.in, starts.const_data_ptr(), view_of(d_o, 2, held), {state(1), state(2), state(3)},
        {dq.mutable_data_ptr(), dk.mutable_data_ptr(), dv.mutable_data_ptr(), dlr.mutable_data_ptr(),
         dplace.mutable_data_ptr(), dweight.mutable_data_ptr(), dbias.mutable_data_ptr(),
         dW.mutable_data_ptr()});
    return {dq,           dk, dv,       dlr,     dplace.flatten(0, 1).sum(0), dweight.sum(0),
            dbias.sum(0), dW, Tensor(), Tensor()};
  }
};

bool whole(const std::vector<int64_t>& seen, int64_t mini_batch) {
  return std::all_of(seen.begin(), seen.end(), [&](int64_t tokens) { return tokens % mini_batch == 0; });
}

}  // namespace

bool fits_ttt_linear_kernel(const FastWeightArgs& a) {
  const FastMemory& memory = a.memory;
  return a.q.is_cpu() && a.q.scalar_type() != at::kHalf && !a.rule.accumulate && a.rule.gradient_weight &&
         a.rule.window == 1 && a.state.weights.size() == 1 && memory.bias && memory.norm_weight.defined() &&
         memory.loss == InnerLoss::kHalfSquare && memory.projection == Projection::kNone &&
         whole(a.seen, a.mini_batch);
}

FastWeightResult ttt_linear_fused(const FastWeightArgs& a) {
  const auto type = gate_type(a.q.scalar_type());
  const Tensor W = (a.state.start.empty() ? a.state.weights : a.state.start)[0].to(type);
  const auto offsets = sequence_offsets(a.cu_seqlens, a.q.size(0), a.q.size(1));
  // One slot more than tokens keeps a mini-batch open that no sequence fills.
  const int64_t slots = slots_for(a.mini_batch, longest_sequence(offsets) + 1);
  const Tensor place_step = a.rule.place_step->narrow(0, 0, slots).to(type),
               norm_weight = a.memory.norm_weight.to(type), norm_bias = a.memory.norm_bias.to(type);
  const bool save =
      records_gradients(a.q, a.k, a.v, *a.rule.gradient_weight, place_step, norm_weight, norm_bias, W);
  const auto result = TttLinear::apply(a.q, a.k, a.v, *a.rule.gradient_weight, place_step, norm_weight,
                                       norm_bias, W, offsets, save);
  return {.o = result[0], .state = {.weights = {result[1]}, .momentum = {result[3]}, .start = {result[2]}}};
}

}  // namespace prism
