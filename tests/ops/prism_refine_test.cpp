#include "prism/ops/prism_refine.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ops/chunk_cases.h"
#include "prism/core/error.h"

namespace prism::test {
namespace {

using at::Tensor;

struct RefineCase {
  std::string name;
  std::vector<int64_t> lead = {2, 5};
  int64_t L = 2, H = 2, V = 6;
  Nonlinearity nonlinearity = Nonlinearity::kGelu;
  Residual residual = Residual::kSubtract;
  bool u = true, p = true, beta = true;
  double size = 1;  ///< of v and u
};

const std::vector<RefineCase>& refine_cases() {
  static const std::vector<RefineCase> cases = {
      {.name = "two steps"},
      {.name = "one step", .L = 1},
      {.name = "eight steps", .L = 8},
      {.name = "identity", .L = 3, .nonlinearity = Nonlinearity::kIdentity},
      {.name = "no residual", .L = 3, .residual = Residual::kNone},
      {.name = "no anchor", .u = false},
      {.name = "constant gain", .L = 3, .p = false},
      {.name = "no gate", .beta = false},
      {.name = "width 1", .H = 1, .V = 1},
      {.name = "odd width", .lead = {3, 7}, .H = 3, .V = 33},
      {.name = "wide", .lead = {1, 9}, .V = 130},
      {.name = "one leading dimension", .lead = {5}},
      {.name = "three leading dimensions", .lead = {2, 3, 4}},
      {.name = "no token", .lead = {2, 0}},
      {.name = "large values", .size = 100},
      {.name = "small values", .size = 1e-3},
  };
  return cases;
}

struct RefineTensors {
  Tensor v, u, p, beta, up_w, up_delta, up_residual;

