// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over pages: the variant for few sequences, and the merge of splits (sm_90a).
//
// Equal by memcmp to the portable attention, to attention_team.cuh and to attention_prefill.cuh. The rows of a KV head
// are (query, head of its group), at most 16; a launch serves the sequences with p.rows_from to p.rows_to rows. If a
// sequence has one split, its rows are written to out; otherwise they go to scratch, and the merge follows.
//  - attention_quick: a cluster of threadgroups shares one (sequence, KV head, split). Each computes the scores of a
//  part
//    of the tiles, and then a part of the head's columns of p V, whose chain takes most of the time. Grid:
//    (hopper_quick_cluster() * kv_heads, max_splits, seqs), 256 threads, hopper_quick_memory().
//  - attention_merge: one warp per (token, head). Grid: (tokens * heads / 8 rounded up), 256 threads.
//
// D is 64, 128 or 256, for the merge also 512. attention_quick also serves latent pages (attention_latent.cuh) with one
// token per sequence and at most 16 heads: keys of 576 elements, whose first 512 are the values. There the values take
// the keys' place in shared memory when the scores are known.
#pragma once

#include "kernels/cuda/attention_common.cuh"

HOPPER_FN void hopper_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
HOPPER_FN uint hopper_cluster_address(const void* p, uint rank) {
  return hopper_cluster_place(ptx_shared_address(p), rank);
}
HOPPER_FN void hopper_cluster_store(uint address, uint v) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

template <typename T, int D, int V = D>
struct HopperAttentionQuick {
  enum {
    kLatent = V != D,
    kCluster = hopper_quick_cluster(D),
    kPieces = D / 8,
    kRowBytes = D * 2,
    kSlice = V / kCluster,  // columns of V per threadgroup
    kSliceBytes = kSlice * 2,
    kSlicePieces = kSlice / 8,
    kTiles = kHopperSplit / kHopperTile,
    kOwnTiles = kTiles / kCluster,
    kParts = kHopperQuickThreads / 32 / kOwnTiles,  // warps that share a tile
    kEights = kHopperTile / kParts / 8,             // groups of eight columns in a part
    kWeightStride = kHopperSplit + 8,
    kQueryStride = D + 8
  };
  struct Smem {
    // Piece c of row r is at c ^ (r % 8), against bank conflicts; own tile j is tile kCluster * j + rank.
    T k[kOwnTiles][kHopperTile][D];
    // Pieces of V are permuted so that eight rows fall into different banks: slice_piece().
    T v[kLatent ? 1 : kHopperSplit][kSlice];
    T weights[16][kWeightStride];  // T(p)
    T q[16][kQueryStride];
    float sums[kTiles][kParts][16][4];  // [tile][part][row][t]
    float most[kTiles][kParts][17];     // [tile][part][row]; 17 against bank conflicts
    float upto[kTiles][16];             // the row's maximum up to this tile
    float factor[kTiles][16];           // the factor a of each tile
    i64 eights[kHopperSplit / 8];
  };

  static_assert(!kLatent || sizeof(T) * kHopperSplit * kSlice <= sizeof(Smem::k), "the values take the keys' place");

  HOPPER_FN uint value_row(Smem& sm, int row) {
    return ptx_shared_address(kLatent ? (void*)sm.k : (void*)sm.v) + row * kSliceBytes;
  }
  HOPPER_FN int slice_piece(int row, int piece) {
    if (kSlicePieces == 8) return piece ^ (row & 7);
    return kSlicePieces == 4 ? piece ^ ((row >> 1) & 3) : kSlicePieces == 2 ? piece ^ ((row >> 2) & 1) : piece;
  }

