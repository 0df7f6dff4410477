#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "prism/ops/device_graph.h"

namespace prism {

/// The steps of a training or of decoding on a GPU. A step that repeats the one before on other values is
/// recorded as a graph after a few runs, which then is replayed: some thousand launches cost the host as much
/// as one. A step that cannot be recorded runs as it is, and the log says so once.
class RecordedStep {
 public:
  /// `task` opens the message.
  RecordedStep(c10::Device device, std::string task) : device_(device), task_(std::move(task)) {}
  /// The stream that was current before is current again.
  ~RecordedStep();
  RecordedStep(const RecordedStep&) = delete;
  RecordedStep& operator=(const RecordedStep&) = delete;

  /// Runs `work`. `repeats`: it does what it did at the last call with repeats, on the same addresses. Where
  /// recording fails `work` is called anew; it must not mind what the abandoned call left.
  void run(bool repeats, const std::function<void()>& work);
  /// Whether steps that repeat are replayed from now on.
  bool replays() const { return graph_ != nullptr; }

 private:
  void leave_default_stream();
  bool record(const std::function<void()>& work);

  c10::Device device_;
  std::string task_;
  std::optional<c10::Stream> before_;
  std::unique_ptr<DeviceGraph> graph_;
  int64_t runs_ = 0;
  bool refused_ = false;
};

}  // namespace prism
