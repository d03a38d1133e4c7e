// SPDX-License-Identifier: Apache-2.0
// Attention of many rows over pages with wgmma: one warpgroup loads pages, two others compute 64 rows each (sm_90a).
//
// Equal by memcmp to the portable attention and to attention_decode.cuh; attention_common.cuh describes the arithmetic.
// A threadgroup serves two blocks of rows of one KV head: the same 64 tokens of two heads if the group is even,
// otherwise two blocks of 64 tokens of one head. Tiles of K and V (64 positions) go through a ring of four slots. While
// a warpgroup computes the weights of tile i, the tensor cores compute p V of tile i - 1 and the scores of tile i + 1,
// as in FlashAttention-3 (Shah et al. 2024). The exponentials take most of the time, and wgmma competes with them for
// the register file. So there should be few instructions and few branches between them: the compiler interleaves them
// with the products only where it finds no branch. The merged result of the earlier splits is kept in shared memory.
//
// Where D is 256, o of 64 rows does not fit the registers of a warpgroup. Both warpgroups then have the same 64 rows of
// one head, each computes all of their scores and weights, and each has half of the columns of o. q stays in shared
// memory, and the ring has two slots.
//
// Grid: prefill_groups() of backend/gpu/hopper/attention.cc, the longest rows first. 384 threads,
// hopper_prefill_memory(). D is 64, 128 or 256. Serves the sequences with p.rows_from to p.rows_to rows.
#pragma once

#include "kernels/cuda/attention_common.cuh"

// ---- the products: A in registers, B in swizzled shared memory ----

#define HOPPER_R8(o)                                                                                          \
  "+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3]), "+f"(d[o + 4]), "+f"(d[o + 5]), "+f"(d[o + 6]), \
      "+f"(d[o + 7])
#define HOPPER_L32                                                                                                  \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31}"
#define HOPPER_L64                                                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"  \
  "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
  "%58,%59,%60,%61,%62,%63}"
