#include "prism/distributed/ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "distributed/backends.h"
#include "prism/core/log.h"
#include "prism/core/random.h"

namespace prism {
namespace {

constexpr std::chrono::hours kDay{24};

MakeBackend& nccl_maker() {
  static MakeBackend make = nullptr;
  return make;
}

/// What c10d and Gloo say, without "[file:line]" before and advice and stack traces after it.
std::string reason(const std::exception& error) {
  const auto* own = dynamic_cast<const c10::Error*>(&error);
  std::string text = own ? own->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[')) text = text.substr(std::min(text.find("] "), text.size() - 2) + 2);
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return text;
}

/// Runs a call into c10d. Other ranks' failures reach this one as its errors.
template <class Call>
auto meet(const RankEnvironment& place, const Call& call) try {
  return call();
} catch (const std::exception& error) {
  throw LostRank(fmt::format("rank {} of {}: another rank has ended or does not answer ({})", place.rank,
                             place.size, reason(error)));
}

BackendStore open_store(const RankEnvironment& place, std::chrono::milliseconds patience) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = place.rank == 0 && !place.store_is_there;
  options.timeout = patience;
  options.waitWorkers = !place.store_is_there;
  if (!place.store_is_there) options.numWorkers = static_cast<std::size_t>(place.size);
  const auto store = c10::make_intrusive<c10d::TCPStore>(place.address, options);
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("prism/{}", place.attempt), store);
}

}  // namespace

void set_nccl(MakeBackend make) { nccl_maker() = make; }
MakeBackend nccl() { return nccl_maker(); }

struct Ranks::Groups {
  BackendStore store;
  Backend host, device;  // the same one where Gloo carries both

  /// An orderly end of NCCL waits for the other ranks, which may be gone, or busy for long.
  ~Groups() {
    if (device == host) return;
    try {
      device->abort();
    } catch (const std::exception& error) {
      warn("NCCL could not be stopped: {}", reason(error));
    }
  }
  const Backend& of(const at::Tensor& tensor) const { return tensor.is_cpu() ? host : device; }
};

Ranks::Ranks(const RankEnvironment& place, std::unique_ptr<Groups> groups, std::string transport)
    : place_(place), groups_(std::move(groups)), transport_(std::move(transport)) {}

Ranks::~Ranks() = default;

std::shared_ptr<Ranks> Ranks::join(const RankEnvironment& place, c10::Device device,
                                   std::chrono::milliseconds patience) try {
  const int rank = static_cast<int>(place.rank), size = static_cast<int>(place.size);
  auto groups = std::make_unique<Groups>();
  groups->store = open_store(place, patience);
  groups->host =
      make_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", groups->store), rank, size, kPatience);
  groups->device = groups->host;
  const bool fast = !device.is_cpu() && nccl();
  if (fast)
    groups->device =
        nccl()(c10::make_intrusive<c10d::PrefixStore>("nccl", groups->store), rank, size, kPatience);
  std::shared_ptr<Ranks> ranks(new Ranks(place, std::move(groups), fast ? "nccl" : "gloo"));
  ranks->largest(0);  // a mistake of all would end one that is done here while another still connects to it
  return ranks;
} catch (const std::exception& error) {
  fail("rank {} of {}: did not meet the other ranks at {}:{} ({})", place.rank, place.size, place.address,
       place.port, reason(error));
}

std::function<void()> Ranks::start_sum(const at::Tensor& tensor) {
  return meet(place_, [&] {
    std::vector<at::Tensor> tensors = {tensor};
    auto work = groups_->of(tensor)->allreduce(tensors);
    return [place = place_, work] { meet(place, [&] { work->wait(); }); };
  });
}

void Ranks::largest(const at::Tensor& tensor) {
  meet(place_, [&] {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    groups_->host->allreduce(tensors, options)->wait();
  });
}

int64_t Ranks::largest(int64_t value) {
  const at::Tensor one = at::full({1}, value, at::kLong);
  largest(one);
  return one.item<int64_t>();
}

void Ranks::broadcast(const at::Tensor& tensor) {
  meet(place_, [&] {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.timeout = kDay;
    groups_->of(tensor)->broadcast(tensors, options)->wait();
  });
}

at::Tensor Ranks::gather(const at::Tensor& tensor) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size());
  at::Tensor all = at::empty(sizes, tensor.options()), own = tensor.contiguous().unsqueeze(0);
  meet(place_, [&] { groups_->of(tensor)->_allgather_base(all, own)->wait(); });
  return all;
}

void Ranks::require_same(std::string_view what, std::string_view value) {
  const auto own = static_cast<int64_t>(stream_seed(0, value));
  const at::Tensor all = gather(at::full({1}, own, at::kLong)).cpu();
  for (int64_t other = 0; other < size(); ++other)
    check(all[other].item<int64_t>() == all[0].item<int64_t>(),
          "rank {} of {}: {} is not the same on ranks 0 and {}", rank(), size(), what, other);
}

}  // namespace prism
