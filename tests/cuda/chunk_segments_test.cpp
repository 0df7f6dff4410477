// Long rows of few heads, which the kernels cut into segments (from 6,144 tokens on), and calls whose
// backward goes through several windows.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "cuda/device.h"

namespace prism::test {
namespace {

using at::Tensor;

/// The tokens [begin, begin + count) as one row, with the states of row or sequence n.
template <class F, class G>
ChunkTensors part_of(const ChunkTensors& x, F tokens, G state) {
  return {tokens(x.q),
          tokens(x.k),
          tokens(x.w),
          tokens(x.b),
          tokens(x.g),
          {},
          state(x.initial_state),
          {},
          tokens(x.up_o),
          state(x.up_final_state)};
}

template <class F, class G>
void expect_alone_the_same(const ChunkTensors& x, const Named& together, F tokens, G state,
                           const std::string& note) {
  Named expected;
  for (const auto& [name, tensor] : together)
    expected.emplace_back(name, name.ends_with("state") ? state(tensor) : tokens(tensor));
  expect_same_bits(outputs_and_gradients(part_of(x, tokens, state), with(Implementation::kAuto)), expected,
                   note);
}

class CudaSegments : public Cuda {};

TEST_F(CudaSegments, WithinTheTolerances) {
  struct Case {
    int64_t B, T, Hk, H, width, L;
  };
  for (const auto& [B, T, Hk, H, width, L] : {Case{1, 6144, 1, 1, 128, 1}, Case{2, 9001, 2, 4, 128, 2},
                                              Case{1, 6200, 3, 3, 64, 3}, Case{1, 20000, 1, 2, 32, 4}}) {
    const ChunkTensors x = as_case(
        gpu::draw({.name = "", .B = B, .T = T, .Hk = Hk, .H = H, .width = width, .bars = {}}, L, true));
    expect_close(outputs_and_gradients(x, with(Implementation::kAuto)),
                 outputs_and_gradients(x.to(at::kDouble), with(Implementation::kComposed)), at::kBFloat16,
                 fmt::format("{}x{} {}/{} width {} L {}", B, T, Hk, H, width, L));
  }
}

TEST_F(CudaSegments, RowsDoNotSeeTheBatch) {
  struct Case {
    int64_t B, T, H, width;
  };
  // The second is cut and takes two windows as a batch, one as a row.
  for (const auto& [B, T, H, width] : {Case{3, 6200, 4, 64}, Case{3, 30001, 8, 128}}) {
    const ChunkTensors x = as_case(
        gpu::draw({.name = "", .B = B, .T = T, .Hk = H, .H = H, .width = width, .bars = {}}, 2, true));
    const Named batch = outputs_and_gradients(x, with(Implementation::kAuto));
    for (int64_t row = 0; row < B; ++row) {
      const auto part = [&](const Tensor& t) { return t.narrow(0, row, 1).contiguous(); };
      expect_alone_the_same(x, batch, part, part, fmt::format("row {} of {}", row, T));
    }
  }
}

TEST_F(CudaSegments, PackedSequencesAreTheSeparateCalls) {
  const std::vector<int64_t> lengths = {70, 6200, 0, 1, 6143, 15000, 64};
  int64_t tokens = 0;
  for (const int64_t length : lengths) tokens += length;
  const ChunkTensors x = as_case(gpu::draw(
      {.name = "", .B = 1, .T = tokens, .Hk = 2, .H = 4, .width = 64, .bars = {}, .lengths = lengths}, 2,
      true));
  const Named packed = outputs_and_gradients(x, with(Implementation::kAuto));
  int64_t begin = 0;
  for (size_t n = 0; n < lengths.size(); begin += lengths[n], ++n) {
    if (lengths[n] == 0) continue;
    const auto part = [&](const Tensor& t) { return t.narrow(1, begin, lengths[n]).contiguous(); };
    const auto state = [&](const Tensor& t) { return t.narrow(0, static_cast<int64_t>(n), 1).contiguous(); };
    expect_alone_the_same(x, packed, part, state, fmt::format("sequence {}", n));
  }
}

TEST_F(CudaSegments, NoInitialStateIsZeros) {
  ChunkTensors x =
      as_case(gpu::draw({.name = "", .B = 1, .T = 8192, .Hk = 2, .H = 2, .width = 128, .bars = {}}, 1, true));
  x.initial_state = at::zeros_like(x.initial_state);
  const Named with_zeros = outputs_and_gradients(x, with(Implementation::kAuto));
  x.initial_state.reset();
  const Named without = outputs_and_gradients(x, with(Implementation::kAuto));
  ASSERT_LT(without.size(), with_zeros.size());
  for (size_t i = 0; i < without.size(); ++i) {
    ASSERT_EQ(without[i].first, with_zeros[i].first);
    EXPECT_TRUE(at::equal(without[i].second, with_zeros[i].second)) << without[i].first;
  }
}

}  // namespace
}  // namespace prism::test
