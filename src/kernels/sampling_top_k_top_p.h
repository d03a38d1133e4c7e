// SPDX-License-Identifier: Apache-2.0
// The cut-off of a row under min_p, top_k and top_p: the value at which its candidates end.
//
// Nothing is sorted. The search for a cut-off adds up what lies at or above some thresholds, and narrows them. The
// first pass runs over all chunks in parallel. The chunks then list the values between the two thresholds that enclose
// the cut-off, and one threadgroup searches these lists.
#pragma once

#include "kernels/sampling_common.h"

FN float sample_row_max(Ctx c, CONSTANT const SampleParams& p, DEVICE const SamplePartial* partials) {
  float max_value = sample_negative_infinity();
  for (int i = (int)c.lane; i < p.chunks; i += 32) max_value = max(max_value, partials[i].max);
  return simd_max(max_value);
}
// The lowest value that min_p admits.
FN float sample_lowest(DEVICE const SampleRowData* row, float max_value) {
  return row->settings.log_min_p <= 0.0f ? max_value + row->settings.log_min_p : as_float(0xff7fffffu);
}
FN float sample_threshold(float max_value, int i) {
  // Distances below the maximum; they are close together where most cut-offs lie.
  const float below = i < 6 ? 0.25f * (float)(i + 1) : i < 12 ? 1.5f + (float)(i - 5) : 7.5f + 4.0f * (float)(i - 11);
  return max_value - below;
}

// Adds up how much of each chunk lies at or above each threshold, for rows with top_k or top_p. Grid: (chunks, rows).
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
    if (row->greedy != 0 || (row->settings.top_k == 0 && !(row->settings.top_p < 1.0f))) return;
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

// Adds up the chunks: each simdgroup adds its own ones, then the simdgroups are added in order.
struct SampleListSmem {
  float parts[8][2 * (kSampleThresholds + 1)];
  SampleBins bins;
  int count[8];
  float low[8], high[8];
};
FN void sample_merge_bins(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleListSmem& sm,
                          DEVICE const SampleBins* bins) {
  // One lane for each of the 32 numbers in a record.
  float sum = 0.0f;
  for (int i = (int)c.sg; i < p.chunks; i += 8) {
    sum += c.lane <= kSampleThresholds ? bins[i].weight[c.lane] : bins[i].count[c.lane - (kSampleThresholds + 1)];
  }
  sm.parts[c.sg][c.lane] = sum;
  TG_BARRIER();
  if (c.tid < 32) {
    sum = 0.0f;
    for (int g = 0; g < 8; g++) sum += sm.parts[g][c.lane];
    if (c.lane <= kSampleThresholds) {
      sm.bins.weight[c.lane] = sum;
    } else {
      sm.bins.count[c.lane - (kSampleThresholds + 1)] = sum;
    }
  }
  TG_BARRIER();
}

