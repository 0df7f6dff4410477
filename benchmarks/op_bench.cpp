// prism_chunk through the public op: fused against composed against causal softmax attention of LibTorch,
// forward and forward + backward, in one process and in turns, medians. Every result is checked against the
// fp64 token loop first; a wrong one ends the program. All sides run with the allocator setting of
// docs/op.md.
//   bench_op [--threads N] [--seconds S] [--shape TEXT] [--no-bf16] [--json FILE]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/memory.h"
#include "prism/kernels/prism_chunk.h"
#include "prism/ops/prism_chunk.h"

namespace prism {
namespace {

using at::Tensor;

struct Shape {
  int64_t B, T, H, K;  ///< K = V
  std::string text() const { return fmt::format("{},{},{},{}", B, T, H, K); }
};

/// Everything the competitors read; leaves that want gradients.
struct Problem {
  Problem(const Shape& s, int64_t L, at::ScalarType type) {
    at::manual_seed(1);
    const auto normal = [](at::IntArrayRef sizes) { return at::randn(sizes); };
    const auto unit = [](const Tensor& x) { return x / x.norm(2, -1, true); };
    const auto leaf = [](const Tensor& x, at::ScalarType t) { return x.to(t).contiguous().requires_grad_(); };
    q = leaf(unit(normal({s.B, s.T, s.H, s.K})), type);
    k = leaf(unit(normal({s.B, s.T, L, s.H, s.K})), type);
    w = leaf(normal({s.B, s.T, L, s.H, s.K}), type);
    b = leaf(normal({s.B, s.T, s.H}).sigmoid(), at::kFloat);
    g = leaf(normal({s.B, s.T, s.H}).sigmoid() * -0.1, at::kFloat);
    d_o = normal({s.B, s.T, s.H, s.K}).to(type);
    for (Tensor* x : {&qs, &ks, &vs}) *x = leaf(normal({s.B, s.H, s.T, s.K}), type);
    d_os = normal({s.B, s.H, s.T, s.K}).to(type);
  }

  PrismChunkArgs args(Implementation implementation) const {
    PrismChunkArgs a{.q = q, .k = k, .w = w, .b = b, .g = g};
    a.implementation = implementation;
    return a;
  }
  Tensor chunk(Implementation implementation) const { return prism_chunk(args(implementation)).o; }
  void chunk_train(Implementation implementation) const {
    torch::autograd::grad({chunk(implementation)}, {q, k, w, b, g}, {d_o});
  }
  Tensor attention() const {
    return at::scaled_dot_product_attention(qs, ks, vs, {}, 0.0, /*is_causal=*/true);
  }
  void attention_train() const { torch::autograd::grad({attention()}, {qs, ks, vs}, {d_os}); }

  Tensor q, k, w, b, g, d_o;  // prism_chunk: [B,T,(L,)H,K], [B,T,H]
  Tensor qs, ks, vs, d_os;    // attention: [B,H,T,K], its best layout
};

/// The first row against the token loop in double, gradients included (the composed fp64 op, itself checked
/// here).
void check_results(const Problem& p, at::ScalarType type) {
  const int64_t T = std::min<int64_t>(p.q.size(1), 300);
  const auto part = [&](const Tensor& x, at::ScalarType t) {
    return x.detach().slice(0, 0, 1).slice(1, 0, T).to(t).contiguous().requires_grad_();
  };
  const auto run = [&](at::ScalarType t, Implementation implementation) {
    const at::ScalarType gates = t == at::kDouble ? at::kDouble : at::kFloat;
    PrismChunkArgs a{.q = part(p.q, t),
                     .k = part(p.k, t),
                     .w = part(p.w, t),
                     .b = part(p.b, gates),
                     .g = part(p.g, gates)};
    a.implementation = implementation;
    const Tensor o = prism_chunk(a).o;
    auto all = torch::autograd::grad({o}, {a.q, a.k, a.w, a.b, a.g}, {part(p.d_o, t).detach()});
    all.insert(all.begin(), o.detach());
    return all;
  };
  const auto error = [](const Tensor& x, const Tensor& y) {
    return ((x.to(at::kDouble) - y).norm() / y.norm()).item<double>();
  };
  const auto exact = run(at::kDouble, Implementation::kComposed);
  {
    const c10::NoGradGuard no_grad;
    PrismChunkArgs a{.q = part(p.q, at::kDouble),
                     .k = part(p.k, at::kDouble),
                     .w = part(p.w, at::kDouble),
                     .b = part(p.b, at::kDouble),
                     .g = part(p.g, at::kDouble)};
    a.implementation = Implementation::kReference;
    const double e = error(prism_chunk(a).o, exact[0]);
    check(e <= 1e-11, "bench op: the composed fp64 outputs miss the token loop by {:.1e}", e);
  }
  for (const Implementation implementation : {Implementation::kFused, Implementation::kComposed}) {
    const auto found = run(type, implementation);
    for (size_t i = 0; i < found.size(); ++i) {
      const double limit = type == at::kFloat ? 1e-5 : i == 0 ? 0.005 : i < 4 ? 0.008 : 0.01;
      const double e = error(found[i], exact[i]);
      check(e <= limit, "bench op: {} tensor {} is off by {:.1e}, over {:.0e}",
            implementation_name(implementation), i, e, limit);
    }
  }
}

double milliseconds(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

struct Side {
  std::function<void()> action;
  std::vector<double> times = {};
  double median() {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }
};

/// Runs the sides in turns until `seconds` have passed (at least five turns), after one turn to warm up.
void race(const std::vector<Side*>& sides, double seconds) {
  for (Side* side : sides) side->action();
  const auto start = std::chrono::steady_clock::now();
  for (int turn = 0;
       turn < 5 ||
       (std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds) && turn < 200);
       ++turn)
    for (Side* side : sides) side->times.push_back(milliseconds(side->action));
}

/// GFLOP that the chunk form needs with chunks of C tokens, triangles counted half.
double gflop(const Shape& s, int64_t L, double C, bool train) {
  const double K = s.K, tokens = double(s.B) * s.T * s.H;
  const double forward = (2 + L) * K * K + L * C * 2 * K, backward = (5 + 2 * L) * K * K + L * C * 5.5 * K;
  return 2e-9 * tokens * (forward + (train ? backward : 0));
}

int64_t fused_chunk(const Shape& s, int64_t L, at::ScalarType type) {
  kernels::PrismChunkShape shape;
  shape.dtype = type == at::kFloat ? kernels::Scalar::kFloat32 : kernels::Scalar::kBFloat16;
  shape.key_width = shape.value_width = s.K;
  shape.steps = L;
  return kernels::prism_chunk_length(shape);
}

class Report {
 public:
  explicit Report(double seconds) : seconds_(seconds) {
    fmt::print(
        "{} threads; medians in ms; share = GFLOP/s of the fused op / GFLOP/s of at::mm in fp32, measured in "
        "turns\n",
        at::get_num_threads());
    fmt::print("{:>13} {:>2} {:>5} {:>8} | {:>8} {:>9} {:>9} | {:>8} {:>8} | {:>6} {:>6}\n", "B,T,H,K=V", "L",
               "type", "pass", "fused", "composed", "attention", "comp/fus", "attn/fus", "GF/s", "share");
  }

