#pragma once
#include <ATen/autocast_mode.h>

#include "prism/train/train_config.h"

namespace prism {

/// While one lives, matrix products run in bfloat16 (for Precision::kBf16) on one kind of device.
class Autocast {
 public:
  Autocast(c10::DeviceType device, Precision precision)
      : device_(device), on_(precision == Precision::kBf16) {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();  // it holds casts of weights that are about to change
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool on_;
};

}  // namespace prism
