#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "prism/core/error.h"
#include "prism/distributed/rank_environment.h"

namespace prism {

/// Another process has ended or does not answer.
class LostRank : public Error {
 public:
  using Error::Error;
};

/// The processes that work on one thing together, from inside one of them: ranks 0 to size() - 1. Everything
/// but the first five functions is a meeting: every rank calls it, all in the same order, with tensors of one
/// shape and dtype. They throw LostRank when another process ends (its connection breaks) or does not come
/// for kPatience. Tensors on the CPU travel by Gloo, others by NCCL, or by Gloo where there is none.
class Ranks {
 public:
  /// How long a meeting waits for a process that neither comes nor ends.
  static constexpr std::chrono::minutes kPatience{10};

  /// Meets the others where `place` says; `device` is the one that this rank works on. Error when they do not
  /// come within `patience`.
  static std::shared_ptr<Ranks> join(const RankEnvironment& place, c10::Device device,
                                     std::chrono::milliseconds patience = std::chrono::minutes(5));
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int64_t rank() const { return place_.rank; }
  int64_t size() const { return place_.size; }
  /// Whether this is rank 0, the one that writes files and messages.
  bool leads() const { return rank() == 0; }
  /// "gloo" or "nccl": what carries tensors of the device.
  const std::string& transport() const { return transport_; }

  /// Begins to replace `tensor` by its sum over the ranks, beside whatever the caller does next. The tensor
  /// may be read after calling the result.
  [[nodiscard]] std::function<void()> start_sum(const at::Tensor& tensor);
  void sum(const at::Tensor& tensor) { start_sum(tensor)(); }
  /// Replaces `tensor`, on the CPU, by its largest values over the ranks.
  void largest(const at::Tensor& tensor);
  int64_t largest(int64_t value);
  /// Replaces `tensor` by rank 0's. Waits a day, since rank 0 may have other things to do.
  void broadcast(const at::Tensor& tensor);
  /// [size, ...]: the tensors of all ranks in their order.
  at::Tensor gather(const at::Tensor& tensor);
  /// Error where `value`, which is `what`, is not the same on all ranks.
  void require_same(std::string_view what, std::string_view value);

 private:
  struct Groups;
  Ranks(const RankEnvironment& place, std::unique_ptr<Groups> groups, std::string transport);

  RankEnvironment place_;
  std::unique_ptr<Groups> groups_;
  std::string transport_;
};

}  // namespace prism
