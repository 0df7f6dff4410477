// prism_step on a GPU.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "cuda/device.h"

namespace prism::test {
namespace {

using at::Tensor;

struct StepCase {
  std::string name;
  int64_t B = 3, L = 2, H = 2, Hk = 2, K = 64, V = 64;
  bool erase_read = false;
};

const std::vector<StepCase>& step_cases() {
  static const std::vector<StepCase> cases = {
      {.name = "32", .K = 32, .V = 32},
      {.name = "64, rank 1", .L = 1},
      {.name = "128, rank 1", .L = 1, .K = 128, .V = 128},
      {.name = "128", .K = 128, .V = 128},
      {.name = "128, rank 3", .L = 3, .K = 128, .V = 128},
      {.name = "256", .K = 256, .V = 256},
      {.name = "256, rank 4", .L = 4, .K = 256, .V = 256},
      {.name = "8", .K = 8, .V = 8},
      {.name = "multiples of 8", .K = 96, .V = 40},
      {.name = "wide keys", .L = 1, .K = 248, .V = 16},
      {.name = "wide values", .K = 16, .V = 200},
      {.name = "rank 8", .L = 8, .K = 32, .V = 72},
      {.name = "grouped", .H = 6, .Hk = 2},
      {.name = "erase read", .H = 4, .Hk = 2, .K = 128, .V = 64, .erase_read = true},
      {.name = "composed: odd widths", .K = 17, .V = 33},
      {.name = "composed: rank 9", .L = 9, .K = 32, .V = 32},
      {.name = "composed: wide", .K = 264, .V = 32},
  };
  return cases;
}

/// One token of each row, with a state; in double on the CPU.
struct Token {
  explicit Token(const StepCase& c, Gates gates = Gates::kMixed)
      : tensors(make_tensors({.name = c.name,
                              .B = c.B,
                              .T = 1,
                              .L = c.L,
                              .H = c.H,
                              .Hk = c.Hk,
                              .K = c.K,
                              .V = c.V,
                              .gates = gates,
                              .erase_read = c.erase_read})) {}

  ChunkTensors tensors;
};

/// Steps `state` in place.
Tensor step(const ChunkTensors& x, const Tensor& state, int64_t token = 0) {
  return prism_step(x.q.select(1, token), x.k.select(1, token), x.w.select(1, token), x.b.select(1, token),
                    x.g.select(1, token), state,
                    x.erase_read.defined() ? std::optional(x.erase_read.select(1, token)) : std::nullopt);
}

class CudaStep : public Cuda {
  const c10::NoGradGuard no_grad_;
};

TEST_F(CudaStep, NumbersAreTheTokenLoops) {
  for (const StepCase& c : step_cases()) {
    const Token token(c);
    const PrismChunkResult expected = token_loop(token.tensors.args());
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const at::ScalarType stored : {at::kFloat, at::kBFloat16}) {
        if (type == at::kDouble && stored == at::kBFloat16) continue;
        const ChunkTensors x = on_gpu(token.tensors.to(type));
        const Tensor state = x.initial_state.to(type == at::kDouble ? at::kDouble : stored);
        const PoisonedMemory poisoned;
        const Tensor o = step(x, state);
        const std::string note =
            fmt::format("{} {} state {}", c.name, c10::toString(type), c10::toString(state.scalar_type()));
        const at::ScalarType limit = type == at::kHalf ? at::kBFloat16 : type;
        EXPECT_LE(relative_error(o.unsqueeze(1).cpu(), expected.o), tolerance("o", limit)) << note;
        // A bf16 state is the exact one, rounded once.
        EXPECT_LE(relative_error(state.cpu(), expected.final_state),
                  tolerance("final_state", stored == at::kBFloat16 ? at::kBFloat16 : limit))
            << note;
      }
    }
  }
}

