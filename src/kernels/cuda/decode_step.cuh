// SPDX-License-Identifier: Apache-2.0
// All layers of a decode step of few sequences in one launch (sm_90a), with the bits of the ops one by one.
//
// With one sequence a layer is a handful of products that a chip does in microseconds, and what takes time is what
// stands between them: a launch that ends, one that begins, a row that travels. Here one threadgroup a multiprocessor
// stays for all ops of the program:
//  - Weights do not depend on anything, so a warp brings them in (and old positions of K and V), op after op, as far
//    ahead as the ring has slots.
//  - What an op gives goes to its readers through an exchange in memory: each entry carries the flag of its op beside
//    the value, so a reader asks for the entry itself until the flag is there. No barrier, no fence, no second trip.
//    An op reads all that the op before gave (attention: all of a kv head), so two exchange buffers in turn are enough:
//    whoever writes op i + 2 has seen all of op i + 1, whose writers had read all of op i.
//  - A tile is eight or sixteen rows of W, its chain one warp's, as in linear_few.cuh.
// Attention: a unit of the first part is 64 positions of a (sequence, kv head), its scores go to the exchange; a unit
// of the second is 16 columns of V of a (sequence, kv head, split), which makes the softmax of all its positions again;
// if there are several splits, a third part merges a head's.
//
// Flags count up from launch to launch (`epochs`, one for each threadgroup, each its own) and must not return: the host
// clears exchange and epochs before 2^24 launches. All threadgroups must run at once: one a multiprocessor, no more.
//
// Grid: (multiprocessors), kStepThreads, memory: step_shared_*() and the slots. Needs: k a multiple of 64, n of 8, all
// on 16-byte boundaries, out rows of an even number of elements.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/linear_chain.cuh"
#include "kernels/params/decode_step.h"
#include "kernels/qkv_head.h"

typedef unsigned long long u64;

// ---- the exchange ----

HOPPER_FN u64 step_entry(uint value, uint flag) {
  return (u64)flag << 32 | value;
}
HOPPER_FN u64 step_ask(const u64* from) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
  return v;
}
HOPPER_FN void step_ask2(const u64* from, u64* v) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(v[0]), "=l"(v[1]) : "l"(from) : "memory");
}
HOPPER_FN bool step_has(u64 v, uint flag) {
  return (uint)(v >> 32) == flag;
}
HOPPER_FN void step_tell(u64* to, uint value, uint flag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(step_entry(value, flag)) : "memory");
}
HOPPER_FN void step_tell2(u64* to, uint first, uint second, uint flag) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(step_entry(first, flag)),
               "l"(step_entry(second, flag))
               : "memory");
}
// Asked in vain this often (seconds), something is broken: better a fault than a program that hangs.
HOPPER_FN void step_again(uint& times) {
  if (++times > 20000000u) __trap();
}

// ---- places in the ring ----

struct StepPlace {
  int slot;
  uint parity;
  HOPPER_FN StepPlace after(StepPlace p, int count, int slots) {
    p.slot += count;
    while (p.slot >= slots) {
      p.slot -= slots;
      p.parity ^= 1;
    }
    return p;
  }
  // The same for a count of at most `slots`, without a branch.
  HOPPER_FN StepPlace after_few(StepPlace p, int count, int slots) {
    const int slot = p.slot + count, over = slot >= slots ? 1 : 0;
    return {over != 0 ? slot - slots : slot, p.parity ^ (uint)over};
  }
};

// Whether the slot is there, without waiting; and an arrival of one lane without a branch.
HOPPER_FN bool step_landed(uint barrier, uint parity) {
  uint there;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(there)
               : "r"(barrier), "r"(parity)
               : "memory");
  return there != 0;
}
HOPPER_FN void step_free(uint barrier, bool mine) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(barrier),
               "r"(mine ? 1 : 0)
               : "memory");
}

// A part with registers of its own: what it needs stands in shared memory.
#define STEP_PART static __device__ __noinline__

template <typename T, int D>
struct HopperDecodeStep {
  enum {
    kThreads = 32 * kStepWarps,        // that compute
    kWeightRow = kStepChunk * 2 + 16,  // bytes; eight rows meet all banks
    kKeyRow = D * 2 + 16,              // bytes
    kValueRow = kStepSlice * 2,        // bytes
    kValueSlot = 512,                  // positions
    kSlices = D / kStepSlice,
    kQueryStride = D + 8,
    kWeightStride = kHopperSplit + 8,  // of T(p)
    kBegin = 1024 + 8 * 256 * 4 + 2 * 16 * 16 * 4 + 16 * 16 * 4 * 4 + 16 * kQueryStride * 2,
    kHeld = 4  // elements of a row to norm that a thread keeps: rows of up to 1024 are asked for once
  };
  typedef QkvHead<T, D / 32> Head;

  struct KeyUnit {
    int seq, kv_head, tile;
  };
  struct ValueUnit {
    int seq, kv_head, split, slice;
  };

  // What a threadgroup keeps at the beginning of its memory. Then come the program, x or T(p), and the ring.
  struct Shared {
    u64 full[kStepMostSlots];   // 32 arrive
    u64 empty[kStepMostSlots];  // one arrives
    DecodeStepParams p;
    u64* exchange;
    u64* scores;
    u64* partials;
    i64 slots[kStepRows];
    int positions[kStepRows], contexts[kStepRows];
    uint ring;  // address of the first slot
    uint epoch;
    int group;  // query heads of a kv head
    // This threadgroup's units of attention: the first, and how many.
    int key_count, value_count;
    KeyUnit key;
    ValueUnit value;
    alignas(16) float floats[8][256];   // chains of a norm's sum, heads while they turn
    float most[16][16];                 // rows, tiles: maxima; rows from 8 on: the maximum up to this tile
    float factor[16][16];               // rows, tiles
    float sums[16][16][4];              // tiles, rows, t
    alignas(16) T q[16][kQueryStride];  // T(q * c)
  };
  static_assert(sizeof(Shared) <= kBegin, "as the host counts");
  static_assert(kThreads == 256, "as meet() and the norm's chains count");

  HOPPER_FN Shared& mine() {
    extern __shared__ __align__(128) unsigned char step_memory[];
    return *(Shared*)step_memory;
  }
  HOPPER_FN StepOp* program_of(Shared& s) { return (StepOp*)((unsigned char*)&s + kBegin); }
  // x [rows][k + 8], or T(p) [16][kWeightStride].
  HOPPER_FN T* rows_of(Shared& s) { return (T*)((unsigned char*)&s + s.p.shared_fixed); }
  HOPPER_FN uint full(const Shared& s, int slot) { return ptx_shared_address(s.full + slot); }
  HOPPER_FN uint empty(const Shared& s, int slot) { return ptx_shared_address(s.empty + slot); }
  HOPPER_FN uint slot_at(const Shared& s, int slot) { return s.ring + slot * kStepSlotBytes; }
  // The warps that compute.
  HOPPER_FN void meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

