#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "prism/core/config.h"

namespace prism {

enum class Loss { kFullSoftmax, kSampledSoftmax, kBce, kGbce };
template <>
struct EnumNames<Loss> {
  static constexpr std::array names{"full_softmax", "sampled_softmax", "bce", "gbce"};
};

struct LossConfig {
  Loss loss = Loss::kFullSoftmax;
  int64_t negatives = 256;
  double temperature = 1.0;
  bool log_q = false;
  double gbce_t = 0.75;
  static constexpr auto fields =
      std::tuple{Field{"loss", &LossConfig::loss, Any{}, "", "training loss over all positions"},
                 Field{"negatives", &LossConfig::negatives, Range{1, 1e9}, "items",
                       "sampled negatives a position (sampled_softmax, gbce; bce uses 1)"},
                 Field{"temperature", &LossConfig::temperature, Range{1e-6, 1e6}, "",
                       "scores are divided by it (softmax losses)"},
                 Field{"log_q", &LossConfig::log_q, Any{}, "", "log-Q correction of sampled_softmax"},
                 Field{"gbce_t", &LossConfig::gbce_t, Range{0, 1}, "", "calibration t of gBCE"}};
};

/// Mean loss over positions. h [N,D]; item_vectors [I,D]; targets int64 [N]; item_counts int64 [I] training
/// counts (log-Q; may be undefined otherwise). Position i draws its negatives from the stream {seed,
/// "negatives", step}, as position first_position + i of the whole step. The full softmax never holds N x I
/// scores: it works in blocks of positions and keeps only the gradients.
at::Tensor next_item_loss(const LossConfig& config, const at::Tensor& h_ND, const at::Tensor& item_vectors_ID,
                          const at::Tensor& targets_N, const at::Tensor& item_counts_I, uint64_t seed,
                          int64_t step, int64_t first_position = 0);

}  // namespace prism
