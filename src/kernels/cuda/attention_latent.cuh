// SPDX-License-Identifier: Apache-2.0
// Attention over latent pages (multi-head latent attention): one vector of 576 elements per position is the key of all
// heads, and its first 512 elements are their value (sm_90a).
//
// Equal by memcmp to the portable attention; attention_common.cuh describes the arithmetic. A threadgroup serves one
// token, 16 of its heads and one split, so that a latent vector that is read from memory is multiplied with 16 rows by
// the tensor cores, once as a key and once as a value. Eight warps go through tiles of 64 positions: each computes the
// scores of eight positions, and then 64 columns of p V. Two tiles are in shared memory at a time.
//
// Grid: (heads / 16 rounded up, max_splits, tokens), kHopperLatentThreads, hopper_latent_memory(). The splits of a
// sequence that has several go to scratch, and attention_merge (attention_decode.cuh) follows. REQUIRES: causal,
// without window, cap and sinks.
#pragma once

#include "kernels/cuda/attention_common.cuh"

template <typename T>
struct HopperAttentionLatent {
  enum {
    D = kHopperLatentKey,
    V = kHopperLatentValue,
    kThreads = kHopperLatentThreads,
    kWarps = kThreads / 32,
    kPieces = D / 8,  // 16-byte pieces of a row
    kRowBytes = D * 2,
    kRow = kHopperLatentRow,  // bytes from row to row of a tile; the padding spreads eight rows over all banks
    kTileBytes = kHopperTile * kRow,
    kRing = kHopperLatentRing,
    kQueryStride = D + 8,
    kWeightStride = kHopperTile + 8,
    kBlocks = V / kWarps / 8  // groups of eight columns of a warp
  };
  struct Smem {  // the ring follows
    T q[16][kQueryStride];
    T weights[16][kWeightStride];
    float sums[kWarps][16][4];  // [warp][row][t]
    float most[kWarps][16];
    i64 eights[kHopperSplit / 8];
    unsigned long long landed[kRing];
  };
  static_assert(sizeof(Smem) + 128 + kRing * kTileBytes <= hopper_latent_memory(), "as the host counts");

  struct Unit {
    int token, head, rows;  // the first head, and how many there are
    int position;           // of the token
    int split;
    bool merged;  // the sequence has several splits
    int last;     // visible positions in the split
    int tiles;
  };