TEST_F(CudaStep, StridedInputsAndStatesGiveTheSameBits) {
  for (const at::ScalarType stored : {at::kFloat, at::kBFloat16}) {
    const ChunkTensors x = on_gpu(Token({.name = "", .H = 4, .Hk = 2}).tensors.to(at::kBFloat16));
    const Tensor plain = x.initial_state.to(stored, false, /*copy=*/true);
    // Rows that start on odd elements, heads before steps, every other state of a larger buffer.
    const auto odd = [](const Tensor& t) { return at::constant_pad_nd(t, {3, 2}).narrow(-1, 3, t.size(-1)); };
    ChunkTensors strided = x;
    strided.q = odd(x.q);
    strided.k = x.k.transpose(2, 3).contiguous().transpose(2, 3);
    strided.w = odd(x.w);
    strided.b = at::stack({x.b, x.b + 1}, -1).select(-1, 0);
    const Tensor buffer = at::stack({plain, plain + 1}, 1), state = buffer.select(1, 0);
    const Tensor o = step(strided, state), expected = step(x, plain);
    EXPECT_TRUE(at::equal(o, expected));
    EXPECT_TRUE(at::equal(state, plain));
    EXPECT_FALSE(at::equal(buffer.select(1, 1), plain));
    // A state that does not start on 16 bytes.
    const Tensor shifted = at::cat({at::zeros({1}, plain.options()), x.initial_state.to(stored).flatten()})
                               .narrow(0, 1, plain.numel())
                               .view(plain.sizes());
    EXPECT_TRUE(at::equal(step(x, shifted), expected));
    EXPECT_TRUE(at::equal(shifted, plain));
  }
}

TEST_F(CudaStep, RepeatsAndNeighboursDoNotChangeBits) {
  for (const at::ScalarType stored : {at::kFloat, at::kBFloat16}) {
    const ChunkTensors x = on_gpu(Token({.name = "", .B = 33, .K = 128, .V = 128}).tensors.to(at::kBFloat16));
    const Tensor state = x.initial_state.to(stored, false, /*copy=*/true), again = state.clone();
    const Tensor o = step(x, state);
    EXPECT_TRUE(at::equal(step(x, again), o));
    EXPECT_TRUE(at::equal(again, state));
    const auto row = [](const Tensor& t) { return t.narrow(0, 17, 1); };
    const Tensor alone = row(x.initial_state).to(stored, false, true);
    const Tensor o_alone = prism_step(row(x.q).select(1, 0), row(x.k).select(1, 0), row(x.w).select(1, 0),
                                      row(x.b).select(1, 0), row(x.g).select(1, 0), alone);
    EXPECT_TRUE(at::equal(o_alone, row(o)));
    EXPECT_TRUE(at::equal(alone, row(state)));
  }
}

TEST_F(CudaStep, MoreThan65535States) {
  const ChunkTensors x =
      on_gpu(Token({.name = "", .B = 40000, .L = 1, .H = 2, .K = 8, .V = 8}).tensors.to(at::kFloat));
  const Tensor state = x.initial_state.clone();
  const Tensor o = step(x, state);
  const auto tail = [](const Tensor& t) { return t.narrow(0, t.size(0) - 5, 5).clone(); };
  ChunkTensors last = x;
  for (Tensor* t : {&last.q, &last.k, &last.w, &last.b, &last.g, &last.initial_state}) *t = tail(*t);
  const Tensor expected_state = last.initial_state.clone();
  EXPECT_TRUE(at::equal(step(last, expected_state), tail(o)));
  EXPECT_TRUE(at::equal(expected_state, tail(state)));
}

