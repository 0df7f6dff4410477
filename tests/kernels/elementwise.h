#pragma once
// Checks of elementwise kernels: fp64 against differences of itself, fp32 and bf16 against fp64 on the same
// (rounded) inputs, and bits on any number of threads.
#include <gtest/gtest.h>
#include <omp.h>

#include <functional>

#include "kernels/numbers.h"

namespace prism::kernels::testing {
using Values = std::vector<double>;
using Function = std::function<std::vector<Values>(const std::vector<Values>& inputs)>;

inline Values random_values(int64_t count, int seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Values values(count);
  for (double& x : values) x = normal(random);
  return values;
}

/// gradient(inputs, upstream) against differences of forward, every input; empty gradients are skipped.
inline void expect_gradient(const Function& forward, const Function& gradient, std::vector<Values> inputs) {
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
inline constexpr double kTolerance[] = {0, 2e-6, 6e-3};

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
  Kernel kernel;
  kernel.forward[0] = F<double>::forward(args...);
  kernel.forward[1] = F<float>::forward(args...);
  kernel.forward[2] = F<BFloat16>::forward(args...);
  kernel.gradient[0] = F<double>::gradient(args...);
  kernel.gradient[1] = F<float>::gradient(args...);
  kernel.gradient[2] = F<BFloat16>::gradient(args...);
  return kernel;
}

inline void expect_right(const Kernel& kernel, const std::vector<Values>& inputs) {
  expect_gradient(kernel.forward[0], kernel.gradient[0], inputs);
  expect_near_double<float>(kernel, inputs, 1);
  expect_near_double<BFloat16>(kernel, inputs, 2);
}

}  // namespace prism::kernels::testing
