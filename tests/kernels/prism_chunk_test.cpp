// prism_chunk's kernel against the token loop, over one list of cases.
#include "prism/kernels/prism_chunk.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>
#include <omp.h>

#include "kernels/prism_chunk_gradient.h"

namespace prism::kernels::testing {
namespace {

/// Everything the kernel writes for a problem; buffers start as NaN.
template <class Storage>
struct Result {
  using Real = RealOf<Storage>;
  explicit Result(const Problem<Storage>& p)
      : o(unwritten<Storage>(p.shape.tokens() * p.shape.heads * p.shape.value_width)),
        final_state(unwritten<Real>(p.state_count())),
        dq(unwritten<Storage>(p.q.count())),
        dk(unwritten<Storage>(p.k.count())),
        dw(unwritten<Storage>(p.w.count())),
        derase_read(unwritten<Storage>(p.erase_read.count())),
        db(unwritten<Real>(p.b.count())),
        dg(unwritten<Real>(p.g.count())),
        dinitial_state(unwritten<Real>(p.state_count())) {
    const int64_t chunk = p.shape.chunk ? p.shape.chunk : prism_chunk_length(p.shape);
    auto chunk_states = unwritten<Real>(prism_chunk_count(p.shape, chunk) * p.shape.heads *
                                        p.shape.key_width * p.shape.value_width);
    prism_chunk_forward(p.shape, p.inputs(), o.data(), final_state.data(), chunk_states.data());
    PrismChunkInputs in = p.inputs();
    in.initial_state = nullptr;  // the backward has it as the first chunk's state
    prism_chunk_backward(p.shape, in, chunk_states.data(), p.d_o.as_view(), p.d_final.data(),
                         {dq.data(), dk.data(), dw.data(), db.data(), dg.data(),
                          derase_read.empty() ? nullptr : derase_read.data(), dinitial_state.data()});
  }
  bool operator==(const Result& r) const {
    return same_bits(o, r.o) && same_bits(final_state, r.final_state) && same_bits(dq, r.dq) &&
           same_bits(dk, r.dk) && same_bits(dw, r.dw) && same_bits(derase_read, r.derase_read) &&
           same_bits(db, r.db) && same_bits(dg, r.dg) && same_bits(dinitial_state, r.dinitial_state);
  }
  std::vector<Storage> o;
  std::vector<Real> final_state;
  std::vector<Storage> dq, dk, dw, derase_read;
  std::vector<Real> db, dg, dinitial_state;
};

struct Tolerance {
  double values, gradients, gate_gradients;
};
template <class Storage>
constexpr Tolerance tolerance() {
  if (std::is_same_v<Storage, double>) return {1e-11, 1e-11, 1e-11};
  if (std::is_same_v<Storage, float>) return {1e-5, 1e-5, 1e-5};
  return {0.005, 0.008, 0.01};
}

template <class Storage>
void expect_matches_token_loop(const Case& c) {
  SCOPED_TRACE(c.name + ", chunk " + std::to_string(c.chunk));
  const Problem<Storage> p(c);
  const Result<Storage> actual(p);
  std::vector<double> o(actual.o.size()), final_state(actual.final_state.size());
  prism_chunk_reference(p.shape, p.inputs(), o.data(), final_state.data());
  const ChunkGradients expected = reference_gradients(p);
  const Tolerance limit = tolerance<Storage>();
  EXPECT_LE(relative_error(as_double(actual.o), o), limit.values) << "o";
  EXPECT_LE(relative_error(as_double(actual.final_state), final_state), limit.values) << "final state";
  EXPECT_LE(relative_error(as_double(actual.dq), expected.dq), limit.gradients) << "dq";
  EXPECT_LE(relative_error(as_double(actual.dk), expected.dk), limit.gradients) << "dk";
  EXPECT_LE(relative_error(as_double(actual.dw), expected.dw), limit.gradients) << "dw";
  EXPECT_LE(relative_error(as_double(actual.derase_read), expected.derase_read), limit.gradients)
      << "derase_read";
  EXPECT_LE(relative_error(as_double(actual.dinitial_state), expected.dinitial_state), limit.gradients)
      << "dS0";
  EXPECT_LE(relative_error(as_double(actual.db), expected.db), limit.gate_gradients) << "db";
  EXPECT_LE(relative_error(as_double(actual.dg), expected.dg), limit.gate_gradients) << "dg";
}

template <class Storage>
class PrismChunk : public ::testing::Test {};
using Storages = ::testing::Types<double, float, BFloat16>;
TYPED_TEST_SUITE(PrismChunk, Storages);

TYPED_TEST(PrismChunk, MatchesTheTokenLoop) {
  for (const Case& c : cases()) expect_matches_token_loop<TypeParam>(c);
}

TYPED_TEST(PrismChunk, MatchesAtEveryChunkLength) {
  for (int64_t chunk = 1; chunk <= 70; ++chunk)
    expect_matches_token_loop<TypeParam>({.name = "every chunk",
                                          .lengths = {69},
                                          .L = 2,
                                          .Hk = 1,
                                          .H = 1,
                                          .K = 9,
                                          .V = 6,
                                          .chunk = chunk,
                                          .gates = Gates::kMixed});
}

TYPED_TEST(PrismChunk, MatchesOnEveryTarget) {
  ASSERT_FALSE(hwy::SupportedAndGeneratedTargets().empty());
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    for (const Case& c : cases()) expect_matches_token_loop<TypeParam>(c);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TYPED_TEST(PrismChunk, RepeatsItsBitsOnAnyNumberOfThreads) {
  const int threads = omp_get_max_threads();
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Problem<TypeParam> p(c);
    const Result<TypeParam> first(p);
    EXPECT_TRUE(first == Result<TypeParam>(p)) << "a second time";
    for (const int count : {1, 2}) {
      omp_set_num_threads(count);
      EXPECT_TRUE(first == Result<TypeParam>(p)) << count << " threads";
    }
    omp_set_num_threads(threads);
  }
}

/// Sequence n of `p` as a call of its own, its rows copied to another place and alignment.
template <class Storage>
void expect_same_alone(const Problem<Storage>& p, const Result<Storage>& all, int64_t n) {
  using Real = RealOf<Storage>;
  const PrismChunkShape& s = p.shape;
  const int64_t first = p.offsets[n], length = p.offsets[n + 1] - first;
  const int64_t offsets[] = {0, length}, states = s.heads * s.key_width * s.value_width;
  PrismChunkShape shape = s;
  shape.sequences = {1, offsets};
  std::vector<std::vector<std::byte>> copies;
  const auto moved = [&](const auto& tensor) {
    View view = tensor.as_view();
    if (!view.data) return view;
    const size_t item = sizeof(tensor.data[0]), bytes = length * view.token_stride * item;
    copies.emplace_back(bytes + item);
    std::memcpy(copies.back().data() + item,
                static_cast<const std::byte*>(view.data) + first * view.token_stride * item, bytes);
    view.data = copies.back().data() + item;
    return view;
  };
  const PrismChunkInputs in{moved(p.q),
                            moved(p.k),
                            moved(p.w),
                            moved(p.b),
                            moved(p.g),
                            moved(p.erase_read),
                            p.initial_state.empty() ? nullptr : p.initial_state.data() + n * states};
  const int64_t chunk = s.chunk ? s.chunk : prism_chunk_length(s);
  auto o = unwritten<Storage>(length * s.heads * s.value_width),
       dq = unwritten<Storage>(length * s.key_heads * s.key_width);
  auto final_state = unwritten<Real>(states), starts = unwritten<Real>((length / chunk + 1) * states);
  auto dk = unwritten<Storage>(dq.size() * s.steps), dw = unwritten<Storage>(o.size() * s.steps);
  auto db = unwritten<Real>(length * s.heads), dg = db;
  prism_chunk_forward(shape, in, o.data(), final_state.data(), starts.data());
  prism_chunk_backward(shape, in, starts.data(), moved(p.d_o), p.d_final.data() + n * states,
                       {dq.data(), dk.data(), dw.data(), db.data(), dg.data()});
  const auto same = [&](const auto& mine, const auto& theirs, int64_t per_token) {
    return std::memcmp(mine.data(), theirs.data() + first * per_token, mine.size() * sizeof(mine[0])) == 0;
  };
  EXPECT_TRUE(same(o, all.o, s.heads * s.value_width));
  EXPECT_TRUE(same(dq, all.dq, s.key_heads * s.key_width));
  EXPECT_TRUE(same(dk, all.dk, s.steps * s.key_heads * s.key_width));
  EXPECT_TRUE(same(dw, all.dw, s.steps * s.heads * s.value_width));
  EXPECT_TRUE(same(db, all.db, s.heads));
  EXPECT_TRUE(same(dg, all.dg, s.heads));
  EXPECT_EQ(std::memcmp(final_state.data(), all.final_state.data() + n * states, states * sizeof(Real)), 0);
}

TYPED_TEST(PrismChunk, SequenceAloneHasTheBitsItHasInABatch) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Problem<TypeParam> p(c);
    const Result<TypeParam> all(p);
    for (int64_t n = 0; n < p.shape.sequences.count; ++n)
      if (p.offsets[n + 1] > p.offsets[n]) expect_same_alone(p, all, n);
  }
}

