#include "prism/ops/packing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "prism/core/error.h"

namespace prism {
namespace {

TEST(Packing, RowsAreSequences) {
  const at::Tensor x = at::zeros({3, 7, 2});
  EXPECT_FALSE(Packing::rows().is_packed());
  EXPECT_EQ(Packing::rows().sequences(x), 3);
  EXPECT_EQ(Packing::rows().max_length(x), 7);
  EXPECT_FALSE(Packing::rows().cu_seqlens().defined());
}

TEST(Packing, PackedSequencesFollowEachOther) {
  const Packing packing = Packing::packed({3, 0, 1, 5});
  const at::Tensor x = at::zeros({1, 9, 2});
  EXPECT_TRUE(packing.is_packed());
  EXPECT_EQ(packing.offsets(), (std::vector<int64_t>{0, 3, 3, 4, 9}));
  EXPECT_EQ(packing.sequences(x), 4);
  EXPECT_EQ(packing.max_length(x), 5);
  EXPECT_TRUE(at::equal(packing.cu_seqlens(), at::tensor({0, 3, 3, 4, 9}, at::kLong)));
}

TEST(Packing, NoSequenceAndNegativeLengths) {
  EXPECT_TRUE(Packing::packed({}).is_packed());
  EXPECT_EQ(Packing::packed({}).sequences(at::zeros({1, 0})), 0);
  EXPECT_EQ(Packing::packed({}).max_length(at::zeros({1, 0})), 0);
  EXPECT_THROW(Packing::packed({2, -1}), Error);
}

}  // namespace
}  // namespace prism
