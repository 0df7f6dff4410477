// The mixers with a gate a channel, against their equations written token by token.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "mixers/mixer_cases.h"

namespace prism::test::vector_gate_mixers {
namespace {

using at::Tensor;
using Weights = std::map<std::string, Tensor>;

Weights weights_of(const Mixer& mixer) {
  Weights weights;
  for (const auto& own : mixer.named_parameters()) weights[own.key()] = own.value().detach();
  return weights;
}

Tensor unit(const Tensor& x, double eps) { return x / (x.square().sum(-1, true) + eps).sqrt(); }
Tensor rms(const Tensor& x, double eps) { return x / (x.square().mean(-1, true) + eps).sqrt(); }

struct Layer {
  explicit Layer(const std::string& name, std::vector<std::pair<std::string, std::string>> settings = {})
      : mixer(build({.name = name, .mixer = name, .settings = std::move(settings), .fill_zeros = true})),
        w(weights_of(*mixer)) {}
  Tensor forward(const Tensor& x) const {
    const at::NoGradGuard no_gradient;
    return mixer->forward(x.unsqueeze(0), Packing::rows())[0];
  }
  std::shared_ptr<Mixer> mixer;
  Weights w;
};

constexpr int64_t kD = 8, kT = 11, kH = 2;

TEST(Rwkv7, TheLayerIsItsEquations) {
  const Layer layer("rwkv7");
  const Weights& w = layer.w;
  const int64_t K = kD / kH;
  const Tensor x = random_input({kT, kD});
  Tensor S = at::zeros({kH, K, K}, at::kDouble), before = at::zeros({kD}, at::kDouble);
  std::vector<Tensor> y;
  for (int64_t t = 0; t < kT; ++t) {
    const auto shifted = [&](int64_t i) { return x[t] + w.at("shift_mix")[i] * (before - x[t]); };
    const auto of = [&](const char* name, const Tensor& v) { return at::mv(w.at(name), v); };
    const auto heads = [&](const Tensor& v) { return v.view({kH, K}); };
    const Tensor r = heads(of("r_weight", shifted(0))), v = heads(of("v_weight", shifted(3)));
    const Tensor raw_k = of("k_weight", shifted(2));
    const Tensor decay =
        (-std::exp(-0.5) * at::sigmoid(of("decay_up_weight", at::tanh(of("decay_down_weight", shifted(1)))) +
                                       w.at("decay_bias")))
            .exp();
    const Tensor a =
        at::sigmoid(of("rate_up_weight", of("rate_down_weight", shifted(4))) + w.at("rate_bias"));
    const Tensor g = of("gate_up_weight", at::sigmoid(of("gate_down_weight", shifted(5))));
    const Tensor kk = unit(heads(raw_k * w.at("k_k")), 0), k = heads(raw_k * (1 + (a - 1) * w.at("k_a")));
    const Tensor erased = at::matmul(S.transpose(1, 2), kk.unsqueeze(-1));  // [H,V,1]
    S = heads(decay).unsqueeze(-1) * S - at::matmul((kk * heads(a)).unsqueeze(-1), erased.transpose(1, 2)) +
        k.unsqueeze(-1) * v.unsqueeze(1);
    const Tensor o = at::matmul(S.transpose(1, 2), r.unsqueeze(-1)).squeeze(-1);
    const Tensor centred = o - o.mean(-1, true);
    const Tensor normed = rms(centred, 1e-5 * double(K)).flatten() * w.at("norm_weight") + w.at("norm_bias");
    const Tensor bonus = ((r * k * w.at("r_k")).sum(-1, true) * v).flatten();
    y.push_back(of("out_weight", (normed + bonus) * g));
    before = x[t];
  }
  EXPECT_LT(relative_error(layer.forward(x), at::stack(y)), 1e-12);
}

TEST(Rwkv7, InitialValuesAreTheOfficialOnes) {
  at::manual_seed(1);
  const auto spec = make_mixer_spec("rwkv7");
  const auto mixer = spec->build(64, 64);
  const Weights w = weights_of(*mixer);
  EXPECT_EQ(w.at("out_weight").abs().max().item<double>(), 0);
  EXPECT_EQ(w.at("decay_down_weight").abs().max().item<double>(), 0);
  EXPECT_NEAR(w.at("k_k").mean().item<double>(), 0.71, 1e-6);
  EXPECT_NEAR(w.at("rate_bias").mean().item<double>(), -0.19, 1e-6);
  EXPECT_NEAR(w.at("decay_bias").min().item<double>(), -5.5 - 2.5, 1e-5);
  EXPECT_NEAR(w.at("decay_bias").max().item<double>(), 0.5 + 2.5, 1e-5);
  const Tensor k = w.at("k_weight"), gram = at::matmul(k, k.t());
  EXPECT_LT((gram - 0.01 * at::eye(64)).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(w.at("shift_mix")[0][0].item<double>(), 1);  // 1 - (0 / D)^0.2
}

TEST(Gsa, TheLayerIsItsEquations) {
  const Layer layer("gsa", {{"slots", "3"}, {"key_width", "5"}, {"value_width", "6"}});
  const int64_t K = 5, V = 6, M = 3;
  const Tensor x = random_input({kT, kD});
  Tensor keys = at::zeros({kH, M, K}, at::kDouble), values = at::zeros({kH, M, V}, at::kDouble);
  std::vector<Tensor> y;
  for (int64_t t = 0; t < kT; ++t) {
    const auto parts =
        at::mv(layer.w.at("in_weight"), x[t]).split_with_sizes({kH * K, kH * K, kH * V, kH * M});
    const Tensor q = at::silu(parts[0]).view({kH, K}), k = at::silu(parts[1]).view({kH, K}),
                 v = at::silu(parts[2]).view({kH, V});
    const Tensor a = at::sigmoid(parts[3]).pow(1.0 / 8).view({kH, M, 1});
    keys = a * keys + (1 - a) * k.unsqueeze(1);
    values = a * values + (1 - a) * v.unsqueeze(1);
    const Tensor weights = at::softmax(at::matmul(keys, q.unsqueeze(-1)), 1);
    const Tensor o = (weights * values).sum(1).flatten();
    y.push_back(at::mv(layer.w.at("out_weight"), rms(at::silu(o), 1e-5) * layer.w.at("norm_weight")));
  }
  EXPECT_LT(relative_error(layer.forward(x), at::stack(y)), 1e-12);
}

TEST(Gla, TheLayerIsItsEquations) {
  const Layer layer("gla");
  const Weights& w = layer.w;
  const int64_t K = kD / kH / 2, V = kD / kH;
  const Tensor x = random_input({kT, kD});
  Tensor S = at::zeros({kH, K, V}, at::kDouble);
  std::vector<Tensor> y;
  for (int64_t t = 0; t < kT; ++t) {
    const auto parts = at::mv(w.at("in_weight"), x[t]).split_with_sizes({kH * K, kH * K, kH * V, 16});
    const Tensor a =
        at::sigmoid(at::mv(w.at("gate_up_weight"), parts[3]) + w.at("gate_up_bias")).pow(1.0 / 16);
    S = a.view({kH, K, 1}) * S + parts[1].view({kH, K, 1}) * parts[2].view({kH, 1, V});
    const Tensor o = at::matmul(parts[0].view({kH, 1, K}), S).squeeze(1) / std::sqrt(double(K));
    const Tensor gate = at::silu(at::mv(w.at("gate_weight"), x[t])).view({kH, V});
    y.push_back(at::mv(w.at("out_weight"), (rms(o, 1e-5) * w.at("norm_weight") * gate).flatten()));
  }
  EXPECT_LT(relative_error(layer.forward(x), at::stack(y)), 1e-12);
}

TEST(Kda, TheLayerIsItsEquations) {
  const Layer layer("kda", {{"conv_width", "1"}, {"key_width", "3"}, {"gate_rank", "2"}});
  const Weights& w = layer.w;
  const int64_t K = 3, V = kD / kH;
  const Tensor x = random_input({kT, kD});
  Tensor S = at::zeros({kH, K, V}, at::kDouble);
  std::vector<Tensor> y;
  for (int64_t t = 0; t < kT; ++t) {
    const auto parts = at::mv(w.at("in_weight"), x[t]).split_with_sizes({kH * (2 * K + V), kH, 2});
    const auto qkv =
        at::silu(parts[0] * w.at("conv_weight").squeeze(1)).split_with_sizes({kH * K, kH * K, kH * V});
    const Tensor q = unit(qkv[0].view({kH, K}), 1e-6), k = unit(qkv[1].view({kH, K}), 1e-6),
                 v = qkv[2].view({kH, 1, V});
    const Tensor b = at::sigmoid(parts[1]).view({kH, 1, 1});
    const Tensor f = at::softplus(at::mv(w.at("decay_up_weight"), parts[2]) + w.at("dt_bias")).view({kH, K});
    S = (-w.at("A_log").exp().unsqueeze(-1) * f).exp().unsqueeze(-1) * S;  // decay first, then erase
    S = S + b * k.unsqueeze(-1) * (v - at::matmul(k.unsqueeze(1), S));
    const Tensor o = at::matmul(q.unsqueeze(1), S).squeeze(1) / std::sqrt(double(K));
    const Tensor gate =
        at::sigmoid(at::mv(w.at("gate_weight"), at::mv(w.at("gate_down_weight"), x[t])) + w.at("gate_bias"));
    y.push_back(at::mv(w.at("out_weight"), (rms(o, 1e-6) * w.at("norm_weight")).flatten() * gate));
  }
  EXPECT_LT(relative_error(layer.forward(x), at::stack(y)), 1e-12);
}

TEST(Pkda, WithoutSquashItIsKda) {  // the analogue of equivalence 9 of mixers.md, section 21
  const at::NoGradGuard no_gradient;
  const Layer plain("kda"), preconditioned("pkda", {{"squash", "1"}});
  auto theirs = preconditioned.mixer->named_parameters();
  for (const auto& [name, value] : plain.w) {
    Tensor& to = theirs[name];
    (name == "in_weight" ? to.narrow(0, 0, value.size(0)) : to).copy_(value);
  }
  const Tensor x = random_input({kT, kD});
  EXPECT_LT(relative_error(preconditioned.forward(x), plain.forward(x)), 1e-12);
}

}  // namespace
}  // namespace prism::test::vector_gate_mixers
