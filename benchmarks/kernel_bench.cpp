// The CPU kernel of prism_chunk at the shapes the project states: time, and share of LibTorch's sgemm rate,
// which is measured between the runs. Results are checked against the token loop first.
//   bench_kernel [repeats]
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/random.h"
#include "prism/kernels/prism_chunk.h"

namespace {

using namespace prism;
using namespace prism::kernels;

double milliseconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

struct Setting {
  int64_t batch, tokens, heads, width, steps;
  Scalar dtype;
};

/// Random activations in fp32 or, two to a float, in bf16.
struct Problem {
  explicit Problem(const Setting& s) {
    for (int64_t n = 0; n <= s.batch; ++n) offsets.push_back(n * s.tokens);
    const int64_t N = s.batch * s.tokens, row = s.heads * s.width;
    shape = {.dtype = s.dtype,
             .sequences = {s.batch, offsets.data()},
             .steps = s.steps,
             .key_heads = s.heads,
             .heads = s.heads,
             .key_width = s.width,
             .value_width = s.width,
             .scale = 1 / std::sqrt(double(s.width))};
    const auto fill = [&](std::vector<float>& to, int64_t count, double low, double high,
                          const char* stream) {
      RandomStream random(1, stream);
      to.resize(count);
      for (float& x : to) x = static_cast<float>(low + (high - low) * random.uniform());
      if (s.dtype != Scalar::kBFloat16 || low == 0 || high == 0) return;
      auto* const halves = reinterpret_cast<uint16_t*>(to.data());
      for (int64_t i = 0; i < count; ++i)
        halves[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(to[i]) >> 16);
    };
    const double unit = std::sqrt(3.0 / s.width);
    fill(q, N * row, -1, 1, "q");
    fill(k, N * s.steps * row, -unit, unit, "k");
    fill(w, N * s.steps * row, -1, 1, "w");
    fill(d_o, N * row, -1, 1, "do");
    fill(b, N * s.heads, 0, 0.9, "b");
    fill(g, N * s.heads, -0.1, 0, "g");
    inputs = {view(q, 1, row, s.width), view(k, s.steps, row, s.width), view(w, s.steps, row, s.width),
              view(b, 1, s.heads, 1),   view(g, 1, s.heads, 1),         {}};
    o = std::vector<float>(q.size());
    dq = o;
    dk = std::vector<float>(k.size());
    dw = dk;
    db = std::vector<float>(b.size());
    dg = db;
    const int64_t chunks = prism_chunk_count(shape, prism_chunk_length(shape));
    states = std::vector<float>(chunks * row * s.width);
  }
  static View view(const std::vector<float>& data, int64_t steps, int64_t row, int64_t width) {
    return {data.data(), steps * row, row, width};
  }
  void forward(bool train) {
    prism_chunk_forward(shape, inputs, o.data(), nullptr, train ? states.data() : nullptr);
  }
  void backward() {
    const int64_t row = shape.heads * shape.value_width;
    prism_chunk_backward(shape, inputs, states.data(), view(d_o, 1, row, shape.value_width), nullptr,
                         {dq.data(), dk.data(), dw.data(), db.data(), dg.data()});
  }

  std::vector<int64_t> offsets;
  PrismChunkShape shape;
  PrismChunkInputs inputs;
  std::vector<float> q, k, w, d_o, b, g, o, dq, dk, dw, db, dg, states;
};

/// The outputs of the first tokens against the token loop.
void check_result(Setting s) {
  s.tokens = std::min<int64_t>(s.tokens, 80);
  s.batch = 1;
  Problem p(s);
  p.forward(false);
  std::vector<double> expected(p.o.size());
  prism_chunk_reference(p.shape, p.inputs, expected.data(), nullptr);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value =
        s.dtype == Scalar::kBFloat16
            ? std::bit_cast<float>(uint32_t{reinterpret_cast<uint16_t*>(p.o.data())[i]} << 16)
            : p.o[i];
    difference += (value - expected[i]) * (value - expected[i]);
    norm += expected[i] * expected[i];
  }
  const double error = std::sqrt(difference / norm), limit = s.dtype == Scalar::kBFloat16 ? 0.005 : 1e-5;
  check(error <= limit, "bench_kernel: the error is {:.2e}, over {:.0e}", error, limit);
}

/// Multiply-adds that the chunk form needs with chunks of C tokens, triangles counted half; in flops.
double flops_of(const Setting& s, double C, bool backward) {
  const double K = s.width, V = s.width, L = s.steps, tokens = double(s.batch) * s.tokens * s.heads;
  if (backward) return 2 * tokens * ((5 + 2 * L) * K * V + L * C * (3 * K + 2.5 * V));
  return 2 * tokens * ((2 + L) * K * V + L * C * (K + V));
}

void report(const Setting& s, int repeats) {
  check_result(s);
  Problem p(s);
  const at::Tensor a = at::empty({1024, 512}).fill_(0.5), b = at::empty({512, 1024}).fill_(0.25);
  double forward = 1e9, train = 1e9, backward = 1e9, sgemm = 1e9;
  for (int i = 0; i < repeats; ++i) {
    forward = std::min(forward, milliseconds_of([&] { p.forward(false); }));
    train = std::min(train, milliseconds_of([&] { p.forward(true); }));
    backward = std::min(backward, milliseconds_of([&] { p.backward(); }));
    sgemm = std::min(sgemm, milliseconds_of([&] { at::mm(a, b); }));
  }
  const double C = double(prism_chunk_length(p.shape)), rate = 2e-6 * 1024 * 512 * 1024 / sgemm;
  const auto share = [&](double flops, double ms) {
    return fmt::format("{:4.0f} ({:3.0f} %)", flops * 1e-6 / ms, flops * 1e-4 / ms / rate);
  };
  fmt::print("{:>14} {:>2} {:>5} {:>3.0f} | {:8.2f} {:>13} | {:8.2f} {:>13} | {:6.0f}\n",
             fmt::format("{},{},{},{}", s.batch, s.tokens, s.heads, s.width), s.steps,
             s.dtype == Scalar::kBFloat16 ? "bf16" : "fp32", C, forward,
             share(flops_of(s, C, false), forward), train + backward,
             share(flops_of(s, C, false) + flops_of(s, C, true), train + backward), rate);
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 15;
  fmt::print("{} threads; ms, GFLOP/s (share of sgemm's rate), least of {} runs\n", omp_get_max_threads(),
             repeats);
  fmt::print("{:>14} {:>2} {:>5} {:>3} | {:>8} {:>13} | {:>8} {:>13} | {:>6}\n", "B,T,H,K=V", "L", "type",
             "C", "forward", "", "fwd+bwd", "", "sgemm");
  for (const Scalar dtype : {Scalar::kFloat32, Scalar::kBFloat16})
    for (const auto& [B, T, H, K] :
         {std::array<int64_t, 4>{128, 50, 2, 32}, {128, 200, 2, 32}, {1, 4096, 6, 128}, {8, 2048, 6, 128}})
      for (const int64_t L : {1, 2}) report({B, T, H, K, L, dtype}, repeats);
  return 0;
}
