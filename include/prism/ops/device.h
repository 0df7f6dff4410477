#pragma once
#include <c10/core/Device.h>

#include <string>

namespace prism {

/// "cpu", "cuda" or "cuda:N" as a device that can be used. For CUDA this loads LibTorch's CUDA library, which
/// the small installation does not carry: a usage error says what is missing.
c10::Device require_device(const std::string& name);

}  // namespace prism