  // Op i: its flag, where it takes and where it gives.
  HOPPER_FN uint flag_of(const Shared& s, int i) { return s.epoch << 8 | (uint)(i + 1); }
  HOPPER_FN const u64* taken_by(const Shared& s, int i) { return s.exchange + ((i + 1) & 1) * s.p.exchanged; }
  HOPPER_FN u64* given_by(const Shared& s, int i) { return s.exchange + (i & 1) * s.p.exchanged; }

  // ---- how an op's work is cut ----

  HOPPER_FN int tiles_of(const StepLinearOp& op) { return op.each + ((int)blockIdx.x < op.rest ? 1 : 0); }
  // Tiles at a time: a warp each, and their chunks fit the ring.
  HOPPER_FN int lot_of(const StepLinearOp& op, const Shared& s) {
    return min((int)kStepWarps, op.halves == 2 ? s.p.slots / 2 : s.p.slots);
  }

  HOPPER_FN int key_tiles(const Shared& s, int seq) { return (s.contexts[seq] + kHopperTile - 1) / kHopperTile; }
  HOPPER_FN int splits_of(const Shared& s, int seq) { return (s.contexts[seq] + kHopperSplit - 1) / kHopperSplit; }
  HOPPER_FN void next(const Shared& s, KeyUnit& u) {
    if (++u.tile < key_tiles(s, u.seq)) return;
    u.tile = 0;
    if (++u.kv_head < s.p.kv_heads) return;
    u.kv_head = 0;
    u.seq++;
  }
  HOPPER_FN void next(const Shared& s, ValueUnit& u) {
    if (++u.slice < kSlices) return;
    u.slice = 0;
    if (++u.split < splits_of(s, u.seq)) return;
    u.split = 0;
    if (++u.kv_head < s.p.kv_heads) return;
    u.kv_head = 0;
    u.seq++;
  }
  // Positions of the unit's split.
  HOPPER_FN int length(const Shared& s, const ValueUnit& u) {
    return min(s.contexts[u.seq] - u.split * kHopperSplit, (int)kHopperSplit);
  }
  HOPPER_FN int value_slots(int length) { return (length + kValueSlot - 1) / kValueSlot; }

  // Of `count` units, the first of threadgroup `group`: neighbours go together, so that they share what they can.
  HOPPER_FN int first_unit(int count, int group) { return (int)((uint)count * (uint)group / gridDim.x); }
  // All layers have the same cut, so it is made once.
  HOPPER_FN void cut_attention(Shared& s) {
    const int kv_heads = s.p.kv_heads;
    int tiles = 0, splits = 0;
    for (int i = 0; i < s.p.rows; i++) {
      tiles += key_tiles(s, i);
      splits += splits_of(s, i);
    }
    const int keys = tiles * kv_heads, values = splits * kv_heads * kSlices, groups = (int)gridDim.x;
    int key = first_unit(keys, blockIdx.x), value = first_unit(values, blockIdx.x);
    s.key_count = first_unit(keys, blockIdx.x + 1) - key;
    s.value_count = first_unit(values, blockIdx.x + 1) - value;
    if (keys + values <= groups) {  // a threadgroup of its own for each
      key = (int)blockIdx.x;
      value = (int)blockIdx.x - (groups - values);
      s.key_count = key < keys ? 1 : 0;
      s.value_count = value >= 0 ? 1 : 0;
      key = min(key, keys - 1);
      value = max(value, 0);
    }
    int seq = 0;
    while (seq + 1 < s.p.rows && key >= key_tiles(s, seq) * kv_heads) key -= key_tiles(s, seq++) * kv_heads;
    s.key = {seq, key / key_tiles(s, seq), key % key_tiles(s, seq)};
    seq = 0;
    while (seq + 1 < s.p.rows && value >= splits_of(s, seq) * kv_heads * kSlices) {
      value -= splits_of(s, seq++) * kv_heads * kSlices;
    }
    s.value = {seq, value / kSlices / splits_of(s, seq), value / kSlices % splits_of(s, seq), value % kSlices};
  }

  // ---- the warp that brings things in ----

  HOPPER_FN void expect(const Shared& s, int slot, int bytes, int lane) {
    if (lane == 0) {
      hopper_barrier_expect(full(s, slot), bytes);
    } else {
      hopper_barrier_arrive(full(s, slot));
    }
    __syncwarp();
  }

  HOPPER_FN void bring_linear(const StepLinearOp& op, const Shared& s, StepPlace& at, int lane) {
    const int count = tiles_of(op), k = op.k, slots = s.p.slots, halves = op.halves;
    const bool gated = op.epilogue == kHopperGated;
    // A tile's second eight rows: the up of its gate, or those that follow.
    const int tile_rows = gated ? 8 : 8 * halves, second = gated ? op.n / 2 : 8;
    const int lot = lot_of(op, s);
    for (int first = 0; first < count; first += lot) {
      const int end = min(first + lot, count);
      for (int from_k = 0; from_k < k; from_k += kStepChunk) {
        const int bytes = min(k - from_k, (int)kStepChunk) * 2;
        for (int i = first; i < end; i++) {
          const T* from =
              (const T*)op.w + (i64)(((int)blockIdx.x + i * (int)gridDim.x) * tile_rows + (lane & 7)) * k + from_k;
          for (int part = 0; part < halves; part++) {
            hopper_barrier_wait(empty(s, at.slot), at.parity ^ 1);
            expect(s, at.slot, 8 * bytes, lane);
            if (lane < 8) {
              hopper_copy_bulk(slot_at(s, at.slot) + lane * kWeightRow, from + (i64)part * second * k, bytes,
                               full(s, at.slot));
            }
            at = StepPlace::after(at, 1, slots);
          }
        }
      }
    }
  }

  // The page of each block of 256 positions, a lane each; blocks have eight positions and more.
  HOPPER_FN i64 page_of(const StepAttentionOp& op, int seq, int start, int end, int lane) {
    const int block = min((start >> op.block_shift) + lane, (end - 1) >> op.block_shift);
    return op.block_tables[seq * op.max_blocks + block] * op.page_stride;
  }
  // Where position `position` of kv head 0 is, `pages` being those from position `start` on.
  HOPPER_FN i64 row_at(const StepAttentionOp& op, i64 pages, int start, int position, int row_bytes) {
    const i64 page = __shfl_sync(0xffffffffu, pages, (position >> op.block_shift) - (start >> op.block_shift));
    return page + (position & ((1 << op.block_shift) - 1)) * row_bytes;
  }

