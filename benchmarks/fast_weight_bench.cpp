// fast_weights against prism_chunk with one write: TTT-Linear fused and composed, TTT-MLP, Titans with both
// memories; forward and forward + backward, in one process and in turns, medians. Every result is checked
// against the fp64 composed operation first; a wrong one ends the program.
//   bench_fast_weight [--threads N] [--seconds S] [--shape B,T,H,K]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/memory.h"
#include "prism/ops/fast_weights.h"
#include "prism/ops/prism_chunk.h"

namespace prism {
namespace {

using at::Tensor;

struct Shape {
  int64_t B = 128, T = 200, H = 2, K = 32;
};

/// A side of the race: inputs, and what it computes from them.
struct Side {
  std::string name;
  std::vector<Tensor> leaves;
  std::function<Tensor(const std::vector<Tensor>&, Implementation)> run;
  Implementation implementation = Implementation::kAuto;
  std::vector<double> forward = {}, both = {};

  void train(const Tensor& up) const { torch::autograd::grad({run(leaves, implementation)}, leaves, {up}); }
};

Tensor leaf(const Tensor& x) { return x.contiguous().requires_grad_(); }
Tensor unit(const Tensor& x) { return x / x.norm(2, -1, true); }

Side prism_side(const Shape& s) {
  const auto gate = [&] { return at::rand({s.B, s.T, s.H}); };
  std::vector<Tensor> leaves{leaf(unit(at::randn({s.B, s.T, s.H, s.K}))),
                             leaf(unit(at::randn({s.B, s.T, 1, s.H, s.K}))),
                             leaf(at::randn({s.B, s.T, 1, s.H, s.K})), leaf(gate()), leaf(gate() * -0.1)};
  return {"prism L=1", leaves, [](const std::vector<Tensor>& x, Implementation implementation) {
            PrismChunkArgs args{.q = x[0], .k = x[1], .w = x[2], .b = x[3], .g = x[4]};
            args.implementation = implementation;
            return prism_chunk(args).o;
          }};
}

std::vector<Tensor> tokens(const Shape& s) {
  const auto normal = [&] { return at::randn({s.B, s.T, s.H, s.K}); };
  return {leaf(unit(normal())), leaf(unit(normal())), leaf(normal())};
}

/// layers: 1 or 2.
Side ttt_side(const Shape& s, const std::string& name, int64_t layers, Implementation implementation) {
  std::vector<Tensor> leaves = tokens(s);
  leaves.push_back(leaf(at::rand({s.B, s.T, s.H}) / double(s.K)));
  leaves.push_back(leaf(1 / at::arange(1, 17, at::kFloat)));
  leaves.push_back(leaf(at::ones({s.H, s.K})));
  leaves.push_back(leaf(at::zeros({s.H, s.K})));
  const int64_t hidden = layers == 1 ? s.K : 4 * s.K;
  leaves.push_back(leaf(at::randn({s.B, s.H, s.K + 1, hidden}) * 0.1));
  if (layers == 2) leaves.push_back(leaf(at::randn({s.B, s.H, hidden + 1, s.K}) * 0.1));
  return {name, leaves,
          [](const std::vector<Tensor>& x, Implementation chosen) {
            FastWeightArgs args{.q = x[0], .k = x[1], .v = x[2], .memory = {}, .rule = {}, .state = {}};
            args.rule = {.gradient_weight = x[3], .place_step = x[4], .accumulate = false};
            args.memory = {.bias = true,
                           .exact_gelu = false,
                           .norm_weight = x[5],
                           .norm_bias = x[6],
                           .loss = InnerLoss::kHalfSquare};
            args.state.weights.assign(x.begin() + 7, x.end());
            args.implementation = chosen;
            return fast_weights(args).o;
          },
          implementation};
}

Side titans_side(const Shape& s, const std::string& name, int64_t layers) {
  std::vector<Tensor> leaves = tokens(s);
  for (int i = 0; i < 3; ++i) leaves.push_back(leaf(at::rand({s.B, s.T, s.H})));
  const int64_t hidden = layers == 1 ? s.K : 2 * s.K;
  leaves.push_back(leaf(at::randn({s.B, s.H, s.K, hidden}) * 0.1));
  if (layers == 2) leaves.push_back(leaf(at::randn({s.B, s.H, hidden, s.K}) * 0.1));
  return {name, leaves, [](const std::vector<Tensor>& x, Implementation) {
            FastWeightArgs args{.q = x[0], .k = x[1], .v = x[2], .memory = {}, .rule = {}, .state = {}};
            args.rule = {.gradient_weight = x[3] / 16, .momentum = x[4] / 2, .retention = x[5]};
            args.state.weights.assign(x.begin() + 6, x.end());
            return fast_weights(args).o;
          }};
}

/// The outputs and gradients of the first rows against the composed operation in double.
void check_results(const Side& side) {
  const int64_t batch = side.leaves[0].size(0), rows = std::min<int64_t>(batch, 2);
  const auto results = [&](at::ScalarType type, Implementation implementation) {
    std::vector<Tensor> some;
    for (const Tensor& x : side.leaves)
      some.push_back(
          (x.size(0) == batch ? x.narrow(0, 0, rows) : x).detach().to(type).clone().requires_grad_());
    const Tensor o = side.run(some, implementation);
    at::manual_seed(2);  // no constant: the norm of the output would make its gradient zero
    auto all = torch::autograd::grad({o}, some, {at::randn(o.sizes(), at::kDouble).to(type)});
    all.push_back(o.detach());
    return all;
  };
  const auto found = results(at::kFloat, side.implementation);
  const auto exact = results(at::kDouble, Implementation::kComposed);
  for (size_t i = 0; i < exact.size(); ++i) {
    const double e = ((found[i].to(at::kDouble) - exact[i]).norm() / exact[i].norm()).item<double>();
    check(e <= 1e-4, "bench fast_weight: {} tensor {} is off by {:.1e}", side.name, i, e);
  }
}

double milliseconds(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + int64_t(times.size() / 2), times.end());
  return times[times.size() / 2];
}

void race(std::vector<Side>& sides, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  for (int turn = 0;
       turn < 6 || std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds); ++turn)
    for (Side& side : sides) {
      const Tensor up = at::ones(
          {side.leaves[0].size(0), side.leaves[0].size(1), side.leaves[0].size(2), side.leaves[0].size(3)});
      const double both = milliseconds([&] { side.train(up); });
      const c10::NoGradGuard no_gradient;
      const double forward = milliseconds([&] { side.run(side.leaves, side.implementation); });
      if (turn > 0) side.both.push_back(both), side.forward.push_back(forward);  // the first turn warms up
    }
}

