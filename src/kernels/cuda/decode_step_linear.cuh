// SPDX-License-Identifier: Apache-2.0
// decode_step.cuh: products, with the norm before them and what follows them. No kernels here.
#pragma once

#include "kernels/cuda/decode_step_base.cuh"
#include "kernels/norm_sum.h"

template <typename T, int D>
struct HopperStepLinear : HopperStep<T, D> {
  typedef HopperStep<T, D> Base;
  using Base::embedded;
  using Base::flag_of;
  using Base::full;
  using Base::given_by;
  using Base::kHeld;
  using Base::kThreads;
  using Base::kWeightRow;
  using Base::meet;
  using Base::mine;
  using Base::op_at;
  using Base::rows_of;
  using Base::taken_by;
  using Base::tiles_of;
  using typename Base::Shared;

  // Fragments of four steps.
  struct Window {
    uint w[4][4];
    uint x[2][4];
  };
  HOPPER_FN void fetch_w(Window& f, uint w) { UNROLL for (int i = 0; i < 4; i++) hopper_ldmatrix(f.w[i], w + 32 * i); }
  HOPPER_FN void fetch_x(Window& f, uint x) { UNROLL for (int i = 0; i < 2; i++) hopper_ldmatrix(f.x[i], x + 64 * i); }
  HOPPER_FN void fetch(Window& f, uint w, uint x) {
    fetch_w(f, w);
    fetch_x(f, x);
  }
  HOPPER_FN void multiply(float* acc, const Window& f) {
    UNROLL for (int i = 0; i < 4; i++) hopper_mma<T>(acc, f.w[i], f.x[i / 2][i % 2 * 2], f.x[i / 2][i % 2 * 2 + 1]);
  }

  // Where a warp's chain takes its chunks: from slot `at` on, each `stride` slots from the one before.
  struct Chunks {
    StepPlace at;
    int stride, k, halves;
    int warps;  // at work beside each other
  };