  // Positions of earlier steps alone: this step's own is written by who computes it.
  HOPPER_FN void bring_keys(const StepAttentionOp& op, const Shared& s, StepPlace& at, int lane) {
    const int row_bytes = s.p.kv_heads * D * 2;
    KeyUnit u = s.key;
    for (int i = 0; i < s.key_count; i++, next(s, u)) {
      const int start = u.tile * kHopperTile, all = s.contexts[u.seq];
      const i64 pages = page_of(op, u.seq, start, all, lane);
      const int count = max(0, min(all - 1 - start, (int)kHopperTile));
      hopper_barrier_wait(empty(s, at.slot), at.parity ^ 1);
      expect(s, at.slot, count * D * 2, lane);
      UNROLL for (int row = lane; row < kHopperTile; row += 32) {
        const i64 offset = row_at(op, pages, start, min(start + row, all - 1), row_bytes) + u.kv_head * (D * 2);
        if (row < count) {
          hopper_copy_bulk(slot_at(s, at.slot) + row * kKeyRow, op.pages + offset, D * 2, full(s, at.slot));
        }
      }
      at = StepPlace::after(at, 1, s.p.slots);
    }
  }

  // Rows of 32 bytes, their two pieces turned so that eight rows meet all banks.
  HOPPER_FN uint value_at(int row, int piece) { return row * kValueRow + ((piece ^ ((row >> 2) & 1)) << 4); }

  HOPPER_FN void bring_values(const StepAttentionOp& op, const Shared& s, StepPlace& at, int lane) {
    const int row_bytes = s.p.kv_heads * D * 2;
    ValueUnit u = s.value;
    for (int i = 0; i < s.value_count; i++, next(s, u)) {
      const char* from =
          op.pages + ((i64)row_bytes << op.block_shift) + u.kv_head * (D * 2) + u.slice * kValueRow + (lane & 1) * 16;
      const int all = s.contexts[u.seq], end = u.split * kHopperSplit + length(s, u);
      for (int first = u.split * kHopperSplit; first < end; first += kValueSlot) {
        hopper_barrier_wait(empty(s, at.slot), at.parity ^ 1);
        for (int start = first; start < min(first + kValueSlot, end); start += 256) {
          const i64 pages = page_of(op, u.seq, start, all, lane);
          const uint to = slot_at(s, at.slot) + (start - first) * kValueRow;
          const int rows = (min(end - start, 256) + 63) / 64 * 64;
#pragma unroll 4
          for (int row = lane >> 1; row < rows; row += 16) {
            const i64 offset = row_at(op, pages, start, min(start + row, all - 1), row_bytes);
            hopper_copy16_or_zero(to + value_at(row, lane & 1), from + offset, start + row < all - 1);
          }
        }
        hopper_barrier_arrive_copied(full(s, at.slot));
        at = StepPlace::after(at, 1, s.p.slots);
      }
    }
  }

