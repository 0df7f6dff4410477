// short_conv on a GPU against the CPU's in double.
#include "prism/ops/short_conv.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "cuda/device.h"
#include "prism/core/error.h"

namespace prism::test {
namespace {

using at::Tensor;

struct ConvCase {
  std::string name;
  int64_t width = 4, channels = 64, rows = 2, row_tokens = 37;
  std::vector<int64_t> lengths = {};  ///< packed sequences instead of rows
  bool bias = true, history = true;
};

const std::vector<int64_t> kRagged = {5, 0, 1, 0, 0, 70, 2, 1, 1, 1, 33, 0, 16, 3, 200, 0};

const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> cases = {
      {.name = "width 1", .width = 1},
      {.name = "width 2", .width = 2},
      {.name = "width 3", .width = 3, .history = false},
      {.name = "width 4"},
      {.name = "width 7", .width = 7},
      {.name = "width 8, packed", .width = 8, .lengths = kRagged},
      {.name = "no bias", .bias = false},
      {.name = "no bias, no history", .bias = false, .history = false},
      {.name = "odd channels", .channels = 37, .rows = 3, .row_tokens = 9},
      {.name = "odd channels, packed, width 3", .width = 3, .channels = 131, .lengths = kRagged},
      {.name = "one channel", .channels = 1},
      {.name = "many channels", .channels = 1030, .rows = 1, .row_tokens = 19},
      {.name = "one token a row", .rows = 50, .row_tokens = 1},
      {.name = "packed", .lengths = kRagged},
      {.name = "packed, width 2, no history", .width = 2, .lengths = kRagged, .history = false},
      {.name = "packed, width 3", .width = 3, .lengths = kRagged},
      {.name = "packed, width 1", .width = 1, .lengths = kRagged},
      {.name = "packed, width 7, few channels", .width = 7, .channels = 6, .lengths = kRagged},
      {.name = "one long row", .channels = 66, .rows = 1, .row_tokens = 5000},
      {.name = "long rows, odd channels", .channels = 5, .rows = 2, .row_tokens = 4001},
      {.name = "long packed rows", .channels = 200, .lengths = {3000, 0, 1, 2500}, .history = false},
      {.name = "composed: width 9", .width = 9, .lengths = kRagged},
  };
  return cases;
}

struct ConvTensors {
  Tensor x = {}, weight = {}, bias = {}, history = {}, up = {};

