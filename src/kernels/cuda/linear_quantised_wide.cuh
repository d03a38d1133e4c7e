// SPDX-License-Identifier: Apache-2.0
// linear for quantised weights and more rows than linear_quantised_few.cuh takes, and for quantised experts: W is
// wgmma's 64-row operand, unpacked into registers, x its columns (sm_90a).
//
// Equal by memcmp to linear_quantised_few.cuh and to the portable linear. A tile of 64 rows of W is four panels, one
// for each warp of a warpgroup (gated: two of gate and the matching two of up), and up to `Rows` rows of x. It belongs
// to `turns` warpgroups, which take its pieces of 256 k in turn:
//   - A warp has requested the codes of its next pieces ahead, into slots of its own, and makes the operands of 16
//     steps in its registers (quantised_pieces.cuh).
//   - Then the warpgroup before it hands over the sums, through shared memory; it multiplies, and hands them on.
// With more than 32 rows a warpgroup has a tile alone, and a warp the operands of 8 steps at a time: what does not fit
// the registers would come from the L2 cache, because shared memory takes the place of L1.
//
// A threadgroup has `at_once` tiles at once, so that one unpacks while another multiplies. One more warp loads x by the
// copy engine, a piece for a stage, which all tiles of the threadgroup read. Threadgroups of the same tiles may divide
// the rows of x.
//
// Experts: x is tiles of rows, each of one expert. All tiles of W of all of these are one list, of which each
// threadgroup takes an equal part, so that none waits for an expert that has more.
//
// The first weights are loaded and unpacked while the preceding launch still runs; x is read after it.
//
// Grid, threads and dynamic memory: hopper_quantised_wide_plan(), hopper_quantised_experts_plan(). REQUIRES: K is a
// multiple of 64, N and the strides of out and residual of 4; out and residual are on 16-byte boundaries; x has the
// layout of its tensor map; gated: each half has whole panels; experts: at_once divides the tiles of W.
#pragma once

#include "kernels/cuda/quantised_pieces.cuh"
#include "kernels/cuda/wgmma.cuh"