TYPED_TEST(PrismChunk, StepsMatchTheTokenLoop) {
  using Real = RealOf<TypeParam>;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Problem<TypeParam> p(c);
    const PrismChunkShape& s = p.shape;
    const int64_t size = s.heads * s.key_width * s.value_width;
    std::vector<Real> state = p.initial_state.empty() ? std::vector<Real>(p.state_count()) : p.initial_state;
    auto o = unwritten<TypeParam>(s.tokens() * s.heads * s.value_width);
    PrismChunkShape one = s;
    const int64_t offsets[] = {0, 1};
    one.sequences = {1, offsets};
    for (int64_t n = 0; n < s.sequences.count; ++n)
      for (int64_t t = p.offsets[n]; t < p.offsets[n + 1]; ++t) {
        PrismChunkInputs in = p.inputs();
        const auto advance = [&]<class T>(View& view, const T*) {
          if (view.data) view.data = static_cast<const T*>(view.data) + t * view.token_stride;
        };
        for (View* view : {&in.q, &in.k, &in.w, &in.erase_read})
          advance(*view, static_cast<TypeParam*>(nullptr));
        for (View* view : {&in.b, &in.g}) advance(*view, static_cast<Real*>(nullptr));
        prism_step(one, in, state.data() + n * size, o.data() + t * s.heads * s.value_width);
      }
    std::vector<double> expected(o.size()), expected_state(state.size());
    prism_chunk_reference(s, p.inputs(), expected.data(), expected_state.data());
    EXPECT_LE(relative_error(as_double(o), expected), tolerance<TypeParam>().values) << "o";
    EXPECT_LE(relative_error(as_double(state), expected_state), tolerance<TypeParam>().values) << "state";
  }
}

