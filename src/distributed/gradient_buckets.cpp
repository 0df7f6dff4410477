#include "distributed/gradient_buckets.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace prism {

/// Runs when backward has written the gradient of one parameter. Backward runs all hooks of a device on one
/// thread, and waits for it.
class GradientBuckets::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(GradientBuckets& buckets, size_t parameter) : buckets_(buckets), parameter_(parameter) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (buckets_.armed_) {
      buckets_.take(parameter_);
      buckets_.send_full();
    }
    return outputs;
  }

 private:
  GradientBuckets& buckets_;
  size_t parameter_;
};

GradientBuckets::GradientBuckets(std::vector<at::Tensor> parameters, Ranks& ranks, int64_t bucket_bytes)
    : parameters_(std::move(parameters)), ranks_(ranks), places_(parameters_.size()) {
  for (size_t end = parameters_.size(); end > 0;) end = add_bucket(end, bucket_bytes);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameters_[i]));
    hooks_.push_back(accumulators_[i]->add_post_hook(std::make_unique<Hook>(*this, i)));
  }
}

GradientBuckets::~GradientBuckets() {
  for (size_t i = 0; i < hooks_.size(); ++i) accumulators_[i]->del_post_hook(hooks_[i]);
}

/// A bucket of the parameters before `end`, at least one; returns the first of them.
size_t GradientBuckets::add_bucket(size_t end, int64_t bucket_bytes) {
  const at::Tensor& last = parameters_[end - 1];
  const auto fits = [&](const at::Tensor& other) {
    return other.scalar_type() == last.scalar_type() && other.device() == last.device();
  };
  int64_t numel = last.numel();
  size_t first = end - 1;
  while (first > 0 && fits(parameters_[first - 1]) && numel * last.element_size() < bucket_bytes)
    numel += parameters_[--first].numel();
  Bucket bucket{.members = {}, .flat = at::empty({numel}, last.options().requires_grad(false))};
  int64_t begin = 0;
  for (size_t i = end; i-- > first;) {
    const at::Tensor& parameter = parameters_[i];
    bucket.members.push_back(i);
    places_[i] = {buckets_.size(), bucket.flat.narrow(0, begin, parameter.numel()).view(parameter.sizes())};
    begin += parameter.numel();
  }
  buckets_.push_back(std::move(bucket));
  return first;
}

void GradientBuckets::arm() {
  armed_ = true;
  next_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.members.size();
  for (Place& place : places_) place.taken = false;
}

/// Moves what this rank has of a gradient into its bucket.
void GradientBuckets::take(size_t parameter) {
  const c10::NoGradGuard no_grad;
  Place& place = places_[parameter];
  if (std::exchange(place.taken, true)) return;
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  place.present = gradient.defined();
  if (place.present)
    place.view.copy_(gradient);
  else
    place.view.zero_();
  gradient = place.view;
  --buckets_[place.bucket].missing;
}

void GradientBuckets::send_full() {
  for (; next_ < buckets_.size() && buckets_[next_].missing == 0; ++next_)
    buckets_[next_].arrived = ranks_.start_sum(buckets_[next_].flat);
}

/// int64 [parameters]: 1 where some rank has a gradient.
at::Tensor GradientBuckets::present_anywhere() const {
  at::Tensor present = at::zeros({static_cast<int64_t>(parameters_.size())}, at::kLong);
  auto* flag = present.mutable_data_ptr<int64_t>();
  for (const Place& place : places_) *flag++ = place.present;
  ranks_.largest(present);
  return present;
}

void GradientBuckets::finish() {
  for (size_t i = 0; i < parameters_.size(); ++i) take(i);
  send_full();
  const at::Tensor present = present_anywhere();
  for (Bucket& bucket : buckets_) std::exchange(bucket.arrived, {})();
  const auto* flag = present.const_data_ptr<int64_t>();
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (!flag[i]) parameters_[i].mutable_grad().reset();
  armed_ = false;
}

}  // namespace prism
