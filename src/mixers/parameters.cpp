#include "mixers/parameters.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

namespace prism::initial {

at::Tensor uniform(at::IntArrayRef shape, int64_t inputs) {
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  return at::empty(shape, at::kFloat).uniform_(-bound, bound);
}

at::Tensor linear(int64_t outputs, int64_t inputs) { return uniform({outputs, inputs}, inputs); }

at::Tensor normal(at::IntArrayRef shape, double deviation) {
  return at::empty(shape, at::kFloat).normal_(0, deviation);
}

at::Tensor zeros(at::IntArrayRef shape) { return at::zeros(shape, at::kFloat); }
at::Tensor ones(at::IntArrayRef shape) { return at::ones(shape, at::kFloat); }

at::Tensor mamba_A_log(int64_t heads) {
  return at::empty({heads}, at::kFloat).uniform_(0, 16).clamp_min_(1e-6).log();
}

at::Tensor mamba2_A_log(int64_t heads) { return at::empty({heads}, at::kFloat).uniform_(1, 16).log(); }

at::Tensor mamba_dt_bias(int64_t heads) {
  const at::Tensor dt =
      at::empty({heads}, at::kFloat).uniform_(std::log(0.001), std::log(0.1)).exp().clamp_min_(1e-4);
  return dt + at::log(-at::expm1(-dt));  // the inverse of softplus
}

at::Tensor half_life_bias(int64_t heads) {
  const at::Tensor place =
      heads == 1 ? at::full({1}, 0.5, at::kDouble) : at::linspace(0, 1, heads, at::kDouble);
  const at::Tensor decay = at::exp2(-1 / (8 * at::pow(128.0, place)));
  return at::log(decay / (1 - decay)).to(at::kFloat);
}

}  // namespace prism::initial
