// SPDX-License-Identifier: Apache-2.0
// From logits to tokens: argmax, the Gumbel-max draw under min_p, top_k and top_p, penalties, logprobs.
//
// A row is cut into chunks of fixed size, whose findings are merged in order, so a result depends on the row alone.
// Nothing is sorted: a cut is found by asking what lies at or above some thresholds, more and more narrowly.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/compat/math.h"
#include "kernels/params/sampling.h"

FN float sample_negative_infinity() {
  return as_float(0xff800000u);
}

// Floats in the order of unsigned numbers, and back. There is no -0 here.
FN uint sample_key(float x) {
  const uint bits = as_uint(x);
  return (bits >> 31) != 0u ? ~bits : bits | 0x80000000u;
}
FN float sample_of_key(uint key) {
  return as_float((key >> 31) != 0u ? key & 0x7fffffffu : ~key);
}

// The logit under the mask and the temperature; adding 0 turns -0 into 0.
FN float sample_value(float x, int token, CONSTANT const SampleParams& p, DEVICE const SampleRowData* row,
                      DEVICE const uint* masks) {
  if (row->mask >= 0) {
    const uint word = masks[(i64)row->mask * p.words + token / 32];
    if (((word >> (uint)(token % 32)) & 1u) == 0u) return sample_negative_infinity();
  }
  return x / row->temperature + 0.0f;
}

// The upper half of a product.
FN uint sample_high(uint a, uint b) {
  const uint a0 = a & 0xffffu, a1 = a >> 16, b0 = b & 0xffffu, b1 = b >> 16;
  const uint low = a0 * b0, middle = a1 * b0 + (low >> 16), other = a0 * b1 + (middle & 0xffffu);
  return a1 * b1 + (middle >> 16) + (other >> 16);
}

