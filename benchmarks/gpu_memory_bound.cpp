// prism_step and prism_refine: operations whose time is that of their bytes.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "gpu_bench.h"
#include "prism/ops/prism_refine.h"

namespace prism::gpu {
namespace {

using at::Tensor;

void step_row(Bench& bench, int64_t L, at::ScalarType state_type) {
  const c10::NoGradGuard no_grad;
  const int64_t B = 1024, H = 16, d = 128;
  const Problem p = draw({"decode", B, 1, H, H, d, {}}, L, /*states=*/true);
  const Tensor state = p.initial_state.to(state_type, false, true);
  const auto first = [](const Tensor& x) { return x.select(1, 0); };
  const auto step = [&](const Tensor& into) {
    return prism_step(first(p.q), first(p.k), first(p.w), first(p.b), first(p.g), into);
  };
  const auto part = [](const Tensor& x) { return x.narrow(0, B - 1, 1).to(at::kDouble); };
  PrismChunkArgs exact{.q = part(p.q), .k = part(p.k), .w = part(p.w), .b = part(p.b), .g = part(p.g)};
  exact.initial_state = part(state);
  exact.return_final_state = true;
  const PrismChunkResult expected = prism_chunk(exact);
  const at::Tensor o = step(state);  // changes the state
  const double error =
      std::max(relative_error(part(o), first(expected.o)), relative_error(part(state), expected.final_state));
  if (!(error <= 0.005)) {
    ++bench.wrong;
    print_row("| {} | {} | **off by {:.1e}, not timed** | | |\n", c10::toString(state_type), L, error);
    return;
  }
  const double call = bench.watch.call([&] { step(state); }),
               kernel = bench.watch.kernels([&] { step(state); });
  const double bytes = 2.0 * state.nbytes() + 2 * p.q.nbytes() + p.k.nbytes() + p.w.nbytes() + p.b.nbytes() +
                       p.g.nbytes(),
               share = bench.share_of_copy(bytes, kernel);
  print_row("| {} | {} | {:.0f} | {:.0f} | {:.3f}{} |\n", c10::toString(state_type), L, 1e3 * call,
            1e3 * kernel, share, share >= 0.9 ? "" : " **under 0.9**");
  bench.json["decode"].push_back({{"state", c10::toString(state_type)},
                                  {"steps", L},
                                  {"call_us", 1e3 * call},
                                  {"kernel_us", 1e3 * kernel},
                                  {"share_of_copy", share}});
}

void refine_row(Bench& bench, int64_t L, at::ScalarType type) {
  const int64_t N = 32768, H = 64, V = 128;
  const auto options = at::TensorOptions(at::kCUDA).dtype(type);
  const auto normal = [&](at::IntArrayRef sizes) { return at::randn(sizes, options); };
  const Tensor v = normal({N, H, V}).requires_grad_(), u = normal({N, H, V}).requires_grad_(),
               p = normal({N, L, H, V}).requires_grad_(),
               beta = at::rand({N, L, H}, options.dtype(at::kFloat)).requires_grad_(),
               d_w = normal({N, L, H, V});
  const auto forward = [&] { return prism_refine(v, u, p, beta).w; };
  const Tensor w = forward();
  const auto part = [](const Tensor& x) { return x.detach().narrow(0, N - 8, 8).to(at::kDouble); };
  const Tensor exact = prism_refine(part(v), part(u), part(p), part(beta), Nonlinearity::kGelu,
                                    Residual::kSubtract, false, Implementation::kComposed)
                           .w;
  const double error = relative_error(part(w), exact), allowed = type == at::kFloat ? 1e-5 : 0.005;
  if (!(error <= allowed)) {
    ++bench.wrong;
    print_row("| {} | {} | **off by {:.1e}, not timed** | | | |\n", c10::toString(type), L, error);
    return;
  }
  const double forward_ms = bench.watch.kernels([&] {
    const c10::NoGradGuard no_grad;
    forward();
  });
  const double backward_ms = bench.watch.kernels([&] {
    torch::autograd::grad({w}, {v, u, p, beta}, {d_w}, /*retain_graph=*/true);
  });
  const double number = double(v.nbytes()), gates = double(beta.nbytes()), steps = double(L);
  const double forward_share = bench.share_of_copy(number * (2 + 2 * steps) + gates, forward_ms),
               backward_share = bench.share_of_copy(number * (4 + 3 * steps) + 2 * gates, backward_ms);
  const auto cell = [](double share) {
    return fmt::format("{:.3f}{}", share, share >= 0.85 ? "" : " **under**");
  };
  print_row("| {} | {} | {:.3f} | {} | {:.3f} | {} |\n", c10::toString(type), L, forward_ms,
            cell(forward_share), backward_ms, cell(backward_share));
  bench.json["refine"].push_back({{"type", c10::toString(type)},
                                  {"steps", L},
                                  {"forward_ms", forward_ms},
                                  {"backward_ms", backward_ms},
                                  {"forward_share", forward_share},
                                  {"backward_share", backward_share}});
}

}  // namespace

void bench_step(Bench& bench) {
  fmt::print(
      "\nprism_step, B = 1024, 16 heads, K = V = 128, bf16 operands; the bar is 0.9 of copy speed.\n\n"
      "| state | L | call, us | kernel, us | of copy speed |\n|---|---|---|---|---|\n");
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int64_t L : {1, 2}) step_row(bench, L, type);
}

void bench_refine(Bench& bench) {
  fmt::print(
      "\nprism_refine, 32768 tokens, 64 heads, V = 128; the bar is 0.85 of copy speed for its bytes.\n\n"
      "| type | L | forward, ms | of copy speed | backward, ms | of copy speed |\n"
      "|---|---|---|---|---|---|\n");
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
    for (const int64_t L : {1, 2, 4}) refine_row(bench, L, type);
}

}  // namespace prism::gpu
