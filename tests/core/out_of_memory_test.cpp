#include "prism/core/out_of_memory.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <vector>

#include "prism/core/memory.h"
#include "support/error_of.h"

namespace prism {
namespace {

const auto kMessage = [] { return std::string("probe: out of memory; lower --batch"); };

TEST(OutOfMemory, IsToldInOurWords) {
  tune_allocator();
  EXPECT_EQ(error_of([] { with_memory_error(kMessage, [] { return at::empty({int64_t{1} << 60}); }); }),
            kMessage());
  EXPECT_EQ(error_of([] { with_memory_error(kMessage, []() -> int { throw std::bad_alloc(); }); }),
            kMessage());
}

TEST(OutOfMemory, OtherErrorsAndResultsPass) {
  EXPECT_THROW(with_memory_error(kMessage,
                                 [] {
                                   return at::matmul(at::ones({2, 3}), at::ones({2, 3}));
                                 }),
               c10::Error);
  EXPECT_EQ(error_of([] { with_memory_error(kMessage, [] { fail("own"); }); }), "own");
  EXPECT_EQ(with_memory_error(kMessage, [] { return 7; }), 7);
}

}  // namespace
}  // namespace prism