// Philox4x32-10 of counter (position, block) under the seed: the random words of tokens 4 block to 4 block + 3.
FN uint4 sample_words(DEVICE const SampleRowData* row, uint block) {
  uint x = row->position_low, y = row->position_high, z = block, w = 0u;
  uint k0 = row->seed_low, k1 = row->seed_high;
  for (int round = 0; round < 10; round++) {
    const uint high0 = sample_high(0xD2511F53u, x), low0 = 0xD2511F53u * x;
    const uint high1 = sample_high(0xCD9E8D57u, z), low1 = 0xCD9E8D57u * z;
    x = high1 ^ y ^ k0;
    y = low1;
    z = high0 ^ w ^ k1;
    w = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(x, y, z, w);
}
FN uint sample_word(uint4 words, int j) {
  return j == 0 ? words.x : j == 1 ? words.y : j == 2 ? words.z : words.w;
}

// -ln(-ln(1 - v)), v = (word + 1/2) / 2^32; near v = 1 from what is left of 1, which the float then holds.
FN float sample_gumbel(uint word) {
  const float v = ((float)word + 0.5f) * 0x1p-32f;
  const float left = ((float)(~word) + 0.5f) * 0x1p-32f;
  const float e = word < 0x80000000u ? -q_log1p(-v) : -q_log(left);
  return -q_log(e);
}
// At least that, without a logarithm: -ln(1 - v) >= v >= 2^exponent.
FN float sample_gumbel_bound(uint word) {
  const float v = ((float)word + 0.5f) * 0x1p-32f;
  return (float)(127 - (int)(as_uint(v) >> 23)) * 0.693148f + 0.001f;
}

// The larger value, of equal ones the lower token. All lanes get it.
FN void sample_best_of_lanes(THREAD float& value, THREAD int& token) {
  const float best = simd_max(value);
  token = simd_min(value == best ? token : 0x7fffffff);
  value = best;
}

struct SampleBest {
  float value[16];
  int token[16];
};
// The same over a threadgroup of `simdgroups`; ends with a barrier behind which `sm` may be used again.
FN void sample_best(Ctx c, TGROUP SampleBest& sm, int simdgroups, THREAD float& value, THREAD int& token) {
  sample_best_of_lanes(value, token);
  if (c.lane == 0) {
    sm.value[c.sg] = value;
    sm.token[c.sg] = token;
  }
  TG_BARRIER();
  value = sm.value[0];
  token = sm.token[0];
  for (int i = 1; i < simdgroups; i++) {
    const float other = sm.value[i];
    if (other > value || (other == value && sm.token[i] < token)) {
      value = other;
      token = sm.token[i];
    }
  }
  TG_BARRIER();
}

// Whether the draw must wait for a cut.
FN bool sample_has_cut(DEVICE const SampleRowData* row) {
  return row->greedy == 0 && (row->top_k > 0 || row->top_p < 1.0f || row->log_min_p <= 0.0f);
}

// A thread's 16 tokens of a chunk: four groups of four neighbours. Beyond the end: -infinity.
FN int sample_token(int begin, uint tid, int k) {
  return begin + (k >> 2) * (4 * kSampleThreads) + (int)tid * 4 + (k & 3);
}
FN void sample_load(CONSTANT const SampleParams& p, DEVICE const float* row, int begin, uint tid, THREAD float* x) {
  UNROLL for (int k = 0; k < 16; k += 4) {
    const int token = sample_token(begin, tid, k);
    if (p.aligned != 0 && token + 3 < p.vocab) {
      const float4 four = *(DEVICE const float4*)(row + token);
      x[k] = four.x;
      x[k + 1] = four.y;
      x[k + 2] = four.z;
      x[k + 3] = four.w;
    } else {
      UNROLL for (int j = 0; j < 4; j++) x[k + j] = token + j < p.vocab ? row[token + j] : sample_negative_infinity();
    }
  }
}

// Bias and penalties in place, one token a thread; or the logits as they were. Grid: (rows).
struct SampleEdits {
  enum { kThreads = kSampleThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE float* logits, DEVICE float* saved,
                     DEVICE const SampleRowData* rows, DEVICE const SampleEdit* edits) {
    DEVICE const SampleRowData* row = rows + c.tgx;
    DEVICE float* out = logits + (i64)c.tgx * p.stride;
    for (int i = row->first_edit + (int)c.tid; i < row->first_edit + row->num_edits; i += kSampleThreads) {
      const int token = edits[i].token;
      const uint what = edits[i].what;
      if (p.restore != 0) {
        out[token] = saved[i];
        continue;
      }
      float x = out[token];
      saved[i] = x;
      // A row that is broken stays so.
      const bool broken = x != x || x == as_float(0x7f800000u);
      if ((what & 1u) != 0u && !broken) x = sample_negative_infinity();
      x += edits[i].bias;
      if ((what & 2u) != 0u) x = x > 0.0f ? x / row->repetition : x * row->repetition;
      const uint count = what >> 2;
      if (count != 0u) {
        x -= row->frequency * (float)count;
        x -= row->presence;
      }
      out[token] = x;
    }
  }
};
KERNEL(sample_edits, SampleEdits, SampleParams, float, float, const SampleRowData, const SampleEdit)

// Each chunk's maximum; of rows without a cut also the draw. Grid: (chunks, rows).
struct SampleChunks {
  enum { kThreads = kSampleThreads };
  typedef SampleBest Smem;
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SamplePartial* partials,
                     DEVICE const float* logits, DEVICE const SampleRowData* rows, DEVICE const uint* masks) {
    DEVICE const SampleRowData* row = rows + c.tgy;
    const int begin = (int)c.tgx * kSampleChunk;
    float x[16];
    sample_load(p, logits + (i64)c.tgy * p.stride, begin, c.tid, x);
    float best = sample_negative_infinity();
    int token = 0x7fffffff;
    int faults = 0;
    UNROLL for (int k = 0; k < 16; k++) {
      const int id = sample_token(begin, c.tid, k);
      if (id >= p.vocab) continue;
      if (x[k] != x[k]) faults |= kSampleFaultNan;
      if (x[k] == as_float(0x7f800000u)) faults |= kSampleFaultInfinite;
      x[k] = sample_value(x[k], id, p, row, masks);
      if (x[k] > best || (x[k] == best && id < token)) {
        best = x[k];
        token = id;
      }
    }
    faults = (simd_any((faults & kSampleFaultNan) != 0) ? kSampleFaultNan : 0) |
             (simd_any((faults & kSampleFaultInfinite) != 0) ? kSampleFaultInfinite : 0);
    DEVICE SamplePartial* out = partials + (i64)c.tgy * p.chunks + c.tgx;
    sample_best(c, sm, kSampleThreads / 32, best, token);
    if (c.lane == 0) sm.token[c.sg] = faults;
    TG_BARRIER();
    if (c.tid == 0) {
      for (int i = 1; i < kSampleThreads / 32; i++) faults |= sm.token[i];
      out->max = best;
      out->max_token = token;
      out->faults = faults;
    }
    TG_BARRIER();
    if (row->greedy != 0 || sample_has_cut(row)) return;
    // The best value's own score is what others must beat; where even the bound of a score does not, no logarithm.
    float score = sample_negative_infinity();
    int drawn = token;
    if (best != sample_negative_infinity()) {
      score = best + sample_gumbel(sample_word(sample_words(row, (uint)(token / 4)), token % 4));
      UNROLL for (int k = 0; k < 16; k += 4) {
        const uint4 words = sample_words(row, (uint)(sample_token(begin, c.tid, k) / 4));
        UNROLL for (int j = 0; j < 4; j++) {
          const int id = sample_token(begin, c.tid, k + j);
          const uint word = sample_word(words, j);
          if (id >= p.vocab || !(x[k + j] + sample_gumbel_bound(word) >= score)) continue;
          const float mine = x[k + j] + sample_gumbel(word);
          if (mine > score || (mine == score && id < drawn)) {
            score = mine;
            drawn = id;
          }
        }
      }
    }
    sample_best(c, sm, kSampleThreads / 32, score, drawn);
    if (c.tid == 0) {
      out->score = score;
      out->score_token = drawn;
    }
  }
};
KERNEL(sample_chunks, SampleChunks, SampleParams, SamplePartial, const float, const SampleRowData, const uint)

