// The driver's encoder, reached through the runtime so that libcuda is not linked.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/tensor_map.h"

namespace prism::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(entry)
                                                                        : nullptr;
  }();
  return encode;
}

/// The engine wants strides that are multiples of 16 bytes also where a dimension has one entry.
cuuint64_t stride_bytes(int64_t elements, int64_t extent) {
  return extent > 1 ? static_cast<cuuint64_t>(elements) * 2 : 16;
}

/// The encoder wants a current context. A thread that has made no call of the runtime, such as one of
/// autograd's, has none before it names its device.
bool has_context() {
  thread_local const bool bound = [] {
    int device = 0;
    return cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess;
  }();
  return bound;
}

}  // namespace

const char* make_tile_map(CUtensorMap& map, const TileMap& tile) {
  const Encode encode = encoder();
  if (!encode) return "the driver has no cuTensorMapEncodeTiled";
  if (!has_context()) return "the device cannot be used by this thread";
  const int64_t panels = (tile.width + 63) / 64;
  const cuuint64_t extents[5] = {static_cast<cuuint64_t>(std::min<int64_t>(tile.width, 64)),
                                 static_cast<cuuint64_t>(tile.tokens), static_cast<cuuint64_t>(panels),
                                 static_cast<cuuint64_t>(tile.heads), static_cast<cuuint64_t>(tile.steps)};
  const cuuint64_t strides[4] = {stride_bytes(tile.view.token_stride, tile.tokens), stride_bytes(64, panels),
                                 stride_bytes(tile.view.head_stride, tile.heads),
                                 stride_bytes(tile.view.step_stride, tile.steps)};
  const cuuint32_t box[5] = {64, static_cast<cuuint32_t>(tile.rows), static_cast<cuuint32_t>(tile.panels), 1,
                             static_cast<cuuint32_t>(tile.steps_a_tile)};
  const cuuint32_t every[5] = {1, 1, 1, 1, 1};
  const auto type =
      tile.dtype == Scalar::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result = encode(&map, type, 5, const_cast<void*>(tile.view.data), extents, strides, box,
                                 every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return nullptr;
  return result == CUDA_ERROR_INVALID_VALUE ? "the driver refuses a tensor map (alignment or strides)"
                                            : "the driver could not make a tensor map";
}

}  // namespace prism::kernels::cuda
