#pragma once
#include <cstdint>
#include <memory>
#include <tuple>

#include "prism/mixers/matrix_mixer.h"
#include "prism/ops/memory_routing.h"

namespace prism {

enum class MemoryBase { kGatedDeltaNet, kDeltaNet, kEfla, kComba, kPreconditionedDeltaNet };
template <>
struct EnumNames<MemoryBase> {
  static constexpr std::array names{"gated_delta_net", "delta_net", "efla", "comba",
                                    "preconditioned_delta_net"};
};

struct MomConfig : DeltaConfig {
  MemoryBase base = MemoryBase::kGatedDeltaNet;
  int64_t memories = 4, top_k = 2;
  bool shared_memory = true;
  double balance = 0.01;
  static constexpr auto fields = std::tuple_cat(
      std::tuple{
          Field{"base", &MomConfig::base, Any{}, "", "the mixer whose memory there are several of"},
          Field{"memories", &MomConfig::memories, Range{1, 1024}, "", "routed memories M"},
          Field{"top_k", &MomConfig::top_k, Range{1, 1024}, "", "memories each token is sent to; at most M"},
          Field{"shared_memory", &MomConfig::shared_memory, Any{}, "",
                "one more memory that sees every token"},
          Field{"balance", &MomConfig::balance, Range{0, 100}, "",
                "weight of the balance loss of the router"}},
      delta_fields<MomConfig>());
};

/// Mixture of Memories (arXiv 2502.13685): softmax(W_r x) sends each token to its top k of M memories of a
/// base mixer, with weights renormalised over the k; a memory advances on its own tokens only, and o_t =
/// sum_m w_tm read_m(q_t), plus the shared memory's read. Memories have their own k, v and gate projections;
/// query, convolution (on each memory's stream), decay parameters, norm, gate and output are shared. State a
/// sequence: the base's tensors with the memory as first dimension, the shared one last.
class Mom final : public RecurrentMixer {
 public:
  using Config = MomConfig;
  static constexpr auto kName = "mom";
  static constexpr auto kSummary = "Mixture of Memories: tokens routed to several memories of a base mixer";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Mom(const Config& config, int64_t width);

  std::vector<StateTensor> state_tensors() const override;
  /// Which memories have a token is decided anew at each one.
  bool steps_repeat() const override { return false; }

 protected:
  at::Tensor mix(const at::Tensor& x, const TokenStream& stream) override;

 private:
  struct Choice {
    at::Tensor probabilities, weights, memories;  // [tokens,M], [tokens,k], int64 [tokens,k]
  };
  Choice route(const at::Tensor& x_ND) const;
  at::Tensor project(const MemoryRouting& routing, const at::Tensor& x_ND) const;
  at::Tensor read(const MemoryRouting& routing, const at::Tensor& projected, const TokenStream& stream) const;
  int64_t all_memories() const { return config_.memories + (config_.shared_memory ? 1 : 0); }

  Config config_;
  std::shared_ptr<MatrixMixer> base_;
  at::Tensor router_weight_, memory_weight_;
};

}  // namespace prism
