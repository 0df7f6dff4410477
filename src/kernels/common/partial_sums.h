#pragma once
// Sums over rows that do not depend on the thread count: every block of rows has its own partial sums, which
// are added in order.
#include <cstdint>
#include <vector>

#include "kernels/common/scalar.h"

namespace prism::kernels {

class PartialSums {
 public:
  /// `blocks` rows of `columns` sums. `bytes` is the size of an element: 4 or 8.
  PartialSums(Scalar dtype, int64_t blocks, int64_t columns)
      : bytes_(dtype == Scalar::kFloat64 ? sizeof(double) : sizeof(float)),
        blocks_(blocks),
        columns_(columns),
        memory_(static_cast<size_t>(blocks * columns) * bytes_) {}
  void* block(int64_t i) { return memory_.data() + static_cast<size_t>(i * columns_) * bytes_; }

  /// to[c * stride] = the sum over blocks of column first + c, for c < count, stored in `dtype`.
  void add_up(Scalar dtype, int64_t first, int64_t count, void* to, int64_t stride) const {
    with_storage(dtype, [&](auto* storage) {
      using Storage = std::remove_pointer_t<decltype(storage)>;
      const auto* const parts = reinterpret_cast<const RealOf<Storage>*>(memory_.data());
      for (int64_t c = 0; c < count; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < blocks_; ++i) sum += parts[i * columns_ + first + c];
        from_real(static_cast<RealOf<Storage>>(sum), static_cast<Storage*>(to) + c * stride);
      }
    });
  }

 private:
  size_t bytes_;
  int64_t blocks_, columns_;
  std::vector<std::byte> memory_;
};

}  // namespace prism::kernels
