#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>

namespace prism {

/// While it lives, the default generator draws from the stream {seed, "weights"}; then it goes on as before.
class SeededWeights {
 public:
  explicit SeededWeights(uint64_t seed);
  ~SeededWeights();
  SeededWeights(const SeededWeights&) = delete;
  SeededWeights& operator=(const SeededWeights&) = delete;

 private:
  at::Generator generator_, saved_;
};

}  // namespace prism
