#include "fast_memory.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

namespace prism {
namespace {

using at::Tensor;

constexpr double kMemoryNormEps = 1e-6;

Tensor with_one(const Tensor& x) { return at::constant_pad_nd(x, {0, 1}, 1); }

}  // namespace

Tensor polynomial_features(const Tensor& x, int64_t degree) {
  std::vector<Tensor> parts{at::ones_like(x.narrow(-1, 0, 1))};
  for (int64_t i = 1; i <= degree; ++i) {
    const Tensor power = (parts.back().unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2);
    parts.push_back(power / std::sqrt(static_cast<double>(i)));
  }
  return at::cat(parts, -1);
}

Tensor MemoryModel::lift(const Tensor& x) const { return memory_.bias ? with_one(x) : x; }

Tensor MemoryModel::hidden(const Tensor& z) const {
  const Tensor h = at::gelu(z, memory_.exact_gelu ? "none" : "tanh");
  return memory_.bias ? with_one(h) : h;
}

Tensor MemoryModel::by_head(const Tensor& x, const Tensor& parameter_HV) const {
  return (x.unflatten(0, {-1, heads_}) * parameter_HV.unsqueeze(1)).flatten(0, 1);
}

Tensor MemoryModel::finish(const Tensor& z, const Tensor& x) const {
  if (!memory_.norm_weight.defined()) return z;
  const Tensor normal = at::layer_norm(z, {z.size(-1)}, {}, {}, kMemoryNormEps);
  const Tensor scaled = normal.unflatten(0, {-1, heads_}) * memory_.norm_weight.unsqueeze(1);
  return (scaled + memory_.norm_bias.unsqueeze(1)).flatten(0, 1) + x;
}

Tensor MemoryModel::loss_gradient(const Tensor& e, const Tensor& delta) const {
  const auto size = [&] { return at::linalg_vector_norm(e, 2, -1, /*keepdim=*/true); };
  switch (memory_.loss) {
    case InnerLoss::kSquare:
      return 2 * e;
    case InnerLoss::kHalfSquare:
      return e;
    case InnerLoss::kCube:
      return 3 * e * e.abs();
    case InnerLoss::kHuberSign:
      return at::where(size() <= delta, e, delta * e.sign());
    case InnerLoss::kHuberNorm: {
      const Tensor norm = size();
      const Tensor inside = norm <= delta;  // norm may be 0 there
      return at::where(inside, e, delta * e / norm.masked_fill(inside, 1));
    }
  }
  return {};
}

MemoryModel::Gradients MemoryModel::gradients(const std::vector<Tensor>& W, const Tensor& k, const Tensor& v,
                                              const Tensor& weight, const Tensor& delta) const {
  const bool deep = W.size() == 2;
  Gradients result{.inputs = {lift(k)}, .outputs = {}};
  const Tensor first = at::bmm(result.inputs[0], W[0]);
  if (deep) result.inputs.push_back(hidden(first));
  const Tensor z = deep ? at::bmm(result.inputs[1], W[1]) : first;
  Tensor g;
  if (memory_.norm_weight.defined()) {
    const auto [normal, mean, deviation] = at::native_layer_norm(z, {z.size(-1)}, {}, {}, kMemoryNormEps);
    const Tensor y = by_head(normal, memory_.norm_weight).unflatten(0, {-1, heads_});
    const Tensor e = (y + memory_.norm_bias.unsqueeze(1)).flatten(0, 1) + (k - v);
    g = std::get<0>(at::native_layer_norm_backward(by_head(loss_gradient(e, delta), memory_.norm_weight), z,
                                                   {z.size(-1)}, mean, deviation, {}, {},
                                                   {true, false, false}));
  } else {
    g = loss_gradient(z - v, delta);
  }
  if (weight.defined()) g = g * weight;
  if (deep) {
    const Tensor back = at::bmm(g, W[1].narrow(1, 0, first.size(-1)).transpose(1, 2));
    result.outputs.push_back(at::gelu_backward(back, first, memory_.exact_gelu ? "none" : "tanh"));
  }
  result.outputs.push_back(g);
  return result;
}

Tensor MemoryModel::project(const Tensor& A) const {
  switch (memory_.projection) {
    case Projection::kNone:
      return A;
    case Projection::kQuarticNorm:
      return A / A.square().square().sum({-2, -1}, true).sqrt();
    case Projection::kSoftmax:
      return at::softmax(A, -2);
  }
  return {};
}

Tensor MemoryModel::project_start(const Tensor& A) const {
  return memory_.projection == Projection::kSoftmax ? A.exp() : project(A);
}

Tensor MemoryModel::settle(const Tensor& A) const {
  return memory_.projection == Projection::kSoftmax ? at::log_softmax(A, -2) : A;
}

}  // namespace prism
