// Norms, SwiGLU and the softmax loss on a GPU against the composed operations in double.
#include "prism/ops/norm.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "cuda/device.h"
#include "prism/ops/dropout.h"
#include "prism/ops/softmax_loss.h"
#include "prism/ops/swiglu.h"

namespace prism::test {
namespace {

using at::Tensor;

double limit_of(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 2e-6 : type == at::kHalf ? 1e-3 : 6e-3;
}

Tensor drawn(at::IntArrayRef sizes, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(sizes, at::kDouble).to(at::kBFloat16).to(at::kDouble);
}

using Op = std::function<Tensor(const Tensors&)>;

/// The result of an operation and its gradients under a fixed upstream, which has the result's type.
Tensors results(const Op& op, Tensors inputs, const Tensor& upstream) {
  for (Tensor& x : inputs) x = x.detach().requires_grad_();
  const Tensor y = op(inputs);
  Tensors all = torch::autograd::grad({y}, inputs, {upstream.to(y.options())});
  all.insert(all.begin(), y.detach());
  return all;
}

/// Compares a GPU's numbers with the CPU's in double, and with its own when run again.
void expect_exact(const std::string& name, const Op& op, const Tensors& exact, const Tensor& upstream,
                  at::ScalarType type, const std::vector<bool>& wide) {
  const Tensors expected = results(op, exact, upstream);
  Tensors inputs;
  for (size_t i = 0; i < exact.size(); ++i)
    inputs.push_back(exact[i].to(at::kCUDA, wide[i] && type != at::kDouble ? at::kFloat : type));
  Tensors found, again;
  {
    const PoisonedMemory poisoned;
    found = results(op, inputs, upstream);
    again = results(op, inputs, upstream);
  }
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE(relative_error(found[i].cpu(), expected[i]), limit_of(type))
        << name << " " << c10::toString(type) << " tensor " << i;
    EXPECT_TRUE(at::equal(found[i], again[i])) << name << " " << c10::toString(type) << " tensor " << i;
  }
}

constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

struct Rows {
  int64_t tokens, heads, width;
};
const std::vector<Rows>& row_cases() {
  static const std::vector<Rows> cases = {{1, 1, 2},     {7, 3, 33},   {300, 2, 64},  {2500, 6, 128},
                                          {70, 1, 768},  {5, 1, 1000}, {9, 1, 2048},  {4, 1, 5000},
                                          {3, 1, 20000}, {17, 5, 24},  {4000, 1, 768}};
  return cases;
}

class CudaNorm : public Cuda {};

TEST_F(CudaNorm, NumbersAreTheComposedOnesInDouble) {
  for (const Rows& r : row_cases())
    for (const at::ScalarType type : kTypes) {
      const Tensor x = drawn({r.tokens, r.heads, r.width}, 1), weight = drawn({r.width}, 2) + 1,
                   gate = drawn({r.tokens, r.heads, r.width}, 3), up = drawn({r.tokens, r.heads, r.width}, 4);
      const std::string at = fmt::format("{}x{}x{}", r.tokens, r.heads, r.width);
      expect_exact("l2 " + at, [](const Tensors& in) { return l2_norm(in[0]); }, {x}, up, type, {false});
      expect_exact("rms " + at, [](const Tensors& in) { return rms_norm(in[0], in[1]); }, {x, weight}, up,
                   type, {false, true});
      expect_exact("gated " + at, [](const Tensors& in) { return gated_rms_norm(in[0], in[1], in[2]); },
                   {x, gate, weight}, up, type, {false, false, true});
    }
}

TEST_F(CudaNorm, StridedRowsAndNeighboursDoNotChangeBits) {
  const Tensor wide = drawn({60, 2, 200}, 5).to(at::kCUDA, at::kBFloat16), slice = wide.narrow(2, 8, 128),
               weight = at::ones({128}, wide.options().dtype(at::kFloat));
  const Tensor all = rms_norm(slice, weight);
  EXPECT_TRUE(at::equal(all, rms_norm(slice.contiguous(), weight)));
  EXPECT_TRUE(at::equal(all.narrow(0, 7, 1), rms_norm(slice.narrow(0, 7, 1), weight)));
  EXPECT_TRUE(at::equal(l2_norm(slice), l2_norm(slice.contiguous())));
  const Tensor odd = wide.narrow(2, 3, 128);  // rows that 16 bytes do not reach
  EXPECT_LE(relative_error(rms_norm(odd, weight).cpu(), rms_norm(odd.contiguous(), weight).cpu()), 1e-3);
}

/// The gradient of a row of one number is what eps leaves: a difference of numbers that nearly agree.
TEST_F(CudaNorm, OneChannelIsItsSign) {
  const Tensor x = at::tensor({2.0, -3.0}, at::kFloat).view({2, 1}).to(at::kCUDA).requires_grad_(),
               weight = at::ones({1}, at::device(at::kCUDA));
  const Tensor y = rms_norm(x, weight);
  EXPECT_TRUE(at::allclose(y.cpu(), at::tensor({1.0F, -1.0F}).view({2, 1}), 1e-5));
  y.sum().backward();
  EXPECT_LE(x.grad().abs().max().item<double>(), 1e-6);
}

TEST_F(CudaNorm, NoRowsAreNothing) {
  const Tensor x = at::empty({0, 4, 64}, at::device(at::kCUDA)).requires_grad_(),
               weight = at::ones({64}, at::device(at::kCUDA)).requires_grad_();
  rms_norm(x, weight).sum().backward();
  EXPECT_EQ(weight.grad().abs().sum().item<double>(), 0);
  EXPECT_EQ(l2_norm(x.detach()).numel(), 0);
}

TEST_F(CudaNorm, AutocastNarrowsAnFp32Row) {
  const Tensor x = drawn({50, 768}, 6).to(at::kCUDA, at::kFloat), weight = at::ones({768}, x.options());
  const Tensor exact = rms_norm(x, weight);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  const Tensor narrow = rms_norm(x, weight);
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(narrow, exact.to(at::kBFloat16)));
}

