// SPDX-License-Identifier: Apache-2.0
// The kernels that write K and V to their pages. reshape_and_cache writes them as they are (ops/attention.h has its
// contract). qkv_to_cache combines everything between the projection and attention in one launch, with the bits of the
// separate ops: the norm (where there is one) and rope of each head of q and k, q in place, and the page writes.
// mla_to_cache does the same for multi-head latent attention.
#pragma once

#include "kernels/attention_head.h"
#include "kernels/attention_pages.h"
#include "kernels/compat/dialect.h"
#include "kernels/params/attention.h"
#include "kernels/params/attention_cache.h"

// The scale of one head in int8 pages: the largest magnitude over all lanes, divided by 127.
FN float cache_scale(float lane_amax, bool finite) {
  const float amax = simd_max(lane_amax);
  if (!simd_all(finite)) return as_float(0x7fc00000u);
  return amax < 0x1p-100f ? 0.0f : amax / 127.0f;
}
FN bool cache_finite(float x) {
  return (as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// One simdgroup per row.
template <typename T>
struct ReshapeAndCache {
  enum { kThreads = 32 * kCacheRows };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const CacheParams& p, TGROUP Smem& sm, DEVICE uchar* pages, DEVICE const T* k,
                     DEVICE const T* v, DEVICE const i64* slots) {
    const int units = p.sides * p.kv.kv_heads;
    const i64 unit = (i64)c.tgx * kCacheRows + c.sg;
    const i64 token = unit / units;
    if (token >= p.tokens) return;
    const i64 slot = slots[token];
    if (slot < 0) return;
    const int in_token = (int)(unit - token * units);
    const bool values = in_token >= p.kv.kv_heads;
    const int head = values ? in_token - p.kv.kv_heads : in_token;
    const i64 page = slot / p.kv.block_size;
    const int row = (int)(slot - page * p.kv.block_size) * p.kv.kv_heads + head;
    const int dim = values ? p.kv.v_dim : p.kv.head_dim;
    DEVICE const T* x = values ? v + token * p.v_stride + (i64)head * dim : k + token * p.k_stride + (i64)head * dim;
    float scale = 1.0f;
    if (p.kv.type == kKvI8) {
      float amax = 0.0f;
      bool finite = true;
      for (int i = (int)c.lane; i < dim; i += 32) {
        const float y = to_f(x[i]);
        amax = max(amax, abs(y));
        finite = finite && cache_finite(y);
      }
      scale = cache_scale(amax, finite);
      if (c.lane == 0) *(DEVICE float*)(pages + kv_scale_at(p.kv, page, row, values)) = scale;
    }
    DEVICE uchar* to_row = pages + kv_row_at(p.kv, page, row, values);
    const int padded = p.kv.type == kKvF16 || p.kv.type == kKvBF16 ? (values ? p.kv.v_row : p.kv.k_row) / 2 : dim;
    for (int i = (int)c.lane; i < padded; i += 32) kv_store(to_row, p.kv.type, i, i < dim ? to_f(x[i]) : 0.0f, scale);
  }
};
KERNEL(reshape_and_cache_f32, ReshapeAndCache<float>, CacheParams, uchar, const float, const float, const i64)
KERNEL(reshape_and_cache_f16, ReshapeAndCache<half>, CacheParams, uchar, const half, const half, const i64)
KERNEL(reshape_and_cache_bf16, ReshapeAndCache<bfloat>, CacheParams, uchar, const bfloat, const bfloat, const i64)

// Writes elements lane, lane + 32, ... of a row; the usual types have a loop of their own, which is short.
template <int Held>
FN void cache_store(DEVICE uchar* row, int type, int count, THREAD const float* x, float scale, uint lane) {
  if (type == kKvBF16) {
    UNROLL for (int i = 0; i < Held; i++) {
      if ((int)lane + 32 * i < count) ((DEVICE bfloat*)row)[lane + 32 * i] = to<bfloat>(x[i]);
    }
  } else if (type == kKvF16) {
    UNROLL for (int i = 0; i < Held; i++) {
      if ((int)lane + 32 * i < count) ((DEVICE half*)row)[lane + 32 * i] = to<half>(x[i]);
    }
  } else {
    UNROLL for (int i = 0; i < Held; i++) {
      if ((int)lane + 32 * i < count) kv_store(row, type, (int)lane + 32 * i, x[i], scale);
    }
  }
}

struct QkvSmem {
  float x[kCacheRows][256];
};

// One simdgroup per head, or for several of them, of at most 32 * kHeld dims. What the preceding launch does not write
// (norm weights, rope tables, and the step's arrays, which were copied in before the step's first launch) is loaded
// before GRID_WAIT().
template <typename T, int kHeld>
struct QkvHeadToCache {
  typedef QkvHead<T, kHeld> Head;

  static FN void write(THREAD const float* x, CONSTANT const QkvToCacheParams& p, DEVICE uchar* pages, i64 slot,
                       int head, bool values, uint lane) {
    const i64 page = slot / p.kv.block_size;
    const int row = (int)(slot - page * p.kv.block_size) * p.kv.kv_heads + head;
    float scale = 1.0f;
    if (p.kv.type == kKvI8) {
      float amax = 0.0f;
      bool finite = true;
      UNROLL for (int i = 0; i < kHeld; i++) {
        amax = max(amax, abs(x[i]));
        finite = finite && cache_finite(x[i]);
      }
      scale = cache_scale(amax, finite);
      if (lane == 0) *(DEVICE float*)(pages + kv_scale_at(p.kv, page, row, values)) = scale;
    }
    DEVICE uchar* to_row = pages + kv_row_at(p.kv, page, row, values);
    const int dim = values ? p.kv.v_dim : p.kv.head_dim;
    const int padded = p.kv.type == kKvF16 || p.kv.type == kKvBF16 ? (values ? p.kv.v_row : p.kv.k_row) / 2 : dim;
    cache_store<kHeld>(to_row, p.kv.type, padded, x, scale, lane);
  }

  // Heads [first, last) of one token, all of 32 * kHeld elements, some at a time: their loads are in flight together,
  // and a lane holds both elements of a pair, so that nothing goes through threadgroup memory.
  static FN void whole_heads(CONSTANT const QkvToCacheParams& p, DEVICE T* q_row, DEVICE const T* from,
                             DEVICE uchar* pages, i64 slot, int first, int last, bool query, bool values, bool normed,
                             THREAD const float* weight, THREAD const float* cosine, THREAD const float* sine,
                             uint lane) {
    enum { kAtOnce = 16 / kHeld, kDim = 32 * kHeld };
    for (int head = first; head < last; head += kAtOnce) {
      T loaded[kAtOnce][kHeld];
      UNROLL for (int h = 0; h < kAtOnce; h++) {
        UNROLL for (int i = 0; i < kHeld; i++) {
          if (head + h < last) loaded[h][i] = from[h * kDim + (int)lane + 32 * i];
        }
      }
      UNROLL for (int h = 0; h < kAtOnce; h++) {
        if (head + h < last) {
          float x[kHeld];
          UNROLL for (int i = 0; i < kHeld; i++) x[i] = to_f(loaded[h][i]);
          if (normed) Head::norm(x, kDim, p.eps, weight, lane);
          if (!values) Head::rotate_halves(x, cosine, sine);
          if (query) {
            UNROLL for (int i = 0; i < kHeld; i++) q_row[h * kDim + (int)lane + 32 * i] = to<T>(x[i]);
          } else if (slot >= 0) {
            write(x, p, pages, slot, head + h, values, lane);
          }
        }
      }
      from += kAtOnce * kDim;
      q_row += kAtOnce * kDim;
    }
  }

  static FN void run(Ctx c, CONSTANT const QkvToCacheParams& p, TGROUP QkvSmem& sm, DEVICE T* q, DEVICE const T* k,
                     DEVICE const T* v, DEVICE uchar* pages, DEVICE const i64* slots, DEVICE const int* positions,
                     DEVICE const float* q_norm, DEVICE const float* k_norm, DEVICE const float* cosines,
                     DEVICE const float* sines) {
    const uint units = (uint)(p.q_units + 2 * p.kv_units);
    const uint unit = c.tgx * kCacheRows + c.sg;
    const i64 token = unit / units;
    if (token >= p.tokens) {
      GRID_WAIT();
      return;
    }
    const int in_token = (int)(unit % units);
    const bool query = in_token < p.q_units;
    const bool values = in_token >= p.q_units + p.kv_units;
    const int first = (query ? in_token : in_token - p.q_units - (values ? p.kv_units : 0)) * p.each;
    const int last = min(first + p.each, query ? p.heads : p.kv.kv_heads);
    const int dim = values ? p.kv.v_dim : p.kv.head_dim;
    DEVICE T* q_row = q + token * p.q_stride + (i64)first * dim;
    DEVICE const T* from = query    ? (DEVICE const T*)q_row
                           : values ? v + token * p.v_stride + (i64)first * dim
                                    : k + token * p.k_stride + (i64)first * dim;
    const bool normed = !values && (query ? p.normed_q : p.normed_k) != 0;
    // Slots and positions were copied in before the step's first launch, so they may be read before the wait.
    const i64 slot = query ? 0 : slots[token];
    const int rot_dim = values ? 0 : p.rot_dim;
    const i64 at = rot_dim > 0 ? (i64)positions[token] * (rot_dim / 2) : 0;
    float weight[kHeld], cosine[kHeld], sine[kHeld];
    Head::load(weight, query ? q_norm : k_norm, normed ? dim : 0, c.lane);
    Head::load_pairs(cosine, cosines + at, rot_dim, p.interleaved, c.lane);
    Head::load_pairs(sine, sines + at, rot_dim, p.interleaved, c.lane);
    GRID_WAIT();
    if (p.whole_heads != 0 && dim == 32 * kHeld) {
      whole_heads(p, q_row, from, pages, slot, first, last, query, values, normed, weight, cosine, sine, c.lane);
      return;
    }
    for (int head = first; head < last; head++) {
      float x[kHeld];
      UNROLL for (int i = 0; i < kHeld; i++) {
        const int d = (int)c.lane + 32 * i;
        x[i] = d < dim ? to_f(from[d]) : 0.0f;
      }
      if (normed) Head::norm(x, dim, p.eps, weight, c.lane);
      if (rot_dim > 0) {
        if (head > first) SG_BARRIER();  // the other lanes have read the head before
        Head::rotate(x, sm.x[c.sg], rot_dim, p.interleaved, cosine, sine, c.lane);
      }
      if (query) {
        UNROLL for (int i = 0; i < kHeld; i++) {
          const int d = (int)c.lane + 32 * i;
          if (d < dim) q_row[d] = to<T>(x[i]);
        }
        q_row += dim;
      } else if (slot >= 0) {
        write(x, p, pages, slot, head, values, c.lane);
      }
      from += dim;
    }
  }
};

template <typename T>
struct QkvToCache {
  enum { kThreads = 32 * kCacheRows };
  typedef QkvSmem Smem;

  static FN void run(Ctx c, CONSTANT const QkvToCacheParams& p, TGROUP Smem& sm, DEVICE T* q, DEVICE const T* k,
                     DEVICE const T* v, DEVICE uchar* pages, DEVICE const i64* slots, DEVICE const int* positions,
                     DEVICE const float* q_norm, DEVICE const float* k_norm, DEVICE const float* cosines,
                     DEVICE const float* sines) {
    if (p.kv.head_dim <= 128 && p.kv.v_dim <= 128) {  // half of the code of larger heads
      QkvHeadToCache<T, 4>::run(c, p, sm, q, k, v, pages, slots, positions, q_norm, k_norm, cosines, sines);
    } else {
      QkvHeadToCache<T, 8>::run(c, p, sm, q, k, v, pages, slots, positions, q_norm, k_norm, cosines, sines);
    }
  }
};
KERNEL_EARLY(qkv_to_cache_f32, QkvToCache<float>, QkvToCacheParams, float, const float, const float, uchar, const i64,
             const int, const float, const float, const float, const float)
KERNEL_EARLY(qkv_to_cache_f16, QkvToCache<half>, QkvToCacheParams, half, const half, const half, uchar, const i64,
             const int, const float, const float, const float, const float)
KERNEL_EARLY(qkv_to_cache_bf16, QkvToCache<bfloat>, QkvToCacheParams, bfloat, const bfloat, const bfloat, uchar,
             const i64, const int, const float, const float, const float, const float)

// A simdgroup of unit 0 holds the latent vector and its key in registers: element lane + 32 * i of them in x[i]. As
// above, what the preceding launch does not write is loaded before GRID_WAIT().
template <typename T>
struct MlaToCache {
  enum { kThreads = 32 * kCacheRows, kHeld = kAttentionMaxDim / 32 };
  typedef NoSmem Smem;

  // Where element d of the rotated elements is in its pair.
  struct Place {
    int pair, other;  // the pair, and the pair's other element
    bool first;
  };
  static FN Place place(CONSTANT const MlaToCacheParams& p, int d) {
    Place at;
    at.pair = QkvHead<T, 1>::pair_of(d, p.rot_dim, p.interleaved);
    const int first = rotate_first(at.pair, p.interleaved);
    const int second = rotate_second(at.pair, p.rot_dim / 2, p.interleaved);
    at.first = d == first;
    at.other = at.first ? second : first;
    return at;
  }
  static FN float rotated(bool first, float x, float other, float cosine, float sine) {
    const float2 y = rotate_pair(first ? x : other, first ? other : x, cosine, sine);
    return to_f(to<T>(first ? y.x : y.y));
  }

  static FN void query(CONSTANT const MlaToCacheParams& p, DEVICE T* out, DEVICE const T* q,
                       DEVICE const float* cosines, DEVICE const float* sines, uint lane) {
    for (int d = (int)lane; d < p.rot_dim; d += 32) {
      const Place at = place(p, d);
      out[d] = to<T>(rotated(at.first, to_f(q[d]), to_f(q[at.other]), cosines[at.pair], sines[at.pair]));
    }
  }

  static FN void write(THREAD const float* x, CONSTANT const MlaToCacheParams& p, DEVICE uchar* pages, i64 slot,
                       uint lane) {
    const i64 page = slot / p.kv.block_size;
    const int row = (int)(slot - page * p.kv.block_size);
    float scale = 1.0f;
    if (p.kv.type == kKvI8) {
      float amax = 0.0f;
      bool finite = true;
      UNROLL for (int i = 0; i < kHeld; i++) {
        amax = max(amax, abs(x[i]));
        finite = finite && cache_finite(x[i]);
      }
      scale = cache_scale(amax, finite);
      if (lane == 0) *(DEVICE float*)(pages + kv_scale_at(p.kv, page, row, false)) = scale;
    }
    DEVICE uchar* to_row = pages + kv_row_at(p.kv, page, row, false);
    const int padded = p.kv.type == kKvF16 || p.kv.type == kKvBF16 ? p.kv.k_row / 2 : p.kv.head_dim;
    cache_store<kHeld>(to_row, p.kv.type, padded, x, scale, lane);
  }

  static FN void run(Ctx c, CONSTANT const MlaToCacheParams& p, TGROUP Smem& sm, DEVICE T* q_latent, DEVICE const T* q,
                     DEVICE const T* latent, DEVICE uchar* pages, DEVICE const i64* slots, DEVICE const int* positions,
                     DEVICE const float* norm, DEVICE const float* cosines, DEVICE const float* sines) {
    const int units = 1 + p.heads, rank = p.kv.v_dim;
    const i64 unit = (i64)c.tgx * kCacheRows + c.sg;
    const i64 token = unit / units;
    if (token >= p.tokens) {
      GRID_WAIT();
      return;
    }
    const int head = (int)(unit - token * units) - 1;
    const i64 angles = (i64)positions[token] * (p.rot_dim / 2);
    if (head >= 0) {
      GRID_WAIT();
      query(p, q_latent + token * p.q_latent_stride + (i64)head * p.kv.head_dim + rank,
            q + token * p.q_stride + (i64)(head + 1) * p.q_head - p.rot_dim, cosines + angles, sines + angles, c.lane);
      return;
    }
    const i64 slot = slots[token];
    float factor[kHeld], sine[kHeld];  // the norm's weight, or the cosine
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int d = (int)c.lane + 32 * i;
      factor[i] = sine[i] = 0.0f;
      if (d < rank) {
        factor[i] = norm[d];
      } else if (d < p.kv.head_dim) {
        const Place at = place(p, d - rank);
        factor[i] = cosines[angles + at.pair];
        sine[i] = sines[angles + at.pair];
      }
    }
    GRID_WAIT();
    DEVICE const T* from = latent + token * p.latent_stride;
    float x[kHeld];
    float chains[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int d = (int)c.lane + 32 * i;
      x[i] = d < p.kv.head_dim ? to_f(from[d]) : 0.0f;
      const float square = d < rank ? x[i] : 0.0f;
      chains[i & 7] = fma(square, square, chains[i & 7]);
    }
    const float sum =
        simd_sum(norm_fold(chains[0], chains[1], chains[2], chains[3], chains[4], chains[5], chains[6], chains[7]));
    const float inverse = norm_inverse(sum, rank, p.eps);
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int d = (int)c.lane + 32 * i;
      if (d < rank) {
        x[i] = to_f(to<T>((x[i] * inverse) * factor[i]));
      } else if (d < p.kv.head_dim) {
        const Place at = place(p, d - rank);
        x[i] = rotated(at.first, x[i], to_f(from[rank + at.other]), factor[i], sine[i]);
      }
    }
    if (slot >= 0) write(x, p, pages, slot, c.lane);
  }
};
KERNEL_EARLY(mla_to_cache_f32, MlaToCache<float>, MlaToCacheParams, float, const float, const float, uchar, const i64,
             const int, const float, const float, const float)
KERNEL_EARLY(mla_to_cache_f16, MlaToCache<half>, MlaToCacheParams, half, const half, const half, uchar, const i64,
             const int, const float, const float, const float)
KERNEL_EARLY(mla_to_cache_bf16, MlaToCache<bfloat>, MlaToCacheParams, bfloat, const bfloat, const bfloat, uchar,
             const i64, const int, const float, const float, const float)
