// SPDX-License-Identifier: Apache-2.0
// decode_step.cuh: the warp that loads weights and pages, op after op. No kernels here.
#pragma once

#include "kernels/cuda/decode_step_common.cuh"

template <typename T, int D, bool General>
struct HopperStepFetch : HopperStep<T, D, General> {
  typedef HopperStep<T, D, General> Base;
  using Base::chunk_of;
  using Base::empty;
  using Base::full;
  using Base::key_at;
  using Base::kKeyTile;
  using Base::kOpPieces;
  using Base::kValueRow;
  using Base::kValueSlot;
  using Base::length;
  using Base::low_in;
  using Base::low_of;
  using Base::mine;
  using Base::next;
  using Base::slot_at;
  using Base::tiles_of;
  using Base::value_at;
  using Base::weight_row;
  using typename Base::KeyUnit;
  using typename Base::Shared;
  using typename Base::ValueUnit;

  HOPPER_FN void expect(const Shared& s, int slot, int bytes, int lane) {
    if (lane == 0) {
      hopper_barrier_expect(full(s, slot), bytes);
    } else {
      hopper_barrier_arrive(full(s, slot));
    }
    __syncwarp();
  }

  HOPPER_FN void fetch_linear(const StepLinearOp& op, const Shared& s, StepPlace& at, int lane) {
    const int count = tiles_of(op), k = op.k, slots = s.p.slots, halves = op.halves;
    const bool gated = op.epilogue == kHopperGated;
    // The second eight rows of a tile: the up rows of its gate rows, or the rows that follow.
    const int tile_rows = gated ? 8 : 8 * halves, second = gated ? op.n / 2 : 8;
    const int lot = op.lot, chunk = chunk_of(s), row_bytes = weight_row(s);
    for (int first = 0; first < count; first += lot) {
      const int end = min(first + lot, count);
      for (int from_k = 0; from_k < k; from_k += chunk) {
        const int bytes = min(k - from_k, chunk) * 2;
        for (int i = first; i < end; i++) {
          const T* from =
              (const T*)op.w + (i64)(((int)blockIdx.x + i * (int)gridDim.x) * tile_rows + (lane & 7)) * k + from_k;
          for (int part = 0; part < halves; part++) {
            hopper_barrier_wait(empty(s, at.slot), at.parity ^ 1);
            expect(s, at.slot, 8 * bytes, lane);
            if (lane < 8) {
              hopper_copy_bulk(slot_at(s, at.slot) + lane * row_bytes, from + (i64)part * second * k, bytes,
                               full(s, at.slot), hopper_read_once());
            }
            at = StepPlace::after(at, 1, slots);
          }
        }
      }
    }
  }

  // The pages of 256 positions, one per lane; blocks have at least eight positions.
  HOPPER_FN i64 page_of(const StepAttentionOp& op, int seq, int start, int end, int lane) {
    const int block = min((start >> op.block_shift) + lane, (end - 1) >> op.block_shift);
    return op.block_tables[seq * op.max_blocks + block] * op.page_stride;
  }
  // The offset of a position of KV head 0; `pages` are those from position `start` on.
  HOPPER_FN i64 row_at(const StepAttentionOp& op, i64 pages, int start, int position, int row_bytes) {
    const i64 page = __shfl_sync(0xffffffffu, pages, (position >> op.block_shift) - (start >> op.block_shift));
    return page + (position & ((1 << op.block_shift) - 1)) * row_bytes;
  }