  // A tile's chain: W as the 16-row operand (eight rows stand twice where there are no more), x as the eight columns.
  // What stands between two products must fit in their shadow, so there is next to no branch, fragments come a window
  // ahead, and the next slot is looked for early.
  //
  // Slots land in any order, and a barrier tells by its parity only whether its last phase has ended. A warp that came
  // for what a slot will hold next while another still waits for what it should hold now would take the one for the
  // other. So before a slot's turn comes again, all meet that may wait for it.
  HOPPER_FN void chain(Shared& s, float (&acc)[4], const Chunks& c, int lane) {
    enum { kWindows = kStepChunk / 64 };
    const int slots = s.p.slots, turn = slots / c.stride;  // chunks in a turn of the ring
    const bool upper = (lane & 8) != 0, two = c.halves == 2;
    const uint barriers = full(s, 0), base_w = s.ring + (lane & 7) * kWeightRow + (lane >> 4) * 16;
    uint x = ptx_shared_address(rows_of(s) + min(lane & 7, s.p.rows - 1) * (c.k + 8)) + (lane >> 3) * 16;
    StepPlace at = c.at, second = StepPlace::after_few(at, c.halves - 1, slots);
    const auto await = [&] {
      hopper_barrier_wait(barriers + at.slot * 8, at.parity);
      if (two) hopper_barrier_wait(barriers + second.slot * 8, second.parity);
    };
    UNROLL for (int i = 0; i < 4; i++) acc[i] = 0.0f;
    await();
    uint w = base_w + (upper ? second.slot : at.slot) * kStepSlotBytes;
    Window f[2];
    fetch(f[0], w, x);
    int left = c.k / 64, until_turn = turn;  // windows; chunks
#pragma unroll 1
    while (left >= kWindows) {
      UNROLL for (int i = 0; i < kWindows / 2 - 1; i++) {
        fetch(f[1], w + 128, x + 128);
        multiply(acc, f[0]);
        w += 256;
        x += 256;
        fetch(f[0], w, x);
        multiply(acc, f[1]);
      }
      const StepPlace old = at, old_second = second;
      left -= kWindows;
      at = StepPlace::after_few(at, c.stride, slots);
      second = StepPlace::after_few(at, c.halves - 1, slots);
      bool ready = left > 0 && step_landed(barriers + at.slot * 8, at.parity);
      if (two) ready = ready && step_landed(barriers + second.slot * 8, second.parity);
      fetch(f[1], w + 128, x + 128);
      multiply(acc, f[0]);
      x += 256;
      w = base_w + (upper ? second.slot : at.slot) * kStepSlotBytes;
      if (left > 0) {
        if (--until_turn == 0 && c.warps > 1) {
          meet(c.warps);
          until_turn = turn;
          ready = false;
        }
        if (!ready) await();
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
    const bool floats = residual || op.epilogue == kHopperStoreF32;
    const int halves = op.halves, m = (lane & 3) * 2, columns = gated ? op.n / 2 : op.n;
    const int n = number * (gated ? 8 : 8 * halves) + (lane >> 2);
    a.tell = residual ? give + m * columns + n : give + (m * columns + n) / 2;
    a.out = (char*)op.out + ((i64)m * op.out_stride + n) * (floats ? 4 : 2);
    a.bias[0] = a.bias[1] = 0.0f;
    UNROLL for (int i = 0; i < 4; i++) a.before[i] = 0.0f;
    if (op.bias != nullptr) {
      a.bias[0] = op.bias[n];
      if (halves == 2) a.bias[1] = op.bias[n + (gated ? op.n / 2 : 8)];
    }
    if (residual) {
      const float* from = op.residual + (i64)m * op.residual_stride + n;
      UNROLL for (int i = 0; i < 4; i++) {
        if (m + (i & 1) >= s.p.rows || (i >= 2 && halves != 2)) continue;
        a.before[i] = op.residual_by_token != 0 ? embedded(s.p, m + (i & 1), n + 8 * (i >> 1))
                                                : __ldcg(from + (i & 1) * op.residual_stride + 8 * (i >> 1));
      }
    }
  }

  HOPPER_FN void tile(const StepLinearOp& op, Shared& s, const Ahead& a, const Chunks& chunks, uint flag, int lane) {
    const bool gated = op.epilogue == kHopperGated, residual = op.epilogue == kHopperResidual;
    const bool biased = op.bias != nullptr, kept = op.out != nullptr;
    const int g = lane >> 2, m = (lane & 3) * 2, rows = s.p.rows, parts = gated ? 1 : op.halves;
    const int columns = gated ? op.n / 2 : op.n, out_stride = op.out_stride;
    const float scale = op.scale;
    float acc[4];
    chain(s, acc, chunks, lane);
    if (op.epilogue == kHopperStoreF32) {
      UNROLL for (int i = 0; i < 4; i++) {
        const int j = i & 1, part = i >> 1;
        if (m + j >= rows || part >= parts) continue;
        ((float*)a.out)[j * out_stride + 8 * part] = biased ? acc[i] + a.bias[part] : acc[i];
      }
      return;
    }
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
            if (kept) *(uint*)((T*)a.out + j * out_stride + 8 * part) = pair;
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
  HOPPER_FN void take_floats(const StepLinearOp& op, const Shared& s, float (&held)[kHeld], int row, int first,
                             const u64* taken, uint flag) {
    if (op.x != nullptr) {
      UNROLL for (int i = 0; i < kHeld; i++) {
        const int k = first + i * kThreads;
        held[i] = 0.0f;
        if (k >= op.k) continue;
        held[i] = op.x_by_token != 0 ? embedded(s.p, row, k) : __ldcg((const float*)op.x + (i64)row * op.x_stride + k);
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
        take_floats(op, s, held, row, first + tid, taken, flag);
        UNROLL for (int i = 0; i < kHeld; i++) sum = fma(held[i], held[i], sum);
      }
      float* chains = s.floats + (row & 1) * kThreads;
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
        take_floats(op, s, held, row, first + tid, taken, flag);
        UNROLL for (int i = 0; i < kHeld; i++) {
          to_row[first + i * kThreads] = to<T>((held[i] * inverse) * op.norm[first + tid + i * kThreads]);
        }
      }
    }
  }

  STEP_PART StepPlace linear(int i, StepPlace at) {
    Shared& s = mine();
    const StepLinearOp& op = op_at(s, i).linear;
    const int tid = (int)threadIdx.x, count = tiles_of(op), warp = tid >> 5, lane = tid & 31;
    if (count == 0) return at;
    const uint flag = flag_of(s, i);
    const int groups = (int)gridDim.x, chunks = (op.k + kStepChunk - 1) / kStepChunk, halves = op.halves;
    const int slots = s.p.slots, lot = op.lot;
    Ahead ahead;
    const auto get_ready = [&](int first) {
      look_ahead(op, s, ahead, (int)blockIdx.x + (first + warp) * groups, given_by(s, i), lane);
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
      if (first > 0) meet();  // as in chain(), for a lot is a turn of the ring or more
      if (warp < now) {
        if (first > 0) get_ready(first);
        tile(op, s, ahead, {StepPlace::after_few(at, warp * halves, slots), now * halves, op.k, halves, now}, flag,
             lane);
      }
      at = StepPlace::after(at, now * halves * chunks, slots);
    }
    return at;
  }
};
