#include "models/seeded_weights.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include "prism/core/random.h"

namespace prism {

SeededWeights::SeededWeights(uint64_t seed)
    : generator_(at::detail::getDefaultCPUGenerator()), saved_(generator_.clone()) {
  generator_.set_current_seed(stream_seed(seed, "weights"));
}

SeededWeights::~SeededWeights() { generator_.set_state(saved_.get_state()); }

}  // namespace prism
