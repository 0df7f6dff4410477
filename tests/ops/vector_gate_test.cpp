#include "prism/ops/vector_gate.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "ops/vector_gate_cases.h"
#include "prism/core/error.h"
#include "prism/ops/prism_chunk.h"

namespace prism::test {
namespace {

using at::Tensor;

/// The fused kernel takes keys of up to 64 channels.
std::vector<Implementation> implementations(const GateTensors& x) {
  if (x.k.size(3) > 64) return {Implementation::kComposed};
  return {Implementation::kFused, Implementation::kComposed};
}

/// Calls test(case, fp64 tensors) for every case of the list.
template <class Test>
void for_every_gate_case(const Test& test) {
  for (const GateCase& c : gate_cases()) {
    SCOPED_TRACE(c.name);
    test(c, make_gate_tensors(c));
  }
}

TEST(VectorGate, OutputsAndGradientsAreTheTokenLoops) {
  for_every_gate_case([](const GateCase&, const GateTensors& tensors) {
    const Named expected = outputs_and_gradients(tensors, gate_loop);
    for (const Implementation implementation : implementations(tensors))
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
        expect_close(outputs_and_gradients(tensors.to(type), gate_with(implementation)), expected, type,
                     fmt::format("{} {}", implementation_name(implementation), c10::toString(type)));
  });
}

TEST(VectorGate, TheReferenceIsTheTokenLoop) {
  for_every_gate_case([](const GateCase&, const GateTensors& tensors) {
    const c10::NoGradGuard no_grad;
    const VectorGateResult expected = gate_loop(tensors.args());
    const VectorGateResult found = gate_with(Implementation::kReference)(tensors.args());
    expect_close({{"o", found.o}, {"final_state", found.final_state}},
                 {{"o", expected.o}, {"final_state", expected.final_state}}, at::kDouble, "reference");
  });
}

TEST(VectorGate, RepeatsAndThreadsGiveTheSameBits) {
  for_every_gate_case([](const GateCase&, const GateTensors& tensors) {
    const int threads = at::get_num_threads();
    for (const Implementation implementation : implementations(tensors))
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const GateTensors x = tensors.to(type);
        const Named once = outputs_and_gradients(x, gate_with(implementation));
        if (implementation == Implementation::kFused) at::set_num_threads(3);
        expect_same_bits(once, outputs_and_gradients(x, gate_with(implementation)),
                         implementation_name(implementation));
        at::set_num_threads(threads);
      }
  });
}

TEST(VectorGate, NothingIsLeftFromAnEarlierCall) {
  const GateFunction fused = gate_with(Implementation::kFused);
  // Wide, so that it leaves NaN all over a thread's memory.
  const GateTensors nan = make_gate_tensors({.name = "", .form = Form::kFull, .T = 70, .K = 64, .V = 64})
                              .to(at::kFloat)
                              .by_token([](const Tensor& t) {
                                return at::full_like(t, std::numeric_limits<double>::quiet_NaN());
                              });
  for_every_gate_case([&](const GateCase&, const GateTensors& tensors) {
    if (implementations(tensors).front() != Implementation::kFused) return;
    const GateTensors x = tensors.to(at::kFloat);
    const Named once = outputs_and_gradients(x, fused);
    outputs_and_gradients(nan, fused);
    expect_same_bits(outputs_and_gradients(x, fused), once, "after a call full of NaN");
  });
}

TEST(VectorGate, StridedInputsGiveTheSameBits) {
  for_every_gate_case([](const GateCase&, const GateTensors& tensors) {
    const GateTensors plain = tensors.to(at::kFloat);
    // A slice of something wider, heads first in memory, and rows and tokens that do not flatten.
    const std::function<Tensor(const Tensor&)> layouts[] = {
        [](const Tensor& x) {
          return at::cat({x, x + 1e30, x}, -1).narrow(-1, 0, x.size(-1));
        },
        [](const Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); },
        [](const Tensor& x) { return x.transpose(0, 1).contiguous().transpose(0, 1); }};
    for (const Implementation implementation : implementations(tensors)) {
      const Named expected = outputs_and_gradients(plain, gate_with(implementation));
      for (const auto& layout : layouts)
        expect_same_bits(outputs_and_gradients(plain.by_token(layout), gate_with(implementation)), expected,
                         implementation_name(implementation));
    }
  });
}

