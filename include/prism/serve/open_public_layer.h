#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "prism/mixers/gated_delta_net.h"

namespace prism {

/// Layer `index` (from 0) of a public model as a gated_delta_net mixer in evaluation mode, fp32 on the CPU.
/// `folder` holds config.json and model.safetensors, or several files and model.safetensors.index.json;
/// models/public_layer.h lists the layouts. `prefix` is what the layer's names begin with, where that is not
/// public_prefix(). Only the layer's tensors are read. Errors as there.
std::shared_ptr<GatedDeltaNet> open_public_layer(const std::filesystem::path& folder, int64_t index,
                                                 const std::string& prefix = "");

}  // namespace prism
