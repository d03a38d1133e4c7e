// SPDX-License-Identifier: Apache-2.0
// decode_step.cuh: attention of one token per sequence, from the projection's output to the heads. The general form
// has windows and soft caps. No kernels here.
#pragma once

#include "kernels/attention_head.h"
#include "kernels/cuda/decode_step_common.cuh"
#include "kernels/cuda/linear_chain.cuh"

template <typename T, int D, bool General>
struct HopperStepAttention : HopperStep<T, D, General> {
  typedef HopperStep<T, D, General> Base;
  typedef QkvHead<T, D / 32> Head;
  enum { kStaged = step_floats(D) / kStepWarps };  // floats of a warp's head
  using Base::empty;
  using Base::first_split;
  using Base::flag_of;
  using Base::full;
  using Base::input_of;
  using Base::key_at;
  using Base::key_tiles;
  using Base::kKeyTile;
  using Base::kQueryStride;
  using Base::kValueRow;
  using Base::kValueSlot;
  using Base::kWeightStride;
  using Base::length;
  using Base::low_in;
  using Base::mine;
  using Base::next;
  using Base::op_at;
  using Base::output_of;
  using Base::rows_of;
  using Base::slot_at;
  using Base::splits_end;
  using Base::splits_of;
  using Base::sync;
  using Base::value_at;
  using Base::value_slots;
  using typename Base::KeyUnit;
  using typename Base::Shared;
  using typename Base::ValueUnit;

  HOPPER_FN T* query_of(Shared& s, int row) { return rows_of(s) + row * kQueryStride; }
  HOPPER_FN int window_of(const StepAttentionOp& op) { return General ? op.window : 0; }

  // ---- first part: scores ----

  // Reads a head from the exchange, two elements of T per entry, and writes it to `to` as floats. Called by one warp.
  HOPPER_FN void take_head(float* to, const u64* taken, uint flag, int lane) {
    u64 v[D / 64];
    bool there;
    uint times = 0;
    do {
      there = true;
      UNROLL for (int i = 0; i < D / 64; i++) v[i] = step_read(taken + lane + 32 * i);
      UNROLL for (int i = 0; i < D / 64; i++) there = there && step_has_flag(v[i], flag);
      hopper_count_retry(times);
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

  // These take one head of the projection's row each, with one warp: q's `head` to its row in memory; the new k of a KV
  // head to its page and to its row of the tile in the ring; the new v to its page.
  HOPPER_FN void take_query(const StepAttentionOp& op, Shared& s, const u64* row, int seq, int head, int to_row,
                            uint flag, int warp, int lane) {
    float x[D / 32];
    norm_and_rope(op, s, x, row + head * (D / 2), op.q_norm, seq, flag, warp, lane);
    UNROLL for (int i = 0; i < D / 32; i++) query_of(s, to_row)[lane + 32 * i] = to<T>(to_f(to<T>(x[i])) * op.c);
  }
  HOPPER_FN void take_key(const StepAttentionOp& op, Shared& s, const u64* row, const KeyUnit& u, StepPlace at,
                          uint flag, int warp, int lane) {
    float x[D / 32];
    const i64 slot = op.slots[u.seq];
    norm_and_rope(op, s, x, row + (s.p.heads + u.kv_head) * (D / 2), op.k_norm, u.seq, flag, warp, lane);
    const int in_tile = (s.contexts[u.seq] - 1) % kKeyTile;
    hopper_barrier_wait(full(s, at.slot), at.parity);  // wait until the slot belongs to this unit
    const uint to_ring = slot_at(s, at.slot) + key_at(in_tile) + lane * 2;
    UNROLL for (int i = 0; i < D / 32; i++) {
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to_ring + 64 * i), "h"(to_bits16(to<T>(x[i]))) : "memory");
    }
    if (slot < 0) return;
    T* page = page_row(op, s, slot, u.kv_head, false);
    UNROLL for (int i = 0; i < D / 32; i++) page[lane + 32 * i] = to<T>(x[i]);
  }
  HOPPER_FN void take_value(const StepAttentionOp& op, Shared& s, const u64* row, const KeyUnit& u, uint flag, int warp,
                            int lane) {
    float* staged = s.floats + warp * kStaged;
    const i64 slot = op.slots[u.seq];
    take_head(staged, row + (s.p.heads + s.p.kv_heads + u.kv_head) * (D / 2), flag, lane);
    if (slot < 0) return;
    T* page = page_row(op, s, slot, u.kv_head, true);
    UNROLL for (int i = 0; i < D / 32; i++) page[lane + 32 * i] = to<T>(staged[lane + 32 * i]);
  }

