// What users of such kernels report (design page kernels.md), one test each. NaN and Inf, strong decay,
// tails, empty sequences and D = 256 are cases of chunk_test.cpp as well; slow single rows are a row of
// `./run bench gpu`; torch.compile is in tests/python.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "cuda/device.h"

namespace prism::test {
namespace {

using at::Tensor;

const ChunkFunction kRun = with(Implementation::kAuto);

ChunkTensors gpu_tensors(const ChunkCase& c, at::ScalarType type = at::kBFloat16) {
  return on_gpu(make_tensors(c).to(type));
}

/// Tokens, rows or both of every tensor; states by row.
ChunkTensors rows_of(const ChunkTensors& x, int64_t begin, int64_t count) {
  const auto part = [&](const Tensor& t) {
    return t.defined() ? t.narrow(0, begin, count).contiguous().clone() : t;
  };
  return {part(x.q),
          part(x.k),
          part(x.w),
          part(x.b),
          part(x.g),
          part(x.erase_read),
          part(x.initial_state),
          {},
          part(x.up_o),
          part(x.up_final_state)};
}

class CudaReports : public Cuda {};

TEST_F(CudaReports, GatesOfMinusInfinityForget) {
  ChunkTensors exact = make_tensors({.name = "", .T = 150, .L = 2, .K = 64, .V = 64});
  exact.g.narrow(1, 40, 3).fill_(-std::numeric_limits<double>::infinity());
  exact.g.narrow(1, 64, 1).fill_(-std::numeric_limits<double>::infinity());
  const c10::NoGradGuard no_grad;
  const PrismChunkResult expected = token_loop(exact.args());
  const PrismChunkResult found = kRun(on_gpu(exact.to(at::kBFloat16)).args());
  expect_close({{"o", found.o.cpu()}, {"final_state", found.final_state.cpu()}},
               {{"o", expected.o}, {"final_state", expected.final_state}}, at::kBFloat16, "-inf");
}

TEST_F(CudaReports, GateGradientsUnderStrongDecay) {
  const ChunkTensors exact =
      make_tensors({.name = "", .T = 200, .L = 2, .K = 64, .V = 64, .gates = Gates::kMixed});
  const Tensor expected = outputs_and_gradients(exact, token_loop)[6].second;
  const auto found = outputs_and_gradients(on_gpu(exact.to(at::kBFloat16)), kRun)[6];
  ASSERT_EQ(found.first, "d_g");
  // Apart from the tokens with weak gates, whose gradients are large and hide the others.
  const Tensor strong = exact.g <= -1;
  EXPECT_LE(relative_error(found.second.cpu().masked_select(strong), expected.masked_select(strong)),
            tolerance("d_g", at::kBFloat16));
}

TEST_F(CudaReports, TheFutureDoesNotLeak) {
  const ChunkTensors x =
      gpu_tensors({.name = "", .T = 150, .L = 2, .K = 64, .V = 64, .gates = Gates::kMixed});
  for (const int64_t cut : {1, 63, 64, 65, 100}) {
    ChunkTensors other = x;
    for (Tensor* t : {&other.q, &other.k, &other.w, &other.b, &other.g}) {
      *t = t->clone();
      t->narrow(1, cut, 150 - cut).copy_(t->narrow(1, cut, 150 - cut).flip(1));
    }
    {
      const c10::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(kRun(x.args()).o.narrow(1, 0, cut), kRun(other.args()).o.narrow(1, 0, cut)))
          << cut;
    }
    ChunkTensors early = x;
    early.up_o = x.up_o.clone();
    early.up_o.narrow(1, cut, 150 - cut).zero_();
    early.up_final_state = at::zeros_like(x.up_final_state);
    for (const auto& [name, gradient] : outputs_and_gradients(early, kRun)) {
      if (!name.starts_with("d_") || name == "d_initial_state") continue;
      EXPECT_EQ(gradient.narrow(1, cut, 150 - cut).abs().max().item<double>(), 0) << name << " " << cut;
    }
  }
}

TEST_F(CudaReports, BeyondTheTensorsNothingIsRead) {
  // Each tensor lies between NaNs.
  const ChunkTensors plain = gpu_tensors({.name = "", .B = 1, .T = 77, .L = 2, .K = 64, .V = 64});
  ChunkTensors x = plain;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (Tensor* t : {&x.q, &x.k, &x.w, &x.b, &x.g, &x.up_o}) {
    std::vector<int64_t> sizes = t->sizes().vec();
    sizes[1] = 128;
    const Tensor wall = at::full(sizes, nan, t->options());
    *t = at::cat({wall, *t, wall}, 1).narrow(1, 128, 77);
  }
  expect_same_bits(outputs_and_gradients(x, kRun), outputs_and_gradients(plain, kRun), "between NaNs");
}

TEST_F(CudaReports, NaNStaysInItsSequence) {
  const ChunkTensors x = gpu_tensors({.name = "", .L = 2, .K = 64, .V = 64, .lengths = {40, 64, 100}});
  ChunkTensors spoilt = x;
  spoilt.w = x.w.clone();
  spoilt.w.select(1, 50).fill_(std::numeric_limits<double>::quiet_NaN());
  const Named clean = outputs_and_gradients(x, kRun), found = outputs_and_gradients(spoilt, kRun);
  for (size_t i = 0; i < clean.size(); ++i) {
    const bool by_sequence = clean[i].first.ends_with("state");
    const auto part = [&](const Tensor& t, int64_t first, int64_t count, int64_t sequence) {
      return by_sequence ? t.select(0, sequence) : t.narrow(1, first, count);
    };
    EXPECT_TRUE(at::equal(part(clean[i].second, 0, 40, 0), part(found[i].second, 0, 40, 0)))
        << clean[i].first;
    EXPECT_TRUE(at::equal(part(clean[i].second, 104, 100, 2), part(found[i].second, 104, 100, 2)))
        << clean[i].first;
  }
  EXPECT_TRUE(found[0].second.narrow(1, 50, 1).isnan().any().item<bool>());
}

TEST_F(CudaReports, RepeatsAreBitEqual) {
  for (const int64_t L : {1, 2, 3})
    for (const int64_t width : {32, 64, 128}) {
      const ChunkTensors x =
          gpu_tensors({.name = "", .T = 300, .L = L, .H = 4, .Hk = 2, .K = width, .V = width});
      const Named once = outputs_and_gradients(x, kRun);
      for (int repeat = 0; repeat < 3; ++repeat)
        expect_same_bits(outputs_and_gradients(x, kRun), once, fmt::format("L {} width {}", L, width));
    }
}

TEST_F(CudaReports, ARowDoesNotSeeTheBatch) {
  // Long enough that a single row is split over blocks.
  for (const int64_t T : {200, 3000}) {
    const ChunkTensors x = gpu_tensors({.name = "", .B = 5, .T = T, .L = 2, .K = 64, .V = 64});
    const Named batch = outputs_and_gradients(x, kRun);
    for (const int64_t row : {0, 3, 4}) {
      Named part;
      for (const auto& [name, tensor] : batch) part.emplace_back(name, tensor.narrow(0, row, 1));
      expect_same_bits(outputs_and_gradients(rows_of(x, row, 1), kRun), part,
                       fmt::format("row {} of {}", row, T));
    }
  }
}

TEST_F(CudaReports, PackedSequencesAreTheSeparateCalls) {
  const std::vector<int64_t> lengths = {0, 1, 64, 0, 1500, 3, 65};
  const ChunkTensors x = gpu_tensors({.name = "", .L = 2, .K = 64, .V = 64, .lengths = lengths});
  const Named packed = outputs_and_gradients(x, kRun);
  int64_t begin = 0;
  for (size_t n = 0; n < lengths.size(); ++n) {
    const auto tokens = [&](const Tensor& t) { return t.narrow(1, begin, lengths[n]).contiguous(); };
    const auto state = [&](const Tensor& t) { return t.narrow(0, static_cast<int64_t>(n), 1).contiguous(); };
    const ChunkTensors one{tokens(x.q),
                           tokens(x.k),
                           tokens(x.w),
                           tokens(x.b),
                           tokens(x.g),
                           {},
                           state(x.initial_state),
                           {},
                           tokens(x.up_o),
                           state(x.up_final_state)};
    Named part;
    for (const auto& [name, tensor] : packed)
      part.emplace_back(name, name.ends_with("state") ? state(tensor) : tokens(tensor));
    if (lengths[n] > 0) {
      expect_same_bits(outputs_and_gradients(one, kRun), part, fmt::format("sequence {}", n));
    } else {
      EXPECT_TRUE(at::equal(part[1].second, one.initial_state)) << n;
    }
    begin += lengths[n];
  }
}

TEST_F(CudaReports, OffsetsOnTheDeviceAndOnTheHost) {
  const ChunkTensors x = gpu_tensors({.name = "", .L = 2, .K = 64, .V = 64, .lengths = {5, 0, 130, 9}});
  ChunkTensors device = x;
  device.cu_seqlens = x.cu_seqlens.to(at::kCUDA);
  expect_same_bits(outputs_and_gradients(device, kRun), outputs_and_gradients(x, kRun), "cu_seqlens");
}

TEST_F(CudaReports, GraphsGiveTheSameBits) {
  const ChunkTensors x = gpu_tensors({.name = "", .T = 300, .L = 2, .K = 64, .V = 64});
  const auto all = [&] {
    Tensors tensors;
    for (const auto& [name, tensor] : outputs_and_gradients(x, kRun)) tensors.push_back(tensor);
    return tensors;
  };
  const Tensors eager = all();
  const Tensors found = replayed(all);
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(at::equal(found[i], eager[i])) << i;
}

TEST_F(CudaReports, PrefillAndDecodeAgree) {
  for (const int64_t prompt : {1, 64, 100, 191}) {
    const ChunkTensors exact = make_tensors({.name = "", .T = 192, .L = 2, .K = 128, .V = 128});
    const c10::NoGradGuard no_grad;
    const PrismChunkResult expected = token_loop(exact.args());
    const ChunkTensors x = on_gpu(exact.to(at::kBFloat16));
    PrismChunkArgs args = x.args();
    for (Tensor* t : {&args.q, &args.k, &args.w, &args.b, &args.g}) *t = t->narrow(1, 0, prompt);
    const PrismChunkResult prefill = kRun(args);
    Tensors o = {prefill.o};
    for (int64_t t = prompt; t < 192; ++t)
      o.push_back(prism_step(x.q.select(1, t), x.k.select(1, t), x.w.select(1, t), x.b.select(1, t),
                             x.g.select(1, t), prefill.final_state)
                      .unsqueeze(1));
    expect_close({{"o", at::cat(o, 1).cpu()}, {"final_state", prefill.final_state.cpu()}},
                 {{"o", expected.o}, {"final_state", expected.final_state}}, at::kBFloat16,
                 fmt::format("prompt {}", prompt));
  }
}

TEST_F(CudaReports, EmptyCalls) {
  for (const auto& [B, T] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}, {0, 0}}) {
    const ChunkTensors x = gpu_tensors({.name = "", .B = B, .T = T, .L = 2, .K = 64, .V = 64});
    const Named found = outputs_and_gradients(x, kRun);
    EXPECT_TRUE(at::equal(found[1].second, x.initial_state));
    EXPECT_TRUE(at::equal(found.back().second, x.up_final_state));
  }
}

