// SPDX-License-Identifier: Apache-2.0
// linear in one wave of tiles, each as narrow as the size of the GPU allows; W and x are loaded by the copy engine, TMA
// (sm_90a).
//
// Equal by memcmp to linear_few.cuh, linear_wide.cuh, the portable linear and cuBLASLt without split-K: each sum is one
// chain of k16 steps in one warpgroup. Most of the time goes into loading W once, and x for every threadgroup. A
// threadgroup computes up to XB rows of x by WB rows of W (gated: WB / 2 of gate and the matching WB / 2 of up), chosen
// so that one product fills the GPU. A pair of threadgroups (a cluster) shares W: each loads half of it, and TMA
// multicasts it to both. x is divided between the two of a pair, and between several pairs where that is not enough.
// One warp issues the loads, the others multiply; with adapters, more warps bring what they add.
//
// Upright: x is wgmma's 64-row operand, W its columns. Across (64 rows of W, 128 of x): the other way round, so that
// each loaded row of W is multiplied with 128 rows of x; a stage then has 64 k, so that more stages are in flight. Wide
// (more than 64 rows of W, for products with many outputs, such as gate and up): upright, also with 64 k in a stage,
// and with a warpgroup for each 64 rows of x. Tiles have as many rows of W as one wave needs, so that all of the chip
// loads; what is multiplied beside them is not used. Results go through shared memory, because code for each sum would
// be long, and an epilogue takes about as long as its instructions take to arrive. No residual is added there.
//
// Grid, threads and dynamic memory: hopper_tall_plan(). REQUIRES: K is a multiple of 16, N of 8 (gated: of 16), the
// strides of out and residual are even; x and W have the layout of their tensor maps.
#pragma once

#include "kernels/cuda/lora_add.cuh"
#include "kernels/cuda/wgmma.cuh"

// ---- pairs ----

// Relaxed, it orders no memory: mbarriers have their own fence, and data is ordered by TMA's completion on mbarriers.
HOPPER_FN void hopper_tall_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// Arrives at an mbarrier of the pair's other threadgroup. Without .release.cluster, which would be a fence of the whole
// GPU and cost half a microsecond per stage; none is needed, because the data was only read, and by wgmma.
HOPPER_FN void hopper_tall_arrive(uint barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Loads a box of the map to the same place in both threadgroups of a pair.
HOPPER_FN void hopper_tall_copy_to_pair(uint to, const HopperTensorMap* map, int k, int row, int half_of,
                                        uint barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(k), "r"(row), "r"(half_of), "r"(barrier), "h"((ushort)3)
      : "memory");
}

// PAIR: two threadgroups share WB rows of W.
template <typename T, int WB, int XB, bool PAIR>
struct HopperLinearTall {
  static constexpr bool kAcross = XB == 128 && WB == 64, kWide = WB > 64,
                        kMoreWarps = hopper_tall_has_more_warps(WB, XB);
  enum {
    kDeep = hopper_tall_deep(WB, XB),  // units of 64 k in a stage
    kDepth = 64 * kDeep,
    kW = WB * 128,  // bytes of 64 k of W, and of x
    kX = XB * 128,
    kStage = kDeep * (kW + kX),  // W first, then x
    kRing = 1024,                // offset of the ring; the mbarriers are before it
    kPeers = PAIR ? 2 : 1,
    kGroups = hopper_tall_groups(WB, XB),  // warpgroups that multiply
    kSums = (kAcross ? XB : WB) / 2,       // sums per lane
    kSumsStride = WB + 8,                  // elements between the rows of rounded sums
    kWarpRows = XB / (4 * kGroups),        // rows of x whose results a warp writes
    kBefore = kWide     ? 1
              : kAcross ? kWarpRows
                        : WB / 4,
    kItems = hopper_tall_lora_items(WB),
    kBringer = 4 * kGroups + 1  // the first of the warps that are only there with adapters
  };
  static_assert(!kWide || !PAIR, "pairs have narrow tiles");
  static_assert(hopper_tall_most_stages(WB, XB) * 16 <= kRing &&
                    XB * kSumsStride * 2 <= kHopperTallFewestStages * kStage,
                "sums take the ring's place");
  typedef HopperLoraRoom<T, kItems> LoraRoom;

