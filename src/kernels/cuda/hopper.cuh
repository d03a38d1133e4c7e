// SPDX-License-Identifier: Apache-2.0
// What the kernels of this folder share: Hopper's instructions (sm_90a), one function each, and the epilogue of linear.
// No kernels here.
//
// On this GPU mma.sync.m16n8k16, wgmma of any width and cuBLASLt's products without split-K give the same bits for a
// chain of k16 steps, whichever operand is first and however the 16 k of a step are ordered (measured: all bits, bf16
// and f16). So the kernels here use any of them; each file says which other kernels it is equal to.
#pragma once

#include "kernels/activation_functions.h"
#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"
#include "kernels/params/hopper.h"

#define HOPPER_FN static __device__ __forceinline__
#define HOPPER_METHOD __device__ __forceinline__

// m16n8k16 for type T: d[16, 8] += a[16, 16] b[16, 8].
template <typename T>
HOPPER_FN void hopper_mma(float* d, const uint* a, uint b0, uint b1) {
  ptx_mma(d[0], d[1], d[2], d[3], a, b0, b1, T());
}

HOPPER_FN void hopper_ldmatrix(uint* r, uint address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
HOPPER_FN void hopper_ldmatrix_trans(uint* r, uint address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
HOPPER_FN void hopper_copy16(uint to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// To the L2 cache. REQUIRES: `from` on 16 bytes, and a multiple of 16 bytes.
HOPPER_FN void hopper_prefetch_bulk(const void* from, uint bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// A cache policy for what is read once in a step, such as weights, pages and states: it leaves the L2 cache first.
// Otherwise a layer would drive out everything else there, and the instructions of each small kernel would come from
// memory every time.
HOPPER_FN unsigned long long hopper_read_once() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
HOPPER_FN void hopper_copy16(uint to, const void* from, unsigned long long policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
               : "memory");
}
HOPPER_FN void hopper_copy16(void* to, const void* from, unsigned long long policy) {
  hopper_copy16(ptx_shared_address(to), from, policy);
}
// Copies 16 bytes, or writes zeros if `here` is false; `from` is then not read.
HOPPER_FN void hopper_copy16_or_zero(uint to, const void* from, bool here) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(here ? 16 : 0)
               : "memory");
}

HOPPER_FN void hopper_copy16_or_zero(uint to, const void* from, bool here, unsigned long long policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(here ? 16 : 0), "l"(policy)
               : "memory");
}

