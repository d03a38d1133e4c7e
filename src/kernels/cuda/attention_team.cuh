// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over pages by teams: four or eight warps share one (sequence, KV head, split) (sm_90a).
//
// Equal by memcmp to the portable attention and to attention_decode.cuh, whose rows, scratch and merge it uses;
// attention_common.cuh describes the arithmetic. A team works through its split in pairs of tiles: each warp computes
// the scores of its part of a tile, the warps exchange their maxima, then their weights, and each computes 16 or 32 of
// the head's columns of p V. So no chain is longer than necessary. K and V of a tile are stages of a ring. The host
// chooses their number: all of a short context at once, or few enough that several teams share a multiprocessor.
//
// Grid: seqs * kv_heads * max_splits, hopper_team_threads(), hopper_team_memory(). p.stages is even and at least 4. D
// is 64, 128 or 256.
#pragma once

#include "kernels/cuda/attention_common.cuh"

template <typename T, int D>
struct HopperAttentionTeam {
  enum {
    kPieces = D / 8,  // 16-byte pieces of a row
    kRowBytes = D * 2,
    kStage = kHopperTile * kRowBytes,
    kWarps = hopper_team_threads(D) / 32,
    kThreads = hopper_team_threads(D),
    kSlice = D / kWarps,  // columns per warp: 16 or 32
    kBlocks = kSlice / 8,
    kParts = kWarps / 2,               // parts of a tile
    kPart = kHopperTile / kParts,      // positions per part
    kEights = kPart / 8,               // groups of eight positions per part
    kRowsAtOnce = kThreads / kPieces,  // rows that one copy by all threads covers
    kQueryStride = D + 8,
    kWeightStride = 2 * kHopperTile + 8
  };
  struct Smem {  // the ring follows
    union {
      T weights[16][kWeightStride];  // T(p) of two tiles
      T q[16][kQueryStride];         // until the queries are in registers
    };
    float sums[kWarps][16][4];  // [warp][row][t]: the sums of each warp's part of a tile
    float most[kWarps][16];
    i64 eights[kHopperSplit / 8];
    unsigned long long landed[kHopperTeamMostStages];
  };
  static_assert(sizeof(Smem) <= hopper_team_memory(D, 0) - 128, "as the host counts");

  struct Unit {
    HopperSequence s;
    int kv_head, split;  // the split, counted from the first one that is seen
    int start;           // position of the first tile
    int from, last;      // visible positions, counted from there
    int tiles;
    int rows;
  };

  // Stage i belongs to the pair of tiles i / 4: K of its first and second tile, then V of both.
  HOPPER_FN int tile_of(int stage) { return (stage >> 2) * 2 + (stage & 1); }
  HOPPER_FN void load(const HopperAttentionParams& p, const Unit& unit, Smem& sm, uint ring, const char* pages,
                      int stage, int slot) {
    const int tile = tile_of(stage), piece = (int)threadIdx.x % kPieces, row = (int)threadIdx.x / kPieces;
    if (tile >= unit.tiles) return;
    const char* from = pages + ((stage & 2) ? p.v_offset : 0) + (i64)(row & 7) * p.kv_heads * kRowBytes + piece * 16;
    const uint to = ring + slot * kStage + row * kRowBytes + ((piece ^ (row & 7)) << 4);
    UNROLL for (int r = 0; r < kHopperTile; r += kRowsAtOnce) {
      const int position = tile * kHopperTile + r + row;
      hopper_copy16_or_zero(to + r * kRowBytes, from + sm.eights[position >> 3],
                            position >= unit.from && position < unit.last);
    }
    hopper_barrier_arrive_copied(ptx_shared_address(&sm.landed[slot]));
  }

  // The scores of the warp's part of a tile.
  HOPPER_FN void scores(const HopperAttentionParams& p, float (&s)[kEights][4], const uint (&q)[D / 16][4], uint stage,
                        int lane) {
    UNROLL for (int b = 0; b < kEights; b++) {
      UNROLL for (int i = 0; i < 4; i++) s[b][i] = 0.0f;
    }
    const uint row = stage + ((lane & 7) + ((lane >> 4) << 3)) * kRowBytes;
    UNROLL for (int k = 0; k < D / 16; k++) {
      UNROLL for (int b = 0; b < kEights; b += 2) {
        uint f[4];
        hopper_ldmatrix(f, row + b * 8 * kRowBytes + (((2 * k + ((lane >> 3) & 1)) ^ (lane & 7)) << 4));
        hopper_mma<T>(s[b], q[k], f[0], f[1]);
        hopper_mma<T>(s[b + 1], q[k], f[2], f[3]);
      }
    }
    if (p.cap > 0.0f) {
      UNROLL for (int b = 0; b < kEights; b++) {
        UNROLL for (int i = 0; i < 4; i++) s[b][i] = hopper_score(p, s[b][i]);
      }
    }
  }

