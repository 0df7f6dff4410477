// torch.classes.prism.Layer: a mixer with the weights of a public model, for python/prism. It keeps one
// state: prefill and step continue it, reset starts its sequences anew.
#include <fmt/ranges.h>
#include <torch/custom_class.h>

#include <optional>

#include "prism/core/error.h"
#include "prism/ops/device.h"
#include "prism/serve/open_public_layer.h"

namespace prism {
namespace {

using at::Tensor;

Packing packing_of(const std::optional<Tensor>& cu_seqlens) {
  if (!cu_seqlens) return Packing::rows();
  const Tensor offsets = cu_seqlens->to(at::kCPU, at::kLong).contiguous();
  check(offsets.dim() == 1 && offsets.size(0) >= 1, "layer: cu_seqlens has {} dimensions, expected [N+1]",
        offsets.dim());
  std::vector<int64_t> lengths;
  for (int64_t n = 0; n + 1 < offsets.size(0); ++n)
    lengths.push_back(offsets.data_ptr<int64_t>()[n + 1] - offsets.data_ptr<int64_t>()[n]);
  return Packing::packed(lengths);
}

class Layer final : public torch::CustomClassHolder {
 public:
  Layer(const std::string& folder, int64_t index, const std::string& prefix)
      : mixer_(open_public_layer(folder, index, prefix)) {}

  Tensor forward(const Tensor& x, const std::optional<Tensor>& cu_seqlens) {
    require(x, 3, "[B,T,D]");
    return mixer_->forward(x, packing_of(cu_seqlens));
  }
  Tensor prefill(const Tensor& x, const std::optional<Tensor>& cu_seqlens) {
    const at::NoGradGuard no_gradient;
    require(x, 3, "[B,T,D]");
    const Packing packing = packing_of(cu_seqlens);
    require_sequences(packing.sequences(x));
    return mixer_->prefill(x, packing, state_);
  }
  Tensor step(const Tensor& x) {
    require(x, 2, "[B,D]");
    require_sequences(x.size(0));
    return mixer_->step(x, state_);
  }
  void reset() { state_ = {}; }

  /// By the names that a checkpoint of ours has.
  c10::Dict<std::string, Tensor> weights() const {
    c10::Dict<std::string, Tensor> all;
    for (const auto& own : mixer_->named_parameters()) all.insert(own.key(), own.value());
    return all;
  }
  void move(const std::string& device, at::ScalarType type) {
    reset();
    mixer_->to(require_device(device), type);
  }

 private:
  void require(const Tensor& x, int64_t dims, const char* shape) const {
    const int64_t width = mixer_->in_weight().size(1);
    check(x.dim() == dims && x.size(-1) == width, "layer: x has shape {}, expected {} with D = {}",
          fmt::format("[{}]", fmt::join(x.sizes(), ",")), shape, width);
  }

  void require_sequences(int64_t given) const {
    const auto held = static_cast<int64_t>(state_.lengths.size());
    check(state_.empty() || held == given, "layer: given {} sequences, the state has {}; reset() starts anew",
          given, held);
  }

  std::shared_ptr<GatedDeltaNet> mixer_;
  MixerState state_;
};

}  // namespace
}  // namespace prism

TORCH_LIBRARY_FRAGMENT(prism, m) {
  m.class_<prism::Layer>("Layer")
      .def(torch::init<const std::string&, int64_t, const std::string&>())
      .def("forward", &prism::Layer::forward)
      .def("prefill", &prism::Layer::prefill)
      .def("step", &prism::Layer::step)
      .def("reset", &prism::Layer::reset)
      .def("weights", &prism::Layer::weights)
      .def("move", &prism::Layer::move);
}