  void measure(const Shape& s, int64_t L, at::ScalarType type) {
    const Problem p(s, L, type);
    check_results(p, type);
    const Tensor a = at::ones({1024, 512}), b = at::ones({512, 1024});
    for (const bool train : {false, true}) {
      const auto side = [&](auto forward, auto both) {
        return Side{[=] {
          if (train) return both();
          const c10::NoGradGuard no_grad;
          forward();
        }};
      };
      const auto chunk = [&](Implementation i) {
        return side([&p, i] { p.chunk(i); }, [&p, i] { p.chunk_train(i); });
      };
      Side fused = chunk(Implementation::kFused), composed = chunk(Implementation::kComposed),
           attention = side([&p] { p.attention(); }, [&p] { p.attention_train(); }),
           sgemm{[&] { at::mm(a, b); }};
      race({&fused, &composed, &attention, &sgemm}, seconds_);
      row(s, L, type, train, fused.median(), composed.median(), attention.median(), sgemm.median());
    }
  }

  const nlohmann::json& json() const { return json_; }

 private:
  void row(const Shape& s, int64_t L, at::ScalarType type, bool train, double fused, double composed,
           double attention, double sgemm) {
    const int64_t C = fused_chunk(s, L, type);
    const double rate = gflop(s, L, double(C), train) / fused * 1e3, peak = 2e-6 * 1024 * 512 * 1024 / sgemm;
    const char *name = type == at::kFloat ? "fp32" : "bf16", *pass = train ? "fwd+bwd" : "forward";
    fmt::print(
        "{:>13} {:>2} {:>5} {:>8} | {:>8.2f} {:>9.2f} {:>9.2f} | {:>7.1f}x {:>7.1f}x | {:>6.0f} {:>5.0f}%\n",
        s.text(), L, name, pass, fused, composed, attention, composed / fused, attention / fused, rate,
        100 * rate / peak);
    std::fflush(stdout);
    json_.push_back({{"shape", {s.B, s.T, s.H, s.K}},
                     {"steps", L},
                     {"type", name},
                     {"pass", pass},
                     {"fused_ms", fused},
                     {"composed_ms", composed},
                     {"attention_ms", attention},
                     {"gflops", rate},
                     {"sgemm_gflops", peak},
                     {"chunk", C},
                     {"threads", at::get_num_threads()}});
  }

  double seconds_;
  nlohmann::json json_ = nlohmann::json::array();
};

}  // namespace
}  // namespace prism

int main(int argc, char** argv) {
  using namespace prism;
  CLI::App app("prism_chunk: fused, composed, and causal attention at the project's shapes", "bench_op");
  int threads = 2;
  double seconds = 3;
  std::string json, wanted;
  bool narrow = true;
  app.add_option("--threads", threads, "threads of every side")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", seconds, "time for each row of the table")->check(CLI::PositiveNumber);
  app.add_option("--shape", wanted, "only shapes whose B,T,H,K contains this text");
  app.add_flag("!--no-bf16", narrow, "leave bf16 out");
  app.add_option("--json", json, "write the rows to this file as well");
  CLI11_PARSE(app, argc, argv);
  tune_allocator();
  at::set_num_threads(threads);
  try {
    Report report(seconds);
    std::vector<at::ScalarType> types = {at::kFloat};
    if (narrow) types.push_back(at::kBFloat16);
    for (const at::ScalarType type : types)
      for (const Shape& shape : {Shape{128, 50, 2, 32},
                                 {128, 128, 2, 32},
                                 {128, 200, 2, 32},
                                 {128, 256, 2, 32},
                                 {128, 400, 2, 32},
                                 {1, 4096, 6, 128},
                                 {8, 2048, 6, 128}})
        for (const int64_t L : {1, 2})
          if (shape.text().find(wanted) != std::string::npos) report.measure(shape, L, type);
    if (!json.empty()) write_file(json, report.json().dump(1) + "\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}
