// SPDX-License-Identifier: Apache-2.0
// What the parts of decode_step.cuh share: the exchange, positions in the ring, the shared memory of a threadgroup, and
// how an op's work is divided. No kernels here.
#pragma once

#include "kernels/cuda/attention_common.cuh"
#include "kernels/params/decode_step.h"

typedef unsigned long long u64;

// ---- the exchange ----

HOPPER_FN u64 step_entry(uint value, uint flag) {
  return (u64)flag << 32 | value;
}
HOPPER_FN u64 step_read(const u64* from) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
  return v;
}
HOPPER_FN void step_read2(const u64* from, u64* v) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(v[0]), "=l"(v[1]) : "l"(from) : "memory");
}
HOPPER_FN bool step_has_flag(u64 v, uint flag) {
  return (uint)(v >> 32) == flag;
}
HOPPER_FN void step_write(u64* to, uint value, uint flag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(step_entry(value, flag)) : "memory");
}
HOPPER_FN void step_write2(u64* to, uint first, uint second, uint flag) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(step_entry(first, flag)),
               "l"(step_entry(second, flag))
               : "memory");
}

// ---- positions in the ring ----

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

// Whether the slot has landed, without waiting; and the arrival of one lane, without a branch.
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

// A part that is a real call, with registers of its own: its inputs are in shared memory.
#define STEP_PART static __device__ __noinline__

// The general form serves every size; the other one has rows and chunks of W of one length and no windows, in fewer
// registers.
template <typename T, int D, bool General>
struct HopperStep {
  enum {
    kThreads = 32 * kStepWarps,           // threads that compute
    kKeyTile = D > 128 ? 32 : 64,         // positions of a unit of K
    kKeyRow = kKeyTile / 8 * D * 2 + 16,  // bytes of a row of positions, each eight positions after the one before
    kValueRow = kStepSlice * 2,           // bytes
    kValueSlot = 512,                     // positions
    kSlices = D / kStepSlice,
    kQueryStride = D + 8,
    kWeightStride = kHopperSplit + 8,  // elements between rows of T(p)
    kRows = step_rows_at(D),
    kOpPieces = sizeof(StepOp) / 16,
    kHeld = kStepHeld / kThreads  // elements that a thread keeps of a row to normalise
  };

  struct KeyUnit {
    int seq, kv_head, tile;
  };
  struct ValueUnit {
    int seq, kv_head, split, slice;
  };

  // A threadgroup's units of attention: the first of each kind, and their number.
  struct Division {
    int key_count, value_count;
    KeyUnit key;
    ValueUnit value;
  };

  // The first part of a threadgroup's shared memory. Then follow the rows of x, of queries or of T(p), the
  // residual stream, and the ring.
  struct Shared {
    u64 full[kStepMostSlots];     // mbarriers with 32 arrivals
    u64 empty[kStepMostSlots];    // mbarriers with one arrival
    StepOp ahead[kStepOpsAhead];  // for the warps that compute, op i is at i % kStepOpsAhead
    StepOp loading;               // the op that the loader warp works on
    DecodeStepParams p;
    const StepOp* program;
    u64* exchange;
    u64* scores;
    u64* partials;
    int positions[kStepRows], contexts[kStepRows];
    uint ring;  // address of the first slot
    uint epoch;
    int group;              // query heads per KV head
    Division divisions[2];  // of ops without a window, and with one
    union {
      alignas(16) float floats[step_floats(D)];  // chains of a norm, 256 each; heads during rope, one per warp
      struct {                                   // the second part of attention
        float most[16][16];                      // [row][tile]: maxima; from row 8 on: the maximum up to this tile
        float factor[kStepMostGroup][16];        // [row][tile]
        float sums[16][kStepMostGroup][4];       // [tile][row][t]
      };
    };
  };
  static_assert(sizeof(Shared) <= kRows && kRows % 16 == 0, "as the host counts");
  static_assert(kStepMostGroup == 8 && D <= 256, "rows of a product's first half; elements of a head in registers");
  static_assert(8 * kKeyRow <= kStepSlotBytes, "a unit of K is in one slot");
  static_assert(kThreads == 256, "as sync() and the norm's chains count");
  static_assert(sizeof(StepOp) % 16 == 0, "ops are copied in such pieces");

