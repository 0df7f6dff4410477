// The files of the mixers that run on prism_chunk: one scalar gate a head, or none.
#include <ATen/ATen.h>

#include "prism/mixers/linear_attention.h"
#include "prism/ops/norm.h"
#include "prism/ops/precondition.h"
#include "prism/ops/step_size.h"
#include "recurrence.h"

namespace prism::golden {

using at::Tensor;

namespace {

/// The last `dims` dimensions of x, filled up with zeros to multiples of `unit`.
Tensor filled_up(const Tensor& x, int64_t dims, int64_t unit) {
  std::vector<int64_t> padding;
  for (int64_t d = 1; d <= dims; ++d) {
    padding.push_back(0);
    padding.push_back((unit - x.size(-d) % unit) % unit);
  }
  return at::constant_pad_nd(x, padding);
}

/// Channels of zeros change nothing, as long as the scale is given.
PrismChunkArgs with_wide_heads(PrismChunkArgs args, int64_t unit) {
  for (Tensor* x : {&args.q, &args.k, &args.w}) *x = filled_up(*x, 1, unit);
  if (args.erase_read) args.erase_read = filled_up(*args.erase_read, 1, unit);
  if (args.initial_state) args.initial_state = filled_up(*args.initial_state, 2, unit);
  return args;
}

}  // namespace

Tensors recurrence(const Call& call, PrismChunkArgs args) {
  if (!args.initial_state) args.initial_state = call.find("initial_state");
  args.cu_seqlens = call.find("cu_seqlens");
  args.scale = call.number("scale");
  args.return_final_state = true;
  if (call.setting.widths == 0) {
    const PrismChunkResult result = prism_chunk(args);
    return {{"o", result.o}, {"final_state", result.final_state}};
  }
  const int64_t K = args.q.size(-1), V = args.w.size(-1);
  const PrismChunkResult wide = prism_chunk(with_wide_heads(args, call.setting.widths));
  return {{"o", wide.o.narrow(-1, 0, V)},
          {"final_state", wide.final_state.narrow(-2, 0, K).narrow(-1, 0, V)}};
}

namespace {

Tensor no_gate(const Call& call) {
  const Tensor& q = call.at("q");
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::zeros({q.size(0), q.size(1), call.at("v").size(2)},
                   q.options().dtype(type).requires_grad(false));
}

Tensors linear(const Call& call) {
  return recurrence(call, {.q = call.at("q"),
                           .k = one_step(call.at("k")),
                           .w = one_step(call.at("v")),
                           .b = no_gate(call),
                           .g = no_gate(call)});
}

/// z is the last column of the state. From bf16 storage, the operation runs in fp32: the quotient of two
/// numbers that were rounded to bf16 loses more than the tolerance in its gradient.
Tensors linear_norm(const Call& call) {
  const auto wide = [&](const char* name) {
    const Tensor& x = call.at(name);
    return x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
  };
  PrismChunkArgs args{.q = wide("q"),
                      .k = one_step(wide("k")),
                      .w = one_step(with_normaliser_channel(wide("v"))),
                      .b = no_gate(call),
                      .g = no_gate(call)};
  if (const auto state = call.find("initial_state"))
    args.initial_state = at::cat({*state, call.at("initial_z").squeeze(1).unsqueeze(-1)}, -1);
  const Tensors out = recurrence(call, args);
  const Tensor& state = out.at("final_state");
  const int64_t width = state.size(-1) - 1;
  return {{"o", normalised(out.at("o")).to(call.at("q").scalar_type())},
          {"final_state", state.narrow(-1, 0, width)},
          {"final_z", state.select(-1, width).unsqueeze(1)}};
}

/// q = C, k = B, w = dt x, g = dt A, and the skip D x.
Tensors mamba2(const Call& call) {
  const Tensor &x = call.at("x"), &dt = call.at("dt");
  Tensors out = recurrence(call, {.q = call.at("C"),
                                  .k = one_step(call.at("B")),
                                  .w = one_step(gated(dt, x)),
                                  .b = at::zeros_like(dt).detach(),
                                  .g = dt * call.at("A")});
  out["o"] = out["o"] + call.at("D").unsqueeze(-1) * x;
  return out;
}

Tensors delta(const Call& call) {
  const Tensor& beta = call.at("beta");
  return recurrence(call, {.q = call.at("q"),
                           .k = one_step(call.at("k")),
                           .w = one_step(gated(beta, call.at("v"))),
                           .b = beta,
                           .g = call.find("g").value_or(no_gate(call))});
}

Tensors efla(const Call& call) {
  const Tensor b = exact_step_size(call.at("beta"), call.at("k"));
  return recurrence(call, {.q = call.at("q"),
                           .k = one_step(call.at("k")),
                           .w = one_step(gated(b, call.at("v"))),
                           .b = b,
                           .g = no_gate(call)});
}

/// The erase reads the undecayed state: e^g (I - b k p^T) with b = beta e^-g is e^g I - beta k p^T. The large
/// b meets the decay of its own token again before it meets anything else, so gates of -20 keep their digits.
Tensors comba(const Call& call) {
  const Tensor &beta = call.at("beta"), &g = call.at("g");
  return recurrence(call, {.q = call.at("q"),
                           .k = one_step(call.at("k")),
                           .w = one_step(gated(beta, call.at("v"))),
                           .b = beta * g.neg().exp(),
                           .g = g,
                           .erase_read = call.at("p")});
}

/// The op of the files takes q and k of any length; a norm clamped at 1e-12 is an eps of 1e-24 in the root.
Tensors pgdn(const Call& call) {
  const Tensor &beta = call.at("beta"), &k = call.at("k");
  const auto type = k.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor unit = l2_norm(k.to(type), 1e-24);
  const PreconditionResult write =
      precondition(unit, call.at("beta_atk"), call.at("g_atk"), call.at("log_atk_scale"), Packing::rows(),
                   call.find("initial_A"), call.number("squash_x"), call.number("eps"));
  Tensors out = recurrence(call, {.q = l2_norm(call.at("q"), 1e-24),
                                  .k = one_step(write.write_key.to(k.scalar_type())),
                                  .w = one_step(gated(beta, call.at("v"))),
                                  .b = beta,
                                  .g = call.at("g"),
                                  .erase_read = unit.to(k.scalar_type())});
  out["final_A"] = write.final_a;
  return out;
}

}  // namespace

std::vector<Mixer> scalar_gate_mixers() {
  return {{"linear", linear, {"initial_state"}},
          {"linear_norm", linear_norm, {"initial_state", "initial_z"}},
          {"mamba2", mamba2, {"dt", "A", "D", "initial_state"}},
          {"delta", delta, {"beta", "initial_state"}},
          {"gdn", delta, {"beta", "g", "initial_state"}},
          {"efla", efla, {"beta", "initial_state"}},
          {"pgdn", pgdn, {"beta", "g", "beta_atk", "g_atk", "log_atk_scale", "initial_state", "initial_A"}},
          {"comba", comba, {"beta", "g", "initial_state"}}};
}

}  // namespace prism::golden