  // Loads K of this threadgroup's own tiles, and its own columns of V, for the tiles from..to-1. Positions outside of
  // [low, last) become zeros.
  HOPPER_FN void load_k(const HopperAttentionParams& p, Smem& sm, const char* pages, int rank, int from, int to,
                        int low, int last) {
    const unsigned long long policy = hopper_read_once();
    UNROLL for (int j = 0; j < kOwnTiles; j++) {
      const int tile = kCluster * j + rank;
      if (tile < from || tile >= to) continue;
      UNROLL for (int i = 0; i < kHopperTile * kPieces / kHopperQuickThreads; i++) {
        const int at = (int)threadIdx.x + i * kHopperQuickThreads, r = at / kPieces, piece = at % kPieces;
        const int position = tile * kHopperTile + r;
        hopper_copy16_or_zero(ptx_shared_address(&sm.k[j][r][(piece ^ (r & 7)) * 8]),
                              pages + sm.eights[position >> 3] + (i64)(r & 7) * p.kv_heads * kRowBytes + piece * 16,
                              position >= low && position < last, policy);
      }
    }
  }
  HOPPER_FN void load_v(const HopperAttentionParams& p, Smem& sm, const char* pages, int rank, int from, int to,
                        int low, int last) {
    const unsigned long long policy = hopper_read_once();
    const int piece = (int)threadIdx.x % kSlicePieces;
    for (int r = from * kHopperTile + (int)threadIdx.x / kSlicePieces; r < to * kHopperTile;
         r += kHopperQuickThreads / kSlicePieces) {
      hopper_copy16_or_zero(value_row(sm, r) + slice_piece(r, piece) * 16,
                            pages + (kLatent ? 0 : p.v_offset) + sm.eights[r >> 3] +
                                (i64)(r & 7) * p.kv_heads * kRowBytes + rank * kSliceBytes + piece * 16,
                            r >= low && r < last, policy);
    }
  }

  // The scores of part h of own tile j: 8 * kEights positions.
  HOPPER_FN void scores(float (&s)[kEights][4], Smem& sm, int j, int h, int lane) {
    UNROLL for (int b = 0; b < kEights; b++) {
      UNROLL for (int i = 0; i < 4; i++) s[b][i] = 0.0f;
    }
    const int r = (lane & 7) + ((lane >> 4) << 3);
    const uint row = ptx_shared_address(&sm.k[j][8 * kEights * h + r][0]);
    const uint query = ptx_shared_address(&sm.q[lane & 15][(lane >> 4) * 8]);
    UNROLL for (int k = 0; k < D / 16; k++) {
      uint a[4];
      hopper_ldmatrix(a, query + k * 32);
      UNROLL for (int b = 0; b < kEights; b += 2) {
        uint f[4];
        hopper_ldmatrix(f, row + b * 8 * kRowBytes + (((2 * k + ((lane >> 3) & 1)) ^ (lane & 7)) << 4));
        hopper_mma<T>(s[b], a, f[0], f[1]);
        hopper_mma<T>(s[b + 1], a, f[2], f[3]);
      }
    }
  }

  // Sends the maxima of a tile to all threadgroups of the cluster: lane t of a row writes to threadgroups t, t + 4, ...
  HOPPER_FN void send_maxima(Smem& sm, const float (&s)[kEights][4], int tile, int h, const int* low, const int* seen,
                             int lane) {
    const int g = lane >> 2, t = lane & 3;
    UNROLL for (int i = 0; i < 2; i++) {
      float most = HOPPER_NONE;
      UNROLL for (int b = 0; b < kEights; b++) {
        UNROLL for (int j = 0; j < 2; j++) {
          const int position = tile * kHopperTile + 8 * (kEights * h + b) + 2 * t + j;
          if (position >= low[i] && position < seen[i]) most = max(most, s[b][2 * i + j]);
        }
      }
      most = row_max(most);
      UNROLL for (int rank = 0; rank < kCluster; rank += 4) {
        hopper_cluster_store(hopper_cluster_address(&sm.most[tile][h][g + 8 * i], rank + t), as_uint(most));
      }
    }
  }

