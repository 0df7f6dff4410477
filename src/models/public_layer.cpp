#include "prism/models/public_layer.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism {
namespace {

using at::Tensor;
using nlohmann::json;
using Shape = std::vector<int64_t>;

/// The keys of a config.json, and the settings that take them.
class PublicSettings {
 public:
  PublicSettings(const json& keys, const std::string& file, GatedDeltaNetConfig& config)
      : keys_(keys), file_(file) {
    settings_.bind("gated_delta_net", config);
  }

  int64_t integer(const char* key) const {
    const json& value = at(key);
    check(value.is_number_integer() && value.get<int64_t>() >= 1, "{}: {} is {}, expected an integer above 0",
          file_, key, value.dump());
    return value.get<int64_t>();
  }
  double number(const char* key) const {
    const json& value = at(key);
    check(value.is_number(), "{}: {} is {}, expected a number", file_, key, value.dump());
    return value.get<double>();
  }
  /// Keys that came later than the first files.
  bool flag(const char* key, bool absent) const {
    if (!has(key)) return absent;
    check(keys_[key].is_boolean(), "{}: {} is {}, expected true or false", file_, key, keys_[key].dump());
    return keys_[key].get<bool>();
  }
  bool has(const char* key) const { return keys_.contains(key) && !keys_[key].is_null(); }

  void set(const char* setting, const Value& value, const char* key) {
    settings_.set(setting, value, fmt::format("{}: {}", file_, key));
  }
  void set_integer(const char* setting, const char* key) { set(setting, integer(key), key); }

 private:
  const json& at(const char* key) const {
    check(has(key), "{}: has no {}", file_, key);
    return keys_[key];
  }

  const json& keys_;
  const std::string& file_;
  Settings settings_;
};

void read_qwen3_next(PublicSettings& from, const json& keys, const std::string& file) {
  check(!from.has("hidden_act") || keys["hidden_act"] == "silu", "{}: hidden_act is {}, expected \"silu\"",
        file, keys.value("hidden_act", json()).dump());
  from.set_integer("heads", "linear_num_value_heads");
  from.set_integer("key_heads", "linear_num_key_heads");
  from.set_integer("key_width", "linear_key_head_dim");
  from.set_integer("value_width", "linear_value_head_dim");
  from.set_integer("conv_width", "linear_conv_kernel_dim");
  from.set("norm_eps", from.number("rms_norm_eps"), "rms_norm_eps");
}

void read_gated_deltanet(PublicSettings& from, PublicLayer& layer, const std::string& file) {
  from.set_integer("heads", from.has("num_v_heads") ? "num_v_heads" : "num_heads");
  from.set_integer("key_heads", "num_heads");
  from.set_integer("key_width", "head_dim");
  const double value_width = static_cast<double>(from.integer("head_dim")) * from.number("expand_v");
  check(value_width >= 1 && value_width <= 65536 && value_width == std::floor(value_width),
        "{}: head_dim times expand_v is {}, expected an integer from 1 to 65536", file, value_width);
  from.set("value_width", static_cast<int64_t>(value_width), "head_dim times expand_v");
  layer.short_conv = from.flag("use_short_conv", true);
  if (layer.short_conv)
    from.set_integer("conv_width", "conv_size");
  else
    from.set("conv_width", int64_t{1}, "use_short_conv");
  from.set("output_gate", from.flag("use_gate", true), "use_gate");
  from.set("negative_eigenvalues", from.flag("allow_neg_eigval", false), "allow_neg_eigval");
  from.set("norm_eps", from.number("norm_eps"), "norm_eps");
}

/// The tensors of one layer by name, each asked for once with the shape that it must have.
class LayerTensors {
 public:
  LayerTensors(const std::map<std::string, Tensor>& all, std::string prefix, const std::string& file)
      : prefix_(std::move(prefix)), file_(file) {
    for (const auto& [name, tensor] : all)
      if (name.starts_with(prefix_)) left_.emplace(name.substr(prefix_.size()), tensor);
    check(!left_.empty(), "{}: no tensor begins with \"{}\", expected the weights of a Gated DeltaNet layer",
          file_, shortened(prefix_));
  }

  Tensor take(const std::string& name, const Shape& shape) {
    const auto found = left_.find(name);
    if (found == left_.end())
      fail("{}: has no tensor {}{}, expected one of shape [{}]{}", file_, prefix_, name,
           fmt::join(shape, ","), did_you_mean(name, names()));
    Tensor tensor = found->second;
    check(tensor.sizes() == shape, "{}: tensor {}{} has shape [{}], expected [{}]", file_, prefix_, name,
          fmt::join(tensor.sizes(), ","), fmt::join(shape, ","));
    check(tensor.is_floating_point(), "{}: tensor {}{} is {}, expected a float type", file_, prefix_, name,
          c10::toString(tensor.scalar_type()));
    left_.erase(found);
    return tensor;
  }

  /// After the last take().
  void require_none_left() const {
    if (left_.empty()) return;
    fail("{}: tensor {}{} is no weight of this layer's settings, expected nothing but those", file_, prefix_,
         shortened(left_.begin()->first));
  }