FN float sample_row_max(Ctx c, CONSTANT const SampleParams& p, DEVICE const SamplePartial* partials) {
  float max_value = sample_negative_infinity();
  for (int i = (int)c.lane; i < p.chunks; i += 32) max_value = max(max_value, partials[i].max);
  return simd_max(max_value);
}
// What min_p leaves.
FN float sample_lowest(DEVICE const SampleRowData* row, float max_value) {
  return row->log_min_p <= 0.0f ? max_value + row->log_min_p : as_float(0xff7fffffu);
}
FN float sample_threshold(float max_value, int i) {
  // Below the maximum: dense where most cuts are.
  const float below = i < 6 ? 0.25f * (float)(i + 1) : i < 12 ? 1.5f + (float)(i - 5) : 7.5f + 4.0f * (float)(i - 11);
  return max_value - below;
}

// How much of each chunk lies at or above each threshold. Grid: (chunks, rows); rows without top_k and top_p leave.
struct SampleBinning {
  enum { kThreads = kSampleThreads };
  struct Smem {
    float weight[8][kSampleThresholds + 1];
    float count[8][kSampleThresholds + 1];
  };
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SampleBins* bins,
                     DEVICE const float* logits, DEVICE const SampleRowData* rows, DEVICE const uint* masks,
                     DEVICE const SamplePartial* partials) {
    DEVICE const SampleRowData* row = rows + c.tgy;
    if (row->greedy != 0 || (row->top_k == 0 && !(row->top_p < 1.0f))) return;
    const float max_value = sample_row_max(c, p, partials + (i64)c.tgy * p.chunks);
    const float lowest = sample_lowest(row, max_value);
    const int begin = (int)c.tgx * kSampleChunk;
    float x[16];
    sample_load(p, logits + (i64)c.tgy * p.stride, begin, c.tid, x);
    float weight[kSampleThresholds + 1], count[kSampleThresholds + 1];
    UNROLL for (int i = 0; i <= kSampleThresholds; i++) weight[i] = count[i] = 0.0f;
    UNROLL for (int k = 0; k < 16; k++) {
      const int id = sample_token(begin, c.tid, k);
      if (id >= p.vocab) continue;
      const float value = sample_value(x[k], id, p, row, masks);
      if (!(value >= lowest)) continue;
      const float e = q_exp(value - max_value);
      UNROLL for (int i = 0; i < kSampleThresholds; i++) {
        const bool above = value >= sample_threshold(max_value, i);
        weight[i] += above ? e : 0.0f;
        count[i] += above ? 1.0f : 0.0f;
      }
      weight[kSampleThresholds] += e;
      count[kSampleThresholds] += 1.0f;
    }
    UNROLL for (int i = 0; i <= kSampleThresholds; i++) {
      const float w = simd_sum(weight[i]), n = simd_sum(count[i]);
      if (c.lane == 0) {
        sm.weight[c.sg][i] = w;
        sm.count[c.sg][i] = n;
      }
    }
    TG_BARRIER();
    if (c.tid > kSampleThresholds) return;
    float w = 0.0f, n = 0.0f;
    for (int i = 0; i < kSampleThreads / 32; i++) {
      w += sm.weight[i][c.tid];
      n += sm.count[i][c.tid];
    }
    DEVICE SampleBins* out = bins + (i64)c.tgy * p.chunks + c.tgx;
    out->weight[c.tid] = w;
    out->count[c.tid] = n;
  }
};
KERNEL(sample_binning, SampleBinning, SampleParams, SampleBins, const float, const SampleRowData, const uint,
       const SamplePartial)