  // Sends the weights of a part of a tile, and the sums of their pairs, to all threadgroups of the cluster.
  HOPPER_FN void send_weights(Smem& sm, const float (&s)[kEights][4], int tile, int h, const int* low, const int* seen,
                              int rows, int lane) {
    const int g = lane >> 2, t = lane & 3;
    UNROLL for (int i = 0; i < 2; i++) {
      const int row = g + 8 * i;
      if (row >= rows) continue;
      const float most = sm.upto[tile][row], base = most == HOPPER_NONE ? 0.0f : most;
      float e[kEights];
      uint packed[kEights];
      UNROLL for (int b = 0; b < kEights; b++) {
        const int position = tile * kHopperTile + 8 * (kEights * h + b) + 2 * t;
        const bool sees0 = position >= low[i] && position < seen[i];
        const bool sees1 = position + 1 >= low[i] && position + 1 < seen[i];
        const float p0 = sees0 ? q_exp2(s[b][2 * i] - base) : 0.0f;
        const float p1 = sees1 ? q_exp2(s[b][2 * i + 1] - base) : 0.0f;
        e[b] = p0 + p1;
        packed[b] = hopper_pack<T>(p0, p1);
      }
      const uint sum = as_uint(kEights == 4 ? hopper_tree(e[0], e[1], e[2], e[kEights - 1]) : e[0] + e[1]);
      UNROLL for (int rank = 0; rank < kCluster; rank++) {
        const uint to = hopper_cluster_address(&sm.weights[row][tile * kHopperTile + 8 * kEights * h + 2 * t], rank);
        UNROLL for (int b = 0; b < kEights; b++) hopper_cluster_store(to + b * 16, packed[b]);
        hopper_cluster_store(hopper_cluster_address(&sm.sums[tile][h][row][t], rank), sum);
      }
    }
  }

  // The sum over a tile of the sums of pairs, in the order of the tree.
  HOPPER_FN float tile_sum(const Smem& sm, int tile, int row, int t) {
    const float first = sm.sums[tile][0][row][t] + sm.sums[tile][1][row][t];
    return kParts == 2 ? first : first + (sm.sums[tile][kParts - 2][row][t] + sm.sums[tile][kParts - 1][row][t]);
  }
  HOPPER_FN float tile_most(const Smem& sm, int tile, int row) {
    float most = sm.most[tile][0][row];
    UNROLL for (int h = 1; h < kParts; h++) most = max(most, sm.most[tile][h][row]);
    return most;
  }

  // Thread 16 * row + tile: the row's maximum up to this tile, and the factor for the sums before it.
  HOPPER_FN void find_factors(Smem& sm, int first, int tiles, int tid) {
    const int tile = tid & 15, row = tid >> 4;
    float now = tile >= first && tile < tiles ? tile_most(sm, tile, row) : HOPPER_NONE;
    UNROLL for (int step = 1; step < 16; step *= 2) now = max(now, __shfl_up_sync(0xffffffffu, now, step, 16));
    float before = __shfl_up_sync(0xffffffffu, now, 1, 16);
    if (tile == 0) before = HOPPER_NONE;
    sm.upto[tile][row] = now;
    sm.factor[tile][row] = q_exp2(before - (now == HOPPER_NONE ? 0.0f : now));
  }

  struct ValueFragments {
    uint p[4][4];  // T(p) of four k16 steps
    uint v[2][4];  // two k16 steps each
  };
  HOPPER_FN void fetch(ValueFragments& f, Smem& sm, int tile, int column, int lane) {
    UNROLL for (int k = 0; k < 4; k++) {
      hopper_ldmatrix(f.p[k],
                      ptx_shared_address(&sm.weights[lane & 15][tile * kHopperTile + 16 * k + (lane >> 4) * 8]));
    }
    UNROLL for (int k = 0; k < 2; k++) {
      const int r = tile * kHopperTile + 32 * k + lane;
      hopper_ldmatrix_trans(f.v[k], value_row(sm, r) + slice_piece(r, column) * 16);
    }
  }

