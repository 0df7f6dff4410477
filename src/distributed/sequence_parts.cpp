#include "prism/distributed/sequence_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "prism/core/error.h"
#include "prism/ops/short_conv.h"

namespace prism {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
/// States are fp32, and so is what is done to them.
using WithoutAutocast = c10::impl::ExcludeDispatchKeyGuard;

Ranks& ranks_of(AutogradContext* context) {
  return *reinterpret_cast<Ranks*>(context->saved_data["ranks"].toInt());
}

/// The state before each rank's part: S_0 = 0, S_{r+1} = M_r S_r + R_r. With D_r the gradient of all that
/// follows the start of part r, D_r = dS_r + M_r^T D_{r+1}: dR_r = D_{r+1} and dM_r = D_{r+1} S_r^T.
struct StateBefore : torch::autograd::Function<StateBefore> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& M, const at::Tensor& R,
                            Ranks* ranks) {
    const WithoutAutocast exact(c10::autocast_dispatch_keyset);
    const at::Tensor all = ranks->gather(at::cat({M, R}, -1));
    const at::Tensor all_M = all.narrow(-1, 0, M.size(-1)), all_R = all.narrow(-1, M.size(-1), R.size(-1));
    at::Tensor S = at::zeros_like(R);
    for (int64_t r = 0; r < ranks->rank(); ++r) S = at::matmul(all_M[r], S) + all_R[r];
    context->save_for_backward({all_M, S});
    context->saved_data["ranks"] = reinterpret_cast<int64_t>(ranks);
    return S;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const WithoutAutocast exact(c10::autocast_dispatch_keyset);
    Ranks& ranks = ranks_of(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &all_M = saved[0], &S = saved[1], all_dS = ranks.gather(grads[0]);
    at::Tensor D = at::zeros_like(S);
    for (int64_t r = ranks.size() - 1; r > ranks.rank(); --r) D = all_dS[r] + at::matmul(all_M[r].mT(), D);
    return {at::matmul(D, S.mT()), D, at::Tensor()};
  }
};

/// The `own` of the rank before this one; zeros before the first.
struct FromRankBefore : torch::autograd::Function<FromRankBefore> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& own, Ranks* ranks) {
    context->saved_data["ranks"] = reinterpret_cast<int64_t>(ranks);
    const at::Tensor all = ranks->gather(own);
    return ranks->leads() ? at::zeros_like(own) : all[ranks->rank() - 1];
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    Ranks& ranks = ranks_of(context);
    const at::Tensor all = ranks.gather(grads[0]);
    const bool last = ranks.rank() + 1 == ranks.size();
    return {last ? at::zeros_like(grads[0]) : all[ranks.rank() + 1], at::Tensor()};
  }
};

/// M and Q: the first `tokens` of the part without their writes, from the identity.
PrismChunkResult transition(const PrismChunkArgs& args, int64_t tokens) {
  const int64_t batch = args.q.size(0), width = args.q.size(3), heads = args.w.size(3);
  const auto state_options = args.g.options().requires_grad(false);
  const auto first = [&](const at::Tensor& x) { return x.narrow(1, 0, tokens); };
  PrismChunkArgs keys = args;
  keys.q = first(args.q), keys.b = first(args.b), keys.g = first(args.g);
  keys.k = first(args.k).narrow(2, 0, 1);
  if (args.erase_read) keys.erase_read = first(*args.erase_read);
  keys.w = at::zeros({1}, args.w.options().requires_grad(false)).expand({batch, tokens, 1, heads, width});
  keys.initial_state = at::eye(width, state_options).expand({batch, heads, width, width});
  keys.return_final_state = true;
  return prism_chunk(keys);
}

/// Tokens of each sequence of x.
std::vector<int64_t> lengths_of(const at::Tensor& x, const Packing& packing) {
  std::vector<int64_t> lengths(static_cast<size_t>(packing.sequences(x)), x.size(1));
  for (size_t n = 0; packing.is_packed() && n < lengths.size(); ++n)
    lengths[n] = packing.offsets()[n + 1] - packing.offsets()[n];
  return lengths;
}

/// `packing` with `more` tokens before the first sequence (rows: before each).
Packing with_longer_first(std::vector<int64_t> lengths, int64_t more, const Packing& packing) {
  if (!packing.is_packed()) return packing;
  lengths.front() += more;
  return Packing::packed(lengths);
}

}  // namespace

PrismChunkResult prism_chunk_in_parts(const PrismChunkArgs& args, const Packing& packing, Ranks& ranks) {
  check(ranks.leads() || !args.initial_state,
        "prism_chunk_in_parts: rank {} has an initial_state, which only the first part can have",
        ranks.rank());
  check(!args.cu_seqlens && !(packing.is_packed() && args.initial_state),
        "prism_chunk_in_parts: takes no cu_seqlens, and an initial_state for rows alone");
  PrismChunkArgs part = args;
  part.cu_seqlens = prism_chunk_offsets(args, packing);
  part.return_final_state = true;
  const PrismChunkResult own = prism_chunk(part);
  const int64_t tokens = args.q.size(1), first = packing.is_packed() ? packing.offsets()[1] : tokens;
  const int64_t borders = packing.is_packed() ? packing.sequences(args.q) - 1 : 0;
  const PrismChunkResult through = transition(args, first);
  const WithoutAutocast exact(c10::autocast_dispatch_keyset);
  const at::Tensor R = packing.is_packed() ? own.final_state.narrow(0, borders, 1) : own.final_state;
  const at::Tensor M = borders ? at::zeros_like(through.final_state) : through.final_state;
  const at::Tensor S = StateBefore::apply(M, R, &ranks);
  const at::Tensor correction =
      at::einsum("bthk,bhkv->bthv", {through.o.to(S.scalar_type()), S}).to(own.o.scalar_type());
  const at::Tensor o = own.o.narrow(1, 0, first) + correction;
  PrismChunkResult result{.o = at::cat({o, own.o.narrow(1, first, tokens - first)}, 1), .final_state = {}};
  if (args.return_final_state) result.final_state = R + at::matmul(M, S);
  return result;
}

at::Tensor short_conv_in_parts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               const Packing& packing, Ranks& ranks) {
  const int64_t before = weight.size(1) - 1;
  if (before == 0) return short_conv(x, weight, bias, packing);
  const std::vector<int64_t> lengths = lengths_of(x, packing);
  const bool last = ranks.rank() + 1 == ranks.size(), has_border = packing.is_packed() && lengths.size() > 1;
  check(last || has_border || x.size(1) >= before,
        "short_conv_in_parts: the part of rank {} has {} tokens, a width of {} needs {}", ranks.rank(),
        x.size(1), before + 1, before);
  // What the next part sees of the last sequence; zeros stand before its beginning.
  const int64_t seen = std::min(before, lengths.back());
  const at::Tensor tail = at::constant_pad_nd(x.narrow(1, x.size(1) - seen, seen), {0, 0, before - seen, 0});
  const at::Tensor longer = at::cat({FromRankBefore::apply(tail, &ranks), x}, 1);
  return short_conv(longer, weight, bias, with_longer_first(lengths, before, packing))
      .narrow(1, before, x.size(1));
}

}  // namespace prism
