#pragma once
// The gradient of prism_chunk's definition: the token loop and its reverse, in double.
#include <vector>

#include "kernels/prism_chunk_cases.h"

namespace prism::kernels::testing {

struct ChunkGradients {
  std::vector<double> dq, dk, dw, db, dg, derase_read, dinitial_state;
};

/// One value head of one sequence, forward with every state kept, then in reverse.
template <class Storage>
class TokenLoop {
 public:
  TokenLoop(const Problem<Storage>& problem, int64_t sequence, int64_t head, ChunkGradients& out)
      : p(problem), n(sequence), h(head), hk(h / (p.shape.heads / p.shape.key_heads)), d(out) {}

  void run() {
    const int64_t begin = p.offsets[n], end = p.offsets[n + 1], base = (n * p.shape.heads + h) * K * V;
    std::vector<std::vector<double>> states{std::vector<double>(K * V)};
    for (int64_t i = 0; i < K * V && !p.initial_state.empty(); ++i) states[0][i] = p.initial_state[base + i];
    for (int64_t t = begin; t < end; ++t) states.push_back(next(t, states.back()));
    std::vector<double> ds(p.d_final.begin() + base, p.d_final.begin() + base + K * V);
    for (int64_t t = end - 1; t >= begin; --t) reverse(t, states[t - begin], states[t - begin + 1], ds);
    std::copy(ds.begin(), ds.end(), d.dinitial_state.begin() + base);
  }

 private:
  double read(int64_t t, int64_t c) const {
    return p.erase_read.empty() ? p.k.get(t, 0, hk, c) : p.erase_read.get(t, 0, hk, c);
  }
  std::vector<double> erased(int64_t t, const std::vector<double>& s) const {
    std::vector<double> result(V);
    for (int64_t c = 0; c < K; ++c)
      for (int64_t v = 0; v < V; ++v) result[v] += read(t, c) * s[c * V + v];
    return result;
  }
  std::vector<double> next(int64_t t, std::vector<double> s) const {
    const std::vector<double> e = erased(t, s);
    const double a = std::exp(double(p.g.get(t, 0, h, 0))), b = p.b.get(t, 0, h, 0);
    for (int64_t c = 0; c < K; ++c)
      for (int64_t v = 0; v < V; ++v) {
        double& x = s[c * V + v];
        x = a * (x - b * p.k.get(t, 0, hk, c) * e[v]);
        for (int64_t l = 0; l < L; ++l) x += p.k.get(t, l, hk, c) * p.w.get(t, l, h, v);
      }
    return s;
  }
  void reverse(int64_t t, const std::vector<double>& before, const std::vector<double>& after,
               std::vector<double>& ds) {
    const int64_t Hk = p.shape.key_heads, H = p.shape.heads;
    const std::vector<double> e = erased(t, before);
    const double a = std::exp(double(p.g.get(t, 0, h, 0))), b = p.b.get(t, 0, h, 0);
    std::vector<double> d_erased(V);
    double db = 0, da = 0;
    for (int64_t c = 0; c < K; ++c)
      for (int64_t v = 0; v < V; ++v) {
        double& x = ds[c * V + v];
        const double go = p.d_o.get(t, 0, h, v), k1 = p.k.get(t, 0, hk, c);
        d.dq[(t * Hk + hk) * K + c] += p.shape.scale * after[c * V + v] * go;
        x += p.shape.scale * p.q.get(t, 0, hk, c) * go;
        for (int64_t l = 0; l < L; ++l) {
          d.dk[((t * L + l) * Hk + hk) * K + c] += x * p.w.get(t, l, h, v);
          d.dw[((t * L + l) * H + h) * V + v] += x * p.k.get(t, l, hk, c);
        }
        da += x * (before[c * V + v] - b * k1 * e[v]);
        x *= a;
        db -= k1 * x * e[v];
        d.dk[(t * L * Hk + hk) * K + c] -= b * x * e[v];
        d_erased[v] -= b * x * k1;
      }
    d.db[t * H + h] = db;
    d.dg[t * H + h] = a * da;
    std::vector<double>& d_read = p.erase_read.empty() ? d.dk : d.derase_read;
    const int64_t row = p.erase_read.empty() ? (t * L * Hk + hk) * K : (t * Hk + hk) * K;
    for (int64_t c = 0; c < K; ++c)
      for (int64_t v = 0; v < V; ++v) {
        d_read[row + c] += before[c * V + v] * d_erased[v];
        ds[c * V + v] += read(t, c) * d_erased[v];
      }
  }

  const Problem<Storage>& p;
  const int64_t n, h, hk;
  const int64_t K = p.shape.key_width, V = p.shape.value_width, L = p.shape.steps;
  ChunkGradients& d;
};

template <class Storage>
ChunkGradients reference_gradients(const Problem<Storage>& p) {
  const int64_t gates = p.shape.tokens() * p.shape.heads;
  ChunkGradients d{std::vector<double>(p.q.count()),    std::vector<double>(p.k.count()),
                   std::vector<double>(p.w.count()),    std::vector<double>(gates),
                   std::vector<double>(gates),          std::vector<double>(p.erase_read.count()),
                   std::vector<double>(p.state_count())};
  for (int64_t n = 0; n < p.shape.sequences.count; ++n)
    for (int64_t h = 0; h < p.shape.heads; ++h) TokenLoop<Storage>(p, n, h, d).run();
  return d;
}

}  // namespace prism::kernels::testing
