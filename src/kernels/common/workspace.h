#pragma once
// Scratch memory of a thread: grown on demand, kept between calls, so that a call allocates nothing after the
// first of its size.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace prism::kernels {

inline constexpr size_t kCacheLine = 64;

/// Hands out consecutive cache-line aligned arrays from `base`; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    T* taken = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
    return taken;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

class Workspace {
 public:
  /// At least `bytes` of this thread's memory; what an earlier call returned is no longer valid.
  static std::byte* of_thread(size_t bytes) {
    thread_local Workspace workspace;
    if (workspace.size_ < bytes) workspace.grow(bytes);
    return workspace.memory_.get();  // NOLINT(clang-analyzer-cplusplus.NewDelete): the thread outlives this
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{kCacheLine}); }
  };
  void grow(size_t bytes) {
    memory_.reset();
    size_ = 0;
    memory_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kCacheLine})));
    size_ = bytes;
  }
  std::unique_ptr<std::byte[], Free> memory_;
  size_t size_ = 0;
};

/// Builds a Buffers(Carver&, args...) in this thread's memory.
template <class Buffers, class... Args>
Buffers buffers_of_thread(const Args&... args) {
  Carver count(nullptr);
  Buffers(count, args...);
  Carver carver(Workspace::of_thread(count.used()));
  return Buffers(carver, args...);
}

}  // namespace prism::kernels
