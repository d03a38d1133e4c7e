// SPDX-License-Identifier: Apache-2.0
// AMX tiles of bf16 and of signed bytes, as the kernels use them: tiles 0 to 3 are sums, 4 and 5 first operands, 6 and
// 7 second ones.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::cpu::QUIRE_ISA_NS {

// gcc's intrinsics do not declare that tiles read and write memory; these do.
#define QUIRE_TILE_LOAD(tile, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(static_cast<int64_t>(stride)) : "memory")
// The same for data that is not needed again soon: it leaves what is in L1 there.
#define QUIRE_TILE_LOAD_ONCE(tile, from, stride) \
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(static_cast<int64_t>(stride)) : "memory")
#define QUIRE_TILE_STORE(tile, to, stride) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(static_cast<int64_t>(stride)) : "memory")
#define QUIRE_TILE_ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)
#define QUIRE_TILE_MULTIPLY(c, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)

#define QUIRE_TILE_DOT(c, a, b) __asm__ volatile("tdpbssd %tmm" #b ", %tmm" #a ", %tmm" #c)
// With unsigned bytes in b.
#define QUIRE_TILE_DOT_UNSIGNED(c, a, b) __asm__ volatile("tdpbsud %tmm" #b ", %tmm" #a ", %tmm" #c)

// Tiles 0 to 3, the sums, to and from 4 KiB of memory.
static inline __attribute__((always_inline)) void store_sums(void* to) {
  auto* bytes = static_cast<uint8_t*>(to);
  QUIRE_TILE_STORE(0, bytes, 64);
  QUIRE_TILE_STORE(1, bytes + 1024, 64);
  QUIRE_TILE_STORE(2, bytes + 2048, 64);
  QUIRE_TILE_STORE(3, bytes + 3072, 64);
}
static inline __attribute__((always_inline)) void load_sums(const void* from) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  QUIRE_TILE_LOAD_ONCE(0, bytes, 64);
  QUIRE_TILE_LOAD_ONCE(1, bytes + 1024, 64);
  QUIRE_TILE_LOAD_ONCE(2, bytes + 2048, 64);
  QUIRE_TILE_LOAD_ONCE(3, bytes + 3072, 64);
}
static inline __attribute__((always_inline)) void clear_sums() {
  QUIRE_TILE_ZERO(0);
  QUIRE_TILE_ZERO(1);
  QUIRE_TILE_ZERO(2);
  QUIRE_TILE_ZERO(3);
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Sums of `rows` x `columns`; operands 64 bytes deep.
static inline void configure_tiles(int rows, int columns) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? 64 : 4 * columns);
    config.rows[t] = static_cast<uint8_t>(t >= 6 ? 16 : rows);
  }
  __asm__ volatile("ldtilecfg (%0)" : : "r"(&config) : "memory");
}
static inline void release_tiles() {
  __asm__ volatile("tilerelease");
}

}  // namespace quire::cpu::QUIRE_ISA_NS
