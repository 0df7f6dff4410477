// prism_refine on a GPU against the composed operation in double.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "cuda/device.h"
#include "prism/ops/prism_refine.h"

namespace prism::test {
namespace {

using at::Tensor;

struct RefineCase {
  std::string name;
  int64_t N = 37, L = 2, H = 3, V = 64;
  Nonlinearity nonlinearity = Nonlinearity::kGelu;
  Residual residual = Residual::kSubtract;
  bool u = true, p = true, beta = true;
  double size = 1;  ///< of v and u
};

const std::vector<RefineCase>& refine_cases() {
  static const std::vector<RefineCase> cases = {
      {.name = "rank 1", .L = 1},
      {.name = "rank 2"},
      {.name = "rank 3", .L = 3},
      {.name = "rank 4", .L = 4},
      {.name = "width 8", .V = 8},
      {.name = "width 24", .V = 24},
      {.name = "width 128", .V = 128},
      {.name = "width 1000", .V = 1000},
      {.name = "odd width", .V = 33},
      {.name = "width 1", .V = 1},
      {.name = "identity", .L = 3, .nonlinearity = Nonlinearity::kIdentity},
      {.name = "no residual", .L = 3, .residual = Residual::kNone},
      {.name = "no anchor", .u = false},
      {.name = "constant gain", .p = false},
      {.name = "no gate", .beta = false},
      {.name = "large values", .size = 100},
      {.name = "small values", .size = 1e-3},
      {.name = "composed: rank 5", .L = 5},
  };
  return cases;
}

struct RefineTensors {
  Tensor v, u, p, beta, up_w, up_delta, up_residual;

