// SPDX-License-Identifier: Apache-2.0
// decode_step.cuh: products, with an optional norm before them and an epilogue after them. The general form has
// the residual stream in every threadgroup. No kernels here.
#pragma once

#include "kernels/cuda/decode_step_common.cuh"
#include "kernels/norm_sum.h"

template <typename T, int D, bool General>
struct HopperStepLinear : HopperStep<T, D, General> {
  typedef HopperStep<T, D, General> Base;
  using Base::chunk_of;
  using Base::embedded;
  using Base::flag_of;
  using Base::full;
  using Base::input_of;
  using Base::kHeld;
  using Base::kThreads;
  using Base::mine;
  using Base::op_at;
  using Base::output_of;
  using Base::rows_of;
  using Base::slot_bytes;
  using Base::stream_of;
  using Base::sync;
  using Base::tiles_of;
  using Base::weight_row;
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

  // The chain of a tile: W is the 16-row operand (with only eight rows they are repeated), x the eight columns. All
  // other instructions should fit into the latency of the products. So there is almost no branch, fragments are loaded
  // one window ahead, and the next slot is checked early. Whatever does not depend on x is done while the warp waits
  // for x.
  //
  // Slots are filled in any order, and the parity of an mbarrier only shows whether its last phase has ended. A warp
  // that waited for the next contents of a slot while another still waited for the current ones could mistake one for
  // the other. So before a slot is used again, all warps that may wait for it synchronise.
  struct Chain {
    StepPlace at, second;  // of the chunk's first, and second, eight rows
    int stride;            // slots from one chunk to the next
    int turn;              // chunks per turn of the ring
    int warps;             // warps that work side by side
    int k;
    bool two;
    uint base_w, w, x;
    bool early;  // the first chunk has landed
  };
  HOPPER_FN void await(const Shared& s, const Chain& c) {
    hopper_barrier_wait(full(s, c.at.slot), c.at.parity);
    if (c.two) hopper_barrier_wait(full(s, c.second.slot), c.second.parity);
  }
  HOPPER_FN bool landed(const Shared& s, const Chain& c) {
    const bool there = step_landed(full(s, c.at.slot), c.at.parity);
    return there && (!c.two || step_landed(full(s, c.second.slot), c.second.parity));
  }
  HOPPER_FN uint weights_at(const Shared& s, const Chain& c, int lane) {
    return c.base_w + ((lane & 8) != 0 ? c.second.slot : c.at.slot) * slot_bytes(s);
  }
  HOPPER_FN void prepare(Shared& s, Chain& c, StepPlace at, int warps, int k, int halves, int lane) {
    c.at = at;
    c.second = StepPlace::after_few(at, halves - 1, s.p.slots);
    c.stride = warps * halves;
    c.turn = s.p.slots / c.stride;
    c.warps = warps;
    c.k = k;
    c.two = halves == 2;
    c.base_w = s.ring + (lane & 7) * weight_row(s) + (lane >> 4) * 16;
    c.w = weights_at(s, c, lane);
    c.x = ptx_shared_address(rows_of(s) + min(lane & 7, s.p.rows - 1) * (k + 8)) + (lane >> 3) * 16;
    c.early = landed(s, c);
  }
  HOPPER_FN void chain(Shared& s, Chain& c, float (&acc)[4], int lane) {
    const int windows = chunk_of(s) / 64;  // of a chunk, an even number
    const int slots = s.p.slots;
    const bool two = c.two;
    const uint barriers = full(s, 0);
    UNROLL for (int i = 0; i < 4; i++) acc[i] = 0.0f;
    if (!c.early) await(s, c);
    uint w = c.w, x = c.x;
    Window f[2];
    fetch(f[0], w, x);
    int left = c.k / 64, until_turn = c.turn;  // left: windows; until_turn: chunks
#pragma unroll 1
    while (left >= windows) {
      const auto pair = [&] {
        fetch(f[1], w + 128, x + 128);
        multiply(acc, f[0]);
        w += 256;
        x += 256;
        fetch(f[0], w, x);
        multiply(acc, f[1]);
      };
      if (General && windows != kStepChunk / 64) {
#pragma unroll 1
        for (int i = 1; i < windows / 2; i++) pair();
      } else {
        UNROLL for (int i = 1; i < kStepChunk / 128; i++) pair();
      }
      const StepPlace old = c.at, old_second = c.second;
      left -= windows;
      c.at = StepPlace::after_few(c.at, c.stride, slots);
      c.second = StepPlace::after_few(c.at, two ? 1 : 0, slots);
      bool ready = left > 0 && landed(s, c);
      fetch(f[1], w + 128, x + 128);
      multiply(acc, f[0]);
      x += 256;
      w = weights_at(s, c, lane);
      if (left > 0) {
        if (--until_turn == 0 && c.warps > 1) {
          sync(c.warps);
          until_turn = c.turn;
          ready = false;
        }
        if (!ready) await(s, c);
        fetch(f[0], w, x);
      }
      multiply(acc, f[1]);  // now all of the old slot has been read
      step_free(barriers + (kStepMostSlots + old.slot) * 8, lane == 0);
      step_free(barriers + (kStepMostSlots + old_second.slot) * 8, lane == 0 && two);
    }
    if (left == 0) return;
#pragma unroll 1
    while (true) {  // a shorter last chunk
      if (General && left > 1) {
        fetch(f[1], w + 128, x + 128);
        multiply(acc, f[0]);
        w += 256;
        x += 256;
        if (left > 2) fetch(f[0], w, x);
        multiply(acc, f[1]);
        if ((left -= 2) == 0) break;
        continue;
      }
      multiply(acc, f[0]);
      if (--left == 0) break;
      w += 128;
      x += 128;
      fetch(f[0], w, x);
    }
    step_free(barriers + (kStepMostSlots + c.at.slot) * 8, lane == 0);
    step_free(barriers + (kStepMostSlots + c.second.slot) * 8, lane == 0 && two);
  }