  // Eight columns of p V over the tiles first..tiles-1, and the sums of the rows.
  HOPPER_FN void values(float (&o)[4], float (&l)[2], Smem& sm, int column, int first, int tiles, int lane) {
    const int g = lane >> 2, t = lane & 3;
    ValueFragments f[2];
    fetch(f[0], sm, first, column, lane);
    UNROLL for (int i = 0; i < kTiles; i++) {
      const int tile = first + i;
      if (tile >= tiles) break;
      if (tile + 1 < tiles) fetch(f[(i + 1) & 1], sm, tile + 1, column, lane);
      const float a0 = sm.factor[tile][g], a1 = sm.factor[tile][g + 8];
      l[0] = fma(l[0], a0, tile_sum(sm, tile, g, t));
      l[1] = fma(l[1], a1, tile_sum(sm, tile, g + 8, t));
      o[0] *= a0;
      o[1] *= a0;
      o[2] *= a1;
      o[3] *= a1;
      UNROLL for (int k = 0; k < 4; k++) {
        hopper_mma<T>(o, f[i & 1].p[k], f[i & 1].v[k >> 1][2 * (k & 1)], f[i & 1].v[k >> 1][2 * (k & 1) + 1]);
      }
    }
  }

  HOPPER_FN void run(const HopperAttentionParams& p, T* out, const T* q, const char* pages, const int* block_tables,
                     const int* cu_seqlens, const int* context_lens, float* scratch, const float* sinks) {
    extern __shared__ __align__(128) unsigned char shared[];
    Smem& sm = *(Smem*)shared;
    ptx_grid_release();
    if (!p.early) ptx_grid_wait();
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
    const int rank = (int)hopper_cluster_rank(), kv_head = (int)blockIdx.x / kCluster;
    const int split = (int)blockIdx.y, seq = (int)blockIdx.z;
    const HopperSequence s = hopper_sequence(p, seq, cu_seqlens, context_lens);
    const int group = p.heads / p.kv_heads, rows = s.queries * group;
    if (split >= s.splits || rows < p.rows_from || rows > p.rows_to) {
      if (p.early) ptx_grid_wait();
      return;  // all threadgroups of the cluster return here
    }
    hopper_cluster_arrive();

    // Positions are counted from the start of the split; [from, last) are visible.
    const int start = (s.first_split + split) * kHopperSplit, last = min(s.context - start, (int)kHopperSplit);
    const int from = max(hopper_low(p, s.context - s.queries) - start, 0);
    const int first = from / kHopperTile, tiles = (last + kHopperTile - 1) / kHopperTile;
    const int* blocks = block_tables + (i64)seq * p.max_blocks;
    if (tid < kHopperSplit / 8) {
      sm.eights[tid] = tid * 8 + 8 > from && tid * 8 < last
                           ? hopper_position(p, blocks, start + tid * 8, p.kv_heads * kRowBytes) + kv_head * kRowBytes
                           : 0;
    }
    __syncthreads();
    // Tiles without a position of this step are complete already.
    const int old = p.early ? max(first, max(0, min(s.context - s.queries - start, last)) / kHopperTile) : first;
    load_k(p, sm, pages, rank, first, old, from, last);
    if (!kLatent) load_v(p, sm, pages, rank, first, old, from, last);
    if (p.early) ptx_grid_wait();
    load_k(p, sm, pages, rank, old, tiles, from, last);
    ptx_copy_commit();
    if (!kLatent) load_v(p, sm, pages, rank, old, tiles, from, last);
    ptx_copy_commit();
    hopper_load_queries<T, D>(p, s, q, kv_head, &sm.q[0][0], kQueryStride, 0, rows, 16, tid, kHopperQuickThreads);
    ptx_copy_wait<1>();
    __syncthreads();

    int low[2], seen[2];  // the positions that rows g and g + 8 see
    UNROLL for (int i = 0; i < 2; i++) {
      const int position = s.context - s.queries + (g + 8 * i) / group;
      low[i] = hopper_low(p, position) - start;
      seen[i] = position + 1 - start;
    }
    const int j = warp / kParts, h = warp % kParts, tile = kCluster * j + rank;
    const bool mine = tile >= first && tile < tiles;
    float w[kEights][4];
    if (mine) {
      scores(w, sm, j, h, lane);
      if (p.cap > 0.0f) {
        UNROLL for (int b = 0; b < kEights; b++) {
          UNROLL for (int i = 0; i < 4; i++) w[b][i] = hopper_score(p, w[b][i]);
        }
      }
    }
    if (kLatent) {
      __syncthreads();  // all scores are known
      load_v(p, sm, pages, rank, first, tiles, from, last);
      ptx_copy_commit();
    }
    hopper_cluster_wait();  // the other threadgroups have started, so their shared memory may be written
    if (mine) send_maxima(sm, w, tile, h, low, seen, lane);
    hopper_cluster_arrive();
    hopper_cluster_wait();
    find_factors(sm, first, tiles, tid);
    __syncthreads();
    if (mine) send_weights(sm, w, tile, h, low, seen, rows, lane);
    ptx_copy_wait<0>();
    hopper_cluster_arrive();
    hopper_cluster_wait();

    if (warp >= kSlice / 8) return;
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f}, l[2] = {0.0f, 0.0f};
    values(o, l, sm, warp, first, tiles, lane);
    UNROLL for (int i = 0; i < 2; i++) {
      const int row = g + 8 * i;
      float sum = row_sum(l[i]);
      if (row >= rows) continue;
      const int token = s.first + row / group, head = kv_head * group + row % group,
                d = rank * kSlice + 8 * warp + 2 * t;
      if (s.splits == 1) {
        const float by = hopper_sink(p, sinks, head, sm.upto[tiles - 1][row], sum);
        *(uint*)(out + (i64)token * p.out_stride + (i64)head * V + d) =
            hopper_pack<T>((o[2 * i] * by + 0.0f) / sum, (o[2 * i + 1] * by + 0.0f) / sum);
      } else {
        const HopperScratch to_row = hopper_scratch(p, scratch, cu_seqlens[p.seqs], token, head, split, V);
        *(float2*)(to_row.o + d) = make_float2(o[2 * i], o[2 * i + 1]);
        if (rank == 0 && warp == 0 && t == 0) *(float2*)to_row.ml = make_float2(sm.upto[tiles - 1][row], sum);
      }
    }
  }
};

