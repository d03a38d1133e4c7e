// SPDX-License-Identifier: Apache-2.0
// Worker: runs threadgroups one after another on the calling thread, each GPU thread as a fiber.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/emulator/fiber.h"
#include "kernels/compat/emulator_calls.h"

namespace quire::emulator {

// One launch, shared by all workers.
struct Job {
  const KernelRecord* kernel = nullptr;
  const void* params = nullptr;
  void* const* buffers = nullptr;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t threads = 0;  // a multiple of 32, at most 1024
  int order = 0;         // 0: lanes ascending, 1: descending, otherwise shuffled with this seed
};

// The state of one threadgroup at a time: its fibers, its memory, and which fiber waits for what. A fiber runs until it
// must wait for others; then the next ready one is resumed directly. Odd orders resume released lanes first, so that a
// simdgroup runs as far ahead of the others as it can; even orders resume them last, so that simdgroups stay in step.
//
// A fault of the kernel (divergence, a wrong address) ends the group: its fibers are abandoned, and run_group() returns
// the fault.
class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Runs group `index` of the grid (x is fastest). Returns what went wrong, or nothing.
  std::string run_group(const Job& job, uint64_t index);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace quire::emulator