  struct Place {
    int rank;       // in the pair
    int row, rows;  // rows of x
    int tile;       // tile of `width` rows of W
    int width;      // WB; wide: as many as the chip needs for one wave
  };
  HOPPER_FN uint full(uint base, int slot) { return base + slot * 16; }
  HOPPER_FN uint empty(uint base, int slot) { return base + slot * 16 + 8; }
  HOPPER_FN uint stage_at(uint base, int slot) { return base + kRing + slot * kStage; }
  // The multiplying warps.
  HOPPER_FN void sync_multipliers() { asm volatile("bar.sync 1, %0;" ::"n"(128 * kGroups) : "memory"); }

  // ---- the warp that loads ----

  HOPPER_FN void load_w(const HopperTallParams& p, const Place& at, uint stage, uint barrier, int k) {
    const bool gated = p.linear.epilogue == kHopperGated;
    const int row = at.tile * (gated ? at.width / 2 : at.width);
    UNROLL for (int i = 0; i < kDeep; i++) {
      if (PAIR) {
        hopper_tall_copy_to_pair(stage + i * kW + at.rank * (kW / 2), &p.w, k + 64 * i,
                                 row + (gated ? 0 : at.rank * (WB / 2)), gated ? at.rank : 0, barrier);
      } else {
        hopper_box_copy(stage + i * kW, &p.w, k + 64 * i, row, 0, barrier, hopper_read_once());
      }
    }
  }
  HOPPER_FN void load_x(const HopperTallParams& p, const Place& at, uint stage, uint barrier, int k) {
    UNROLL for (int i = 0; i < kDeep; i++) {
      hopper_box_copy(stage + kDeep * kW + i * kX, &p.x, k + 64 * i, at.row, 0, barrier);
    }
  }
  // All lanes run the loop, one issues the loads. W is requested while the preceding launch still runs, x after it; but
  // if the preceding one is the first product of adapters, x was there before that began.
  HOPPER_FN void produce(const HopperTallParams& p, const Place& at, uint base, int stages) {
    const int first = min(stages, p.stages);
    const uint bytes = kDeep * (at.width + at.rows) * 128;
    const bool issues = hopper_elected();
    if (issues) {
      hopper_prefetch_map(&p.w);
      hopper_prefetch_map(&p.x);
      for (int s = 0; s < first; s++) {
        hopper_barrier_expect(full(base, s), bytes);
        load_w(p, at, stage_at(base, s), full(base, s), s * kDepth);
      }
    }
    if (p.lora.early == 0) ptx_grid_wait();
    if (issues) {
      for (int s = 0; s < first; s++) load_x(p, at, stage_at(base, s), full(base, s), s * kDepth);
    }
    __syncwarp();
    uint parity = 0;
    int slot = 0;
#pragma unroll 1
    for (int s = first; s < stages; s++) {
      hopper_barrier_wait(empty(base, slot), parity);
      if (issues) {
        hopper_barrier_expect(full(base, slot), bytes);
        load_w(p, at, stage_at(base, slot), full(base, slot), s * kDepth);
        load_x(p, at, stage_at(base, slot), full(base, slot), s * kDepth);
      }
      __syncwarp();
      if (++slot == p.stages) {
        slot = 0;
        parity ^= 1;
      }
    }
  }

  // ---- the warpgroups that multiply ----

