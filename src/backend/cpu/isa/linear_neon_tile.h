// SPDX-License-Identifier: Apache-2.0
// The inner loop of quantised products with many rows: 8 rows x 4 columns with smmla, in assembly, because g++ spills
// what intrinsics keep in 32 registers.
//
// v0..v7 are the sums in float, v8..v15 those of one block in integers: register 2i + j is row pair i, column pair j,
// {r0c0 r0c1 r1c0 r1c1}. A block begins with folding the block before it: those integers are ready, so nothing waits.
// Scales of the block before stand just before its codes (of x), or at `scales` (of the weight), which therefore begins
// with a record of zeros, as a tile of x does.
#pragma once

#include <arm_neon.h>

#include "backend/cpu/isa/declare.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)

namespace quire::cpu::QUIRE_ISA_NS {

#define QUIRE_SMMLA(sum, x, w) "smmla v" #sum ".4s, v" #x ".16b, v" #w ".16b\n"
#define QUIRE_CLEAR(r) "movi v" #r ".4s, #0\n"
// One step of 8 k without a fold: row pairs in v16..v19, column pairs in v20, v21.
#define QUIRE_STEP_LOADS(x, w)     \
  "ldp q20, q21, [%[codes], #(" #w \
  ")]\n"                           \
  "ldp q16, q17, [%[x], #(" #x     \
  ")]\n"                           \
  "ldp q18, q19, [%[x], #(" #x "+32)]\n"
#define QUIRE_STEP(x, w)  \
  QUIRE_STEP_LOADS(x, w)  \
  QUIRE_SMMLA(8, 16, 20)  \
  QUIRE_SMMLA(9, 16, 21)  \
  QUIRE_SMMLA(10, 17, 20) \
  QUIRE_SMMLA(11, 17, 21) \
  QUIRE_SMMLA(12, 18, 20) QUIRE_SMMLA(13, 18, 21) QUIRE_SMMLA(14, 19, 20) QUIRE_SMMLA(15, 19, 21)

// sum = fma(float(integer), sa * sw, sum). `fraction` is "" or ", #4": codes that are held times 16.
#define QUIRE_FOLD(sum, integer, sa, sw, product, fraction) \
  "fmul v" #product ".4s, v" #sa ".4s, v" #sw               \
  ".4s\n"                                                   \
  "scvtf v" #integer ".4s, v" #integer ".4s" fraction       \
  "\n"                                                      \
  "fmla v" #sum ".4s, v" #integer ".4s, v" #product ".4s\n"
#define QUIRE_ADD_MINIMUM(sum, minimum, scaled_sum) "fmla v" #sum ".4s, v" #minimum ".4s, v" #scaled_sum ".4s\n"

// The integers of the block before folded, each at once restarted by `restart(integer, x, w)`. x: offset of this
// block's codes; scales: offset of the last block's.
#define QUIRE_FOLD_SCALES(x, scales, restart, fraction)                                                           \
  "ldp q22, q23, [%[scales], #(" #scales                                                                          \
  ")]\n"                                                                                                          \
  "ldp q24, q25, [%[x], #(" #x                                                                                    \
  "-64)]\n"                                                                                                       \
  "ldp q26, q27, [%[x], #(" #x "-32)]\n" QUIRE_FOLD(0, 8, 24, 22, 28, fraction) restart(8, 16, 20)                \
      QUIRE_FOLD(1, 9, 24, 23, 29, fraction) restart(9, 16, 21) QUIRE_FOLD(2, 10, 25, 22, 30, fraction)           \
          restart(10, 17, 20) QUIRE_FOLD(3, 11, 25, 23, 31, fraction) restart(11, 17, 21)                         \
              QUIRE_FOLD(4, 12, 26, 22, 28, fraction) restart(12, 18, 20) QUIRE_FOLD(5, 13, 26, 23, 29, fraction) \
                  restart(13, 18, 21) QUIRE_FOLD(6, 14, 27, 22, 30, fraction) restart(14, 19, 20)                 \
                      QUIRE_FOLD(7, 15, 27, 23, 31, fraction) restart(15, 19, 21)
// The same with a minimum; x has pairs of sa and sa * sum.
#define QUIRE_FOLD_MINIMA(x, scales, restart, fraction)                                                               \
  "ldp q22, q23, [%[scales], #(" #scales                                                                              \
  ")]\n"                                                                                                              \
  "ldp q26, q27, [%[scales], #(" #scales                                                                              \
  "+32)]\n"                                                                                                           \
  "ldp q24, q25, [%[x], #(" #x                                                                                        \
  "-128)]\n"                                                                                                          \
  "ldp q30, q31, [%[x], #(" #x "-96)]\n" QUIRE_FOLD(0, 8, 24, 22, 28, fraction) QUIRE_ADD_MINIMUM(0, 26, 25)          \
      restart(8, 16, 20) QUIRE_FOLD(1, 9, 24, 23, 29, fraction) QUIRE_ADD_MINIMUM(1, 27, 25)                          \
          restart(9, 16, 21) "ldp q24, q25, [%[x], #(" #x "-64)]\n" QUIRE_FOLD(2, 10, 30, 22, 28, fraction)           \
              QUIRE_ADD_MINIMUM(2, 26, 31) restart(10, 17, 20) QUIRE_FOLD(3, 11, 30, 23, 29, fraction)                \
                  QUIRE_ADD_MINIMUM(3, 27, 31) restart(11, 17, 21) "ldp q30, q31, [%[x], #(" #x "-32)]\n" QUIRE_FOLD( \
                      4, 12, 24, 22, 28, fraction) QUIRE_ADD_MINIMUM(4, 26, 25) restart(12, 18, 20)                   \
                      QUIRE_FOLD(5, 13, 24, 23, 29, fraction) QUIRE_ADD_MINIMUM(5, 27, 25) restart(13, 18, 21)        \
                          QUIRE_FOLD(6, 14, 30, 22, 28, fraction) QUIRE_ADD_MINIMUM(6, 26, 31) restart(14, 19, 20)    \
                              QUIRE_FOLD(7, 15, 30, 23, 29, fraction) QUIRE_ADD_MINIMUM(7, 27, 31) restart(15, 19, 21)