  /// Weights stay in fp32 (fp64 beside fp64), as a layer has them.
  ConvTensors to(at::Device device, at::ScalarType type) const {
    const auto cast = [&](const Tensor& t, at::ScalarType as) {
      return t.defined() ? t.detach().to(device, as, false, true) : t;
    };
    const at::ScalarType weights = type == at::kDouble ? at::kDouble : at::kFloat;
    return {cast(x, type), cast(weight, weights), cast(bias, weights), cast(history, type), cast(up, type)};
  }
};

Packing packing_of(const ConvCase& c) {
  return c.lengths.empty() ? Packing::rows() : Packing::packed(c.lengths);
}

ConvTensors make_conv(const ConvCase& c) {
  at::manual_seed(13);
  const auto normal = [](at::IntArrayRef sizes) {
    return at::randn(sizes, at::kDouble).to(at::kBFloat16).to(at::kDouble);
  };
  const int64_t N = c.lengths.empty() ? c.rows : static_cast<int64_t>(c.lengths.size()),
                B = c.lengths.empty() ? c.rows : 1,
                T = c.lengths.empty() ? c.row_tokens
                                      : std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
  ConvTensors x{.x = normal({B, T, c.channels}), .weight = normal({c.channels, c.width})};
  if (c.bias) x.bias = normal({c.channels});
  if (c.history) x.history = normal({N, c.channels, c.width - 1});
  x.up = normal({B, T, c.channels});
  return x;
}

Tensor convolve(const ConvTensors& x, const Packing& packing) {
  return short_conv(x.x, x.weight, x.bias, packing,
                    x.history.defined() ? std::optional(x.history) : std::nullopt);
}

/// y and the gradients of sum(y up).
Named run(const ConvTensors& x, const Packing& packing) {
  std::vector<std::pair<std::string, Tensor>> leaves;
  for (const auto& [name, leaf] : {std::pair{"x", x.x}, {"weight", x.weight}, {"bias", x.bias}})
    if (leaf.defined()) leaves.emplace_back(name, leaf.requires_grad_());
  const Tensor y = convolve(x, packing);
  Tensors inputs;
  for (const auto& [name, leaf] : leaves) inputs.push_back(leaf);
  const auto gradients = torch::autograd::grad({y}, inputs, {x.up});
  Named named = {{"y", y.detach()}};
  for (size_t i = 0; i < leaves.size(); ++i) named.emplace_back("d_" + leaves[i].first, gradients[i]);
  for (const auto& [name, leaf] : leaves) leaf.requires_grad_(false);
  return named;
}

Tensor history_of(const ConvTensors& x, const Packing& packing) {
  return short_conv_history(x.x, x.weight.size(1), packing,
                            x.history.defined() ? std::optional(x.history) : std::nullopt);
}

class CudaShortConv : public Cuda {};

TEST_F(CudaShortConv, NumbersAreTheCpusInDouble) {
  for (const ConvCase& c : conv_cases()) {
    const Packing packing = packing_of(c);
    const ConvTensors exact = make_conv(c);
    const Named expected = run(exact, packing);
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      // Composing rounds the gradient of x once a tap.
      if (c.width > 8 && (type == at::kBFloat16 || type == at::kHalf)) continue;
      const ConvTensors x = exact.to(at::kCUDA, type);
      Named found;
      {
        const PoisonedMemory poisoned;
        found = run(x, packing);
      }
      const double limit = type == at::kDouble ? 1e-11 : type == at::kFloat ? 1e-5 : 0.005;
      for (size_t i = 0; i < found.size(); ++i) {
        const bool weights = found[i].first == "d_weight" || found[i].first == "d_bias";
        EXPECT_EQ(found[i].second.scalar_type(), weights ? x.weight.scalar_type() : type);
        EXPECT_LE(relative_error(found[i].second.cpu(), expected[i].second), limit)
            << c.name << " " << c10::toString(type) << " " << found[i].first;
      }
    }
  }
}

TEST_F(CudaShortConv, HistoriesAreTheCpus) {
  for (const ConvCase& c : conv_cases()) {
    const Packing packing = packing_of(c);
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const ConvTensors x = make_conv(c).to(at::kCPU, type);
      const PoisonedMemory poisoned;
      EXPECT_TRUE(at::equal(history_of(x.to(at::kCUDA, type), packing).cpu(), history_of(x, packing)))
          << c.name << " " << c10::toString(type);
    }
  }
}

TEST_F(CudaShortConv, StepsHaveTheBitsOfTheForward) {
  const c10::NoGradGuard no_grad;
  for (const int64_t width : {1, 2, 3, 4, 7})
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const ConvCase c{.name = "", .width = width, .channels = 70, .rows = 3, .row_tokens = 12};
      const ConvTensors x = make_conv(c).to(at::kCUDA, type);
      const Tensor y = convolve(x, Packing::rows()), moving = x.history.clone();
      for (int64_t t = 0; t < c.row_tokens; ++t) {
        const PoisonedMemory poisoned;
        EXPECT_TRUE(at::equal(short_conv_step(x.x.select(1, t), x.weight, x.bias, moving), y.select(1, t)))
            << width << " " << c10::toString(type) << " token " << t;
      }
      EXPECT_TRUE(at::equal(moving, history_of(x, Packing::rows()))) << width << " " << c10::toString(type);
    }
}

TEST_F(CudaShortConv, RepeatsAndStridesDoNotChangeBits) {
  for (const auto& lengths : {std::vector<int64_t>{}, kRagged}) {
    const ConvCase c{.name = "", .channels = 64, .rows = 3, .row_tokens = 600, .lengths = lengths};
    const Packing packing = packing_of(c);
    const ConvTensors plain = make_conv(c).to(at::kCUDA, at::kBFloat16);
    const Named once = run(plain, packing);
    expect_same_bits(run(plain, packing), once, "repeat");
    ConvTensors strided = plain;  // as columns of a wider product
    strided.x = at::cat({plain.up, plain.x, plain.up}, -1).narrow(-1, 64, 64);
    strided.up = at::cat({plain.x, plain.up}, -1).narrow(-1, 64, 64);
    expect_same_bits(run(strided, packing), once, "strided");
    EXPECT_TRUE(at::equal(history_of(strided, packing), history_of(plain, packing)));
    ConvTensors apart = plain;  // channels that are not neighbours are copied
    apart.x = plain.x.transpose(1, 2).contiguous().transpose(1, 2);
    expect_same_bits(run(apart, packing), once, "transposed");
  }
}