TEST(PrismChunkStep, TakesManySequencesAtOnce) {
  const Problem<float> p(
      {.name = "step", .lengths = std::vector<int64_t>(20, 1), .L = 2, .H = 4, .K = 24, .V = 40});
  std::vector<float> state = p.initial_state;
  auto o = unwritten<float>(p.shape.tokens() * p.shape.heads * p.shape.value_width);
  prism_step(p.shape, p.inputs(), state.data(), o.data());
  std::vector<double> expected(o.size()), expected_state(state.size());
  prism_chunk_reference(p.shape, p.inputs(), expected.data(), expected_state.data());
  EXPECT_LE(relative_error(as_double(o), expected), 1e-5);
  EXPECT_LE(relative_error(as_double(state), expected_state), 1e-5);
}

/// The hand-written reverse of the token loop, which the tests above rely on, against differences of the
/// loop.
TEST(PrismChunkReference, GradientsMatchDifferences) {
  Problem<double> p({.name = "differences",
                     .lengths = {3, 2},
                     .L = 2,
                     .Hk = 1,
                     .H = 2,
                     .K = 3,
                     .V = 2,
                     .erase_read = true});
  const ChunkGradients expected = reference_gradients(p);
  const auto loss = [&] {
    std::vector<double> o(p.shape.tokens() * p.shape.heads * p.shape.value_width), state(p.state_count());
    prism_chunk_reference(p.shape, p.inputs(), o.data(), state.data());
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += o[i] * p.d_o.data[i];
    for (size_t i = 0; i < state.size(); ++i) sum += state[i] * p.d_final[i];
    return sum;
  };
  const auto check = [&](std::vector<double>& values, const std::vector<double>& gradient, const char* name) {
    ASSERT_EQ(values.size(), gradient.size());
    std::vector<double> differences;
    for (double& value : values) {
      const double kept = value, step = 1e-6;
      value = kept + step;
      const double above = loss();
      value = kept - step;
      differences.push_back((above - loss()) / (2 * step));
      value = kept;
    }
    EXPECT_LE(relative_error(gradient, differences), 1e-8) << name;
  };
  check(p.q.data, expected.dq, "dq");
  check(p.k.data, expected.dk, "dk");
  check(p.w.data, expected.dw, "dw");
  check(p.b.data, expected.db, "db");
  check(p.g.data, expected.dg, "dg");
  check(p.erase_read.data, expected.derase_read, "derase_read");
  check(p.initial_state, expected.dinitial_state, "dS0");
}

TEST(PrismChunkLength, IgnoresTheBatch) {
  const Problem<float> one({.name = "one", .lengths = {5}}), many({.name = "many", .lengths = {5, 900}});
  EXPECT_EQ(prism_chunk_length(one.shape), prism_chunk_length(many.shape));
  EXPECT_EQ(prism_chunk_count(many.shape, 16), 1 + 57);
}

}  // namespace
}  // namespace prism::kernels::testing
