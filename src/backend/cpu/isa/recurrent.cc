// SPDX-License-Identifier: Apache-2.0
// gated_delta_net, mamba2 and short_conv; the contract is in ops/recurrent.h.
//
// A slice of a state, at most kStateSlice columns wide, stays in the first-level cache while all tokens of a block pass
// over it, sixteen to 64 columns at a time in registers. Columns are independent, so their division changes
// no bit.
#include "backend/cpu/isa/declare.h"
#include "backend/cpu/isa/row_loops.h"
#include "backend/cpu/recurrent_layout.h"
#include "backend/cpu/simd_math.h"
#include "base/math.h"

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

// Groups of sixteen columns that go through the inner loops together: as many as leave registers for three values each.
#if defined(__AVX512F__)
constexpr int kMostGroups = 4;
#elif defined(QUIRE_EMULATED_FMA)
constexpr int kMostGroups = 1;
#else
constexpr int kMostGroups = 2;
#endif

alignas(64) constexpr float kZeros[kMaxStateDim] = {};

QUIRE_INLINE F32x16 silu(F32x16 x) {
  return x / (splat(1.0f) + exp(neg(x)));
}

constexpr int64_t padded(int64_t n) {
  return round_up(n, kLanes);
}

// --- The convolution ---

// weight [count, kernel] to taps [kernel][kMaxStateDim].
void transpose_taps(const float* weight, int64_t kernel, int64_t count, float* taps) {
  int64_t c = 0;
  if (kernel == 4) {
    for (; c + kLanes <= count; c += kLanes) {
      const float* w = weight + 4 * c;
      F32x16 low_even, low_odd, high_even, high_odd, t[4];
      deinterleave(load(w), load(w + 16), &low_even, &low_odd);
      deinterleave(load(w + 32), load(w + 48), &high_even, &high_odd);
      deinterleave(low_even, high_even, &t[0], &t[2]);
      deinterleave(low_odd, high_odd, &t[1], &t[3]);
      for (int j = 0; j < 4; ++j) store(taps + j * kMaxStateDim + c, t[j]);
    }
  }
  for (; c < count; ++c) {
    for (int64_t j = 0; j < kernel; ++j) taps[j * kMaxStateDim + c] = weight[c * kernel + j];
  }
}

// One sequence's inputs of a convolution.
struct ConvInput {
  const CausalConv& conv;
  const float* x;  // the first row
  int64_t stride, tokens;
  const float* tail;  // the state's, or null: zeros

  // Channels from `channel` on at token t, counted from the first row; before it, in the tail.
  QUIRE_INLINE const float* row(const ConvInput& in, int64_t t, int64_t channel) {
    if (t >= 0) return in.x + t * in.stride + channel;
    if (in.tail == nullptr) return kZeros;
    return in.tail + (in.conv.kernel - 1 + t) * in.conv.channels + channel;
  }
};

template <int kKernel>  // 0: any
QUIRE_INLINE F32x16 convolve(const float* const* rows, const float* taps, int64_t kernel, int64_t c, int64_t n,
                             F32x16 sum) {
  const int64_t count = kKernel > 0 ? kKernel : kernel;
  for (int64_t j = 0; j < count; ++j) {
    sum = fma(load_some(taps + j * kMaxStateDim + c, n), load_some(rows[j] + c, n), sum);
  }
  return sum;
}

