// prism_refine against its loop written plainly.
#include "prism/kernels/prism_refine.h"

#include <gtest/gtest.h>

#include "kernels/elementwise.h"

namespace prism::kernels::testing {
namespace {

// v, u [N, H, V], p [N, L, H, V], beta [N, L, H]; empty ones stand for constants

struct RefineCase {
  int64_t tokens = 3, steps = 2, heads = 2, width = 5;
  Nonlinearity nonlinearity = Nonlinearity::kGelu;
  Residual residual = Residual::kSubtract;
  bool with_u = true, with_p = true, with_beta = true;
};

template <class Storage>
struct RefineCall {
  using Real = RealOf<Storage>;
  RefineCall(const RefineCase& c, const std::vector<Values>& in)
      : v(store<Storage>(in[0])),
        u(store<Storage>(in[1])),
        p(store<Storage>(in[2])),
        beta(store<Real>(in[3])),
        shape{kScalarOf<Storage>, c.tokens, c.steps, c.heads, c.width, c.nonlinearity, c.residual} {
    const int64_t row = c.heads * c.width;
    inputs = {{v.data(), row, 0, c.width},
              {u.empty() ? nullptr : u.data(), row, 0, c.width},
              {p.empty() ? nullptr : p.data(), c.steps * row, row, c.width},
              {beta.empty() ? nullptr : beta.data(), c.steps * c.heads, c.heads, 1}};
  }
  std::vector<Storage> v, u, p;
  std::vector<Real> beta;
  PrismRefineShape shape;
  PrismRefineInputs inputs;
};

template <class Storage>
struct Refine {
  static Function forward(const RefineCase& c) {
    return [=](const std::vector<Values>& in) {
      const RefineCall<Storage> call(c, in);
      auto w = unwritten<Storage>(call.v.size() * c.steps), delta = w,
           residual = unwritten<Storage>(call.v.size());
      prism_refine_forward(call.shape, call.inputs, w.data(), delta.data(), residual.data());
      return std::vector<Values>{as_double(w), as_double(delta), as_double(residual)};
    };
  }
  static Function gradient(const RefineCase& c) {
    return [=](const std::vector<Values>& in) {
      const RefineCall<Storage> call(c, in);
      const auto dw = store<Storage>(in[4]), ddelta = store<Storage>(in[5]),
                 dresidual = store<Storage>(in[6]);
      auto dv = unwritten<Storage>(call.v.size()), du = unwritten<Storage>(call.u.size()),
           dp = unwritten<Storage>(call.p.size());
      auto dbeta = unwritten<RealOf<Storage>>(call.beta.size());
      const auto pointer = [](auto& x) { return x.empty() ? nullptr : x.data(); };
      const int64_t row = c.heads * c.width;
      prism_refine_backward(call.shape, call.inputs, {dw.data(), c.steps * row, row, c.width},
                            {ddelta.data(), c.steps * row, row, c.width}, {dresidual.data(), row, 0, c.width},
                            {pointer(dv), pointer(du), pointer(dp), pointer(dbeta)});
      return std::vector<Values>{as_double(dv), as_double(du), as_double(dp), as_double(dbeta)};
    };
  }
};

double plain_gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }

TEST(PrismRefine, FollowsItsFormula) {
  for (const RefineCase& c :
       {RefineCase{}, RefineCase{.steps = 1, .width = 16},
        RefineCase{.tokens = 130, .steps = 3, .heads = 1, .width = 3},
        RefineCase{.nonlinearity = Nonlinearity::kIdentity}, RefineCase{.residual = Residual::kNone},
        RefineCase{.width = 33, .with_u = false, .with_p = false, .with_beta = false}}) {
    const int64_t rows = c.tokens * c.heads, size = rows * c.width;
    std::vector<Values> in = {random_values(size, 1), random_values(c.with_u ? size : 0, 2),
                              random_values(c.with_p ? size * c.steps : 0, 3),
                              as_double(store<BFloat16>(random_values(c.with_beta ? rows * c.steps : 0, 4)))};
    Values w(size * c.steps), delta = w, residual(size);
    for (int64_t t = 0; t < c.tokens; ++t)
      for (int64_t i = 0; i < c.heads * c.width; ++i) {
        const int64_t row = c.heads * c.width, at = t * row + i;
        double r = in[0][at] - (c.with_u ? in[1][at] : 0);
        for (int64_t l = 0; l < c.steps; ++l) {
          const int64_t e = (t * c.steps + l) * row + i;
          const double x = (c.with_p ? in[2][e] : 1) * r;
          delta[e] = c.nonlinearity == Nonlinearity::kGelu ? plain_gelu(x) : x;
          w[e] = delta[e] * (c.with_beta ? in[3][(t * c.steps + l) * c.heads + i / c.width] : 1);
          if (c.residual == Residual::kSubtract) r -= delta[e];
        }
        residual[at] = r;
      }
    const Kernel kernel = kernel_of<Refine>(c);
    const std::vector<Values> actual = kernel.forward[0](in);
    EXPECT_LE(relative_error(actual[0], w), 1e-12) << "w";
    EXPECT_LE(relative_error(actual[1], delta), 1e-12) << "delta";
    EXPECT_LE(relative_error(actual[2], residual), 1e-12) << "residual";
    expect_right(kernel, in);
  }
}

TEST(PrismRefine, GeluKeepsItsRelativeAccuracy) {
  const int64_t count = 40001;
  Values x(count);
  for (int64_t i = 0; i < count; ++i) x[i] = as_double(store<float>({-14 + 28.0 * i / (count - 1)}))[0];
  const RefineCase c{.tokens = 1, .steps = 1, .heads = 1, .width = count};
  const Values actual = Refine<float>::forward(c)({x, {}, {}, {}})[1];
  for (int64_t i = 0; i < count; ++i) {
    const double expected = plain_gelu(x[i]);
    if (std::abs(expected) < 1e-36) continue;  // the smallest floats
    ASSERT_NEAR(actual[i] / expected, 1, 5e-7) << "gelu(" << x[i] << ")";
  }
}

TEST(PrismRefine, LargeArgumentsStayFinite) {
  const RefineCase c{.tokens = 1, .steps = 1, .heads = 1, .width = 4};
  const Values x = {-1e30, -60, 60, 1e30};
  EXPECT_EQ(Refine<float>::forward(c)({x, {}, {}, {}})[1], as_double(store<float>({-0.0, -0.0, 60, 1e30})));
  const Values zeros(4, 0.0), ones(4, 1.0);
  EXPECT_EQ(Refine<float>::gradient(c)({x, {}, {}, {}, ones, zeros, zeros})[0], Values({0, 0, 1, 1}));
}

TEST(PrismRefine, OutputsAndGradientsAreOptional) {
  const RefineCase c;
  const int64_t size = c.tokens * c.heads * c.width;
  const RefineCall<float> call(
      c, {random_values(size, 1), random_values(size, 2), random_values(size * c.steps, 3),
          random_values(c.tokens * c.heads * c.steps, 4)});
  prism_refine_forward(call.shape, call.inputs, nullptr, nullptr, nullptr);
  auto residual = unwritten<float>(size), dv = unwritten<float>(size);
  prism_refine_forward(call.shape, call.inputs, nullptr, nullptr, residual.data());
  prism_refine_backward(call.shape, call.inputs, {}, {}, {}, {.dv = dv.data()});
  EXPECT_EQ(dv, std::vector<float>(size, 0.0f));
  for (const float r : residual) EXPECT_TRUE(std::isfinite(r));
}

}  // namespace
}  // namespace prism::kernels::testing
