// prism_chunk on a GPU against the fp64 token loop: the sizes that the kernels take, and some that the
// composed operation serves.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <random>

#include "cuda/device.h"

namespace prism::test {
namespace {

using at::Tensor;

/// Every L with every width, and every regime of gates, keys and erases.
std::vector<ChunkCase> kernel_cases() {
  std::vector<ChunkCase> cases;
  for (const int64_t width : {32, 64, 128})
    for (const int64_t L : {1, 2, 3, 4})
      cases.push_back(
          {.name = fmt::format("width {}, rank {}", width, L), .T = 133, .L = L, .K = width, .V = width});
  for (const int64_t L : {1, 2})
    cases.push_back(
        {.name = fmt::format("width 256, rank {}", L), .B = 1, .T = 70, .L = L, .K = 256, .V = 256});
  for (const int64_t T : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200})
    cases.push_back({.name = fmt::format("{} tokens", T), .T = T, .L = 2, .K = 64, .V = 64});
  const std::pair<const char*, Gates> gates[] = {{"no gate", Gates::kZero},
                                                 {"gates of -1e-4", Gates::kTiny},
                                                 {"gates of -1", Gates::kOne},
                                                 {"gates of -20", Gates::kStrong},
                                                 {"gates from 0 to -20", Gates::kMixed}};
  for (const auto& [name, kind] : gates)
    for (const int64_t width : {32, 64, 128})
      cases.push_back({.name = fmt::format("{}, width {}", name, width),
                       .T = 150,
                       .L = 2,
                       .K = width,
                       .V = width,
                       .gates = kind});
  const std::pair<const char*, Erase> erases[] = {
      {"b 0", Erase::kZero}, {"b 1", Erase::kOne}, {"b 2", Erase::kTwo}, {"b mixed", Erase::kMixed}};
  for (const auto& [name, kind] : erases)
    for (const Keys keys : {Keys::kSpread, Keys::kIdentical})
      cases.push_back(
          {.name = fmt::format("{}, {} keys", name, keys == Keys::kSpread ? "spread" : "identical"),
           .T = 150,
           .L = 2,
           .K = 64,
           .V = 64,
           .gates = keys == Keys::kSpread ? Gates::kMild : Gates::kZero,
           .keys = keys,
           .erase = kind});
  cases.push_back({.name = "grouped", .T = 100, .L = 2, .H = 6, .Hk = 2, .K = 64, .V = 64});
  cases.push_back({.name = "one key head", .T = 100, .H = 4, .Hk = 1, .K = 128, .V = 128});
  cases.push_back({.name = "no state", .T = 100, .L = 2, .K = 64, .V = 64, .initial_state = false});
  cases.push_back({.name = "packed with empty",
                   .L = 2,
                   .K = 64,
                   .V = 64,
                   .gates = Gates::kMixed,
                   .lengths = {0, 1, 64, 0, 130, 3, 0}});
  cases.push_back({.name = "packed, no state",
                   .L = 1,
                   .K = 128,
                   .V = 128,
                   .lengths = {5, 17, 1, 1, 140},
                   .initial_state = false});
  cases.push_back(
      {.name = "packed, grouped", .L = 3, .H = 4, .Hk = 2, .K = 32, .V = 32, .lengths = {33, 0, 7, 200}});
  cases.push_back({.name = "composed: erase read", .T = 70, .L = 2, .K = 64, .V = 64, .erase_read = true});
  cases.push_back({.name = "composed: odd widths", .T = 70, .L = 2, .K = 17, .V = 33});
  return cases;
}

/// Shapes nobody chose, the same ones on every run.
std::vector<ChunkCase> drawn_cases() {
  std::mt19937_64 random(20);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  std::vector<ChunkCase> cases;
  for (int i = 0; i < 24; ++i) {
    ChunkCase c;
    c.B = draw(1, 3), c.T = draw(1, 320), c.L = draw(1, 4), c.Hk = draw(1, 3);
    c.H = c.Hk * draw(1, 3);
    c.K = c.V = int64_t{32} << draw(0, 2);
    c.gates = Gates(draw(0, 5)), c.erase = Erase(draw(0, 4)), c.initial_state = draw(0, 1) == 1;
    if (draw(0, 2) == 0)
      for (int64_t n = draw(1, 6); n > 0; --n) c.lengths.push_back(draw(0, 1) ? draw(0, 3) : draw(0, 200));
    c.name = fmt::format("drawn {}: B {} T {} L {} H {}/{} K {} gates {} erase {} packed {}", i, c.B, c.T,
                         c.L, c.Hk, c.H, c.K, int(c.gates), int(c.erase), c.lengths.size());
    cases.push_back(c);
  }
  return cases;
}

/// Errors of all outputs and gradients within prism.md's table, with memory poisoned.
void expect_token_loop(const ChunkCase& c, const std::vector<at::ScalarType>& types) {
  SCOPED_TRACE(c.name);
  const ChunkTensors exact = make_tensors(c);
  const Named expected = outputs_and_gradients(exact, token_loop);
  for (const at::ScalarType type : types) {
    const ChunkTensors x = on_gpu(exact.to(type));
    Named found;
    {
      const PoisonedMemory poisoned;
      found = outputs_and_gradients(x, with(Implementation::kAuto));
    }
    for (auto& [name, tensor] : found) tensor = tensor.cpu();
    expect_close(found, expected, type == at::kHalf ? at::kBFloat16 : type, c10::toString(type));
  }
}

class CudaChunk : public Cuda {};

TEST_F(CudaChunk, OutputsAndGradientsAreTheTokenLoops) {
  for (const ChunkCase& c : kernel_cases()) expect_token_loop(c, {at::kBFloat16, at::kHalf});
}

TEST_F(CudaChunk, WideTypesToo) {
  for (const ChunkCase& c : kernel_cases())
    if (c.K == 64) expect_token_loop(c, {at::kFloat, at::kDouble});
}

TEST_F(CudaChunk, DrawnShapes) {
  for (const ChunkCase& c : drawn_cases()) expect_token_loop(c, {at::kBFloat16});
}

TEST_F(CudaChunk, StridedInputsGiveTheSameBits) {
  const ChunkTensors plain = on_gpu(
      make_tensors({.name = "", .T = 90, .L = 2, .H = 4, .Hk = 2, .K = 64, .V = 64}).to(at::kBFloat16));
  ChunkTensors x = plain;
  x.q = at::cat({plain.q, plain.q}, -1).narrow(-1, 0, 64);           // a slice of a projection
  x.k = plain.k.transpose(2, 3).contiguous().transpose(2, 3);        // heads before steps
  x.w = at::constant_pad_nd(plain.w, {1, 2}).narrow(-1, 1, 64);      // rows on odd elements
  x.b = plain.b.transpose(0, 1).contiguous().transpose(0, 1);        // tokens before rows
  x.g = at::stack({plain.g, plain.g - 1}, -1).select(-1, 0);         // every other number
  x.up_o = plain.up_o.transpose(1, 2).contiguous().transpose(1, 2);  // heads before tokens
  expect_same_bits(outputs_and_gradients(x, with(Implementation::kAuto)),
                   outputs_and_gradients(plain, with(Implementation::kAuto)), "strided");
}

TEST_F(CudaChunk, EachOutputAloneHasItsGradient) {
  const ChunkTensors exact = make_tensors({.name = "", .T = 150, .L = 2, .K = 64, .V = 64});
  for (const bool of_o : {true, false}) {
    ChunkTensors wanted = exact;
    (of_o ? wanted.up_final_state : wanted.up_o) = at::zeros_like(of_o ? exact.up_final_state : exact.up_o);
    const Named expected = outputs_and_gradients(wanted, token_loop);
    Named found = outputs_and_gradients(on_gpu(wanted.to(at::kBFloat16)), with(Implementation::kAuto));
    for (auto& [name, tensor] : found) tensor = tensor.cpu();
    expect_close(found, expected, at::kBFloat16, of_o ? "o alone" : "final state alone");
  }
}

}  // namespace
}  // namespace prism::test