template <int kKernel>
void conv_silu_rows(const ConvInput& in, int64_t channel, int64_t count, int64_t begin, int64_t end, const float* taps,
                    float* out, int64_t out_stride) {
  const int64_t kernel = in.conv.kernel;
  const float* bias = in.conv.bias;
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t t = begin; t < end; ++t) {
    const float* rows[kMaxConvKernel];
    for (int64_t j = 0; j < kernel; ++j) rows[j] = ConvInput::row(in, t - kernel + 1 + j, channel);
    float* y = out + (t - begin) * out_stride;
    // A head's channels are a small part of a long row: no prefetcher sees the next row coming.
    const float* ahead = ConvInput::row(in, t + 4 < in.tokens ? t + 4 : t, channel);
    for (int64_t c = 0; c < whole; c += kLanes) {
      __builtin_prefetch(ahead + c);
      const F32x16 start = bias != nullptr ? load(bias + channel + c) : zero();
      store(y + c, silu(convolve<kKernel>(rows, taps, kernel, c, kLanes, start)));
    }
    if (whole < count) {
      const int64_t n = count - whole;
      const F32x16 start = bias != nullptr ? load_n(bias + channel + whole, n) : zero();
      store_n(y + whole, silu(convolve<0>(rows, taps, kernel, whole, n, start)), n);
    }
  }
}

// silu(convolution) of tokens [begin, end) of channels [channel, channel + count); taps is scratch.
void conv_silu(const ConvInput& in, int64_t channel, int64_t count, int64_t begin, int64_t end, float* taps, float* out,
               int64_t out_stride) {
  transpose_taps(in.conv.weight + channel * in.conv.kernel, in.conv.kernel, count, taps);
  if (in.conv.kernel == 4) return conv_silu_rows<4>(in, channel, count, begin, end, taps, out, out_stride);
  conv_silu_rows<0>(in, channel, count, begin, end, taps, out, out_stride);
}

// --- Small parts ---

QUIRE_INLINE F32x16 inverse_length(F32x16 squares) {
  return splat(1.0f / sqrt1(reduce_add(squares) + 1e-6f));
}

// q and k to unit length, q then times `scale`; returns their product.
QUIRE_INLINE float normalise(float* q, float* k, int64_t n, F32x16 scale) {
  F32x16 q_squares = zero(), k_squares = zero(), products = zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    const F32x16 x = load_some(q + i, lanes), y = load_some(k + i, lanes);
    q_squares = fma(x, x, q_squares);
    k_squares = fma(y, y, k_squares);
  }
  const F32x16 q_inverse = inverse_length(q_squares), k_inverse = inverse_length(k_squares);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    const F32x16 x = (load_some(q + i, lanes) * q_inverse) * scale, y = load_some(k + i, lanes) * k_inverse;
    store_some(q + i, x, lanes);
    store_some(k + i, y, lanes);
    products = fma(x, y, products);
  }
  return reduce_add(products);
}

// Column `column` of rows [begin, end) of x.
QUIRE_INLINE void take_column(const Tensor& x, int64_t column, int64_t begin, int64_t end, float* out) {
  for (int64_t t = begin; t < end; ++t) out[t - begin] = row_of(x, t)[column];
}

// Up to kMostGroups groups of sixteen columns of a row, the last perhaps partial.
template <int kGroups, bool kPartial>
struct Columns {
  QUIRE_INLINE F32x16 get(const float* p, int group, int64_t last) {
    return kPartial && group == kGroups - 1 ? load_n(p + group * kLanes, last) : load(p + group * kLanes);
  }
  QUIRE_INLINE void put(float* p, int group, F32x16 v, int64_t last) {
    if (kPartial && group == kGroups - 1) {
      store_n(p + group * kLanes, v, last);
    } else {
      store(p + group * kLanes, v);
    }
  }
};

// Calls Run<groups, partial>::go(run, column) for the columns of a slice.
template <template <int, bool> typename Run, int kGroups, typename Args>
QUIRE_INLINE void run_groups(const Args& run, int64_t column, int64_t count) {
  if constexpr (kGroups > 0) {
    if (padded(count) / kLanes != kGroups) return run_groups<Run, kGroups - 1>(run, column, count);
    const int64_t last = count - (kGroups - 1) * kLanes;
    if (last == kLanes) {
      Run<kGroups, false>::go(run, column, last);
    } else {
      Run<kGroups, true>::go(run, column, last);
    }
  }
}
template <template <int, bool> typename Run, typename Args>
QUIRE_INLINE void run_slice(const Args& run, int64_t width) {
  for (int64_t column = 0; column < width; column += kMostGroups * kLanes) {
    const int64_t rest = width - column;
    run_groups<Run, kMostGroups>(run, column, rest < kMostGroups * kLanes ? rest : kMostGroups * kLanes);
  }
}

