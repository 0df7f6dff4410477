// prism_chunk and causal attention at the shapes of design page kernels.md.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/autograd/autograd.h>

#include "gpu_bench.h"

namespace prism::gpu {
namespace {

using at::Tensor;
namespace allocator = c10::cuda::CUDACachingAllocator;

/// Forward and backward of a problem through the public operator.
struct Training {
  explicit Training(const Problem& p) : problem(p), leaves(p.leaves()) {
    for (Tensor& leaf : leaves) leaf.requires_grad_();
  }
  ~Training() {
    for (Tensor& leaf : leaves) leaf.requires_grad_(false);
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  Tensor forward() const { return prism_chunk(problem.args()).o; }
  std::vector<Tensor> backward(const Tensor& o) const {
    return torch::autograd::grad({o}, leaves, {problem.d_o}, /*retain_graph=*/true);
  }

  Problem problem;
  std::vector<Tensor> leaves;
};

/// What prism.md's table allows for bf16: o, dq, dk, dw, db, dg.
constexpr double kAllowed[] = {0.005, 0.008, 0.008, 0.008, 0.01, 0.01};

/// The last head's outputs and gradients against the composed operation in fp64: the largest error as a share
/// of what is allowed.
double worst_error(const Shape& s, const Problem& p) {
  std::vector<Tensor> found;
  {
    const Training training(p);
    const Tensor o = training.forward();
    found = training.backward(o);
    found.insert(found.begin(), o.detach());
  }
  const Problem part = one_head(p, s.Hk - 1);
  const auto wide = [](const Tensor& x) { return x.detach().to(at::kDouble).requires_grad_(); };
  const std::vector<Tensor> inputs = {wide(part.q), wide(part.k), wide(part.w), wide(part.b), wide(part.g)};
  PrismChunkArgs args{.q = inputs[0], .k = inputs[1], .w = inputs[2], .b = inputs[3], .g = inputs[4]};
  args.cu_seqlens = part.args().cu_seqlens;
  args.implementation = Implementation::kComposed;
  const Tensor o = prism_chunk(args).o;
  std::vector<Tensor> exact = torch::autograd::grad({o}, inputs, {part.d_o.to(at::kDouble)});
  exact.insert(exact.begin(), o.detach());
  const Problem of_head = one_head({.q = found[1],
                                    .k = found[2],
                                    .w = found[3],
                                    .b = found[4],
                                    .g = found[5],
                                    .initial_state = {},
                                    .cu_seqlens = {},
                                    .d_o = found[0],
                                    .d_final_state = {}},
                                   s.Hk - 1);
  const Tensor parts[] = {of_head.d_o, of_head.q, of_head.k, of_head.w, of_head.b, of_head.g};
  double worst = 0;
  for (size_t i = 0; i < 6; ++i) worst = std::max(worst, relative_error(parts[i], exact[i]) / kAllowed[i]);
  return worst;
}

std::string against(double value, double bar) {
  return fmt::format("{:.3f} / {:.3g}{}", value, bar, value <= bar ? "" : " **over**");
}

void chunk_row(Bench& bench, const Shape& s, int64_t L) {
  const Problem p = draw(s, L, /*states=*/false);
  const double error = worst_error(s, p);
  if (!(error <= 1)) {
    ++bench.wrong;
    print_row("| {} | {} | **off by {:.1f} times the tolerance, not timed** | | | | | |\n", s.name, L, error);
    return;
  }
  allocator::emptyCache();
  const auto infer = [&] {
    const c10::NoGradGuard no_grad;
    prism_chunk(p.args());
  };
  const double forward = bench.watch.call(infer), forward_kernels = bench.watch.kernels(infer),
               forward_idle = bench.watch.from_idle(infer);
  const Training training(p);
  const int64_t before = allocator::getDeviceStats(0).allocated_bytes[0].current;
  allocator::resetPeakStats(0);
  training.backward(training.forward());
  const double gib = double(allocator::getDeviceStats(0).allocated_bytes[0].peak - before) / (1 << 30);
  const double train = bench.watch.call([&] { training.forward(); });
  const Tensor o = training.forward();
  const auto back = [&] { training.backward(o); };
  const double backward = bench.watch.call(back), backward_kernels = bench.watch.kernels(back),
               backward_idle = bench.watch.from_idle(back);
  const double floor = 1e-9 * double(p.q.nbytes() + p.k.nbytes() + p.w.nbytes() + o.nbytes()) / bench.copy;
  const Bars& bars = s.bars;
  print_row("| {} | {} | {} ({:.3f}, {:.3f}) | {:.3f} | {} ({:.3f}, {:.3f}) | {:.2f} | {:.2f} | {:.2f} |\n",
            s.name, L, against(forward, bars.forward[L - 1]), forward_kernels, forward_idle, train,
            against(backward, bars.backward[L - 1]), backward_kernels, backward_idle, floor, gib, error);
  bench.json["chunk"].push_back({{"shape", s.name},
                                 {"steps", L},
                                 {"forward_ms", forward},
                                 {"forward_kernels_ms", forward_kernels},
                                 {"forward_idle_ms", forward_idle},
                                 {"forward_training_ms", train},
                                 {"backward_ms", backward},
                                 {"backward_kernels_ms", backward_kernels},
                                 {"backward_idle_ms", backward_idle},
                                 {"floor_ms", floor},
                                 {"extra_gib", gib},
                                 {"error_share", error}});
}

}  // namespace

void bench_chunk(Bench& bench) {
  fmt::print(
      "\nprism_chunk, bf16, ms: call / bar (kernels, from idle). Memory: of a forward and a backward, "
      "outputs and "
      "gradients included. Worst error: share of the allowed.\n\n"
      "| B x T, key / value heads | L | forward, inference | forward, training | backward | byte floor | GiB "
      "| "
      "worst error |\n|---|---|---|---|---|---|---|---|\n");
  for (const Shape& s : shapes())
    for (const int64_t L : {1, 2})
      if (bench.wanted(s.name)) chunk_row(bench, s, L);
}

void bench_attention(Bench& bench) {
  fmt::print(
      "\nCausal attention of LibTorch at the same shapes, bf16, ms.\n\n| shape | forward | backward |\n"
      "|---|---|---|\n");
  for (const Shape& s : shapes()) {
    if (!bench.wanted(s.name) || s.Hk != s.H) continue;
    const int64_t rows = s.lengths.empty() ? s.B : static_cast<int64_t>(s.lengths.size()),
                  T = s.B * s.T / rows;
    const auto draw = [&] {
      return at::randn({rows, s.H, T, s.width}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
    };
    const Tensor q = draw().requires_grad_(), k = draw().requires_grad_(), v = draw().requires_grad_(),
                 d_o = draw();
    const auto run = [&] { return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true); };
    const double forward = bench.watch.call([&] {
      const c10::NoGradGuard no_grad;
      run();
    });
    const Tensor o = run();
    const double backward = bench.watch.call([&] {
      torch::autograd::grad({o}, {q, k, v}, {d_o}, /*retain_graph=*/true);
    });
    print_row("| {} | {:.3f} | {:.3f} |\n", s.name, forward, backward);
    bench.json["attention"].push_back(
        {{"shape", s.name}, {"forward_ms", forward}, {"backward_ms", backward}});
  }
}

}  // namespace prism::gpu
