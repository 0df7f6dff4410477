#include "prism/ops/prism_chunk.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "ops/chunk_cases.h"

namespace prism::test {
namespace {

using at::Tensor;

constexpr Implementation kImplementations[] = {Implementation::kFused, Implementation::kComposed};

/// Calls test(case, fp64 tensors) for every case of the list.
template <class Test>
void for_every_case(const Test& test) {
  for (const ChunkCase& c : chunk_cases()) {
    SCOPED_TRACE(c.name);
    test(c, make_tensors(c));
  }
}

TEST(PrismChunk, OutputsAndGradientsAreTheTokenLoops) {
  for_every_case([](const ChunkCase&, const ChunkTensors& tensors) {
    const Named expected = outputs_and_gradients(tensors, token_loop);
    for (const Implementation implementation : kImplementations)
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
        expect_close(outputs_and_gradients(tensors.to(type), with(implementation)), expected, type,
                     fmt::format("{} {}", implementation_name(implementation), c10::toString(type)));
    expect_close(outputs_and_gradients(tensors.to(at::kHalf), with(Implementation::kAuto)), expected,
                 at::kBFloat16, "auto Half");
  });
}

TEST(PrismChunk, TheReferenceIsTheTokenLoop) {
  for_every_case([](const ChunkCase&, const ChunkTensors& tensors) {
    const c10::NoGradGuard no_grad;
    const PrismChunkResult expected = token_loop(tensors.args());
    const PrismChunkResult found = with(Implementation::kReference)(tensors.args());
    expect_close({{"o", found.o}, {"final_state", found.final_state}},
                 {{"o", expected.o}, {"final_state", expected.final_state}}, at::kDouble, "reference");
  });
}

TEST(PrismChunk, RepeatsAreBitEqual) {
  for_every_case([](const ChunkCase&, const ChunkTensors& tensors) {
    for (const Implementation implementation : kImplementations)
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const ChunkTensors x = tensors.to(type);
        expect_same_bits(outputs_and_gradients(x, with(implementation)),
                         outputs_and_gradients(x, with(implementation)), implementation_name(implementation));
      }
  });
}

TEST(PrismChunk, NothingIsLeftFromAnEarlierCall) {
  const ChunkFunction fused = with(Implementation::kFused);
  // Wide, so that it leaves NaN all over a thread's memory.
  ChunkTensors nan = make_tensors({.name = "", .T = 70, .L = 3, .K = 128, .V = 128}).to(at::kFloat);
  for (Tensor* t : {&nan.q, &nan.k, &nan.w, &nan.b, &nan.g, &nan.up_o})
    *t = at::full_like(*t, std::numeric_limits<double>::quiet_NaN());
  for_every_case([&](const ChunkCase&, const ChunkTensors& tensors) {
    const ChunkTensors x = tensors.to(at::kFloat);
    const Named once = outputs_and_gradients(x, fused);
    outputs_and_gradients(nan, fused);
    expect_same_bits(outputs_and_gradients(x, fused), once, "after a call full of NaN");
  });
}

TEST(PrismChunk, ThreadsDoNotChangeBits) {
  for_every_case([](const ChunkCase&, const ChunkTensors& tensors) {
    const int threads = at::get_num_threads();
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const ChunkTensors x = tensors.to(type);
      at::set_num_threads(1);
      const Named one = outputs_and_gradients(x, with(Implementation::kFused));
      at::set_num_threads(3);
      expect_same_bits(one, outputs_and_gradients(x, with(Implementation::kFused)), c10::toString(type));
      at::set_num_threads(threads);
    }
  });
}