  // A row sees the positions [low, high) of the warp's part.
  HOPPER_FN float most_of(const float (&s)[kEights][4], int i, int low, int high, int t) {
    float most = HOPPER_NONE;
    UNROLL for (int b = 0; b < kEights; b++) {
      UNROLL for (int j = 0; j < 2; j++) {
        const int at = 8 * b + 2 * t + j;
        if (at >= low && at < high) most = max(most, s[b][2 * i + j]);
      }
    }
    return row_max(most);
  }

  // Writes the warp's weights of a row to shared memory, and the sum of their pairs.
  HOPPER_FN void weigh(const float (&s)[kEights][4], int i, int low, int high, float most, uint* weights, float* sum,
                       int t) {
    const float base = most == HOPPER_NONE ? 0.0f : most;
    float e[kEights];
    UNROLL for (int b = 0; b < kEights; b++) {
      const int at = 8 * b + 2 * t;
      const float p0 = at >= low && at < high ? q_exp2(s[b][2 * i] - base) : 0.0f;
      const float p1 = at + 1 >= low && at + 1 < high ? q_exp2(s[b][2 * i + 1] - base) : 0.0f;
      e[b] = p0 + p1;
      weights[4 * b + t] = hopper_pack<T>(p0, p1);
    }
    sum[t] = kEights == 4 ? hopper_tree(e[0], e[1], e[kEights - 2], e[kEights - 1]) : e[0] + e[1];
  }

  // The sum of a tile's weights, in the order of the tree.
  HOPPER_FN float tile_sum(const Smem& sm, int which, int row, int t) {
    const auto sums = sm.sums + which * kParts;
    const float first = sums[0][row][t] + sums[1][row][t];
    return kParts == 2 ? first : first + (sums[kParts - 2][row][t] + sums[kParts - 1][row][t]);
  }
  HOPPER_FN float tile_most(const Smem& sm, int which, int row) {
    float most = sm.most[which * kParts][row];
    UNROLL for (int i = 1; i < kParts; i++) most = max(most, sm.most[which * kParts + i][row]);
    return most;
  }

  // Adds the warp's columns of p V of a tile.
  HOPPER_FN void values(float (&o)[kBlocks][4], const Smem& sm, int which, uint stage, int warp, int lane) {
    const uint row = stage + ((lane & 7) + ((lane >> 3) & 1) * 8) * kRowBytes;
    const uint weights = ptx_shared_address(&sm.weights[lane & 15][which * kHopperTile + (lane >> 4) * 8]);
    UNROLL for (int k = 0; k < 4; k++) {
      uint a[4];
      hopper_ldmatrix(a, weights + k * 32);
      UNROLL for (int d = 0; d < kBlocks; d += 2) {
        uint f[4];
        hopper_ldmatrix_trans(f, row + k * 16 * kRowBytes + (((warp * kBlocks + d + (lane >> 4)) ^ (lane & 7)) << 4));
        hopper_mma<T>(o[d], a, f[0], f[1]);
        hopper_mma<T>(o[d + 1], a, f[2], f[3]);
      }
    }
  }

  // The state of a lane's two rows, g and g + 8.
  struct Rows {
    float o[kBlocks][4], m[2], l[2];
  };

  HOPPER_FN void write(const HopperAttentionParams& p, const Unit& unit, const Rows& r, T* out, float* scratch,
                       const float* sinks, int tokens, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3, group = p.heads / p.kv_heads;
    UNROLL for (int i = 0; i < 2; i++) {
      const int row = g + 8 * i;
      float sum = row_sum(r.l[i]);
      if (row >= unit.rows) continue;
      const int token = unit.s.first + row / group, head = unit.kv_head * group + row % group;
      const int column = warp * kSlice + 2 * t;
      if (unit.s.splits == 1) {
        T* to_row = out + (i64)token * p.out_stride + (i64)head * D + column;
        const float by = hopper_sink(p, sinks, head, r.m[i], sum);
        UNROLL for (int d = 0; d < kBlocks; d++) {
          *(uint*)(to_row + d * 8) =
              hopper_pack<T>((r.o[d][2 * i] * by + 0.0f) / sum, (r.o[d][2 * i + 1] * by + 0.0f) / sum);
        }
      } else {
        const HopperScratch to_row = hopper_scratch(p, scratch, tokens, token, head, unit.split, D);
        UNROLL for (int d = 0; d < kBlocks; d++) {
          *(float2*)(to_row.o + column + d * 8) = make_float2(r.o[d][2 * i], r.o[d][2 * i + 1]);
        }
        if (warp == 0 && t == 0) *(float2*)to_row.ml = make_float2(r.m[i], sum);
      }
    }
  }

