#include "softmax_loss_cuda.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "kernel_views.h"
#include "prism/core/error.h"
#include "prism/ops/cuda_kernels.h"

namespace prism {
namespace {

constexpr int64_t kScoresAtOnce = int64_t{1} << 26;  // 256 MiB of fp32, and as many gradients
constexpr int64_t kTile = 128;                       // of the matrix products

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/// items in `type`, with rows of zeros up to a multiple of the tile: matrix products whose sizes and strides
/// do not fill 16 bytes run several times slower.
at::Tensor padded_rows(const at::Tensor& items, at::ScalarType type) {
  const int64_t rows = items.size(0), padded = round_up(rows, kTile);
  at::Tensor out = at::empty({padded, items.size(1)}, items.options().dtype(type));
  out.narrow(0, 0, rows).copy_(items);
  out.narrow(0, rows, padded - rows).zero_();
  return out;
}

/// Losses [n] and, in place of the scores or beside them, d losses / d scores [n,J] in `type`.
at::Tensor gradients_of(const at::Tensor& scores, int64_t items, const at::Tensor& targets,
                        at::ScalarType type, const at::Tensor& losses) {
  at::Tensor gradients =
      type == at::kFloat ? scores : at::empty(scores.sizes(), scores.options().dtype(type));
  const c10::DeviceGuard device(scores.device());
  const CudaKernels& table = *cuda_kernels();
  const char* problem = table.softmax_loss(
      {.gradient = kernel_scalar(type), .rows = scores.size(0), .columns = items, .stride = scores.size(1)},
      scores.const_data_ptr<float>(), targets.const_data_ptr<int64_t>(), gradients.mutable_data_ptr(),
      losses.mutable_data_ptr<float>(), table.current_stream());
  check_launch("full_softmax_loss", problem);
  return gradients;
}

}  // namespace

bool has_cuda_softmax_loss(const at::Tensor& h) {
  const auto type = h.scalar_type();
  return h.is_cuda() && (type == at::kBFloat16 || type == at::kHalf || type == at::kFloat) &&
         cuda_kernels() && cuda_kernels()->softmax_loss;
}

SoftmaxLossGradients softmax_loss_cuda(const at::Tensor& h, const at::Tensor& items,
                                       const at::Tensor& targets) {
  const at::ScalarType type = h.scalar_type();
  const int64_t positions = h.size(0), width = h.size(1);
  const at::Tensor h_n = h.contiguous(), items_n = padded_rows(items, type);
  const int64_t columns = items_n.size(0),
                block = std::min(positions, round_up(std::max<int64_t>(kScoresAtOnce / columns, 1), kTile));
  const double scale = 1.0 / static_cast<double>(positions);
  const auto sums = h.options().dtype(at::kFloat);
  const at::Tensor losses = at::empty({positions}, sums), buffer = at::empty({block, columns}, sums);
  SoftmaxLossGradients out{{}, at::empty_like(h_n), at::zeros({columns, width}, sums)};
  for (int64_t first = 0; first < positions; first += block) {
    const int64_t count = std::min(block, positions - first);
    const at::Tensor h_block = h_n.narrow(0, first, count);
    at::Tensor scores = buffer.narrow(0, 0, count), d_h = out.d_h.narrow(0, first, count);
    at::mm_outf(h_block, items_n.t(), at::kFloat, scores);
    const at::Tensor gradients = gradients_of(scores, items.size(0), targets.narrow(0, first, count), type,
                                              losses.narrow(0, first, count));
    at::addmm_outf(d_h, gradients, items_n, /*beta=*/0, scale, d_h);
    at::addmm_outf(out.d_items, gradients.t(), h_block, at::kFloat, /*beta=*/1, scale, out.d_items);
  }
  out.loss = losses.sum(at::kDouble).mul_(scale).to(at::kFloat);
  out.d_items = out.d_items.narrow(0, 0, items.size(0));
  return out;
}

}  // namespace prism
