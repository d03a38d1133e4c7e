// SPDX-License-Identifier: Apache-2.0
// Fibers: stacks with a guard page, and a switch between them that costs some ten instructions.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUIRE_ASAN 1
#endif
#endif

namespace quire::emulator {

// A suspended run of a function on its own stack. A fiber that is never resumed is simply forgotten: kernels own
// nothing. The floating-point mode belongs to the thread and is not switched: nothing that runs in a fiber changes it.
struct Fiber {
  void* stack_pointer = nullptr;
  // The stack's bounds and what AddressSanitizer keeps for it; of the thread's own stack once it was left.
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* fake_stack = nullptr;
};

// Makes `fiber` ready to run `entry` (which must not return) on the stack that ends at `top`.
void make_fiber(Fiber& fiber, unsigned char* bottom, unsigned char* top, void (*entry)());
// Suspends `from`, which runs now, and resumes `to`. With `last`, `from` is never resumed.
void switch_fiber(Fiber& from, Fiber& to, bool last = false);
// The first thing that a fiber's entry calls.
void enter_fiber();

// Stacks for GPU threads, mapped in blocks of 32 when first asked for and kept.
class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  struct Stack {
    unsigned char *bottom, *top;
  };
  Stack stack(size_t index);
  // After fibers were given up: takes away the red zones that their frames left for AddressSanitizer.
  void clean();

 private:
  std::vector<unsigned char*> blocks_;
};

}  // namespace quire::emulator
