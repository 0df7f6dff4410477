#include "prism/ops/hstu_attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "arguments.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kBucketWidth = 0.301;

Tensor column(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device).view({-1, 1, 1});
}

/// Where each query may look, and which biases it meets: [S or 1,Q,C] each.
struct Places {
  Tensor hidden;            // bool: in the future, or of no token
  Tensor distance, bucket;  // int indices into pos_w and ts_w
};

/// The first dimension is 1 where all rows are alike.
Places places(const HstuArgs& a) {
  const auto device = a.q.device();
  const auto index = at::TensorOptions(at::kLong).device(device);
  const bool alike = std::all_of(a.past.begin(), a.past.end(), [&](int64_t p) { return p == a.past[0]; });
  const Tensor past = column(alike ? std::vector<int64_t>{a.past[0]} : a.past, device);
  const Tensor i = past + at::arange(a.q.size(1), index).view({1, -1, 1});  // positions of the queries
  const Tensor j = at::arange(a.k.size(1), index);
  Places p;
  p.hidden = j.gt(i).logical_or(i.ge(column(a.lengths, device)));
  p.distance = (j - i + a.n - 1).clamp(0, 2 * a.n - 2).to(at::kInt);
  if (!a.ts_w.defined()) return p;
  const Tensor elapsed = a.query_seconds.unsqueeze(-1) - a.seconds.unsqueeze(1);
  p.bucket = at::log(elapsed.abs().clamp_min(1).to(at::kDouble))
                 .div_(kBucketWidth)
                 .to(at::kInt)
                 .clamp_max_(a.ts_w.numel() - 1);
  return p;
}

Tensor chosen(const Tensor& weights, const Tensor& index) {
  return weights.index_select(0, index.flatten()).view(index.sizes());
}

/// Sums of `values` by bucket, in a fixed order; both [S,Q,C].
Tensor sums_by_bucket(const Tensor& index, const Tensor& values, int64_t buckets) {
  if (index.numel() == 0) return at::zeros({buckets}, values.options());
  if (values.is_cpu())
    return at::bincount(index.flatten(), values.to(at::kDouble).flatten(), buckets).to(values.scalar_type());
  // A row of the grid at a time: products with 0 and 1 have a fixed order where scattered sums have none.
  Tensor sums = at::zeros({buckets}, values.options());
  const Tensor all = at::arange(buckets, index.options());
  for (int64_t s = 0; s < index.size(0); ++s) {
    const Tensor is = index[s].flatten().unsqueeze(-1).eq(all).to(values.scalar_type());
    sums += at::mv(is.t(), values[s].flatten());
  }
  return sums;
}

struct HstuAttention : torch::autograd::Function<HstuAttention> {
  /// Heads first: [S,H,.,.].
  struct Scores {
    Scores(const Tensor& q, const Tensor& k, const Tensor& pos_w, const Tensor& ts_w, const Places& p,
           double n) {
      Tensor bias = chosen(pos_w, p.distance);
      if (ts_w.defined()) bias = bias + chosen(ts_w, p.bucket);
      raw = at::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) + bias.unsqueeze(1);
      mask = p.hidden.unsqueeze(1);
      scale = 1 / n;
    }
    Tensor weights() const { return (at::silu(raw) * scale).masked_fill(mask, 0); }
    /// Gradient of raw from that of the weights.
    Tensor gradient(const Tensor& d_weights) const {
      const Tensor s = at::sigmoid(raw);
      return (d_weights * s * (1 + raw * (1 - s)) * scale).masked_fill(mask, 0);
    }
    Tensor raw, mask;
    double scale;
  };

  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& pos_w, const std::optional<Tensor>& ts_w, const Places& p, int64_t n) {
    context->save_for_backward({q, k, v, pos_w, ts_w.value_or(Tensor()), p.hidden, p.distance, p.bucket});
    context->saved_data["n"] = n;
    const Scores scores(q, k, pos_w, ts_w.value_or(Tensor()), p, static_cast<double>(n));
    return at::matmul(scores.weights(), v.transpose(1, 2)).transpose(1, 2);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &pos_w = saved[3], &ts_w = saved[4];
    const Places p{saved[5], saved[6], saved[7]};
    const Scores scores(q, k, pos_w, ts_w, p, static_cast<double>(context->saved_data["n"].toInt()));
    const Tensor up = grads[0].transpose(1, 2);  // [S,H,Q,V]
    const Tensor d_raw = scores.gradient(at::matmul(up, v.permute({0, 2, 3, 1})));
    const Tensor dq = at::matmul(d_raw, k.transpose(1, 2)).transpose(1, 2);
    const Tensor dk = at::matmul(d_raw.transpose(2, 3), q.transpose(1, 2)).transpose(1, 2);
    const Tensor dv = at::matmul(scores.weights().transpose(2, 3), up).transpose(1, 2);
    const Tensor d_bias = d_raw.sum(1);  // [S,Q,C]
    const Tensor by_place = p.distance.size(0) == 1 ? d_bias.sum(0, true) : d_bias;
    Tensor d_ts;
    if (ts_w.defined()) d_ts = sums_by_bucket(p.bucket, d_bias, ts_w.numel());
    return {dq, dk, dv, sums_by_bucket(p.distance, by_place, pos_w.numel()), d_ts, Tensor(), Tensor()};
  }
};

