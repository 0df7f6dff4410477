// Layers of public models: two layouts of the same weights are the same mixer, and what does not fit is
// named. tests/python compares with the layers that others run.
#include "prism/models/public_layer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_of.h"

namespace prism {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, Tensor>;

constexpr int64_t D = 10, Hk = 2, H = 6, K = 4, V = 3, W = 4;
constexpr auto kQwen = R"({"model_type": "qwen3_next", "hidden_size": 10, "hidden_act": "silu",
  "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 4, "linear_value_head_dim": 3,
  "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "num_experts": 512})";
constexpr auto kFla = R"({"model_type": "gated_deltanet", "hidden_size": 10, "num_heads": 2, "num_v_heads": 6,
  "head_dim": 4, "expand_v": 0.75, "conv_size": 4, "norm_eps": 1e-6})";

Tensors fla_tensors() {
  Tensors all;
  for (const auto& [name, rows] : {std::pair{"q", Hk * K}, {"k", Hk * K}, {"v", H * V}}) {
    all[std::string(name) + "_proj.weight"] = at::randn({rows, D});
    all[std::string(name) + "_conv1d.weight"] = at::randn({rows, 1, W});
  }
  for (const auto& [name, rows] : {std::pair{"b", H}, {"a", H}, {"g", H * V}})
    all[std::string(name) + "_proj.weight"] = at::randn({rows, D});
  all["A_log"] = at::randn({H}), all["dt_bias"] = at::randn({H});
  all["o_norm.weight"] = at::randn({V}), all["o_proj.weight"] = at::randn({D, H * V});
  return all;
}

/// Key head by key head, as in_proj_qkvz and in_proj_ba have them.
Tensor interleaved(const std::vector<std::pair<Tensor, int64_t>>& rows_a_head) {
  std::vector<Tensor> parts;
  for (int64_t head = 0; head < Hk; ++head)
    for (const auto& [tensor, rows] : rows_a_head) parts.push_back(tensor.narrow(0, head * rows, rows));
  return at::cat(parts);
}

Tensors qwen_tensors(const Tensors& fla) {
  const auto p = [&](const char* name) { return fla.at(std::string(name) + "_proj.weight"); };
  const int64_t group = H / Hk;
  return {{"in_proj_qkvz.weight",
           interleaved({{p("q"), K}, {p("k"), K}, {p("v"), group * V}, {p("g"), group * V}})},
          {"in_proj_ba.weight", interleaved({{p("b"), group}, {p("a"), group}})},
          {"conv1d.weight",
           at::cat({fla.at("q_conv1d.weight"), fla.at("k_conv1d.weight"), fla.at("v_conv1d.weight")})},
          {"A_log", fla.at("A_log")},
          {"dt_bias", fla.at("dt_bias")},
          {"norm.weight", fla.at("o_norm.weight")},
          {"out_proj.weight", fla.at("o_proj.weight")}};
}

Tensors under(const std::string& prefix, const Tensors& tensors) {
  Tensors all;
  for (const auto& [name, tensor] : tensors) all[prefix + name] = tensor;
  return all;
}

std::shared_ptr<GatedDeltaNet> load(const char* config, const Tensors& tensors) {
  const PublicLayer layer = parse_public_layer(config, "config.json");
  auto mixer = std::make_shared<GatedDeltaNet>(layer.config, layer.width);
  const std::string prefix = public_prefix(layer.layout, 3);
  copy_public_weights(layer, under(prefix, tensors), prefix, "model.safetensors", *mixer);
  return mixer;
}

TEST(PublicLayer, BothLayoutsOfTheSameWeightsAreOneMixer) {
  const Tensors fla = fla_tensors();
  const auto from_fla = load(kFla, fla), from_qwen = load(kQwen, qwen_tensors(fla));
  auto theirs = from_qwen->named_parameters();
  for (const auto& own : from_fla->named_parameters())
    EXPECT_TRUE(at::equal(own.value(), theirs[own.key()])) << own.key();
  EXPECT_TRUE(at::equal(theirs["in_weight"].narrow(0, 2 * Hk * K, H * V), fla.at("v_proj.weight")));
  EXPECT_TRUE(at::equal(theirs["gate_weight"], fla.at("g_proj.weight")));
}

TEST(PublicLayer, OtherFloatTypesAreTaken) {
  Tensors fla = fla_tensors();
  for (auto& [name, tensor] : fla)
    if (name.ends_with("weight")) tensor = tensor.to(at::kBFloat16);
  const auto mixer = load(kFla, fla);
  EXPECT_EQ(mixer->in_weight().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(mixer->in_weight().narrow(0, 0, Hk * K), fla.at("q_proj.weight").to(at::kFloat)));
}

TEST(PublicLayer, TensorsThatDoNotFitAreNamed) {
  const Tensors fla = fla_tensors();
  const auto error = [&](const std::string& name, const Tensor& tensor) {
    Tensors changed = fla;
    if (tensor.defined())
      changed[name] = tensor;
    else
      changed.erase(name);
    return error_of([&] { load(kFla, changed); });
  };
  EXPECT_THAT(error("a_proj.weight", {}),
              HasSubstr("model.safetensors: has no tensor model.layers.3.attn.a_proj.weight, expected one of "
                        "shape [6,10]"));
  EXPECT_THAT(error("A_log", at::ones({5})),
              HasSubstr("tensor model.layers.3.attn.A_log has shape [5], expected [6]"));
  EXPECT_THAT(error("A_log", at::ones({6}, at::kLong)), HasSubstr("A_log is Long, expected a float type"));
  EXPECT_THAT(error("q_conv1d.bias", at::ones({8})),
              HasSubstr("tensor model.layers.3.attn.q_conv1d.bias is no weight of this layer's settings"));
  EXPECT_THAT(error_of([&] { load(kFla, {}); }), HasSubstr("no tensor begins with \"model.layers.3.attn.\""));
}

TEST(PublicLayer, SettingsThatDoNotFitAreNamed) {
  const auto error = [](std::string config, const std::string& old, const std::string& now) {
    config.replace(config.find(old), old.size(), now);
    return error_of([&] { parse_public_layer(config, "config.json"); });
  };
  EXPECT_THAT(error(kQwen, "qwen3_next", "llama"),
              HasSubstr("config.json: model_type is \"llama\", expected qwen3_next or gated_deltanet"));
  EXPECT_THAT(error(kQwen, "\"silu\"", "\"gelu\""), HasSubstr("hidden_act is \"gelu\", expected \"silu\""));
  EXPECT_THAT(error(kQwen, "linear_key_head_dim", "key_dim"), HasSubstr("has no linear_key_head_dim"));
  EXPECT_THAT(error(kQwen, "\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": \"2\""),
              HasSubstr("linear_num_key_heads is \"2\", expected an integer above 0"));
  EXPECT_THAT(error(kQwen, "\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 0"),
              HasSubstr("linear_num_key_heads is 0, expected an integer above 0"));
  EXPECT_THAT(error(kFla, "0.75", "0.7"), HasSubstr("head_dim times expand_v is 2.8"));
  EXPECT_THAT(error(kFla, "\"conv_size\": 4", "\"conv_size\": 400"), HasSubstr("conv_size"));
  EXPECT_THAT(error_of([] { parse_public_layer("[1]", "config.json"); }), HasSubstr("no JSON object"));
}

}  // namespace
}  // namespace prism
