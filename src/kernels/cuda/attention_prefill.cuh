// SPDX-License-Identifier: Apache-2.0
// Attention of many rows over pages by wgmma: a warpgroup brings in pages, two others work on 64 rows each (sm_90a).
//
// Equal, by memcmp, to the portable attention and to attention_decode.cuh; attention.cuh says what the arithmetic is. A
// threadgroup serves two blocks of rows of one kv head: the same 64 tokens of two heads where the group is even, else
// two blocks of 64 tokens of one head. K and V tiles of 64 positions pass through two rings of four. Scores of tile
// i + 1 are on the tensor cores right behind p V of tile i, while the other warpgroup takes its exponentials. What the
// splits before came to waits in shared memory.
//
// Grid: hopper_prefill_grid(), the longest rows first. 384 threads, hopper_prefill_memory(). D is 64 or 128. Serves the
// sequences with p.rows_from to p.rows_to rows.
#pragma once

#include "kernels/cuda/attention.cuh"

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
// B as [n][k] rows (hopper_wg_scores; `add` 0: from zero) or as [k][n] rows (hopper_wg_values).
#define HOPPER_WG_ATTENTION(type, name)                                                                    \
  HOPPER_FN void hopper_wg_scores(float(&d)[32], const uint(&a)[4], unsigned long long b, int add, type) { \
    asm volatile(                                                                                          \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                       \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " HOPPER_L32                         \
        ", {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"                                                         \
        : HOPPER_R8(0), HOPPER_R8(8), HOPPER_R8(16), HOPPER_R8(24)                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                   \
  }                                                                                                        \
  HOPPER_FN void hopper_wg_values(float(&d)[32], const uint(&a)[4], unsigned long long b, type) {          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " HOPPER_L32                \
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                                   \
                 : HOPPER_R8(0), HOPPER_R8(8), HOPPER_R8(16), HOPPER_R8(24)                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                    \
  }                                                                                                        \
  HOPPER_FN void hopper_wg_values(float(&d)[64], const uint(&a)[4], unsigned long long b, type) {          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " " HOPPER_L64               \
                 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                                   \
                 : HOPPER_R8(0), HOPPER_R8(8), HOPPER_R8(16), HOPPER_R8(24), HOPPER_R8(32), HOPPER_R8(40), \
                   HOPPER_R8(48), HOPPER_R8(56)                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                    \
  }
HOPPER_WG_ATTENTION(bfloat, "bf16")
HOPPER_WG_ATTENTION(half, "f16")

// 2^max(x, -100) with the bits of q_exp2 where x is a number: the power goes straight to the exponent, as no result is
// near its ends. For others the row's maximum tells.
HOPPER_FN float hopper_exp2(float x) {
  x = fmaxf(x, -100.0f);
  const float shifted = x + 0x1.8p23f;
  const float r = x - (shifted - 0x1.8p23f);
  float p = 0x1.416b52p-13f;
  p = fma(p, r, 0x1.5f082ep-10f);
  p = fma(p, r, 0x1.3b2de0p-7f);
  p = fma(p, r, 0x1.c6af7cp-5f);
  p = fma(p, r, 0x1.ebfbdcp-3f);
  p = fma(p, r, 0x1.62e430p-1f);
  p = fma(p, r, 1.0f);
  return as_float(as_uint(p) + (as_uint(shifted) << 23));
}

// A value that is the same in all lanes, so that the compiler knows it: it gives up on overlapping wgmma elsewhere.
HOPPER_FN int hopper_uniform(int v) {
  return __shfl_sync(0xffffffffu, v, 0);
}

// Keeps what is done to these registers before (or after) this place: the compiler sees no use of them in wgmma's
// flight.
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

// The larger one, or NaN if one is.
HOPPER_FN float hopper_max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

template <typename T, int D>
struct HopperAttentionPrefill {
  enum {
    kRing = 4,
    kTileBytes = kHopperTile * D * 2,  // halves of 64 columns, each 64 rows of 128 bytes, swizzled
    kHalves = D / 64,
    kQueryStride = D + 8,
    kColumns = D / 2,  // accumulators of o a thread
    kBarriers = 0,     // offsets in shared memory, from a multiple of 1024
    kK = 1024,
    kV = kK + kRing * kTileBytes,
    kState = kV + kRing * kTileBytes,  // [warpgroup][column][thread], and q before the first split's end
    kBytes = kState + 2 * 128 * kColumns * 4
  };
  // Barriers: K and V of a slot are there, K and V of a slot are free.
  HOPPER_FN uint barrier(uint base, int kind, int slot) { return base + kBarriers + (kind * kRing + slot) * 8; }

  struct Place {
    HopperSequence s;
    int kv_head, head;  // this warpgroup's
    int token;          // of the sequence: the first of this warpgroup
    int tiles;          // of the threadgroup
    int own_tiles;      // of the warpgroup
    const int* blocks;
  };

  // False: nothing to do here.
  HOPPER_FN bool find(const HopperAttentionParams& p, Place& at, int consumer, const int* block_tables,
                      const int* cu_seqlens, const int* context_lens) {
    const int group = p.heads / p.kv_heads;
    const bool even = group % 2 == 0;
    const int tokens = even ? 64 : 128, per = even ? group / 2 : group;
    const int all = cu_seqlens[p.seqs] / tokens + p.seqs;
    const int index = (int)blockIdx.x, pair = index % per;
    at.kv_head = index / per % p.kv_heads;
    const int block = all - 1 - index / (per * p.kv_heads);
    if (block < 0) return false;
    int low = 0, high = p.seqs;  // sequence i has the blocks from cu_seqlens[i] / tokens + i on
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (cu_seqlens[middle] / tokens + middle <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    at.s = hopper_sequence(low, cu_seqlens, context_lens);
    const int rows = at.s.queries * group;
    const int first = (block - (at.s.first / tokens + low)) * tokens;
    if (first >= at.s.queries || rows < p.rows_from || rows > p.rows_to) return false;
    at.token = even ? first : first + consumer * 64;
    at.head = at.kv_head * group + (even ? 2 * pair + consumer : pair);
    at.blocks = block_tables + (i64)low * p.max_blocks;
    const int before = at.s.context - at.s.queries;
    at.tiles = (min(before + first + tokens, at.s.context) + kHopperTile - 1) / kHopperTile;
    at.own_tiles =
        at.token >= at.s.queries ? 0 : (min(before + at.token + 64, at.s.context) + kHopperTile - 1) / kHopperTile;
    at.tiles = hopper_uniform(at.tiles);
    at.own_tiles = hopper_uniform(at.own_tiles);
    return true;
  }

  // ---- the warpgroup that brings in pages ----

  // Rows in eights of one page: thread t takes piece t % (D / 8) of rows t / (D / 8) + ... of a tile.
  enum { kPieces = D / 8, kRowsAtOnce = 128 / kPieces, kRounds = kHopperTile / kRowsAtOnce };  // 8 or 16 rows

  // Where the thread's pieces of a tile of K stand; those of V are p.v_offset on.
  HOPPER_FN void find_pieces(const char* (&from)[kRounds], const char* own, i64 eights, int tile) {
    UNROLL for (int i = 0; i < kRounds; i++) {
      const int eight = kRowsAtOnce == 8 ? i : 2 * i + ((int)threadIdx.x >> 6);
      from[i] = own + __shfl_sync(0xffffffffu, eights, (tile & 3) * 8 + eight);
    }
  }
  HOPPER_FN void load(uint to, uint landed, const char* const (&from)[kRounds], i64 offset, int left) {
    UNROLL for (int i = 0; i < kRounds; i++) {
      hopper_copy16_or_zero(to + i * (kRowsAtOnce * 128), from[i] + offset,
                            i * kRowsAtOnce + (int)threadIdx.x / kPieces < left);
    }
    hopper_barrier_arrive_copied(landed);
  }

  // Lane i: where positions 8 i of the 256 from tile 4 j on stand.
  HOPPER_FN i64 find_eights(const HopperAttentionParams& p, const Place& at, int tile) {
    const int position = (tile & ~3) * kHopperTile + ((int)threadIdx.x & 31) * 8;
    if (position >= at.s.context) return 0;
    return hopper_position(p, at.blocks, position, p.kv_heads * D * 2) + (i64)at.kv_head * D * 2;
  }

  HOPPER_FN void bring(const HopperAttentionParams& p, const Place& at, uint base, const char* pages) {
    const int tid = (int)threadIdx.x, piece = tid % kPieces, row = tid / kPieces;
    const char* own = pages + (i64)(row & 7) * p.kv_heads * D * 2 + piece * 16;
    const uint place = (piece >> 3) * (kHopperTile * 128) + row * 128 + (((piece & 7) ^ (row & 7)) << 4);
    i64 eights = find_eights(p, at, 0), next = 0;
    int slot = 0, parity = 1;  // a fresh barrier's phase before the first counts as done
#pragma unroll 1
    for (int tile = 0; tile < at.tiles; tile++) {
      if ((tile & 3) == 0) {
        if (tile > 0) eights = next;
        next = find_eights(p, at, tile + 4);
      }
      const char* from[kRounds];
      find_pieces(from, own, eights, tile);
      const int left = at.s.context - tile * kHopperTile;
      hopper_barrier_wait(barrier(base, 2, slot), parity);
      load(base + kK + slot * kTileBytes + place, barrier(base, 0, slot), from, 0, left);
      hopper_barrier_wait(barrier(base, 3, slot), parity);
      load(base + kV + slot * kTileBytes + place, barrier(base, 1, slot), from, p.v_offset, left);
      slot = slot + 1 == kRing ? 0 : slot + 1;
      if (slot == 0) parity ^= 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

  // ---- the warpgroups that work ----

  struct Rows {  // rows g and g + 8 of a warp's 16
    float m[2], l[2];
  };

  // Scores to weights: s becomes p. Returns the factors of what was before.
  HOPPER_FN void weigh(float (&s)[32], Rows& rows, float (&a)[2], int visible, bool masked, int t) {
    const int seen[2] = {visible, visible + 8};
    if (masked) {
      UNROLL for (int b = 0; b < 8; b++) {
        UNROLL for (int i = 0; i < 4; i++) {
          if (8 * b + 2 * t + (i & 1) >= seen[i >> 1]) s[4 * b + i] = HOPPER_NONE;
        }
      }
    }
    UNROLL for (int h = 0; h < 2; h++) {
      float most = hopper_max_nan(s[2 * h], s[2 * h + 1]);
      UNROLL for (int b = 1; b < 8; b++) most =
          hopper_max_nan(most, hopper_max_nan(s[4 * b + 2 * h], s[4 * b + 2 * h + 1]));
      most = hopper_max_nan(most, simd_shuffle_xor(most, 1u));
      most = hopper_max_nan(most, simd_shuffle_xor(most, 2u));
      most = hopper_max_nan(most, rows.m[h]);
      const float base = most == HOPPER_NONE ? 0.0f : most;
      a[h] = hopper_exp2(rows.m[h] - base);
      rows.m[h] = most;
      UNROLL for (int b = 0; b < 8; b++) {
        UNROLL for (int i = 0; i < 2; i++) s[4 * b + 2 * h + i] = hopper_exp2(s[4 * b + 2 * h + i] - base);
      }
    }
    if (masked) {
      UNROLL for (int b = 0; b < 8; b++) {
        UNROLL for (int i = 0; i < 4; i++) {
          if (8 * b + 2 * t + (i & 1) >= seen[i >> 1]) s[4 * b + i] = 0.0f;
        }
      }
    }
    UNROLL for (int h = 0; h < 2; h++) {
      float e[8];
      UNROLL for (int b = 0; b < 8; b++) e[b] = s[4 * b + 2 * h] + s[4 * b + 2 * h + 1];
      rows.l[h] = fma(rows.l[h], a[h], hopper_tree(e[0], e[1], e[2], e[3]) + hopper_tree(e[4], e[5], e[6], e[7]));
    }
  }

  // Weights as the next product's operand, and o brought to their scale.
  HOPPER_FN void pack(const float (&s)[32], uint (&w)[4][4], float (&o)[kColumns], const float (&a)[2]) {
    UNROLL for (int i = 0; i < 4; i++) {
      UNROLL for (int j = 0; j < 4; j++) w[i][j] = hopper_pack<T>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
    }
    if (simd_any(a[0] != 1.0f || a[1] != 1.0f)) {
      UNROLL for (int i = 0; i < kColumns; i++) o[i] *= a[(i >> 1) & 1];
    }
  }

  // The slots' descriptors: the low words, to which 16-byte steps are added.
  HOPPER_FN void scores(float (&s)[32], const uint (&q)[D / 16][4], uint k) {
    UNROLL for (int i = 0; i < D / 16; i++) {
      const uint at = k + (((i >> 2) * (kHopperTile * 128) + (i & 3) * 32) >> 4);
      hopper_wg_scores(s, q[i], hopper_descriptor_of(at, 1024), i > 0, T());
    }
    hopper_wg_commit();
  }
  HOPPER_FN void values(float (&o)[kColumns], const uint (&w)[4][4], uint v) {
    UNROLL for (int i = 0; i < 4; i++) hopper_wg_values(o, w[i], hopper_descriptor_of(v + i * 128, 1024), T());
    hopper_wg_commit();
  }

  // The end of a split: joins what the splits before came to, and o starts anew. `state` is this thread's, a float each
  // 128; `visible` as in work().
  HOPPER_FN void join(float (&o)[kColumns], Rows now, Rows& all, float* state, int visible, int split, bool last) {
    const bool first = split == 0, sees[2] = {visible > split * kHopperSplit, visible + 8 > split * kHopperSplit};
    float e1[2] = {1.0f, 1.0f}, e2[2] = {1.0f, 1.0f};
    UNROLL for (int h = 0; h < 2; h++) {
      now.l[h] = row_sum(now.l[h]);
      // Scores that overflowed or held a NaN.
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

  HOPPER_FN void work(const HopperAttentionParams& p, const Place& at, uint base, unsigned char* shared, int consumer,
                      T* out, const T* q) {
    const int tid = (int)threadIdx.x & 127, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
    T* queries = (T*)(shared + kState + consumer * 128 * kColumns * 4);
    for (int i = tid; i < 64 * (D / 8); i += 128) {
      const int r = i / (D / 8), d = (i % (D / 8)) * 8;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (at.token + r < at.s.queries) {
        v = __ldcg((const uint4*)(q + (i64)(at.s.first + at.token + r) * p.q_stride + (i64)at.head * D + d));
        uint* words = (uint*)&v;
        UNROLL for (int j = 0; j < 4; j++) {
          const float low = to_f(from_bits16<T>((ushort)words[j])),
                      high = to_f(from_bits16<T>((ushort)(words[j] >> 16)));
          words[j] = hopper_pack<T>(low * p.c, high * p.c);
        }
      }
      *(uint4*)(queries + r * kQueryStride + d) = v;
    }
    if (consumer == 0) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
    } else {
      asm volatile("bar.sync 2, 128;" ::: "memory");
    }
    uint qf[D / 16][4];
    UNROLL for (int k = 0; k < D / 16; k++) {
      hopper_ldmatrix(
          qf[k], ptx_shared_address(queries + (16 * warp + (lane & 15)) * kQueryStride + k * 16 + (lane >> 4) * 8));
    }
    float* state = (float*)(shared + kState) + consumer * 128 * kColumns + tid;
    float o[kColumns];
    UNROLL for (int i = 0; i < kColumns; i++) o[i] = 0.0f;
    Rows now = {{HOPPER_NONE, HOPPER_NONE}, {0.0f, 0.0f}}, all = now;
    // Positions that rows g and g + 8 see, from 0 on.
    const int visible = at.s.context - at.s.queries + at.token + 16 * warp + g + 1;
    const int first_sees = hopper_uniform(at.s.context - at.s.queries + at.token + 1);  // the warpgroup's first row
    const uint k_word = hopper_descriptor_word(base + kK, 16),
               v_word = hopper_descriptor_word(base + kV, kHopperTile * 128);
    enum { kStep = kTileBytes >> 4, kSplitTiles = kHopperSplit / kHopperTile };
    int k_slot = 0, k_parity = 0, v_slot = 0, v_parity = 0;
    uint w[4][4];
    float a[2];
    if (at.own_tiles > 0) {
      float s[32];
      hopper_barrier_wait(barrier(base, 0, 0), 0);
      hopper_fence_async();
      hopper_pin(qf);
      hopper_wg_arrive();
      scores(s, qf, k_word);
      hopper_wg_wait<0>();
      hopper_pin(s);
      if (lane == 0) hopper_barrier_arrive(barrier(base, 2, 0));
      k_slot = 1;
      weigh(s, now, a, visible, first_sees < kHopperTile, t);
      pack(s, w, o, a);
    }
    // w holds the weights of `tile`. Its p V is under way while the weights of the next tile are made.
#pragma unroll 1
    for (int tile = 0; tile + 1 < at.own_tiles; tile++) {
      float s[32];
      hopper_barrier_wait(barrier(base, 0, k_slot), k_parity);
      hopper_barrier_wait(barrier(base, 1, v_slot), v_parity);
      hopper_fence_async();
      hopper_pin(o);
      hopper_pin(w);
      hopper_wg_arrive();
      scores(s, qf, k_word + k_slot * kStep);
      values(o, w, v_word + v_slot * kStep);
      hopper_wg_wait<1>();
      hopper_pin(s);
      if (lane == 0) hopper_barrier_arrive(barrier(base, 2, k_slot));
      const Rows done = now;
      const bool ended = (tile + 1) % kSplitTiles == 0;
      if (ended) now = {{HOPPER_NONE, HOPPER_NONE}, {0.0f, 0.0f}};
      weigh(s, now, a, visible - (tile + 1) * kHopperTile, first_sees < (tile + 2) * kHopperTile, t);
      hopper_wg_wait<0>();
      hopper_pin(o);
      if (lane == 0) hopper_barrier_arrive(barrier(base, 3, v_slot));
      v_slot = v_slot + 1 == kRing ? 0 : v_slot + 1;
      v_parity ^= v_slot == 0;
      k_slot = k_slot + 1 == kRing ? 0 : k_slot + 1;
      k_parity ^= k_slot == 0;
      if (ended) join(o, done, all, state, visible, tile / kSplitTiles, false);
      pack(s, w, o, a);
    }
    if (at.own_tiles > 0) {
      hopper_barrier_wait(barrier(base, 1, v_slot), v_parity);
      hopper_fence_async();
      hopper_pin(o);
      hopper_pin(w);
      hopper_wg_arrive();
      values(o, w, v_word + v_slot * kStep);
      hopper_wg_wait<0>();
      hopper_pin(o);
      if (lane == 0) hopper_barrier_arrive(barrier(base, 3, v_slot));
      join(o, now, all, state, visible, (at.own_tiles - 1) / kSplitTiles, true);
    }
    // Tiles of the other warpgroup alone: let them pass.
    for (int tile = at.own_tiles; tile < at.tiles; tile++) {
      const int slot = tile % kRing, parity = (tile / kRing) & 1;
      hopper_barrier_wait(barrier(base, 0, slot), parity);
      if (lane == 0) hopper_barrier_arrive(barrier(base, 2, slot));
      hopper_barrier_wait(barrier(base, 1, slot), parity);
      if (lane == 0) hopper_barrier_arrive(barrier(base, 3, slot));
    }
    UNROLL for (int h = 0; h < 2; h++) {
      const int token = at.token + 16 * warp + g + 8 * h;
      if (token >= at.s.queries) continue;
      T* row = out + (i64)(at.s.first + token) * p.out_stride + (i64)at.head * D;
      UNROLL for (int d = 0; d < D / 8; d++) {
        *(uint*)(row + d * 8 + 2 * t) = hopper_pack<T>(o[4 * d + 2 * h] / all.l[h], o[4 * d + 2 * h + 1] / all.l[h]);
      }
    }
  }

  HOPPER_FN void run(const HopperAttentionParams& p, T* out, const T* q, const char* pages, const int* block_tables,
                     const int* cu_seqlens, const int* context_lens) {
    extern __shared__ __align__(128) unsigned char raw[];
    const uint base = (ptx_shared_address(raw) + 1023) & ~1023u;
    unsigned char* shared = raw + (base - ptx_shared_address(raw));
    ptx_grid_release();
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2 * kRing; i++) {
        hopper_barrier_init(base + kBarriers + i * 8, 128);
        hopper_barrier_init(base + kBarriers + (2 * kRing + i) * 8, 8);
      }
      hopper_barrier_init_done();
    }
    __syncthreads();
    ptx_grid_wait();
    const int warpgroup = hopper_uniform((int)threadIdx.x >> 7);
    Place at;
    if (!find(p, at, max(warpgroup - 1, 0), block_tables, cu_seqlens, context_lens)) return;
    if (warpgroup == 0) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
      bring(p, at, base, pages);
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
      work(p, at, base, shared, warpgroup - 1, out, q);
    }
  }
};

#define HOPPER_ATTENTION_PREFILL(types, T, D)                                                                          \
  static_assert(HopperAttentionPrefill<T, D>::kBytes + 1024 == hopper_prefill_memory(D), "as the host counts");        \
  extern "C" __global__ void __launch_bounds__(kHopperPrefillThreads, 1) hopper_attention_prefill_##types##_d##D(      \
      const __grid_constant__ HopperAttentionParams p, T* out, const T* q, const char* pages, const int* block_tables, \
      const int* cu_seqlens, const int* context_lens, float*) {                                                        \
    HopperAttentionPrefill<T, D>::run(p, out, q, pages, block_tables, cu_seqlens, context_lens);                       \
  }
HOPPER_ATTENTION_PREFILL(bf16, bfloat, 64)
HOPPER_ATTENTION_PREFILL(bf16, bfloat, 128)
HOPPER_ATTENTION_PREFILL(f16, half, 64)
HOPPER_ATTENTION_PREFILL(f16, half, 128)