  // Works through all pairs of tiles. A slot is requested again as soon as all warps have read it.
  HOPPER_FN void work(const HopperAttentionParams& p, const Unit& unit, Smem& sm, uint ring, const char* pages,
                      const uint (&qf)[D / 16][4], Rows& r, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3, group = p.heads / p.kv_heads;
    const int which = warp / kParts,
              part = warp % kParts * kPart;  // which tile of the pair, and the warp's first position in it
    const int position = unit.s.context - unit.s.queries;  // of the first query
    int low[2], high[2];
    UNROLL for (int i = 0; i < 2; i++) {
      low[i] = hopper_low(p, position + (g + 8 * i) / group) - unit.start;
      high[i] = position + (g + 8 * i) / group + 1 - unit.start;
    }
    const bool wide = unit.rows > 8;  // otherwise rows g + 8 are unused
    int slot = 0, parity = 0;         // of the pair's first stage
#pragma unroll 1
    for (int tile = 0, stage = 0; tile < unit.tiles; tile += 2, stage += 4) {
      int slots[4], parities[4];
      UNROLL for (int i = 0; i < 4; i++) {
        slots[i] = slot;
        parities[i] = parity;
        slot++;
        if (slot == p.stages) {
          slot = 0;
          parity ^= 1;
        }
      }
      const bool both = tile + 1 < unit.tiles, mine = which == 0 || both;
      const int first = (tile + which) * kHopperTile + part;
      float s[kEights][4];
      if (mine) {
        const int own = which == 0 ? slots[0] : slots[1];
        hopper_barrier_wait(ptx_shared_address(&sm.landed[own]), which == 0 ? parities[0] : parities[1]);
        scores(p, s, qf, ring + own * kStage + part * kRowBytes, lane);
        UNROLL for (int i = 0; i < 2; i++) {
          if (i == 1 && !wide) break;
          const float most = most_of(s, i, low[i] - first, high[i] - first, t);
          if (t == 0) sm.most[warp][g + 8 * i] = most;
        }
      }
      __syncthreads();  // the maxima are visible, and p V of the previous pair is done
      UNROLL for (int i = 0; i < 2; i++) load(p, unit, sm, ring, pages, stage + i + p.stages, slots[i]);
      float upto[2][2], a[2][2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};  // [tile of the pair][row]
      UNROLL for (int i = 0; i < 2; i++) {
        if (i == 1 && !wide) break;
        const int row = g + 8 * i;
        upto[0][i] = max(r.m[i], tile_most(sm, 0, row));
        upto[1][i] = both ? max(upto[0][i], tile_most(sm, 1, row)) : upto[0][i];
        UNROLL for (int j = 0; j < 2; j++) {
          const float earlier = j == 0 ? r.m[i] : upto[0][i];
          a[j][i] = q_exp2(earlier - (upto[j][i] == HOPPER_NONE ? 0.0f : upto[j][i]));
        }
        if (mine && row < unit.rows) {
          weigh(s, i, low[i] - first, high[i] - first, which == 0 ? upto[0][i] : upto[1][i],
                (uint*)&sm.weights[row][which * kHopperTile + part], sm.sums[warp][row], t);
        }
        r.m[i] = upto[1][i];
      }
      __syncthreads();
      UNROLL for (int j = 0; j < 2; j++) {
        if (j == 1 && !both) break;
        UNROLL for (int i = 0; i < 2; i++) {
          if (i == 1 && !wide) break;
          const int row = g + 8 * i;
          r.l[i] = fma(r.l[i], a[j][i], tile_sum(sm, j, row, t));
          UNROLL for (int d = 0; d < kBlocks; d++) {
            r.o[d][2 * i] *= a[j][i];
            r.o[d][2 * i + 1] *= a[j][i];
          }
        }
        hopper_barrier_wait(ptx_shared_address(&sm.landed[slots[2 + j]]), parities[2 + j]);
        values(r.o, sm, j, ring + slots[2 + j] * kStage, warp, lane);
      }
      if (tile_of(stage + 2 + p.stages) < unit.tiles) {
        __syncthreads();
        UNROLL for (int i = 2; i < 4; i++) load(p, unit, sm, ring, pages, stage + i + p.stages, slots[i]);
      }
    }
  }