// Inputs of the next block: a head's channels are a small part of a long row, so no prefetcher sees them coming, and
// the convolution would wait for them. A recurrence works in the first-level cache and leaves the time to ask for them.
struct NextInputs {
  const float* piece[3];  // of the first token
  int64_t count[3];       // floats
  int64_t tokens, stride;
};
QUIRE_INLINE void prefetch_inputs(const NextInputs& next, int64_t t) {
  if (t >= next.tokens) return;
  for (int i = 0; i < 3; ++i) {
    const float* at = next.piece[i] + t * next.stride;
    for (int64_t c = 0; c < next.count[i]; c += kLanes) __builtin_prefetch(at + c, 0, 2);
  }
}

// One slice of one head over a block of tokens.
struct SliceRun {
  int64_t tokens, rows, width;
  const float* source;  // [rows, width]: read before the first token
  float* state;         // [rows, width]: written; may be source
  const float* own;     // [tokens, kStateSlice]: the head's own input, v or x
  const float* left;    // [tokens, shared_stride]: k or B
  const float* right;   // [tokens, shared_stride]: q or C
  int64_t shared_stride;
  const float* decay;  // [tokens]: g
  const float* step;   // [tokens]: beta or dt
  const float* cross;  // [tokens]: qk; not read for Mamba-2
  float skip;          // Mamba-2's D
  NextInputs next;     // whose first token comes at the run's first
  float* out;
  int64_t out_stride;
};

// --- Gated delta net ---

// One pass over S per token: it updates S with this token's k and d, and computes the sums for the next token.
template <int kGroups, bool kPartial>
struct DeltaColumns {
  using C = Columns<kGroups, kPartial>;

  struct Sums {
    F32x16 m[kGroups], p[kGroups];
  };

  static void sum_first(const SliceRun& run, int64_t column, int64_t last, Sums* sums) {
    Sums s;
    for (int c = 0; c < kGroups; ++c) s.m[c] = s.p[c] = zero();
    for (int64_t i = 0; i < run.rows; ++i) {
      const F32x16 k = splat(run.left[i]), q = splat(run.right[i]);
      for (int c = 0; c < kGroups; ++c) {
        const F32x16 x = C::get(run.source + i * run.width + column, c, last);
        s.m[c] = fma(k, x, s.m[c]);
        s.p[c] = fma(q, x, s.p[c]);
      }
    }
    *sums = s;
  }

  template <bool kMore>
  static void pass(const SliceRun& run, int64_t t, int64_t column, int64_t last, const F32x16* d_in, Sums* sums) {
    Sums s;
    F32x16 d[kGroups];
    for (int c = 0; c < kGroups; ++c) {
      s.m[c] = s.p[c] = zero();
      d[c] = d_in[c];
    }
    const F32x16 g = splat(run.decay[t]);
    const float* from = (t == 0 ? run.source : run.state) + column;
    float* to = run.state + column;
    const float* k = run.left + t * run.shared_stride;
    const float* next_k = k + (kMore ? run.shared_stride : 0);
    const float* next_q = run.right + (t + (kMore ? 1 : 0)) * run.shared_stride;
    const int64_t width = run.width;
    for (int64_t i = 0; i < run.rows; ++i) {
      const F32x16 ki = splat(k[i]), nk = splat(next_k[i]), nq = splat(next_q[i]);
      for (int c = 0; c < kGroups; ++c) {
        const F32x16 x = fma(ki, d[c], C::get(from + i * width, c, last) * g);
        C::put(to + i * width, c, x, last);
        if (kMore) {
          s.m[c] = fma(nk, x, s.m[c]);
          s.p[c] = fma(nq, x, s.p[c]);
        }
      }
    }
    *sums = s;
  }

