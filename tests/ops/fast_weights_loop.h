#pragma once
// fast_weights as its definition reads: one token after the other, inner gradients by autograd. For tests.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <vector>

#include "prism/ops/fast_weights.h"
#include "prism/ops/newton_schulz.h"

namespace prism::test {

/// One head of one row, state at its start: outputs [T,V], the weights and S after the last token.
class FastWeightLoop {
 public:
  FastWeightLoop(const FastWeightArgs& args, int64_t row, int64_t head)
      : args_(args), row_(row), head_(head) {
    for (const at::Tensor& W : args.state.weights) A_.push_back(W[row][head].detach());
    for (const at::Tensor& W : A_) S_.push_back(at::zeros_like(W));
  }

  at::Tensor run() {
    std::vector<at::Tensor> outputs;
    for (int64_t t = 0; t < args_.q.size(1); ++t) {
      if (t % args_.mini_batch == 0) {
        start_ = A_;
        if (!args_.rule.accumulate)
          for (at::Tensor& S : S_) S = at::zeros_like(S);
      }
      advance(t);
      outputs.push_back(read(projected(A_), token(args_.q, t)));
    }
    return at::stack(outputs);
  }

  const std::vector<at::Tensor>& weights() const { return A_; }
  const std::vector<at::Tensor>& sums() const { return S_; }

 private:
  using Layers = std::vector<at::Tensor>;
  at::Tensor token(const at::Tensor& x, int64_t t) const { return x[row_][t][head_]; }
  at::Tensor gate(const std::optional<at::Tensor>& x, int64_t t, double absent) const {
    return x ? token(*x, t) : at::full({}, absent, args_.q.options());
  }

  at::Tensor read(const Layers& W, const at::Tensor& x) const {
    const auto input = [&](const at::Tensor& z) {
      return args_.memory.bias ? at::cat({z, at::ones({1}, z.options())}) : z;
    };
    at::Tensor z = at::matmul(input(x), W[0]);
    if (W.size() == 2) z = at::matmul(input(at::gelu(z, args_.memory.exact_gelu ? "none" : "tanh")), W[1]);
    if (!args_.memory.norm_weight.defined()) return z;
    return x + at::layer_norm(z, {z.size(0)}, args_.memory.norm_weight[head_], args_.memory.norm_bias[head_],
                              1e-6);
  }

  Layers projected(const Layers& A) const {
    Layers W;
    for (const at::Tensor& a : A)
      W.push_back(args_.memory.projection == Projection::kSoftmax       ? at::softmax(a, 0)
                  : args_.memory.projection == Projection::kQuarticNorm ? a / a.pow(4).sum().sqrt()
                                                                        : a);
    return W;
  }

  at::Tensor loss(const at::Tensor& e, int64_t i) const {
    switch (args_.memory.loss) {
      case InnerLoss::kSquare:
        return e.square().sum();
      case InnerLoss::kHalfSquare:
        return e.square().sum() / 2;
      case InnerLoss::kCube:
        return e.abs().pow(3).sum();
      default:
        break;
    }
    const at::Tensor delta = gate(args_.rule.delta, i, 0), norm = e.norm();
    if ((norm <= delta).item<bool>()) return e.square().sum() / 2;
    return args_.memory.loss == InnerLoss::kHuberSign ? delta * e.abs().sum() : delta * norm;
  }

  void advance(int64_t t) {
    Layers sums;
    for (const at::Tensor& W : A_) sums.push_back(at::zeros_like(W));
    for (int64_t i = std::max<int64_t>(0, t - args_.rule.window + 1); i <= t; ++i) {
      Layers W;
      for (const at::Tensor& w : projected(start_)) W.push_back(w.detach().requires_grad_());
      const at::Tensor value = loss(read(W, token(args_.k, i)) - token(args_.v, i), i);
      const auto gradients = torch::autograd::grad({value}, W);
      for (size_t l = 0; l < W.size(); ++l)
        sums[l] = sums[l] + gate(args_.rule.gradient_weight, i, 1) * gradients[l];
    }
    for (size_t l = 0; l < A_.size(); ++l) {
      const double carried = args_.rule.accumulate ? 0 : 1;
      S_[l] = gate(args_.rule.momentum, t, carried) * S_[l] + sums[l];
      const at::Tensor D =
          args_.rule.newton_schulz ? newton_schulz(S_[l].unsqueeze(0), muon_steps())[0] : S_[l];
      if (args_.rule.accumulate)
        A_[l] = gate(args_.rule.retention, t, 1) * A_[l] - gate(args_.rule.step, t, 1) * D;
      else
        A_[l] = start_[l] - (*args_.rule.place_step)[t % args_.mini_batch] * D;
      if (args_.memory.projection == Projection::kSoftmax) A_[l] = at::log_softmax(A_[l], 0);
    }
  }

  const FastWeightArgs& args_;
  int64_t row_, head_;
  Layers A_, S_, start_;
};

}  // namespace prism::test