  HOPPER_FN void step(float (&acc)[kSums], uint w, uint x, int k) {
    const unsigned long long of_w = hopper_descriptor_of(w + (k >> 2) * (kW >> 4) + (k & 3) * 2, 1024);
    const unsigned long long of_x = hopper_descriptor_of(x + (k >> 2) * (kX >> 4) + (k & 3) * 2, 1024);
    hopper_wg_product(acc, kAcross ? of_w : of_x, kAcross ? of_x : of_w, T());
  }
  // Absent rows of x leave old data in shared memory; their sums are not used.
  HOPPER_FN void multiply(float (&acc)[kSums], const HopperTallParams& p, uint base, int stages) {
    const uint first_w = hopper_uniform(hopper_descriptor_word(stage_at(base, 0), 16));
    const uint group = kGroups == 1 ? 0 : threadIdx.x >> 7;
    const uint first_x =
        hopper_uniform(hopper_descriptor_word(stage_at(base, 0) + kDeep * kW + group * (64 * 128), 16));
    // A slot is free when all warpgroups say so, those of both threadgroups of a pair, because both load W into it.
    const int peer = ((int)threadIdx.x >> 5) & 3;
    const bool signals = (threadIdx.x & 31) == 0 && peer < kPeers;
    const uint there = hopper_cluster_place(empty(base, 0), signals ? peer : 0);
    const int whole = p.linear.k / kDepth;
    int slot = 0, last = 0;
    uint parity = 0, w = first_w, x = first_x;
#pragma unroll 1
    for (int s = 0; s < whole; s++) {
      hopper_barrier_wait(full(base, slot), parity);
      hopper_wg_arrive();
      UNROLL for (int k = 0; k < 4 * kDeep; k++) step(acc, w, x, k);
      hopper_wg_commit();
      hopper_wg_wait<1>();
      if (signals && s > 0 && s - 1 + p.stages < stages) hopper_tall_arrive(there + last * 16);
      last = slot;
      slot++;
      w += kStage >> 4;
      x += kStage >> 4;
      if (slot == p.stages) {
        slot = 0;
        parity ^= 1;
        w = first_w;
        x = first_x;
      }
    }
    if (whole < stages) {  // K ends inside a stage
      hopper_barrier_wait(full(base, slot), parity);
      hopper_wg_arrive();
      UNROLL for (int k = 0; k < 4 * kDeep - 1; k++) {
        if (whole * kDepth + k * 16 < p.linear.k) step(acc, w, x, k);
      }
      hopper_wg_commit();
    }
    hopper_wg_wait<0>();
  }

  // ---- the epilogue ----

  // Sum i of a lane is in this row of the 64-row operand (wgmma's layout: lane / 4 of its warp's 16 rows, or 8 more)
  // and in this column of the other operand.
  HOPPER_FN int row_of(int i) {
    return ((int)threadIdx.x >> 5) * 16 + (((int)threadIdx.x & 31) >> 2) + 8 * ((i >> 1) & 1);
  }
  HOPPER_FN int column_of(int i) {
    return 8 * (i >> 2) + ((int)threadIdx.x & 3) * 2 + (i & 1);
  }

  HOPPER_FN int end_of(const HopperLinearParams& p, const Place& at) {
    return min(p.m, at.row + at.rows);
  }
  // The column of the linear's output that a column of the tile is.
  HOPPER_FN auto output_column(const HopperLinearParams& p, const Place& at) {
    const bool gated = p.epilogue == kHopperGated;
    const int half = at.width / 2, first = at.tile * (gated ? half : at.width), half_n = p.n / 2;
    return [=](int column) { return gated && column >= half ? first + column - half + half_n : first + column; };
  }
  HOPPER_FN void add(const HopperLinearParams& p, float* out, float y, float z, float2 before) {
    *(float2*)out = make_float2(fma(y, p.scale, before.x), fma(z, p.scale, before.y));
  }

