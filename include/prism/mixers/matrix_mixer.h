#pragma once
#include <algorithm>
#include <cstdint>
#include <tuple>

#include "prism/core/config.h"
#include "prism/mixers/recurrent_mixer.h"

namespace prism {

/// The fields of the settings below for `C`, a DeltaConfig or a struct with more settings on top of it.
template <class C>
constexpr auto delta_fields() {
  using Integer = Field<C, int64_t, Range>;
  using Switch = Field<C, bool, Any>;
  return std::tuple{Integer{"heads", &C::heads, Range{1, 4096}, "", "value heads H"},
                    Integer{"key_heads", &C::key_heads, Range{0, 4096}, "",
                            "heads of queries and keys; divides heads; 0 means as many"},
                    Integer{"key_width", &C::key_width, Range{0, 65536}, "",
                            "key channels K a head; 0 means model width / heads"},
                    Integer{"value_width", &C::value_width, Range{0, 65536}, "",
                            "value channels V a head; 0 means model width / heads"},
                    Integer{"conv_width", &C::conv_width, Range{1, 64}, "tokens",
                            "width of the causal convolution on q, k and v"},
                    Switch{"output_norm", &C::output_norm, Any{}, "", "RMS norm of each head's output"},
                    Switch{"output_gate", &C::output_gate, Any{}, "", "output times SiLU(W_g x)"}};
}

/// Settings of the delta family: short convolutions on q, k and v, a matrix state a head, norm and gate at
/// the output.
struct DeltaConfig {
  int64_t heads = 2, key_heads = 0, key_width = 0, value_width = 0, conv_width = 4;
  bool output_norm = true, output_gate = true;
  static constexpr auto fields = delta_fields<DeltaConfig>();
};

/// A mixer with one matrix a head, o_t = scale S_t^T q_t, in three parts: one projection of x, the read of
/// the states, and the output. Mixture of Memories runs the middle part on several memories.
class MatrixMixer : public RecurrentMixer {
 public:
  /// The one projection, [rows, D]. Its first query_rows() rows give the query; the others what is written.
  const at::Tensor& in_weight() const { return in_weight_; }
  int64_t query_rows() const { return key_heads_ * key_width_; }
  /// x [...,D] projected -> o [...,H,V].
  virtual at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const = 0;
  /// o [...,H,V], x [...,D] -> y [...,D].
  virtual at::Tensor output(const at::Tensor& o, const at::Tensor& x) const;
  std::vector<StateTensor> state_tensors() const override;
  int64_t shortest_part() const override { return std::max<int64_t>(conv_width_ - 1, 1); }

 protected:
  /// The convolution and the one projection of q, k, v and `gate_columns` more. Usage errors, opening with
  /// `name`, where the settings do not fit each other or the width.
  MatrixMixer(const DeltaConfig& config, int64_t width, const char* name, int64_t gate_columns);
  /// The same without a convolution where conv_width is 0.
  struct Shape {
    int64_t heads, key_heads, key_width, value_width, conv_width;
  };
  MatrixMixer(const Shape& shape, int64_t width, int64_t gate_columns);
  /// The parameters of output(); call it last.
  void register_output(bool norm, bool gate);

  at::Tensor mix(const at::Tensor& x, const TokenStream& stream) override;

  /// What a projection holds: q, k [...,Hk,K] and v [...,H,V] after the convolution, then the columns for
  /// gates in the dtype of gates.
  struct Projected {
    at::Tensor q, k, v, gates;
  };
  Projected split(const at::Tensor& projected, const TokenStream& stream) const;
  int64_t conv_channels() const { return 2 * key_heads_ * key_width_ + heads_ * value_width_; }

  int64_t width_, heads_, key_heads_, key_width_, value_width_, conv_width_;
  at::Tensor conv_weight_, conv_bias_, in_weight_, norm_weight_, gate_weight_, out_weight_;
};

}  // namespace prism