#define QUIRE_RESTART(integer, x, w) QUIRE_CLEAR(integer) QUIRE_SMMLA(integer, x, w)
#define QUIRE_NO_RESTART(integer, x, w)

// All blocks, two a turn; an odd count begins in the middle of a turn. Bytes of records: x, its scales included, and
// the weight's scales; the weight's codes stand 256 apart.
#define QUIRE_TILE(fold, x_bytes, scale_bytes, fraction) \
  __asm__ volatile(                                                                                             \
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nmovi v\\r\\().4s, #0\n.endr\n"                             \
      "tbz %[blocks], #0, 1f\n"                                                                                 \
      "sub %[x], %[x], #" #x_bytes "\nsub %[codes], %[codes], #256\nsub %[scales], %[scales], #" #scale_bytes   \
      "\nadd %[blocks], %[blocks], #1\nb 2f\n"                                                                  \
      "1:\n" QUIRE_STEP_LOADS(0, 0) fold(0, 0, QUIRE_RESTART, fraction)                                         \
      QUIRE_STEP(64, 32) QUIRE_STEP(128, 64) QUIRE_STEP(192, 96)                                                \
      "2:\n" QUIRE_STEP_LOADS(x_bytes, 256) fold(x_bytes, scale_bytes, QUIRE_RESTART, fraction)                 \
      QUIRE_STEP(x_bytes + 64, 288) QUIRE_STEP(x_bytes + 128, 320) QUIRE_STEP(x_bytes + 192, 352)               \
      "add %[x], %[x], #(2*" #x_bytes ")\nadd %[codes], %[codes], #512\n"                                       \
      "add %[scales], %[scales], #(2*" #scale_bytes ")\nsubs %[blocks], %[blocks], #2\nb.ne 1b\n"               \
      fold(0, 0, QUIRE_NO_RESTART, fraction)                                                                    \
      "stp q0, q1, [%[out]]\nstp q2, q3, [%[out], #32]\nstp q4, q5, [%[out], #64]\nstp q6, q7, [%[out], #96]\n" \
      : [x] "+r"(x), [codes] "+r"(codes), [scales] "+r"(scales), [blocks] "+r"(blocks)                          \
      : [out] "r"(out)                                                                                          \
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", \
        "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", \
        "v29", "v30", "v31")

// out: registers v0..v7. x: the codes of a tile's first block. kTimes16: the weight's codes are held times 16.
template <bool kMinimum, bool kTimes16>
static inline __attribute__((always_inline)) void multiply_tile(const uint8_t* x, const uint8_t* codes,
                                                                const uint8_t* scales, int64_t blocks, float* out) {
  if constexpr (kMinimum) {
    static_assert(!kTimes16);
    QUIRE_TILE(QUIRE_FOLD_MINIMA, 384, 64, "");
  } else if constexpr (kTimes16) {
    QUIRE_TILE(QUIRE_FOLD_SCALES, 320, 32, ", #4");
  } else {
    QUIRE_TILE(QUIRE_FOLD_SCALES, 320, 32, "");
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS

#endif
