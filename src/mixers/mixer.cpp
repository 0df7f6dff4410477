#include "prism/mixers/mixer.h"

#include "prism/core/error.h"

namespace prism {

void MixerState::advance(const at::Tensor& x, const Packing& packing) {
  const int64_t sequences = packing.sequences(x);
  if (lengths.empty()) lengths.assign(sequences, 0);
  check(static_cast<int64_t>(lengths.size()) == sequences, "mixer state of {} sequences given {} sequences",
        lengths.size(), sequences);
  for (int64_t n = 0; n < sequences; ++n)
    lengths[n] += packing.is_packed() ? packing.offsets()[n + 1] - packing.offsets()[n] : x.size(1);
}

at::Tensor Mixer::forward_with_gaps(const at::Tensor& x_BTD, const Packing& packing,
                                    const at::Tensor& /*gaps*/) {
  return forward(x_BTD, packing);
}

at::Tensor Mixer::prefill_with_gaps(const at::Tensor& x_BTD, const Packing& packing,
                                    const at::Tensor& /*gaps*/, MixerState& state) {
  return prefill(x_BTD, packing, state);
}

at::Tensor Mixer::step_with_gaps(const at::Tensor& x_BD, const at::Tensor& /*gaps*/, MixerState& state) {
  return step(x_BD, state);
}

at::Tensor Mixer::forward_in_parts(const at::Tensor& /*x_BTD*/, const Packing& /*packing*/,
                                   Ranks& /*ranks*/) {
  usage_error("{}: sees whole sequences only, none that is cut over processes", name());
}

}  // namespace prism
