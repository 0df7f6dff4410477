#pragma once
#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace prism {

using Backend = c10::intrusive_ptr<c10d::Backend>;
using BackendStore = c10::intrusive_ptr<c10d::Store>;
/// Connects `size` processes that share `store`; a collective fails after `timeout`.
using MakeBackend = Backend (*)(const BackendStore& store, int rank, int size,
                                std::chrono::milliseconds timeout);

/// c10d's Gloo, which libtorch_cpu.so brings.
Backend make_gloo(const BackendStore& store, int rank, int size, std::chrono::milliseconds timeout);

/// Called by libprism_cuda.so, where it was built with NCCL.
void set_nccl(MakeBackend make);
/// nullptr where there is none.
MakeBackend nccl();

}  // namespace prism
