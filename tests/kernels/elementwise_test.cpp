// The elementwise kernels: fp64 against their plain formulas and against differences of themselves, fp32 and
// bf16 against fp64 on the same (rounded) inputs.
#include <gtest/gtest.h>
#include <omp.h>

#include <functional>

#include "kernels/numbers.h"
#include "prism/kernels/l2norm.h"
#include "prism/kernels/prism_refine.h"
#include "prism/kernels/rms_norm.h"
#include "prism/kernels/short_conv.h"

namespace prism::kernels::testing {
namespace {

using Values = std::vector<double>;
using Function = std::function<std::vector<Values>(const std::vector<Values>& inputs)>;

Values random_values(int64_t count, int seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Values values(count);
  for (double& x : values) x = normal(random);
  return values;
}

/// gradient(inputs, upstream) against differences of forward, every input; empty gradients are skipped.
void expect_gradient(const Function& forward, const Function& gradient, std::vector<Values> inputs) {
  std::vector<Values> outputs = forward(inputs), upstream;
  for (const Values& output : outputs)
    upstream.push_back(random_values(output.size(), 5 + int(upstream.size())));
  const auto loss = [&] {
    const std::vector<Values> at = forward(inputs);
    double sum = 0;
    for (size_t i = 0; i < at.size(); ++i)
      for (size_t j = 0; j < at[i].size(); ++j) sum += at[i][j] * upstream[i][j];
    return sum;
  };
  std::vector<Values> arguments = inputs;
  arguments.insert(arguments.end(), upstream.begin(), upstream.end());
  const std::vector<Values> actual = gradient(arguments);
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i].empty()) continue;
    Values differences;
    for (double& value : inputs[i]) {
      const double kept = value, step = 1e-6;
      value = kept + step;
      const double above = loss();
      value = kept - step;
      differences.push_back((above - loss()) / (2 * step));
      value = kept;
    }
    EXPECT_LE(relative_error(actual[i], differences), 1e-8) << "gradient of input " << i;
  }
}

/// The values as Storage holds them.
template <class Storage>
std::vector<Storage> store(const Values& values) {
  std::vector<Storage> result;
  for (const double x : values) result.push_back(stored<Storage>(x));
  return result;
}
template <class Storage>
std::vector<Values> rounded(const std::vector<Values>& values) {
  std::vector<Values> result;
  for (const Values& x : values) result.push_back(as_double(store<Storage>(x)));
  return result;
}

/// One kernel as two functions for each dtype; its inputs come rounded to that dtype, except those in the
/// gate type, which are rounded to it where they are used.
struct Kernel {
  Function forward[3], gradient[3];
};
constexpr double kTolerance[] = {0, 2e-6, 6e-3};

/// fp32 and bf16 against fp64; `outputs` random upstreams follow the inputs. Bits on one thread and on two.
template <class Storage>
void expect_near_double(const Kernel& kernel, const std::vector<Values>& inputs, int dtype) {
  const std::vector<Values> at = rounded<Storage>(inputs);
  const std::vector<Values> expected = kernel.forward[0](at);
  std::vector<Values> arguments = at;
  for (const Values& output : expected)
    arguments.push_back(as_double(store<Storage>(random_values(output.size(), 3))));
  const auto run = [&] {
    std::vector<Values> results = kernel.forward[dtype](at), gradients = kernel.gradient[dtype](arguments);
    results.insert(results.end(), gradients.begin(), gradients.end());
    return results;
  };
  std::vector<Values> all = expected, gradients = kernel.gradient[0](arguments);
  all.insert(all.end(), gradients.begin(), gradients.end());
  const std::vector<Values> actual = run();
  ASSERT_EQ(actual.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_LE(relative_error(actual[i], all[i]), kTolerance[dtype]) << "result " << i << ", dtype " << dtype;
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 5}) {
    omp_set_num_threads(count);
    EXPECT_EQ(run(), actual) << count << " threads";
  }
  omp_set_num_threads(threads);
}

template <template <class> class F, class... Args>
Kernel kernel_of(const Args&... args) {
  return {{F<double>::forward(args...), F<float>::forward(args...), F<BFloat16>::forward(args...)},
          {F<double>::gradient(args...), F<float>::gradient(args...), F<BFloat16>::gradient(args...)}};
}

void expect_right(const Kernel& kernel, const std::vector<Values>& inputs) {
  expect_gradient(kernel.forward[0], kernel.gradient[0], inputs);
  expect_near_double<float>(kernel, inputs, 1);
  expect_near_double<BFloat16>(kernel, inputs, 2);
}

// ---- l2norm: x [N, H, K]

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

// ---- rms_norm: x [N, H, V], weight [V], gate [N, H, V] or empty

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

// ---- short_conv: x [N, D], weight [D, W], bias [D] or empty, state [sequences, D, W-1] or empty

struct ConvCase {
  std::vector<int64_t> offsets;
  int64_t channels, width;
  bool silu = true;
};

