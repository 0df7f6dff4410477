#pragma once
// Test data and error measures shared by the kernels' tests.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/scalar.h"

namespace prism::kernels::testing {

template <class Storage>
inline constexpr Scalar kScalarOf = std::is_same_v<Storage, double>  ? Scalar::kFloat64
                                    : std::is_same_v<Storage, float> ? Scalar::kFloat32
                                                                     : Scalar::kBFloat16;

template <class Storage>
Storage stored(double x) {
  Storage result;
  from_real(static_cast<RealOf<Storage>>(x), &result);
  return result;
}

/// A filled buffer that shows which elements were never written.
template <class Storage>
std::vector<Storage> unwritten(int64_t count) {
  return std::vector<Storage>(count, stored<Storage>(std::numeric_limits<double>::quiet_NaN()));
}

template <class Storage>
std::vector<double> as_double(const std::vector<Storage>& values) {
  std::vector<double> result;
  for (const Storage& value : values) result.push_back(to_real(value));
  return result;
}

/// |actual - expected| / max(|expected|, 1e-6 sqrt n); infinite where something is not finite.
inline double relative_error(const std::vector<double>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i])) return std::numeric_limits<double>::infinity();
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference) / std::max({std::sqrt(norm), 1e-6 * std::sqrt(double(actual.size())), 1e-300});
}

template <class Storage>
bool same_bits(const std::vector<Storage>& a, const std::vector<Storage>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Storage)) == 0);
}

/// A tensor [tokens, steps, heads, width] with gaps between rows when `strided`; gaps hold NaN.
template <class Storage>
struct Tensor {
  Tensor() = default;
  Tensor(int64_t tokens, int64_t steps, int64_t heads, int64_t width, bool strided)
      : gap(strided ? 3 : 0),
        view{nullptr, steps * heads * (width + gap) + gap, heads * (width + gap), width + gap},
        data(unwritten<Storage>(tokens * view.token_stride)),
        sizes{tokens, steps, heads, width} {}
  Tensor(const Tensor&) = delete;
  Tensor(Tensor&& other) = default;
  Tensor& operator=(Tensor&& other) = default;

  template <class F>
  void fill(F value_at) {
    for (int64_t t = 0; t < sizes[0]; ++t)
      for (int64_t l = 0; l < sizes[1]; ++l)
        for (int64_t h = 0; h < sizes[2]; ++h)
          for (int64_t c = 0; c < sizes[3]; ++c) at(t, l, h, c) = stored<Storage>(value_at(t, l, h, c));
  }
  Storage& at(int64_t t, int64_t l, int64_t h, int64_t c) {
    return data[t * view.token_stride + l * view.step_stride + h * view.head_stride + c];
  }
  double get(int64_t t, int64_t l, int64_t h, int64_t c) const {
    return to_real(data[t * view.token_stride + l * view.step_stride + h * view.head_stride + c]);
  }
  bool empty() const { return sizes[3] == 0; }
  View as_view() const {
    View result = view;
    result.data = empty() ? nullptr : data.data();
    return result;
  }
  int64_t count() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }

  int64_t gap = 0;
  View view;
  std::vector<Storage> data;
  int64_t sizes[4] = {0, 0, 0, 0};
};

}  // namespace prism::kernels::testing