  // What the launches before left, and the cut of attention, are there: told by the warps that compute, awaited by this
  // one.
  HOPPER_FN void tell_begun() {
    asm volatile("bar.arrive 2, 288;" ::: "memory");
  }
  HOPPER_FN void await_begun() {
    asm volatile("bar.sync 2, 288;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  static_assert(kStepThreads == 288, "as these count");

  STEP_PART void bring() {
    Shared& s = mine();
    const int lane = (int)threadIdx.x & 31;
    StepPlace at = {0, 0};
    bool alone = true;  // the others still wait for the launch before
#pragma unroll 1
    for (int i = 0; i < s.p.ops; i++) {
      const StepOp& op = program_of(s)[i];
      if (alone && op.kind == kStepAttention) {
        await_begun();
        alone = false;
      }
      if (op.kind == kStepLinear) {
        bring_linear(op.linear, s, at, lane);
      } else {
        bring_keys(op.attention, s, at, lane);
        bring_values(op.attention, s, at, lane);
      }
    }
    if (alone) await_begun();
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

  // ---- linear ----

  // Fragments of four steps.
  struct Window {
    uint w[4][4];
    uint x[2][4];
  };
  HOPPER_FN void fetch_w(Window& f, uint w) {
    UNROLL for (int i = 0; i < 4; i++) hopper_ldmatrix(f.w[i], w + 32 * i);
  }
  HOPPER_FN void fetch_x(Window& f, uint x) {
    UNROLL for (int i = 0; i < 2; i++) hopper_ldmatrix(f.x[i], x + 64 * i);
  }
  HOPPER_FN void fetch(Window& f, uint w, uint x) {
    fetch_w(f, w);
    fetch_x(f, x);
  }
  HOPPER_FN void multiply(float* acc, const Window& f) {
    UNROLL for (int i = 0; i < 4; i++) hopper_mma<T>(acc, f.w[i], f.x[i / 2][i % 2 * 2], f.x[i / 2][i % 2 * 2 + 1]);
  }

  // A chain that has begun: its first slot is there, and W's fragments of the first window.
  struct Begun {
    StepPlace at, second;  // slots of the first and of the second eight rows
    uint w;                // where the lane's fragments stand
    Window f;
  };
  HOPPER_FN uint lane_w(const Shared& s, int lane) {
    return s.ring + (lane & 7) * kWeightRow + (lane >> 4) * 16;
  }
  HOPPER_FN void begin(const Shared& s, Begun& c, StepPlace at, int halves, int lane) {
    c.at = at;
    c.second = StepPlace::after_few(at, halves - 1, s.p.slots);
    hopper_barrier_wait(full(s, c.at.slot), c.at.parity);
    if (halves == 2) hopper_barrier_wait(full(s, c.second.slot), c.second.parity);
    c.w = lane_w(s, lane) + ((lane & 8) != 0 ? c.second.slot : c.at.slot) * kStepSlotBytes;
    fetch_w(c.f, c.w);
  }

  // A tile's chain, its chunks `stride` slots apart: W as the 16-row operand (eight rows stand twice where there are no
  // more), x as the eight columns. What stands between two products must fit in their shadow, so there is next to no
  // branch, fragments come a window ahead, and the next slot is looked for early.
  HOPPER_FN void chain(Shared& s, float (&acc)[4], const Begun& begun, int stride, int k, int halves, int lane) {
    enum { kWindows = kStepChunk / 64 };
    const int slots = s.p.slots;
    const bool upper = (lane & 8) != 0, two = halves == 2;
    const uint barriers = full(s, 0), base_w = lane_w(s, lane);
    uint x = ptx_shared_address(rows_of(s) + min(lane & 7, s.p.rows - 1) * (k + 8)) + (lane >> 3) * 16;
    StepPlace at = begun.at, second = begun.second;
    uint w = begun.w;
    UNROLL for (int i = 0; i < 4; i++) acc[i] = 0.0f;
    Window f[2];
    f[0] = begun.f;
    fetch_x(f[0], x);
    int left = k / 64;  // windows
#pragma unroll 1
    while (left >= kWindows) {
#pragma unroll 1
      for (int i = 0; i < kWindows / 2 - 1; i++) {
        fetch(f[1], w + 128, x + 128);
        multiply(acc, f[0]);
        w += 256;
        x += 256;
        fetch(f[0], w, x);
        multiply(acc, f[1]);
      }
      const StepPlace old = at, old_second = second;
      left -= kWindows;
      at = StepPlace::after_few(at, stride, slots);
      second = StepPlace::after_few(at, halves - 1, slots);
      bool ready = step_landed(barriers + at.slot * 8, at.parity);
      if (two) ready = ready && step_landed(barriers + second.slot * 8, second.parity);
      fetch(f[1], w + 128, x + 128);
      multiply(acc, f[0]);
      x += 256;
      w = base_w + (upper ? second.slot : at.slot) * kStepSlotBytes;
      if (left > 0) {
        if (!ready) {
          hopper_barrier_wait(barriers + at.slot * 8, at.parity);
          if (two) hopper_barrier_wait(barriers + second.slot * 8, second.parity);
        }
        fetch(f[0], w, x);
      }
      multiply(acc, f[1]);  // now all of the old slot has gone through registers
      step_free(barriers + (kStepMostSlots + old.slot) * 8, lane == 0);
      step_free(barriers + (kStepMostSlots + old_second.slot) * 8, lane == 0 && two);
    }
    if (left == 0) return;
#pragma unroll 1
    while (true) {  // a last chunk that is shorter
      multiply(acc, f[0]);
      if (--left == 0) break;
      w += 128;
      x += 128;
      fetch(f[0], w, x);
    }
    step_free(barriers + (kStepMostSlots + at.slot) * 8, lane == 0);
    step_free(barriers + (kStepMostSlots + second.slot) * 8, lane == 0 && two);
  }

  HOPPER_FN float rounded(float acc, bool biased, float bias) {
    const float y = to_f(to<T>(acc));
    return biased ? to_f(to<T>(y + bias)) : y;
  }

  // What a tile needs beside its products, asked for ahead. Lane (g, t) has rows g and g + 8 of the tile and rows 2 t,
  // 2 t + 1 of x.
  struct Ahead {
    float bias[2];    // of rows g and g + 8
    float before[4];  // of the residual, as the sums are ordered
    u64* tell;        // entries of row 2 t: of column g, or of the pair that it belongs to
    char* out;        // row 2 t, column g
  };
  HOPPER_FN void look_ahead(const StepLinearOp& op, const Shared& s, Ahead& a, int number, u64* give, int lane) {
    const bool gated = op.epilogue == kHopperGated, residual = op.epilogue == kHopperResidual;
    const int halves = op.halves, m = (lane & 3) * 2, columns = gated ? op.n / 2 : op.n;
    const int n = number * (gated ? 8 : 8 * halves) + (lane >> 2);
    a.tell = residual ? give + m * columns + n : give + (m * columns + n) / 2;
    a.out = (char*)op.out + ((i64)m * op.out_stride + n) * (residual ? 4 : 2);
    a.bias[0] = a.bias[1] = 0.0f;
    UNROLL for (int i = 0; i < 4; i++) a.before[i] = 0.0f;
    if (op.bias != nullptr) {
      a.bias[0] = op.bias[n];
      if (halves == 2) a.bias[1] = op.bias[n + (gated ? op.n / 2 : 8)];
    }
    if (residual) {
      const float* from = op.residual + (i64)m * op.residual_stride + n;
      UNROLL for (int i = 0; i < 4; i++) {
        if (m + (i & 1) < s.p.rows && (i < 2 || halves == 2)) {
          a.before[i] = __ldcg(from + (i & 1) * op.residual_stride + 8 * (i >> 1));
        }
      }
    }
  }

  HOPPER_FN void tile(const StepLinearOp& op, Shared& s, const Ahead& a, const Begun& begun, int stride, uint flag,
                      int lane) {
    const bool gated = op.epilogue == kHopperGated, residual = op.epilogue == kHopperResidual;
    const bool biased = op.bias != nullptr;
    const int g = lane >> 2, m = (lane & 3) * 2, rows = s.p.rows, parts = gated ? 1 : op.halves;
    const int columns = gated ? op.n / 2 : op.n, out_stride = op.out_stride;
    const float scale = op.scale;
    float acc[4];
    chain(s, acc, begun, stride, op.k, op.halves, lane);
    UNROLL for (int j = 0; j < 2; j++) {
      if (j == 1 && rows == 1) break;
      float y[2] = {rounded(acc[j], biased, a.bias[0]), rounded(acc[j + 2], biased, a.bias[1])};
      if (gated) y[0] = activate_glu(op.activation, op.limit, y[0], y[1]);
      const bool mine = m + j < rows;
      UNROLL for (int part = 0; part < 2; part++) {
        if (part == parts) break;
        if (residual) {
          const float sum = fma(y[part], scale, a.before[j + 2 * part]);
          if (mine) {
            step_tell(a.tell + j * columns + 8 * part, as_uint(sum), flag);
            ((float*)a.out)[j * out_stride + 8 * part] = sum;
          }
        } else {
          // Pairs of columns travel together: rows g and g + 1 are four lanes apart.
          const uint pair = hopper_pack<T>(y[part], __shfl_down_sync(0xffffffffu, y[part], 4));
          if (mine && (g & 1) == 0) {
            step_tell(a.tell + j * (columns / 2) + 4 * part, pair, flag);
            *(uint*)((T*)a.out + j * out_stride + 8 * part) = pair;
          }
        }
      }
    }
  }

  // x in T, from the op before: pieces of four.
  HOPPER_FN void take_rows(int k, Shared& s, const u64* taken, uint flag, int tid) {
    const int in_row = k / 4;
#pragma unroll 1
    for (int row = 0; row < s.p.rows; row++) {
      T* to_row = rows_of(s) + row * (k + 8);
      const u64* from_row = taken + (i64)row * (k / 2);
#pragma unroll 1
      for (int done = 0; done < in_row; done += 3 * kThreads) {
        const int first = done + tid;
        u64 v[3][2];
        bool there;
        uint times = 0;
        do {
          there = true;
          UNROLL for (int i = 0; i < 3; i++) {
            v[i][0] = v[i][1] = step_entry(0, flag);
            if (first + i * kThreads < in_row) step_ask2(from_row + 2 * (first + i * kThreads), v[i]);
          }
          UNROLL for (int i = 0; i < 3; i++) there = there && step_has(v[i][0], flag) && step_has(v[i][1], flag);
          step_again(times);
        } while (!simd_all(there));
        UNROLL for (int i = 0; i < 3; i++) {
          const int piece = first + i * kThreads;
          if (piece < in_row) *(uint2*)(to_row + piece * 4) = make_uint2((uint)v[i][0], (uint)v[i][1]);
        }
      }
    }
  }

  // x in T, from memory.
  HOPPER_FN void read_rows(const StepLinearOp& op, Shared& s, int tid) {
    for (int row = 0; row < s.p.rows; row++) {
      for (int k = tid * 8; k < op.k; k += kThreads * 8) {
        *(uint4*)(rows_of(s) + row * (op.k + 8) + k) =
            __ldcg((const uint4*)((const T*)op.x + (i64)row * op.x_stride + k));
      }
    }
  }

  // Elements tid, tid + 256, ... from `first` on of a row of x in float, kHeld of them, zeros past its end.
  HOPPER_FN void take_floats(const StepLinearOp& op, float (&held)[kHeld], int row, int first, const u64* taken,
                             uint flag) {
    if (op.x != nullptr) {
      UNROLL for (int i = 0; i < kHeld; i++) {
        const int k = first + i * kThreads;
        held[i] = k < op.k ? __ldcg((const float*)op.x + (i64)row * op.x_stride + k) : 0.0f;
      }
      return;
    }
    const u64* from = taken + (i64)row * op.k + first;
    bool there;
    uint times = 0;
    do {
      u64 v[kHeld];
      there = true;
      UNROLL for (int i = 0; i < kHeld; i++) {
        v[i] = step_entry(0, flag);
        if (first + i * kThreads < op.k) v[i] = step_ask(from + i * kThreads);
      }
      UNROLL for (int i = 0; i < kHeld; i++) {
        there = there && step_has(v[i], flag);
        held[i] = as_float((uint)v[i]);
      }
      step_again(times);
    } while (!simd_all(there));
  }

  // x in float, through the norm. A thread has one chain of norm_sum.h.
  HOPPER_FN void norm_rows(const StepLinearOp& op, Shared& s, const u64* taken, uint flag, int tid) {
    const int k = op.k, last = (k - 1) / (kHeld * kThreads) * (kHeld * kThreads);  // where the last piece begins
    float weight[kHeld];
    UNROLL for (int i = 0; i < kHeld; i++) {
      weight[i] = last + tid + i * kThreads < k ? op.norm[last + tid + i * kThreads] : 0.0f;
    }
#pragma unroll 1
    for (int row = 0; row < s.p.rows; row++) {
      float held[kHeld], sum = 0.0f;
#pragma unroll 1
      for (int first = 0; first <= last; first += kHeld * kThreads) {
        take_floats(op, held, row, first + tid, taken, flag);
        UNROLL for (int i = 0; i < kHeld; i++) sum = fma(held[i], held[i], sum);
      }
      float* chains = s.floats[row & 1];
      chains[tid] = sum;
      meet();
      const float* c = chains + (tid & 31);
      const float all = simd_sum(norm_fold(c[0], c[32], c[64], c[96], c[128], c[160], c[192], c[224]));
      // Where k is a power of two, dividing by it is multiplying.
      const float inverse =
          op.inverse_k > 0.0f ? 1.0f / sqrt(all * op.inverse_k + op.eps) : norm_inverse(all, k, op.eps);
      T* to_row = rows_of(s) + row * (k + 8) + tid;
      UNROLL for (int i = 0; i < kHeld; i++) {
        if (last + tid + i * kThreads < k) to_row[last + i * kThreads] = to<T>((held[i] * inverse) * weight[i]);
      }
#pragma unroll 1
      for (int first = 0; first < last; first += kHeld * kThreads) {  // a long row once more
        take_floats(op, held, row, first + tid, taken, flag);
        UNROLL for (int i = 0; i < kHeld; i++) {
          to_row[first + i * kThreads] = to<T>((held[i] * inverse) * op.norm[first + tid + i * kThreads]);
        }
      }
    }
  }

  STEP_PART StepPlace linear(int i, StepPlace at) {
    Shared& s = mine();
    const StepLinearOp& op = program_of(s)[i].linear;
    const int tid = (int)threadIdx.x, count = tiles_of(op), warp = tid >> 5, lane = tid & 31;
    if (count == 0) return at;
    const uint flag = flag_of(s, i);
    const int groups = (int)gridDim.x, chunks = (op.k + kStepChunk - 1) / kStepChunk, halves = op.halves;
    const int slots = s.p.slots, lot = lot_of(op, s);
    meet();  // nobody reads the rows of the op before
    Ahead ahead;
    Begun begun;
    const auto get_ready = [&](int first) {
      look_ahead(op, s, ahead, (int)blockIdx.x + (first + warp) * groups, given_by(s, i), lane);
      begin(s, begun, StepPlace::after_few(at, warp * halves, slots), halves, lane);
    };
    if (warp < min(count, lot)) get_ready(0);
    if (op.norm != nullptr) {
      norm_rows(op, s, taken_by(s, i), flag - 1, tid);
    } else if (op.x != nullptr) {
      read_rows(op, s, tid);
    } else {
      take_rows(op.k, s, taken_by(s, i), flag - 1, tid);
    }
    meet();
#pragma unroll 1
    for (int first = 0; first < count; first += lot) {
      const int now = min(count - first, lot);
      if (warp < now) {
        if (first > 0) get_ready(first);
        tile(op, s, ahead, begun, now * halves, flag, lane);
      }
      at = StepPlace::after(at, now * halves * chunks, slots);
    }
    return at;
  }

  // ---- attention, first part: scores ----

  // Two elements of T at a time from the exchange, to `to` as floats: a head, by one warp.
  HOPPER_FN void take_head(float* to, const u64* taken, uint flag, int lane) {
    u64 v[D / 64];
    bool there;
    uint times = 0;
    do {
      there = true;
      UNROLL for (int i = 0; i < D / 64; i++) v[i] = step_ask(taken + lane + 32 * i);
      UNROLL for (int i = 0; i < D / 64; i++) there = there && step_has(v[i], flag);
      step_again(times);
    } while (!simd_all(there));
    UNROLL for (int i = 0; i < D / 64; i++) {
      const uint pair = (uint)v[i];
      *(float2*)(to + 2 * (lane + 32 * i)) =
          make_float2(to_f(from_bits16<T>((ushort)pair)), to_f(from_bits16<T>((ushort)(pair >> 16))));
    }
    __syncwarp();
  }

  HOPPER_FN T* page_row(const StepAttentionOp& op, const Shared& s, i64 slot, int kv_head, bool values) {
    const int block_size = 1 << op.block_shift;
    const i64 row = (values ? block_size : 0) + (slot & (block_size - 1));
    return (T*)(op.pages + (slot >> op.block_shift) * op.page_stride + (row * s.p.kv_heads + kv_head) * (D * 2));
  }

  // A head of the projection's row, by one warp: q's `head` to its row of s.q, or the new k and v of a kv head to their
  // page, and k to its row of the tile in the ring.
  HOPPER_FN void take_query(const StepAttentionOp& op, Shared& s, const u64* row, int seq, int head, int to_row,
                            uint flag, int warp, int lane) {
    float x[D / 32];
    turn(op, s, x, row + head * (D / 2), op.q_norm, seq, flag, warp, lane);
    UNROLL for (int i = 0; i < D / 32; i++) s.q[to_row][lane + 32 * i] = to<T>(to_f(to<T>(x[i])) * op.c);
  }
  HOPPER_FN void take_key(const StepAttentionOp& op, Shared& s, const u64* row, const KeyUnit& u, StepPlace at,
                          uint flag, int warp, int lane) {
    float x[D / 32];
    turn(op, s, x, row + (s.p.heads + u.kv_head) * (D / 2), op.k_norm, u.seq, flag, warp, lane);
    const int in_tile = (s.contexts[u.seq] - 1) % kHopperTile;
    hopper_barrier_wait(full(s, at.slot), at.parity);  // the slot is this unit's
    const uint to_ring = slot_at(s, at.slot) + in_tile * kKeyRow + lane * 2;
    UNROLL for (int i = 0; i < D / 32; i++) {
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to_ring + 64 * i), "h"(to_bits16(to<T>(x[i]))) : "memory");
    }
    const i64 slot = s.slots[u.seq];
    if (slot < 0) return;
    T* page = page_row(op, s, slot, u.kv_head, false);
    UNROLL for (int i = 0; i < D / 32; i++) page[lane + 32 * i] = to<T>(x[i]);
  }
  HOPPER_FN void take_value(const StepAttentionOp& op, Shared& s, const u64* row, const KeyUnit& u, uint flag, int warp,
                            int lane) {
    float* staged = s.floats[warp];
    take_head(staged, row + (s.p.heads + s.p.kv_heads + u.kv_head) * (D / 2), flag, lane);
    const i64 slot = s.slots[u.seq];
    if (slot < 0) return;
    T* page = page_row(op, s, slot, u.kv_head, true);
    UNROLL for (int i = 0; i < D / 32; i++) page[lane + 32 * i] = to<T>(staged[lane + 32 * i]);
  }

  // A head, normed and turned; x[i] is element lane + 32 i.
  HOPPER_FN void turn(const StepAttentionOp& op, Shared& s, float (&x)[D / 32], const u64* head, const float* norm,
                      int seq, uint flag, int warp, int lane) {
    float weight[D / 32], cosine[D / 32], sine[D / 32];
    const int rot_dim = op.rot_dim, interleaved = op.interleaved;
    const i64 at = (i64)s.positions[seq] * (rot_dim / 2);
    Head::ask(weight, norm, norm != nullptr ? D : 0, lane);
    Head::ask_pairs(cosine, op.cosines + at, rot_dim, interleaved, lane);
    Head::ask_pairs(sine, op.sines + at, rot_dim, interleaved, lane);
    float* staged = s.floats[warp];
    take_head(staged, head, flag, lane);
    UNROLL for (int i = 0; i < D / 32; i++) x[i] = staged[lane + 32 * i];
    __syncwarp();
    if (norm != nullptr) Head::norm(x, D, op.eps, weight, lane);
    if (rot_dim > 0) Head::rotate(x, staged, rot_dim, interleaved, cosine, sine, lane);
    __syncwarp();
  }

  // Eight positions a warp.
  HOPPER_FN void score(Shared& s, const KeyUnit& u, StepPlace at, uint flag, int warp, int lane) {
    hopper_barrier_wait(full(s, at.slot), at.parity);
    const uint row = slot_at(s, at.slot) + (warp * 8 + (lane & 7)) * kKeyRow + (lane >> 3) * 16;
    const uint query = ptx_shared_address(&s.q[lane & 15][(lane >> 4) * 8]);
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    uint a[D / 16][4], f[D / 32][4];
    UNROLL for (int k = 0; k < D / 32; k++) {
      hopper_ldmatrix(f[k], row + k * 64);
      hopper_ldmatrix(a[2 * k], query + k * 64);
      hopper_ldmatrix(a[2 * k + 1], query + k * 64 + 32);
    }
    UNROLL for (int k = 0; k < D / 16; k++)
        hopper_mma<T>(acc, a[k], f[k >> 1][(k & 1) * 2], f[k >> 1][(k & 1) * 2 + 1]);
    const int g = lane >> 2;
    if (g < s.group) {
      u64* to_row = s.scores + ((i64)u.seq * s.p.heads + u.kv_head * s.group + g) * s.p.positions;
      step_tell2(to_row + u.tile * kHopperTile + warp * 8 + (lane & 3) * 2, as_uint(acc[0]), as_uint(acc[1]), flag);
    }
  }

  STEP_PART StepPlace keys(int i, StepPlace at) {
    Shared& s = mine();
    const StepAttentionOp& op = program_of(s)[i].attention;
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31, group = s.group;
    const int projected = (s.p.heads + 2 * s.p.kv_heads) * (D / 2);
    const uint flag = flag_of(s, i);
    if (s.key_count == 0) return at;
    meet();  // all are through with the op before
    KeyUnit u = s.key;
    int has = -1;  // whose q is there
#pragma unroll 1
    for (int unit = 0; unit < s.key_count; unit++, next(s, u)) {
      const u64* row = taken_by(s, i) + (i64)u.seq * projected;
      const int head = u.seq * s.p.kv_heads + u.kv_head;
      const int tasks = u.tile == key_tiles(s, u.seq) - 1 ? group + 2 : group;
#pragma unroll 1
      for (int task = warp; task < tasks; task += kStepWarps) {
        if (task == group) {
          take_key(op, s, row, u, at, flag - 1, warp, lane);
        } else if (task > group) {
          take_value(op, s, row, u, flag - 1, warp, lane);
        } else if (head != has) {
          take_query(op, s, row, u.seq, u.kv_head * group + task, task, flag - 1, warp, lane);
        }
      }
      has = head;
      meet();
      score(s, u, at, flag, warp, lane);
      meet();
      if (tid == 0) {
        hopper_fence_async();  // the row of the new k was written by ordinary means
        hopper_barrier_arrive(empty(s, at.slot));
      }
      at = StepPlace::after(at, 1, s.p.slots);
    }
    return at;
  }

  // ---- second part: softmax and p V ----

  // An eighth of a row's tile: positions 32 h + 8 b + 2 t, + 1.
  struct Eighth {
    float p[4][2];
  };

  // Of the eighth's first position on `seen` are; none: nothing is asked for. Returns the maximum of what is seen.
  HOPPER_FN float take_scores(Eighth& mine, const u64* from, int seen, uint flag) {
    u64 v[4][2];
    bool there;
    uint times = 0;
    do {
      there = true;
      if (seen > 0) {
        UNROLL for (int b = 0; b < 4; b++) step_ask2(from + 8 * b, v[b]);
        UNROLL for (int b = 0; b < 4; b++) there = there && step_has(v[b][0], flag) && step_has(v[b][1], flag);
      }
      step_again(times);
    } while (!simd_all(there));
    float most = HOPPER_NONE;
    UNROLL for (int b = 0; b < 4; b++) {
      UNROLL for (int i = 0; i < 2; i++) {
        mine.p[b][i] = as_float((uint)v[b][i]);
        most = 8 * b + i < seen ? max(most, mine.p[b][i]) : most;
      }
    }
    return most;
  }

  // T(p) of a row's eighth, the sum of its pairs, and what the tile's maximum does to the tiles before.
  HOPPER_FN void weigh_eighth(Shared& s, const Eighth& mine, int row, int tile, int h, int t, int seen) {
    float before = HOPPER_NONE, now = HOPPER_NONE;
    UNROLL for (int i = 0; i < 16; i++) {
      const float most = s.most[row][i];
      before = i < tile ? max(before, most) : before;
      now = i <= tile ? max(now, most) : now;
    }
    const float base = now == HOPPER_NONE ? 0.0f : now;
    float e[4];
    T* to_row = rows_of(s) + row * kWeightStride + tile * kHopperTile + 32 * h + 2 * t;
    UNROLL for (int b = 0; b < 4; b++) {  // without branches: what is not seen is made and left
      const float e0 = q_exp2(mine.p[b][0] - base), e1 = q_exp2(mine.p[b][1] - base);
      const float p0 = 8 * b < seen ? e0 : 0.0f, p1 = 8 * b + 1 < seen ? e1 : 0.0f;
      e[b] = p0 + p1;
      *(uint*)(to_row + 8 * b) = hopper_pack<T>(p0, p1);
    }
    const float half_sum = hopper_tree(e[0], e[1], e[2], e[3]);
    const float sum = half_sum + simd_shuffle_xor(half_sum, 4u);
    if (h == 0) s.sums[tile][row][t] = sum;
    if (h == 0 && t == 0) {
      s.factor[row][tile] = q_exp2(before - base);
      s.most[8 + row][tile] = now;  // a group has at most eight rows
    }
  }

  // All rows of the unit, two at a time; the last two pairs are kept in registers between the maxima and the weights,
  // and what came before them is asked for again.
  HOPPER_FN void weigh(Shared& s, const ValueUnit& u, int all, uint flag, int tid) {
    const int t = tid & 3, h = (tid >> 2) & 1, tile = (tid >> 3) & 15, first_row = tid >> 7;
    const int group = s.group, turns = (group + 1) / 2, last = (turns - 1) / 2 * 2, positions = s.p.positions;
    const int at = tile * kHopperTile + 32 * h + 2 * t, seen = all - at;
    const u64* from = s.scores + ((i64)u.seq * s.p.heads + u.kv_head * group) * positions + u.split * kHopperSplit + at;
    Eighth mine[2];
#pragma unroll 1
    for (int base = 0; base <= last; base += 2) {
      UNROLL for (int k = 0; k < 2; k++) {
        if (base + k >= turns) break;
        const int row = first_row + 2 * (base + k);
        float most = take_scores(mine[k], from + (i64)row * positions, row < group ? seen : 0, flag);
        most = row_max(most);
        most = max(most, simd_shuffle_xor(most, 4u));
        if (h == 0 && t == 0) s.most[row][tile] = most;
      }
    }
    meet();
#pragma unroll 1
    for (int base = last; base >= 0; base -= 2) {
      UNROLL for (int k = 0; k < 2; k++) {
        const int row = first_row + 2 * (base + k);
        if (row >= group) break;
        if (base < last) take_scores(mine[k], from + (i64)row * positions, seen, flag);
        weigh_eighth(s, mine[k], row, tile, h, t, seen);
      }
    }
  }

  // The new position's columns of V, to its row in the ring: one warp, two lanes of it.
  HOPPER_FN void new_columns(Shared& s, const ValueUnit& u, int all, StepPlace at, const u64* taken, uint flag,
                             int lane) {
    const int row = s.contexts[u.seq] - 1 - u.split * kHopperSplit;
    if (row >= all || lane >= 2) return;
    const StepPlace here = StepPlace::after(at, row / kValueSlot, s.p.slots);
    hopper_barrier_wait(full(s, here.slot), here.parity);
    const int projected = (s.p.heads + 2 * s.p.kv_heads) * (D / 2);
    const u64* from = taken + (i64)u.seq * projected + (s.p.heads + s.p.kv_heads + u.kv_head) * (D / 2) +
                      u.slice * (kStepSlice / 2) + lane * 4;
    u64 v[4];
    bool there;
    uint times = 0;
    do {
      there = true;
      step_ask2(from, v);
      step_ask2(from + 2, v + 2);
      UNROLL for (int i = 0; i < 4; i++) there = there && step_has(v[i], flag);
      step_again(times);
    } while (!there);
    asm volatile(
        "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(slot_at(s, here.slot) + value_at(row % kValueSlot, lane)),
        "r"((uint)v[0]), "r"((uint)v[1]), "r"((uint)v[2]), "r"((uint)v[3])
        : "memory");
  }

  struct ValueFragments {
    uint p[4][4];  // T(p), four k16 steps
    uint v[2][4];  // two k16 steps each
    float factor, sum;
  };

  // Eight columns of p V over all tiles of the split; a slot has eight tiles.
  HOPPER_FN void value_chain(const StepAttentionOp& op, Shared& s, const ValueUnit& u, int all, StepPlace at, u64* give,
                             uint flag, int column, int lane) {
    const int g = lane >> 2, t = lane & 3, tiles = (all + kHopperTile - 1) / kHopperTile;
    const StepPlace second = StepPlace::after_few(at, 1, s.p.slots);
    hopper_barrier_wait(full(s, at.slot), at.parity);
    if (all > kValueSlot) hopper_barrier_wait(full(s, second.slot), second.parity);
    const uint slots[2] = {slot_at(s, at.slot) + value_at(lane, column),
                           slot_at(s, second.slot) + value_at(lane, column)};
    const uint weights = ptx_shared_address(rows_of(s) + (lane & 15) * kWeightStride + (lane >> 4) * 8);
    // value_at() of a row 32 on turns no other way.
    const auto fetch = [&](ValueFragments& f, int tile) {
      const uint slot = tile < 8 ? slots[0] : slots[1];
      UNROLL for (int k = 0; k < 4; k++) hopper_ldmatrix(f.p[k], weights + tile * (kHopperTile * 2) + 32 * k);
      UNROLL for (int k = 0; k < 2; k++) {
        hopper_ldmatrix_trans(f.v[k], slot + ((tile & 7) * kHopperTile + 32 * k) * kValueRow);
      }
      f.factor = s.factor[g & 7][tile];
      f.sum = s.sums[tile][g & 7][t];
    };
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f}, l = 0.0f;
    const auto step = [&](const ValueFragments& f) {
      l = fma(l, f.factor, f.sum);
      o[0] *= f.factor;
      o[1] *= f.factor;
      UNROLL for (int k = 0; k < 4; k++) {
        hopper_chain_mma(o, f.p[k], f.v[k >> 1][2 * (k & 1)], f.v[k >> 1][2 * (k & 1) + 1], T());
      }
    };
    ValueFragments f[2];
    fetch(f[0], 0);
#pragma unroll 1
    for (int i = 0; i < tiles; i += 2) {
      fetch(f[1], min(i + 1, tiles - 1));
      step(f[0]);
      if (i + 1 == tiles) break;
      fetch(f[0], min(i + 2, tiles - 1));
      step(f[1]);
    }
    const float sum = row_sum(l);
    if (g >= s.group) return;
    const int head = u.kv_head * s.group + g, d = u.slice * kStepSlice + column * 8 + 2 * t;
    if (splits_of(s, u.seq) == 1) {
      give_pair(op, s, give, u.seq, head, d, hopper_pack<T>(o[0] / sum, o[1] / sum), flag);
    } else {
      const i64 row = (i64)u.seq * s.p.heads + head;
      u64* to_row = s.partials + (row * (s.p.positions / kHopperSplit) + u.split) * (D + 2);
      step_tell2(to_row + d, as_uint(o[0]), as_uint(o[1]), flag);
      if (d == 0) step_tell2(to_row + D, as_uint(s.most[8 + g][tiles - 1]), as_uint(sum), flag);
    }
  }