  HOPPER_FN Shared& mine() {
    extern __shared__ __align__(128) unsigned char step_memory[];
    return *(Shared*)step_memory;
  }
  HOPPER_FN const StepOp& op_at(const Shared& s, int i) { return s.ahead[i % kStepOpsAhead]; }
  // x [rows][k + 8], T(q * c) [group][kQueryStride] or T(p) [group][kWeightStride].
  HOPPER_FN T* rows_of(Shared& s) { return (T*)((unsigned char*)&s + kRows); }
  // The residual stream, [rows][stream_columns]. Column j belongs to thread j % 256, which alone reads and writes it.
  HOPPER_FN float* stream_of(Shared& s, int row) {
    return (float*)((unsigned char*)&s + s.p.stream) + row * s.p.stream_columns;
  }
  HOPPER_FN uint full(const Shared& s, int slot) { return ptx_shared_address(s.full + slot); }
  HOPPER_FN uint empty(const Shared& s, int slot) { return ptx_shared_address(s.empty + slot); }
  // The length, in k, of a chunk of eight rows of W, and the bytes of one of its rows: the padding of 16 spreads the
  // eight over all banks.
  HOPPER_FN int chunk_of(const Shared& s) { return General ? s.p.chunk : (int)kStepChunk; }
  HOPPER_FN int weight_row(const Shared& s) { return chunk_of(s) * 2 + 16; }
  HOPPER_FN int slot_bytes(const Shared& s) { return 8 * weight_row(s); }
  HOPPER_FN uint slot_at(const Shared& s, int slot) { return s.ring + slot * slot_bytes(s); }
  // Barriers for all warps that compute, or for `warps` of them.
  HOPPER_FN void sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
  HOPPER_FN void sync(int warps) { asm volatile("bar.sync 3, %0;" ::"r"(warps * 32) : "memory"); }

  // An element of the embedding of a sequence's token.
  HOPPER_FN float embedded(const DecodeStepParams& p, int row, int k) {
    return to_f(((const T*)p.table)[(i64)__ldcg(p.tokens + row) * p.table_stride + k]) * p.table_scale;
  }

  // The flag of op i, the exchange buffer that it writes, and the one that it reads.
  HOPPER_FN uint flag_of(const Shared& s, int i) { return s.epoch << 8 | (uint)(i + 1); }
  HOPPER_FN u64* output_of(const Shared& s, int i) { return s.exchange + i % kStepExchanges * s.p.exchanged; }
  HOPPER_FN const u64* input_of(const Shared& s, int i) { return output_of(s, i + kStepExchanges - 1); }

  // ---- how an op's work is divided ----

  HOPPER_FN int tiles_of(const StepLinearOp& op) { return op.each + ((int)blockIdx.x < op.rest ? 1 : 0); }