TEST(PrismChunk, StridedInputsGiveTheSameBits) {
  for_every_case([](const ChunkCase&, const ChunkTensors& tensors) {
    // Every other row of a buffer twice as wide: no dimension but the last is contiguous, rows and tokens
    // flatten.
    const auto strided = [](const Tensor& x) {
      if (!x.defined()) return x;
      const Tensor wide = at::full_like(x.unsqueeze(2).expand({-1, -1, 2, -1, -1}).contiguous(), 1e30);
      wide.select(2, 1).copy_(x);
      return wide.select(2, 1);
    };
    const auto strided_heads = [](const Tensor& x) {  // [B,T,L,H,W] with L and H swapped in memory
      return x.transpose(2, 3).contiguous().transpose(2, 3);
    };
    const auto transposed_rows = [](const Tensor& x) {
      return x.transpose(0, 1).contiguous().transpose(0, 1);
    };
    for (const Implementation implementation : kImplementations) {
      const ChunkTensors plain = tensors.to(at::kFloat);
      ChunkTensors x = plain;
      x.q = strided(plain.q);
      x.erase_read = strided(plain.erase_read);
      x.k = strided_heads(plain.k);
      x.w = transposed_rows(plain.w);
      x.b = at::stack({plain.b, plain.b + 1}, 2).select(2, 0);
      x.g = plain.g.transpose(1, 2).contiguous().transpose(1, 2);
      x.up_o = strided_heads(plain.up_o.unsqueeze(2)).squeeze(2);
      expect_same_bits(outputs_and_gradients(x, with(implementation)),
                       outputs_and_gradients(plain, with(implementation)),
                       implementation_name(implementation));
    }
  });
}

TEST(PrismChunk, StepsAreTheChunkForm) {
  for_every_case([](const ChunkCase& c, const ChunkTensors& tensors) {
    if (c.packed()) return;
    const c10::NoGradGuard no_grad;
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const ChunkTensors x = tensors.to(type);
      const PrismChunkResult chunked = token_loop(tensors.args());
      Tensor state = x.initial_state.defined() ? x.initial_state.clone() : at::zeros_like(x.up_final_state);
      std::vector<Tensor> o;
      for (int64_t t = 0; t < x.q.size(1); ++t)
        o.push_back(prism_step(
            x.q.select(1, t), x.k.select(1, t), x.w.select(1, t), x.b.select(1, t), x.g.select(1, t), state,
            x.erase_read.defined() ? std::optional(x.erase_read.select(1, t)) : std::nullopt));
      expect_close({{"o", at::stack(o, 1)}, {"final_state", state}},
                   {{"o", chunked.o}, {"final_state", chunked.final_state}},
                   type == at::kHalf ? at::kBFloat16 : type, c10::toString(type));
    }
  });
}

TEST(PrismChunk, ABf16StateIsTheExactOneRounded) {
  for (const char* name : {"one token", "rank 3", "grouped heads", "erase read"}) {
    const c10::NoGradGuard no_grad;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const ChunkTensors x = make_tensors(chunk_case(name)).to(type);  // the state fits bf16
      const auto first = [](const Tensor& t) { return t.defined() ? t.select(1, 0) : t; };
      const auto step = [&](const Tensor& state) {
        return prism_step(first(x.q), first(x.k), first(x.w), first(x.b), first(x.g), state,
                          x.erase_read.defined() ? std::optional(first(x.erase_read)) : std::nullopt);
      };
      const Tensor wide = x.initial_state.clone(), narrow = x.initial_state.to(at::kBFloat16);
      const Tensor expected = step(wide);
      EXPECT_TRUE(at::equal(step(narrow), expected)) << name;
      EXPECT_TRUE(at::equal(narrow, wide.to(at::kBFloat16))) << name;
    }
  }
}

TEST(PrismChunk, SplittingTokensCarriesTheState) {
  for_every_case([](const ChunkCase& c, const ChunkTensors& tensors) {
    if (c.packed()) return;
    const c10::NoGradGuard no_grad;
    const PrismChunkResult whole = token_loop(tensors.args());
    const int64_t T = c.T;
    for (const Implementation implementation : kImplementations) {
      for (const int64_t cut : {int64_t{0}, int64_t{1}, T / 3, T / 2, T - 1, T}) {
        const auto part = [&](int64_t begin, int64_t end, const Tensor& state) {
          PrismChunkArgs args = tensors.args();
          for (Tensor* x : {&args.q, &args.k, &args.w, &args.b, &args.g}) *x = x->slice(1, begin, end);
          if (args.erase_read) args.erase_read = args.erase_read->slice(1, begin, end);
          args.initial_state = state.defined() ? std::optional(state) : std::nullopt;
          return with(implementation)(args);
        };
        const PrismChunkResult first = part(0, cut, tensors.initial_state),
                               second = part(cut, T, first.final_state);
        expect_close({{"o", at::cat({first.o, second.o}, 1)}, {"final_state", second.final_state}},
                     {{"o", whole.o}, {"final_state", whole.final_state}}, at::kDouble,
                     fmt::format("cut {}", cut));
      }
    }
  });
}