  HOPPER_FN void give_pair(const StepAttentionOp& op, const Shared& s, u64* give, int seq, int head, int d, uint pair,
                           uint flag) {
    step_tell(give + (((i64)seq * s.p.heads + head) * D + d) / 2, pair, flag);
    *(uint*)((T*)op.out + (i64)seq * op.out_stride + head * D + d) = pair;
  }

  STEP_PART StepPlace values(int i, StepPlace at) {
    Shared& s = mine();
    const StepAttentionOp& op = program_of(s)[i].attention;
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31;
    const uint flag = flag_of(s, i);
    if (s.value_count == 0) return at;
    meet();  // nobody reads the rows of the op before, nor the scores' q
    ValueUnit u = s.value;
#pragma unroll 1
    for (int unit = 0; unit < s.value_count; unit++, next(s, u)) {
      const int all = length(s, u);
      if (warp == kStepWarps - 1) new_columns(s, u, all, at, taken_by(s, i), flag - 1, lane);
      weigh(s, u, all, flag, tid);
      meet();
      if (warp < kStepSlice / 8) value_chain(op, s, u, all, at, given_by(s, i), flag, warp, lane);
      meet();
      if (tid == 0) {
        hopper_fence_async();
        for (int j = 0; j < value_slots(all); j++) {
          hopper_barrier_arrive(empty(s, StepPlace::after(at, j, s.p.slots).slot));
        }
      }
      at = StepPlace::after(at, value_slots(all), s.p.slots);
    }
    return at;
  }