  // Loads positions of earlier steps only, and none before the window, where table entries may be anything. The warps
  // that compute this step's own position write it themselves.
  HOPPER_FN void fetch_keys(const StepAttentionOp& op, const Shared& s, StepPlace& at, int lane) {
    const int row_bytes = s.p.kv_heads * D * 2;
    const int window = General ? op.window : 0;
    const auto& division = s.divisions[window > 0];
    KeyUnit u = division.key;
    for (int i = 0; i < division.key_count; i++, next(s, u, window)) {
      const int start = u.tile * kKeyTile, all = s.contexts[u.seq];
      const i64 pages = page_of(op, u.seq, start, all, lane);
      const int count = max(0, min(all - 1 - start, (int)kKeyTile));
      const int from = min(max(0, low_of(s, u.seq, window) - start), count);
      hopper_barrier_wait(empty(s, at.slot), at.parity ^ 1);
      expect(s, at.slot, (count - from) * D * 2, lane);
      UNROLL for (int row = lane; row < kKeyTile; row += 32) {
        const i64 offset = row_at(op, pages, start, min(start + row, all - 1), row_bytes) + u.kv_head * (D * 2);
        if (row >= from && row < count) {
          hopper_copy_bulk(slot_at(s, at.slot) + key_at(row), op.pages + offset, D * 2, full(s, at.slot));
        }
      }
      at = StepPlace::after(at, 1, s.p.slots);
    }
  }

  HOPPER_FN void fetch_values(const StepAttentionOp& op, const Shared& s, StepPlace& at, int lane) {
    const int row_bytes = s.p.kv_heads * D * 2;
    const int window = General ? op.window : 0;
    const auto& division = s.divisions[window > 0];
    ValueUnit u = division.value;
    for (int i = 0; i < division.value_count; i++, next(s, u, window)) {
      const char* from =
          op.pages + ((i64)row_bytes << op.block_shift) + u.kv_head * (D * 2) + u.slice * kValueRow + (lane & 1) * 16;
      const int all = s.contexts[u.seq], end = u.split * kHopperSplit + length(s, u);
      const int low = u.split * kHopperSplit + low_in(s, u, window);
      for (int first = u.split * kHopperSplit; first < end; first += kValueSlot) {
        hopper_barrier_wait(empty(s, at.slot), at.parity ^ 1);
        for (int start = first; start < min(first + kValueSlot, end); start += 256) {
          if (General && start + 256 <= low) continue;  // not read
          const i64 pages = page_of(op, u.seq, start, all, lane);
          const uint to = slot_at(s, at.slot) + (start - first) * kValueRow;
          const int rows = (min(end - start, 256) + 63) / 64 * 64;
#pragma unroll 4
          for (int row = lane >> 1; row < rows; row += 16) {
            const i64 offset = row_at(op, pages, start, min(start + row, all - 1), row_bytes);
            hopper_copy16_or_zero(to + value_at(row, lane & 1), from + offset,
                                  start + row >= low && start + row < all - 1);
          }
        }
        hopper_barrier_arrive_copied(full(s, at.slot));
        at = StepPlace::after(at, 1, s.p.slots);
      }
    }
  }

  // The computing warps signal, and this warp waits, until the outputs of the preceding launches are visible and
  // attention is divided. The fence orders them before loads through the async proxy.
  HOPPER_FN void signal_begun() {
    asm volatile("bar.arrive 2, 288;" ::: "memory");
  }
  HOPPER_FN void await_begun() {
    asm volatile("bar.sync 2, 288;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  static_assert(kStepThreads == 288, "as these count");

  STEP_PART void fetch_all() {
    Shared& s = mine();
    const int lane = (int)threadIdx.x & 31;
    StepPlace at = {0, 0};
    bool alone = true;  // the computing warps still wait for the preceding launch
    const uint4* from = (const uint4*)s.program;
    const bool mine = lane < kOpPieces;
    uint4 piece = mine ? from[lane] : make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int i = 0; i < s.p.ops; i++) {
      const StepOp& op = s.loading;
      __syncwarp();
      if (mine) ((uint4*)&s.loading)[lane] = piece;
      __syncwarp();
      if (mine && i + 1 < s.p.ops) piece = from[(i + 1) * kOpPieces + lane];
      if (alone && op.kind == kStepAttention) {
        await_begun();
        alone = false;
      }
      if (op.kind == kStepLinear) {
        fetch_linear(op.linear, s, at, lane);
      } else {
        fetch_keys(op.attention, s, at, lane);
        fetch_values(op.attention, s, at, lane);
      }
    }
    if (alone) await_begun();
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
};