  // Upright, pair i of a lane is two neighbours in a row of out. Across, it is a lane's two columns in the warp's row i
  // of out, after the sums went through shared memory.
  HOPPER_FN void place_of(const HopperLinearParams& p, const Place& at, int i, int& m, int& n, bool& there) {
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    m = at.row + (kAcross ? warp * kWarpRows + i : row_of(2 * i));
    n = at.tile * WB + (kAcross ? 2 * lane : column_of(2 * i));
    there = m < end_of(p, at) && n < p.n;
  }
  // Loads the residual there, before the sums are complete.
  HOPPER_FN void load_residual(const HopperLinearParams& p, const Place& at, float2 (&before)[kBefore],
                               const float* residual) {
    UNROLL for (int i = 0; i < kBefore; i++) {
      int m, n;
      bool there;
      place_of(p, at, i, m, n, there);
      before[i] = make_float2(0.0f, 0.0f);
      if (there) before[i] = __ldcg((const float2*)(residual + (i64)m * p.residual_stride + n));
    }
  }
  HOPPER_FN void finish_upright(const float (&acc)[kSums], const float2 (&before)[kBefore], const HopperLinearParams& p,
                                const Place& at, void* out, const float* bias) {
    UNROLL for (int i = 0; i < kSums / 2; i++) {
      int m, n;
      bool there;
      place_of(p, at, i, m, n, there);
      if (!there) continue;
      const float a = acc[2 * i], b = acc[2 * i + 1];
      const i64 place = (i64)m * p.out_stride + n;
      if (p.epilogue == kHopperStoreF32) {
        *(float2*)((float*)out + place) = make_float2(p.biased ? a + bias[n] : a, p.biased ? b + bias[n + 1] : b);
        continue;
      }
      const float y = hopper_rounded<T>(a, p, bias, n), z = hopper_rounded<T>(b, p, bias, n + 1);
      if (p.epilogue == kHopperStore) {
        *(uint*)((T*)out + place) = hopper_pack<T>(y, z);
      } else {
        add(p, (float*)out + place, y, z, before[i]);
      }
    }
  }
  HOPPER_FN void store_floats_wide(const float (&acc)[kSums], const HopperLinearParams& p, const Place& at, float* out,
                                   const float* bias) {
    UNROLL for (int i = 0; i < kSums; i += 2) {
      const int m = at.row + row_of(i), n = at.tile * at.width + column_of(i);
      if (m >= end_of(p, at) || n >= p.n || column_of(i) >= at.width) continue;
      *(float2*)(out + (i64)m * p.out_stride + n) =
          make_float2(p.biased ? acc[i] + bias[n] : acc[i], p.biased ? acc[i + 1] + bias[n + 1] : acc[i + 1]);
    }
  }
  // Eight lanes write neighbours in a row of out.
  HOPPER_FN void store_floats_across(const float (&acc)[kSums], const HopperLinearParams& p, const Place& at,
                                     float* out, const float* bias) {
    UNROLL for (int i = 0; i < kSums; i++) {
      const int m = at.row + column_of(i), n = at.tile * WB + row_of(i);
      if (m >= end_of(p, at) || n >= p.n) continue;
      out[(i64)m * p.out_stride + n] = p.biased ? acc[i] + bias[n] : acc[i];
    }
  }