TEST(VectorGate, StepsAreTheChunkForm) {
  for_every_gate_case([](const GateCase& c, const GateTensors& tensors) {
    if (c.packed()) return;
    const c10::NoGradGuard no_grad;
    const VectorGateResult whole = gate_loop(tensors.args());
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const GateTensors x = tensors.to(type);
      Tensor state = x.initial_state.defined() ? x.initial_state.clone() : at::zeros_like(x.up_final_state);
      std::vector<Tensor> o;
      for (int64_t t = 0; t < x.q.size(1); ++t)
        o.push_back(
            vector_gate_step(x.by_token([&](const Tensor& y) { return y.select(1, t); }).args(), state));
      expect_close({{"o", at::stack(o, 1)}, {"final_state", state}},
                   {{"o", whole.o}, {"final_state", whole.final_state}},
                   type == at::kHalf ? at::kBFloat16 : type, c10::toString(type));
    }
  });
}

TEST(VectorGate, SplittingTokensCarriesTheState) {
  for_every_gate_case([](const GateCase& c, const GateTensors& tensors) {
    if (c.packed()) return;
    const c10::NoGradGuard no_grad;
    const VectorGateResult whole = gate_loop(tensors.args());
    const int64_t T = c.T;
    for (const Implementation implementation : implementations(tensors)) {
      for (const int64_t cut : {int64_t{0}, int64_t{1}, T / 3, T - 1, T}) {
        const auto part = [&](int64_t begin, int64_t end, const Tensor& state) {
          GateTensors x = tensors.by_token([&](const Tensor& y) { return y.slice(1, begin, end); });
          x.initial_state = state;
          return gate_with(implementation)(x.args());
        };
        const VectorGateResult first = part(0, cut, tensors.initial_state),
                               second = part(cut, T, first.final_state);
        expect_close({{"o", at::cat({first.o, second.o}, 1)}, {"final_state", second.final_state}},
                     {{"o", whole.o}, {"final_state", whole.final_state}}, at::kDouble,
                     fmt::format("cut {}", cut));
      }
    }
  });
}

TEST(VectorGate, EachOutputAloneHasItsGradient) {
  for (const char* name : {"strength, gates from 0 to -20", "everything given, grouped", "values, grouped"}) {
    const GateTensors x = make_gate_tensors(gate_case(name));
    const auto gradients = [&](const GateFunction& function, bool of_o) {
      GateTensors half = x;
      (of_o ? half.up_final_state : half.up_o) = at::zeros_like(of_o ? x.up_final_state : x.up_o);
      return outputs_and_gradients(half, function);
    };
    for (const Implementation implementation : implementations(x))
      for (const bool of_o : {true, false})
        expect_close(gradients(gate_with(implementation), of_o), gradients(gate_loop, of_o), at::kDouble,
                     name);
  }
}

TEST(VectorGate, EveryChunkLengthIsExact) {
  for (const char* name : {"strength, everything extreme", "everything given, undecayed", "values, grouped",
                           "packed with empty"}) {
    const GateTensors x = make_gate_tensors(gate_case(name));
    const Named expected = outputs_and_gradients(x, gate_loop);
    for (const Implementation implementation : implementations(x))
      for (const int64_t chunk : {1, 2, 3, 5, 8, 15, 16, 17, 33, 80})
        expect_close(outputs_and_gradients(x, gate_with(implementation, chunk)), expected, at::kDouble,
                     fmt::format("{}, {} chunk {}", name, implementation_name(implementation), chunk));
  }
}