  // Two warps request the rows of a tile; rows that are not visible become zeros.
  HOPPER_FN void load(const Unit& unit, Smem& sm, uint ring, const char* pages, int tile, int slot) {
    const int row = (int)threadIdx.x, position = tile * kHopperTile + row;
    if (tile >= unit.tiles || row >= kHopperTile) return;
    const uint to = ring + slot * kTileBytes + row * kRow, landed = ptx_shared_address(&sm.landed[slot]);
    if (position < unit.last) {
      hopper_barrier_expect(landed, kRowBytes);
      hopper_copy_bulk(to, pages + sm.eights[position >> 3] + (position & 7) * kRowBytes, kRowBytes, landed,
                       hopper_read_once());
    } else {
      for (int i = 0; i < kPieces; i++) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to + i * 16), "r"(0) : "memory");
      }
      hopper_barrier_arrive(landed);
    }
  }

  // The scores of the warp's eight positions of a tile: one chain of k16 steps. Keys are fetched some steps ahead,
  // because a warp issues in order.
  HOPPER_FN void scores(float (&s)[4], const uint (&q)[D / 16][4], uint tile, int warp, int lane) {
    enum { kAhead = 4 };
    UNROLL for (int i = 0; i < 4; i++) s[i] = 0.0f;
    const uint key = tile + (8 * warp + (lane & 7)) * kRow + (lane >> 3) * 16;
    uint b[kAhead][4];  // 32 k each
    UNROLL for (int k = 0; k < kAhead; k++) hopper_ldmatrix(b[k], key + k * 64);
    UNROLL for (int k = 0; k < D / 32; k++) {
      uint* now = b[k % kAhead];
      hopper_mma<T>(s, q[2 * k], now[0], now[1]);
      hopper_mma<T>(s, q[2 * k + 1], now[2], now[3]);
      if (k + kAhead < D / 32) hopper_ldmatrix(now, key + (k + kAhead) * 64);
    }
  }

  // Adds the warp's columns of p V of a tile; the fragments of a step are fetched during the one before it.
  struct ValueFragments {
    uint p[4], v[kBlocks / 2][4];
  };
  HOPPER_FN void fetch(ValueFragments& f, uint weights, uint value, int k) {
    hopper_ldmatrix(f.p, weights + k * 32);
    UNROLL for (int d = 0; d < kBlocks / 2; d++) hopper_ldmatrix_trans(f.v[d], value + k * 16 * kRow + d * 32);
  }
  HOPPER_FN void values(float (&o)[kBlocks][4], const Smem& sm, uint tile, int warp, int lane) {
    const uint weights = ptx_shared_address(&sm.weights[lane & 15][(lane >> 4) * 8]);
    const uint value = tile + (lane & 15) * kRow + (warp * kBlocks + (lane >> 4)) * 16;
    ValueFragments f[2];
    fetch(f[0], weights, value, 0);
    UNROLL for (int k = 0; k < kHopperTile / 16; k++) {
      if (k + 1 < kHopperTile / 16) fetch(f[(k + 1) & 1], weights, value, k + 1);
      UNROLL for (int d = 0; d < kBlocks; d += 2) {
        const uint* v = f[k & 1].v[d / 2];
        hopper_mma<T>(o[d], f[k & 1].p, v[0], v[1]);
        hopper_mma<T>(o[d + 1], f[k & 1].p, v[2], v[3]);
      }
    }
  }

  // The state of a lane's two rows, g and g + 8.
  struct Rows {
    float o[kBlocks][4], m[2], l[2];
  };

  HOPPER_FN void work(const Unit& unit, Smem& sm, uint ring, const char* pages, const uint (&q)[D / 16][4], Rows& r,
                      int warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int tile = 0; tile < unit.tiles; tile++) {
      const uint here = ring + slot * kTileBytes;
      hopper_barrier_wait(ptx_shared_address(&sm.landed[slot]), parity);
      float s[4];
      scores(s, q, here, warp, lane);
      const int first = tile * kHopperTile + 8 * warp + 2 * t;
      const bool sees[2] = {first < unit.last, first + 1 < unit.last};
      UNROLL for (int i = 0; i < 2; i++) {
        float most = HOPPER_NONE;
        if (sees[0]) most = max(most, s[2 * i]);
        if (sees[1]) most = max(most, s[2 * i + 1]);
        most = row_max(most);
        if (t == 0) sm.most[warp][g + 8 * i] = most;
      }
      __syncthreads();  // the maxima are there, and p V of the tile before is done
      // Its slot is free.
      if (tile > 0) load(unit, sm, ring, pages, tile + kRing - 1, (slot + kRing - 1) % kRing);
      float a[2];
      UNROLL for (int i = 0; i < 2; i++) {
        const int row = g + 8 * i;
        float most = r.m[i];
        UNROLL for (int w = 0; w < kWarps; w++) most = max(most, sm.most[w][row]);
        const float base = most == HOPPER_NONE ? 0.0f : most;
        a[i] = q_exp2(r.m[i] - base);
        r.m[i] = most;
        const float p0 = sees[0] ? q_exp2(s[2 * i] - base) : 0.0f, p1 = sees[1] ? q_exp2(s[2 * i + 1] - base) : 0.0f;
        *(uint*)&sm.weights[row][8 * warp + 2 * t] = hopper_pack<T>(p0, p1);
        sm.sums[warp][row][t] = p0 + p1;
      }
      __syncthreads();
      UNROLL for (int i = 0; i < 2; i++) {
        float e[kWarps];
        UNROLL for (int w = 0; w < kWarps; w++) e[w] = sm.sums[w][g + 8 * i][t];
        r.l[i] = fma(r.l[i], a[i], hopper_tree(e[0], e[1], e[2], e[3]) + hopper_tree(e[4], e[5], e[6], e[7]));
        UNROLL for (int d = 0; d < kBlocks; d++) {
          r.o[d][2 * i] *= a[i];
          r.o[d][2 * i + 1] *= a[i];
        }
      }
      values(r.o, sm, here, warp, lane);
      if (++slot == kRing) {
        slot = 0;
        parity ^= 1;
      }
    }
  }

  HOPPER_FN void write(const HopperAttentionParams& p, const Unit& unit, const Rows& r, T* out, float* scratch,
                       int tokens, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
    UNROLL for (int i = 0; i < 2; i++) {
      const int row = g + 8 * i;
      const float sum = row_sum(r.l[i]);
      if (row >= unit.rows) continue;
      const int column = warp * kBlocks * 8 + 2 * t;
      if (!unit.merged) {
        T* to_row = out + (i64)unit.token * p.out_stride + (i64)(unit.head + row) * V + column;
        UNROLL for (int d = 0; d < kBlocks; d++) {
          *(uint*)(to_row + d * 8) = hopper_pack<T>((r.o[d][2 * i] + 0.0f) / sum, (r.o[d][2 * i + 1] + 0.0f) / sum);
        }
      } else {
        const HopperScratch to_row = hopper_scratch(p, scratch, tokens, unit.token, unit.head + row, unit.split, V);
        UNROLL for (int d = 0; d < kBlocks; d++) {
          *(float2*)(to_row.o + column + d * 8) = make_float2(r.o[d][2 * i], r.o[d][2 * i + 1]);
        }
        if (warp == 0 && t == 0) *(float2*)to_row.ml = make_float2(r.m[i], sum);
      }
    }
  }

  // T(q * c) of the token's heads; absent rows become zeros.
  HOPPER_FN void load_queries(const HopperAttentionParams& p, const Unit& unit, Smem& sm, const T* q) {
    for (int i = (int)threadIdx.x; i < 16 * kPieces; i += kThreads) {
      const int r = i / kPieces, d = i % kPieces * 8;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (r < unit.rows) {
        v = __ldcg((const uint4*)(q + (i64)unit.token * p.q_stride + (i64)(unit.head + r) * D + d));
        uint* words = (uint*)&v;
        UNROLL for (int j = 0; j < 4; j++) {
          words[j] = hopper_pack<T>(to_f(from_bits16<T>((ushort)words[j])) * p.c,
                                    to_f(from_bits16<T>((ushort)(words[j] >> 16))) * p.c);
        }
      }
      *(uint4*)&sm.q[r][d] = v;
    }
  }

  HOPPER_FN void run(const HopperAttentionParams& p, T* out, const T* q, const char* pages, const int* block_tables,
                     const int* cu_seqlens, const int* context_lens, float* scratch) {
    extern __shared__ __align__(128) unsigned char shared[];
    Smem& sm = *(Smem*)shared;
    const uint ring = (ptx_shared_address(shared) + (uint)sizeof(Smem) + 127) & ~127u;
    ptx_grid_release();
    if (!p.early) ptx_grid_wait();
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31, tokens = cu_seqlens[p.seqs];
    Unit unit;
    unit.token = (int)blockIdx.z;
    unit.head = (int)blockIdx.x * 16;
    unit.rows = min(16, p.heads - unit.head);
    unit.split = (int)blockIdx.y;
    const int seq = hopper_find_sequence(p, cu_seqlens, unit.token);
    const HopperSequence s = hopper_sequence(p, seq, cu_seqlens, context_lens);
    unit.position = s.context - s.queries + unit.token - s.first;
    unit.merged = s.splits > 1;
    if (unit.token >= tokens || unit.split > unit.position / kHopperSplit) {
      if (p.early) ptx_grid_wait();
      return;
    }
    const int start = unit.split * kHopperSplit;
    unit.last = min(unit.position + 1 - start, (int)kHopperSplit);
    unit.tiles = (unit.last + kHopperTile - 1) / kHopperTile;
    const int* blocks = block_tables + (i64)seq * p.max_blocks;
    if (tid < kHopperSplit / 8) {
      sm.eights[tid] = tid * 8 < unit.last ? hopper_position(p, blocks, start + tid * 8, kRowBytes) : 0;
    }
    if (tid == 0) {
      for (int i = 0; i < kRing; i++) hopper_barrier_init(ptx_shared_address(&sm.landed[i]), kHopperTile);
      hopper_barrier_init_done();
    }
    __syncthreads();
    // Tiles without a position of this step are complete already.
    const int old = p.early ? max(0, min(s.context - s.queries - start, unit.last)) / kHopperTile : 0;
    for (int i = 0; i < kRing && i < old; i++) load(unit, sm, ring, pages, i, i);
    if (p.early) ptx_grid_wait();
    // The pages were written by ordinary stores, and the copy engine reads them through its own path.
    asm volatile("fence.proxy.async;" ::: "memory");
    for (int i = min(old, (int)kRing); i < kRing; i++) load(unit, sm, ring, pages, i, i);
    load_queries(p, unit, sm, q);
    __syncthreads();
    uint qf[D / 16][4];
    UNROLL for (int k = 0; k < D / 16; k++) {
      hopper_ldmatrix(qf[k], ptx_shared_address(&sm.q[lane & 15][k * 16 + (lane >> 4) * 8]));
    }
    Rows r;
    UNROLL for (int d = 0; d < kBlocks; d++) {
      UNROLL for (int i = 0; i < 4; i++) r.o[d][i] = 0.0f;
    }
    UNROLL for (int i = 0; i < 2; i++) {
      r.m[i] = HOPPER_NONE;
      r.l[i] = 0.0f;
    }
    work(unit, sm, ring, pages, qf, r, warp, lane);
    write(p, unit, r, out, scratch, tokens, warp, lane);
  }
};

#define HOPPER_ATTENTION_LATENT(types, T)                                                                              \
  extern "C" __global__ void __launch_bounds__(kHopperLatentThreads, 1) hopper_attention_latent_##types(               \
      const __grid_constant__ HopperAttentionParams p, T* out, const T* q, const char* pages, const int* block_tables, \
      const int* cu_seqlens, const int* context_lens, float* scratch, const float*) {                                  \
    HopperAttentionLatent<T>::run(p, out, q, pages, block_tables, cu_seqlens, context_lens, scratch);                  \
  }
HOPPER_ATTENTION_LATENT(bf16, bfloat)
HOPPER_ATTENTION_LATENT(f16, half)