  // Stages rounded sums in the ring's memory, [row of x][row of W]. So gate and up of a column are found together, the
  // code of the activations exists once, and, across, neighbouring lanes write a row of out.
  HOPPER_FN void keep_sums(const float (&acc)[kSums], const HopperLinearParams& p, const Place& at, const float* bias,
                           T* sums) {
    const auto output = output_column(p, at);
    const auto row_of_w = [&](int column) { return min(output(column), p.n - 1); };
    sync_multipliers();  // no stage is read any more
    if constexpr (kAcross) {
      UNROLL for (int i = 0; i < kSums; i++) {
        sums[column_of(i) * kSumsStride + row_of(i)] = to<T>(hopper_rounded<T>(acc[i], p, bias, row_of_w(row_of(i))));
      }
    } else if (!p.biased) {
      UNROLL for (int i = 0; i < kSums; i += 2) {
        *(uint*)(sums + row_of(i) * kSumsStride + column_of(i)) = hopper_pack<T>(acc[i], acc[i + 1]);
      }
    } else {
      UNROLL for (int i = 0; i < kSums; i += 2) {
        *(uint*)(sums + row_of(i) * kSumsStride + column_of(i)) =
            hopper_pack<T>(hopper_rounded<T>(acc[i], p, bias, row_of_w(column_of(i))),
                           hopper_rounded<T>(acc[i + 1], p, bias, row_of_w(column_of(i + 1))));
      }
    }
    sync_multipliers();
  }
  // Calls f(row of x, column) for the first of each four neighbouring columns, of `columns` in each row; the threads
  // share these calls.
  template <typename F>
  HOPPER_FN void for_fours(const HopperLinearParams& p, const Place& at, int columns, const F& f) {
    const int each = columns / 4, rows = end_of(p, at) - at.row;
    int r = (int)threadIdx.x / each, four = (int)threadIdx.x % each;
#pragma unroll 1
    while (r < rows) {
      f(r, 4 * four);
      four += 128 * kGroups % each;
      r += 128 * kGroups / each;
      if (four >= each) {
        four -= each;
        r++;
      }
    }
  }
  HOPPER_FN void store_four(T* out, float a, float b, float c, float d) {
    *(uint*)out = hopper_pack<T>(a, b);
    *(uint*)(out + 2) = hopper_pack<T>(c, d);
  }
  HOPPER_FN void finish_gated(const HopperLinearParams& p, const Place& at, T* out, const T* sums) {
    const int half = at.width / 2;
    const auto gate = [&](auto act) {
      for_fours(p, at, half, [&](int r, int column) {
        const int n = at.tile * half + column;
        if (n >= p.n / 2) return;
        const T* row = sums + r * kSumsStride + column;
        const float4 g = hopper_four(*(const uint2*)row, T()), u = hopper_four(*(const uint2*)(row + half), T());
        store_four(out + (i64)(at.row + r) * p.out_stride + n, act(g.x, u.x), act(g.y, u.y), act(g.z, u.z),
                   act(g.w, u.w));
      });
    };
    if (p.activation == kActSilu && !(p.limit > 0.0f)) return gate([](float g, float u) { return q_silu(g) * u; });
    gate([&](float g, float u) { return activate_glu(p.activation, p.limit, g, u); });
  }
  HOPPER_FN void finish_wide(const HopperLinearParams& p, const Place& at, T* out, const T* sums) {
    for_fours(p, at, at.width, [&](int r, int column) {
      const int n = at.tile * at.width + column;
      if (n >= p.n) return;
      const uint2 four = *(const uint2*)(sums + r * kSumsStride + column);
      uint* to = (uint*)(out + (i64)(at.row + r) * p.out_stride + n);
      to[0] = four.x;
      to[1] = four.y;
    });
  }
  HOPPER_FN void finish_kept(const float2 (&before)[kBefore], const HopperLinearParams& p, const Place& at, void* out,
                             const T* sums) {
    UNROLL for (int i = 0; i < kBefore; i++) {
      int m, n;
      bool there;
      place_of(p, at, i, m, n, there);
      if (!there) continue;
      const T* pair = sums + (m - at.row) * kSumsStride + (n - at.tile * WB);
      const i64 place = (i64)m * p.out_stride + n;
      if (p.epilogue == kHopperStore) {
        *(uint*)((T*)out + place) = *(const uint*)pair;
      } else {
        add(p, (float*)out + place, to_f(pair[0]), to_f(pair[1]), before[i]);
      }
    }
  }
  HOPPER_FN void finish(const float (&acc)[kSums], const float2 (&before)[kBefore], const HopperLinearParams& p,
                        const Place& at, void* out, const float* bias, T* sums) {
    const bool gated = p.epilogue == kHopperGated;
    if constexpr (kAcross || kWide) {
      if (p.epilogue == kHopperStoreF32) {
        return kWide ? store_floats_wide(acc, p, at, (float*)out, bias)
                     : store_floats_across(acc, p, at, (float*)out, bias);
      }
    } else if (!gated) {
      return finish_upright(acc, before, p, at, out, bias);
    }
    keep_sums(acc, p, at, bias, sums);
    finish_rows(before, p, at, out, sums);
  }
  // Writes what becomes of the rounded sums.
  HOPPER_FN void finish_rows(const float2 (&before)[kBefore], const HopperLinearParams& p, const Place& at, void* out,
                             const T* sums) {
    if (p.epilogue == kHopperGated) return finish_gated(p, at, (T*)out, sums);
    if constexpr (kWide) return finish_wide(p, at, (T*)out, sums);
    if constexpr (!kWide) finish_kept(before, p, at, out, sums);
  }

  // ---- adapters ----