  static void go(const SliceRun& run, int64_t column, int64_t last) {
    Sums sums;
    sum_first(run, column, last, &sums);
    for (int64_t t = 0; t < run.tokens; ++t) {
      if (column == 0) prefetch_inputs(run.next, t);
      const F32x16 g = splat(run.decay[t]), beta = splat(run.step[t]), qk = splat(run.cross[t]);
      F32x16 d[kGroups];
      for (int c = 0; c < kGroups; ++c) {
        const F32x16 v = C::get(run.own + t * kStateSlice + column, c, last);
        d[c] = fma(sums.m[c], neg(g), v) * beta;
        C::put(run.out + t * run.out_stride + column, c, fma(d[c], qk, sums.p[c] * g), last);
      }
      if (t + 1 < run.tokens) {
        pass<true>(run, t, column, last, d, &sums);
      } else {
        pass<false>(run, t, column, last, d, &sums);
      }
    }
  }
};

// --- Mamba-2 ---

template <int kGroups, bool kPartial>
struct SsdColumns {
  using C = Columns<kGroups, kPartial>;

  static void go(const SliceRun& run, int64_t column, int64_t last) {
    const int64_t width = run.width;
    for (int64_t t = 0; t < run.tokens; ++t) {
      const F32x16 g = splat(run.decay[t]), dt = splat(run.step[t]), skip = splat(run.skip);
      F32x16 x[kGroups], u[kGroups], y[kGroups];
      for (int c = 0; c < kGroups; ++c) {
        x[c] = C::get(run.own + t * kStateSlice + column, c, last);
        u[c] = x[c] * dt;
        y[c] = zero();
      }
      const float* from = (t == 0 ? run.source : run.state) + column;
      float* to = run.state + column;
      const float* b = run.left + t * run.shared_stride;
      const float* right = run.right + t * run.shared_stride;
      for (int64_t i = 0; i < run.rows; ++i) {
        const F32x16 bi = splat(b[i]), ci = splat(right[i]);
        for (int c = 0; c < kGroups; ++c) {
          const F32x16 s = fma(bi, u[c], C::get(from + i * width, c, last) * g);
          C::put(to + i * width, c, s, last);
          y[c] = fma(ci, s, y[c]);
        }
      }
      for (int c = 0; c < kGroups; ++c) {
        C::put(run.out + t * run.out_stride + column, c, fma(x[c], skip, y[c]), last);
      }
    }
  }
};

// --- Items ---

// The parts of kStateScratchFloats.
struct StateScratch {
  float *left, *right, *own, *decay, *step, *cross, *a, *b, *taps;
};
QUIRE_INLINE StateScratch split_scratch(float* p) {
  StateScratch s;
  s.left = p;
  s.right = s.left + kStateBlock * kMaxStateDim;
  s.own = s.right + kStateBlock * kMaxStateDim;
  s.decay = s.own + kStateBlock * kStateSlice;
  s.step = s.decay + kStateBlock;
  s.cross = s.step + kStateBlock;
  s.a = s.cross + kStateBlock;
  s.b = s.a + kStateBlock;
  s.taps = s.b + kStateBlock;
  return s;
}

// The slice `index` of a head's state [rows, cols].
QUIRE_INLINE SliceRun slice_of(int64_t rows, int64_t cols, int64_t index) {
  const int64_t column = index * kStateSlice;
  SliceRun run = {};
  run.rows = rows;
  run.width = cols - column < kStateSlice ? cols - column : kStateSlice;
  return run;
}