TEST_F(CudaShortConv, OddAddressesAreRead) {
  const ConvCase c{.name = "", .rows = 2, .row_tokens = 700};
  const ConvTensors exact = make_conv(c);
  ConvTensors x = exact.to(at::kCUDA, at::kFloat);
  const Named aligned = run(x, Packing::rows());
  x.x = at::constant_pad_nd(x.x, {1, 2}).narrow(-1, 1, c.channels);
  const Named found = run(x, Packing::rows());
  EXPECT_TRUE(at::equal(found[0].second, aligned[0].second));
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_LE(relative_error(found[i].second, aligned[i].second), 1e-6) << found[i].first;
}

TEST_F(CudaShortConv, ASequenceAloneHasTheBitsItHasInABatch) {
  const ConvCase c{.name = "", .lengths = kRagged};
  const Packing packing = packing_of(c);
  const ConvTensors x = make_conv(c).to(at::kCUDA, at::kBFloat16);
  const Named all = run(x, packing);
  for (size_t n = 0; n < c.lengths.size(); ++n) {
    const auto part = [&](const Tensor& t) {
      return t.narrow(1, packing.offsets()[n], c.lengths[n]).clone();
    };
    ConvTensors own{part(x.x), x.weight, x.bias, x.history.narrow(0, int64_t(n), 1).clone(), part(x.up)};
    const Named alone = run(own, Packing::rows());
    EXPECT_TRUE(at::equal(alone[0].second, part(all[0].second))) << "y " << n;
    EXPECT_TRUE(at::equal(alone[1].second, part(all[1].second))) << "d_x " << n;
  }
}

TEST_F(CudaShortConv, BeyondTheTensorsNothingIsReadOrSummed) {
  const ConvCase c{.name = "", .channels = 40, .rows = 1, .row_tokens = 21};
  const ConvTensors plain = make_conv(c).to(at::kCUDA, at::kBFloat16);
  ConvTensors x = plain;
  for (Tensor* t : {&x.x, &x.up}) {
    const Tensor wall = at::full_like(*t, std::numeric_limits<double>::quiet_NaN());
    *t = at::cat({wall, *t, wall}, 1).narrow(1, 21, 21);
  }
  expect_same_bits(run(x, Packing::rows()), run(plain, Packing::rows()), "between NaNs");
}

TEST_F(CudaShortConv, OnlyTheGradientsThatAreWanted) {
  const ConvCase c{.name = "", .lengths = kRagged};
  const Packing packing = packing_of(c);
  const ConvTensors x = make_conv(c).to(at::kCUDA, at::kFloat);
  const Named all = run(x, packing);
  for (size_t i = 1; i < all.size(); ++i) {
    const Tensor leaf = i == 1 ? x.x : i == 2 ? x.weight : x.bias;
    leaf.requires_grad_(true);
    const Tensor y = convolve(x, packing);
    EXPECT_TRUE(at::equal(torch::autograd::grad({y}, {leaf}, {x.up})[0], all[i].second)) << all[i].first;
    leaf.requires_grad_(false);
  }
}

TEST_F(CudaShortConv, EmptyCalls) {
  for (const ConvCase& c : {ConvCase{.name = "no row", .rows = 0},
                            {.name = "no token", .row_tokens = 0},
                            {.name = "empty sequences", .lengths = {0, 0}}}) {
    const ConvTensors x = make_conv(c).to(at::kCUDA, at::kBFloat16);
    const PoisonedMemory poisoned;
    const Named found = run(x, packing_of(c));
    EXPECT_EQ(found[0].second.sizes(), x.x.sizes()) << c.name;
    EXPECT_TRUE(at::equal(found[2].second, at::zeros_like(x.weight))) << c.name;
    EXPECT_TRUE(at::equal(found[3].second, at::zeros_like(x.bias))) << c.name;
    EXPECT_TRUE(at::equal(history_of(x, packing_of(c)), x.history)) << c.name;
  }
  const ConvTensors x = make_conv({.name = "", .rows = 0}).to(at::kCUDA, at::kBFloat16);
  EXPECT_EQ(short_conv_step(x.x.select(1, 0), x.weight, x.bias, x.history).size(0), 0);
}