enum { kSampleList = 4096, kSampleWays = 7 };

// A row's threadgroup memory: values between two bounds, and sums of simdgroups.
struct SampleRowSmem {
  float list[kSampleList];
  float weight[16][kSampleWays + 1];
  float count[16][kSampleWays + 1];
  SampleBins bins;  // of all chunks
  SampleBest best;
};

// A row under the eyes of one threadgroup.
struct SampleView {
  DEVICE const float* logits;
  DEVICE const SampleRowData* row;
  DEVICE const uint* masks;
  DEVICE const SamplePartial* partials;
  float max_value;
};

// The search for a cut: the largest value v with weight(x >= v) >= target, where a weight is 1 or exp(x - max). Known
// are two keys: the weight at `low` reaches the target, that at `high` does not. `above` and `count_above` are of what
// lies at or above `high`, `count` of what lies at or above `low`.
struct SampleSearch {
  uint low, high;
  float above, count_above, count;
  float target;
  int by_mass;
  int listed;  // values in the list, or -1: they are taken from the row
};

FN float sample_weight(float value, float max_value, int by_mass) {
  return by_mass != 0 ? q_exp(value - max_value) : 1.0f;
}

// The values between the bounds into the list: each thread its own, thread by thread.
FN void sample_collect(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                       THREAD SampleSearch& s) {
  const float lowest = sample_of_key(s.low);
  int at = 0;
  for (int pass = 0; pass < 2; pass++) {
    int mine = 0;
    for (int chunk = 0; chunk < p.chunks; chunk++) {
      if (v.partials[chunk].max < lowest) continue;
      const int end = min((chunk + 1) * kSampleChunk, p.vocab);
      for (int i = chunk * kSampleChunk + (int)c.tid; i < end; i += kSampleRowThreads) {
        const float value = sample_value(v.logits[i], i, p, v.row, v.masks);
        const uint key = sample_key(value);
        if (key < s.low || key >= s.high) continue;
        if (pass == 1 && at + mine < kSampleList) sm.list[at + mine] = value;
        mine++;
      }
    }
    if (pass == 1) break;
    // How many the threads before this one have.
    for (uint lane = 0; lane < 32; lane++) {
      const int others = simd_shuffle(mine, lane);
      if (lane < c.lane) at += others;
    }
    const int all = simd_sum(mine);
    if (c.lane == 0) sm.count[c.sg][0] = (float)all;
    TG_BARRIER();
    int listed = 0;
    for (int i = 0; i < kSampleRowThreads / 32; i++) {
      if (i < (int)c.sg) at += (int)sm.count[i][0];
      listed += (int)sm.count[i][0];
    }
    s.listed = listed;
  }
  TG_BARRIER();
}