// Tokens [begin, end) of a sequence over a slice that is `offset` floats after the start of a state; run has their
// inputs. Each token with a row destination ends a part of its own, which leaves its state there; the next part goes on
// from that page.
template <template <int, bool> typename Run>
void run_parts(const StateSequences& sequences, const StateLayer& states, int64_t sequence, int64_t begin, int64_t end,
               int64_t offset, SliceRun run) {
  const int64_t first = sequences.cu_seqlens_q[sequence];
  const auto page_after = [&](int64_t t) {
    const int32_t page = sequences.row_destination.empty() ? -1 : sequences.row_destination[first + t];
    return page >= 0 ? page : sequences.destination[sequence];
  };
  while (begin < end) {
    int64_t stop = sequences.row_destination.empty() ? end : begin + 1;
    while (stop < end && sequences.row_destination[first + stop - 1] < 0) ++stop;
    const float* source = state_of(states, begin > 0 ? page_after(begin - 1) : sequences.source[sequence]);
    run.state = state_of(states, page_after(stop - 1)) + offset;
    if (source != nullptr) {
      run.source = source + offset;
    } else {
      for (int64_t i = 0; i < run.rows * run.width; ++i) run.state[i] = 0.0f;
      run.source = run.state;
    }
    run.tokens = stop - begin;
    run_slice<Run>(run, run.width);
    run.own += run.tokens * kStateSlice;
    run.left += run.tokens * run.shared_stride;
    run.right += run.tokens * run.shared_stride;
    run.decay += run.tokens;
    run.step += run.tokens;
    run.cross += run.tokens;
    run.out += run.tokens * run.out_stride;
    run.next.tokens = 0;
    begin = stop;
  }
}

// The part of the next block's inputs that a unit asks for: its own; q comes with the item's first unit, k with its
// second.
QUIRE_INLINE NextInputs next_inputs(const GatedDeltaNetArgs& args, const ConvInput& in, const StateItem& item,
                                    int64_t unit, int64_t begin, int64_t own, int64_t width) {
  const float* row = in.x + begin * in.stride;
  const int64_t second = item.end - item.begin > 1 ? item.begin + 1 : item.begin;
  NextInputs next;
  next.piece[0] = row + own;
  next.count[0] = width;
  next.piece[1] = row + item.group * args.dk;
  next.count[1] = unit == item.begin ? args.dk : 0;
  next.piece[2] = row + (args.key_heads + item.group) * args.dk;
  next.count[2] = unit == second ? args.dk : 0;
  next.tokens = in.tokens - begin < kStateBlock ? in.tokens - begin : kStateBlock;
  next.stride = in.stride;
  return next;
}

// The prepared q and k of one key head: left k, right q, cross qk.
void delta_shared(const GatedDeltaNetArgs& args, const ConvInput& in, int64_t key_head, int64_t begin, int64_t end,
                  const StateScratch& s) {
  const int64_t dk = args.dk, stride = padded(dk);
  conv_silu(in, key_head * dk, dk, begin, end, s.taps, s.right, stride);
  conv_silu(in, (args.key_heads + key_head) * dk, dk, begin, end, s.taps, s.left, stride);
  const F32x16 scale = splat(1.0f / sqrt1(static_cast<float>(dk)));
  for (int64_t t = 0; t < end - begin; ++t) {
    s.cross[t] = normalise(s.right + t * stride, s.left + t * stride, dk, scale);
  }
}

void delta_gates(const GatedDeltaNetArgs& args, int64_t row, int64_t tokens, int64_t head, const StateScratch& s) {
  take_column(args.a, head, row, row + tokens, s.a);
  take_column(args.b, head, row, row + tokens, s.b);
  const F32x16 decay = splat(args.decay[head]), bias = splat(args.dt_bias[head]);
  map_row(
      s.a, s.decay, tokens,
      [ decay, bias ](F32x16 x) __attribute__((always_inline)) { return exp(decay * softplus(x + bias)); });
  map_row(
      s.b, s.step, tokens, [](F32x16 x) __attribute__((always_inline)) { return sigmoid(x); });
}

