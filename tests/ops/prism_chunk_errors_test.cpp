// What prism_chunk and prism_step say about arguments that do not fit.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/chunk_cases.h"
#include "prism/core/error.h"
#include "prism/ops/prism_chunk.h"

namespace prism::test {
namespace {

using at::Tensor;

struct WrongCall {
  const char* expected;
  std::function<void(PrismChunkArgs&)> spoil;
};

TEST(PrismChunk, ErrorsNameTheTensorAndWhatWasExpected) {
  const std::vector<WrongCall> wrong = {
      {"prism_chunk: q is undefined", [](auto& a) { a.q = Tensor(); }},
      {"prism_chunk: q has 3 dimensions, expected [B,T,Hk,K] (q [2,9,2])",
       [](auto& a) { a.q = a.q.select(3, 0); }},
      {"prism_chunk: k has 5 channels a head but q has 8 (q [2,9,2,8], k [2,9,2,2,5]",
       [](auto& a) { a.k = a.k.slice(4, 0, 5); }},
      {"k has 1 heads but q has 2", [](auto& a) { a.k = a.k.slice(3, 0, 1); }},
      {"w has 1 steps but k has 2", [](auto& a) { a.w = a.w.slice(2, 0, 1); }},
      {"w has 8 tokens but q has 9", [](auto& a) { a.w = a.w.slice(1, 1); }},
      {"b has 1 rows but q has 2", [](auto& a) { a.b = a.b.slice(0, 1); }},
      {"g has 1 heads but w has 2", [](auto& a) { a.g = a.g.slice(2, 1); }},
      {"the heads of w must be a multiple", [](auto& a) { a.w = a.w.slice(3, 0, 1); }},
      {"k is Float, expected Double as q", [](auto& a) { a.k = a.k.to(at::kFloat); }},
      {"b is Float, expected Double beside q of Double", [](auto& a) { a.b = a.b.to(at::kFloat); }},
      {"q is Int, expected Double, Float, BFloat16 or Half", [](auto& a) { a.q = a.q.to(at::kInt); }},
      {"erase_read has 1 heads but q has 2", [](auto& a) { a.erase_read = a.q.slice(2, 0, 1); }},
      {"initial_state has 7 key channels a head but q has 8",
       [](auto& a) { a.initial_state = a.initial_state->slice(2, 0, 7); }},
      {"initial_state has 1 sequences but the call has 2",
       [](auto& a) { a.initial_state = a.initial_state->slice(0, 0, 1); }},
      {"initial_state is Float, expected Double",
       [](auto& a) { a.initial_state = a.initial_state->to(at::kFloat); }},
      {"packed sequences (cu_seqlens) need one row",
       [](auto& a) {
         a.cu_seqlens = at::tensor({0, 9}, at::kLong);
       }},
      {"cu_seqlens is Float, expected Long",
       [](auto& a) {
         a.cu_seqlens = at::tensor({0, 9}, at::kFloat);
       }},
      {"chunk is -1", [](auto& a) { a.chunk = -1; }},
      {"steps, heads and head widths must be at least 1",
       [](auto& a) { a.k = a.k.slice(2, 0, 0), a.w = a.w.slice(2, 0, 0); }},
  };
  for (const WrongCall& call : wrong) {
    PrismChunkArgs args = make_tensors({.name = "", .L = 2}).args();
    call.spoil(args);
    EXPECT_THAT([&] { prism_chunk(args); }, testing::ThrowsMessage<Error>(testing::HasSubstr(call.expected)));
  }
}

TEST(PrismChunk, OffsetsAreChecked) {
  const auto error_of = [](std::vector<int64_t> offsets) {
    PrismChunkArgs args = make_tensors({.name = "", .lengths = {4, 5}}).args();
    args.initial_state.reset();
    args.cu_seqlens = at::tensor(offsets, at::kLong);
    return [args] { prism_chunk(args); };
  };
  EXPECT_THAT(error_of({1, 9}), testing::ThrowsMessage<Error>(testing::HasSubstr("starts at 1")));
  EXPECT_THAT(error_of({0, 5, 4, 9}), testing::ThrowsMessage<Error>(testing::HasSubstr("falls from 5 to 4")));
  EXPECT_THAT(error_of({0, 5}),
              testing::ThrowsMessage<Error>(testing::HasSubstr("ends at 5, but there are 9")));
}

TEST(PrismChunk, ImplementationsThatCannotServeSaySo) {
  const ChunkTensors x = make_tensors(chunk_case("rank 3"));
  const ChunkTensors half = x.to(at::kHalf);
  EXPECT_THAT([&] { with(Implementation::kFused)(half.args()); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("no fused kernel for Half")));
  EXPECT_THAT([&] { outputs_and_gradients(x, with(Implementation::kReference)); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("reference implementation has no gradient")));
}

TEST(PrismStep, WrongStatesAndGradientsAreErrors) {
  const ChunkTensors x = make_tensors(chunk_case("one token"));
  const auto step = [&](const Tensor& state) {
    return prism_step(x.q.select(1, 0), x.k.select(1, 0), x.w.select(1, 0), x.b.select(1, 0),
                      x.g.select(1, 0), state);
  };
  EXPECT_THAT([&] { step(x.initial_state.slice(1, 1)); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("prism_step: state has 1 heads but w has 2")));
  x.q.requires_grad_();
  EXPECT_THAT([&] { step(x.initial_state); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("not differentiable")));
}

TEST(PrismStep, StridedStatesAreUpdatedInPlace) {
  const c10::NoGradGuard no_grad;
  const ChunkTensors x = make_tensors(chunk_case("one token"));
  const auto step = [&](const Tensor& state) {
    return prism_step(x.q.select(1, 0), x.k.select(1, 0), x.w.select(1, 0), x.b.select(1, 0),
                      x.g.select(1, 0), state);
  };
  const Tensor plain = x.initial_state.clone(),
               strided = x.initial_state.transpose(2, 3).contiguous().transpose(2, 3);
  EXPECT_TRUE(at::equal(step(plain), step(strided)));
  EXPECT_TRUE(at::equal(plain, strided));
  EXPECT_FALSE(at::equal(plain, x.initial_state));
}

}  // namespace
}  // namespace prism::test