void check_arguments(const HstuArgs& a) {
  ArgumentCheck arguments("hstu_attention");
  arguments.tensor("q", a.q, 4, "[S,Q,H,K]");
  for (const auto& [name, x] : {std::pair{"k", &a.k}, std::pair{"v", &a.v}}) {
    arguments.tensor(name, *x, 4, "[S,C,H,.]");
    arguments.size(name, *x, 0, "sequences", a.q.size(0), "q has");
    arguments.size(name, *x, 1, "tokens", a.k.size(1), "k has");
    arguments.size(name, *x, 2, "heads", a.q.size(2), "q has");
  }
  arguments.size("k", a.k, 3, "channels a head", a.q.size(3), "q has");
  arguments.tensor("pos_w", a.pos_w, 1, "[2n-1]");
  if (a.n < 1) arguments.fail_with("n is {}, expected at least 1", a.n);
  arguments.size("pos_w", a.pos_w, 0, "weights", 2 * a.n - 1, "2n-1 is");
  if (a.ts_w.defined()) {
    arguments.tensor("ts_w", a.ts_w, 1, "[buckets+1]");
    arguments.tensor("seconds", a.seconds, 2, "[S,C]");
    arguments.tensor("query_seconds", a.query_seconds, 2, "[S,Q]");
    arguments.dtype("seconds", a.seconds, at::kLong, "");
    arguments.dtype("query_seconds", a.query_seconds, at::kLong, "");
    arguments.size("seconds", a.seconds, 0, "sequences", a.q.size(0), "q has");
    arguments.size("query_seconds", a.query_seconds, 0, "sequences", a.q.size(0), "q has");
    arguments.size("seconds", a.seconds, 1, "tokens", a.k.size(1), "k has");
    arguments.size("query_seconds", a.query_seconds, 1, "tokens", a.q.size(1), "q has");
  }
  for (const auto* counts : {&a.past, &a.lengths})
    if (static_cast<int64_t>(counts->size()) != a.q.size(0))
      arguments.fail_with("{} pasts or lengths for {} sequences", counts->size(), a.q.size(0));
  for (const int64_t length : a.lengths)
    if (length < 0 || length > a.n || length > a.k.size(1))
      arguments.fail_with("a sequence of {} tokens, k holds {} and n is {}", length, a.k.size(1), a.n);
}

}  // namespace

Tensor hstu_attention(const HstuArgs& a) {
  check_arguments(a);
  if (a.q.numel() == 0) return at::zeros({a.q.size(0), a.q.size(1), a.q.size(2), a.v.size(3)}, a.v.options());
  const auto typed = [&](const Tensor& weights) { return weights.to(a.q.scalar_type()); };
  std::optional<Tensor> ts_w(a.ts_w);  // an undefined tensor is not differentiated
  if (a.ts_w.defined()) ts_w = typed(a.ts_w);
  return HstuAttention::apply(a.q, a.k, a.v, typed(a.pos_w), ts_w, places(a), a.n);
}

}  // namespace prism