// Sums over the values between the bounds that reach each of the ways' keys; sums[kSampleWays]: all of them.
FN void sample_sums(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                    THREAD const SampleSearch& s, uint step, THREAD float* weights, THREAD float* counts) {
  UNROLL for (int i = 0; i <= kSampleWays; i++) weights[i] = counts[i] = 0.0f;
  const float lowest = sample_of_key(s.low);
  const int parts = s.listed >= 0 ? 1 : p.chunks;
  for (int part = 0; part < parts; part++) {
    if (s.listed < 0 && v.partials[part].max < lowest) continue;
    const int begin = s.listed >= 0 ? 0 : part * kSampleChunk;
    const int end = s.listed >= 0 ? s.listed : min(begin + kSampleChunk, p.vocab);
    for (int i = begin + (int)c.tid; i < end; i += kSampleRowThreads) {
      const float value = s.listed >= 0 ? sm.list[i] : sample_value(v.logits[i], i, p, v.row, v.masks);
      const uint key = sample_key(value);
      if (key < s.low || key >= s.high) continue;
      const float w = sample_weight(value, v.max_value, s.by_mass);
      UNROLL for (int j = 0; j < kSampleWays; j++) {
        const bool reaches = (key - s.low) / step >= (uint)(j + 1);
        weights[j] += reaches ? w : 0.0f;
        counts[j] += reaches ? 1.0f : 0.0f;
      }
      weights[kSampleWays] += w;
      counts[kSampleWays] += 1.0f;
    }
  }
  UNROLL for (int i = 0; i <= kSampleWays; i++) {
    const float w = simd_sum(weights[i]), n = simd_sum(counts[i]);
    if (c.lane == 0) {
      sm.weight[c.sg][i] = w;
      sm.count[c.sg][i] = n;
    }
  }
  TG_BARRIER();
  UNROLL for (int i = 0; i <= kSampleWays; i++) {
    float w = 0.0f, n = 0.0f;
    for (int g = 0; g < kSampleRowThreads / 32; g++) {
      w += sm.weight[g][i];
      n += sm.count[g][i];
    }
    weights[i] = w;
    counts[i] = n;
  }
  TG_BARRIER();
}

// Narrows the bounds until one key is between them.
FN void sample_narrow(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                      THREAD SampleSearch& s) {
  while (s.high - s.low > 1u) {
    if (s.listed < 0 && s.count - s.count_above <= (float)kSampleList) sample_collect(c, p, sm, v, s);
    float weights[kSampleWays + 1], counts[kSampleWays + 1];
    const uint step = max((s.high - s.low + (uint)kSampleWays) / (uint)(kSampleWays + 1), 1u);
    sample_sums(c, p, sm, v, s, step, weights, counts);
    // The highest way that reaches the target; sums only rise from the last way to the first.
    int way = -1;
    UNROLL for (int j = 0; j < kSampleWays; j++) {
      if (s.low + step * (uint)(j + 1) < s.high && s.above + weights[j] >= s.target) way = j;
    }
    const uint low = s.low;
    if (way >= 0) {
      s.low = low + step * (uint)(way + 1);
      s.count = s.count_above + counts[way];
    }
    const uint next = low + step * (uint)(way + 2);
    if (way + 1 < kSampleWays && next < s.high) {
      s.above += weights[way + 1];
      s.count_above += counts[way + 1];
      s.high = next;
    }
  }
}

// What the chunks found together, summed in their order.
FN void sample_merge_bins(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm,
                          DEVICE const SampleBins* bins) {
  if (c.tid <= kSampleThresholds) {
    float weight = 0.0f, count = 0.0f;
    for (int i = 0; i < p.chunks; i++) {
      weight += bins[i].weight[c.tid];
      count += bins[i].count[c.tid];
    }
    sm.bins.weight[c.tid] = weight;
    sm.bins.count[c.tid] = count;
  }
  TG_BARRIER();
}

// Begins a search from there.
FN void sample_begin(TGROUP const SampleRowSmem& sm, float max_value, float lowest, THREAD SampleSearch& s) {
  s.low = sample_key(lowest);
  s.high = sample_key(max_value) + 1u;
  s.above = s.count_above = 0.0f;
  s.listed = -1;
  s.count = sm.bins.count[kSampleThresholds];
  for (int t = 0; t < kSampleThresholds; t++) {
    const float threshold = sample_threshold(max_value, t);
    if (!(threshold > lowest)) return;
    const float count = sm.bins.count[t];
    const float weight = s.by_mass != 0 ? sm.bins.weight[t] : count;
    if (weight >= s.target) {
      s.low = sample_key(threshold);
      s.count = count;
      return;
    }
    s.high = sample_key(threshold);
    s.above = weight;
    s.count_above = count;
  }
}