  HOPPER_FN void run(const HopperAttentionParams& p, T* out, const T* q, const char* pages, const int* block_tables,
                     const int* cu_seqlens, const int* context_lens, float* scratch, const float* sinks) {
    extern __shared__ __align__(128) unsigned char shared[];
    Smem& sm = *(Smem*)shared;
    const uint ring = (ptx_shared_address(shared) + (uint)sizeof(Smem) + 127) & ~127u;
    ptx_grid_release();
    if (!p.early) ptx_grid_wait();
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31, index = (int)blockIdx.x;
    const int seq = index / (p.kv_heads * p.max_splits), group = p.heads / p.kv_heads;
    Unit unit;
    unit.kv_head = index % p.kv_heads;
    unit.split = index / p.kv_heads % p.max_splits;
    unit.s = hopper_sequence(p, seq, cu_seqlens, context_lens);
    unit.rows = unit.s.queries * group;
    if (unit.split >= unit.s.splits || unit.rows < p.rows_from || unit.rows > p.rows_to) {
      if (p.early) ptx_grid_wait();
      return;
    }
    // Tiles before the first visible position are passed over.
    const int split_start = (unit.s.first_split + unit.split) * kHopperSplit;
    const int low = max(hopper_low(p, unit.s.context - unit.s.queries), split_start);
    unit.start = low / kHopperTile * kHopperTile;
    unit.from = low - unit.start;
    unit.last = min(unit.s.context, split_start + kHopperSplit) - unit.start;
    unit.tiles = (unit.last + kHopperTile - 1) / kHopperTile;
    const int* blocks = block_tables + (i64)seq * p.max_blocks;
    if (tid < kHopperSplit / 8) {
      sm.eights[tid] =
          tid * 8 + 8 > unit.from && tid * 8 < unit.last
              ? hopper_position(p, blocks, unit.start + tid * 8, p.kv_heads * kRowBytes) + unit.kv_head * kRowBytes
              : 0;
    }
    if (tid == 0) {
      for (int i = 0; i < p.stages; i++) hopper_barrier_init(ptx_shared_address(&sm.landed[i]), kThreads);
    }
    __syncthreads();
    // Tiles without a position of this step are complete already.
    const int old = p.early ? max(0, min(unit.s.context - unit.s.queries - unit.start, unit.last)) / kHopperTile : 0;
    for (int i = 0; i < p.stages; i++) {
      if (tile_of(i) < old) load(p, unit, sm, ring, pages, i, i);
    }
    if (p.early) ptx_grid_wait();
    for (int i = 0; i < p.stages; i++) {
      if (tile_of(i) >= old) load(p, unit, sm, ring, pages, i, i);
    }
    hopper_load_queries<T, D>(p, unit.s, q, unit.kv_head, &sm.q[0][0], kQueryStride, 0, unit.rows, 16, tid, kThreads);
    __syncthreads();
    uint qf[D / 16][4];
    UNROLL for (int k = 0; k < D / 16; k++) {
      hopper_ldmatrix(qf[k], ptx_shared_address(&sm.q[lane & 15][k * 16 + (lane >> 4) * 8]));
    }
    __syncthreads();
    for (int i = tid; i < 16 * kWeightStride / 2; i += kThreads) ((uint*)sm.weights)[i] = 0;  // for the unused rows
    for (int i = tid; i < kWarps * 16 * 4; i += kThreads) ((float*)sm.sums)[i] = 0.0f;
    Rows r;
    UNROLL for (int d = 0; d < kBlocks; d++) {
      UNROLL for (int i = 0; i < 4; i++) r.o[d][i] = 0.0f;
    }
    UNROLL for (int i = 0; i < 2; i++) {
      r.m[i] = HOPPER_NONE;
      r.l[i] = 0.0f;
    }
    work(p, unit, sm, ring, pages, qf, r, warp, lane);
    write(p, unit, r, out, scratch, sinks, cu_seqlens[p.seqs], warp, lane);
  }
};

#define HOPPER_ATTENTION_TEAM(types, T, D)                                                                             \
  extern "C" __global__ void __launch_bounds__(hopper_team_threads(D)) hopper_attention_team_##types##_d##D(           \
      const __grid_constant__ HopperAttentionParams p, T* out, const T* q, const char* pages, const int* block_tables, \
      const int* cu_seqlens, const int* context_lens, float* scratch, const float* sinks) {                            \
    HopperAttentionTeam<T, D>::run(p, out, q, pages, block_tables, cu_seqlens, context_lens, scratch, sinks);          \
  }
HOPPER_ATTENTION_TEAM(bf16, bfloat, 128)
HOPPER_ATTENTION_TEAM(bf16, bfloat, 64)
HOPPER_ATTENTION_TEAM(f16, half, 64)
HOPPER_ATTENTION_TEAM(f16, half, 128)
HOPPER_ATTENTION_TEAM(bf16, bfloat, 256)
HOPPER_ATTENTION_TEAM(f16, half, 256)