  HOPPER_FN float rounded(float acc, bool biased, float bias) {
    const float y = to_f(to<T>(acc));
    return biased ? to_f(to<T>(y + bias)) : y;
  }

  // ---- the largest logit, with the rule of sample_chunks (kernels/sampling.h) ----

  // The largest logit that a thread has seen of a row of x. It keeps those of rows 2 t and 2 t + 1, in the norm's
  // memory.
  struct alignas(8) Best {
    float value;
    uint found;  // the token, and above it the faults of the row
    enum { kNone = 0xffffff, kFaultsAt = 24 };
    HOPPER_FN Best nothing() { return {-INFINITY, kNone}; }
    HOPPER_FN Best of(float x, int token) {
      const uint faults = (x != x ? kSampleFaultNan : 0) | (x == INFINITY ? kSampleFaultInfinite : 0);
      return {x, (uint)token | faults << kFaultsAt};
    }
    HOPPER_FN Best better(const Best& a, const Best& b) {
      const uint token = a.found & kNone, other = b.found & kNone;
      const bool second = b.value > a.value || (b.value == a.value && other < token);
      const uint faults = (a.found | b.found) & ~(uint)kNone;
      return {second ? b.value : a.value, (second ? other : token) | faults};
    }
  };
  static_assert((int)kSampleMaxChunks * (int)kSampleChunk < (int)Best::kNone, "tokens have room");
  HOPPER_FN Best& best_of(Shared& s, int thread, int j) {
    return ((Best*)s.floats)[2 * thread + j];
  }
  HOPPER_FN void no_best(Shared& s, int thread) {
    UNROLL for (int j = 0; j < 2; j++) best_of(s, thread, j) = Best::nothing();
  }
  HOPPER_FN void keep_best(Shared& s, int j, float x, int token) {
    Best& mine = best_of(s, (int)threadIdx.x, j);
    mine = Best::better(mine, Best::of(x, token));
  }
  // Writes the threadgroup's largest logit of each row.
  HOPPER_FN void write_bests(Shared& s, int tid) {
    UNROLL for (int j = 0; j < 2; j++) {
      Best best = best_of(s, tid, j);
      UNROLL for (int apart = 4; apart < 32; apart *= 2) {
        best = Best::better(
            best, {__shfl_xor_sync(0xffffffffu, best.value, apart), __shfl_xor_sync(0xffffffffu, best.found, apart)});
      }
      best_of(s, tid, j) = best;
    }
    sync();
    if (tid >= s.p.rows) return;
    Best best = Best::nothing();
    for (int warp = 0; warp < kStepWarps; warp++) best = Best::better(best, best_of(s, 32 * warp + tid / 2, tid & 1));
    SamplePartial* to_row = s.p.bests + tid * (int)gridDim.x + (int)blockIdx.x;
    to_row->max = best.value;
    to_row->max_token = (int)(best.found & Best::kNone);
    to_row->faults = (int)(best.found >> Best::kFaultsAt);
  }