// Starts a search between the two thresholds that enclose the cut-off.
FN void sample_begin(TGROUP const SampleBins& bins, float max_value, float lowest, THREAD SampleSearch& s) {
  s.low = sample_key(lowest);
  s.high = sample_key(max_value) + 1u;
  s.above = s.count_above = 0.0f;
  s.count = bins.count[kSampleThresholds];
  for (int t = 0; t < kSampleThresholds; t++) {
    const float threshold = sample_threshold(max_value, t);
    if (!(threshold > lowest)) return;
    const float count = bins.count[t];
    const float weight = s.by_mass != 0 ? bins.weight[t] : count;
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

// Decides what to search for in a row without faults.
FN void sample_plan(TGROUP const SampleBins& bins, DEVICE const SampleRowData* row, float max_value,
                    THREAD SampleSearch& s) {
  const float lowest = sample_lowest(row, max_value);
  // A top_k that keeps everything is no limit.
  const bool by_count = row->settings.top_k > 0 && (float)row->settings.top_k < bins.count[kSampleThresholds];
  const bool by_mass = row->settings.top_p < 1.0f;
  s.kind = by_count && by_mass ? kSampleSecondCut : by_count || by_mass ? kSampleOneCut : kSampleMinCut;
  s.by_mass = by_count ? 0 : 1;
  s.target = by_count ? (float)row->settings.top_k : row->settings.top_p * bins.weight[kSampleThresholds];
  s.low = sample_key(lowest);
  if (s.kind != kSampleMinCut) sample_begin(bins, max_value, lowest, s);
}

// Whether a row has a cut-off and no fault. Each simdgroup finds out for itself.
FN bool sample_is_cut(Ctx c, CONSTANT const SampleParams& p, DEVICE const SampleRowData* row,
                      DEVICE const SamplePartial* partials, THREAD float& max_value) {
  int faults = 0;
  float best = sample_negative_infinity();
  for (int i = (int)c.lane; i < p.chunks; i += 32) {
    faults |= partials[i].faults;
    best = max(best, partials[i].max);
  }
  max_value = simd_max(best);
  const bool broken = simd_any(faults != 0) || max_value == sample_negative_infinity();
  return !broken && max_value != as_float(0x7f800000u) && sample_has_cut(row);
}

// Lists each chunk's values between the bounds of the search, in thread order; if a second search follows, all values
// above the lower bound. Grid: (chunks, rows).
struct SampleList {
  enum { kThreads = kSampleThreads };
  typedef SampleListSmem Smem;
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE float* values,
                     DEVICE SampleListed* listed, DEVICE SampleSearch* searches, DEVICE const float* logits,
                     DEVICE const SampleRowData* rows, DEVICE const uint* masks, DEVICE const SamplePartial* partials,
                     DEVICE const SampleBins* bins) {
    DEVICE const SampleRowData* row = rows + c.tgy;
    const i64 first = (i64)c.tgy * p.chunks;
    SampleSearch s = {};
    float max_value = 0.0f;
    if (sample_is_cut(c, p, row, partials + first, max_value)) {
      const bool binned = row->settings.top_k > 0 || row->settings.top_p < 1.0f;
      if (binned) sample_merge_bins(c, p, sm, bins + first);
      if (binned) {
        sample_plan(sm.bins, row, max_value, s);
      } else {
        s.kind = kSampleMinCut;
        s.low = sample_key(sample_lowest(row, max_value));
      }
    }
    if (c.tgx == 0 && c.tid == 0) searches[c.tgy] = s;
    if (s.kind < kSampleOneCut) return;
    const uint end = s.kind == kSampleSecondCut ? sample_key(max_value) + 1u : s.high;
    const int begin = (int)c.tgx * kSampleChunk;
    float x[16];
    float low = as_float(0x7f800000u), high = sample_negative_infinity();
    uint taken = 0u;
    int mine = 0;
    if (partials[first + c.tgx].max >= sample_of_key(s.low)) {
      sample_load(p, logits + (i64)c.tgy * p.stride, begin, c.tid, x);
      UNROLL for (int k = 0; k < 16; k++) {
        const int id = sample_token(begin, c.tid, k);
        if (id >= p.vocab) continue;
        x[k] = sample_value(x[k], id, p, row, masks);
        const uint key = sample_key(x[k]);
        if (key < s.low || key >= end) continue;
        low = min(low, x[k]);
        high = max(high, x[k]);
        taken |= 1u << (uint)k;
        mine++;
      }
    }
    // How many values the threads before this one have.
    int at = 0;
    for (uint lane = 0; lane < 32; lane++) {
      const int others = simd_shuffle(mine, lane);
      if (lane < c.lane) at += others;
    }
    const int all = simd_sum(mine);
    low = simd_min(low);
    high = simd_max(high);
    if (c.lane == 0) {
      sm.count[c.sg] = all;
      sm.low[c.sg] = low;
      sm.high[c.sg] = high;
    }
    TG_BARRIER();
    int count = 0;
    for (int i = 0; i < kSampleThreads / 32; i++) {
      if (i < (int)c.sg) at += sm.count[i];
      count += sm.count[i];
      low = min(low, sm.low[i]);
      high = max(high, sm.high[i]);
    }
    if (c.tid == 0) {
      DEVICE SampleListed* out = listed + first + c.tgx;
      out->count = count;
      out->low = low;
      out->high = high;
    }
    DEVICE float* to = values + (first + c.tgx) * kSampleChunk;
    UNROLL for (int k = 0; k < 16; k++) {
      if (((taken >> (uint)k) & 1u) != 0u) to[at++] = x[k];
    }
  }
};
KERNEL(sample_list, SampleList, SampleParams, float, SampleListed, SampleSearch, const float, const SampleRowData,
       const uint, const SamplePartial, const SampleBins)

enum { kSampleWays = 7, kSampleFew = 256, kSampleRowGroups = kSampleRowThreads / 32 };

// Threadgroup memory for a row: the last few values of a search with their weights, and sums of the simdgroups.
struct SampleRowSmem {
  float few[kSampleFew];
  float few_weight[kSampleFew];
  float weight[kSampleRowGroups][kSampleWays + 1];
  float count[kSampleRowGroups][kSampleWays + 1];
  int listed[kSampleMaxChunks];  // length of each chunk's list
  float equal[kSampleMaxChunks];
  float found[4];
  SampleBest best;
};

// The row that a threadgroup works on.
struct SampleView {
  DEVICE const float* logits;
  DEVICE const SampleRowData* row;
  DEVICE const uint* masks;
  DEVICE const float* values;  // one list per chunk
  float max_value;
};

FN float sample_weight(float value, float max_value, int by_mass) {
  return by_mass != 0 ? q_exp(value - max_value) : 1.0f;
}

// Four values of a list; those past its end are undefined.
FN void sample_four(THREAD const SampleView& v, int chunk, int i, THREAD float* x) {
  const float4 four = *(DEVICE const float4*)(v.values + (i64)chunk * kSampleChunk + i);
  x[0] = four.x;
  x[1] = four.y;
  x[2] = four.z;
  x[3] = four.w;
}

// Adds up the values between the bounds that reach each of kSampleWays equidistant keys; element kSampleWays is the sum
// of all. A simdgroup takes every 16th list.
FN void sample_sums(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                    THREAD const SampleSearch& s, uint step, THREAD float* weights, THREAD float* counts) {
  UNROLL for (int i = 0; i <= kSampleWays; i++) weights[i] = counts[i] = 0.0f;
  for (int chunk = (int)c.sg; chunk < p.chunks; chunk += kSampleRowGroups) {
    const int end = sm.listed[chunk];
    for (int i = (int)c.lane * 4; i < end; i += 128) {
      float x[4];
      sample_four(v, chunk, i, x);
      UNROLL for (int k = 0; k < 4; k++) {
        const uint key = sample_key(x[k]);
        if (i + k >= end || key < s.low || key >= s.high) continue;
        const float w = sample_weight(x[k], v.max_value, s.by_mass);
        const uint reached = (key - s.low) / step;
        UNROLL for (int j = 0; j < kSampleWays; j++) {
          weights[j] += reached > (uint)j ? w : 0.0f;
          counts[j] += reached > (uint)j ? 1.0f : 0.0f;
        }
        weights[kSampleWays] += w;
        counts[kSampleWays] += 1.0f;
      }
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
    for (int g = 0; g < kSampleRowGroups; g++) {
      w += sm.weight[g][i];
      n += sm.count[g][i];
    }
    weights[i] = w;
    counts[i] = n;
  }
  TG_BARRIER();
}

// Collects the few values between the bounds and their weights, in thread order. Returns their number.
FN int sample_collect(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                      THREAD const SampleSearch& s) {
  int at = 0, all = 0;
  for (int pass = 0; pass < 2; pass++) {
    int mine = 0;
    for (int chunk = (int)c.sg; chunk < p.chunks; chunk += kSampleRowGroups) {
      const int end = sm.listed[chunk];
      for (int i = (int)c.lane * 4; i < end; i += 128) {
        float x[4];
        sample_four(v, chunk, i, x);
        UNROLL for (int k = 0; k < 4; k++) {
          const uint key = sample_key(x[k]);
          if (i + k >= end || key < s.low || key >= s.high) continue;
          if (pass == 1 && at + mine < kSampleFew) {
            sm.few[at + mine] = x[k];
            sm.few_weight[at + mine] = sample_weight(x[k], v.max_value, s.by_mass);
          }
          mine++;
        }
      }
    }
    if (pass == 1) break;
    for (uint lane = 0; lane < 32; lane++) {
      const int others = simd_shuffle(mine, lane);
      if (lane < c.lane) at += others;
    }
    const int group = simd_sum(mine);
    if (c.lane == 0) sm.count[c.sg][0] = (float)group;
    TG_BARRIER();
    for (int i = 0; i < kSampleRowGroups; i++) {
      if (i < (int)c.sg) at += (int)sm.count[i][0];
      all += (int)sm.count[i][0];
    }
  }
  TG_BARRIER();
  return min(all, (int)kSampleFew);
}

// Ends a search when few values are left: each thread adds up the values that are at least its own.
FN void sample_rank(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                    THREAD SampleSearch& s) {
  const int few = sample_collect(c, p, sm, v, s);
  // There are none if sums in another order just missed the target; then everything at or above `low` is kept.
  if (few == 0) return;
  const bool has = (int)c.tid < few;
  const float mine = has ? sm.few[c.tid] : sample_negative_infinity();
  float weight = 0.0f, count = 0.0f, above = 0.0f, count_above = 0.0f;
  if (has) {
    for (int i = 0; i < few; i++) {
      const float other = sm.few[i], w = sm.few_weight[i];
      weight += other >= mine ? w : 0.0f;
      count += other >= mine ? 1.0f : 0.0f;
      above += other > mine ? w : 0.0f;
      count_above += other > mine ? 1.0f : 0.0f;
    }
  }
  const bool reaches = has && s.above + weight >= s.target;
  float best = reaches ? mine : sample_negative_infinity();
  int who = (int)c.tid;
  sample_best(c, sm.best, kSampleRowGroups, best, who);
  if (best == sample_negative_infinity()) {
    best = has ? -mine : best;
    who = (int)c.tid;
    sample_best(c, sm.best, kSampleRowGroups, best, who);
  }
  if ((int)c.tid == who) {
    sm.found[0] = mine;
    sm.found[1] = count;
    sm.found[2] = above;
    sm.found[3] = count_above;
  }
  TG_BARRIER();
  s.low = sample_key(sm.found[0]);
  s.high = s.low + 1u;
  s.count = s.count_above + sm.found[1];
  s.above += sm.found[2];
  s.count_above += sm.found[3];
}

// Narrows the bounds until they enclose one key or few values.
FN void sample_narrow(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                      THREAD SampleSearch& s) {
  while (s.high - s.low > 1u && s.count - s.count_above > (float)kSampleFew) {
    float weights[kSampleWays + 1], counts[kSampleWays + 1];
    const uint step = max((s.high - s.low + (uint)kSampleWays) / (uint)(kSampleWays + 1), 1u);
    sample_sums(c, p, sm, v, s, step, weights, counts);
    // The highest key that reaches the target; the sums grow from the last key to the first.
    int way = -1;
    float count = 0.0f, above = 0.0f, count_above = 0.0f;
    UNROLL for (int j = 0; j < kSampleWays; j++) {
      if (s.low + step * (uint)(j + 1) < s.high && s.above + weights[j] >= s.target) {
        way = j;
        count = counts[j];
      }
    }
    UNROLL for (int j = 0; j < kSampleWays; j++) {
      above = j == way + 1 ? weights[j] : above;
      count_above = j == way + 1 ? counts[j] : count_above;
    }
    const uint low = s.low;
    if (way >= 0) {
      s.low = low + step * (uint)(way + 1);
      s.count = s.count_above + count;
    }
    const uint next = low + step * (uint)(way + 2);
    if (way + 1 < kSampleWays && next < s.high) {
      s.above += above;
      s.count_above += count_above;
      s.high = next;
    }
  }
  if (s.high - s.low > 1u) sample_rank(c, p, sm, v, s);
}

// The id of the n-th token with exactly this value: the lists show which chunk it is in, the row shows where.
FN int sample_nth_equal(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleRowSmem& sm, THREAD const SampleView& v,
                        float value, float n) {
  for (int chunk = (int)c.sg; chunk < p.chunks; chunk += kSampleRowGroups) {
    float count = 0.0f;
    for (int i = (int)c.lane * 4; i < sm.listed[chunk]; i += 128) {
      float x[4];
      sample_four(v, chunk, i, x);
      UNROLL for (int k = 0; k < 4; k++) count += i + k < sm.listed[chunk] && x[k] == value ? 1.0f : 0.0f;
    }
    count = simd_sum(count);
    if (c.lane == 0) sm.equal[chunk] = count;
  }
  TG_BARRIER();
  int chunk = 0;
  while (chunk + 1 < p.chunks && sm.equal[chunk] < n) n -= sm.equal[chunk++];
  const int begin = chunk * kSampleChunk;
  // Up to id `low` there are fewer than n of them, up to id `high` at least n.
  int low = begin - 1, high = min(begin + kSampleChunk, p.vocab) - 1;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    float count = 0.0f;
    for (int i = begin + (int)c.tid; i <= middle; i += kSampleRowThreads) {
      if (sample_value(v.logits[i], i, p, v.row, v.masks) == value) count += 1.0f;
    }
    count = simd_sum(count);
    if (c.lane == 0) sm.count[c.sg][0] = count;
    TG_BARRIER();
    count = 0.0f;
    for (int g = 0; g < kSampleRowGroups; g++) count += sm.count[g][0];
    TG_BARRIER();
    if (count >= n) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return high;
}

// Finds the cut-off of each row. Grid: (rows).
struct SampleCuts {
  enum { kThreads = kSampleRowThreads };
  typedef SampleRowSmem Smem;
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SampleCut* cuts,
                     DEVICE const float* logits, DEVICE const SampleRowData* rows, DEVICE const uint* masks,
                     DEVICE const SamplePartial* partials, DEVICE const float* values,
                     DEVICE const SampleListed* all_listed, DEVICE const SampleSearch* searches) {
    SampleSearch s = searches[c.tgx];
    if (s.kind == kSampleNoCut) return;
    const i64 first = (i64)c.tgx * p.chunks;
    int last = 0x7fffffff;
    if (s.kind != kSampleMinCut) {
      DEVICE const SampleListed* listed = all_listed + first;
      for (int i = (int)c.tid; i < p.chunks; i += kSampleRowThreads) sm.listed[i] = listed[i].count;
      float low = as_float(0x7f800000u), high = sample_negative_infinity();
      for (int i = (int)c.lane; i < p.chunks; i += 32) {
        low = min(low, listed[i].low);
        high = max(high, listed[i].high);
      }
      TG_BARRIER();
      // The bounds need not be wider than the listed values.
      low = simd_min(low);
      high = simd_max(high);
      s.low = max(s.low, sample_key(low));
      s.high = min(s.high, sample_key(high) + 1u);
      const SampleView v = {logits + (i64)c.tgx * p.stride, rows + c.tgx, masks, values + first * kSampleChunk,
                            sample_row_max(c, p, partials + first)};
      sample_narrow(c, p, sm, v, s);
      if (s.kind == kSampleSecondCut) {
        // What top_k left is added up again.
        s.by_mass = 1;
        s.high = sample_key(v.max_value) + 1u;
        s.above = s.count_above = 0.0f;
        float weights[kSampleWays + 1], counts[kSampleWays + 1];
        sample_sums(c, p, sm, v, s, 0x80000000u, weights, counts);
        s.target = v.row->settings.top_p * weights[kSampleWays];
        sample_narrow(c, p, sm, v, s);
      }
      if (s.by_mass != 0) {
        const float value = sample_of_key(s.low), equal = s.count - s.count_above;
        const float missing = (s.target - s.above) / q_exp(value - v.max_value);
        const float kept = max(1.0f, min(equal, -floor(-missing)));
        if (kept < equal) last = sample_nth_equal(c, p, sm, v, value, kept);
      }
    }
    if (c.tid != 0) return;
    cuts[c.tgx].value = sample_of_key(s.low);
    cuts[c.tgx].last = last;
  }
};
KERNEL(sample_cuts, SampleCuts, SampleParams, SampleCut, const float, const SampleRowData, const uint,
       const SamplePartial, const float, const SampleListed, const SampleSearch)
