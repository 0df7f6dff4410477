#include "prism/ops/attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <optional>

#include "prism/core/error.h"

namespace prism {
namespace {

at::Tensor heads_first(const at::Tensor& x) { return x.transpose(1, 2); }

/// Repeats key heads until there is one for each of `heads` query heads.
at::Tensor spread(const at::Tensor& x_BTHC, int64_t heads) {
  return x_BTHC.size(2) == heads ? x_BTHC : x_BTHC.repeat_interleave(heads / x_BTHC.size(2), 2);
}

at::Tensor attend_rows(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  if (q.numel() == 0) return at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  const int64_t heads = q.size(2);
  return heads_first(at::scaled_dot_product_attention(heads_first(q), heads_first(spread(k, heads)),
                                                      heads_first(spread(v, heads)), {}, 0.0, true, scale));
}

/// Places of the packed tokens in a [sequences, longest] grid.
at::Tensor grid_places(const Packing& packing, int64_t longest, at::Device device) {
  const auto& offsets = packing.offsets();
  std::vector<int64_t> places;
  places.reserve(offsets.back());
  for (size_t n = 0; n + 1 < offsets.size(); ++n)
    for (int64_t t = 0; t < offsets[n + 1] - offsets[n]; ++t)
      places.push_back(static_cast<int64_t>(n) * longest + t);
  return at::tensor(places, at::kLong).to(device);
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                            const Packing& packing) {
  check(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "causal_attention: q, k, v must be [B,T,H,.]");
  check(q.size(2) % k.size(2) == 0, "causal_attention: {} heads are no multiple of {} key heads", q.size(2),
        k.size(2));
  check(q.size(3) == k.size(3), "causal_attention: q has {} channels a head, k has {}", q.size(3), k.size(3));
  if (!packing.is_packed()) return attend_rows(q, k, v, scale);
  // Right padding under a causal mask changes nothing for the real tokens.
  const int64_t count = packing.sequences(q), longest = packing.max_length(q);
  const at::Tensor places = grid_places(packing, longest, q.device());
  const auto grid = [&](const at::Tensor& x) {
    return at::zeros({count * longest, x.size(2), x.size(3)}, x.options())
        .index_copy(0, places, x.squeeze(0))
        .view({count, longest, x.size(2), x.size(3)});
  };
  const at::Tensor o = attend_rows(grid(q), grid(k), grid(v), scale);
  return o.reshape({count * longest, o.size(2), o.size(3)}).index_select(0, places).unsqueeze(0);
}

at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                            const std::vector<int64_t>& past) {
  check(static_cast<int64_t>(past.size()) == q.size(0), "cached_attention: {} pasts for {} sequences",
        past.size(), q.size(0));
  if (q.numel() == 0) return at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  const int64_t heads = q.size(2);
  std::optional<at::Tensor> seen;  // [B,1,T,C]
  const auto sees_all = [&](int64_t before) { return before + 1 == k.size(1); };
  if (q.size(1) > 1 || !std::all_of(past.begin(), past.end(), sees_all)) {
    const auto index = at::device(q.device()).dtype(at::kLong);
    const at::Tensor last =
        at::tensor(past, at::kLong).to(q.device()).unsqueeze(1) + at::arange(q.size(1), index);  // [B,T]
    seen = at::arange(k.size(1), index).le(last.unsqueeze(2)).unsqueeze(1);
  }
  return heads_first(at::scaled_dot_product_attention(
      heads_first(q), heads_first(spread(k, heads)), heads_first(spread(v, heads)), seen, 0.0, false, scale));
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& positions, double theta) {
  const int64_t half = x.size(-1) / 2;
  check(x.size(-1) % 2 == 0, "rope: {} channels a head are odd", x.size(-1));
  const at::Tensor frequency =
      at::pow(theta, at::arange(half, at::device(x.device()).dtype(at::kDouble)) * (-1.0 / half));
  const at::Tensor angle = (positions.unsqueeze(-1) * frequency).unsqueeze(-2);  // [...,1,K/2]
  const at::Tensor cosine = at::cos(angle).to(x.scalar_type()), sine = at::sin(angle).to(x.scalar_type());
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * cosine - b * sine, b * cosine + a * sine}, -1);
}

}  // namespace prism