TEST(VectorGate, PackedSequencesAreTheSeparateCallsToTheBit) {
  for (const char* name : {"packed with empty", "packed, own key", "packed, values"}) {
    const GateCase& c = gate_case(name);
    const GateTensors x = make_gate_tensors(c).to(at::kFloat);
    const Named packed = outputs_and_gradients(x, gate_with(Implementation::kFused));
    int64_t begin = 0;
    for (size_t n = 0; n < c.lengths.size(); ++n) {
      const int64_t end = begin + c.lengths[n];
      GateTensors own = x.by_token([&](const Tensor& y) { return y.slice(1, begin, end).clone(); });
      own.cu_seqlens = Tensor();
      if (x.initial_state.defined()) own.initial_state = x.initial_state.slice(0, n, n + 1).clone();
      own.up_final_state = x.up_final_state.slice(0, n, n + 1);
      Named part;
      for (const auto& [tensor, value] : packed)
        part.emplace_back(tensor,
                          tensor.ends_with("_state") ? value.slice(0, n, n + 1) : value.slice(1, begin, end));
      expect_same_bits(outputs_and_gradients(own, gate_with(Implementation::kFused)), part, name);
      begin = end;
    }
  }
}

TEST(VectorGate, EmptyCalls) {
  for (const Implementation implementation : {Implementation::kFused, Implementation::kComposed}) {
    for (const auto& [B, T] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}, {0, 0}}) {
      const GateTensors x = make_gate_tensors({.name = "", .form = Form::kFull, .B = B, .T = T});
      const Named found = outputs_and_gradients(x, gate_with(implementation));
      EXPECT_EQ(found[0].second.sizes(), (std::vector<int64_t>{B, T, 2, 6}));
      EXPECT_TRUE(at::equal(found[1].second, x.initial_state));
      EXPECT_TRUE(at::equal(found.back().second, x.up_final_state));
    }
    const GateTensors none = make_gate_tensors({.name = "", .form = Form::kStrength, .lengths = {0, 0}});
    const Named found = outputs_and_gradients(none, gate_with(implementation));
    EXPECT_TRUE(at::equal(found[1].second, none.initial_state));
    EXPECT_TRUE(at::equal(found.back().second, none.up_final_state));
  }
}