// Of the tokens with exactly this value, the id of the n-th.
FN int sample_nth_equal(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                        float value, float n) {
  int low = -1, high = p.vocab - 1;  // ids up to `low` hold fewer than n, ids up to `high` hold n
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    float count = 0.0f;
    for (int i = (int)c.tid; i <= middle; i += kSampleRowThreads) {
      if (sample_value(v.logits[i], i, p, v.row, v.masks) == value) count += 1.0f;
    }
    count = simd_sum(count);
    if (c.lane == 0) sm.count[c.sg][0] = count;
    TG_BARRIER();
    count = 0.0f;
    for (int g = 0; g < kSampleRowThreads / 32; g++) count += sm.count[g][0];
    TG_BARRIER();
    if (count >= n) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return high;
}

// The last candidate: its value, and of those with that value the highest id.
FN void sample_cut(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                   DEVICE const SampleBins* bins, THREAD float& value, THREAD int& last) {
  last = 0x7fffffff;
  value = sample_lowest(v.row, v.max_value);
  if (v.row->top_k == 0 && !(v.row->top_p < 1.0f)) return;
  sample_merge_bins(c, p, sm, bins);
  SampleSearch s;
  if (v.row->top_k > 0) {
    s.by_mass = 0;
    s.target = (float)v.row->top_k;
    sample_begin(sm, v.max_value, value, s);
    if (s.count >= s.target) {
      sample_narrow(c, p, sm, v, s);
      value = sample_of_key(s.low);
    }
  }
  if (!(v.row->top_p < 1.0f)) return;
  s.by_mass = 1;
  if (v.row->top_k > 0) {
    // What top_k left is few as a rule: it is summed anew.
    const float count = s.count;
    s.low = sample_key(value);
    s.high = sample_key(v.max_value) + 1u;
    s.above = s.count_above = 0.0f;
    s.count = count;
    s.listed = -1;
    if (count <= (float)kSampleList) sample_collect(c, p, sm, v, s);
    float weights[kSampleWays + 1], counts[kSampleWays + 1];
    sample_sums(c, p, sm, v, s, 0x80000000u, weights, counts);
    s.target = v.row->top_p * weights[kSampleWays];
  } else {
    s.target = v.row->top_p * sm.bins.weight[kSampleThresholds];
    sample_begin(sm, v.max_value, value, s);
  }
  sample_narrow(c, p, sm, v, s);
  value = sample_of_key(s.low);
  const float equal = s.count - s.count_above;
  const float missing = (s.target - s.above) / q_exp(value - v.max_value);
  const float kept = max(1.0f, min(equal, -floor(-missing)));
  if (kept < equal) last = sample_nth_equal(c, p, sm, v, value, kept);
}

// The draw over what the cut leaves.
FN int sample_draw(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                   float cut, int last) {
  float score = sample_negative_infinity();
  int drawn = 0x7fffffff;
  for (int chunk = 0; chunk < p.chunks; chunk++) {
    if (v.partials[chunk].max < cut) continue;
    const int end = min((chunk + 1) * kSampleChunk, p.vocab);
    for (int i = chunk * kSampleChunk + (int)c.tid; i < end; i += kSampleRowThreads) {
      const float value = sample_value(v.logits[i], i, p, v.row, v.masks);
      if (value < cut || (value == cut && i > last)) continue;
      const float mine = value + sample_gumbel(sample_word(sample_words(v.row, (uint)(i / 4)), i % 4));
      if (mine > score) {
        score = mine;
        drawn = i;
      }
    }
  }
  sample_best(c, sm.best, kSampleRowThreads / 32, score, drawn);
  return drawn;
}

