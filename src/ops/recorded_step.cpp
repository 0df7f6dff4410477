#include "prism/ops/recorded_step.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <exception>
#include <string>

#include "prism/core/log.h"

namespace prism {
namespace {

constexpr int64_t kRunsBefore = 3;  // libraries set themselves up in the first

const c10::impl::DeviceGuardImplInterface& guard_of(c10::Device device) {
  return *c10::impl::getDeviceGuardImpl(device.type());
}

/// Errors of LibTorch go on with a backtrace.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

RecordedStep::~RecordedStep() {
  graph_.reset();
  if (!before_) return;
  guard_of(device_).synchronizeDevice(device_.index());
  guard_of(device_).exchangeStream(*before_);
}

void RecordedStep::run(bool repeats, const std::function<void()>& work) {
  if (repeats && !before_) leave_default_stream();
  if (repeats && !refused_ && !graph_ && runs_++ >= kRunsBefore) refused_ = !record(work);
  if (repeats && graph_)
    graph_->replay();
  else
    work();
}

/// The default stream cannot record. What runs before and after goes to the new one too, so all keeps its
/// order.
void RecordedStep::leave_default_stream() {
  const auto& guard = guard_of(device_);
  guard.synchronizeDevice(device_.index());
  before_ = guard.exchangeStream(guard.getStreamFromGlobalPool(device_));
}

bool RecordedStep::record(const std::function<void()>& work) {
  try {
    graph_ = record_device_graph(work);
    return true;
  } catch (const std::exception& error) {
    warn("{}: steps are not recorded as a graph of the GPU ({}); they run one operation after the other",
         task_, first_line(error.what()));
    return false;
  }
}

}  // namespace prism