// ---- the merge of a row's splits, from left to right ----

template <typename T, int D>
struct HopperAttentionMerge {
  HOPPER_FN void run(const HopperAttentionParams& p, T* out, const float* scratch, const int* cu_seqlens,
                     const int* context_lens, const float* sinks) {
    ptx_grid_release();
    ptx_grid_wait();
    const int lane = (int)threadIdx.x & 31;
    const int row = (int)(blockIdx.x * (kHopperMergeThreads / 32) + (threadIdx.x >> 5));
    const int tokens = cu_seqlens[p.seqs], token = row / p.heads, head = row % p.heads;
    if (token >= tokens) return;
    const HopperSequence s = hopper_sequence(p, hopper_find_sequence(p, cu_seqlens, token), cu_seqlens, context_lens);
    const int rows = s.queries * (p.heads / p.kv_heads);
    if (s.splits == 1 || rows < p.rows_from || rows > p.rows_to) return;
    const int splits = (s.context - s.queries + token - s.first) / kHopperSplit + 1 - s.first_split;
    const HopperScratch from = hopper_scratch(p, (float*)scratch, tokens, token, head, 0, D);
    float m = __ldcg(from.ml), l = __ldcg(from.ml + 1), o[D / 32];
    UNROLL for (int d = 0; d < D / 32; d++) o[d] = __ldcg(from.o + lane * (D / 32) + d);
#pragma unroll 4
    for (int i = 1; i < splits; i++) {
      const float m2 = __ldcg(from.ml + 2 * i), l2 = __ldcg(from.ml + 2 * i + 1), most = max(m, m2);
      const float a = q_exp2(m - most), a2 = q_exp2(m2 - most);
      l = fma(l, a, l2 * a2);
      UNROLL for (int d = 0; d < D / 32; d++) o[d] = fma(o[d], a, __ldcg(from.o + i * D + lane * (D / 32) + d) * a2);
      m = most;
    }
    T* to_row = out + (i64)token * p.out_stride + (i64)head * D + lane * (D / 32);
    const float by = hopper_sink(p, sinks, head, m, l);
    UNROLL for (int d = 0; d < D / 32; d += 2) {
      *(uint*)(to_row + d) = hopper_pack<T>((o[d] * by + 0.0f) / l, (o[d + 1] * by + 0.0f) / l);
    }
  }
};