TEST(PrismChunk, EachOutputAloneHasItsGradient) {
  for_every_case([](const ChunkCase&, const ChunkTensors& tensors) {
    const ChunkTensors x = tensors.to(at::kDouble);
    const auto gradients = [&](const ChunkFunction& function, bool of_o) {
      for (const auto& [name, leaf] : x.leaves()) leaf.requires_grad_();
      const PrismChunkResult result = function(x.args());
      std::vector<Tensor> inputs;
      for (const auto& [name, leaf] : x.leaves()) inputs.push_back(leaf);
      Named named;
      const auto found = torch::autograd::grad({of_o ? result.o : result.final_state}, inputs,
                                               {of_o ? x.up_o : x.up_final_state}, false, false, true);
      for (size_t i = 0; i < inputs.size(); ++i)
        named.emplace_back("d_" + x.leaves()[i].first,
                           found[i].defined() ? found[i] : at::zeros_like(inputs[i]));
      return named;
    };
    for (const Implementation implementation : kImplementations)
      for (const bool of_o : {true, false})
        expect_close(gradients(with(implementation), of_o), gradients(token_loop, of_o), at::kDouble,
                     fmt::format("{} {}", implementation_name(implementation), of_o ? "o" : "final_state"));
  });
}

TEST(PrismChunk, EveryChunkLengthIsExact) {
  for (const char* name : {"rank 3", "gates from 0 to -20", "identical keys, b 2", "packed with empty"}) {
    const ChunkTensors x = make_tensors(chunk_case(name));
    const Named expected = outputs_and_gradients(x, token_loop);
    for (const Implementation implementation : kImplementations)
      for (int64_t chunk = 1; chunk <= 80; chunk += chunk < 20 ? 1 : 9)
        expect_close(outputs_and_gradients(x, with(implementation, chunk)), expected, at::kDouble,
                     fmt::format("{}, {} chunk {}", name, implementation_name(implementation), chunk));
  }
}

TEST(PrismChunk, ARowDoesNotSeeItsNeighbours) {
  const ChunkCase& c = chunk_case("widths of 32");
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const ChunkTensors x = make_tensors(c).to(type);
    const Named batch = outputs_and_gradients(x, with(Implementation::kFused));
    for (int64_t row = 0; row < c.B; ++row) {
      const auto alone = [&](const Tensor& t) { return t.defined() ? t.slice(0, row, row + 1).clone() : t; };
      const ChunkTensors one{alone(x.q),
                             alone(x.k),
                             alone(x.w),
                             alone(x.b),
                             alone(x.g),
                             alone(x.erase_read),
                             alone(x.initial_state),
                             {},
                             alone(x.up_o),
                             alone(x.up_final_state)};
      Named rows;
      for (const auto& [name, tensor] : batch) rows.emplace_back(name, tensor.slice(0, row, row + 1));
      expect_same_bits(outputs_and_gradients(one, with(Implementation::kFused)), rows, c10::toString(type));
    }
  }
}

