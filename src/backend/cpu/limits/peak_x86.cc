// SPDX-License-Identifier: Apache-2.0
// The peak probes of x86-64. Assembly, so that no compiler drops, hoists or spills anything; each runs only where its
// level is present.
#include "backend/cpu/limits/peak.h"

#if defined(__x86_64__)

namespace quire::cpu::peak {
namespace {

#define QUIRE_LOW_REGISTERS                                                                                           \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
      "xmm14", "xmm15"
#define QUIRE_HIGH_REGISTERS                                                                                           \
  "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", \
      "xmm29", "xmm30", "xmm31"
#define QUIRE_TEN "0,1,2,3,4,5,6,7,8,9"
#define QUIRE_TWELVE QUIRE_TEN ",10,11"
#define QUIRE_TWENTY_FOUR QUIRE_TWELVE ",12,13,14,15,16,17,18,19,20,21,22,23"
// A line for each register r of a list; and a loop of them over %0 rounds.
#define QUIRE_EACH(registers, line) ".irp r," registers "\n" line "\n.endr\n"
#define QUIRE_ROUNDS(registers, line) "1:\n" QUIRE_EACH(registers, line) "dec %0\njnz 1b\n"

// The baseline has no fused multiply-add: a copy, a multiplication and an addition.
void mul_add_xmm(int64_t rounds, const void* operands) {
  __asm__ volatile("movups (%1), %%xmm13\nmovups 64(%1), %%xmm14\n"   //
                   QUIRE_EACH(QUIRE_TEN, "xorps %%xmm\\r, %%xmm\\r")  //
                   QUIRE_ROUNDS(QUIRE_TEN,                            //
                                "movaps %%xmm13, %%xmm15\n"           //
                                "mulps %%xmm14, %%xmm15\n"            //
                                "addps %%xmm15, %%xmm\\r")
                   : "+r"(rounds)
                   : "r"(operands)
                   : "memory", "cc", QUIRE_LOW_REGISTERS);
}

__attribute__((target("avx2"))) void fma_ymm(int64_t rounds, const void* operands) {
  __asm__ volatile("vmovups (%1), %%ymm14\nvmovups 64(%1), %%ymm15\n"               //
                   QUIRE_EACH(QUIRE_TWELVE, "vxorps %%ymm\\r, %%ymm\\r, %%ymm\\r")  //
                   QUIRE_ROUNDS(QUIRE_TWELVE, "vfmadd231ps %%ymm14, %%ymm15, %%ymm\\r") "vzeroupper\n"
                   : "+r"(rounds)
                   : "r"(operands)
                   : "memory", "cc", QUIRE_LOW_REGISTERS);
}

// Bytes to pairs of sums of 16 bits, those to 32 bits, and the sum: AVX2 has no shorter way.
__attribute__((target("avx2"))) void maddubs_ymm(int64_t rounds, const void* operands) {
  __asm__ volatile(
      "vmovdqu (%1), %%ymm13\nvmovdqu 64(%1), %%ymm14\n"               //
      "vpcmpeqw %%ymm15, %%ymm15, %%ymm15\nvpabsw %%ymm15, %%ymm15\n"  // ones
      QUIRE_EACH(QUIRE_TEN, "vpxor %%ymm\\r, %%ymm\\r, %%ymm\\r")      //
      QUIRE_ROUNDS(QUIRE_TEN,                                          //
                   "vpmaddubsw %%ymm13, %%ymm14, %%ymm12\n"            //
                   "vpmaddwd %%ymm15, %%ymm12, %%ymm12\n"              //
                   "vpaddd %%ymm12, %%ymm\\r, %%ymm\\r") "vzeroupper\n"
      : "+r"(rounds)
      : "r"(operands)
      : "memory", "cc", QUIRE_LOW_REGISTERS);
}

#define QUIRE_ZMM_PROBE(function, line)                                                    \
  __attribute__((target("avx512f"))) void function(int64_t rounds, const void* operands) { \
    __asm__ volatile("vmovups (%1), %%zmm30\nvmovups 64(%1), %%zmm31\n" QUIRE_EACH(        \
                         QUIRE_TWENTY_FOUR, "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r")         \
                         QUIRE_ROUNDS(QUIRE_TWENTY_FOUR, line) "vzeroupper\n"              \
                     : "+r"(rounds)                                                        \
                     : "r"(operands)                                                       \
                     : "memory", "cc", QUIRE_LOW_REGISTERS, QUIRE_HIGH_REGISTERS);         \
  }
QUIRE_ZMM_PROBE(fma_zmm, "vfmadd231ps %%zmm30, %%zmm31, %%zmm\\r")
QUIRE_ZMM_PROBE(dpbusd_zmm, "vpdpbusd %%zmm30, %%zmm31, %%zmm\\r")
QUIRE_ZMM_PROBE(dpbf16_zmm, "vdpbf16ps %%zmm30, %%zmm31, %%zmm\\r")

typedef uint64_t Ymm __attribute__((vector_size(32)));
typedef uint64_t Zmm __attribute__((vector_size(64)));
__attribute__((target("avx2"))) uint64_t read_ymm(const std::byte* data, size_t bytes) {
  return read_vectors<Ymm>(data, bytes);
}
__attribute__((target("avx512f"))) uint64_t read_zmm(const std::byte* data, size_t bytes) {
  return read_vectors<Zmm>(data, bytes);
}

#ifdef QUIRE_LEVEL_amx
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Four sums (tiles 0 to 3) from two tiles of each operand: the product of a 32x32 block of outputs.
#define QUIRE_TILE_PROBE(function, instruction)                                                            \
  void function(int64_t rounds, const void* operands) {                                                    \
    const TileConfig config;                                                                               \
    __asm__ volatile(                                                                                      \
        "ldtilecfg %2\n"                                                                                   \
        "tilezero %%tmm0\ntilezero %%tmm1\ntilezero %%tmm2\ntilezero %%tmm3\n"                             \
        "tileloadd (%1,%3,1), %%tmm4\ntileloadd 1024(%1,%3,1), %%tmm5\n"                                   \
        "tileloadd 2048(%1,%3,1), %%tmm6\ntileloadd 3072(%1,%3,1), %%tmm7\n"                               \
        "1:\n" instruction " %%tmm6, %%tmm4, %%tmm0\n" instruction " %%tmm7, %%tmm4, %%tmm1\n" instruction \
        " %%tmm6, %%tmm5, %%tmm2\n" instruction                                                            \
        " %%tmm7, %%tmm5, %%tmm3\n"                                                                        \
        "dec %0\njnz 1b\ntilerelease\n"                                                                    \
        : "+r"(rounds)                                                                                     \
        : "r"(operands), "m"(config), "r"(int64_t{64})                                                     \
        : "memory", "cc");                                                                                 \
  }
QUIRE_TILE_PROBE(dpbusd_tile, "tdpbusd")
QUIRE_TILE_PROBE(dpbf16_tile, "tdpbf16ps")
#endif

}  // namespace

const ReadFunction kReadYmm = read_ymm;
const ReadFunction kReadZmm = read_zmm;
const PeakFunction kMulAddXmm = mul_add_xmm;
const PeakFunction kFmaYmm = fma_ymm;
const PeakFunction kMaddubsYmm = maddubs_ymm;
const PeakFunction kFmaZmm = fma_zmm;
const PeakFunction kDpbusdZmm = dpbusd_zmm;
const PeakFunction kDpbf16Zmm = dpbf16_zmm;
#ifdef QUIRE_LEVEL_amx
const PeakFunction kDpbusdTile = dpbusd_tile;
const PeakFunction kDpbf16Tile = dpbf16_tile;
#else
const PeakFunction kDpbusdTile = nullptr;
const PeakFunction kDpbf16Tile = nullptr;
#endif

}  // namespace quire::cpu::peak

#endif
