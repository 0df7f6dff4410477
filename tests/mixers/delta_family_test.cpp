// The family on prism_chunk: each layer against its equations as a loop over tokens, and the equivalences
// between its members.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mixers/mixer_cases.h"
#include "prism/core/error.h"
#include "prism/mixers/comba.h"
#include "prism/mixers/delta_net.h"
#include "prism/mixers/efla.h"
#include "prism/mixers/gated_delta_net.h"
#include "prism/mixers/linear_attention.h"
#include "prism/mixers/mamba2.h"
#include "prism/mixers/preconditioned_delta_net.h"

namespace prism::test::delta_family {
namespace {

using at::Tensor;

constexpr int64_t D = 8, H = 2, K = 4, V = 4, T = 13;

template <class M>
std::shared_ptr<M> make(const typename M::Config& config, uint64_t seed = 1) {
  at::manual_seed(seed);
  auto mixer = std::make_shared<M>(config, D);
  mixer->to(at::kDouble);
  return mixer;
}

Tensor run(Mixer& mixer, const Tensor& x) {
  const at::NoGradGuard no_gradient;
  return mixer.forward(x, Packing::rows());
}

/// A layer's parameters and the parts of its equations that the family shares, for one sequence.
struct Layer {
  explicit Layer(Mixer& mixer) : own(mixer.named_parameters()) {}
  Tensor operator[](const std::string& name) { return own[name]; }
  bool has(const std::string& name) { return own.contains(name); }

  /// The projection with its first columns convolved.
  Tensor projected(const Tensor& x) {
    const Tensor all = at::matmul(x, own["in_weight"].t());
    if (!has("conv_weight")) return all;
    const Tensor weight = own["conv_weight"];
    const int64_t channels = weight.size(0), width = weight.size(1);
    const Tensor padded =
        at::cat({at::zeros({width - 1, channels}, at::kDouble), all.narrow(1, 0, channels)});
    Tensor sum = has("conv_bias") ? own["conv_bias"].expand({x.size(0), channels})
                                  : at::zeros({x.size(0), channels}, at::kDouble);
    for (int64_t j = 0; j < width; ++j) sum = sum + padded.narrow(0, j, x.size(0)) * weight.select(1, j);
    return at::cat({at::silu(sum), all.narrow(1, channels, all.size(1) - channels)}, 1);
  }
  Tensor decay(const Tensor& a, const std::string& prefix = "") {
    return at::exp(-at::exp(own[prefix + "A_log"]) * at::softplus(a + own[prefix + "dt_bias"]));
  }
  /// o [T,H,V] -> y [T,D].
  Tensor output(const Tensor& o, const Tensor& x, Tensor (*gate)(const Tensor&), double eps = 1e-6) {
    Tensor y = o * at::rsqrt(o.square().mean(-1, true) + eps) * own["norm_weight"];
    if (has("gate_weight")) y = y * gate(at::matmul(x, own["gate_weight"].t())).view(o.sizes());
    return at::matmul(y.flatten(1), own["out_weight"].t());
  }