void ssd_gates(const Mamba2Args& args, int64_t row, int64_t tokens, int64_t head, const StateScratch& s) {
  take_column(args.dt, head, row, row + tokens, s.a);
  const F32x16 decay = splat(args.decay[head]), bias = splat(args.dt_bias[head]);
  const F32x16 least = splat(args.dt_min), most = splat(args.dt_max);
  map_row(
      s.a, s.step, tokens, [ bias, least, most ](F32x16 x) __attribute__((always_inline)) {
        return min(most, max(least, softplus(x + bias)));  // the bounds stand first to let NaN through
      });
  map_row(
      s.step, s.decay, tokens, [decay](F32x16 dt) __attribute__((always_inline)) { return exp(dt * decay); });
}

}  // namespace

void gated_delta_net(const GatedDeltaNetArgs& args, const StateItem& item, float* scratch) {
  const StateScratch s = split_scratch(scratch);
  const int64_t first = args.sequences.cu_seqlens_q[item.sequence];
  const int64_t tokens = args.sequences.cu_seqlens_q[item.sequence + 1] - first;
  const float* source = state_of(args.state, args.sequences.source[item.sequence]);
  const ConvInput in = {args.conv, row_of(args.qkv, first), args.qkv.stride, tokens, source};
  const int64_t tail = args.conv.tail_floats(), matrix = args.dk * args.dv;
  const int64_t slices = slices_of(args.dv), heads = args.value_heads / args.key_heads;
  for (int64_t begin = 0; begin < tokens; begin += kStateBlock) {
    const int64_t end = tokens - begin < kStateBlock ? tokens : begin + kStateBlock;
    delta_shared(args, in, item.group, begin, end, s);
    for (int64_t unit = item.begin; unit < item.end; ++unit) {
      const int64_t of_group = unit / slices, slice = unit % slices;
      const int64_t head = args.tiled ? of_group * args.key_heads + item.group : item.group * heads + of_group;
      SliceRun run = slice_of(args.dk, args.dv, slice);
      if (unit == item.begin || slice == 0) delta_gates(args, first + begin, end - begin, head, s);
      const int64_t column = head * args.dv + slice * kStateSlice;
      const int64_t own = 2 * args.key_heads * args.dk + column;
      conv_silu(in, own, run.width, begin, end, s.taps, s.own, kStateSlice);
      if (end < tokens) run.next = next_inputs(args, in, item, unit, end, own, run.width);
      run.own = s.own;
      run.left = s.left;
      run.right = s.right;
      run.shared_stride = padded(args.dk);
      run.decay = s.decay;
      run.step = s.step;
      run.cross = s.cross;
      run.out = row_of(args.out, first + begin) + column;
      run.out_stride = args.out.stride;
      run_parts<DeltaColumns>(args.sequences, args.state, item.sequence, begin, end,
                              tail + head * matrix + args.dk * slice * kStateSlice, run);
    }
  }
}

void mamba2(const Mamba2Args& args, const StateItem& item, float* scratch) {
  const StateScratch s = split_scratch(scratch);
  const int64_t first = args.sequences.cu_seqlens_q[item.sequence];
  const int64_t tokens = args.sequences.cu_seqlens_q[item.sequence + 1] - first;
  const float* source = state_of(args.state, args.sequences.source[item.sequence]);
  const ConvInput in = {args.conv, row_of(args.xbc, first), args.xbc.stride, tokens, source};
  const int64_t tail = args.conv.tail_floats(), matrix = args.state_size * args.head_dim;
  const int64_t slices = slices_of(args.head_dim), heads = args.heads / args.groups;
  const int64_t inner = args.heads * args.head_dim, stride = padded(args.state_size);
  for (int64_t begin = 0; begin < tokens; begin += kStateBlock) {
    const int64_t end = tokens - begin < kStateBlock ? tokens : begin + kStateBlock;
    conv_silu(in, inner + item.group * args.state_size, args.state_size, begin, end, s.taps, s.left, stride);
    conv_silu(in, inner + (args.groups + item.group) * args.state_size, args.state_size, begin, end, s.taps, s.right,
              stride);
    for (int64_t unit = item.begin; unit < item.end; ++unit) {
      const int64_t head = item.group * heads + unit / slices, slice = unit % slices;
      SliceRun run = slice_of(args.state_size, args.head_dim, slice);
      if (unit == item.begin || slice == 0) ssd_gates(args, first + begin, end - begin, head, s);
      const int64_t column = head * args.head_dim + slice * kStateSlice;
      conv_silu(in, column, run.width, begin, end, s.taps, s.own, kStateSlice);
      run.own = s.own;
      run.left = s.left;
      run.right = s.right;
      run.shared_stride = stride;
      run.decay = s.decay;
      run.step = s.step;
      run.cross = s.cross;
      run.skip = args.skip[head];
      run.out = row_of(args.out, first + begin) + column;
      run.out_stride = args.out.stride;
      run_parts<SsdColumns>(args.sequences, args.state, item.sequence, begin, end,
                            tail + head * matrix + args.state_size * slice * kStateSlice, run);
    }
  }
}

