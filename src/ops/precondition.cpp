#include "prism/ops/precondition.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

#include "arguments.h"
#include "kernel_views.h"
#include "prism/kernels/precondition.h"
#include "prism/ops/prism_chunk.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Squash {
  double x, eps;
};

struct Precondition : torch::autograd::Function<Precondition> {
  struct Inputs {
    Inputs(const Tensor& k, const Tensor& beta, const Tensor& g, const Tensor& log_scale,
           const Tensor& initial, const std::vector<int64_t>& offsets, Squash squash) {
      shape = {.dtype = kernel_scalar(k.scalar_type()),
               .sequences = {static_cast<int64_t>(offsets.size()) - 1, offsets.data()},
               .heads = k.size(2),
               .width = k.size(3),
               .squash = squash.x,
               .eps = squash.eps};
      in = {.k = view_of(k, 2, held[0]),
            .beta = view_of(beta.unsqueeze(-1), 2, held[1]),
            .g = view_of(g.unsqueeze(-1), 2, held[2]),
            .log_scale = log_scale.const_data_ptr(),
            .initial = initial.defined() ? initial.const_data_ptr() : nullptr};
    }
    Inputs(const Inputs&) = delete;
    Inputs& operator=(const Inputs&) = delete;

    Tensor held[3];
    kernels::PreconditionShape shape;
    kernels::PreconditionInputs in;
  };

  static variable_list forward(AutogradContext* context, const Tensor& k, const Tensor& beta, const Tensor& g,
                               const Tensor& log_scale, const std::optional<Tensor>& given_initial,
                               const std::vector<int64_t>& offsets, double squash, double eps) {
    const Tensor initial = given_initial.value_or(Tensor());
    context->save_for_backward({k, beta, g, log_scale, initial});
    context->saved_data["offsets"] = offsets;
    context->saved_data["squash"] = squash;
    context->saved_data["eps"] = eps;
    context->set_materialize_grads(false);
    const Inputs inputs(k, beta, g, log_scale, initial, offsets, {squash, eps});
    const Tensor y = at::empty(k.sizes(), k.options());
    const Tensor final = at::empty({inputs.shape.sequences.count, k.size(2), k.size(3)}, beta.options());
    kernels::precondition_forward(inputs.shape, inputs.in, y.mutable_data_ptr(), final.mutable_data_ptr());
    return {y, final};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &k = saved[0], &beta = saved[1], &g = saved[2], &log_scale = saved[3], &initial = saved[4];
    const auto offsets = context->saved_data["offsets"].toIntVector();
    const Inputs inputs(k, beta, g, log_scale, initial, offsets,
                        {context->saved_data["squash"].toDouble(), context->saved_data["eps"].toDouble()});
    const auto empty_like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
    const Tensor dk = empty_like(k), dbeta = empty_like(beta), dg = empty_like(g), dc = empty_like(log_scale);
    const Tensor dinitial = initial.defined() ? empty_like(initial) : Tensor();
    Tensor held, dfinal;
    const Tensor dy = grads[0].defined() ? grads[0] : at::zeros(k.sizes(), k.options());
    if (grads[1].defined()) dfinal = grads[1].contiguous();
    kernels::precondition_backward(inputs.shape, inputs.in, view_of(dy, 2, held),
                                   dfinal.defined() ? dfinal.const_data_ptr() : nullptr,
                                   {.dk = dk.mutable_data_ptr(),
                                    .dbeta = dbeta.mutable_data_ptr(),
                                    .dg = dg.mutable_data_ptr(),
                                    .dlog_scale = dc.mutable_data_ptr(),
                                    .dinitial = dinitial.defined() ? dinitial.mutable_data_ptr() : nullptr});
    return {dk, dbeta, dg, dc, dinitial, Tensor(), Tensor(), Tensor()};
  }
};

/// Any device: a_t is linear attention with one key channel.
PreconditionResult composed(const Tensor& k, const Tensor& beta, const Tensor& g, const Tensor& log_scale,
                            const Packing& packing, const std::optional<Tensor>& initial, Squash squash) {
  const Tensor wide = k.to(beta.scalar_type());
  const Tensor one = at::ones({k.size(0), k.size(1), k.size(2), 1}, wide.options());
  PrismChunkArgs scan{.q = one,
                      .k = one.unsqueeze(2),
                      .w = (beta.unsqueeze(-1) * wide.square()).unsqueeze(2),
                      .b = at::zeros_like(g).detach(),
                      .g = g};
  if (initial) scan.initial_state = initial->unsqueeze(2);
  if (packing.is_packed()) scan.cu_seqlens = packing.cu_seqlens();
  scan.return_final_state = true;
  const PrismChunkResult a = prism_chunk(scan);
  const Tensor r = at::log(a.o + squash.eps) - log_scale.unsqueeze(-1);
  const Tensor P = at::exp(r / (1 + r.abs()) * -std::log(squash.x));
  return {(P * wide).to(k.scalar_type()), a.final_state.squeeze(2)};
}

void check_arguments(const Tensor& k, const Tensor& beta, const Tensor& g, const Tensor& log_scale,
                     const Packing& packing, const std::optional<Tensor>& initial, double squash) {
  ArgumentCheck arguments("precondition");
  arguments.tensor("k", k, 4, "[B,T,H,K]");
  const auto type = gate_type(k.scalar_type());
  for (const auto& [name, gate] : {std::pair{"beta", &beta}, std::pair{"g", &g}}) {
    arguments.tensor(name, *gate, 3, "[B,T,H]");
    arguments.dtype(name, *gate, type, "beside k");
    arguments.size(name, *gate, 0, "rows", k.size(0), "k has");
    arguments.size(name, *gate, 1, "tokens", k.size(1), "k has");
    arguments.size(name, *gate, 2, "heads", k.size(2), "k has");
  }
  arguments.tensor("log_scale", log_scale, 1, "[H]");
  arguments.dtype("log_scale", log_scale, type, "beside k");
  arguments.size("log_scale", log_scale, 0, "heads", k.size(2), "k has");
  if (initial) {
    arguments.tensor("initial_a", *initial, 3, "[N,H,K]");
    arguments.dtype("initial_a", *initial, type, "beside k");
    arguments.size("initial_a", *initial, 0, "sequences", packing.sequences(k), "the packing has");
    arguments.size("initial_a", *initial, 1, "heads", k.size(2), "k has");
    arguments.size("initial_a", *initial, 2, "channels a head", k.size(3), "k has");
  }
  if (!(squash >= 1)) arguments.fail_with("squash is {}, expected at least 1", squash);
  const int64_t tokens = offsets_of(k, packing).back();
  if (tokens != k.size(0) * k.size(1))
    arguments.fail_with("the packing holds {} tokens, k {}", tokens, k.size(0) * k.size(1));
}

}  // namespace

PreconditionResult precondition(const Tensor& k, const Tensor& beta, const Tensor& g, const Tensor& log_scale,
                                const Packing& packing, const std::optional<Tensor>& initial_a, double squash,
                                double eps) {
  const auto initial = present(initial_a) ? initial_a : std::nullopt;
  check_arguments(k, beta, g, log_scale, packing, initial, squash);
  if (!takes_cpu_kernel(k)) return composed(k, beta, g, log_scale, packing, initial, {squash, eps});
  const auto held = initial ? std::optional<Tensor>(initial->contiguous()) : std::nullopt;
  const variable_list out =
      Precondition::apply(k, beta, g, log_scale.contiguous(), held, offsets_of(k, packing), squash, eps);
  return {out[0], out[1]};
}

}  // namespace prism