TEST_F(CudaNorm, SwigluIsTheComposedOne) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {33, 7}, {64, 320}, {500, 2048}})
    for (const at::ScalarType type : kTypes)
      expect_exact(fmt::format("swiglu {}x{}", rows, width), [](const Tensors& in) { return swiglu(in[0]); },
                   {drawn({rows, 2 * width}, 7)}, drawn({rows, width}, 8), type, {false});
}

TEST_F(CudaNorm, DropoutHasTheMaskOfTheCpu) {
  const Dropout drop{.rate = 0.3, .seed = 11, .row = (int64_t{1} << 32) / 96 - 5};  // passes 2^32 inside
  const Tensor x = drawn({40, 96}, 12), residual = drawn({40, 96}, 13);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor there = dropout_add(residual.to(at::kCUDA, at::kFloat), x.to(at::kCUDA, type), drop).cpu();
    EXPECT_TRUE(
        at::allclose(there, dropout_add(residual.to(at::kFloat), x.to(at::kFloat), drop), 1e-6, 1e-6));
    Dropout staged = drop;
    staged.seed = 0;  // the kernel reads the other one
    staged.staged = at::full({1}, static_cast<int64_t>(drop.seed), at::kLong).to(at::kCUDA);
    EXPECT_TRUE(at::equal(
        there, dropout_add(residual.to(at::kCUDA, at::kFloat), x.to(at::kCUDA, type), staged).cpu()));
    const Tensor alone = dropout(x.to(at::kCUDA, type), drop).cpu();
    EXPECT_TRUE(at::equal(alone.eq(0), dropout(x.to(at::kFloat), drop).eq(0)));
  }
}

class CudaSoftmaxLoss : public Cuda {};

TEST_F(CudaSoftmaxLoss, NumbersAreTheComposedOnesInDouble) {
  for (const auto& [positions, items] :
       {std::pair<int64_t, int64_t>{1, 1}, {17, 5}, {200, 1001}, {3000, 50257}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor h = drawn({positions, 64}, 9), table = drawn({items, 64}, 10) * 0.25,
                   targets = at::randint(items, {positions}, at::kLong);
      const auto op = [&](const Tensors& in) {
        return full_softmax_loss(in[0], in[1], targets.to(in[0].device()));
      };
      expect_exact(fmt::format("softmax {}x{}", positions, items), op,
                   {h, table.to(at::kBFloat16).to(at::kDouble)}, at::ones({}, at::kDouble), type,
                   {false, true});
    }
}

}  // namespace
}  // namespace prism::test