  HOPPER_FN auto lora_tile(const HopperTallParams& p, const Place& at, const HopperLoraMemory& m, unsigned char* ring) {
    auto column = output_column(p.linear, at);
    return HopperLoraTile<T, kItems, decltype(column)>{
        p.lora, m, (LoraRoom*)(ring + p.stages * kStage), at.row, end_of(p.linear, at), at.width / 4, column};
  }
  // The warps that are only there with adapters: one brings what they add, and four compute the first product, where
  // the launch does that. All of them help to add.
  HOPPER_FN void assist(const HopperTallParams& p, const Place& at, const HopperLoraMemory& m,
                        const HopperLoraScratch& to, const T* x, unsigned char* ring) {
    auto tile = lora_tile(p, at, m, ring);
    if (hopper_uniform(threadIdx.x >> 5) == kBringer) {
      bring_adapters(p, tile, m, to);
    } else {
      run_first(p, m, to, x, hopper_uniform((int)threadIdx.x >> 5) - (kBringer + 1));
    }
    sync_adders();
    add_together(p, tile, ring);
    asm volatile("bar.arrive 4, %0;" ::"r"(adders()) : "memory");
    if (p.lora.groups > 0 && threadIdx.x == kBringer * 32) HopperLoraFirst<T>{p.lora, m, to}.leave();
  }
  template <typename Tile>
  HOPPER_FN void bring_adapters(const HopperTallParams& p, Tile& tile, const HopperLoraMemory& m,
                                const HopperLoraScratch& to) {
    const int lane = (int)threadIdx.x & 31;
    bool rest = tile.prepare_runs(lane, 32);
    __syncwarp();
    rest = __any_sync(0xffffffffu, tile.prepare_items(lane, 32) || rest);
    if (lane == 0 && p.lora.room != 0) tile.room->rest = rest;
    ptx_grid_wait();
    if (p.lora.groups > 0) HopperLoraFirst<T>{p.lora, m, to}.await();
    tile.request_t(lane, 32);
    tile.await();
  }
  // The threadgroup's share of the first product, by four warps.
  HOPPER_FN void run_first(const HopperTallParams& p, const HopperLoraMemory& m, const HopperLoraScratch& to,
                           const T* x, int warp) {
    __shared__ float4 sums[3][2][32];
    HopperLoraFirst<T>{p.lora, m, to}.run(warp, x, p.linear.x_stride, p.linear.m, p.linear.k, sums);
  }
  // The threads that add: all but the warp that loads.
  HOPPER_FN int adders() {
    return (int)blockDim.x - 32;
  }
  HOPPER_FN void sync_adders() {
    asm volatile("bar.sync 2, %0;" ::"r"(adders()) : "memory");
  }
  template <typename Tile>
  HOPPER_FN void add_together(const HopperTallParams& p, Tile& tile, unsigned char* ring) {
    const int thread = (int)threadIdx.x - (threadIdx.x < 128 * kGroups ? 0 : 32);
    tile.add((T*)ring, kSumsStride, p.lora.room == 0 || tile.room->rest != 0, thread, adders());
  }
  HOPPER_FN void run_adapted(float (&acc)[kSums], const HopperTallParams& p, const Place& at, void* out,
                             const float* bias, const float* residual, const HopperLoraMemory& m, uint base,
                             unsigned char* ring, int stages) {
    const HopperLinearParams& l = p.linear;
    T* sums = (T*)ring;
    auto tile = lora_tile(p, at, m, ring);
    if (p.lora.early == 0) ptx_grid_wait();  // or the launch of the first product has waited for the residual
    float2 before[kBefore];
    if (!kWide && l.epilogue == kHopperResidual) load_residual(l, at, before, residual);
    multiply(acc, p, base, stages);
    ptx_grid_wait();
    keep_sums(acc, l, at, bias, sums);
    sync_adders();
    add_together(p, tile, ring);
    asm volatile("bar.sync 4, %0;" ::"r"(adders()) : "memory");
    finish_rows(before, l, at, out, sums);
  }

  // Before: the mbarriers are initialised everywhere. After: no threadgroup of a pair exits while the other still loads
  // something for both.
  HOPPER_FN void sync_start() {
    __syncwarp();
    if (!PAIR) return __syncthreads();
    sync_end();
  }
  HOPPER_FN void sync_end() {
    if (!PAIR) return;
    __syncwarp();
    hopper_tall_cluster_arrive();
    hopper_cluster_wait();
  }

