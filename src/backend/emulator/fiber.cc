// SPDX-License-Identifier: Apache-2.0
// The switch, for aarch64 and x86-64: callee-saved registers are pushed to the old stack and popped from the new one.
#include "backend/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "base/check.h"

#ifdef QUIRE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// quire_switch(save, load): pushes the callee-saved registers of the ABI, stores the stack pointer to *save, makes
// `load` the new one and pops the same registers. quire_start is the return address of a new fiber's first switch: it
// calls the entry.
extern "C" void quire_switch(void** save, void* load);
extern "C" void quire_start();

#if defined(__APPLE__)
#define QUIRE_SYMBOL(name) ".globl _" name "\n_" name ":\n"
#else
#define QUIRE_SYMBOL(name) ".globl " name "\n.hidden " name "\n" name ":\n"
#endif

#if defined(__aarch64__)
asm(".text\n.p2align 4\n" QUIRE_SYMBOL("quire_switch")
    "  stp x29, x30, [sp, #-160]!\n"
    "  stp x19, x20, [sp, #16]\n"
    "  stp x21, x22, [sp, #32]\n"
    "  stp x23, x24, [sp, #48]\n"
    "  stp x25, x26, [sp, #64]\n"
    "  stp x27, x28, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n"
    "  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #16]\n"
    "  ldp x21, x22, [sp, #32]\n"
    "  ldp x23, x24, [sp, #48]\n"
    "  ldp x25, x26, [sp, #64]\n"
    "  ldp x27, x28, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n"
    "  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n"
    "  ldp x29, x30, [sp], #160\n"
    "  ret\n" QUIRE_SYMBOL("quire_start")
    "  blr x19\n"
    "  brk #0\n");
#elif defined(__x86_64__)
asm(".text\n.p2align 4\n" QUIRE_SYMBOL("quire_switch")
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n" QUIRE_SYMBOL("quire_start")
    "  callq *%rbx\n"
    "  ud2\n");
#else
#error "the emulator's fibers know aarch64 and x86-64"
#endif

namespace quire::emulator {
namespace {

#ifdef QUIRE_ASAN
constexpr size_t kStackBytes = 512 << 10;  // instrumented frames are many times larger
#else
constexpr size_t kStackBytes = 128 << 10;
#endif
constexpr size_t kStacksPerBlock = 32;

size_t guard_bytes() {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

#ifdef QUIRE_ASAN
constexpr size_t kLeftBytes = 8 << 10;
// The fiber that the current switch leaves: the arriving side learns the bounds of its stack.
thread_local Fiber* left = nullptr;
#endif

void arrived([[maybe_unused]] Fiber* self) {
#ifdef QUIRE_ASAN
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(self == nullptr ? nullptr : self->fake_stack, &bottom, &bytes);
  if (left != nullptr && left->bottom == nullptr) {  // the thread's own stack
    left->bottom = bottom;
    left->bytes = bytes;
  }
  left = nullptr;
#endif
}

}  // namespace

void make_fiber(Fiber& fiber, unsigned char* bottom, unsigned char* top, void (*entry)()) {
#ifdef QUIRE_ASAN
  // The last fiber on this stack was left inside functions that never returned: clear their red zones, which would lie
  // under the next fiber's frames.
  __asan_unpoison_memory_region(top - kLeftBytes, kLeftBytes);
#endif
  const uintptr_t aligned = reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15};
  void** frame = reinterpret_cast<void**>(aligned);
#if defined(__aarch64__)
  frame -= 20;
  for (int i = 0; i < 20; i++) frame[i] = nullptr;
  frame[1] = reinterpret_cast<void*>(quire_start);  // x30
  frame[2] = reinterpret_cast<void*>(entry);        // x19
#else
  frame -= 9;  // after the return, the stack pointer is a multiple of 16, as the ABI requires for quire_start's call
  for (int i = 0; i < 9; i++) frame[i] = nullptr;
  frame[4] = reinterpret_cast<void*>(entry);        // rbx
  frame[6] = reinterpret_cast<void*>(quire_start);  // return address
#endif
  fiber = {frame, bottom, static_cast<size_t>(top - bottom), nullptr};
}

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool last) {
#ifdef QUIRE_ASAN
  left = &from;
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.bottom, to.bytes);
#endif
  quire_switch(&from.stack_pointer, to.stack_pointer);
  arrived(&from);
}

void enter_fiber() {
  arrived(nullptr);
}

void StackPool::clean() {
#ifdef QUIRE_ASAN
  for (unsigned char* block : blocks_) __asan_unpoison_memory_region(block, kStacksPerBlock * kStackBytes);
#endif
}

StackPool::~StackPool() {
  clean();
  for (unsigned char* block : blocks_) munmap(block, kStacksPerBlock * kStackBytes);
}

StackPool::Stack StackPool::stack(size_t index) {
  while (blocks_.size() * kStacksPerBlock <= index) {
    void* block = mmap(nullptr, kStacksPerBlock * kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    QUIRE_CHECK(block != MAP_FAILED, "no memory for the stacks of the emulator's threads");
    blocks_.push_back(static_cast<unsigned char*>(block));
    for (size_t i = 0; i < kStacksPerBlock; i++) {
      mprotect(blocks_.back() + i * kStackBytes, guard_bytes(), PROT_NONE);
    }
  }
  unsigned char* bottom = blocks_[index / kStacksPerBlock] + index % kStacksPerBlock * kStackBytes;
  // With equal offsets, all stacks would compete for a few sets of the cache, so each starts at a different offset.
  return {bottom + guard_bytes(), bottom + kStackBytes - index % 64 * 320};
}

}  // namespace quire::emulator
