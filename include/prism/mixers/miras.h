#pragma once
#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "prism/core/config.h"
#include "prism/mixers/fast_weight_mixer.h"

namespace prism {

enum class MirasVariant { kMoneta, kYaad, kMemora };
template <>
struct EnumNames<MirasVariant> {
  static constexpr std::array names{"moneta", "yaad", "memora"};
};
enum class HuberForm { kSign, kNorm };
template <>
struct EnumNames<HuberForm> {
  static constexpr std::array names{"sign", "norm"};
};

struct MirasConfig {
  MirasVariant variant = MirasVariant::kMoneta;
  int64_t heads = 2, key_width = 0, value_width = 0, mini_batch = 16, conv_width = 4, gate_rank = 16;
  double max_step = 0;
  HuberForm huber = HuberForm::kSign;
  bool output_norm = true, output_gate = true;
  static constexpr auto fields =
      std::tuple{Field{"variant", &MirasConfig::variant, Any{}, "", "loss and retention, see the equations"},
                 Field{"heads", &MirasConfig::heads, Range{1, 4096}, "", "heads H, each with its own memory"},
                 Field{"key_width", &MirasConfig::key_width, Range{0, 65536}, "",
                       "key channels K a head; 0 means model width / heads"},
                 Field{"value_width", &MirasConfig::value_width, Range{0, 65536}, "",
                       "value channels V a head; 0 means model width / heads"},
                 Field{"mini_batch", &MirasConfig::mini_batch, Range{1, 65536}, "tokens",
                       "tokens whose inner gradients are taken at the same weights"},
                 Field{"conv_width", &MirasConfig::conv_width, Range{0, 64}, "tokens",
                       "width of the causal convolution on q, k and v; 0 means none"},
                 Field{"gate_rank", &MirasConfig::gate_rank, Range{1, 4096}, "",
                       "rank of the projection of the gates alpha and eta of each value channel"},
                 Field{"max_step", &MirasConfig::max_step, Range{0.0, 100.0}, "",
                       "largest inner step eta; 0 means 1 / mini_batch"},
                 Field{"huber", &MirasConfig::huber, Any{}, "",
                       "Yaad beyond delta: delta sign(e), or delta e / norm(e)"},
                 Field{"output_norm", &MirasConfig::output_norm, Any{}, "", "RMS norm of each head's output"},
                 Field{"output_gate", &MirasConfig::output_gate, Any{}, "", "output times SiLU(W_g x)"}};
};

/// Miras (arXiv 2504.13173) with a matrix memory; e = W^T k - v with W at the start of the mini-batch, alpha
/// and eta a value channel:
///   moneta: A_t = alpha A_{t-1} - eta 3 k (e |e|)^T, W_t = A_t / |A_t|_4^2
///   yaad:   W_t = alpha W_{t-1} - eta k h(e)^T, h(e) = e where |e| <= delta
///   memora: W_t = softmax over K of (alpha log W_{t-1} - eta k e^T)
/// State as of a MemoryMixer: W1 [H,K,V], A of Moneta and log W of Memora.
class Miras final : public MemoryMixer {
 public:
  using Config = MirasConfig;
  static constexpr auto kName = "miras";
  static constexpr auto kSummary = "Miras: memories with other losses and retentions (Moneta, Yaad, Memora)";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  Miras(const Config& config, int64_t width);

 private:
  FastWeightArgs memory(const Heads& heads, const at::Tensor& x_BTD) const override;
  std::vector<at::Tensor> first_weights() const override;

  Config config_;
  at::Tensor gate_down_, gate_up_, gate_bias_, delta_bias_;
};

}  // namespace prism