// Two floats rounded to T, the first in the low half.
template <typename T>
__device__ __forceinline__ uint hopper_pack(float low, float high);
template <>
__device__ __forceinline__ uint hopper_pack<bfloat>(float low, float high) {
  uint r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <>
__device__ __forceinline__ uint hopper_pack<half>(float low, float high) {
  uint r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Four neighbours of type T.
template <typename T>
HOPPER_FN float4 hopper_four(uint2 four, T) {
  return make_float4(to_f(from_bits16<T>((ushort)four.x)), to_f(from_bits16<T>((ushort)(four.x >> 16))),
                     to_f(from_bits16<T>((ushort)four.y)), to_f(from_bits16<T>((ushort)(four.y >> 16))));
}

// A value of lane 0, which the compiler then knows to be the same in all lanes; without that it does not overlap wgmma
// with other code.
template <typename V>
HOPPER_FN V hopper_uniform(V v) {
  return __shfl_sync(0xffffffffu, v, 0);
}

// For loops that poll. Polling this often takes seconds, so something is broken: a fault is better than a program that
// hangs.
HOPPER_FN void hopper_count_retry(uint& times) {
  if (++times > 20000000u) __trap();
}

// ---- mbarriers, and copies that complete on them ----

HOPPER_FN void hopper_barrier_init(uint barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
HOPPER_FN void hopper_barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
HOPPER_FN void hopper_barrier_arrive(uint barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
HOPPER_FN void hopper_barrier_expect(uint barrier, uint bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives when all earlier 16-byte copies of this thread have landed.
HOPPER_FN void hopper_barrier_arrive_copied(uint barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
HOPPER_FN void hopper_barrier_wait(uint barrier, uint parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra done;\nbra "
      "again;\ndone:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// A copy by the bulk copy engine. REQUIRES: both addresses and the size are multiples of 16 bytes.
HOPPER_FN void hopper_copy_bulk(uint to, const void* from, uint bytes, uint barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

HOPPER_FN void hopper_copy_bulk(uint to, const void* from, uint bytes, uint barrier, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// ---- clusters; each kernel arrives in its own way ----

HOPPER_FN void hopper_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
HOPPER_FN uint hopper_cluster_rank() {
  uint r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// The address of the same place in the shared memory of threadgroup `rank` of the cluster.
HOPPER_FN uint hopper_cluster_place(uint address, uint rank) {
  uint r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}

// ---- warpgroup products (wgmma) ----

// The descriptor of a K-major or row-major tile with rows of 128 bytes in wgmma's 128-byte swizzle: 16-byte piece c of
// row r is at piece c ^ (r % 8). Eight rows are 1024 bytes and must start on a multiple of 1024; the next eight rows
// follow after `stride` bytes.
HOPPER_FN unsigned long long hopper_descriptor(uint address, uint leading, uint stride) {
  return (unsigned long long)((address & 0x3ffff) >> 4) | ((unsigned long long)(leading >> 4) << 16) |
         ((unsigned long long)(stride >> 4) << 32) | (1ull << 62);
}
// The same in two steps: the low word, to which 16-byte steps can be added, and the whole descriptor.
HOPPER_FN uint hopper_descriptor_word(uint address, uint leading) {
  return ((address & 0x3ffff) >> 4) | ((leading >> 4) << 16);
}
HOPPER_FN unsigned long long hopper_descriptor_of(uint word, uint stride) {
  return (unsigned long long)word | ((unsigned long long)((stride >> 4) | (1u << 30)) << 32);
}
HOPPER_FN void hopper_wg_arrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
HOPPER_FN void hopper_wg_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
HOPPER_FN void hopper_wg_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Required between ordinary writes to shared memory and wgmma, which reads it through the async proxy.
HOPPER_FN void hopper_fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- the epilogue of linear ----

template <typename T>
HOPPER_FN float hopper_rounded(float acc, const HopperLinearParams& p, const float* bias, int n) {
  const float y = to_f(to<T>(acc));
  return p.biased ? to_f(to<T>(y + bias[n])) : y;
}

// A lane has four sums: rows n and n + 8 of a tile of W (g, g + 8), for rows m and m + 1 of x (columns of the
// accumulator). This loads the residual there, before the sums are complete.
HOPPER_FN void hopper_linear_before(const HopperLinearParams& p, float* before, int tile, int g, int m,
                                    const float* residual) {
  if (p.epilogue != kHopperResidual) return;
  UNROLL for (int i = 0; i < 4; i++) {
    const int n = tile * 16 + g + 8 * (i >> 1), row = m + (i & 1);
    before[i] = n < p.n && row < p.m ? __ldcg(residual + (i64)row * p.residual_stride + n) : 0.0f;
  }
}

template <typename T>
HOPPER_FN void hopper_linear_finish(const HopperLinearParams& p, const float* acc, const float* before, int tile, int g,
                                    int m, void* out, const float* bias) {
  UNROLL for (int j = 0; j < 2; j++) {
    if (m + j >= p.m) continue;
    if (p.epilogue == kHopperGated) {
      const int n = tile * 8 + g;
      if (n >= p.n / 2) continue;
      const float gate = hopper_rounded<T>(acc[j], p, bias, n),
                  up = hopper_rounded<T>(acc[j + 2], p, bias, p.n / 2 + n);
      ((T*)out)[(i64)(m + j) * p.out_stride + n] = to<T>(activate_glu(p.activation, p.limit, gate, up));
      continue;
    }
    UNROLL for (int i = 0; i < 2; i++) {
      const int n = tile * 16 + g + 8 * i;
      if (n >= p.n) continue;
      const float sum = acc[2 * i + j];
      const i64 at = (i64)(m + j) * p.out_stride + n;
      if (p.epilogue == kHopperStore) {
        ((T*)out)[at] = to<T>(hopper_rounded<T>(sum, p, bias, n));
      } else if (p.epilogue == kHopperStoreF32) {
        ((float*)out)[at] = p.biased ? sum + bias[n] : sum;
      } else if (p.epilogue == kHopperActivated) {
        ((T*)out)[at] = to<T>(activate(p.activation, hopper_rounded<T>(sum, p, bias, n)));
      } else {
        ((float*)out)[at] = fma(hopper_rounded<T>(sum, p, bias, n), p.scale, before[2 * i + j]);
      }
    }
  }
}

// The row of W that is row r (0 to 15) of a tile.
HOPPER_FN int hopper_linear_row(const HopperLinearParams& p, int tile, int r) {
  const int half_n = p.n / 2;
  if (p.epilogue == kHopperGated) return min(tile * 8 + (r & 7), half_n - 1) + (r & 8 ? half_n : 0);
  return min(tile * 16 + r, p.n - 1);
}