// B as rows [n][k] (hopper_wg_scores; `add` 0 starts from zero) or as rows [k][n] (hopper_wg_values).
#define HOPPER_WG_ATTENTION(type, name)                                                                            \
  HOPPER_FN void hopper_wg_scores(float(&d)[32], const uint(&a)[4], unsigned long long b, int add, type) {         \
    asm volatile(                                                                                                  \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                               \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " HOPPER_L32                                 \
        ", {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"                                                                 \
        : HOPPER_R8(0), HOPPER_R8(8), HOPPER_R8(16), HOPPER_R8(24)                                                 \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                           \
  }                                                                                                                \
  HOPPER_FN void hopper_wg_scores(float(&d)[32], unsigned long long a, unsigned long long b, int add, type) {      \
    asm volatile(                                                                                                  \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                               \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " HOPPER_L32 ", %32, %33, p, 1, 1, 0, 0;\n}" \
        : HOPPER_R8(0), HOPPER_R8(8), HOPPER_R8(16), HOPPER_R8(24)                                                 \
        : "l"(a), "l"(b), "r"(add));                                                                               \
  }                                                                                                                \
  HOPPER_FN void hopper_wg_values(float(&d)[32], const uint(&a)[4], unsigned long long b, type) {                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " HOPPER_L32                        \
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                                           \
                 : HOPPER_R8(0), HOPPER_R8(8), HOPPER_R8(16), HOPPER_R8(24)                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
  }                                                                                                                \
  HOPPER_FN void hopper_wg_values(float(&d)[64], const uint(&a)[4], unsigned long long b, type) {                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " " HOPPER_L64                       \
                 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                                           \
                 : HOPPER_R8(0), HOPPER_R8(8), HOPPER_R8(16), HOPPER_R8(24), HOPPER_R8(32), HOPPER_R8(40),         \
                   HOPPER_R8(48), HOPPER_R8(56)                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
  }
HOPPER_WG_ATTENTION(bfloat, "bf16")
HOPPER_WG_ATTENTION(half, "f16")

// 2^x for -100 <= x <= 0, with the bits of q_exp2. No result is near the ends of the exponent's range, so the integer
// part is added directly to the exponent.
HOPPER_FN float hopper_exp2(float x) {
  const float shifted = x + 0x1.8p23f;
  const float r = x - (shifted - 0x1.8p23f);
  QUIRE_EXP2_POLYNOMIAL(Q_FIRST, Q_NEXT, p, r)
  return as_float(as_uint(p) + (as_uint(shifted) << 23));
}

// Keeps the compiler from moving operations on these registers past this point: it does not know that wgmma uses them
// while it is in flight.
template <int N>
HOPPER_FN void hopper_pin(float (&r)[N]) {
  UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+f"(r[i])::"memory");
}
template <int N>
HOPPER_FN void hopper_pin(uint (&r)[N][4]) {
  UNROLL for (int i = 0; i < N; i++) {
    UNROLL for (int j = 0; j < 4; j++) asm volatile("" : "+r"(r[i][j])::"memory");
  }
}

// The queries of a warpgroup's rows: as fragments in registers, or in shared memory.
template <int D>
struct HopperQueries {
  uint of[D / 16][4];
};
template <>
struct HopperQueries<256> {
  uint word;  // the low word of the descriptor
};
template <int D>
HOPPER_FN void hopper_pin(HopperQueries<D>& q) {
  hopper_pin(q.of);
}
HOPPER_FN void hopper_pin(HopperQueries<256>&) {}

// The larger number, or NaN if either is NaN.
HOPPER_FN float hopper_max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

HOPPER_FN bool hopper_barrier_try(uint barrier, uint parity) {
  uint done;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

// General: with windows, soft caps or sinks.
template <typename T, int D, bool General>
struct HopperAttentionPrefill {
  static constexpr bool kShared = D == 256;  // both warpgroups have the same rows
  typedef HopperQueries<D> Queries;
  enum {
    kRing = hopper_prefill_ring(D),
    kOwn = kShared ? D / 2 : D,        // columns of o of a warpgroup
    kTileBytes = kHopperTile * D * 2,  // halves of 64 columns, each 64 rows of 128 bytes, swizzled
    kHalves = D / 64,
    kQueryStride = D + 8,
    kColumns = kOwn / 2,  // accumulators of o per thread
    // Offsets in shared memory, from a multiple of 1024 bytes (the swizzle of wgmma operands repeats every 1024)
    kBarriers = 0,
    kK = 1024,
    kV = kK + kRing * kTileBytes,
    kQ = kV + kRing * kTileBytes,  // where both warpgroups have the same rows: q, as K
    // [warpgroup][column][thread]; otherwise it holds q until the first split ends
    kState = kQ + (kShared ? kTileBytes : 0),
    kBytes = kState + 2 * 128 * kColumns * 4
  };
  // Unit i of the ring is K of tile i and V of tile i - 2, because these are needed at the same time. Each slot has two
  // barriers: kind 0, the data has landed; kind 1, the slot is free.
  HOPPER_FN uint barrier(uint base, int kind, int unit) {
    return base + kBarriers + (kind * kRing + (unit & (kRing - 1))) * 8;
  }
  // All lanes wait together, so that the compiler knows that they do not diverge.
  HOPPER_FN void await(uint base, int kind, int unit, int flip) {
    while (!simd_all(hopper_barrier_try(barrier(base, kind, unit), (unit / kRing & 1) ^ flip))) {
    }
  }

  struct Place {
    HopperSequence s;
    int kv_head, head;  // of this warpgroup
    int token;          // the first of this warpgroup, counted in the sequence
    int start;          // position of the first tile; tiles before it are not visible
    int low;            // the first visible position, counted from there
    int tiles;          // tiles of the threadgroup
    int own_tiles;      // tiles of this warpgroup
    const int* blocks;
  };

  // Returns false if there is nothing to do.
  HOPPER_FN bool find(const HopperAttentionParams& p, Place& at, int consumer, const int* block_tables,
                      const int* cu_seqlens, const int* context_lens) {
    const int group = p.heads / p.kv_heads;
    const bool even = !kShared && group % 2 == 0;
    const int tokens = kShared || even ? 64 : 128, per = even ? group / 2 : group;
    const int all = cu_seqlens[p.seqs] / tokens + p.seqs;
    const int index = (int)blockIdx.x, pair = index % per;
    at.kv_head = index / per % p.kv_heads;
    const int block = all - 1 - index / (per * p.kv_heads);
    if (block < 0) return false;
    int low = 0, high = p.seqs;  // the blocks of sequence i begin at cu_seqlens[i] / tokens + i
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (cu_seqlens[middle] / tokens + middle <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    at.s = hopper_sequence(p, low, cu_seqlens, context_lens);
    const int rows = at.s.queries * group;
    const int first = (block - (at.s.first / tokens + low)) * tokens;
    if (first >= at.s.queries || rows < p.rows_from || rows > p.rows_to) return false;
    at.token = kShared || even ? first : first + consumer * 64;
    at.head = at.kv_head * group + (even ? 2 * pair + consumer : pair);
    at.blocks = block_tables + (i64)low * p.max_blocks;
    const int before = at.s.context - at.s.queries, lowest = General ? hopper_low(p, before + first) : 0;
    at.start = hopper_uniform(lowest / kHopperTile * kHopperTile);
    at.low = lowest - at.start;
    at.tiles = (min(before + first + tokens, at.s.context) - at.start + kHopperTile - 1) / kHopperTile;
    at.own_tiles = at.token >= at.s.queries
                       ? 0
                       : (min(before + at.token + 64, at.s.context) - at.start + kHopperTile - 1) / kHopperTile;
    at.tiles = hopper_uniform(at.tiles);
    at.own_tiles = hopper_uniform(at.own_tiles);
    return true;
  }

  // ---- the warpgroup that loads pages ----

  // Eight rows of one page are contiguous. Warp w loads the groups of eight 2 w and 2 w + 1 of a tile; its lanes load
  // pieces of 16 bytes, 2 or 4 rows at a time.
  enum { kPieces = D / 8, kRowsAtOnce = 32 / kPieces, kRounds = 8 / kRowsAtOnce };

  struct Pieces {
    const char* from[2];  // the lane's first piece of K in each group of eight; V is p.v_offset further on
    uint to[kRounds];     // offset in a slot, for the first group of eight
    uint step;            // bytes between the rows of successive rounds
    int row;              // the lane's row in the tile
  };
  // kAll: all rows exist, otherwise those from `from_row` on that are before `left`.
  template <bool kAll>
  HOPPER_FN void load(const Pieces& at, uint slot, i64 offset, int from_row, int left) {
    UNROLL for (int e = 0; e < 2; e++) {
      const char* from = at.from[e] + offset;
      UNROLL for (int i = 0; i < kRounds; i++) {
        const uint to = slot + at.to[i] + e * 1024;
        if (kAll) {
          hopper_copy16(to, from + (unsigned long long)at.step * i);
        } else {
          const int row = at.row + 8 * e + kRowsAtOnce * i;
          hopper_copy16_or_zero(to, from + (unsigned long long)at.step * i,
                                row < left && (!General || row >= from_row));
        }
      }
    }
  }

  // Lane i finds the offset of positions 8 i to 8 i + 7 of the 256 that begin with tile 4 * (tile / 4).
  HOPPER_FN i64 find_eights(const HopperAttentionParams& p, const Place& at, int tile) {
    const int position = at.start + (tile & ~3) * kHopperTile + ((int)threadIdx.x & 31) * 8;
    if (position >= at.s.context || position + 8 <= at.start + at.low) return 0;
    return hopper_position(p, at.blocks, position, p.kv_heads * D * 2) + (i64)at.kv_head * D * 2;
  }

  // Waits until the unit that was requested kLater units ago has landed, and signals it. The proxy fence makes data
  // that cp.async wrote visible to wgmma, which reads shared memory through the async proxy.
  template <int kLater>
  HOPPER_FN void signal_landed(uint base, int unit) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
    hopper_fence_async();
    hopper_barrier_arrive(barrier(base, 0, unit));
  }

  HOPPER_FN void load_pages(const HopperAttentionParams& p, const Place& at, uint base, const char* pages) {
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, piece = lane % kPieces, row = lane / kPieces;
    const char* own = pages + (i64)row * p.kv_heads * D * 2 + piece * 16;
    Pieces pieces;
    pieces.step = (uint)(kRowsAtOnce * p.kv_heads * D * 2);
    pieces.row = 16 * warp + row;
    UNROLL for (int i = 0; i < kRounds; i++) {
      const int r = row + kRowsAtOnce * i;
      pieces.to[i] = (piece >> 3) * (kHopperTile * 128) + (16 * warp + r) * 128 + (((piece & 7) ^ r) << 4);
    }
    i64 eights = find_eights(p, at, 0), next = 0;
    const char *v0[2] = {own, own}, *v1[2] = {own, own};  // addresses of V of the tiles two before and one before
#pragma unroll 1
    for (int unit = 0; unit < at.tiles + 2; unit++) {
      if ((unit & 3) == 0) {
        if (unit > 0) eights = next;
        next = find_eights(p, at, unit + 4);
      }
      UNROLL for (int e = 0; e < 2; e++) {
        pieces.from[e] = own + __shfl_sync(0xffffffffu, eights, (unit & 3) * 8 + 2 * warp + e);
      }
      const uint slot = base + kK + (unit & (kRing - 1)) * kTileBytes;
      await(base, 1, unit, 1);  // the phase before the first one of a new mbarrier counts as complete
      Pieces values = pieces;
      values.from[0] = v0[0];
      values.from[1] = v0[1];
      const int left = at.s.context - at.start - unit * kHopperTile;
      if (unit >= (General ? 3 : 2) && left >= kHopperTile && unit < at.tiles) {
        load<true>(pieces, slot, 0, 0, left);
        load<true>(values, slot + kRing * kTileBytes, p.v_offset, 0, left);
      } else {
        if (unit < at.tiles) load<false>(pieces, slot, 0, unit == 0 ? at.low : 0, left);
        if (unit >= 2) {
          load<false>(values, slot + kRing * kTileBytes, p.v_offset, unit == 2 ? at.low : 0, left + 2 * kHopperTile);
        }
      }
      ptx_copy_commit();
      if (unit > 0) signal_landed<1>(base, unit - 1);
      UNROLL for (int e = 0; e < 2; e++) {
        v0[e] = v1[e];
        v1[e] = pieces.from[e];
      }
    }
    signal_landed<0>(base, at.tiles + 1);
  }

  // ---- the warpgroups that compute ----

  struct Rows {  // rows g and g + 8 of a warp's 16
    float m[2], l[2];
  };

  struct Worker {
    uint base;
    uint k_word;  // low word of the descriptor of K in slot 0
    uint to_v;    // distance from there to V's
    // Row g sees the positions [low, visible), counted from the first tile; row g + 8 those 8 further on. `low` may be
    // negative.
    int low, visible;
    int first_sees;  // `visible` of the warpgroup's first row
    int first_tile;  // the number of the first tile, counted from position 0
    float cap;
    int lane;
    float* state;
  };

  // Overwrites what a row does not see in a tile.
  HOPPER_FN void hide(float (&x)[32], float by, const Worker& me, int tile) {
    const int first = tile * kHopperTile + 2 * (me.lane & 3);
    const int seen[2] = {me.visible - first, me.visible + 8 - first}, low[2] = {me.low - first, me.low + 8 - first};
    UNROLL for (int b = 0; b < 8; b++) {
      UNROLL for (int i = 0; i < 4; i++) {
        const int at = 8 * b + (i & 1), h = i >> 1;
        if (at >= seen[h] || (General && at < low[h])) x[4 * b + i] = by;
      }
    }
  }

  // Turns scores into exponents x, relative to the row's maximum so far. `a` becomes the factor of the earlier tiles.
  template <bool kMasked>
  HOPPER_FN void exponents(const float (&s)[32], float (&x)[32], Rows& rows, float (&a)[2], const Worker& me,
                           int tile) {
    UNROLL for (int i = 0; i < 32; i++) x[i] = s[i];
    if (General && me.cap > 0.0f) {
      UNROLL for (int i = 0; i < 32; i++) x[i] = me.cap * q_tanh(x[i]);
    }
    if (kMasked) hide(x, HOPPER_NONE, me, tile);
    float most[2];
    UNROLL for (int h = 0; h < 2; h++) {
      float m = hopper_max_nan(x[2 * h], x[2 * h + 1]);
      UNROLL for (int b = 1; b < 8; b++) m = hopper_max_nan(m, hopper_max_nan(x[4 * b + 2 * h], x[4 * b + 2 * h + 1]));
      m = hopper_max_nan(m, simd_shuffle_xor(m, 1u));
      m = hopper_max_nan(m, simd_shuffle_xor(m, 2u));
      most[h] = hopper_max_nan(m, rows.m[h]);
    }
    const float base[2] = {most[0] == HOPPER_NONE ? 0.0f : most[0], most[1] == HOPPER_NONE ? 0.0f : most[1]};
    UNROLL for (int h = 0; h < 2; h++) {
      a[h] = hopper_exp2(fmaxf(rows.m[h] - base[h], -100.0f));
      rows.m[h] = most[h];
    }
    UNROLL for (int i = 0; i < 32; i++) x[i] = fmaxf(x[i] - base[(i >> 1) & 1], -100.0f);
  }

  // Turns exponents into weights: x becomes p.
  template <bool kMasked>
  HOPPER_FN void weights_of(float (&x)[32], Rows& rows, const float (&a)[2], const Worker& me, int tile) {
    UNROLL for (int i = 0; i < 32; i++) x[i] = hopper_exp2(x[i]);
    if (kMasked) hide(x, 0.0f, me, tile);
    UNROLL for (int h = 0; h < 2; h++) {
      float e[8];
      UNROLL for (int b = 0; b < 8; b++) e[b] = x[4 * b + 2 * h] + x[4 * b + 2 * h + 1];
      rows.l[h] = fma(rows.l[h], a[h], hopper_tree(e[0], e[1], e[2], e[3]) + hopper_tree(e[4], e[5], e[6], e[7]));
    }
  }

  // Packs the weights as the operand of the next product, and scales o by the factor.
  HOPPER_FN void pack(const float (&x)[32], uint (&w)[4][4], float (&o)[kColumns], const float (&a)[2]) {
    UNROLL for (int i = 0; i < 4; i++) {
      UNROLL for (int j = 0; j < 4; j++) w[i][j] = hopper_pack<T>(x[8 * i + 2 * j], x[8 * i + 2 * j + 1]);
    }
    if (simd_any(a[0] != 1.0f || a[1] != 1.0f)) {
      UNROLL for (int i = 0; i < kColumns; i++) o[i] *= a[(i >> 1) & 1];
    }
  }

  // k and v are the low words of the slots' descriptors, to which 16-byte steps are added.
  HOPPER_FN void scores(float (&s)[32], const Queries& q, uint k) {
    UNROLL for (int i = 0; i < D / 16; i++) {
      const uint at = ((i >> 2) * (kHopperTile * 128) + (i & 3) * 32) >> 4;
      const unsigned long long of_k = hopper_descriptor_of(k + at, 1024);
      if constexpr (kShared) {
        hopper_wg_scores(s, hopper_descriptor_of(q.word + at, 1024), of_k, i > 0, T());
      } else {
        hopper_wg_scores(s, q.of[i], of_k, i > 0, T());
      }
    }
    hopper_wg_commit();
  }
  HOPPER_FN void values(float (&o)[kColumns], const uint (&w)[4][4], uint v) {
    UNROLL for (int i = 0; i < 4; i++) hopper_wg_values(o, w[i], hopper_descriptor_of(v + i * 128, 1024), T());
    hopper_wg_commit();
  }

  // The end of the split that has `tile`: merges it with the earlier splits and sets o to zero. Worker::state is this
  // thread's column of kState, with a stride of 128 floats.
  HOPPER_FN void merge_split(float (&o)[kColumns], Rows now, Rows& all, const Worker& me, int tile, bool last) {
    const int split = (me.first_tile + tile) / kSplitTiles;
    const int start = split * kHopperSplit - me.first_tile * kHopperTile;  // counted from the first tile
    const bool first = split == me.first_tile / kSplitTiles;
    const bool sees[2] = {me.visible > start && (!General || me.low < start + kHopperSplit),
                          me.visible + 8 > start && (!General || me.low + 8 < start + kHopperSplit)};
    float* state = me.state;
    float e1[2] = {1.0f, 1.0f}, e2[2] = {1.0f, 1.0f};
    UNROLL for (int h = 0; h < 2; h++) {
      now.l[h] = row_sum(now.l[h]);
      // A score overflowed or was NaN.
      if (sees[h] && !(abs(now.m[h]) < as_float(0x7f800000u))) now.l[h] = as_float(0x7fffffffu);
      if (first) {
        all.m[h] = now.m[h];
        all.l[h] = now.l[h];
        continue;
      }
      const float most = sees[h] ? max(all.m[h], now.m[h]) : all.m[h];
      e1[h] = q_exp2(all.m[h] - most);
      e2[h] = q_exp2(now.m[h] - most);
      if (sees[h]) {
        all.l[h] = fma(all.l[h], e1[h], now.l[h] * e2[h]);
        all.m[h] = most;
      }
    }
    if (!first) {
      UNROLL for (int i = 0; i < kColumns; i++) {
        const int h = (i >> 1) & 1;
        const float before = state[i * 128];
        o[i] = sees[h] ? fma(before, e1[h], o[i] * e2[h]) : before;
      }
    }
    if (!last) {
      UNROLL for (int i = 0; i < kColumns; i++) {
        state[i * 128] = o[i];
        o[i] = 0.0f;
      }
    }
  }

  enum { kStep = kTileBytes >> 4, kSplitTiles = kHopperSplit / kHopperTile };

  HOPPER_FN void release(const Worker& me, int unit) {
    if (me.lane == 0) hopper_barrier_arrive(barrier(me.base, 1, unit));
  }

  // On entry s holds the scores of `tile`; w and o hold the weights of the previous tile, and o scaled to them. While
  // the weights of this tile are computed, the tensor cores compute the scores of the next tile (kNext) and p V of the
  // previous one (kBefore).
  template <bool kNext, bool kBefore, bool kMasked>
  HOPPER_FN void compute_tile(float (&s)[32], float (&o)[kColumns], uint (&w)[4][4], Queries& q, Rows& now, Rows& all,
                              const Worker& me, int tile) {
    const Rows done = now;
    const bool ended = kBefore && ((me.first_tile + tile) & (kSplitTiles - 1)) == 0;
    if (ended) now = {{HOPPER_NONE, HOPPER_NONE}, {0.0f, 0.0f}};
    float x[32], a[2];
    exponents<kMasked>(s, x, now, a, me, tile);
    if (kNext || kBefore) {
      const uint word = me.k_word + ((tile + 1) & (kRing - 1)) * kStep;
      await(me.base, 0, tile + 1, 0);
      hopper_pin(x);
      hopper_pin(q);
      hopper_pin(w);
      hopper_pin(o);
      hopper_wg_arrive();
      if (kNext) scores(s, q, word);
      if (kBefore) values(o, w, word + me.to_v);
      hopper_pin(x);
    }
    weights_of<kMasked>(x, now, a, me, tile);
    if (kNext || kBefore) {
      hopper_wg_wait<0>();
      hopper_pin(o);
      if (kNext) hopper_pin(s);
    }
    release(me, tile + 1);
    if (ended) merge_split(o, done, all, me, tile - 1, false);
    pack(x, w, o, a);
  }

  // A barrier for the threads of one warpgroup.
  HOPPER_FN void sync_warpgroup(int consumer) {
    if (consumer == 0) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
    } else {
      asm volatile("bar.sync 2, 128;" ::: "memory");
    }
  }

  // Loads T(q * c) of the rows, which so many threads share; all loads are issued before the first is used.
  template <int kThreads>
  HOPPER_FN void load_queries(const HopperAttentionParams& p, const Place& at, const T* q, T* queries, int tid) {
    enum { kLoads = 64 * (D / 8) / kThreads };  // pieces of q per thread
    uint4 pieces[kLoads];
    UNROLL for (int i = 0; i < kLoads; i++) {
      const int at_piece = tid + kThreads * i, r = at_piece / (D / 8), d = at_piece % (D / 8) * 8;
      pieces[i] = make_uint4(0, 0, 0, 0);
      if (at.token + r < at.s.queries) {
        pieces[i] = __ldcg((const uint4*)(q + (i64)(at.s.first + at.token + r) * p.q_stride + (i64)at.head * D + d));
      }
    }
    UNROLL for (int i = 0; i < kLoads; i++) {
      const int at_piece = tid + kThreads * i, r = at_piece / (D / 8), d = at_piece % (D / 8) * 8;
      uint* words = (uint*)&pieces[i];
      UNROLL for (int j = 0; j < 4; j++) {
        const float low = to_f(from_bits16<T>((ushort)words[j])), high = to_f(from_bits16<T>((ushort)(words[j] >> 16)));
        words[j] = hopper_pack<T>(low * p.c, high * p.c);
      }
      const int swizzled = d / 64 * (kHopperTile * 64) + r * 64 + ((d / 8 % 8) ^ (r % 8)) * 8;
      *(uint4*)(queries + (kShared ? swizzled : r * kQueryStride + d)) = pieces[i];
    }
  }
  // The queries of this warpgroup, in the form that the products take.
  HOPPER_FN void take_queries(const HopperAttentionParams& p, const Place& at, uint base, unsigned char* shared,
                              int consumer, const T* q, Queries& out) {
    const int tid = (int)threadIdx.x & 127, warp = tid >> 5, lane = tid & 31;
    if constexpr (kShared) {
      load_queries<256>(p, at, q, (T*)(shared + kQ), consumer * 128 + tid);
      hopper_fence_async();
      asm volatile("bar.sync 3, 256;" ::: "memory");
      out.word = hopper_descriptor_word(base + kQ, 16);
    } else {
      T* queries = (T*)(shared + kState + consumer * 128 * kColumns * 4);
      load_queries<128>(p, at, q, queries, tid);
      sync_warpgroup(consumer);
      UNROLL for (int k = 0; k < D / 16; k++) {
        hopper_ldmatrix(out.of[k], ptx_shared_address(queries + (16 * warp + (lane & 15)) * kQueryStride + k * 16 +
                                                      (lane >> 4) * 8));
      }
      sync_warpgroup(consumer);  // kState takes the place of q
    }
  }

  HOPPER_FN void write(const HopperAttentionParams& p, const Place& at, const float (&o)[kColumns], const Rows& all,
                       T* out, const float* sinks, int consumer, int first, int t) {
    UNROLL for (int h = 0; h < 2; h++) {
      const int token = at.token + first + 8 * h;
      if (token >= at.s.queries) continue;
      T* row = out + (i64)(at.s.first + token) * p.out_stride + (i64)at.head * D + (kShared ? consumer * kOwn : 0);
      float l = all.l[h];
      const float by = General ? hopper_sink(p, sinks, at.head, all.m[h], l) : 1.0f;
      UNROLL for (int d = 0; d < kOwn / 8; d++) {
        const float low = o[4 * d + 2 * h], high = o[4 * d + 2 * h + 1];
        *(uint*)(row + d * 8 + 2 * t) =
            General ? hopper_pack<T>((low * by + 0.0f) / l, (high * by + 0.0f) / l) : hopper_pack<T>(low / l, high / l);
      }
    }
  }

  HOPPER_FN void work(const HopperAttentionParams& p, const Place& at, uint base, unsigned char* shared, int consumer,
                      T* out, const T* q, const float* sinks) {
    const int tid = (int)threadIdx.x & 127, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
    Queries qf;
    take_queries(p, at, base, shared, consumer, q, qf);
    float* state = (float*)(shared + kState) + consumer * 128 * kColumns + tid;
    float o[kColumns];
    UNROLL for (int i = 0; i < kColumns; i++) o[i] = 0.0f;
    Rows now = {{HOPPER_NONE, HOPPER_NONE}, {0.0f, 0.0f}}, all = now;
    Worker me;
    me.base = base;
    const int position = at.s.context - at.s.queries + at.token - at.start;  // of the first row
    me.visible = position + 16 * warp + g + 1;
    me.low = General && p.window > 0 ? me.visible - p.window : -kHopperTile;
    me.first_sees = hopper_uniform(position + 1);
    me.first_tile = at.start / kHopperTile;
    me.cap = General ? p.cap : 0.0f;
    me.k_word = hopper_descriptor_word(base + kK, 16);
    const uint own_v = base + kV + (kShared ? consumer * (kTileBytes / 2) : 0);
    me.to_v = hopper_descriptor_word(own_v, kHopperTile * 128) - me.k_word;
    me.lane = lane;
    me.state = state;
    uint w[4][4] = {};
    if (at.own_tiles > 0) {
      float s[32];
      int tile = 0;
      await(base, 0, 0, 0);
      hopper_pin(qf);
      hopper_wg_arrive();
      scores(s, qf, me.k_word);
      hopper_wg_wait<0>();
      hopper_pin(s);
      release(me, 0);
      if (at.own_tiles > 1) {
        compute_tile<true, false, true>(s, o, w, qf, now, all, me, 0);
        // Tiles that all rows see: from the first one that the last row sees all of, to the last of the first row.
        const int whole = hopper_uniform(min(at.own_tiles - 1, me.first_sees / kHopperTile));
        tile = 1;
        if (General && p.window > 0) {
          const int from = hopper_uniform((me.first_sees + 63 - p.window + kHopperTile - 1) / kHopperTile);
#pragma unroll 1
          for (; tile < min(from, at.own_tiles - 1); tile++) {
            compute_tile<true, true, true>(s, o, w, qf, now, all, me, tile);
          }
        }
#pragma unroll 1
        for (; tile < whole; tile++) compute_tile<true, true, false>(s, o, w, qf, now, all, me, tile);
#pragma unroll 1
        for (; tile + 1 < at.own_tiles; tile++) compute_tile<true, true, true>(s, o, w, qf, now, all, me, tile);
        compute_tile<false, true, true>(s, o, w, qf, now, all, me, tile);
      } else {
        await(base, 0, 1, 0);
        compute_tile<false, false, true>(s, o, w, qf, now, all, me, 0);
      }
      await(base, 0, tile + 2, 0);
      hopper_pin(o);
      hopper_pin(w);
      hopper_wg_arrive();
      values(o, w, me.k_word + ((tile + 2) & (kRing - 1)) * kStep + me.to_v);
      hopper_wg_wait<0>();
      hopper_pin(o);
      release(me, tile + 2);
      merge_split(o, now, all, me, tile, true);
    }
    // Release the units that only the other warpgroup needs.
    for (int unit = at.own_tiles > 0 ? at.own_tiles + 2 : 0; unit < at.tiles + 2; unit++) {
      await(base, 0, unit, 0);
      release(me, unit);
    }
    write(p, at, o, all, out, sinks, consumer, 16 * warp + g, t);
  }

  HOPPER_FN void run(const HopperAttentionParams& p, T* out, const T* q, const char* pages, const int* block_tables,
                     const int* cu_seqlens, const int* context_lens, const float* sinks) {
    extern __shared__ __align__(128) unsigned char raw[];
    const uint base = (ptx_shared_address(raw) + 1023) & ~1023u;
    unsigned char* shared = raw + (base - ptx_shared_address(raw));
    ptx_grid_release();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kRing; i++) {
        hopper_barrier_init(barrier(base, 0, i), 128);
        hopper_barrier_init(barrier(base, 1, i), 8);
      }
      hopper_barrier_init_done();
    }
    __syncthreads();
    ptx_grid_wait();
    const int warpgroup = hopper_uniform((int)threadIdx.x >> 7);
    Place at;
    if (!find(p, at, max(warpgroup - 1, 0), block_tables, cu_seqlens, context_lens)) return;
    if (warpgroup == 0) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kShared ? 72 : 40));
      load_pages(p, at, base, pages);
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kShared ? 216 : 232));
      work(p, at, base, shared, warpgroup - 1, out, q, sinks);
    }
  }
};