  // What only the first ops, some models or long rows need is in functions of its own, because instructions that are
  // jumped over are fetched all the same.
  STEP_PART float of_token(int row, int k) {
    return embedded(mine().p, row, k);
  }
  STEP_PART float other_glu(int kind, float limit, float gate, float up) {
    return activate_glu(kind, limit, gate, up);
  }
  // Logits are written to memory only.
  STEP_PART void store_floats(const StepLinearOp& op, float* out, float acc0, float acc1, float acc2, float acc3,
                              float bias0, float bias1) {
    Shared& s = mine();
    const float acc[4] = {acc0, acc1, acc2, acc3};
    const int m = ((int)threadIdx.x & 3) * 2, first = (int)(out - (float*)op.out) - m * op.out_stride;
    UNROLL for (int i = 0; i < 4; i++) {
      const int j = i & 1, part = i >> 1;
      if (m + j >= s.p.rows || part >= op.halves) continue;
      const float y = op.bias != nullptr ? acc[i] + (part == 0 ? bias0 : bias1) : acc[i];
      out[j * op.out_stride + 8 * part] = y;
      if (s.p.bests != nullptr) keep_best(s, j, y, first + 8 * part);
    }
  }

  // What a tile needs besides its product, loaded ahead. Lane (g, t) has rows g and g + 8 of the tile and rows 2 t and
  // 2 t + 1 of x.
  struct Ahead {
    float bias[2];    // of rows g and g + 8
    float before[4];  // the residual, in the order of the sums
    u64* entry;       // exchange entries of row 2 t: that of column g, or of its pair
    char* out;        // row 2 t, column g
    int epilogue, rows, parts;
    int entry_stride, out_stride;  // from one row to the next
    float scale;
    bool biased, kept;
  };
  HOPPER_FN void look_ahead(const StepLinearOp& op, const Shared& s, Ahead& a, int number, u64* give, int lane) {
    const bool gated = op.epilogue == kHopperGated, residual = op.epilogue == kHopperResidual;
    const bool floats = residual || op.epilogue == kHopperStoreF32;
    const int halves = op.halves, m = (lane & 3) * 2, columns = gated ? op.n / 2 : op.n;
    const int n = number * (gated ? 8 : 8 * halves) + (lane >> 2);
    a.entry = residual ? give + m * columns + n : give + (m * columns + n) / 2;
    a.out = (char*)op.out + ((i64)m * op.out_stride + n) * (floats ? 4 : 2);
    a.epilogue = op.epilogue;
    a.rows = s.p.rows;
    a.parts = gated ? 1 : halves;
    a.entry_stride = residual ? columns : columns / 2;
    a.out_stride = op.out_stride;
    a.scale = op.scale;
    a.biased = op.bias != nullptr;
    a.kept = op.out != nullptr;
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
        a.before[i] = op.residual_by_token != 0 ? of_token(m + (i & 1), n + 8 * (i >> 1))
                                                : __ldcg(from + (i & 1) * op.residual_stride + 8 * (i >> 1));
      }
    }
  }

  HOPPER_FN float glu(int kind, float limit, float gate, float up) {
    return kind == kActSilu && !(limit > 0.0f) ? q_silu(gate) * up : other_glu(kind, limit, gate, up);
  }

  // The epilogue of a tile's sums.
  HOPPER_FN void finish(const StepLinearOp& op, const Ahead& a, const float (&acc)[4], uint flag, int lane) {
    if (a.epilogue == kHopperStoreF32) {
      return store_floats(op, (float*)a.out, acc[0], acc[1], acc[2], acc[3], a.bias[0], a.bias[1]);
    }
    const int g = lane >> 2, m = (lane & 3) * 2;
#pragma unroll 1
    for (int j = 0; j < min(a.rows, 2); j++) {
      float y[2] = {rounded(j == 0 ? acc[0] : acc[1], a.biased, a.bias[0]),
                    rounded(j == 0 ? acc[2] : acc[3], a.biased, a.bias[1])};
      if (a.epilogue == kHopperGated) y[0] = glu(op.activation, op.limit, y[0], y[1]);
      const bool mine = m + j < a.rows;
      u64* const entry = a.entry + j * a.entry_stride;
      const int out = j * a.out_stride;
      UNROLL for (int part = 0; part < 2; part++) {
        if (part == a.parts) break;
        if (a.epilogue == kHopperResidual) {
          const float sum = fma(y[part], a.scale, j == 0 ? a.before[2 * part] : a.before[1 + 2 * part]);
          if (mine) {
            step_write(entry + 8 * part, as_uint(sum), flag);
            ((float*)a.out)[out + 8 * part] = sum;
          }
        } else {
          // Two neighbouring columns share an entry: rows g and g + 1 are four lanes apart.
          const uint pair = hopper_pack<T>(y[part], __shfl_down_sync(0xffffffffu, y[part], 4));
          if (mine && (g & 1) == 0) {
            step_write(entry + 4 * part, pair, flag);
            if (a.kept) *(uint*)((T*)a.out + out + 8 * part) = pair;
          }
        }
      }
    }
  }

  // Reads x in T from the exchange, four elements at a time.
  HOPPER_FN void take_rows(int k, Shared& s, const u64* taken, uint flag, int tid) {
    enum { kAtOnce = General ? 6 : 3 };
    const int in_row = k / 4;
#pragma unroll 1
    for (int row = 0; row < s.p.rows; row++) {
      T* to_row = rows_of(s) + row * (k + 8);
      const u64* from_row = taken + (i64)row * (k / 2);
#pragma unroll 1
      for (int done = 0; done < in_row; done += kAtOnce * kThreads) {
        const int first = done + tid;
        u64 v[kAtOnce][2];
        bool there;
        uint times = 0;
        do {
          there = true;
          UNROLL for (int i = 0; i < kAtOnce; i++) {
            v[i][0] = v[i][1] = step_entry(0, flag);
            if (first + i * kThreads < in_row) step_read2(from_row + 2 * (first + i * kThreads), v[i]);
          }
          UNROLL for (int i = 0; i < kAtOnce; i++) there =
              there && step_has_flag(v[i][0], flag) && step_has_flag(v[i][1], flag);
          hopper_count_retry(times);
        } while (!simd_all(there));
        UNROLL for (int i = 0; i < kAtOnce; i++) {
          const int piece = first + i * kThreads;
          if (piece < in_row) *(uint2*)(to_row + piece * 4) = make_uint2((uint)v[i][0], (uint)v[i][1]);
        }
      }
    }
  }

  // Reads x in T from memory.
  HOPPER_FN void read_rows(const StepLinearOp& op, Shared& s, int tid) {
    for (int row = 0; row < s.p.rows; row++) {
      for (int k = tid * 8; k < op.k; k += kThreads * 8) {
        *(uint4*)(rows_of(s) + row * (op.k + 8) + k) =
            __ldcg((const uint4*)((const T*)op.x + (i64)row * op.x_stride + k));
      }
    }
  }

  // Reads kHeld elements of a row of x in float: first, first + 256, ..., zeros past its end.
  HOPPER_FN void take_floats(const StepLinearOp& op, const Shared& s, float (&held)[kHeld], int row, int first,
                             const u64* taken, uint flag) {
    if (op.x != nullptr) {
      UNROLL for (int i = 0; i < kHeld; i++) {
        const int k = first + i * kThreads;
        held[i] = 0.0f;
        if (k >= op.k) continue;
        held[i] = op.x_by_token != 0 ? of_token(row, k) : __ldcg((const float*)op.x + (i64)row * op.x_stride + k);
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
        if (first + i * kThreads < op.k) v[i] = step_read(from + i * kThreads);
      }
      UNROLL for (int i = 0; i < kHeld; i++) {
        there = there && step_has_flag(v[i], flag);
        held[i] = as_float((uint)v[i]);
      }
      hopper_count_retry(times);
    } while (!simd_all(there));
  }

  // Reads all but the last piece of a long row once more, and normalises it.
  STEP_PART void norm_rest(const StepLinearOp& op, Shared& s, int row, int end, float inverse, const u64* taken,
                           uint flag) {
    T* to_row = rows_of(s) + row * (op.k + 8);
#pragma unroll 1
    for (int first = (int)threadIdx.x; first < end; first += kHeld * kThreads) {
      float held[kHeld];
      take_floats(op, s, held, row, first, taken, flag);
      UNROLL for (int i = 0; i < kHeld; i++) {
        to_row[first + i * kThreads] = to<T>((held[i] * inverse) * op.norm[first + i * kThreads]);
      }
    }
  }

  // Reads x in float and applies the norm. A thread has one chain of norm_sum.h.
  HOPPER_FN void norm_rows(const StepLinearOp& op, Shared& s, const u64* taken, uint flag, int tid) {
    const int k = op.k, last = (k - 1) / (kHeld * kThreads) * (kHeld * kThreads);  // start of the last piece
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
      sync();
      const float* c = chains + (tid & 31);
      const float all = simd_sum(norm_fold(c[0], c[32], c[64], c[96], c[128], c[160], c[192], c[224]));
      // If k is a power of two, multiplying by 1 / k is exact.
      const float inverse =
          op.inverse_k > 0.0f ? 1.0f / sqrt(all * op.inverse_k + op.eps) : norm_inverse(all, k, op.eps);
      T* to_row = rows_of(s) + row * (k + 8) + tid;
      UNROLL for (int i = 0; i < kHeld; i++) {
        if (last + tid + i * kThreads < k) to_row[last + i * kThreads] = to<T>((held[i] * inverse) * weight[i]);
      }
      if (last > 0) norm_rest(op, s, row, last, inverse, taken, flag);
    }
  }

  // ---- norms of the general form ----
  //
  // A thread has all of its elements of a row at once: element j belongs to thread j % 256, as norm_sum.h counts
  // chains. This code runs once per op, and takes about as long as its instructions take to arrive. So there is a form
  // without comparisons for each usual number of Pieces: REQUIRES, if Exact: k > (Pieces - 1) * 256.

  template <int Pieces, bool Exact>
  HOPPER_FN bool has(int i, int k) {
    return (Exact && i + 1 < Pieces) || (int)threadIdx.x + i * kThreads < k;
  }
  // 1 / rms of a row whose chains the threads have; see norm_sum.h. Successive calls use the halves of the memory in
  // turn.
  HOPPER_FN float inverse_of(Shared& s, float chain, int k, float eps, int half) {
    float* chains = s.floats + half * kThreads;
    chains[threadIdx.x] = chain;
    sync();
    const float* c = chains + (threadIdx.x & 31);
    return norm_inverse(simd_sum(norm_fold(c[0], c[32], c[64], c[96], c[128], c[160], c[192], c[224])), k, eps);
  }
  // Reads rows of x in float from the exchange and normalises them. A row takes one round trip, which norm_rows() needs
  // for each 1,024 columns, twice.
  template <int Pieces, bool Exact>
  HOPPER_FN void norm_wide_of(const StepLinearOp& op, Shared& s, const u64* taken, uint flag) {
    const int tid = (int)threadIdx.x, k = op.k;
    float weight[Pieces];
    UNROLL for (int i = 0; i < Pieces; i++) weight[i] = has<Pieces, Exact>(i, k) ? op.norm[tid + i * kThreads] : 0.0f;
#pragma unroll 1
    for (int row = 0; row < s.p.rows; row++) {
      const u64* from = taken + (i64)row * k + tid;
      float held[Pieces], chain = 0.0f;
      bool there;
      uint times = 0;
      do {
        u64 v[Pieces];
        there = true;
        UNROLL for (int i = 0; i < Pieces; i++) {
          v[i] = step_entry(0, flag);
          if (has<Pieces, Exact>(i, k)) v[i] = step_read(from + i * kThreads);
        }
        UNROLL for (int i = 0; i < Pieces; i++) {
          there = there && step_has_flag(v[i], flag);
          held[i] = as_float((uint)v[i]);
        }
        hopper_count_retry(times);
      } while (!simd_all(there));
      UNROLL for (int i = 0; i < Pieces; i++) chain = fma(held[i], held[i], chain);
      const float inverse = inverse_of(s, chain, k, op.eps, row & 1);
      T* to_row = rows_of(s) + row * (k + 8) + tid;
      UNROLL for (int i = 0; i < Pieces; i++) {
        if (has<Pieces, Exact>(i, k)) to_row[i * kThreads] = to<T>((held[i] * inverse) * weight[i]);
      }
    }
  }
  STEP_PART void norm_wide(const StepLinearOp& op, const u64* taken, uint flag) {
    enum { kMost = kStepMostHeld / kThreads };
    Shared& s = mine();
    if (op.k > (kMost - 1) * kThreads) return norm_wide_of<kMost, true>(op, s, taken, flag);
    norm_wide_of<kMost, false>(op, s, taken, flag);
  }

  // Reads all rows of x in T from the exchange, four elements at a time.
  HOPPER_FN void take_all_rows(int k, Shared& s, const u64* taken, uint flag) {
    enum { kAtOnce = 3 };
    const int in_row = k / 4, all = s.p.rows * in_row;
    int in_this = (int)threadIdx.x;  // the piece, counted from its row's first one
    T* to = rows_of(s) + 4 * in_this;
#pragma unroll 1
    for (int first = in_this; first - (int)threadIdx.x < all; first += kAtOnce * kThreads) {
      u64 v[kAtOnce][2];
      bool there;
      uint times = 0;
      do {
        there = true;
        UNROLL for (int i = 0; i < kAtOnce; i++) {
          v[i][0] = v[i][1] = step_entry(0, flag);
          if (first + i * kThreads < all) step_read2(taken + 2 * (first + i * kThreads), v[i]);
        }
        UNROLL for (int i = 0; i < kAtOnce; i++) there =
            there && step_has_flag(v[i][0], flag) && step_has_flag(v[i][1], flag);
        hopper_count_retry(times);
      } while (!simd_all(there));
      UNROLL for (int i = 0; i < kAtOnce; i++) {
#pragma unroll 1
        for (; in_this >= in_row; in_this -= in_row) to += 8;  // between the rows
        if (first + i * kThreads < all) *(uint2*)to = make_uint2((uint)v[i][0], (uint)v[i][1]);
        in_this += kThreads;
        to += 4 * kThreads;
      }
    }
  }
  // The first op's x becomes the stream.
  STEP_PART void begin_stream(const StepLinearOp& op) {
    Shared& s = mine();
#pragma unroll 1
    for (int row = 0; row < s.p.rows; row++) {
#pragma unroll 4
      for (int j = (int)threadIdx.x; j < op.k; j += kThreads) {
        stream_of(s, row)[j] =
            op.x_by_token != 0 ? embedded(s.p, row, j) : __ldcg((const float*)op.x + (i64)row * op.x_stride + j);
      }
    }
  }
  STEP_PART void write_stream(const StepLinearOp& op) {
    Shared& s = mine();
#pragma unroll 1
    for (int row = 0; row < s.p.rows; row++) {
#pragma unroll 1
      for (int j = (int)threadIdx.x; j < op.k; j += kThreads) {
        op.stream[(i64)row * op.stream_stride + j] = stream_of(s, row)[j];
      }
    }
  }
  // Adds the norm of the previous op's output to the stream, and makes x of the norm of the sum: twice the same code.
  // Weights are read while the output is awaited.
  template <int Pieces, bool Exact>
  HOPPER_FN void norm_stream_of(const StepLinearOp& op, Shared& s, const u64* taken, uint flag) {
    const int tid = (int)threadIdx.x, k = op.k;
    float weight[Pieces], post[Pieces];
    UNROLL for (int i = 0; i < Pieces; i++) {
      const bool here = has<Pieces, Exact>(i, k);
      weight[i] = here ? op.norm[tid + i * kThreads] : 0.0f;
      post[i] = here ? op.post_norm[tid + i * kThreads] : 0.0f;
    }
    take_all_rows(k, s, taken, flag);
    sync();
#pragma unroll 1
    for (int row = 0; row < s.p.rows; row++) {
      T* x = rows_of(s) + row * (k + 8) + tid;
      float* stream = stream_of(s, row) + tid;
      float v[Pieces];
      UNROLL for (int i = 0; i < Pieces; i++) v[i] = has<Pieces, Exact>(i, k) ? to_f(x[i * kThreads]) : 0.0f;
#pragma unroll 1
      for (int pass = 0; pass < 2; pass++) {
        float chain = 0.0f;
        UNROLL for (int i = 0; i < Pieces; i++) chain = fma(v[i], v[i], chain);
        const float inverse = inverse_of(s, chain, k, pass == 0 ? op.post_eps : op.eps, pass);
        T y[Pieces];
        UNROLL for (int i = 0; i < Pieces; i++) y[i] = to<T>((v[i] * inverse) * (pass == 0 ? post[i] : weight[i]));
        UNROLL for (int i = 0; i < Pieces; i++) {
          if (!has<Pieces, Exact>(i, k)) continue;
          if (pass == 1) {
            x[i * kThreads] = y[i];
          } else {
            stream[i * kThreads] = v[i] = fma(to_f(y[i]), op.add_scale, stream[i * kThreads]);
          }
        }
      }
    }
  }
  STEP_PART void norm_stream(const StepLinearOp& op, const u64* taken, uint flag) {
    enum { kMost = kStepMostStream / kThreads };
    Shared& s = mine();
    const int pieces = (op.k + kThreads - 1) / kThreads;
    if (pieces == 5) {
      norm_stream_of<5, true>(op, s, taken, flag);
    } else if (pieces == 10) {
      norm_stream_of<10, true>(op, s, taken, flag);
    } else {
      norm_stream_of<kMost, false>(op, s, taken, flag);
    }
    if (op.stream != nullptr && blockIdx.x == 0) write_stream(op);
  }

  // Whether take_normed() reads the rows of x. These norms need many registers, so linear() must have none in use then:
  // they come before it.
  HOPPER_FN bool normed_before(const StepLinearOp& op) {
    return General && op.norm != nullptr && op.x == nullptr && op.k <= kStepMostHeld;
  }
  HOPPER_FN void take_normed(int i) {
    Shared& s = mine();
    const StepLinearOp& op = op_at(s, i).linear;
    if (tiles_of(op) == 0) return;
    if (op.x != nullptr && op.streamed != 0) begin_stream(op);
    if (!normed_before(op)) return;
    const uint flag = flag_of(s, i) - 1;
    if (op.streamed != 0) {
      norm_stream(op, input_of(s, i), flag);
    } else {
      norm_wide(op, input_of(s, i), flag);
    }
  }

  // Reads the rows of x for op i.
  HOPPER_FN void take(const StepLinearOp& op, Shared& s, int i, int tid) {
    const uint flag = flag_of(s, i) - 1;
    if (normed_before(op)) return;
    if (op.norm != nullptr) {
      norm_rows(op, s, input_of(s, i), flag, tid);
    } else if (op.x != nullptr) {
      read_rows(op, s, tid);
    } else {
      take_rows(op.k, s, input_of(s, i), flag, tid);
    }
  }

  STEP_PART StepPlace linear(int i, StepPlace at) {
    Shared& s = mine();
    const StepLinearOp& op = op_at(s, i).linear;
    const int tid = (int)threadIdx.x, count = tiles_of(op), warp = tid >> 5, lane = tid & 31;
    const bool head = op.epilogue == kHopperStoreF32 && s.p.bests != nullptr;
    if (count == 0) {
      if (head) {
        no_best(s, tid);
        write_bests(s, tid);
      }
      return at;
    }
    const uint flag = flag_of(s, i);
    const int groups = (int)gridDim.x, chunks = (op.k + chunk_of(s) - 1) / chunk_of(s), halves = op.halves;
    const int slots = s.p.slots, lot = op.lot;
    Ahead ahead;
    Chain c;
#pragma unroll 1
    for (int first = 0; first < count; first += lot) {
      const int now = min(count - first, lot);
      if (first > 0) sync();  // as in chain(): these tiles take a turn of the ring or more
      if (warp < now) {
        look_ahead(op, s, ahead, (int)blockIdx.x + (first + warp) * groups, output_of(s, i), lane);
        prepare(s, c, StepPlace::after_few(at, warp * halves, slots), now, op.k, halves, lane);
      }
      if (first == 0) {
        take(op, s, i, tid);
        sync();
        if (head) no_best(s, tid);
      }
      if (warp < now) {
        float acc[4];
        chain(s, c, acc, lane);
        finish(op, ahead, acc, flag, lane);
      }
      at = StepPlace::after(at, now * halves * chunks, slots);
    }
    if (head) write_bests(s, tid);
    return at;
  }
};