  // ---- third part: the splits of a head, from left to right ----

  STEP_PART void merge(int i) {
    Shared& s = mine();
    const StepAttentionOp& op = program_of(s)[i].attention;
    const uint flag = flag_of(s, i);
    const int tid = (int)threadIdx.x, d = 2 * tid;
    if (tid >= D / 2) return;
#pragma unroll 1
    for (int unit = (int)blockIdx.x; unit < s.p.rows * s.p.heads; unit += (int)gridDim.x) {
      const int seq = unit / s.p.heads, splits = splits_of(s, seq);
      if (splits == 1) continue;
      const u64* from = s.partials + (i64)unit * (s.p.positions / kHopperSplit) * (D + 2);
      float m = HOPPER_NONE, l = 0.0f, o[2] = {0.0f, 0.0f};
#pragma unroll 1
      for (int split = 0; split < splits; split++) {
        u64 v[4];
        bool there;
        uint times = 0;
        do {
          there = true;
          step_ask2(from + split * (D + 2) + d, v);
          step_ask2(from + split * (D + 2) + D, v + 2);
          UNROLL for (int j = 0; j < 4; j++) there = there && step_has(v[j], flag);
          step_again(times);
        } while (!simd_all(there));
        const float m2 = as_float((uint)v[2]), l2 = as_float((uint)v[3]);
        if (split == 0) {
          m = m2;
          l = l2;
          UNROLL for (int j = 0; j < 2; j++) o[j] = as_float((uint)v[j]);
          continue;
        }
        const float most = max(m, m2), a = q_exp2(m - most), a2 = q_exp2(m2 - most);
        l = fma(l, a, l2 * a2);
        UNROLL for (int j = 0; j < 2; j++) o[j] = fma(o[j], a, as_float((uint)v[j]) * a2);
        m = most;
      }
      give_pair(op, s, given_by(s, i), seq, unit - seq * s.p.heads, d, hopper_pack<T>(o[0] / l, o[1] / l), flag);
    }
  }