#define HOPPER_ATTENTION_PREFILL(types, T, name, D, general)                                                           \
  static_assert(HopperAttentionPrefill<T, D, general>::kBytes + 1024 == hopper_prefill_memory(D),                      \
                "as the host counts");                                                                                 \
  extern "C" __global__ void __launch_bounds__(kHopperPrefillThreads, 1) hopper_attention_##name##_##types##_d##D(     \
      const __grid_constant__ HopperAttentionParams p, T* out, const T* q, const char* pages, const int* block_tables, \
      const int* cu_seqlens, const int* context_lens, float*, const float* sinks) {                                    \
    HopperAttentionPrefill<T, D, general>::run(p, out, q, pages, block_tables, cu_seqlens, context_lens, sinks);       \
  }
HOPPER_ATTENTION_PREFILL(bf16, bfloat, prefill, 64, false)
HOPPER_ATTENTION_PREFILL(bf16, bfloat, prefill, 128, false)
HOPPER_ATTENTION_PREFILL(bf16, bfloat, prefill, 256, false)
HOPPER_ATTENTION_PREFILL(f16, half, prefill, 64, false)
HOPPER_ATTENTION_PREFILL(f16, half, prefill, 128, false)
HOPPER_ATTENTION_PREFILL(f16, half, prefill, 256, false)
HOPPER_ATTENTION_PREFILL(bf16, bfloat, prefill_general, 64, true)
HOPPER_ATTENTION_PREFILL(bf16, bfloat, prefill_general, 128, true)
HOPPER_ATTENTION_PREFILL(bf16, bfloat, prefill_general, 256, true)
HOPPER_ATTENTION_PREFILL(f16, half, prefill_general, 64, true)
HOPPER_ATTENTION_PREFILL(f16, half, prefill_general, 128, true)
HOPPER_ATTENTION_PREFILL(f16, half, prefill_general, 256, true)