TEST(PrismChunk, PackedSequencesAreTheSeparateCalls) {
  const ChunkCase& c = chunk_case("packed with empty");
  const ChunkTensors x = make_tensors(c).to(at::kFloat);
  const c10::NoGradGuard no_grad;
  const PrismChunkResult packed = with(Implementation::kFused)(x.args());
  int64_t begin = 0;
  for (size_t n = 0; n < c.lengths.size(); ++n) {
    const int64_t end = begin + c.lengths[n];
    PrismChunkArgs args = x.args();
    for (Tensor* t : {&args.q, &args.k, &args.w, &args.b, &args.g}) *t = t->slice(1, begin, end);
    args.cu_seqlens.reset();
    args.initial_state = x.initial_state.slice(0, n, n + 1);
    const PrismChunkResult alone = with(Implementation::kFused)(args);
    EXPECT_TRUE(at::equal(alone.o, packed.o.slice(1, begin, end))) << n;
    EXPECT_TRUE(at::equal(alone.final_state, packed.final_state.slice(0, n, n + 1))) << n;
    begin = end;
  }
}

TEST(PrismChunk, EmptyCalls) {
  for (const Implementation implementation : kImplementations) {
    for (const auto& [B, T] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}, {0, 0}}) {
      ChunkTensors x = make_tensors({.name = "", .B = B, .T = T, .L = 2});
      const Named found = outputs_and_gradients(x, with(implementation));
      EXPECT_EQ(found[0].second.sizes(), (std::vector<int64_t>{B, T, 2, 6}));
      EXPECT_TRUE(at::equal(found[1].second, x.initial_state));
      EXPECT_TRUE(at::equal(found.back().second, x.up_final_state));
    }
    const ChunkTensors none = make_tensors({.name = "", .L = 2, .lengths = {0, 0}});
    const Named found = outputs_and_gradients(none, with(implementation));
    EXPECT_TRUE(at::equal(found[1].second, none.initial_state));
    EXPECT_TRUE(at::equal(found.back().second, none.up_final_state));
  }
}

TEST(PrismChunk, FinalStateOnlyWhenAskedFor) {
  PrismChunkArgs args = make_tensors(chunk_case("rank 3")).args();
  args.return_final_state = false;
  EXPECT_FALSE(prism_chunk(args).final_state.defined());
}

TEST(PrismChunk, ScaleAndInt32OffsetsAndInferenceMode) {
  const c10::InferenceMode inference;
  PrismChunkArgs args = make_tensors(chunk_case("packed with empty")).args();
  const Tensor o = prism_chunk(args).o;
  args.scale = 1.0;
  args.cu_seqlens = args.cu_seqlens->to(at::kInt);
  EXPECT_LE(relative_error(prism_chunk(args).o, o * std::sqrt(8.0)), 1e-14);
}

TEST(PrismChunk, InputsWithoutGradientGetNone) {
  const ChunkTensors x = make_tensors(chunk_case("rank 3"));
  for (const Implementation implementation : kImplementations) {
    x.w.requires_grad_();
    const PrismChunkResult result = with(implementation)(x.args());
    const Tensor dw = torch::autograd::grad({result.o}, {x.w}, {x.up_o})[0];
    EXPECT_EQ(dw.sizes(), x.w.sizes());
    EXPECT_FALSE(x.q.grad().defined());
    x.w.requires_grad_(false);
  }
}

TEST(PrismChunk, GradientsAreFiniteDifferences) {
  const ChunkCase c{.name = "", .B = 1, .T = 7, .L = 2, .H = 2, .Hk = 1, .K = 3, .V = 2, .erase_read = true};
  const ChunkTensors x = make_tensors(c);
  const auto loss = [&] {
    const c10::NoGradGuard no_grad;
    const PrismChunkResult result = with(Implementation::kFused, 4)(x.args());
    return ((result.o * x.up_o).sum() + (result.final_state * x.up_final_state).sum()).item<double>();
  };
  const Named composed = outputs_and_gradients(x, with(Implementation::kComposed, 3));
  size_t index = 2;
  for (const auto& [name, leaf] : x.leaves()) {
    const Tensor gradient = composed[index++].second.contiguous();
    Tensor numeric = at::empty_like(gradient);
    double* value = leaf.mutable_data_ptr<double>();
    for (int64_t i = 0; i < leaf.numel(); ++i) {
      const double old = value[i], h = 1e-6;
      value[i] = old + h;
      const double up = loss();
      value[i] = old - h;
      numeric.mutable_data_ptr<double>()[i] = (up - loss()) / (2 * h);
      value[i] = old;
    }
    EXPECT_LE(relative_error(gradient, numeric), 1e-7) << name;
  }
}

