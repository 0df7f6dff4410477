// The golden files of fast-weight memories in terms of fast_weights and lact. Symbols as in the files'
// README.
#include "prism/ops/fast_weights.h"

#include <ATen/ATen.h>

#include <string>

#include "golden.h"
#include "prism/ops/lact.h"

namespace prism::golden {
namespace {

using at::Tensor;

FastWeightArgs arguments(const Call& call, const char* mini_batch) {
  return {.q = call.at("q"),
          .k = call.at("k"),
          .v = call.at("v"),
          .memory = {},
          .rule = {},
          .state = {},
          .mini_batch = int64_t(call.number(mini_batch))};
}

/// W and b [N,H,1,.] as the rows of one weight.
Tensor with_bias(const Call& call, const std::string& layer) {
  return at::cat({call.at("W" + layer + "_0"), call.at("b" + layer + "_0")}, 2);
}

Tensors ttt(const Call& call) {
  FastWeightArgs args = arguments(call, "mini_batch");
  args.memory = {.bias = true,
                 .exact_gelu = false,
                 .norm_weight = call.at("ln_w"),
                 .norm_bias = call.at("ln_b"),
                 .loss = InnerLoss::kHalfSquare};
  args.rule = {.gradient_weight = call.at("lr"), .place_step = call.at("token_idx"), .accumulate = false};
  args.state.weights = {with_bias(call, "1")};
  if (call.find("W2_0")) args.state.weights.push_back(with_bias(call, "2"));
  const FastWeightResult result = fast_weights(args);
  Tensors out{{"o", result.o}};
  for (size_t l = 0; l < args.state.weights.size(); ++l) {
    const Tensor& W = result.state.weights[l];
    const std::string layer = std::to_string(l + 1);
    out["final_W" + layer] = W.narrow(2, 0, W.size(2) - 1);
    out["final_b" + layer] = W.narrow(2, W.size(2) - 1, 1);
  }
  return out;
}

/// The file's momentum adds to the weights; ours is subtracted from them.
Tensors titans(const Call& call) {
  FastWeightArgs args = arguments(call, "chunk");
  args.rule = {
      .gradient_weight = call.at("theta"), .momentum = call.at("eta"), .retention = 1 - call.at("alpha")};
  for (const char* layer : {"W1", "W2"}) {
    if (const auto W = call.find(std::string(layer) + "_0")) args.state.weights.push_back(*W);
    if (const auto S = call.find(std::string("S_") + layer)) args.state.momentum.push_back(-*S);
  }
  const FastWeightResult result = fast_weights(args);
  Tensors out{{"o", result.o}};
  for (size_t l = 0; l < args.state.weights.size(); ++l) {
    out["final_W" + std::to_string(l + 1)] = result.state.weights[l];
    out["final_S_W" + std::to_string(l + 1)] = -result.state.momentum[l];
  }
  return out;
}

Tensors atlas(const Call& call) {
  FastWeightArgs args = arguments(call, "chunk");
  const auto degree = int64_t(call.number("degree"));
  const auto wide = args.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;  // bf16 would round phi
  args.q = polynomial_features(args.q.to(wide), degree),
  args.k = polynomial_features(args.k.to(wide), degree);
  args.v = args.v.to(wide);
  args.rule = {.gradient_weight = call.at("gamma"),
               .momentum = call.at("theta"),
               .retention = call.at("alpha"),
               .step = call.at("eta"),
               .window = int64_t(call.number("window")),
               .newton_schulz = call.number("muon") != 0};
  args.state.weights = {call.at("M_0")};
  const FastWeightResult result = fast_weights(args);
  return {{"o", result.o.to(call.at("q").scalar_type())},
          {"final_M", result.state.weights[0]},
          {"final_S", result.state.momentum[0]}};
}

Tensors miras(const Call& call) {
  const std::string& variant = call.metadata.at("mixer");
  FastWeightArgs args = arguments(call, "chunk");
  args.rule = {.retention = call.at("alpha"), .step = call.at("eta")};
  args.memory.loss = variant == "miras_moneta"   ? InnerLoss::kCube
                     : variant == "miras_memora" ? InnerLoss::kHalfSquare
                     : variant == "miras_yaad"   ? InnerLoss::kHuberSign
                                                 : InnerLoss::kHuberNorm;
  if (variant == "miras_moneta") {
    args.memory.projection = Projection::kQuarticNorm;
    args.state.weights = {call.at("A_0")};
    const FastWeightResult result = fast_weights(args);
    const Tensor& A = result.state.weights[0];
    return {{"o", result.o}, {"final_A", A}, {"final_W", A / A.pow(4).sum({-2, -1}, true).sqrt()}};
  }
  const Tensor& W = call.at("W_0");
  if (variant == "miras_memora") {
    args.memory.projection = Projection::kSoftmax;
    args.state.weights = {W.log()};
    const FastWeightResult result = fast_weights(args);
    return {{"o", result.o}, {"final_W", at::softmax(result.state.weights[0], -2)}};
  }
  args.rule.delta = call.at("delta");
  args.state.weights = {W};
  const FastWeightResult result = fast_weights(args);
  return {{"o", result.o}, {"final_W", result.state.weights[0]}};
}

/// The file has initial weights for each sequence; ours are shared, so B is 1 there.
Tensors lact(const Call& call) {
  const LactWeights weights{call.at("w0"), call.at("w1"), call.at("w2")};
  const LactWeights initial{weights[0].select(0, 0), weights[1].select(0, 0), weights[2].select(0, 0)};
  const LactRule rule{.chunk = int64_t(call.number("chunk")),
                      .muon = call.number("muon") != 0,
                      .prenorm = call.number("prenorm") != 0};
  const LactResult result = prism::lact(
      call.at("q"), {.k = call.at("k"), .v = call.at("v"), .lr = call.at("lr"), .momentum = call.find("mom")},
      {.weights = weights}, initial, rule);
  const LactWeights& final = result.state.weights;
  return {{"o", result.o}, {"final_w0", final[0]}, {"final_w1", final[1]}, {"final_w2", final[2]}};
}

}  // namespace

std::vector<Mixer> fast_weight_mixers() {
  const std::vector<std::string> ttt_wide{"lr", "token_idx", "ln_w", "ln_b", "W1_0", "b1_0", "W2_0", "b2_0"};
  const std::vector<std::string> titans_wide{"theta", "eta", "alpha", "W1_0", "W2_0", "S_W1", "S_W2"};
  const std::vector<std::string> miras_wide{"alpha", "eta", "delta", "W_0", "A_0"};
  return {
      {"ttt_linear", ttt, ttt_wide},
      {"ttt_mlp", ttt, ttt_wide},
      {"titans_linear", titans, titans_wide},
      {"titans_mlp", titans, titans_wide},
      {"atlas", atlas, {"gamma", "theta", "alpha", "eta", "M_0"}},
      {"miras_moneta", miras, miras_wide},
      {"miras_yaad", miras, miras_wide},
      {"miras_yaad_l2", miras, miras_wide},
      {"miras_memora", miras, miras_wide},
      {"lact", lact, {"lr", "w0", "w1", "w2", "mom"}},
  };
}

}  // namespace prism::golden
