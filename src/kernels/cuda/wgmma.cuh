// SPDX-License-Identifier: Apache-2.0
// Warpgroup products whose two operands are in shared memory, and copies by the copy engine (TMA) into it (sm_90a). No
// kernels here.
#pragma once

#include "kernels/cuda/hopper.cuh"

// ---- d[64, N] += a[64, 16] b[N, 16]^T, both from swizzled shared memory ----

#define HOPPER_WG_8(o)                                                                                        \
  "+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3]), "+f"(d[o + 4]), "+f"(d[o + 5]), "+f"(d[o + 6]), \
      "+f"(d[o + 7])
#define HOPPER_WG_OUT4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define HOPPER_WG_OUT8 HOPPER_WG_8(0)
#define HOPPER_WG_OUT16 HOPPER_WG_OUT8, HOPPER_WG_8(8)
#define HOPPER_WG_OUT24 HOPPER_WG_OUT16, HOPPER_WG_8(16)
#define HOPPER_WG_OUT32 HOPPER_WG_OUT24, HOPPER_WG_8(24)
#define HOPPER_WG_OUT48 HOPPER_WG_OUT32, HOPPER_WG_8(32), HOPPER_WG_8(40)
#define HOPPER_WG_OUT64 HOPPER_WG_OUT48, HOPPER_WG_8(48), HOPPER_WG_8(56)
#define HOPPER_WG_OUT80 HOPPER_WG_OUT64, HOPPER_WG_8(64), HOPPER_WG_8(72)
#define HOPPER_WG_OUT96 HOPPER_WG_OUT80, HOPPER_WG_8(80), HOPPER_WG_8(88)
#define HOPPER_WG_OUT112 HOPPER_WG_OUT96, HOPPER_WG_8(96), HOPPER_WG_8(104)
#define HOPPER_WG_OUT128 HOPPER_WG_OUT112, HOPPER_WG_8(112), HOPPER_WG_8(120)
#define HOPPER_WG_LIST4 "%0,%1,%2,%3"
#define HOPPER_WG_LIST8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define HOPPER_WG_LIST16 HOPPER_WG_LIST8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define HOPPER_WG_LIST24 HOPPER_WG_LIST16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define HOPPER_WG_LIST32 HOPPER_WG_LIST24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define HOPPER_WG_LIST48 HOPPER_WG_LIST32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define HOPPER_WG_LIST64 HOPPER_WG_LIST48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HOPPER_WG_LIST80 HOPPER_WG_LIST64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define HOPPER_WG_LIST96 HOPPER_WG_LIST80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define HOPPER_WG_LIST112 \
  HOPPER_WG_LIST96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define HOPPER_WG_LIST128 \
  HOPPER_WG_LIST112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define HOPPER_WG_PRODUCT(type, name, sums, shape, a_at, b_at)                                            \
  HOPPER_FN void hopper_wg_product(float(&d)[sums], unsigned long long a, unsigned long long b, type) {   \
    asm volatile("wgmma.mma_async.sync.aligned." shape "k16.f32." name "." name " {" HOPPER_WG_LIST##sums \
                 "}, " a_at ", " b_at ", 1, 1, 1, 0, 0;"                                                  \
                 : HOPPER_WG_OUT##sums                                                                    \
                 : "l"(a), "l"(b));                                                                       \
  }
#define HOPPER_WG_PRODUCTS(type, name)                       \
  HOPPER_WG_PRODUCT(type, name, 4, "m64n8", "%4", "%5")      \
  HOPPER_WG_PRODUCT(type, name, 8, "m64n16", "%8", "%9")     \
  HOPPER_WG_PRODUCT(type, name, 16, "m64n32", "%16", "%17")  \
  HOPPER_WG_PRODUCT(type, name, 24, "m64n48", "%24", "%25")  \
  HOPPER_WG_PRODUCT(type, name, 32, "m64n64", "%32", "%33")  \
  HOPPER_WG_PRODUCT(type, name, 64, "m64n128", "%64", "%65") \
  HOPPER_WG_PRODUCT(type, name, 96, "m64n192", "%96", "%97") \
  HOPPER_WG_PRODUCT(type, name, 128, "m64n256", "%128", "%129")
HOPPER_WG_PRODUCTS(bfloat, "bf16")
HOPPER_WG_PRODUCTS(half, "f16")

// ---- the copy engine ----

// Loads a box of the map, from (k, row, half) on, into this threadgroup.
HOPPER_FN void hopper_box_copy(uint to, const HopperTensorMap* map, int k, int row, int half_of, uint barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(map), "r"(k), "r"(row), "r"(half_of), "r"(barrier)
      : "memory");
}

HOPPER_FN void hopper_box_copy(uint to, const HopperTensorMap* map, int k, int row, int half_of, uint barrier,
                               unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
      "%4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(k), "r"(row), "r"(half_of), "r"(barrier), "l"(policy)
      : "memory");
}

HOPPER_FN void hopper_prefetch_map(const HopperTensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// True in one lane of the warp.
HOPPER_FN bool hopper_elected() {
  uint r;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(r));
  return r != 0;
}