  torch::OrderedDict<std::string, Tensor> own;
};

Tensor unit(const Tensor& x) { return x * at::rsqrt(x.square().sum(-1, true) + 1e-6); }
Tensor rank_one(const Tensor& k, const Tensor& v) { return k.unsqueeze(-1) * v.unsqueeze(-2); }
/// S^T k for every head.
Tensor read(const Tensor& S, const Tensor& k) { return (S * k.unsqueeze(-1)).sum(-2); }
Tensor per_head(const Tensor& x) { return x.unsqueeze(-1); }

/// o_t = K^-1/2 S_t^T q_t for the states that `advance` makes, one token after the other.
template <class Advance>
Tensor scan(const Tensor& q, int64_t width, const Advance& advance) {
  Tensor S = at::zeros({H, q.size(-1), width}, at::kDouble);
  std::vector<Tensor> o;
  for (int64_t t = 0; t < q.size(0); ++t) {
    S = advance(t, S);
    o.push_back(read(S, q[t]) / std::sqrt(static_cast<double>(q.size(-1))));
  }
  return at::stack(o);
}

void expect_layer(Mixer& mixer, const std::function<Tensor(Layer&, const Tensor&)>& equations) {
  const at::NoGradGuard no_gradient;
  const Tensor x = random_input({T, D});
  Layer layer(mixer);
  EXPECT_LT(relative_error(run(mixer, x.unsqueeze(0)).squeeze(0), equations(layer, x)), 1e-11);
}

struct Qkv {
  Tensor q, k, v, gates;
  explicit Qkv(const Tensor& projected) {
    const auto z = projected.split_with_sizes({H * K, H * K, H * V, projected.size(1) - 3 * H * K}, 1);
    q = z[0].view({-1, H, K}), k = z[1].view({-1, H, K}), v = z[2].view({-1, H, V}), gates = z[3];
  }
};

TEST(DeltaNet, IsItsEquations) {
  expect_layer(*make<DeltaNet>({}), [](Layer& w, const Tensor& x) {
    const Qkv in(w.projected(x));
    const Tensor b = at::sigmoid(in.gates), k = unit(in.k);
    const Tensor o = scan(unit(in.q), V, [&](int64_t t, const Tensor& S) {
      return S + rank_one(k[t], per_head(b[t]) * (in.v[t] - read(S, k[t])));
    });
    return w.output(o, x, at::silu);
  });
}

/// The decayed state is erased and written once with v: PRISM's recurrence with one write (equivalence 11).
void expect_gated_delta_net(const GatedDeltaNetConfig& config) {
  const double largest_step = config.negative_eigenvalues ? 2 : 1;
  expect_layer(*make<GatedDeltaNet>(config), [&](Layer& w, const Tensor& x) {
    const Qkv in(w.projected(x));
    const Tensor b = largest_step * at::sigmoid(in.gates.narrow(1, 0, H)),
                 a = w.decay(in.gates.narrow(1, H, H)), k = unit(in.k);
    const Tensor o = scan(unit(in.q), V, [&](int64_t t, const Tensor& S) {
      const Tensor decayed = per_head(per_head(a[t])) * S;
      return decayed + rank_one(k[t], per_head(b[t]) * (in.v[t] - read(decayed, k[t])));
    });
    return w.output(o, x, at::silu, config.norm_eps);
  });
}

TEST(GatedDeltaNet, IsItsEquations) {
  GatedDeltaNetConfig config;
  expect_gated_delta_net(config);
  config.negative_eigenvalues = true;
  expect_gated_delta_net(config);
  config.norm_eps = 0.1;
  expect_gated_delta_net(config);
}

TEST(Efla, IsItsEquations) {
  expect_layer(*make<Efla>({}), [](Layer& w, const Tensor& x) {
    const Qkv in(w.projected(x));
    const Tensor b = at::sigmoid(in.gates), length2 = in.k.square().sum(-1);
    const Tensor exact = (1 - at::exp(-b * length2)) / length2;
    const Tensor o = scan(unit(in.q), V, [&](int64_t t, const Tensor& S) {
      return S + rank_one(in.k[t], per_head(exact[t]) * (in.v[t] - read(S, in.k[t])));
    });
    return w.output(o, x, at::silu);
  });
}

TEST(Comba, IsItsEquations) {
  CombaConfig config;
  config.correction = 0.3;
  expect_layer(*make<Comba>(config), [](Layer& w, const Tensor& x) {
    const Qkv in(w.projected(x));
    const Tensor b = at::sigmoid(in.gates.narrow(1, 0, H)), a = w.decay(in.gates.narrow(1, H, H));
    const Tensor feedback = per_head(at::sigmoid(w["feedback"])), k = unit(in.k), p = feedback * k;
    const Tensor q = unit(in.q - per_head(w["correction"]) * feedback * in.k);
    const Tensor o = scan(q, V, [&](int64_t t, const Tensor& S) {
      return per_head(per_head(a[t])) * S + rank_one(k[t], per_head(b[t]) * (in.v[t] - read(S, p[t])));
    });
    return w.output(o, x, at::sigmoid);
  });
}

TEST(PreconditionedDeltaNet, IsItsEquations) {
  expect_layer(*make<PreconditionedDeltaNet>({}), [](Layer& w, const Tensor& x) {
    const Qkv in(w.projected(x));
    const auto gates = in.gates.split(H, 1);
    const Tensor b = at::sigmoid(gates[0]), own_b = at::sigmoid(gates[1]), k = unit(in.k);
    const Tensor own_a = w.decay(gates[2], "curvature_"), a = w.decay(gates[3]);
    Tensor A = at::zeros({H, K}, at::kDouble);
    const Tensor o = scan(unit(in.q), V, [&](int64_t t, const Tensor& S) {
      A = per_head(own_a[t]) * A + per_head(own_b[t]) * k[t].square();
      const Tensor r = at::log(A + 1e-6) - per_head(w["log_scale"]);
      const Tensor decayed = per_head(per_head(a[t])) * S;
      return decayed + rank_one(at::pow(1.5, -r / (1 + r.abs())) * k[t],
                                per_head(b[t]) * (in.v[t] - read(decayed, k[t])));
    });
    return w.output(o, x, at::silu);
  });
}

TEST(LinearAttention, IsItsEquations) {
  expect_layer(*make<LinearAttention>({}), [](Layer& w, const Tensor& x) {
    const Qkv in(w.projected(x));
    const Tensor q = at::elu(in.q) + 1, k = at::elu(in.k) + 1;
    Tensor z = at::zeros({H, K}, at::kDouble);
    std::vector<Tensor> weight;
    const Tensor o = scan(q, V, [&](int64_t t, const Tensor& S) {
      z = z + k[t];
      weight.push_back((q[t] * z).sum(-1, true) / std::sqrt(static_cast<double>(K)));
      return S + rank_one(k[t], in.v[t]);
    });
    return w.output(o / (at::stack(weight) + 1e-10), x, at::silu);
  });
}

/// One group of state width 6, two heads of width 8.
TEST(Mamba2, IsItsEquations) {
  constexpr int64_t N = 6, P = 8;
  expect_layer(*make<Mamba2>({.state_width = N}), [](Layer& w, const Tensor& x) {
    const auto z = w.projected(x).split_with_sizes({N, N, H * P, H}, 1);
    const Tensor C = z[0].unsqueeze(1).expand({T, H, N}), B = z[1].unsqueeze(1).expand({T, H, N});
    const Tensor v = z[2].view({T, H, P}), dt = at::softplus(z[3] + w["dt_bias"]);
    const Tensor a = at::exp(-dt * at::exp(w["A_log"]));
    const Tensor o = scan(C * std::sqrt(static_cast<double>(N)), P, [&](int64_t t, const Tensor& S) {
      return per_head(per_head(a[t])) * S + rank_one(B[t], per_head(dt[t]) * v[t]);
    });
    const Tensor y = (o + per_head(w["D"]) * v).flatten(1) * at::silu(at::matmul(x, w["gate_weight"].t()));
    const Tensor norm = y * at::rsqrt(y.square().mean(-1, true) + 1e-5) * w["norm_weight"];
    return at::matmul(norm, w["out_weight"].t());
  });
}

/// Copies every parameter of one name and shape; columns of `in_weight` after the convolved ones as `gates`
/// says.
void copy_parameters(const Mixer& from, Mixer& to, const std::vector<int64_t>& gates) {
  const at::NoGradGuard no_gradient;
  auto theirs = from.named_parameters(), own = to.named_parameters();
  for (auto& parameter : own)
    if (parameter.key() != "in_weight" && theirs.contains(parameter.key()))
      parameter.value().copy_(theirs[parameter.key()]);
  const auto columns =
      theirs["in_weight"].split_with_sizes({3 * H * K, theirs["in_weight"].size(0) - 3 * H * K}, 0);
  std::vector<Tensor> rows{columns[0]};
  for (const int64_t gate : gates) rows.push_back(columns[1].narrow(0, gate * H, H));
  own["in_weight"].copy_(at::cat(rows));
}

// Equivalences by their numbers in the specification, section 21.

TEST(Equivalence, GatedDeltaNetWithoutDecayIsDeltaNet) {  // 1
  const auto gdn = make<GatedDeltaNet>({});
  DeltaNetConfig config;
  config.output_gate = true;
  const auto delta_net = make<DeltaNet>(config, 2);
  copy_parameters(*gdn, *delta_net, {0});
  const at::NoGradGuard no_gradient;
  gdn->named_parameters()["A_log"].fill_(-INFINITY);
  const Tensor x = random_input({2, T, D});
  EXPECT_LT(relative_error(run(*gdn, x), run(*delta_net, x)), 1e-13);
}

TEST(Equivalence, UnsquashedPreconditionerIsGatedDeltaNetOrDeltaNet) {  // 9
  const Tensor x = random_input({2, T, D});
  PreconditionedDeltaNetConfig config;
  config.squash = 1;
  const auto pgdn = make<PreconditionedDeltaNet>(config);
  const auto gdn = make<GatedDeltaNet>({}, 2);
  copy_parameters(*pgdn, *gdn, {0, 3});
  EXPECT_LT(relative_error(run(*pgdn, x), run(*gdn, x)), 1e-13);
  config.gate = ForgetGate::kNone;
  const auto pdn = make<PreconditionedDeltaNet>(config);
  DeltaNetConfig plain;
  plain.output_gate = true;
  const auto delta_net = make<DeltaNet>(plain, 2);
  copy_parameters(*pdn, *delta_net, {0});
  EXPECT_LT(relative_error(run(*pdn, x), run(*delta_net, x)), 1e-13);
}

/// Inputs of the operation, for equivalences that no choice of a layer's weights shows.
struct Op {
  Op() {
    q = random_input({2, T, H, K}, 1), k = unit(random_input({2, T, H, K}, 2)).unsqueeze(2);
    v = random_input({2, T, H, V}, 3), b = at::sigmoid(random_input({2, T, H}, 4));
    g = -3 * at::sigmoid(random_input({2, T, H}, 5));
    initial = random_input({2, H, K, V}, 6);
  }
  std::vector<Tensor> run(PrismChunkArgs args) const {
    args.initial_state = initial;
    args.return_final_state = true;
    const auto result = prism_chunk(args);
    return {result.o, result.final_state};
  }
  /// S_t = e^g S_{t-1} + beta k (v - S_{t-1}^T p)^T.
  std::vector<Tensor> comba(const Tensor& p, const Tensor& beta) const {
    return run({.q = q,
                .k = k,
                .w = (per_head(beta) * v).unsqueeze(2),
                .b = beta * at::exp(-g),
                .g = g,
                .erase_read = p});
  }
  Tensor q, k, v, b, g, initial;
};

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_LT(relative_error(a[i], b[i]), 1e-13) << "output " << i;
}

TEST(Equivalence, CombaThatReadsTheDecayedKeyIsGatedDeltaNet) {  // 3
  const Op in;
  const Tensor p = per_head(at::exp(in.g)) * in.k.squeeze(2);
  expect_equal(
      in.comba(p, in.b),
      in.run({.q = in.q, .k = in.k, .w = (per_head(in.b) * in.v).unsqueeze(2), .b = in.b, .g = in.g}));
}

TEST(Equivalence, CombaThatReadsNothingIsGatedLinearAttentionAndMamba2) {  // 4, 6
  const Op in;
  const Tensor one = at::ones_like(in.b), zero = at::zeros_like(in.b);
  const auto linear = in.run({.q = in.q, .k = in.k, .w = in.v.unsqueeze(2), .b = zero, .g = in.g});
  expect_equal(in.comba(at::zeros_like(in.q), one), linear);
  // Mamba-2 with x = v / dt and A = g / dt.
  const Tensor dt = in.b + 0.1, x = in.v / per_head(dt), A = in.g / dt;
  expect_equal(in.run({.q = in.q, .k = in.k, .w = (per_head(dt) * x).unsqueeze(2), .b = zero, .g = dt * A}),
               linear);
}

/// With k = |k| u, EFLA is the delta rule on unit keys u with values v / |k| and b = 1 - exp(-b |k|^2).
TEST(Equivalence, EflaIsDeltaNetWithItsStepSize) {  // 10
  expect_layer(*make<Efla>({}), [](Layer& w, const Tensor& input) {
    const Qkv in(w.projected(input));
    const Tensor length = in.k.norm(2, -1, true), k = in.k / length;
    const Tensor b = 1 - at::exp(-at::sigmoid(in.gates) * length.squeeze(-1).square());
    const Tensor o = scan(unit(in.q), V, [&](int64_t t, const Tensor& S) {
      return S + rank_one(k[t], per_head(b[t]) * (in.v[t] / length[t] - read(S, k[t])));
    });
    return w.output(o, input, at::silu);
  });
}

TEST(DeltaFamily, SettingsThatDoNotFitAreUsageErrors) {
  const auto message = [](const std::function<void()>& build) -> std::string {
    try {
      build();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "no error";
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message([] { Mamba2({.heads = 3}, D); }),
              HasSubstr("mamba2: 3 heads do not divide the inner width 16"));
  EXPECT_THAT(message([] { Mamba2({.heads = 2, .groups = 4}, D); }),
              HasSubstr("groups 4 does not divide heads 2"));
  EXPECT_THAT(message([] { LinearAttention({.feature_map = FeatureMap::kIdentity}, D); }),
              HasSubstr("the normaliser needs positive features"));
  EXPECT_THAT(message([] { LinearAttention({.rotary = true}, D); }), HasSubstr("normaliser = false"));
  EXPECT_THAT(message([] {
                DeltaNetConfig config;
                config.heads = 3;
                DeltaNet(config, D);
              }),
              HasSubstr("delta_net: 3 heads do not divide the model width 8"));
}

/// Log decays far below the lowest float: no step may make infinity times zero.
TEST(Comba, StrongGatesStayFinite) {
  const auto mixer = make<Comba>({});
  mixer->to(at::kFloat);
  {
    const at::NoGradGuard no_gradient;
    mixer->named_parameters()["A_log"].fill_(8);
    mixer->named_parameters()["dt_bias"].fill_(1);
  }
  const Tensor x = random_input({1, 80, D}).to(at::kFloat).requires_grad_();
  mixer->forward(x, Packing::rows()).sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  for (const auto& own : mixer->named_parameters())
    EXPECT_TRUE(own.value().grad().isfinite().all().item<bool>()) << own.key();
}

}  // namespace
}  // namespace prism::test::delta_family