// The token of each row. Grid: (rows).
struct SampleRows {
  enum { kThreads = kSampleRowThreads };
  typedef SampleRowSmem Smem;
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SampleResult* results,
                     DEVICE const float* logits, DEVICE const SampleRowData* rows, DEVICE const uint* masks,
                     DEVICE const SamplePartial* all_partials, DEVICE const SampleBins* all_bins) {
    DEVICE const SampleRowData* row = rows + c.tgx;
    DEVICE const SamplePartial* partials = all_partials + (i64)c.tgx * p.chunks;
    // Each simdgroup merges the chunks for itself.
    float max_value = sample_negative_infinity(), score = max_value;
    int token = 0x7fffffff, drawn = token, faults = 0;
    for (int i = (int)c.lane; i < p.chunks; i += 32) {
      faults |= partials[i].faults;
      if (partials[i].max > max_value) {
        max_value = partials[i].max;
        token = partials[i].max_token;
      }
      if (partials[i].score > score) {
        score = partials[i].score;
        drawn = partials[i].score_token;
      }
    }
    sample_best_of_lanes(max_value, token);
    sample_best_of_lanes(score, drawn);
    faults = (simd_any((faults & kSampleFaultNan) != 0) ? kSampleFaultNan : 0) |
             (simd_any((faults & kSampleFaultInfinite) != 0) ? kSampleFaultInfinite : 0);
    if (max_value == as_float(0x7f800000u)) faults |= kSampleFaultInfinite;
    if (max_value == sample_negative_infinity()) faults |= kSampleFaultEmpty;
    if (faults == 0 && row->greedy == 0) {
      if (sample_has_cut(row)) {
        const SampleView v = {logits + (i64)c.tgx * p.stride, row, masks, partials, max_value};
        float cut = 0.0f;
        int last = 0;
        sample_cut(c, p, sm, v, all_bins + (i64)c.tgx * p.chunks, cut, last);
        token = sample_draw(c, p, sm, v, cut, last);
      } else {
        token = drawn;
      }
    }
    if (c.tid != 0) return;
    results[c.tgx].token = faults == 0 ? token : 0;
    results[c.tgx].faults = faults;
    results[c.tgx].logprob = 0.0f;
    results[c.tgx].rank = 0;
  }
};
KERNEL(sample_rows, SampleRows, SampleParams, SampleResult, const float, const SampleRowData, const uint,
       const SamplePartial, const SampleBins)

// Each chunk's part of the log-softmax and its likeliest tokens, of the logits as they are. Grid: (chunks, rows).
struct SampleLogprobChunks {
  enum { kThreads = kSampleThreads };
  typedef SampleBest Smem;
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SampleLogprobPartial* partials,
                     DEVICE const float* logits, DEVICE const SampleRowData* rows) {
    DEVICE const SampleRowData* row = rows + c.tgy;
    if (row->logprobs < 0) return;
    const int begin = (int)c.tgx * kSampleChunk;
    float x[16];
    sample_load(p, logits + (i64)c.tgy * p.stride, begin, c.tid, x);
    DEVICE SampleLogprobPartial* out = partials + (i64)c.tgy * p.chunks + c.tgx;
    uint taken = 0u;  // a bit for each of this thread's tokens that is in the list, or is none
    UNROLL for (int k = 0; k < 16; k++) {
      if (sample_token(begin, c.tid, k) >= p.vocab) taken |= 1u << (uint)k;
    }
    float max_value = 0.0f;
    for (int n = 0; n < max(row->logprobs, 1); n++) {
      float best = sample_negative_infinity();
      int token = 0x7fffffff, mine = 0;
      UNROLL for (int k = 0; k < 16; k++) {
        const int id = sample_token(begin, c.tid, k);
        if (((taken >> (uint)k) & 1u) != 0u || !(x[k] > best || token == 0x7fffffff)) continue;
        best = x[k];
        token = id;
        mine = k;
      }
      const int own = token;
      sample_best(c, sm, kSampleThreads / 32, best, token);
      if (own == token) taken |= 1u << (uint)mine;
      if (n == 0) max_value = best;
      if (c.tid == 0) {
        out->value[n] = best;
        out->token[n] = token == 0x7fffffff ? -1 : token;
      }
    }
    float sum = 0.0f;
    UNROLL for (int k = 0; k < 16; k++) {
      // A chunk of -infinity alone adds nothing.
      const bool counts = sample_token(begin, c.tid, k) < p.vocab && x[k] != sample_negative_infinity();
      sum += counts ? q_exp(x[k] - max_value) : 0.0f;
    }
    sum = simd_sum(sum);
    if (c.lane == 0) sm.value[c.sg] = sum;
    TG_BARRIER();
    if (c.tid != 0) return;
    sum = 0.0f;
    for (int i = 0; i < kSampleThreads / 32; i++) sum += sm.value[i];
    out->max = max_value;
    out->sum = sum;
  }
};
KERNEL(sample_logprob_chunks, SampleLogprobChunks, SampleParams, SampleLogprobPartial, const float, const SampleRowData)