#define HOPPER_ATTENTION_QUICK_OF(name, T, D, V)                                                                    \
  static_assert(sizeof(HopperAttentionQuick<T, D, V>::Smem) <= hopper_quick_memory(D), "as the host counts");       \
  extern "C" __global__ void __launch_bounds__(kHopperQuickThreads) __cluster_dims__(hopper_quick_cluster(D), 1, 1) \
      hopper_attention_quick_##name(const __grid_constant__ HopperAttentionParams p, T* out, const T* q,            \
                                    const char* pages, const int* block_tables, const int* cu_seqlens,              \
                                    const int* context_lens, float* scratch, const float* sinks) {                  \
    HopperAttentionQuick<T, D, V>::run(p, out, q, pages, block_tables, cu_seqlens, context_lens, scratch, sinks);   \
  }
#define HOPPER_ATTENTION_QUICK(types, T, D) HOPPER_ATTENTION_QUICK_OF(types##_d##D, T, D, D)
HOPPER_ATTENTION_QUICK(bf16, bfloat, 64)
HOPPER_ATTENTION_QUICK(bf16, bfloat, 128)
HOPPER_ATTENTION_QUICK(bf16, bfloat, 256)
HOPPER_ATTENTION_QUICK(f16, half, 64)
HOPPER_ATTENTION_QUICK(f16, half, 128)
HOPPER_ATTENTION_QUICK(f16, half, 256)
HOPPER_ATTENTION_QUICK_OF(latent_bf16, bfloat, kHopperLatentKey, kHopperLatentValue)
HOPPER_ATTENTION_QUICK_OF(latent_f16, half, kHopperLatentKey, kHopperLatentValue)

#define HOPPER_ATTENTION_MERGE(types, T, D)                                                                 \
  extern "C" __global__ void __launch_bounds__(kHopperMergeThreads) hopper_attention_merge_##types##_d##D(  \
      const __grid_constant__ HopperAttentionParams p, T* out, const float* scratch, const int* cu_seqlens, \
      const int* context_lens, const float* sinks) {                                                        \
    HopperAttentionMerge<T, D>::run(p, out, scratch, cu_seqlens, context_lens, sinks);                      \
  }
HOPPER_ATTENTION_MERGE(bf16, bfloat, 64)
HOPPER_ATTENTION_MERGE(bf16, bfloat, 128)
HOPPER_ATTENTION_MERGE(bf16, bfloat, 256)
HOPPER_ATTENTION_MERGE(bf16, bfloat, 512)
HOPPER_ATTENTION_MERGE(f16, half, 64)
HOPPER_ATTENTION_MERGE(f16, half, 128)
HOPPER_ATTENTION_MERGE(f16, half, 256)
HOPPER_ATTENTION_MERGE(f16, half, 512)
