#include "prism/distributed/sequence_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "prism/core/error.h"
#include "prism/ops/short_conv.h"

namespace prism {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Ranks& ranks_of(AutogradContext* context) {
  return *reinterpret_cast<Ranks*>(context->saved_data["ranks"].toInt());
}

/// The state before each rank's part: S_0 = 0, S_{r+1} = M_r S_r + R_r. With D_r the gradient of all that
/// follows the start of part r, D_r = dS_r + M_r^T D_{r+1}: dR_r = D_{r+1} and dM_r = D_{r+1} S_r^T.
struct StateBefore : torch::autograd::Function<StateBefore> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& M, const at::Tensor& R,
                            Ranks* ranks) {
    const at::Tensor all = ranks->gather(at::cat({M, R}, -1));
    const at::Tensor all_M = all.narrow(-1, 0, M.size(-1)), all_R = all.narrow(-1, M.size(-1), R.size(-1));
    at::Tensor S = at::zeros_like(R);
    for (int64_t r = 0; r < ranks->rank(); ++r) S = at::matmul(all_M[r], S) + all_R[r];
    context->save_for_backward({all_M, S});
    context->saved_data["ranks"] = reinterpret_cast<int64_t>(ranks);
    return S;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    Ranks& ranks = ranks_of(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &all_M = saved[0], &S = saved[1], all_dS = ranks.gather(grads[0]);
    at::Tensor D = at::zeros_like(S);
    for (int64_t r = ranks.size() - 1; r > ranks.rank(); --r) D = all_dS[r] + at::matmul(all_M[r].mT(), D);
    return {at::matmul(D, S.mT()), D, at::Tensor()};
  }
};

/// The last `tokens` of the part before this one; zeros before the first.
struct TokensBefore : torch::autograd::Function<TokensBefore> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t tokens, Ranks* ranks) {
    const bool last = ranks->rank() == ranks->size() - 1;  // nobody asks for its tokens
    const at::Tensor own = last ? at::zeros({x.size(0), tokens, x.size(2)}, x.options())
                                : x.narrow(1, x.size(1) - tokens, tokens);
    const at::Tensor all = ranks->gather(own);
    context->saved_data["ranks"] = reinterpret_cast<int64_t>(ranks);
    context->saved_data["length"] = x.size(1);
    return ranks->leads() ? at::zeros_like(own) : all[ranks->rank() - 1];
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    Ranks& ranks = ranks_of(context);
    const at::Tensor& d = grads[0];
    const int64_t length = context->saved_data["length"].toInt(), tokens = d.size(1);
    const at::Tensor all = ranks.gather(d), d_x = at::zeros({d.size(0), length, d.size(2)}, d.options());
    if (ranks.rank() + 1 < ranks.size()) d_x.narrow(1, length - tokens, tokens).copy_(all[ranks.rank() + 1]);
    return {d_x, at::Tensor(), at::Tensor()};
  }
};

/// M and Q: the part's tokens without their writes, from the identity.
PrismChunkResult transition(const PrismChunkArgs& args) {
  const int64_t batch = args.q.size(0), tokens = args.q.size(1), width = args.q.size(3);
  const int64_t heads = args.w.size(3);
  const auto state_options = args.g.options().requires_grad(false);
  PrismChunkArgs keys = args;
  keys.k = args.k.narrow(2, 0, 1);
  keys.w = at::zeros({1}, args.w.options().requires_grad(false)).expand({batch, tokens, 1, heads, width});
  keys.initial_state = at::eye(width, state_options).expand({batch, heads, width, width});
  keys.return_final_state = true;
  return prism_chunk(keys);
}

}  // namespace

PrismChunkResult prism_chunk_in_parts(const PrismChunkArgs& args, Ranks& ranks) {
  check(!args.cu_seqlens, "prism_chunk_in_parts: cu_seqlens are not taken, only whole rows");
  check(ranks.leads() || !args.initial_state,
        "prism_chunk_in_parts: rank {} has an initial_state, which only the first part can have",
        ranks.rank());
  PrismChunkArgs part = args;
  part.return_final_state = true;
  const PrismChunkResult own = prism_chunk(part), through = transition(args);
  const at::Tensor S = StateBefore::apply(through.final_state, own.final_state, &ranks);
  const at::Tensor correction = at::einsum("bthk,bhkv->bthv", {through.o.to(S.scalar_type()), S});
  PrismChunkResult result{.o = own.o + correction.to(own.o.scalar_type()), .final_state = {}};
  if (args.return_final_state) result.final_state = own.final_state + at::matmul(through.final_state, S);
  return result;
}

at::Tensor short_conv_in_parts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               Ranks& ranks) {
  const int64_t before = weight.size(1) - 1;
  if (before == 0) return short_conv(x, weight, bias, Packing::rows());
  check(ranks.rank() + 1 == ranks.size() || x.size(1) >= before,
        "short_conv_in_parts: the part of rank {} has {} tokens, a width of {} needs {}", ranks.rank(),
        x.size(1), before + 1, before);
  const at::Tensor longer = at::cat({TokensBefore::apply(x, before, &ranks), x}, 1);
  return short_conv(longer, weight, bias, Packing::rows()).narrow(1, before, x.size(1));
}

}  // namespace prism