  // Reads a head and applies norm and rope; x[i] is element lane + 32 i.
  HOPPER_FN void norm_and_rope(const StepAttentionOp& op, Shared& s, float (&x)[D / 32], const u64* head,
                               const float* norm, int seq, uint flag, int warp, int lane) {
    float weight[D / 32], cosine[D / 32], sine[D / 32];
    const int rot_dim = op.rot_dim, interleaved = op.interleaved;
    const i64 at = (i64)s.positions[seq] * (rot_dim / 2);
    Head::load(weight, norm, norm != nullptr ? D : 0, lane);
    Head::load_pairs(cosine, op.cosines + at, rot_dim, interleaved, lane);
    Head::load_pairs(sine, op.sines + at, rot_dim, interleaved, lane);
    float* staged = s.floats + warp * kStaged;
    take_head(staged, head, flag, lane);
    UNROLL for (int i = 0; i < D / 32; i++) x[i] = staged[lane + 32 * i];
    __syncwarp();
    if (norm != nullptr) Head::norm(x, D, op.eps, weight, lane);
    if (rot_dim > 0) Head::rotate(x, staged, rot_dim, interleaved, cosine, sine, lane);
    __syncwarp();
  }

  // A warp scores eight positions: the addresses of a lane's keys and query, and of its scores. Known before q is
  // there.
  struct Scoring {
    uint keys, query;
    u64* to;
    bool mine;
  };
  HOPPER_FN Scoring scoring(Shared& s, const KeyUnit& u, StepPlace at, int warp, int lane) {
    const int g = lane >> 2, group = s.group, head = u.seq * s.p.heads + u.kv_head * group + g;
    return {slot_at(s, at.slot) + key_at(warp * 8 + (lane & 7)) + (lane >> 3) * 16,
            // Rows are repeated to fill the operand.
            ptx_shared_address(query_of(s, min(lane & 7, group - 1)) + (lane >> 4) * 8),
            s.scores + (i64)head * s.p.positions + u.tile * kKeyTile + warp * 8 + (lane & 3) * 2, g < group};
  }
  STEP_PART float capped(float score, float cap) { return cap * q_tanh(score); }
  HOPPER_FN void score(Shared& s, const Scoring& where, StepPlace at, float cap, uint flag) {
    hopper_barrier_wait(full(s, at.slot), at.parity);
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    uint a[D / 16][4], f[D / 32][4];
    UNROLL for (int k = 0; k < D / 32; k++) {
      hopper_ldmatrix(f[k], where.keys + k * 64);
      hopper_ldmatrix(a[2 * k], where.query + k * 64);
      hopper_ldmatrix(a[2 * k + 1], where.query + k * 64 + 32);
    }
    UNROLL for (int k = 0; k < D / 16; k++)
        hopper_mma<T>(acc, a[k], f[k >> 1][(k & 1) * 2], f[k >> 1][(k & 1) * 2 + 1]);
    if (General && cap > 0.0f) {
      acc[0] = capped(acc[0], cap);
      acc[1] = capped(acc[1], cap);
    }
    if (where.mine) step_write2(where.to, as_uint(acc[0]), as_uint(acc[1]), flag);
  }

