#include "prism/ops/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/ops/cuda_kernels.h"

namespace prism {
namespace {

/// The program links LibTorch's CPU libraries only; the CUDA library registers its kernels when it is loaded.
/// LibTorch looks for CUDA once, at the first question, so nothing may ask before the library is there.
void load_cuda(const std::string& name) {
  static const bool loaded = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
  if (!loaded) {
    const char* reason = dlerror();
    usage_error(
        "device {}: LibTorch's CUDA library cannot be loaded ({}); install the full torch wheel with its "
        "nvidia packages, or use --device cpu",
        name, reason ? reason : "it was not found before");
  }
  if (!at::hasCUDA()) usage_error("device {}: no usable NVIDIA GPU was found; use --device cpu", name);
  if (!cuda_kernels() && !dlopen("libprism_cuda.so", RTLD_NOW | RTLD_GLOBAL))
    warn("libprism_cuda.so cannot be loaded ({}): composed operations serve on the GPU", dlerror());
}

}  // namespace

c10::Device require_device(const std::string& name) {
  const bool cuda = name == "cuda" || name.starts_with("cuda:");
  if (name != "cpu" && !cuda) usage_error("--device {}: expected cpu, cuda or cuda:N", name);
  if (!cuda) return c10::Device(c10::kCPU);
  const std::string index = name == "cuda" ? "0" : name.substr(5);
  if (index.empty() || index.size() > 3 || index.find_first_not_of("0123456789") != std::string::npos)
    usage_error("--device {}: expected cpu, cuda or cuda:N", name);
  load_cuda(name);
  const c10::DeviceIndex count = at::detail::getCUDAHooks().deviceCount();
  if (std::stoi(index) >= count) usage_error("--device {}: this machine has {} CUDA devices", name, count);
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(std::stoi(index)));
  c10::impl::getDeviceGuardImpl(c10::kCUDA)->setDevice(device);  // kernels go to the current one's stream
  return device;
}

}  // namespace prism