  // ---- all of it ----

  HOPPER_FN void prepare(const DecodeStepParams& p, const StepOp* program, u64* exchange, u64* scores, u64* partials) {
    Shared& s = mine();
    const int tid = (int)threadIdx.x, words = p.ops * (int)(sizeof(StepOp) / 16);
    uint4* to_program = (uint4*)program_of(s);
#pragma unroll 8
    for (int i = tid; i < words; i += kStepThreads) to_program[i] = ((const uint4*)program)[i];
    for (int i = tid; i < 16 * kQueryStride; i += kStepThreads) (&s.q[0][0])[i] = to<T>(0.0f);
    if (tid < p.slots) {
      hopper_barrier_init(full(s, tid), 32);
      hopper_barrier_init(empty(s, tid), 1);
      hopper_barrier_init_done();
    }
    if (tid == 0) {
      s.p = p;
      s.exchange = exchange;
      s.scores = scores;
      s.partials = partials;
      s.ring = ptx_shared_address((unsigned char*)&s + p.shared_fixed + p.shared_rows);
      s.group = p.heads / max(p.kv_heads, 1);
    }
  }

  HOPPER_FN void compute() {
    Shared& s = mine();
    StepPlace at = {0, 0};
    const int ops = s.p.ops;
#pragma unroll 1
    for (int i = 0; i < ops; i++) {
      if (program_of(s)[i].kind == kStepLinear) {
        at = linear(i, at);
      } else {
        at = keys(i, at);
        at = values(i, at);
        if (s.p.positions > kHopperSplit) merge(i);
      }
    }
  }