/// The last `count` rows alone against the same rows in the batch.
void expect_same_last_rows(const ChunkTensors& x, int64_t count) {
  const int64_t first = x.q.size(0) - count;
  const Named batch = outputs_and_gradients(x, kRun);
  Named tail;
  for (const auto& [name, tensor] : batch) tail.emplace_back(name, tensor.narrow(0, first, count));
  expect_same_bits(outputs_and_gradients(rows_of(x, first, count), kRun), tail, "last rows");
}

TEST_F(CudaReports, MoreThan65535SequencesTimesHeads) {
  expect_same_last_rows(as_case(gpu::draw({"", 40000, 3, 2, 2, 32, {}}, 1, /*states=*/true)), 10);
}

TEST_F(CudaReports, OffsetsBeyond2To31Elements) {  // 260 x 4096 x 16 x 128 = 2.18e9 in each of q, k, w, o
  expect_same_last_rows(as_case(gpu::draw({"", 260, 4096, 16, 16, 128, {}}, 1, /*states=*/true)), 1);
}

TEST_F(CudaReports, AMillionShortSequences) {
  const int64_t count = 1000000;
  std::vector<int64_t> lengths(count);
  for (int64_t n = 0; n < count; ++n) lengths[n] = n % 3;
  const ChunkTensors x = as_case(gpu::draw({"", 1, 999999, 1, 1, 32, {}, lengths}, 1, /*states=*/true));
  const c10::NoGradGuard no_grad;
  PrismChunkArgs args = x.args();
  const PrismChunkResult all = kRun(args);
  const int64_t first = count - 31, tokens = 30;  // the last 31 sequences: lengths 0, 1, 2, ..., 0
  for (Tensor* t : {&args.q, &args.k, &args.w, &args.b, &args.g})
    *t = t->narrow(1, t->size(1) - tokens, tokens);
  args.initial_state = args.initial_state->narrow(0, first, 31);
  args.cu_seqlens = x.cu_seqlens.narrow(0, first, 32) - x.cu_seqlens[first];
  const PrismChunkResult last = kRun(args);
  EXPECT_TRUE(at::equal(all.o.narrow(1, all.o.size(1) - tokens, tokens), last.o));
  EXPECT_TRUE(at::equal(all.final_state.narrow(0, first, 31), last.final_state));
}

}  // namespace
}  // namespace prism::test