  RefineTensors to(at::ScalarType type) const {
    const at::ScalarType gates = type == at::kDouble ? at::kDouble : at::kFloat;
    const auto cast = [](const Tensor& x, at::ScalarType t) {
      return x.defined() ? x.detach().to(t, false, true) : x;
    };
    return {cast(v, type),    cast(u, type),        cast(p, type),          cast(beta, gates),
            cast(up_w, type), cast(up_delta, type), cast(up_residual, type)};
  }
  std::vector<std::pair<std::string, Tensor>> leaves() const {
    std::vector<std::pair<std::string, Tensor>> all;
    for (const auto& [name, x] : {std::pair{"v", v}, {"u", u}, {"p", p}, {"beta", beta}})
      if (x.defined()) all.emplace_back(name, x);
    return all;
  }
};

RefineTensors make_tensors(const RefineCase& c) {
  at::manual_seed(11);
  const auto normal = [&](std::vector<int64_t> tail) {
    tail.insert(tail.begin(), c.lead.begin(), c.lead.end());
    return at::randn(tail, at::kDouble).to(at::kBFloat16).to(at::kDouble);
  };
  RefineTensors x;
  x.v = (normal({c.H, c.V}) * c.size).to(at::kBFloat16).to(at::kDouble);
  if (c.u) x.u = (normal({c.H, c.V}) * c.size).to(at::kBFloat16).to(at::kDouble);
  if (c.p) x.p = normal({c.L, c.H, c.V});
  if (c.beta || !c.p) x.beta = normal({c.L, c.H}).sigmoid().to(at::kBFloat16).to(at::kDouble);
  x.up_w = normal({c.L, c.H, c.V});
  x.up_delta = normal({c.L, c.H, c.V});
  x.up_residual = normal({c.H, c.V});
  return x;
}

using RefineFunction = std::function<PrismRefineResult(const RefineTensors&)>;

RefineFunction with(const RefineCase& c, Implementation implementation) {
  return [=](const RefineTensors& x) {
    return prism_refine(x.v, x.u, x.p.defined() ? std::optional(x.p) : std::nullopt, x.beta, c.nonlinearity,
                        c.residual, true, implementation);
  };
}

/// Equations 14 to 16 from differentiable ATen operations.
RefineFunction equations(const RefineCase& c) {
  return [=](const RefineTensors& x) {
    Tensor r = x.u.defined() ? x.v - x.u : x.v;
    std::vector<Tensor> w, delta;
    for (int64_t l = 0; l < c.L; ++l) {
      const Tensor input = x.p.defined() ? x.p.select(-3, l) * r : r;
      const Tensor d =
          c.nonlinearity == Nonlinearity::kGelu ? 0.5 * input * (1 + at::erf(input / std::sqrt(2.0))) : input;
      if (c.residual == Residual::kSubtract) r = r - d;
      delta.push_back(d);
      w.push_back(x.beta.defined() ? x.beta.select(-2, l).unsqueeze(-1) * d : d);
    }
    return PrismRefineResult{at::stack(w, -3), at::stack(delta, -3), r};
  };
}

Named outputs_and_gradients(const RefineTensors& x, const RefineFunction& function) {
  std::vector<Tensor> inputs;
  for (const auto& [name, leaf] : x.leaves()) inputs.push_back(leaf.requires_grad_());
  const PrismRefineResult result = function(x);
  const auto gradients = torch::autograd::grad({result.w, result.delta, result.residual}, inputs,
                                               {x.up_w, x.up_delta, x.up_residual}, false, false, true);
  Named named = {
      {"w", result.w.detach()}, {"delta", result.delta.detach()}, {"residual", result.residual.detach()}};
  for (size_t i = 0; i < inputs.size(); ++i) named.emplace_back("d_" + x.leaves()[i].first, gradients[i]);
  for (const auto& [name, leaf] : x.leaves()) leaf.requires_grad_(false);
  return named;
}

constexpr Implementation kRefinements[] = {Implementation::kFused, Implementation::kComposed};

TEST(PrismRefine, OutputsAndGradientsAreTheEquations) {
  for (const RefineCase& c : refine_cases()) {
    const RefineTensors x = make_tensors(c);
    const Named expected = outputs_and_gradients(x.to(at::kDouble), equations(c));
    for (const Implementation implementation : kRefinements)
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
        expect_close(
            outputs_and_gradients(x.to(type), with(c, implementation)), expected, type,
            fmt::format("{} {} {}", c.name, implementation_name(implementation), c10::toString(type)));
    expect_close(outputs_and_gradients(x.to(at::kHalf), with(c, Implementation::kAuto)), expected,
                 at::kBFloat16, c.name);
  }
}

TEST(PrismRefine, EachOutputAloneHasItsGradient) {
  const RefineCase& c = refine_cases().front();
  const RefineTensors x = make_tensors(c);
  for (int output = 0; output < 3; ++output) {
    const auto alone = [&](const RefineFunction& function) {
      std::vector<Tensor> inputs;
      for (const auto& [name, leaf] : x.leaves()) inputs.push_back(leaf.requires_grad_());
      const PrismRefineResult r = function(x);
      const Tensor outputs[] = {r.w, r.delta, r.residual}, ups[] = {x.up_w, x.up_delta, x.up_residual};
      const auto gradients =
          torch::autograd::grad({outputs[output]}, inputs, {ups[output]}, false, false, true);
      Named named;
      for (size_t i = 0; i < inputs.size(); ++i)
        named.emplace_back("d_" + x.leaves()[i].first,
                           gradients[i].defined() ? gradients[i] : at::zeros_like(inputs[i]));
      return named;
    };
    const Named expected = alone(equations(c));
    for (const Implementation implementation : kRefinements)
      expect_close(alone(with(c, implementation)), expected, at::kDouble, fmt::format("output {}", output));
  }
}

TEST(PrismRefine, RepeatsAndStridedInputsGiveTheSameBits) {
  for (const RefineCase& c : refine_cases()) {
    const RefineTensors x = make_tensors(c).to(at::kFloat);
    for (const Implementation implementation : kRefinements) {
      const Named first = outputs_and_gradients(x, with(c, implementation));
      expect_same_bits(first, outputs_and_gradients(x, with(c, implementation)), c.name);
      RefineTensors y = x;
      y.v = at::stack({x.v * 0, x.v}, -2).select(-2, 1);
      if (x.p.defined()) y.p = x.p.transpose(-2, -3).contiguous().transpose(-2, -3);
      if (x.beta.defined()) y.beta = x.beta.transpose(-1, 0).contiguous().transpose(-1, 0);
      y.up_residual = x.up_residual.unsqueeze(0).transpose(0, -1).contiguous().transpose(0, -1).squeeze(0);
      expect_same_bits(first, outputs_and_gradients(y, with(c, implementation)), c.name + ", strided");
    }
  }
}

TEST(PrismRefine, DeltaAndResidualOnlyWhenAskedFor) {
  const RefineTensors x = make_tensors(refine_cases().front());
  const PrismRefineResult result = prism_refine(x.v, x.u, x.p, x.beta);
  EXPECT_TRUE(result.w.defined());
  EXPECT_FALSE(result.delta.defined());
  EXPECT_FALSE(result.residual.defined());
}

TEST(PrismRefine, ASecondDerivativeIsAnError) {
  const RefineTensors x = make_tensors(refine_cases().front());
  x.v.requires_grad_();
  const Tensor w = prism_refine(x.v, x.u, x.p, x.beta).w;
  const Tensor dv = torch::autograd::grad({w.square().sum()}, {x.v}, {}, true, true)[0];
  EXPECT_THAT([&] { torch::autograd::grad({dv.square().sum()}, {x.v}); },
              testing::ThrowsMessage<std::exception>(testing::HasSubstr("second derivative")));
}

TEST(PrismRefine, ErrorsNameTheTensorAndWhatWasExpected) {
  const std::vector<std::pair<const char*, std::function<void(RefineTensors&)>>> wrong = {
      {"prism_refine: v is [6], expected [...,H,V]", [](auto& x) { x.v = x.v[0][0][0]; }},
      {"u has 1 heads but v has 2", [](auto& x) { x.u = x.u.slice(2, 1); }},
      {"p has 5 channels a head but v has 6", [](auto& x) { x.p = x.p.slice(4, 1); }},
      {"beta has 1 steps but p has 2", [](auto& x) { x.beta = x.beta.slice(2, 1); }},
      {"beta is Float, expected Double beside v of Double", [](auto& x) { x.beta = x.beta.to(at::kFloat); }},
      {"p or beta is needed", [](auto& x) { x.p = x.beta = Tensor(); }},
  };
  for (const auto& [expected, spoil] : wrong) {
    RefineTensors x = make_tensors(refine_cases().front());
    spoil(x);
    EXPECT_THAT([&] { with(refine_cases().front(), Implementation::kAuto)(x); },
                testing::ThrowsMessage<Error>(testing::HasSubstr(expected)));
  }
}

}  // namespace
}  // namespace prism::test