  HOPPER_FN void run(const DecodeStepParams& p, const StepOp* program, const int* context_lens, const int* positions,
                     const i64* slots, u64* exchange, u64* scores, u64* partials, uint* epochs) {
    Shared& s = mine();
    const int tid = (int)threadIdx.x;
    ptx_grid_release();
    prepare(p, program, exchange, scores, partials);
    __syncthreads();
    if (tid >= kThreads) return bring();  // weights are there before the launch before has ended
    ptx_grid_wait();
    if (tid < p.rows && p.kv_heads > 0) {
      s.contexts[tid] = context_lens[tid];
      s.positions[tid] = positions[tid];
      s.slots[tid] = slots[tid];
    }
    if (tid == 0) s.epoch = *(volatile uint*)(epochs + blockIdx.x) + 1;
    meet();
    if (tid == 0 && p.kv_heads > 0) cut_attention(s);
    meet();
    tell_begun();
    compute();
    if (tid == 0) epochs[blockIdx.x] = s.epoch;
  }
};

#define HOPPER_DECODE_STEP(types, T, D)                                                                          \
  extern "C" __global__ void __launch_bounds__(kStepThreads, 1) hopper_decode_step_##types##_d##D(               \
      const __grid_constant__ DecodeStepParams p, const StepOp* program, const int* context_lens,                \
      const int* positions, const i64* slots, u64* exchange, u64* scores, u64* partials, uint* epochs) {         \
    HopperDecodeStep<T, D>::run(p, program, context_lens, positions, slots, exchange, scores, partials, epochs); \
  }
HOPPER_DECODE_STEP(bf16, bfloat, 64)
HOPPER_DECODE_STEP(bf16, bfloat, 128)
HOPPER_DECODE_STEP(f16, half, 64)
HOPPER_DECODE_STEP(f16, half, 128)
