// SPDX-License-Identifier: Apache-2.0
// Emulator: runs kernels of the host build over a grid, threadgroups spread over a few threads.
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
  // Lanes run in ascending order (0), descending (1), or shuffled with this seed. Kernels that are right give the same
  // bits under all of them. Below 0: left open, which is 0.
  int order = -1;
  // Threads that share a launch's threadgroups. Below 1: left open, which is one a core, at most 8.
  int workers = 0;
};

// What was left open is as QUIRE_EMULATOR_ORDER and QUIRE_EMULATOR_WORKERS say; an error where they are no numbers.
Result<EmulatorOptions> settle(EmulatorOptions options);

// Every kernel of the host build, in the order of their names.
std::span<const KernelRecord* const> all_kernels();
const KernelRecord* find_kernel(std::string_view name);  // null: there is none

// Owned and called by one thread at a time; helper threads start with the first launch that has work for them.
class Emulator {
 public:
  explicit Emulator(const EmulatorOptions& options);
  ~Emulator();

  int order() const { return order_; }
  int workers() const { return workers_; }
  // Runs the whole grid; the Error says what the kernel did wrong, by file and line.
  Status run(const KernelRecord& kernel, std::span<const uint32_t, 3> grid, uint32_t threads, const void* params,
             void* const* buffers);

 private:
  struct Pool;
  int order_;
  int workers_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace quire::emulator