template <class Storage>
struct ConvCall {
  ConvCall(const ConvCase& c, const std::vector<Values>& in)
      : offsets(c.offsets),
        x(store<Storage>(in[0])),
        weight(store<Storage>(in[1])),
        bias(store<Storage>(in[2])),
        state(store<Storage>(in[3])),
        shape{kScalarOf<Storage>, {int64_t(offsets.size()) - 1, offsets.data()}, c.channels, c.width, c.silu},
        inputs{{x.data(), c.channels, 0, 0},
               weight.data(),
               bias.empty() ? nullptr : bias.data(),
               state.empty() ? nullptr : state.data()} {}
  std::vector<int64_t> offsets;
  std::vector<Storage> x, weight, bias, state;
  ShortConvShape shape;
  ShortConvInputs inputs;
};

template <class Storage>
struct Conv {
  static Function forward(const ConvCase& c) {
    return [=](const std::vector<Values>& in) {
      const ConvCall<Storage> call(c, in);
      auto y = unwritten<Storage>(call.x.size());
      short_conv_forward(call.shape, call.inputs, y.data(), nullptr);
      return std::vector<Values>{as_double(y)};
    };
  }
  static Function gradient(const ConvCase& c) {
    return [=](const std::vector<Values>& in) {
      const ConvCall<Storage> call(c, in);
      const auto dy = store<Storage>(in[4]);
      auto dx = unwritten<Storage>(call.x.size()), dweight = unwritten<Storage>(call.weight.size()),
           dbias = unwritten<Storage>(call.bias.size());
      short_conv_backward(call.shape, call.inputs, {dy.data(), c.channels, 0, 0},
                          {dx.data(), dweight.data(), dbias.empty() ? nullptr : dbias.data()});
      return std::vector<Values>{as_double(dx), as_double(dweight), as_double(dbias)};
    };
  }
};

/// Inputs of a case: x, weight, bias, state.
std::vector<Values> conv_inputs(const ConvCase& c, bool bias, bool state) {
  const int64_t sequences = int64_t(c.offsets.size()) - 1;
  return {random_values(c.offsets.back() * c.channels, 1), random_values(c.channels * c.width, 2),
          random_values(bias ? c.channels : 0, 3),
          random_values(state ? sequences * c.channels * (c.width - 1) : 0, 4)};
}

/// The formula, sequence by sequence; also the state after it.
std::pair<Values, Values> plain_conv(const ConvCase& c, const std::vector<Values>& in) {
  const int64_t D = c.channels, W = c.width;
  Values y(in[0].size()), last;
  for (size_t n = 0; n + 1 < c.offsets.size(); ++n)
    for (int64_t channel = 0; channel < D; ++channel) {
      Values line(W - 1);
      for (int64_t i = 0; i + 1 < W && !in[3].empty(); ++i) line[i] = in[3][(n * D + channel) * (W - 1) + i];
      for (int64_t t = c.offsets[n]; t < c.offsets[n + 1]; ++t) {
        line.push_back(in[0][t * D + channel]);
        double sum = in[2].empty() ? 0 : in[2][channel];
        for (int64_t j = 0; j < W; ++j) sum += in[1][channel * W + j] * line[line.size() - W + j];
        y[t * D + channel] = c.silu ? sum / (1 + std::exp(-sum)) : sum;
      }
      last.insert(last.end(), line.end() - (W - 1), line.end());
    }
  return {y, last};
}

TEST(ShortConv, FollowsItsFormula) {
  for (const ConvCase& c :
       {ConvCase{{0, 1, 1, 3, 9, 20}, 5, 4}, ConvCase{{0, 7}, 16, 1}, ConvCase{{0, 2, 9}, 19, 3, false},
        ConvCase{{0, 140, 300}, 3, 4}, ConvCase{{0, 5}, 2, 9}}) {
    const Kernel kernel = kernel_of<Conv>(c);
    for (const bool bias : {false, true})
      for (const bool state : {false, true}) {
        const std::vector<Values> in = conv_inputs(c, bias, state);
        const auto [y, last] = plain_conv(c, in);
        EXPECT_LE(relative_error(kernel.forward[0](in)[0], y), 1e-13);
        expect_right(kernel, in);
        ConvCall<double> call(c, in);
        Values out = y, final_state(last.size(), NAN);
        short_conv_forward(call.shape, call.inputs, out.data(), final_state.data());
        EXPECT_EQ(final_state, last);
        if (!state) continue;
        short_conv_forward(call.shape, call.inputs, out.data(), call.state.data());
        EXPECT_EQ(call.state, last) << "in place";
      }
  }
}

// ---- prism_refine: v, u [N, H, V], p [N, L, H, V], beta [N, L, H]; empty ones stand for constants

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
    ASSERT_NEAR(actual[i] / expected, 1, 6e-7) << "gelu(" << x[i] << ")";
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