  STEP_PART StepPlace keys(int i, StepPlace at) {
    Shared& s = mine();
    const StepAttentionOp& op = op_at(s, i).attention;
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31, group = s.group;
    const int projected = (s.p.heads + 2 * s.p.kv_heads) * (D / 2);
    const uint flag = flag_of(s, i);
    const int window = window_of(op);
    const auto& division = s.divisions[window > 0];
    if (division.key_count == 0) return at;
    KeyUnit u = division.key;
    int has = -1;  // the head whose queries are in memory
#pragma unroll 1
    for (int unit = 0; unit < division.key_count; unit++, next(s, u, window)) {
      const u64* row = input_of(s, i) + (i64)u.seq * projected;
      const int head = u.seq * s.p.kv_heads + u.kv_head;
      const int tasks = u.tile == key_tiles(s, u.seq) - 1 ? group + 2 : group;
      const Scoring where = scoring(s, u, at, warp, lane);
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
      sync();
      if (warp * 8 < kKeyTile) score(s, where, at, op.cap, flag);
      sync();
      if (tid == 0) {
        // The new k was written through the generic proxy, the next load into the slot uses the async proxy.
        hopper_fence_async();
        hopper_barrier_arrive(empty(s, at.slot));
      }
      at = StepPlace::after(at, 1, s.p.slots);
    }
    return at;
  }

  // ---- second part: softmax and p V ----

  // An eighth of a row's tile: positions 32 h + 8 b + 2 t and the next one.
  struct Eighth {
    float p[4][2];
  };

  // Reads scores; those from `unseen` to before `seen` are visible, counted from the eighth's first position, and if
  // none is, nothing is read. Returns the maximum of the visible ones.
  HOPPER_FN float take_scores(Eighth& mine, const u64* from, int unseen, int seen, uint flag) {
    u64 v[4][2];
    bool there;
    uint times = 0;
    do {
      there = true;
      if (seen > 0) {
        UNROLL for (int b = 0; b < 4; b++) step_read2(from + 8 * b, v[b]);
        UNROLL for (int b = 0; b < 4; b++) there =
            there && step_has_flag(v[b][0], flag) && step_has_flag(v[b][1], flag);
      }
      hopper_count_retry(times);
    } while (!simd_all(there));
    float most = HOPPER_NONE;
    UNROLL for (int b = 0; b < 4; b++) {
      UNROLL for (int i = 0; i < 2; i++) {
        mine.p[b][i] = as_float((uint)v[b][i]);
        most = 8 * b + i < seen && 8 * b + i >= unseen ? max(most, mine.p[b][i]) : most;
      }
    }
    return most;
  }

  // Computes T(p) of an eighth of a row's tile, the sum of its pairs, and the factor for the earlier tiles.
  HOPPER_FN void weigh_eighth(Shared& s, const Eighth& mine, int row, int tile, int h, int t, int unseen, int seen) {
    float before = HOPPER_NONE, now = HOPPER_NONE;
    UNROLL for (int i = 0; i < 16; i++) {
      const float most = s.most[row][i];
      before = i < tile ? max(before, most) : before;
      now = i <= tile ? max(now, most) : now;
    }
    const float base = now == HOPPER_NONE ? 0.0f : now;
    float e[4];
    T* to_row = rows_of(s) + row * kWeightStride + tile * kHopperTile + 32 * h + 2 * t;
    UNROLL for (int b = 0; b < 4; b++) {  // without branches: invisible positions are computed and dropped
      const float e0 = q_exp2(mine.p[b][0] - base), e1 = q_exp2(mine.p[b][1] - base);
      const float p0 = 8 * b < seen && 8 * b >= unseen ? e0 : 0.0f;
      const float p1 = 8 * b + 1 < seen && 8 * b + 1 >= unseen ? e1 : 0.0f;
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

  // The softmax weights of all rows of the unit, two rows at a time. The last two pairs of rows stay in registers
  // between maxima and weights; earlier ones are read again.
  HOPPER_FN void weigh(Shared& s, const ValueUnit& u, int low, int all, uint flag, int tid) {
    const int t = tid & 3, h = (tid >> 2) & 1, tile = (tid >> 3) & 15, first_row = tid >> 7;
    const int group = s.group, turns = (group + 1) / 2, last = (turns - 1) / 2 * 2, positions = s.p.positions;
    const int half = tile * kHopperTile + 32 * h, at = half + 2 * t, unseen = low - at;
    const int seen = half + 32 > low ? all - at : 0;  // nobody has computed the scores of units before the window
    const u64* from = s.scores + ((i64)u.seq * s.p.heads + u.kv_head * group) * positions + u.split * kHopperSplit + at;
    Eighth mine[2];
#pragma unroll 1
    for (int base = 0; base <= last; base += 2) {
      UNROLL for (int k = 0; k < 2; k++) {
        if (base + k >= turns) break;
        const int row = first_row + 2 * (base + k);
        float most = take_scores(mine[k], from + (i64)row * positions, unseen, row < group ? seen : 0, flag);
        most = row_max(most);
        most = max(most, simd_shuffle_xor(most, 4u));
        if (h == 0 && t == 0) s.most[row][tile] = most;
      }
    }
    sync();
#pragma unroll 1
    for (int base = last; base >= 0; base -= 2) {
      UNROLL for (int k = 0; k < 2; k++) {
        const int row = first_row + 2 * (base + k);
        if (row >= group) break;
        if (base < last) take_scores(mine[k], from + (i64)row * positions, unseen, seen, flag);
        weigh_eighth(s, mine[k], row, tile, h, t, unseen, seen);
      }
    }
  }

  // Writes the new position's columns of V to its row in the ring. Called by one warp; two of its lanes work.
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
      step_read2(from, v);
      step_read2(from + 2, v + 2);
      UNROLL for (int i = 0; i < 4; i++) there = there && step_has_flag(v[i], flag);
      hopper_count_retry(times);
    } while (!there);
    asm volatile(
        "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(slot_at(s, here.slot) + value_at(row % kValueSlot, lane)),
        "r"((uint)v[0]), "r"((uint)v[1]), "r"((uint)v[2]), "r"((uint)v[3])
        : "memory");
  }