TEST(VectorGate, GradientsAreFiniteDifferences) {
  for (const Form form : {Form::kFull, Form::kValues}) {
    const GateTensors x =
        make_gate_tensors({.name = "", .form = form, .B = 1, .T = 7, .H = 2, .Hk = 1, .K = 3, .V = 2});
    const auto loss = [&] {
      const c10::NoGradGuard no_grad;
      const VectorGateResult result = gate_with(Implementation::kFused, 4)(x.args());
      return ((result.o * x.up_o).sum() + (result.final_state * x.up_final_state).sum()).item<double>();
    };
    const Named composed = outputs_and_gradients(x, gate_with(Implementation::kComposed, 3));
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
}

TEST(VectorGate, ASecondDerivativeIsAnError) {
  const GateTensors x = make_gate_tensors(gate_case("strength, no gate"));
  x.q.requires_grad_();
  const Tensor o = vector_gate(x.args()).o;
  const Tensor dq = torch::autograd::grad({o.square().sum()}, {x.q}, {}, true, /*create_graph=*/true)[0];
  EXPECT_THAT([&] { torch::autograd::grad({dq.square().sum()}, {x.q}); },
              testing::ThrowsMessage<std::exception>(testing::HasSubstr("second derivative")));
}

TEST(VectorGate, ErrorsNameTheTensorAndWhatWasExpected) {
  struct WrongGateCall {
    const char* expected;
    std::function<void(VectorGateArgs&)> spoil;
  };
  const std::vector<WrongGateCall> wrong = {
      {"vector_gate: q is undefined", [](auto& a) { a.q = Tensor(); }},
      {"k has 3 dimensions, expected [B,T,Hk,K]", [](auto& a) { a.k = a.k.select(3, 0); }},
      {"q has 5 channels a head but k has 8", [](auto& a) { a.q = a.q.slice(3, 0, 5); }},
      {"g has 1 heads but w has 2", [](auto& a) { a.g = a.g.slice(2, 1); }},
      {"g has 7 channels a head but k has 8", [](auto& a) { a.g = a.g.slice(3, 1); }},
      {"g is Float, expected Double beside q of Double", [](auto& a) { a.g = a.g.to(at::kFloat); }},
      {"b has 8 tokens but q has 9", [](auto& a) { a.b = a.b->slice(1, 1); }},
      {"erase_read has 1 heads but k has 2", [](auto& a) { a.erase_read = a.k.slice(2, 1); }},
      {"erase_key is Float, expected Double as q", [](auto& a) { a.erase_key = a.k.to(at::kFloat); }},
      {"initial_state has 7 key channels a head but k has 8",
       [](auto& a) { a.initial_state = a.initial_state->slice(2, 1); }},
      {"read_values takes no b, erase_read or erase_key",
       [](auto& a) { a.read_values = true, a.q = a.q.slice(3, 0, 6); }},
      {"erase_undecayed without b", [](auto& a) { a.erase_undecayed = true, a.b.reset(); }},
      {"vector_gate: cu_seqlens ends at 5, but there are 9",
       [](auto& a) {
         a.cu_seqlens = at::tensor({0, 5}, at::kLong);
         for (Tensor* x : {&a.q, &a.k, &a.w, &a.g}) *x = x->slice(0, 1);
         a.b = a.b->slice(0, 1), a.initial_state.reset();
       }},
      {"chunk is -1", [](auto& a) { a.chunk = -1; }},
  };
  for (const WrongGateCall& call : wrong) {
    VectorGateArgs args = make_gate_tensors({.name = "", .form = Form::kStrength}).args();
    call.spoil(args);
    EXPECT_THAT([&] { vector_gate(args); }, testing::ThrowsMessage<Error>(testing::HasSubstr(call.expected)));
  }
}

TEST(VectorGate, WideKeysHaveNoKernelAndTheReferenceNoGradient) {
  const GateTensors wide = make_gate_tensors(gate_case("keys of 128")),
                    x = make_gate_tensors(gate_case("one token"));
  EXPECT_THAT(
      [&] { gate_with(Implementation::kFused)(wide.args()); },
      testing::ThrowsMessage<Error>(testing::HasSubstr("no fused kernel for Double with 128 key channels")));
  EXPECT_THAT([&] { outputs_and_gradients(x, gate_with(Implementation::kReference)); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("reference implementation has no gradient")));
}

// Equivalences of design page mixers.md, section 21, on the operations.

/// prism_chunk's call with the same gate for every channel, in vector_gate's terms.
VectorGateArgs same_gates(const ChunkTensors& x) {
  return {.q = x.q,
          .k = x.k.select(2, 0),
          .w = x.w.select(2, 0),
          .g = x.g.unsqueeze(-1).expand({-1, -1, -1, x.q.size(3)}),
          .b = x.b,
          .initial_state = x.initial_state,
          .return_final_state = true};
}

TEST(VectorGate, WithEqualChannelsItIsGatedDeltaNet) {  // 2
  const ChunkTensors x = make_tensors(ChunkCase{.name = "", .T = 45, .H = 4, .gates = Gates::kMixed});
  const PrismChunkResult expected = prism_chunk(x.args());
  for (const Implementation implementation : {Implementation::kFused, Implementation::kComposed}) {
    const VectorGateResult found = gate_with(implementation)(same_gates(x));
    EXPECT_LE(relative_error(found.o, expected.o), 1e-13);
    EXPECT_LE(relative_error(found.final_state, expected.final_state), 1e-13);
  }
}

TEST(VectorGate, WithEqualChannelsAndNoEraseItIsScalarGatedLinearAttention) {  // 4
  const ChunkTensors x =
      make_tensors(ChunkCase{.name = "", .T = 45, .gates = Gates::kMixed, .erase = Erase::kZero});
  VectorGateArgs args = same_gates(x);
  args.b.reset();
  EXPECT_LE(relative_error(vector_gate(args).o, prism_chunk(x.args()).o), 1e-13);
}

TEST(VectorGate, WithoutGateAndEraseItIsLinearAttention) {  // 5
  const GateTensors x =
      make_gate_tensors({.name = "", .T = 45, .gates = Gates::kZero, .initial_state = false});
  const auto heads_first = [](const Tensor& y) { return y.transpose(1, 2); };
  const Tensor scores = at::matmul(heads_first(x.q), heads_first(x.k).transpose(2, 3)).tril();
  const Tensor expected = at::matmul(scores, heads_first(x.w)).transpose(1, 2);
  VectorGateArgs args = x.args();
  args.scale = 1.0;
  for (const Implementation implementation : {Implementation::kFused, Implementation::kComposed})
    EXPECT_LE(relative_error(gate_with(implementation)(args).o, expected), 1e-13);
}

TEST(VectorGate,
     Rwkv7WithAScalarGateIsGatedDeltaNet) {  // 7: r = scale q, w = g, kk = k, a = alpha beta, k = beta k
  const ChunkTensors x = make_tensors(ChunkCase{.name = "", .T = 45, .gates = Gates::kOne});
  const double scale = 1 / std::sqrt(double(x.q.size(3)));
  const Tensor k = x.k.select(2, 0), a = (x.g.exp() * x.b).unsqueeze(-1);
  const VectorGateArgs rwkv7{.q = scale * x.q,
                             .k = k,
                             .w = x.w.select(2, 0),
                             .g = same_gates(x).g,
                             .erase_read = k,
                             .erase_key = k * a,
                             .initial_state = x.initial_state,
                             .scale = 1.0,
                             .erase_undecayed = true,
                             .return_final_state = true};
  const PrismChunkResult expected = prism_chunk(x.args());
  const VectorGateResult found = vector_gate(rwkv7);
  EXPECT_LE(relative_error(found.o, expected.o), 1e-13);
  EXPECT_LE(relative_error(found.final_state, expected.final_state), 1e-13);
}

TEST(VectorGate, Rwkv7WithDecayedReadsIsKda) {  // 8: kk = alpha k, a = beta / alpha
  const GateTensors x =
      make_gate_tensors({.name = "", .form = Form::kStrength, .T = 45, .gates = Gates::kOne});
  const Tensor alpha = x.g.exp(), beta = x.b.unsqueeze(-1);
  VectorGateArgs rwkv7 = x.args();
  rwkv7.b.reset();
  rwkv7.erase_read = alpha * x.k;
  rwkv7.erase_key = *rwkv7.erase_read * (beta / alpha);
  rwkv7.erase_undecayed = true;
  const VectorGateResult expected = vector_gate(x.args()), found = vector_gate(rwkv7);
  EXPECT_LE(relative_error(found.o, expected.o), 1e-13);
  EXPECT_LE(relative_error(found.final_state, expected.final_state), 1e-13);
}

TEST(VectorGate, AReadOfValuesIsTheTransposedStatesRead) {
  const GateTensors x = make_gate_tensors(gate_case("values, gates from 0 to -20"));
  VectorGateArgs one = x.by_token([](const Tensor& y) { return y.narrow(1, 0, 1); }).args();
  const VectorGateResult found = vector_gate(one);
  const Tensor q = one.q.squeeze(1).unsqueeze(-1);
  EXPECT_LE(relative_error(found.o.squeeze(1), at::matmul(found.final_state, q).squeeze(-1) / std::sqrt(6.0)),
            1e-13);
}

}  // namespace
}  // namespace prism::test
