// short_conv against its formula, sequence by sequence.
#include "prism/kernels/short_conv.h"

#include <gtest/gtest.h>

#include "kernels/elementwise.h"

namespace prism::kernels::testing {
namespace {

// x [N, D], weight [D, W], bias [D] or empty, state [sequences, D, W-1] or empty

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

}  // namespace
}  // namespace prism::kernels::testing