void run(const Shape& s, double seconds) {
  at::manual_seed(1);
  std::vector<Side> sides{prism_side(s),
                          ttt_side(s, "ttt_linear", 1, Implementation::kFused),
                          ttt_side(s, "ttt_linear composed", 1, Implementation::kComposed),
                          ttt_side(s, "ttt_mlp", 2, Implementation::kAuto),
                          titans_side(s, "titans", 1),
                          titans_side(s, "titans mlp", 2)};
  for (const Side& side : sides) check_results(side);
  race(sides, seconds);
  fmt::print("B,T,H,K=V {},{},{},{}; fp32; {} threads; medians in ms, and times prism L=1\n", s.B, s.T, s.H,
             s.K, at::get_num_threads());
  for (const Side& side : sides)
    fmt::print("{:<22} forward {:>8.2f} {:>6.2f}x   fwd+bwd {:>8.2f} {:>6.2f}x\n", side.name,
               median(side.forward), median(side.forward) / median(sides[0].forward), median(side.both),
               median(side.both) / median(sides[0].both));
}

}  // namespace
}  // namespace prism

int main(int argc, char** argv) {
  using namespace prism;
  CLI::App app("TTT and Titans against prism_chunk with one write", "bench_fast_weight");
  int threads = 2;
  double seconds = 20;
  std::vector<int64_t> shape{128, 200, 2, 32};
  app.add_option("--threads", threads, "threads of every side")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", seconds, "time for the whole race")->check(CLI::PositiveNumber);
  app.add_option("--shape", shape, "B,T,H,K")->delimiter(',')->expected(4)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  tune_allocator();
  at::set_num_threads(threads);
  try {
    run({shape[0], shape[1], shape[2], shape[3]}, seconds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}