  RefineTensors to(at::Device device, at::ScalarType type) const {
    const at::ScalarType gates = type == at::kDouble ? at::kDouble : at::kFloat;
    const auto cast = [&](const Tensor& x, at::ScalarType t) {
      return x.defined() ? x.detach().to(device, t, false, true) : x;
    };
    return {cast(v, type),    cast(u, type),        cast(p, type),          cast(beta, gates),
            cast(up_w, type), cast(up_delta, type), cast(up_residual, type)};
  }
};

RefineTensors make_refine_tensors(const RefineCase& c) {
  at::manual_seed(11);
  const auto normal = [](at::IntArrayRef sizes, double size = 1) {
    return (at::randn(sizes, at::kDouble) * size).to(at::kBFloat16).to(at::kDouble);
  };
  RefineTensors x;
  x.v = normal({c.N, c.H, c.V}, c.size);
  if (c.u) x.u = normal({c.N, c.H, c.V}, c.size);
  if (c.p) x.p = normal({c.N, c.L, c.H, c.V});
  if (c.beta || !c.p) x.beta = normal({c.N, c.L, c.H}).sigmoid().to(at::kBFloat16).to(at::kDouble);
  x.up_w = normal({c.N, c.L, c.H, c.V});
  x.up_delta = normal({c.N, c.L, c.H, c.V});
  x.up_residual = normal({c.N, c.H, c.V});
  return x;
}

Named run(const RefineCase& c, const RefineTensors& x, Implementation implementation) {
  std::vector<std::pair<std::string, Tensor>> leaves;
  for (const auto& [name, leaf] : {std::pair{"v", x.v}, {"u", x.u}, {"p", x.p}, {"beta", x.beta}})
    if (leaf.defined()) leaves.emplace_back(name, leaf.requires_grad_());
  const PrismRefineResult result =
      prism_refine(x.v, x.u, x.p.defined() ? std::optional(x.p) : std::nullopt, x.beta, c.nonlinearity,
                   c.residual, /*return_delta_and_residual=*/true, implementation);
  Tensors inputs;
  for (const auto& [name, leaf] : leaves) inputs.push_back(leaf);
  const auto gradients = torch::autograd::grad({result.w, result.delta, result.residual}, inputs,
                                               {x.up_w, x.up_delta, x.up_residual});
  Named named = {
      {"w", result.w.detach()}, {"delta", result.delta.detach()}, {"residual", result.residual.detach()}};
  for (size_t i = 0; i < leaves.size(); ++i) named.emplace_back("d_" + leaves[i].first, gradients[i]);
  for (const auto& [name, leaf] : leaves) leaf.requires_grad_(false);
  return named;
}

class CudaRefine : public Cuda {};

TEST_F(CudaRefine, NumbersAreTheComposedOnesInDouble) {
  for (const RefineCase& c : refine_cases()) {
    const RefineTensors exact = make_refine_tensors(c);
    const Named expected = run(c, exact, Implementation::kComposed);
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      if (type == at::kHalf && c.size > 10) continue;  // products of such values leave fp16's range
      const RefineTensors x = exact.to(at::kCUDA, type);
      Named found;
      {
        const PoisonedMemory poisoned;
        found = run(c, x, Implementation::kAuto);
      }
      for (auto& [name, tensor] : found) tensor = tensor.cpu();
      const double limit = type == at::kDouble ? 1e-11 : type == at::kFloat ? 1e-5 : 0.005;
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_LE(relative_error(found[i].second, expected[i].second), limit)
            << c.name << " " << c10::toString(type) << " " << found[i].first;
    }
  }
}

TEST_F(CudaRefine, StridesRepeatsAndNeighboursDoNotChangeBits) {
  const RefineCase c{.name = "", .V = 64};
  const RefineTensors plain = make_refine_tensors(c).to(at::kCUDA, at::kBFloat16);
  const Named once = run(c, plain, Implementation::kAuto);
  expect_same_bits(run(c, plain, Implementation::kAuto), once, "repeat");
  RefineTensors strided = plain;
  strided.v = at::cat({plain.v, plain.v}, -1).narrow(-1, 0, 64);
  strided.p = plain.p.transpose(1, 2).contiguous().transpose(1, 2);
  strided.beta = plain.beta.transpose(1, 2).contiguous().transpose(1, 2);
  strided.up_w = at::cat({plain.up_w, plain.up_w}, 1).narrow(1, 0, 2);
  expect_same_bits(run(c, strided, Implementation::kAuto), once, "strided");
  RefineTensors one;
  const auto row = [](const Tensor& x) { return x.narrow(0, 20, 1).clone(); };
  one = {row(plain.v),    row(plain.u),        row(plain.p),          row(plain.beta),
         row(plain.up_w), row(plain.up_delta), row(plain.up_residual)};
  Named part;
  for (const auto& [name, tensor] : once) part.emplace_back(name, row(tensor));
  expect_same_bits(run(c, one, Implementation::kAuto), part, "one row");
}

TEST_F(CudaRefine, RowsOnOddElementsAreRead) {
  const RefineCase c{.name = "", .V = 64};
  const RefineTensors exact = make_refine_tensors(c);
  RefineTensors x = exact.to(at::kCUDA, at::kFloat);
  x.u = at::constant_pad_nd(x.u, {1, 2}).narrow(-1, 1, 64);
  const Named expected = run(c, exact, Implementation::kComposed), found = run(c, x, Implementation::kAuto);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_LE(relative_error(found[i].second.cpu(), expected[i].second), 1e-5) << found[i].first;
}

TEST_F(CudaRefine, BeyondTheTensorsNothingIsReadOrSummed) {
  const RefineCase c{.name = "", .N = 5, .V = 40};
  const RefineTensors plain = make_refine_tensors(c).to(at::kCUDA, at::kBFloat16);
  RefineTensors x = plain;
  for (Tensor* t : {&x.v, &x.u, &x.p, &x.beta, &x.up_w, &x.up_delta, &x.up_residual}) {
    const Tensor wall = at::full_like(*t, std::numeric_limits<double>::quiet_NaN());
    *t = at::cat({wall, *t, wall}).narrow(0, 5, 5);
  }
  expect_same_bits(run(c, x, Implementation::kAuto), run(c, plain, Implementation::kAuto), "between NaNs");
}

TEST_F(CudaRefine, MoreThan2To31Elements) {
  const int64_t N = 140000, H = 64, V = 128;  // 1.15e9 in v, 2.3e9 in p and w
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  at::manual_seed(3);
  RefineTensors x{at::randn({N, H, V}, options),
                  at::randn({N, H, V}, options),
                  at::randn({N, 2, H, V}, options),
                  at::rand({N, 2, H}, options.dtype(at::kFloat)),
                  {},
                  {},
                  {}};
  const auto last = [&](const Tensor& t) { return t.narrow(0, N - 3, 3).clone(); };
  const Tensor w = prism_refine(x.v, x.u, x.p, x.beta).w;
  EXPECT_TRUE(at::equal(last(w), prism_refine(last(x.v), last(x.u), last(x.p), last(x.beta)).w));
}

TEST_F(CudaRefine, AGraphGivesTheSameBits) {
  const RefineCase c{.name = "", .V = 64};
  const RefineTensors x = make_refine_tensors(c).to(at::kCUDA, at::kBFloat16);
  const auto all = [&] {
    Tensors tensors;
    for (const auto& [name, tensor] : run(c, x, Implementation::kAuto)) tensors.push_back(tensor);
    return tensors;
  };
  const Tensors eager = all(), found = replayed(all);
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(at::equal(found[i], eager[i])) << i;
}

}  // namespace
}  // namespace prism::test
