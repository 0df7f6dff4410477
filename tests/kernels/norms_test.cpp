// l2norm and rms_norm against their formulas.
#include <gtest/gtest.h>

#include "kernels/elementwise.h"
#include "prism/kernels/l2norm.h"
#include "prism/kernels/rms_norm.h"

namespace prism::kernels::testing {
namespace {

// x [N, H, K]

template <class Storage>
struct L2Norm {
  static L2NormShape shape_of(int64_t tokens, int64_t heads, int64_t width) {
    return {kScalarOf<Storage>, tokens, heads, width, 1e-6};
  }
  static Function forward(int64_t tokens, int64_t heads, int64_t width) {
    return [=](const std::vector<Values>& in) {
      const auto x = store<Storage>(in[0]);
      auto y = unwritten<Storage>(x.size());
      l2norm_forward(shape_of(tokens, heads, width), {x.data(), heads * width, 0, width}, y.data());
      return std::vector<Values>{as_double(y)};
    };
  }
  static Function gradient(int64_t tokens, int64_t heads, int64_t width) {
    return [=](const std::vector<Values>& in) {
      const auto x = store<Storage>(in[0]), dy = store<Storage>(in[1]);
      auto dx = unwritten<Storage>(x.size());
      l2norm_backward(shape_of(tokens, heads, width), {x.data(), heads * width, 0, width},
                      {dy.data(), heads * width, 0, width}, dx.data());
      return std::vector<Values>{as_double(dx)};
    };
  }
};

TEST(L2Norm, FollowsItsFormula) {
  for (const int64_t width : {1, 5, 16, 37}) {
    const int64_t tokens = 70, heads = 3;
    const Kernel kernel = kernel_of<L2Norm>(tokens, heads, width);
    const Values x = random_values(tokens * heads * width, 1);
    Values expected(x.size());
    for (size_t row = 0; row < x.size(); row += width) {
      double sum = 1e-6;
      for (int64_t c = 0; c < width; ++c) sum += x[row + c] * x[row + c];
      for (int64_t c = 0; c < width; ++c) expected[row + c] = x[row + c] / std::sqrt(sum);
    }
    EXPECT_LE(relative_error(kernel.forward[0]({x})[0], expected), 1e-14);
    expect_near_double<float>(kernel, {x}, 1);
    expect_near_double<BFloat16>(kernel, {x}, 2);
    if (width == 1) continue;  // the gradient is 1e-6 of the value: differences see only rounding
    expect_gradient(kernel_of<L2Norm>(int64_t{2}, heads, width).forward[0],
                    kernel_of<L2Norm>(int64_t{2}, heads, width).gradient[0],
                    {random_values(2 * heads * width, 2)});
  }
}

TEST(L2Norm, RowOfZerosStaysZero) {
  const Kernel kernel = kernel_of<L2Norm>(int64_t{1}, int64_t{1}, int64_t{4});
  for (const Function& forward : kernel.forward) EXPECT_EQ(forward({Values(4, 0.0)})[0], Values(4, 0.0));
}

// x [N, H, V], weight [V], gate [N, H, V] or empty

template <class Storage>
struct RmsNorm {
  static Function forward(int64_t tokens, int64_t heads, int64_t width) {
    return [=](const std::vector<Values>& in) {
      const auto x = store<Storage>(in[0]), weight = store<Storage>(in[1]), gate = store<Storage>(in[2]);
      auto y = unwritten<Storage>(x.size());
      rms_norm_forward({kScalarOf<Storage>, tokens, heads, width, 1e-5},
                       inputs(x, weight, gate, heads, width), y.data());
      return std::vector<Values>{as_double(y)};
    };
  }
  static Function gradient(int64_t tokens, int64_t heads, int64_t width) {
    return [=](const std::vector<Values>& in) {
      const auto x = store<Storage>(in[0]), weight = store<Storage>(in[1]), gate = store<Storage>(in[2]),
                 dy = store<Storage>(in[3]);
      auto dx = unwritten<Storage>(x.size()), dweight = unwritten<Storage>(weight.size()),
           dgate = unwritten<Storage>(gate.size());
      rms_norm_backward(
          {kScalarOf<Storage>, tokens, heads, width, 1e-5}, inputs(x, weight, gate, heads, width),
          {dy.data(), heads * width, 0, width},
          {dx.data(), weight.empty() ? nullptr : dweight.data(), gate.empty() ? nullptr : dgate.data()});
      return std::vector<Values>{as_double(dx), as_double(dweight), as_double(dgate)};
    };
  }
  static RmsNormInputs inputs(const std::vector<Storage>& x, const std::vector<Storage>& weight,
                              const std::vector<Storage>& gate, int64_t heads, int64_t width) {
    const auto pointer = [](const std::vector<Storage>& v) { return v.empty() ? nullptr : v.data(); };
    return {{x.data(), heads * width, 0, width}, pointer(weight), {pointer(gate), heads * width, 0, width}};
  }
};

TEST(RmsNorm, FollowsItsFormula) {
  const int64_t tokens = 5, heads = 3, width = 21, rows = tokens * heads;
  const Values x = random_values(rows * width, 1), weight = random_values(width, 2),
               gate = random_values(rows * width, 3);
  const Kernel kernel = kernel_of<RmsNorm>(tokens, heads, width);
  Values expected(x.size());
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += x[row * width + c] * x[row * width + c];
    for (int64_t c = 0; c < width; ++c) {
      const double z = gate[row * width + c];
      expected[row * width + c] =
          x[row * width + c] / std::sqrt(sum / width + 1e-5) * weight[c] * z / (1 + std::exp(-z));
    }
  }
  EXPECT_LE(relative_error(kernel.forward[0]({x, weight, gate})[0], expected), 1e-14);
  expect_right(kernel, {x, weight, gate});
  expect_right(kernel, {x, weight, {}});
  expect_right(kernel, {x, {}, gate});
}

TEST(RmsNorm, SumsWeightGradientsOverManyBlocks) {
  const int64_t tokens = 1000, width = 16;
  const Kernel kernel = kernel_of<RmsNorm>(tokens, int64_t{1}, width);
  expect_near_double<float>(kernel, {random_values(tokens * width, 1), random_values(width, 2), {}}, 1);
}

TEST(RmsNorm, FarGatesStayFinite) {
  const Kernel kernel = kernel_of<RmsNorm>(int64_t{1}, int64_t{1}, int64_t{4});
  const std::vector<Values> in = {{1, 2, 3, 4}, {}, {-2000, -90, 90, 2000}};
  for (int dtype = 0; dtype < 3; ++dtype) {
    const Values y = kernel.forward[dtype](in)[0];
    EXPECT_NEAR(y[0], 0, 1e-30);
    EXPECT_NEAR(y[3], 2000 * 4 / std::sqrt(7.5), 2000 * 0.01);
    for (const Values& gradient : kernel.gradient[dtype]({in[0], in[1], in[2], Values(4, 1.0)}))
      for (const double value : gradient) EXPECT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace prism::kernels::testing
