// SPDX-License-Identifier: Apache-2.0
// Emulator: runs kernels of the host build over a grid, with the threadgroups distributed over a few threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backend/emulator/worker.h"
#include "base/result.h"

namespace quire::emulator {

struct EmulatorOptions {
  // Lanes run in ascending order (0), in descending order (1), or shuffled with this seed. A correct kernel gives the
  // same bits in every order. Below 0: not set, which means 0.
  int order = -1;
  // Threads that share a launch's threadgroups. Below 1: not set, which means one per core, at most 8.
  int workers = 0;
  // The launch that never ends, counted from 1, for tests of what a GPU that stalls brings about. 0: none.
  int stall = 0;
};

// Fills in the options that are not set, from QUIRE_EMULATOR_ORDER, QUIRE_EMULATOR_WORKERS and QUIRE_EMULATOR_STALL; an
// Error if these are not numbers.
Result<EmulatorOptions> settle(EmulatorOptions options);

// All kernels of the host build, sorted by name.
std::span<const KernelRecord* const> all_kernels();
const KernelRecord* find_kernel(std::string_view name);  // null if there is none

// Used by one thread at a time, its owner. Helper threads are started by the first launch that has work for them.
class Emulator {
 public:
  explicit Emulator(const EmulatorOptions& options);
  ~Emulator();

  int order() const { return order_; }
  int workers() const { return workers_; }
  // Runs the whole grid. The Error says what the kernel did wrong, with file and line.
  Status run(const KernelRecord& kernel, std::span<const uint32_t, 3> grid, uint32_t threads, const void* params,
             void* const* buffers);

 private:
  struct Pool;
  int order_;
  int workers_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace quire::emulator