TEST_F(CudaShortConv, AGraphGivesTheSameBits) {
  for (const auto& lengths : {std::vector<int64_t>{}, kRagged}) {
    const ConvCase c{.name = "", .rows = 2, .row_tokens = 700, .lengths = lengths};
    const Packing packing = packing_of(c);
    const ConvTensors x = make_conv(c).to(at::kCUDA, at::kBFloat16);
    const auto all = [&] {
      Tensors tensors{history_of(x, packing)};
      for (const auto& [name, tensor] : run(x, packing)) tensors.push_back(tensor);
      return tensors;
    };
    const Tensors eager = all(), found = replayed(all);
    for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(at::equal(found[i], eager[i])) << i;
  }
  const ConvTensors x = make_conv({.name = ""}).to(at::kCUDA, at::kBFloat16);
  const Tensor token = x.x.select(1, 3), eager = x.history.clone(), moving = x.history.clone();
  const Tensor y = short_conv_step(token, x.weight, x.bias, eager);
  const Tensors found = replayed([&] { return Tensors{short_conv_step(token, x.weight, x.bias, moving)}; },
                                 [&] { moving.copy_(x.history); });
  EXPECT_TRUE(at::equal(found[0], y));
  EXPECT_TRUE(at::equal(moving, eager));
}

TEST_F(CudaShortConv, MoreThan2To31Elements) {
  const int64_t T = 600000, C = 4096;  // 2.5e9
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  at::manual_seed(3);
  const Tensor x = at::randn({1, T, C}, options), weight = at::randn({C, 4}, options.dtype(at::kFloat));
  const Packing packing = Packing::packed({T - 5, 5});
  const Tensor last = x.narrow(1, T - 5, 5).clone();
  const Tensor y = short_conv(x, weight, {}, packing);
  EXPECT_TRUE(at::equal(y.narrow(1, T - 5, 5), short_conv(last, weight, {}, Packing::rows())));
}

TEST_F(CudaShortConv, PackingsShareTheirOffsetsOnADevice) {
  const Packing packing = Packing::packed(kRagged), copy = packing;
  const c10::Device device(c10::kCUDA, 0);
  const Tensor offsets = packing.cu_seqlens_on(device);
  EXPECT_EQ(offsets.device(), device);
  EXPECT_TRUE(at::equal(offsets.cpu(), packing.cu_seqlens()));
  EXPECT_TRUE(copy.cu_seqlens_on(device).is_same(offsets));
  EXPECT_TRUE(packing.cu_seqlens_on(c10::kCPU).is_same(packing.cu_seqlens()));
}

TEST_F(CudaShortConv, OffsetsLieWhereTheServingImplementationReadsThem) {
  const Packing packing = Packing::packed({5, 0, 130, 9});
  const ChunkTensors x =
      on_gpu(make_tensors({.name = "", .L = 2, .K = 64, .V = 64, .lengths = {5, 0, 130, 9}}));
  EXPECT_TRUE(prism_chunk_offsets(x.to(at::kBFloat16).args(), packing)->is_cuda());
  EXPECT_TRUE(prism_chunk_offsets(x.to(at::kFloat).args(), packing)->is_cpu());
  PrismChunkArgs args = x.to(at::kBFloat16).args();
  const Tensor o = prism_chunk(args).o;
  args.cu_seqlens = prism_chunk_offsets(args, packing);
  EXPECT_TRUE(at::equal(prism_chunk(args).o, o));
  EXPECT_FALSE(prism_chunk_offsets(args, Packing::rows()).has_value());
}

TEST_F(CudaShortConv, NamesWhatDoesNotFit) {
  const ConvTensors x = make_conv({.name = ""}).to(at::kCUDA, at::kFloat);
  EXPECT_THROW(short_conv(x.x, x.weight, x.bias, Packing::packed({3, 4})), Error);
  EXPECT_THROW(short_conv_step(x.x.select(1, 0), x.weight, x.bias, x.history.narrow(2, 0, 2)), Error);
}

}  // namespace
}  // namespace prism::test
