// prism_chunk's kernel against the token loop, over one list of cases.
#include "prism/kernels/prism_chunk.h"

#include <gtest/gtest.h>
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

}  // namespace
}  // namespace prism::kernels::testing