  // The first position that a sequence's token sees; the units of K that have such positions, and the splits.
  HOPPER_FN int low_of(const Shared& s, int seq, int window) {
    return window > 0 ? max(0, s.contexts[seq] - window) : 0;
  }
  HOPPER_FN int first_key_tile(const Shared& s, int seq, int window) { return low_of(s, seq, window) / kKeyTile; }
  HOPPER_FN int key_tiles(const Shared& s, int seq) { return (s.contexts[seq] + kKeyTile - 1) / kKeyTile; }
  HOPPER_FN int first_split(const Shared& s, int seq, int window) { return low_of(s, seq, window) / kHopperSplit; }
  HOPPER_FN int splits_end(const Shared& s, int seq) { return (s.contexts[seq] + kHopperSplit - 1) / kHopperSplit; }
  HOPPER_FN int splits_of(const Shared& s, int seq, int window) {
    return splits_end(s, seq) - first_split(s, seq, window);
  }
  HOPPER_FN void next(const Shared& s, KeyUnit& u, int window) {
    if (++u.tile < key_tiles(s, u.seq)) return;
    if (++u.kv_head >= s.p.kv_heads) {
      u.kv_head = 0;
      u.seq++;
    }
    if (u.seq < s.p.rows) u.tile = first_key_tile(s, u.seq, window);
  }
  HOPPER_FN void next(const Shared& s, ValueUnit& u, int window) {
    if (++u.slice < kSlices) return;
    u.slice = 0;
    if (++u.split < splits_end(s, u.seq)) return;
    if (++u.kv_head >= s.p.kv_heads) {
      u.kv_head = 0;
      u.seq++;
    }
    if (u.seq < s.p.rows) u.split = first_split(s, u.seq, window);
  }
  // The end of what the unit's split has, and the first position that is seen, both counted from the split's start.
  HOPPER_FN int length(const Shared& s, const ValueUnit& u) {
    return min(s.contexts[u.seq] - u.split * kHopperSplit, (int)kHopperSplit);
  }
  HOPPER_FN int low_in(const Shared& s, const ValueUnit& u, int window) {
    return max(0, low_of(s, u.seq, window) - u.split * kHopperSplit);
  }
  HOPPER_FN int value_slots(int length) { return (length + kValueSlot - 1) / kValueSlot; }

  // The first of `count` units that threadgroup `group` has. A threadgroup has neighbouring units, which share data.
  HOPPER_FN int first_unit(int count, int group) { return (int)((uint)count * (uint)group / gridDim.x); }
  // All layers with the same window divide attention in the same way, so this is computed once.
  HOPPER_FN void divide_attention(const Shared& s, Division& mine, int window) {
    const int kv_heads = s.p.kv_heads;
    const auto keys_of = [&](int seq) { return (key_tiles(s, seq) - first_key_tile(s, seq, window)) * kv_heads; };
    const auto values_of = [&](int seq) { return splits_of(s, seq, window) * kv_heads * kSlices; };
    int keys = 0, values = 0;
    for (int i = 0; i < s.p.rows; i++) {
      keys += keys_of(i);
      values += values_of(i);
    }
    const int groups = (int)gridDim.x;
    int key = first_unit(keys, blockIdx.x), value = first_unit(values, blockIdx.x);
    mine.key_count = first_unit(keys, blockIdx.x + 1) - key;
    mine.value_count = first_unit(values, blockIdx.x + 1) - value;
    // If there are enough threadgroups, each has one unit: keys from the first threadgroup on, values up to the last
    // one.
    if (keys <= groups && values <= groups) {
      key = (int)blockIdx.x;
      value = (int)blockIdx.x - (groups - values);
      mine.key_count = key < keys ? 1 : 0;
      mine.value_count = value >= 0 ? 1 : 0;
      key = min(key, keys - 1);
      value = max(value, 0);
    }
    int seq = 0;
    while (seq + 1 < s.p.rows && key >= keys_of(seq)) key -= keys_of(seq++);
    const int tiles = keys_of(seq) / kv_heads;
    mine.key = {seq, key / tiles, first_key_tile(s, seq, window) + key % tiles};
    seq = 0;
    while (seq + 1 < s.p.rows && value >= values_of(seq)) value -= values_of(seq++);
    const int splits = splits_of(s, seq, window);
    mine.value = {seq, value / kSlices / splits, first_split(s, seq, window) + value / kSlices % splits,
                  value % kSlices};
  }
  // The offset of a position in a tile of K: positions 8 i to 8 i + 7 are in eight rows, like eight rows of W.
  HOPPER_FN uint key_at(int position) { return (position & 7) * kKeyRow + (position >> 3) * (D * 2); }
  // Rows of 32 bytes, whose two pieces are swapped in every second four, so that eight rows fall into different banks.
  HOPPER_FN uint value_at(int row, int piece) { return row * kValueRow + ((piece ^ ((row >> 2) & 1)) << 4); }
};
