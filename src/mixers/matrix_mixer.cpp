#include "prism/mixers/matrix_mixer.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"

namespace prism {
namespace {

delta::HeadShape heads_of(const DeltaConfig& c, int64_t width, const char* name) {
  return delta::resolved_heads({c.heads, c.key_heads, c.key_width, c.value_width}, width, name);
}

}  // namespace

MatrixMixer::MatrixMixer(const Shape& shape, int64_t width, int64_t gate_columns)
    : width_(width),
      heads_(shape.heads),
      key_heads_(shape.key_heads),
      key_width_(shape.key_width),
      value_width_(shape.value_width),
      conv_width_(shape.conv_width) {
  if (conv_width_)
    conv_weight_ =
        register_parameter("conv_weight", initial::uniform({conv_channels(), conv_width_}, conv_width_));
  in_weight_ = register_parameter("in_weight", initial::linear(conv_channels() + gate_columns, width));
}

MatrixMixer::MatrixMixer(const DeltaConfig& config, int64_t width, const char* name, int64_t gate_columns)
    : MatrixMixer(
          [&] {
            const auto h = heads_of(config, width, name);
            return Shape{h.heads, h.key_heads, h.key_width, h.value_width, config.conv_width};
          }(),
          width, gate_columns) {}

void MatrixMixer::register_output(bool norm, bool gate) {
  const int64_t values = heads_ * value_width_;
  if (norm) norm_weight_ = register_parameter("norm_weight", initial::ones({value_width_}));
  if (gate) gate_weight_ = register_parameter("gate_weight", initial::linear(values, width_));
  out_weight_ = register_parameter("out_weight", initial::linear(width_, values));
}

at::Tensor MatrixMixer::mix(const at::Tensor& x, const TokenStream& stream) {
  return output(read(delta::aligned_linear(x, in_weight_), stream), x);
}

MatrixMixer::Projected MatrixMixer::split(const at::Tensor& projected, const TokenStream& stream) const {
  const int64_t key = key_heads_ * key_width_, gates = in_weight_.size(0) - conv_channels();
  const auto parts = delta::split_columns(projected, {conv_channels(), gates});
  const at::Tensor mixed = conv_width_ ? stream.convolve(parts[0], conv_weight_, conv_bias_) : parts[0];
  const auto qkv = mixed.split_with_sizes({key, key, heads_ * value_width_}, -1);
  return {.q = qkv[0].unflatten(-1, {key_heads_, key_width_}),
          .k = qkv[1].unflatten(-1, {key_heads_, key_width_}),
          .v = qkv[2].unflatten(-1, {heads_, value_width_}),
          .gates = delta::gate_typed(parts[1])};
}

at::Tensor MatrixMixer::output(const at::Tensor& o, const at::Tensor& x) const {
  return delta::gated_output(o, x, gate_weight_, norm_weight_, out_weight_);
}

std::vector<StateTensor> MatrixMixer::state_tensors() const {
  std::vector<StateTensor> tensors{{"S", {heads_, key_width_, value_width_}}};
  if (conv_width_) tensors.push_back({"conv", {conv_channels(), conv_width_ - 1}, /*activations=*/true});
  return tensors;
}

}  // namespace prism