TEST(PrismChunk, ASecondDerivativeIsAnError) {
  const ChunkTensors x = make_tensors(chunk_case("rank 3"));
  x.q.requires_grad_();
  const Tensor o = prism_chunk(x.args()).o;
  const Tensor dq = torch::autograd::grad({o.square().sum()}, {x.q}, {}, true, /*create_graph=*/true)[0];
  EXPECT_THAT([&] { torch::autograd::grad({dq.square().sum()}, {x.q}); },
              testing::ThrowsMessage<std::exception>(testing::HasSubstr("second derivative")));
}

// Equivalences of design page mixers.md, section 21.

TEST(PrismChunk, WithoutEraseAndGateItIsLinearAttention) {
  ChunkTensors x = make_tensors({.name = "", .T = 45, .erase = Erase::kZero, .initial_state = false});
  x.g.zero_();
  const Tensor q = x.q.transpose(1, 2), k = x.k.select(2, 0).transpose(1, 2),
               v = x.w.select(2, 0).transpose(1, 2);
  const Tensor expected = at::matmul(at::matmul(q, k.transpose(2, 3)).tril(), v).transpose(1, 2);
  for (const Implementation implementation : kImplementations) {
    PrismChunkArgs args = x.args();
    args.scale = 1.0;
    EXPECT_LE(relative_error(with(implementation)(args).o, expected), 1e-13);
  }
}

TEST(PrismChunk, WithoutEraseStepsAreTokensOfTheirOwn) {
  const ChunkTensors x =
      make_tensors({.name = "", .T = 33, .L = 3, .gates = Gates::kMixed, .erase = Erase::kZero});
  const PrismChunkResult stepped = prism_chunk(x.args());
  PrismChunkArgs args = x.args();
  args.k = x.k.flatten(1, 2).unsqueeze(2);
  args.w = x.w.flatten(1, 2).unsqueeze(2);
  args.b = x.b.repeat_interleave(3, 1);
  args.g = at::stack({x.g, at::zeros_like(x.g), at::zeros_like(x.g)}, 2).flatten(1, 2);
  args.q = x.q.repeat_interleave(3, 1);
  const PrismChunkResult interleaved = prism_chunk(args);
  EXPECT_LE(relative_error(interleaved.o.slice(1, 2, {}, 3), stepped.o), 1e-13);
  EXPECT_LE(relative_error(interleaved.final_state, stepped.final_state), 1e-13);
}

TEST(PrismChunk, ItIsCombaOnInterleavedTokens) {
  // Sub-token 1: gate, erase with b k_1, write w_1; sub-tokens l > 1: no gate, no erase, write w_l.
  const ChunkTensors x = make_tensors(chunk_case("gates from 0 to -20"));
  const int64_t L = x.k.size(2);
  const PrismChunkResult stepped = prism_chunk(x.args());
  PrismChunkArgs args = x.args();
  const auto first_only = [&](const Tensor& t) {
    std::vector<Tensor> parts(L, at::zeros_like(t));
    parts[0] = t;
    return at::stack(parts, 2).flatten(1, 2);
  };
  args.k = x.k.flatten(1, 2).unsqueeze(2);
  args.w = x.w.flatten(1, 2).unsqueeze(2);
  args.b = at::ones_like(x.b).repeat_interleave(L, 1);
  args.g = first_only(x.g);
  args.erase_read = first_only(x.k.select(2, 0) * x.b.unsqueeze(-1));
  args.q = x.q.repeat_interleave(L, 1);
  const PrismChunkResult interleaved = prism_chunk(args);
  EXPECT_LE(relative_error(interleaved.o.slice(1, L - 1, {}, L), stepped.o), 1e-13);
  EXPECT_LE(relative_error(interleaved.final_state, stepped.final_state), 1e-13);
}

}  // namespace
}  // namespace prism::test