TEST_F(CudaStep, StatesBeyond2To31Elements) {
  const int64_t B = 1200, H = 16;  // 1200 x 16 x 128 x 128 = 3.1e9 elements
  const auto options = at::TensorOptions(at::kCUDA);
  at::manual_seed(5);
  const Tensor state = at::randn({B, H, 128, 128}, options.dtype(at::kBFloat16));
  const auto unit = [](const Tensor& x) { return (x / x.norm(2, -1, true)).to(at::kBFloat16); };
  const Tensor q = unit(at::randn({B, H, 128}, options)), k = unit(at::randn({B, 1, H, 128}, options)),
               w = at::randn({B, 1, H, 128}, options).to(at::kBFloat16), b = at::rand({B, H}, options),
               g = at::rand({B, H}, options) * -1;
  const auto last = [&](const Tensor& x) { return x.narrow(0, B - 2, 2).clone(); };
  const Tensor alone = last(state);
  const Tensor o = prism_step(q, k, w, b, g, state);
  const Tensor o_alone = prism_step(last(q), last(k), last(w), last(b), last(g), alone);
  EXPECT_TRUE(at::equal(o_alone, last(o)));
  EXPECT_TRUE(at::equal(alone, last(state)));
}

TEST_F(CudaStep, EmptyCalls) {
  const ChunkTensors x = on_gpu(Token({.name = "", .B = 0}).tensors.to(at::kBFloat16));
  EXPECT_EQ(step(x, x.initial_state).sizes(), (std::vector<int64_t>{0, 2, 64}));
}

TEST_F(CudaStep, AGraphGivesTheSameBits) {
  const ChunkTensors x = on_gpu(Token({.name = "", .K = 128, .V = 128}).tensors.to(at::kBFloat16));
  const Tensor eager = x.initial_state.clone(), state = x.initial_state.clone();
  const Tensor o = step(x, eager);
  const Tensors found =
      replayed([&] { return Tensors{step(x, state)}; }, [&] { state.copy_(x.initial_state); });
  EXPECT_TRUE(at::equal(found[0], o));
  EXPECT_TRUE(at::equal(state, eager));
}

TEST_F(CudaStep, StepsAreTheChunkForm) {
  const ChunkTensors exact = make_tensors({.name = "", .T = 70, .L = 2, .K = 64, .V = 64});
  const PrismChunkResult expected = token_loop(exact.args());
  const ChunkTensors x = on_gpu(exact.to(at::kBFloat16));
  const Tensor state = x.initial_state.clone();
  Tensors o;
  for (int64_t t = 0; t < 70; ++t) o.push_back(step(x, state, t));
  EXPECT_LE(relative_error(at::stack(o, 1).cpu(), expected.o), tolerance("o", at::kBFloat16));
  EXPECT_LE(relative_error(state.cpu(), expected.final_state), 1e-5);
}

/// Relative errors of a bf16 state after 4,096 steps against an fp32 one, and of the outputs on the way.
void drift(Gates gates, double limit) {
  const int64_t T = 4096;
  const ChunkTensors x = on_gpu(
      make_tensors({.name = "", .B = 1, .T = T, .L = 2, .H = 4, .Hk = 4, .K = 128, .V = 128, .gates = gates})
          .to(at::kBFloat16));
  const Tensor exact = x.initial_state.clone(), narrow = x.initial_state.to(at::kBFloat16);
  double worst = 0, sum = 0;
  for (int64_t t = 0; t < T; ++t) {
    const Tensor expected = step(x, exact, t), found = step(x, narrow, t);
    if (t % 256 != 255) continue;
    const double error = relative_error(found.cpu(), expected.cpu());
    worst = std::max(worst, error);
    sum += error;
  }
  const double state_error = relative_error(narrow.cpu(), exact.cpu());
  fmt::print("drift of a bf16 state over {} steps, gates {}: state {:.4f}, outputs {:.4f} (worst {:.4f})\n",
             T,
             gates == Gates::kMild   ? "in (-0.2, 0]"
             : gates == Gates::kTiny ? "-1e-4"
                                     : "0",
             state_error, sum / (T / 256), worst);
  EXPECT_LE(state_error, limit);
  EXPECT_LE(worst, 2 * limit);
}

// The limits are those that docs/op.md states.
TEST_F(CudaStep, DriftOfABf16State) {
  drift(Gates::kMild, 0.01);
  drift(Gates::kTiny, 0.05);
  drift(Gates::kZero, 0.05);
}

}  // namespace
}  // namespace prism::test
