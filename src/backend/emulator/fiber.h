// SPDX-License-Identifier: Apache-2.0
// Fibers: stacks with a guard page, and a switch between them that takes about ten instructions.
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

// A suspended call of a function on its own stack. A fiber that is never resumed is simply abandoned, because kernels
// own nothing. The floating-point mode belongs to the thread and is not switched; nothing that runs in a fiber changes
// it.
struct Fiber {
  void* stack_pointer = nullptr;
  // The stack's bounds and AddressSanitizer's data for it; for the thread's own stack, set once it has been left.
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* fake_stack = nullptr;
};

// Prepares `fiber` to run `entry` (which must not return) on the stack that ends at `top`.
void make_fiber(Fiber& fiber, unsigned char* bottom, unsigned char* top, void (*entry)());
// Suspends `from`, which is running, and resumes `to`. With `last`, `from` is never resumed.
void switch_fiber(Fiber& from, Fiber& to, bool last = false);
// Must be the first call of a fiber's entry.
void enter_fiber();

// Stacks for GPU threads, mapped in blocks of 32 at first use and kept.
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
  // After fibers were abandoned: clears the red zones of AddressSanitizer that their frames left.
  void clean();

 private:
  std::vector<unsigned char*> blocks_;
};

}  // namespace quire::emulator