  struct ValueFragments {
    uint p[4][4];  // T(p) of four k16 steps
    uint v[2][4];  // two k16 steps each
    float factor, sum;
  };

  // Eight columns of p V over the tiles of the split that are seen (a slot has eight tiles): what a lane needs besides
  // the weights, and so can compute before they are there.
  struct Columns {
    uint slots[2], weights;
    int first, tiles;  // from the one with the first visible position to before the one where the split ends
    bool whole;        // the sequence has only this split
    u64* entry;
    T* out;  // or null
  };
  HOPPER_FN Columns columns_of(const StepAttentionOp& op, Shared& s, const ValueUnit& u, int low, int window, int all,
                               StepPlace at, u64* give, int column, int lane) {
    Columns c;
    const StepPlace second = StepPlace::after_few(at, 1, s.p.slots);
    c.slots[0] = slot_at(s, at.slot) + value_at(lane, column);
    c.slots[1] = slot_at(s, second.slot) + value_at(lane, column);
    c.weights = ptx_shared_address(rows_of(s) + min(lane & 7, s.group - 1) * kWeightStride + (lane >> 4) * 8);
    c.first = low / kHopperTile;
    c.tiles = (all + kHopperTile - 1) / kHopperTile;
    c.whole = splits_of(s, u.seq, window) == 1;
    const int head = u.kv_head * s.group + (lane >> 2), d = u.slice * kStepSlice + column * 8 + 2 * (lane & 3);
    const i64 row = (i64)u.seq * s.p.heads + head;
    c.entry = c.whole ? give + (row * D + d) / 2
                      : s.partials + (row * (s.p.positions / kHopperSplit) + u.split) * (D + 2) + d;
    c.out = op.out != nullptr ? (T*)op.out + (i64)u.seq * op.out_stride + head * D + d : nullptr;
    return c;
  }
  HOPPER_FN void value_chain(Shared& s, const ValueUnit& u, const Columns& c, int all, StepPlace at, uint flag,
                             int column, int lane) {
    const int g = lane >> 2, t = lane & 3, tiles = c.tiles;
    hopper_barrier_wait(full(s, at.slot), at.parity);
    if (all > kValueSlot) {
      const StepPlace second = StepPlace::after_few(at, 1, s.p.slots);
      hopper_barrier_wait(full(s, second.slot), second.parity);
    }
    // Rows 32 further on have the same permutation in value_at().
    const auto fetch = [&](ValueFragments& f, int tile) {
      const uint slot = tile < 8 ? c.slots[0] : c.slots[1];
      UNROLL for (int k = 0; k < 4; k++) hopper_ldmatrix(f.p[k], c.weights + tile * (kHopperTile * 2) + 32 * k);
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
    fetch(f[0], c.first);
#pragma unroll 1
    for (int i = c.first; i < tiles; i += 2) {
      fetch(f[1], min(i + 1, tiles - 1));
      step(f[0]);
      if (i + 1 == tiles) break;
      fetch(f[0], min(i + 2, tiles - 1));
      step(f[1]);
    }
    const float sum = row_sum(l);
    if (g >= s.group) return;
    if (c.whole) {
      const uint pair = hopper_pack<T>(o[0] / sum, o[1] / sum);
      step_write(c.entry, pair, flag);
      if (c.out != nullptr) *(uint*)c.out = pair;
    } else {
      step_write2(c.entry, as_uint(o[0]), as_uint(o[1]), flag);
      if (u.slice == 0 && column == 0 && t == 0) {
        step_write2(c.entry + D, as_uint(s.most[8 + g][tiles - 1]), as_uint(sum), flag);
      }
    }
  }

  STEP_PART StepPlace values(int i, StepPlace at) {
    Shared& s = mine();
    const StepAttentionOp& op = op_at(s, i).attention;
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31;
    const uint flag = flag_of(s, i);
    const int window = window_of(op);
    const auto& division = s.divisions[window > 0];
    if (division.value_count == 0) return at;
    sync();  // the rows of the previous op and the queries are no longer read
    ValueUnit u = division.value;
#pragma unroll 1
    for (int unit = 0; unit < division.value_count; unit++, next(s, u, window)) {
      const int low = low_in(s, u, window), all = length(s, u);
      Columns c;
      if (warp < kStepSlice / 8) c = columns_of(op, s, u, low, window, all, at, output_of(s, i), warp, lane);
      if (warp == kStepWarps - 1) new_columns(s, u, all, at, input_of(s, i), flag - 1, lane);
      weigh(s, u, low, all, flag, tid);
      sync();
      if (warp < kStepSlice / 8) value_chain(s, u, c, all, at, flag, warp, lane);
      sync();
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

  // ---- third part: merges the splits of a head, from left to right ----

  STEP_PART void merge(int i) {
    Shared& s = mine();
    const StepAttentionOp& op = op_at(s, i).attention;
    const uint flag = flag_of(s, i);
    const int tid = (int)threadIdx.x, d = 2 * tid;
    if (tid >= D / 2) return;
#pragma unroll 1
    for (int unit = (int)blockIdx.x; unit < s.p.rows * s.p.heads; unit += (int)gridDim.x) {
      const int seq = unit / s.p.heads, first = first_split(s, seq, window_of(op)), end = splits_end(s, seq);
      if (end - first == 1) continue;
      const u64* from = s.partials + (i64)unit * (s.p.positions / kHopperSplit) * (D + 2);
      float m = HOPPER_NONE, l = 0.0f, o[2] = {0.0f, 0.0f};
#pragma unroll 1
      for (int split = first; split < end; split++) {
        u64 v[4];
        bool there;
        uint times = 0;
        do {
          there = true;
          step_read2(from + split * (D + 2) + d, v);
          step_read2(from + split * (D + 2) + D, v + 2);
          UNROLL for (int j = 0; j < 4; j++) there = there && step_has_flag(v[j], flag);
          hopper_count_retry(times);
        } while (!simd_all(there));
        const float m2 = as_float((uint)v[2]), l2 = as_float((uint)v[3]);
        if (split == first) {
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
      const uint pair = hopper_pack<T>(o[0] / l, o[1] / l);
      const int column = (unit - seq * s.p.heads) * D + d;
      step_write(output_of(s, i) + ((i64)unit * D + d) / 2, pair, flag);
      if (op.out != nullptr) *(uint*)((T*)op.out + (i64)seq * op.out_stride + column) = pair;
    }
  }
};