// The products B * x follow those of the tail in scratch, so that the inputs before a token are the rows above it.
void short_conv(const ShortConvArgs& args, int64_t channel_begin, int64_t channel_end, float* scratch) {
  constexpr int64_t kStride = kShortConvChannels;
  static_assert(kStride == kMaxStateDim);  // as transpose_taps lays them out
  const int64_t channels = args.conv.channels, kernel = args.conv.kernel, n = channel_end - channel_begin;
  float* taps = scratch;
  float* products = scratch + kMaxConvKernel * kStride;
  transpose_taps(args.conv.weight + channel_begin * kernel, kernel, n, taps);
  const float* bias = args.conv.bias == nullptr ? nullptr : args.conv.bias + channel_begin;
  const auto copy = [n](const float* from, float* to) {
    for (int64_t c = 0; c < n; ++c) to[c] = from[c];
  };
  for (size_t sequence = 0; sequence + 1 < args.sequences.cu_seqlens_q.size(); ++sequence) {
    const int64_t first = args.sequences.cu_seqlens_q[sequence], last = args.sequences.cu_seqlens_q[sequence + 1];
    const float* source = state_of(args.state, args.sequences.source[sequence]);
    float* destination = state_of(args.state, args.sequences.destination[sequence]);
    for (int64_t j = 0; j < kernel - 1; ++j) {
      copy(source == nullptr ? kZeros : source + j * channels + channel_begin, products + j * kStride);
    }
    for (int64_t begin = first; begin < last; begin += kStateBlock) {
      const int64_t end = last - begin < kStateBlock ? last : begin + kStateBlock;
      for (int64_t t = begin; t < end; ++t) {
        const float* bcx = row_of(args.bcx, t) + channel_begin;
        const float* window = products + (t - begin) * kStride;
        const float* rows[kMaxConvKernel];
        for (int64_t j = 0; j < kernel; ++j) rows[j] = window + j * kStride;
        float* newest = products + (t - begin + kernel - 1) * kStride;
        float* out = row_of(args.out, t) + channel_begin;
        for (int64_t c = 0; c < n; c += kLanes) {
          const int64_t lanes = n - c < kLanes ? n - c : kLanes;
          store_some(newest + c, load_some(bcx + c, lanes) * load_some(bcx + 2 * channels + c, lanes), lanes);
          const F32x16 start = bias != nullptr ? load_some(bias + c, lanes) : zero();
          const F32x16 sum = convolve<0>(rows, taps, kernel, c, lanes, start);
          store_some(out + c, load_some(bcx + channels + c, lanes) * sum, lanes);
        }
        const int32_t page = args.sequences.row_destination.empty() ? -1 : args.sequences.row_destination[t];
        if (page < 0) continue;
        for (int64_t j = 0; j < kernel - 1; ++j) {
          copy(window + (j + 1) * kStride, state_of(args.state, page) + j * channels + channel_begin);
        }
      }
      for (int64_t j = 0; j < kernel - 1; ++j) copy(products + (end - begin + j) * kStride, products + j * kStride);
    }
    for (int64_t j = 0; j < kernel - 1; ++j) {
      copy(products + j * kStride, destination + j * channels + channel_begin);
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