// d[64, N] += a[64, 16] b[N, 16]^T: a in registers, b in swizzled shared memory.
#define HOPPER_WG_FROM_REGISTERS(type, name, sums, shape, a_at, b_at)                                     \
  HOPPER_FN void hopper_wg_product(float(&d)[sums], const uint(&a)[4], unsigned long long b, type) {      \
    asm volatile("wgmma.mma_async.sync.aligned." shape "k16.f32." name "." name " {" HOPPER_WG_LIST##sums \
                 "}, {" a_at "}, " b_at ", 1, 1, 1, 0;"                                                   \
                 : HOPPER_WG_OUT##sums                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                   \
  }
#define HOPPER_WG_ALL_FROM_REGISTERS(type, name)                                  \
  HOPPER_WG_FROM_REGISTERS(type, name, 8, "m64n16", "%8, %9, %10, %11", "%12")    \
  HOPPER_WG_FROM_REGISTERS(type, name, 16, "m64n32", "%16, %17, %18, %19", "%20") \
  HOPPER_WG_FROM_REGISTERS(type, name, 32, "m64n64", "%32, %33, %34, %35", "%36")
HOPPER_WG_ALL_FROM_REGISTERS(bfloat, "bf16")
HOPPER_WG_ALL_FROM_REGISTERS(half, "f16")

struct HopperQuantisedWideSmem {
  unsigned long long full[kHopperQuantisedWideStages], empty[kHopperQuantisedWideStages];
  int row_tiles;  // of experts
};

template <typename T, typename Kind, int Rows>
struct HopperQuantisedWide {
  enum {
    kSums = Rows / 2,                               // sums per lane
    kBox = Rows * 128,                              // bytes of 64 k of x
    kStage = hopper_quantised_wide_stage(Rows),     // bytes of a piece of x
    kSumsRow = kHopperQuantisedWideSumsRow,         // floats from row to row of x, where the sums of a tile stand
    kSumsBytes = hopper_quantised_wide_sums(Rows),  // of a tile
    kThreads = 128,                                 // of a warpgroup
    kTurns = hopper_quantised_wide_turns(Rows),
    kBatch = kTurns ? 16 : 8  // steps whose operands a warp has at a time: sums of many rows need registers
  };

  // A piece: its tile, and its number there.
  struct Place {
    int tile, piece;
  };
  // A stage of x in the ring.
  struct Stage {
    int slot;
    uint parity;
  };
  // REQUIRES: the ring has at least so many stages.
  HOPPER_FN void skip(Stage& at, int stages, int ring) {
    at.slot += stages;
    if (at.slot < ring) return;
    at.slot -= ring;
    at.parity ^= 1;
  }

  HOPPER_FN void group_sync(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }
  // Barriers of two warpgroups.
  HOPPER_FN void turn_wait(int barrier) { asm volatile("bar.sync %0, 256;" ::"r"(barrier) : "memory"); }
  HOPPER_FN void turn_arrive(int barrier) { asm volatile("bar.arrive %0, 256;" ::"r"(barrier) : "memory"); }

  // hopper_read_once(), made again wherever it is used, so that it takes no registers in between.
  HOPPER_FN unsigned long long read_once() {
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
  }

  // ---- tiles ----

  // Of a tile of W in the list of a threadgroup: the tile of rows of x, and the tile within its matrix.
  HOPPER_FN int row_tile(const HopperQuantisedWideParams& p, int tile) {
    return p.row_tiles == 0 ? (int)blockIdx.y : tile / p.product.units;
  }
  HOPPER_FN int tile_of_matrix(const HopperQuantisedWideParams& p, int tile) {
    return p.row_tiles == 0 ? tile : tile % p.product.units;
  }
  HOPPER_FN int row_of(const HopperQuantisedWideParams& p, int tile) { return row_tile(p, tile) * p.rows; }
  // The panel of a warp.
  HOPPER_FN const uchar* panel_of(const HopperQuantisedWideParams& wide, const uchar* w, const int* experts, int tile,
                                  int part) {
    const HopperQuantisedParams& p = wide.product;
    if (wide.row_tiles != 0) w += __ldcg(experts + row_tile(wide, tile)) * p.weight.expert_stride;
    tile = tile_of_matrix(wide, tile);
    const int panel = p.linear.epilogue == kHopperGated
                          ? min(2 * tile + (part & 1), p.gate_panels - 1) + (part >> 1) * p.gate_panels
                          : min(4 * tile + part, p.panels - 1);
    return w + (unsigned long long)(uint)panel * (uint)p.weight.stride;
  }
  // Of experts, how many tiles of rows there are: the table goes on with -1.
  HOPPER_FN int count_row_tiles(int most, const int* experts, int lane) {
    int count = 0;
#pragma unroll 4
    for (int first = 0; first < most; first += 32) {
      const bool used = first + lane < most && __ldcg(experts + first + lane) >= 0;
      count += __popc(__ballot_sync(0xffffffffu, used));
    }
    return count;
  }

  // ---- the warp that loads x ----

  // `tile` is the first of the threadgroup.
  HOPPER_FN void produce(const HopperQuantisedWideParams& p, uint ring, uint full, uint empty, int tile, int pieces) {
    const bool issues = hopper_elected();
    if (issues) hopper_prefetch_map(&p.x);
    ptx_grid_wait();
    const int whole_k = p.product.linear.k;
    Stage at = {0, 1};
    int k = 0, row = row_of(p, tile);
#pragma unroll 1
    for (int i = 0; i < pieces; i++) {
      const uint barrier = full + at.slot * 8;
      if (i >= p.stages) hopper_barrier_wait(empty + at.slot * 8, at.parity);
      if (issues) {
        hopper_barrier_expect(barrier, 4 * p.rows * 128);
        UNROLL for (int q = 0; q < 4; q++) {  // zeros after the end of K
          hopper_box_copy(ring + at.slot * kStage + q * kBox, &p.x, k + 64 * q, row, 0, barrier);
        }
      }
      __syncwarp();
      skip(at, 1, p.stages);
      k += 256;
      if (k >= whole_k) {
        k = 0;
        tile += p.product.at_once;
        row = row_of(p, tile);
      }
    }
  }

  // ---- the epilogue ----

  HOPPER_FN void rounded_four(float (&y)[4], const float* sums, const HopperLinearParams& l, const float* bias, int n) {
    const float4 v = *(const float4*)sums;
    y[0] = hopper_rounded<T>(v.x, l, bias, n);
    y[1] = hopper_rounded<T>(v.y, l, bias, n + 1);
    y[2] = hopper_rounded<T>(v.z, l, bias, n + 2);
    y[3] = hopper_rounded<T>(v.w, l, bias, n + 3);
  }
  // hopper_linear_finish() for the sums of a tile, [row of x][row of W], with four neighbours for each thread in turn.
  HOPPER_FN void finish(const HopperQuantisedWideParams& p, const float* sums, int tile, void* out, const float* bias,
                        const float* residual, const int* experts) {
    const HopperLinearParams& l = p.product.linear;
    const int rows_at = row_tile(p, tile), m = rows_at * p.rows;
    int rows = min(p.rows, l.m - m);
    if (p.row_tiles != 0) {
      rows = __ldcg(experts + p.row_tiles + rows_at);
      if (l.biased) bias += (i64)__ldcg(experts + rows_at) * l.n;
    }
    tile = tile_of_matrix(p, tile);
    const bool gated = l.epilogue == kHopperGated;
    const int shift = gated ? 3 : 4, columns = gated ? 32 : 64, all = gated ? l.n / 2 : l.n;
#pragma unroll 1
    for (int i = (int)threadIdx.x & (kThreads - 1); i < rows << shift; i += kThreads) {
      const int r = i >> shift, c = (i & ((1 << shift) - 1)) * 4, n = tile * columns + c;
      if (n >= all) continue;
      const float* from = sums + r * kSumsRow + c;
      const i64 at = (i64)(m + r) * l.out_stride + n;
      if (l.epilogue == kHopperStoreF32) {
        float4 v = *(const float4*)from;
        if (l.biased) v = make_float4(v.x + bias[n], v.y + bias[n + 1], v.z + bias[n + 2], v.w + bias[n + 3]);
        *(float4*)((float*)out + at) = v;
        continue;
      }
      float y[4];
      rounded_four(y, from, l, bias, n);
      if (l.epilogue == kHopperResidual) {
        const float4 before = __ldcg((const float4*)(residual + (i64)(m + r) * l.residual_stride + n));
        *(float4*)((float*)out + at) = make_float4(fma(y[0], l.scale, before.x), fma(y[1], l.scale, before.y),
                                                   fma(y[2], l.scale, before.z), fma(y[3], l.scale, before.w));
        continue;
      }
      if (gated) {
        float up[4];
        rounded_four(up, from + 32, l, bias, all + n);
        UNROLL for (int j = 0; j < 4; j++) y[j] = activate_glu(l.activation, l.limit, y[j], up[j]);
      } else if (l.epilogue == kHopperActivated) {
        UNROLL for (int j = 0; j < 4; j++) y[j] = activate(l.activation, y[j]);
      }
      *(uint2*)((T*)out + at) = make_uint2(hopper_pack<T>(y[0], y[1]), hopper_pack<T>(y[2], y[3]));
    }
  }

  // ---- the warpgroups that unpack and multiply ----

  HOPPER_FN void run(const HopperQuantisedWideParams& wide, HopperQuantisedWideSmem& sm, void* out, const uchar* w,
                     const float* bias, const float* residual, const int* experts) {
    extern __shared__ __align__(128) unsigned char shared[];
    if (wide.late) ptx_grid_wait();
    ptx_grid_release();
    const HopperQuantisedParams& p = wide.product;
    const HopperLinearParams& l = p.linear;
    // Not hopper_uniform(): ptxas 13 gives copies with a cache policy a wrong register for it, an illegal instruction,
    // where their address is partly the same in all lanes.
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int turns = kTurns ? p.turns : 1, at_once = p.at_once, depth = p.depth, slot_bytes = p.slot_bytes,
              groups = turns * at_once, warps = 4 * groups;
    const int pieces = (l.k + 255) / 256;
    // Shared memory: the ring of x, codes of all warps, their scales, the sums of each warpgroup.
    uchar* ring_at = shared + ((1024 - (ptx_shared_address(shared) & 1023)) & 1023);
    uchar* slots_at = ring_at + wide.stages * kStage;
    uchar* scales_at = slots_at + warps * depth * slot_bytes;
    uchar* sums_at = scales_at + warps * p.scale_bytes;
    const uint ring = ptx_shared_address(ring_at), full = ptx_shared_address(sm.full),
               empty = ptx_shared_address(sm.empty);
    if (threadIdx.x == 0) {
      for (int i = 0; i < wide.stages; i++) {
        hopper_barrier_init(full + i * 8, 1);
        hopper_barrier_init(empty + i * 8, 4 * at_once);
      }
      hopper_barrier_init_done();
    }
    if (wide.row_tiles != 0 && warp == warps) {
      const int count = count_row_tiles(wide.row_tiles, experts, lane);
      if (lane == 0) sm.row_tiles = count;
    }
    __syncthreads();
    // All tiles of W, or as many of experts as are computed at once.
    const uint units = wide.row_tiles == 0 ? (uint)p.units : (uint)(sm.row_tiles * (p.units / at_once)),
               each = wide.row_tiles == 0 ? 1u : (uint)at_once;
    const int first = (int)(blockIdx.x * units / gridDim.x * each),
              last = (int)((blockIdx.x + 1) * units / gridDim.x * each);
    const int rounds = (last - first + at_once - 1) / at_once;
    if (warp == warps) return produce(wide, ring, full, empty, first, rounds * pieces);

    const int group = warp >> 2, part = warp & 3, mine = group / turns, turn = group - mine * turns;
    const uint slots = ptx_shared_address(slots_at) + warp * depth * slot_bytes, slots_end = slots + depth * slot_bytes,
               my_scales = ptx_shared_address(scales_at) + warp * p.scale_bytes;
    const int before = turn == 0 ? group + turns - 1 : group - 1, mine_of = ((int)threadIdx.x & (kThreads - 1)) * 16;
    const uint my_sums = ptx_shared_address(sums_at) + group * kSumsBytes + mine_of,
               their_sums = ptx_shared_address(sums_at) + before * kSumsBytes + mine_of;

    const auto advance = [&](Place& at) {
      at.piece += turns;
      if (at.piece >= pieces) at.piece -= pieces, at.tile += at_once;
    };
    Place now = {first + mine, turn}, next = now;
    const uchar* panel = next.tile < last ? panel_of(wide, w, experts, next.tile, part) : w;
    const auto steps_of = [&](int piece) { return Kind::kEnds ? min(16, l.k / 16 - piece * 16) : 16; };
    const auto request_next = [&](uint to) {
      if (next.tile < last) {
        Kind::template request<!Kind::kEnds>(p, panel, next.piece, steps_of(next.piece), to, read_once(), lane);
        const int tile = next.tile;
        advance(next);
        if (next.tile != tile && next.tile < last) panel = panel_of(wide, w, experts, next.tile, part);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (uint to = slots; to < slots_end; to += slot_bytes) request_next(to);

    const typename Kind::Powers powers = Kind::powers();
    const int g = lane >> 2, t = lane & 3, hand_from = 1 + group,
              hand_to = turn + 1 == turns ? hand_from - turn : hand_from + 1, together = 1 + groups + group;
    uint slot = slots;
    float acc[kSums];
    Stage at = {turn, 0};
    bool begun = false;
#pragma unroll 1
    while (now.tile < first + rounds * at_once + mine) {
      const int steps = steps_of(now.piece);
      const bool here = now.tile < last, ended = now.piece + 1 == pieces, more = !ended || now.tile + at_once < last;
      const uint word = hopper_uniform(hopper_descriptor_word(ring + at.slot * kStage, 16));
      if (here) {
        hopper_wait_pieces(depth - 1);
        __syncwarp();
        Kind::scales(p, (const uchar*)__cvta_shared_to_generic(slot), now.piece, my_scales, lane);
        __syncwarp();
        UNROLL for (int first_step = 0; first_step < 16; first_step += kBatch) {
          uint a[kBatch][4];
          UNROLL for (int i = 0; i < kBatch; i++) {
            Kind::operand(p, powers, slot, my_scales, first_step + i, g, t, a[i]);
          }
          if (Kind::kEnds && steps < 16) {  // K ends: zeros of W meet zeros of x, which change no sum
            UNROLL for (int i = 0; i < kBatch; i++) {
              UNROLL for (int j = 0; j < 4; j++) a[i][j] = first_step + i < steps ? a[i][j] : 0u;
            }
          }
          if (first_step + kBatch == 16) {
            __syncwarp();  // all lanes have read the codes
            request_next(slot);
            slot = slot + slot_bytes == slots_end ? slots : slot + slot_bytes;
          }
          // The operands are complete before the sums arrive.
          UNROLL for (int i = 0; i < kBatch; i++) {
            asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]));
          }
          if (first_step == 0) {
            if (!begun) ptx_grid_wait();
            hopper_barrier_wait(full + at.slot * 8, at.parity);
            if (turns > 1 && (begun || now.piece != 0)) turn_wait(hand_from);
            begun = true;
            if (now.piece == 0) {
              UNROLL for (int i = 0; i < kSums; i++) acc[i] = 0.0f;
            } else if (turns > 1) {
              UNROLL for (int i = 0; i < kSums; i += 4) hopper_load_sums(acc + i, their_sums + i * (4 * kThreads));
            }
          }
          hopper_wg_arrive();
          UNROLL for (int i = 0; i < kBatch; i++) {
            const int k = first_step + i;
            hopper_wg_product(acc, a[i], hopper_descriptor_of(word + k / 4 * (kBox >> 4) + k % 4 * 2, 1024), T());
          }
          hopper_wg_commit();
          hopper_wg_wait<0>();
        }
        if (turns > 1) {
          if (!ended) {
            UNROLL for (int i = 0; i < kSums; i += 4) hopper_store_sums(my_sums + i * (4 * kThreads), acc + i);
          }
          if (more) turn_arrive(hand_to);
        }
      } else {
        hopper_barrier_wait(full + at.slot * 8, at.parity);
      }
      if (lane == 0) hopper_barrier_arrive(empty + at.slot * 8);
      if (here && ended) {
        float* all_sums = (float*)__cvta_shared_to_generic(my_sums - mine_of);
        group_sync(together);  // the sums that were handed on last have been read
        UNROLL for (int i = 0; i < kSums; i++) {
          all_sums[(8 * (i >> 2) + 2 * t + (i & 1)) * kSumsRow + part * 16 + g + 8 * ((i >> 1) & 1)] = acc[i];
        }
        group_sync(together);
        finish(wide, all_sums, now.tile, out, bias, residual, experts);
        group_sync(together);
      }
      advance(now);
      skip(at, turns, wide.stages);
    }
    if (!begun) ptx_grid_wait();
    // A thread must not exit while its own copies are in flight.
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
};

#define HOPPER_LINEAR_QUANTISED_WIDE(types, T, rows, kind, low, high, table, scheme)                              \
  extern "C" __global__ void __launch_bounds__(hopper_quantised_wide_threads(rows), 1)                            \
      hopper_linear_##types##_wide##rows##_##kind(const __grid_constant__ HopperQuantisedWideParams p, void* out, \
                                                  const uchar* w, const float* bias, const float* residual,       \
                                                  const int* experts) {                                           \
    __shared__ HopperQuantisedWideSmem sm;                                                                        \
    typedef HopperPieceKind<T, low, high, table != 0, scheme> Kind;                                               \
    HopperQuantisedWide<T, Kind, rows>::run(p, sm, out, w, bias, residual, experts);                              \
  }
#define HOPPER_LINEAR_QUANTISED_WIDE_ALL(kind, ...)                 \
  HOPPER_LINEAR_QUANTISED_WIDE(bf16, bfloat, 16, kind, __VA_ARGS__) \
  HOPPER_LINEAR_QUANTISED_WIDE(bf16, bfloat, 32, kind, __VA_ARGS__) \
  HOPPER_LINEAR_QUANTISED_WIDE(bf16, bfloat, 64, kind, __VA_ARGS__) \
  HOPPER_LINEAR_QUANTISED_WIDE(f16, half, 16, kind, __VA_ARGS__)    \
  HOPPER_LINEAR_QUANTISED_WIDE(f16, half, 32, kind, __VA_ARGS__)    \
  HOPPER_LINEAR_QUANTISED_WIDE(f16, half, 64, kind, __VA_ARGS__)
HOPPER_QUANTISED_KINDS(HOPPER_LINEAR_QUANTISED_WIDE_ALL)
