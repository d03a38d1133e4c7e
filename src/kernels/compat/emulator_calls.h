// SPDX-License-Identifier: Apache-2.0
// The functions of the emulator (src/backend/emulator) that kernels call on the host. Each GPU thread is a fiber there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace quire::emulator {

// The place of an operation in the kernel's source, for error messages.
struct Site {
  const char* what;
  const char* file;
  int line;
  static constexpr Site here(const char* what, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {what, file, line};
  }
};

// A kernel of the host build; the records of one file form a linked list.
struct KernelRecord {
  const char* name;
  void (*entry)(const void* params, void* const* buffers, void* threadgroup_memory);
  size_t params_bytes;
  size_t threadgroup_bytes;
  int buffers;
  int max_threads;
  const KernelRecord* next;
};

// The position of the calling thread: the fields of the dialect's Ctx.
struct Position {
  uint32_t tgx, tgy, tgz, tid, sg, lane;
};
Position position();

void threadgroup_barrier(Site site);  // all threads of the group
void simdgroup_barrier(Site site);    // the 32 lanes
// Records that this lane passes `site`, without waiting. All lanes must pass such sites in the same order: their
// records are compared at the next operation that waits.
void converge(Site site);

// converge() for a load of a 16x16 tile; also checks the alignment that CUDA and Metal require.
void tile_load(const void* p, size_t row_bytes, uint32_t lane, Site site);

// Exchanges a value between the lanes: all 32 values are available when exchange() returns, and stay valid until the
// lane's next exchange but one.
inline constexpr size_t kSlotBytes = 64;
inline constexpr size_t kResultBytes = 256;
struct Exchanged {
  const unsigned char* slots;  // kSlotBytes for each lane
  uint32_t lane;
  bool first;             // this lane is the first to run after the exchange
  unsigned char* result;  // the result that the first lane computed, for the others (kResultBytes)
  template <typename T>
  T of(uint32_t from) const {
    T value;
    std::memcpy(&value, slots + (from & 31) * kSlotBytes, sizeof(T));
    return value;
  }
};
Exchanged exchange(const void* value, size_t bytes, Site site);

// Copies that complete as late as the contract allows: when copy_wait() requires it.
void copy_begin(void* to, const void* from, Site site);
void copy_commit();
void copy_wait(int still_under_way);

template <typename T>
constexpr void check_simd_type() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t>,
                "simd operations are for float, int and uint");
}

template <typename T, typename Join>
T reduce(T v, Site site, Join join) {
  check_simd_type<T>();
  const Exchanged all = exchange(&v, sizeof v, site);
  T result;
  if (all.first) {
    // The xor butterfly 16, 8, 4, 2, 1 as lane 0 computes it; the other lanes add the same pairs.
    T t[32];
    for (uint32_t i = 0; i < 32; i++) t[i] = all.of<T>(i);
    for (int width = 16; width > 0; width >>= 1) {
      for (int i = 0; i < width; i++) t[i] = join(t[i], t[i + width]);
    }
    std::memcpy(all.result, &t[0], sizeof(T));
    return t[0];
  }
  std::memcpy(&result, all.result, sizeof(T));
  return result;
}

}  // namespace quire::emulator
