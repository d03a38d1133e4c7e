// SPDX-License-Identifier: Apache-2.0
// Launcher: queues kernels of the table on a device.
#pragma once

#include <functional>
#include <initializer_list>

#include "backend/gpu/kernel_table.h"
#include "backend/gpu/step_recorder.h"

namespace quire::gpu {

// Launches run in the order of the calls. Before each of them `before` runs, which queues what must come first: ops
// that wait to be joined, and the arrays of the step. Owned by the backend and used from its thread.
class Launcher {
 public:
  Launcher(Device& device, StepRecorder& recorder, std::function<void()> before)
      : device_(device), recorder_(recorder), before_(std::move(before)), kernels_(device) {}

  const KernelTable& kernels() const { return kernels_; }

  // `buffers` are the kernel's arguments in their order, at most 16; `grid` counts threadgroups.
  template <typename Params>
  void launch(KernelRef kernel, const Params& params, std::initializer_list<const void*> buffers, Grid grid,
              uint32_t threads, uint32_t dynamic_memory = 0) {
    static_assert(sizeof(Params) <= 4096);
    launch(kernel, &params, sizeof params, buffers, grid, threads, dynamic_memory);
  }

 private:
  void launch(KernelRef kernel, const void* params, size_t params_bytes, std::initializer_list<const void*> buffers,
              Grid grid, uint32_t threads, uint32_t dynamic_memory);

  Device& device_;
  StepRecorder& recorder_;
  std::function<void()> before_;
  KernelTable kernels_;
};

}  // namespace quire::gpu