 private:
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : left_) all.push_back(name);
    return all;
  }

  std::map<std::string, Tensor> left_;
  std::string prefix_;
  const std::string& file_;
};

using Weights = std::map<std::string, Tensor>;

/// One dtype for tensors that stand in one of ours.
Tensor joined(std::vector<Tensor> parts) {
  for (Tensor& part : parts) part = part.to(at::kFloat);
  return at::cat(parts);
}

/// Rows that go by key head, each with `parts` rows of several kinds: the rows of each kind by themselves.
std::vector<Tensor> by_kind(const Tensor& rows, int64_t key_heads, const Shape& parts) {
  std::vector<Tensor> kinds;
  for (const Tensor& part : rows.unflatten(0, {key_heads, -1}).split_with_sizes(parts, 1))
    kinds.push_back(part.flatten(0, 1));
  return kinds;
}

Weights qwen3_next_weights(const PublicLayer& layer, LayerTensors& from) {
  const GatedDeltaNetConfig& c = layer.config;
  const int64_t D = layer.width, H = c.heads, Hk = c.key_heads, K = c.key_width, V = c.value_width;
  const int64_t values = H / Hk * V;  // of a key head
  const auto qkvz =
      by_kind(from.take("in_proj_qkvz.weight", {2 * Hk * K + 2 * H * V, D}), Hk, {K, K, values, values});
  const auto ba = by_kind(from.take("in_proj_ba.weight", {2 * H, D}), Hk, {H / Hk, H / Hk});
  return {{"in_weight", joined({qkvz[0], qkvz[1], qkvz[2], ba[0], ba[1]})},
          {"gate_weight", qkvz[3]},
          {"conv_weight", from.take("conv1d.weight", {2 * Hk * K + H * V, 1, c.conv_width}).squeeze(1)},
          {"A_log", from.take("A_log", {H})},
          {"dt_bias", from.take("dt_bias", {H})},
          {"norm_weight", from.take("norm.weight", {V})},
          {"out_weight", from.take("out_proj.weight", {D, H * V})}};
}

Weights gated_deltanet_weights(const PublicLayer& layer, LayerTensors& from) {
  const GatedDeltaNetConfig& c = layer.config;
  const int64_t D = layer.width, H = c.heads, keys = c.key_heads * c.key_width, values = H * c.value_width;
  const auto projection = [&](const char* name, int64_t rows) {
    return from.take(std::string(name) + "_proj.weight", {rows, D});
  };
  const auto conv = [&](const char* name, int64_t channels) {
    if (!layer.short_conv) return at::ones({channels, 1});
    return from.take(std::string(name) + "_conv1d.weight", {channels, 1, c.conv_width}).squeeze(1);
  };
  Weights weights{{"in_weight", joined({projection("q", keys), projection("k", keys), projection("v", values),
                                        projection("b", H), projection("a", H)})},
                  {"conv_weight", joined({conv("q", keys), conv("k", keys), conv("v", values)})},
                  {"A_log", from.take("A_log", {H})},
                  {"dt_bias", from.take("dt_bias", {H})},
                  {"norm_weight", from.take("o_norm.weight", {c.value_width})},
                  {"out_weight", from.take("o_proj.weight", {D, values})}};
  if (c.output_gate) weights["gate_weight"] = projection("g", values);
  return weights;
}

}  // namespace

PublicLayer parse_public_layer(std::string_view text, const std::string& file) {
  const json keys = json::parse(text, nullptr, /*allow_exceptions=*/false);
  check(keys.is_object(), "{}: no JSON object, expected the config.json of a model", file);
  const std::string type = keys.contains("model_type") && keys["model_type"].is_string()
                               ? keys["model_type"].get<std::string>()
                               : "";
  const auto& known = EnumNames<PublicLayout>::names;
  const auto found = std::find(known.begin(), known.end(), type);
  check(found != known.end(), "{}: model_type is \"{}\", expected {}", file, shortened(type),
        fmt::join(known, " or "));
  PublicLayer layer{.layout = static_cast<PublicLayout>(found - known.begin())};
  PublicSettings from(keys, file, layer.config);
  layer.width = from.integer("hidden_size");
  if (layer.layout == PublicLayout::kQwen3Next)
    read_qwen3_next(from, keys, file);
  else
    read_gated_deltanet(from, layer, file);
  return layer;
}

std::string public_prefix(PublicLayout layout, int64_t index) {
  return fmt::format("model.layers.{}.{}.", index,
                     layout == PublicLayout::kQwen3Next ? "linear_attn" : "attn");
}

void copy_public_weights(const PublicLayer& layer, const std::map<std::string, Tensor>& tensors,
                         const std::string& prefix, const std::string& file, GatedDeltaNet& mixer) {
  LayerTensors from(tensors, prefix, file);
  const Weights weights = layer.layout == PublicLayout::kQwen3Next ? qwen3_next_weights(layer, from)
                                                                   : gated_deltanet_weights(layer, from);
  from.require_none_left();
  const c10::NoGradGuard no_gradient;
  for (auto& own : mixer.named_parameters()) own.value().copy_(weights.at(own.key()));
}

}  // namespace prism
