#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "golden.h"
#include "prism/core/error.h"

namespace prism::golden {
namespace {

using at::Tensor;

std::vector<std::string> names(const Safetensors& file, const char* key) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) return {};
  return nlohmann::json::parse(found->second).get<std::vector<std::string>>();
}

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// |x - reference| / max(|reference|, 1e-6 sqrt n).
double relative_error(const Tensor& x, const Tensor& reference) {
  if (!x.defined() || x.sizes() != reference.sizes() || !x.isfinite().all().item<bool>())
    return std::numeric_limits<double>::infinity();
  const Tensor wide = reference.to(at::kDouble);
  const double floor = 1e-6 * std::sqrt(double(std::max<int64_t>(wide.numel(), 1)));
  return (x.to(at::kCPU, at::kDouble) - wide).norm().item<double>() /
         std::max(wide.norm().item<double>(), floor);
}

}  // namespace

std::optional<Tensor> Call::find(const std::string& name) const {
  const auto found = inputs.find(name);
  return found == inputs.end() ? std::nullopt : std::optional(found->second);
}

double Call::number(const std::string& key) const {
  const auto found = metadata.find(key);
  check(found != metadata.end(), "golden: the file's metadata lacks \"{}\"", key);
  return std::stod(found->second);
}

double tolerance(const Safetensors& file, const Mixer& mixer, const std::string& tensor,
                 at::ScalarType type) {
  const std::string name = mixer.name;
  const bool extreme = file.metadata.at("case").ends_with("extreme");
  const auto muon = file.metadata.find("muon");  // Newton-Schulz amplifies rounding
  const bool amplifies = muon != file.metadata.end() && muon->second != "0";
  if (type == at::kDouble) return amplifies ? 1e-9 : name == "softmax" && extreme ? 1e-10 : 1e-11;
  if (type == at::kFloat) {  // ten times the plain fp32 loop's error
    if (name == "softmax" && extreme) return 5e-5;
    return amplifies ? 1e-3 : name == "miras_memora" ? 2e-5 : 1e-5;
  }
  if (!tensor.starts_with("d_")) return 0.005;
  const std::string input = tensor.substr(2);
  if (input == "initial_state" || !contains(mixer.wide, input)) return 0.008;
  return name.starts_with("prism") ? 0.01 : 0.02;
}

std::map<std::string, double> check_file(const Safetensors& file, const Mixer& mixer, at::ScalarType type,
                                         const Setting& setting) {
  Call call{.inputs = {}, .metadata = file.metadata, .setting = setting};
  std::vector<std::string> inputs = names(file, "inputs");
  std::vector<Tensor> leaves;
  for (const std::string& name : inputs) {
    const bool wide = type == at::kBFloat16 && contains(mixer.wide, name);
    leaves.push_back(file.tensors.at(name).to(setting.device, wide ? at::kFloat : type).requires_grad_());
    call.inputs[name] = leaves.back();
  }
  for (const std::string& name : names(file, "consts"))
    call.inputs[name] = file.tensors.at(name).to(setting.device);

  const Tensors outputs = mixer.run(call);
  std::map<std::string, double> errors;
  std::vector<Tensor> results, upstream;
  for (const std::string& name : names(file, "outputs")) {
    const Tensor& result = outputs.at(name);
    errors[name] = relative_error(result.detach(), file.tensors.at(name));
    results.push_back(result);
    upstream.push_back(file.tensors.at("up_" + name).to(setting.device, result.scalar_type()));
  }
  const auto gradients =
      torch::autograd::grad(results, leaves, upstream, false, false, /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor found = gradients[i].defined() ? gradients[i] : at::zeros_like(leaves[i]);  // not used: 0
    errors["d_" + inputs[i]] = relative_error(found, file.tensors.at("d_" + inputs[i]));
  }
  return errors;
}

}  // namespace prism::golden