  HOPPER_FN void run(const HopperTallParams& p, void* out, const float* bias, const float* residual,
                     const HopperLoraMemory& adapters, const HopperLoraScratch& to, const T* x) {
    extern __shared__ __align__(128) unsigned char shared[];
    ptx_grid_release();
    const uint start = ptx_shared_address(shared), base = (start + 1023) & ~1023u;
    const int rank = PAIR ? (int)hopper_cluster_rank() : 0, stages = (p.linear.k + kDepth - 1) / kDepth;
    const int pair = (int)blockIdx.x / kPeers;  // pairs with the same tile of W are neighbours
    const Place at = {rank, (pair % p.layers * kPeers + rank) * p.rows, p.rows, pair / p.layers + p.first_tile,
                      kWide ? p.width : WB};
    if (threadIdx.x == 128 * kGroups) {
      for (int s = 0; s < p.stages; s++) {
        hopper_barrier_init(full(base, s), 1);
        hopper_barrier_init(empty(base, s), kPeers * kGroups);
      }
      hopper_barrier_init_done();
    }
    sync_start();
    if (hopper_uniform(threadIdx.x >> 5) == 4 * kGroups) {
      produce(p, at, base, stages);
      return sync_end();
    }
    unsigned char* ring = shared + (base - start) + kRing;
    if (hopper_uniform(threadIdx.x >> 5) >= kBringer) {
      assist(p, at, adapters, to, x, ring);
      return sync_end();
    }
    // Without more warps, multiplying ones compute the first product, while they have no sums.
    if constexpr (!kMoreWarps) {
      if (p.lora.groups > 0 && threadIdx.x < 128) run_first(p, adapters, to, x, hopper_uniform((int)threadIdx.x >> 5));
    }
    float acc[kSums];
    UNROLL for (int i = 0; i < kSums; i++) acc[i] = 0.0f;
    if (p.lora.runs > 0) {
      run_adapted(acc, p, at, out, bias, residual, adapters, base, ring, stages);
      return sync_end();
    }
    float2 before[kBefore];
    ptx_grid_wait();
    if (!kWide && p.linear.epilogue == kHopperResidual) load_residual(p.linear, at, before, residual);
    multiply(acc, p, base, stages);
    finish(acc, before, p.linear, at, out, bias, (T*)ring);
    sync_end();
  }
};

#define HOPPER_LINEAR_TALL(types, T, name, wb, xb, pair, cluster)                                                     \
  extern "C" __global__ void __launch_bounds__(hopper_tall_lora_threads(wb, xb, true))                                \
      cluster hopper_linear_##types##_tall_##name(const __grid_constant__ HopperTallParams p, void* out,              \
                                                  const float* bias, const float* residual, const uchar* memory,      \
                                                  const int* rows, const LoraRunParams* runs, float* t, const T* x,   \
                                                  float* parts, uint* counters) {                                     \
    HopperLinearTall<T, wb, xb, pair>::run(p, out, bias, residual, {memory, rows, runs, t}, {t, parts, counters}, x); \
  }
#define HOPPER_LINEAR_TALLS(types, T)                                             \
  HOPPER_LINEAR_TALL(types, T, n16, 16, 64, false, )                              \
  HOPPER_LINEAR_TALL(types, T, n32, 32, 64, false, )                              \
  HOPPER_LINEAR_TALL(types, T, n48, 48, 64, false, )                              \
  HOPPER_LINEAR_TALL(types, T, n128, 128, 64, false, )                            \
  HOPPER_LINEAR_TALL(types, T, n192, 192, 64, false, )                            \
  HOPPER_LINEAR_TALL(types, T, n256, 256, 64, false, )                            \
  HOPPER_LINEAR_TALL(types, T, n32_pair, 32, 64, true, __cluster_dims__(2, 1, 1)) \
  HOPPER_LINEAR_TALL(types, T, n48_pair, 48, 64, true, __cluster_dims__(2, 1, 1)) \
  HOPPER_LINEAR_TALL(types, T, n64_pair, 64, 64, true, __cluster_dims__(2, 1, 1)) \
  HOPPER_LINEAR_TALL(types, T, n192_m128, 192, 128, false, )                      \
  HOPPER_LINEAR_TALL(types, T, n256_m128, 256, 128, false, )                      \
  HOPPER_LINEAR_TALL(types, T, across_pair, 64, 128, true, __cluster_dims__(2, 1, 1))
HOPPER_LINEAR_TALLS(bf16, bfloat)
HOPPER_LINEAR_TALLS(f16, half)