// The sampled token's logprob and rank, and the likeliest tokens in order. Grid: (rows).
struct SampleLogprobRows {
  enum { kThreads = kSampleRowThreads };
  struct Smem {
    float value[kSampleMaxChunks * kSampleTop];
    int token[kSampleMaxChunks * kSampleTop];
    float count[16];
  };
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SampleResult* results,
                     DEVICE SampleTopResult* tops, DEVICE const float* logits, DEVICE const SampleRowData* rows,
                     DEVICE const SampleLogprobPartial* all_partials) {
    DEVICE const SampleRowData* row = rows + c.tgx;
    if (row->logprobs < 0 || results[c.tgx].faults != 0) return;
    DEVICE const SampleLogprobPartial* partials = all_partials + (i64)c.tgx * p.chunks;
    DEVICE const float* x = logits + (i64)c.tgx * p.stride;
    float max_value = partials[0].max;
    for (int i = 1; i < p.chunks; i++) max_value = max(max_value, partials[i].max);
    float sum = 0.0f;
    for (int i = 0; i < p.chunks; i++) {
      if (partials[i].max != sample_negative_infinity()) sum += partials[i].sum * q_exp(partials[i].max - max_value);
    }
    const float log_sum = q_log(sum);
    const float own = x[results[c.tgx].token];
    float count = 0.0f;
    for (int i = (int)c.tid; i < p.vocab; i += kSampleRowThreads) count += x[i] >= own ? 1.0f : 0.0f;
    count = simd_sum(count);
    if (c.lane == 0) sm.count[c.sg] = count;

    // A candidate's place is how many are better.
    const int wanted = row->logprobs;
    const int candidates = p.chunks * wanted;
    for (int i = (int)c.tid; i < candidates; i += kSampleRowThreads) {
      sm.value[i] = partials[i / wanted].value[i % wanted];
      sm.token[i] = partials[i / wanted].token[i % wanted];
    }
    TG_BARRIER();
    for (int i = (int)c.tid; i < candidates; i += kSampleRowThreads) {
      const float value = sm.value[i];
      const int token = sm.token[i];
      if (token < 0) continue;
      int place = 0;
      for (int j = 0; j < candidates && place < wanted; j++) {
        const bool better = sm.token[j] >= 0 && (sm.value[j] > value || (sm.value[j] == value && sm.token[j] < token));
        place += better ? 1 : 0;
      }
      if (place >= wanted) continue;
      tops[c.tgx * kSampleTop + place].token = token;
      tops[c.tgx * kSampleTop + place].logprob = (value - max_value) - log_sum;
    }
    for (int i = p.vocab + (int)c.tid; i < wanted; i += kSampleRowThreads) tops[c.tgx * kSampleTop + i].token = -1;
    if (c.tid != 0) return;
    count = 0.0f;
    for (int g = 0; g < kSampleRowThreads / 32; g++) count += sm.count[g];
    results[c.tgx].logprob = (own - max_value) - log_sum;
    results[c.tgx].rank = (int)count;
  }
};
KERNEL(sample_logprob_rows, SampleLogprobRows, SampleParams, SampleResult, SampleTopResult, const float,
       const SampleRowData, const SampleLogprobPartial)

// Tokens of the step before go into this one's. Grid: (tokens / threads, rounded up).
struct TakeSampled {
  enum { kThreads = 256 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const TakeSampledParams& p, TGROUP Smem& sm, DEVICE int* tokens,
                     DEVICE const int* rows, DEVICE const SampleResult* results) {
    const int i = (int)(c.tgx * kThreads + c.tid);
    if (i < p.count && rows[i] >= 0) tokens[i] = results[rows[i]].token;
  }
};
KERNEL(take_sampled, TakeSampled, TakeSampledParams, int, const int, const SampleResult)
