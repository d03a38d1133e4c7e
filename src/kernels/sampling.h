// SPDX-License-Identifier: Apache-2.0
// From logits to tokens: argmax, the Gumbel-max draw under min_p, top_k and top_p, penalties, logprobs and digests.
//
// A row is divided into chunks of fixed size, whose results are merged in order, so the outcome depends on the row
// alone.
#pragma once

#include "kernels/sampling_common.h"
#include "kernels/sampling_digest.h"
#include "kernels/sampling_top_k_top_p.h"

// Applies bias and penalties in place, one token per thread, or (p.restore) restores the original logits. Grid: (rows).
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
      // NaN and +infinity stay, so that the row's fault is found.
      const bool broken = x != x || x == as_float(0x7f800000u);
      if ((what & 1u) != 0u && !broken) x = sample_negative_infinity();
      x += edits[i].bias;
      if ((what & 2u) != 0u) x = x > 0.0f ? x / row->settings.repetition : x * row->settings.repetition;
      const uint count = what >> 2;
      if (count != 0u) {
        x -= row->settings.frequency * (float)count;
        x -= row->settings.presence;
      }
      out[token] = x;
    }
  }
};
KERNEL(sample_edits, SampleEdits, SampleParams, float, float, const SampleRowData, const SampleEdit)

// Draws from a chunk in which excluded tokens have the value -infinity. The score of an already drawn token must be
// beaten, so where the upper bound of a score does not reach it, no logarithm is computed: each lane computes the score
// of its token with the highest bound, and then those whose bound reaches the best score of the simdgroup, a few.
FN void sample_draw(Ctx c, CONSTANT const SampleParams& p, TGROUP SampleBest& sm, DEVICE const SampleRowData* row,
                    int begin, THREAD const float* x, THREAD float& score, THREAD int& drawn) {
  float bound[16], highest = sample_negative_infinity(), value = 0.0f;
  uint words[16], word = 0u;
  int token = 0x7fffffff;
  UNROLL for (int k = 0; k < 16; k += 4) {
    const uint4 four = sample_words(row, (uint)(sample_token(begin, c.tid, k) / 4));
    UNROLL for (int j = 0; j < 4; j++) {
      const int id = sample_token(begin, c.tid, k + j);
      words[k + j] = philox_word(four, j);
      bound[k + j] = id < p.vocab ? x[k + j] + sample_gumbel_bound(words[k + j]) : sample_negative_infinity();
      if (bound[k + j] > highest) {
        highest = bound[k + j];
        value = x[k + j];
        word = words[k + j];
        token = id;
      }
    }
  }
  if (highest >= score && token != 0x7fffffff) {
    const float mine = value + sample_gumbel(word);
    if (mine > score || (mine == score && token < drawn)) {
      score = mine;
      drawn = token;
    }
  }
  const float reached = simd_max(score);
  UNROLL for (int k = 0; k < 16; k++) {
    const int id = sample_token(begin, c.tid, k);
    if (!(bound[k] >= reached) || id == token || bound[k] == sample_negative_infinity()) continue;
    const float mine = x[k] + sample_gumbel(words[k]);
    if (mine > score || (mine == score && id < drawn)) {
      score = mine;
      drawn = id;
    }
  }
  sample_best(c, sm, kSampleThreads / 32, score, drawn);
}

// Finds each chunk's maximum, and for rows without a cut-off draws as well. Grid: (chunks, rows).
struct SampleChunks {
  enum { kThreads = kSampleThreads };
  typedef SampleBest Smem;

  static FN int faults_of(THREAD const float* x) {
    bool fine = true;
    UNROLL for (int k = 0; k < 16; k++) fine = fine && x[k] < as_float(0x7f800000u);
    int faults = 0;
    if (!fine) {
      UNROLL for (int k = 0; k < 16; k++) {
        if (x[k] != x[k]) faults |= kSampleFaultNan;
        if (x[k] == as_float(0x7f800000u)) faults |= kSampleFaultInfinite;
      }
    }
    return faults;
  }

  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SamplePartial* partials,
                     DEVICE const float* logits, DEVICE const SampleRowData* rows, DEVICE const uint* masks) {
    DEVICE const SampleRowData* row = rows + c.tgy;
    const int begin = (int)c.tgx * kSampleChunk;
    float x[16];
    sample_load(p, logits + (i64)c.tgy * p.stride, begin, c.tid, x);
    const int faults_here = faults_of(x);
    // A greedy row without a mask needs neither masks nor divisions.
    if (row->greedy == 0 || row->mask >= 0) {
      UNROLL for (int k = 0; k < 16; k++) {
        const int id = sample_token(begin, c.tid, k);
        if (id < p.vocab) x[k] = sample_value(x[k], id, p, row, masks);
      }
    }
    // Tokens ascend, so the first of equal values is kept. What is past the vocabulary is -infinity.
    const int first = sample_token(begin, c.tid, 0);
    float best = x[0] == x[0] ? x[0] : sample_negative_infinity();
    int token = first < p.vocab ? first : 0x7fffffff;
    UNROLL for (int k = 1; k < 16; k++) {
      if (x[k] > best) {
        best = x[k];
        token = sample_token(begin, c.tid, k);
      }
    }
    best += 0.0f;  // -0 becomes 0
    int faults = (simd_any((faults_here & kSampleFaultNan) != 0) ? kSampleFaultNan : 0) |
                 (simd_any((faults_here & kSampleFaultInfinite) != 0) ? kSampleFaultInfinite : 0);
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
    float score = sample_negative_infinity();
    if (best != sample_negative_infinity()) {
      score = best + sample_gumbel(philox_word(sample_words(row, (uint)(token / 4)), token % 4));
    }
    sample_draw(c, p, sm, row, begin, x, score, token);
    if (c.tid == 0) {
      out->score = score;
      out->score_token = token;
    }
  }
};
KERNEL(sample_chunks, SampleChunks, SampleParams, SamplePartial, const float, const SampleRowData, const uint)

// Draws from each chunk of the rows that have a cut-off. Grid: (chunks, rows).
struct SampleDraws {
  enum { kThreads = kSampleThreads };
  typedef SampleBest Smem;
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SamplePartial* partials,
                     DEVICE const float* logits, DEVICE const SampleRowData* rows, DEVICE const uint* masks,
                     DEVICE const SampleSearch* searches, DEVICE const SampleCut* cuts) {
    if (searches[c.tgy].kind == kSampleNoCut) return;
    DEVICE const SampleRowData* row = rows + c.tgy;
    DEVICE SamplePartial* out = partials + (i64)c.tgy * p.chunks + c.tgx;
    const float cut = cuts[c.tgy].value;
    const int last = cuts[c.tgy].last, begin = (int)c.tgx * kSampleChunk;
    float score = sample_negative_infinity();
    int drawn = 0x7fffffff;
    if (out->max >= cut) {
      float x[16];
      sample_load(p, logits + (i64)c.tgy * p.stride, begin, c.tid, x);
      UNROLL for (int k = 0; k < 16; k++) {
        const int id = sample_token(begin, c.tid, k);
        if (id >= p.vocab) continue;
        x[k] = sample_value(x[k], id, p, row, masks);
        if (x[k] < cut || (x[k] == cut && id > last)) x[k] = sample_negative_infinity();
      }
      // If the chunk has a candidate at all, its largest value is one.
      const int token = out->max_token;
      if (out->max > cut || token <= last) {
        score = out->max + sample_gumbel(philox_word(sample_words(row, (uint)(token / 4)), token % 4));
        drawn = token;
      }
      sample_draw(c, p, sm, row, begin, x, score, drawn);
    }
    if (c.tid != 0) return;
    out->score = score;
    out->score_token = drawn;
  }
};
KERNEL(sample_draws, SampleDraws, SampleParams, SamplePartial, const float, const SampleRowData, const uint,
       const SampleSearch, const SampleCut)

// Merges the chunks into the token of each row, with one simdgroup per row. Grid: (rows).
struct SampleRows {
  enum { kThreads = 32, kAtOnce = 5 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SampleResult* results,
                     DEVICE SampleResult* host_results, DEVICE const SampleRowData* rows,
                     DEVICE const SamplePartial* all_partials) {
    DEVICE const SampleRowData* row = rows + c.tgx;
    DEVICE const SamplePartial* partials = all_partials + (i64)c.tgx * p.chunks;
    float max_value = sample_negative_infinity(), score = max_value;
    int token = 0x7fffffff, drawn = token, faults = 0;
    // A lane loads all its records at once. Those that the fused decode step wrote (cuda/decode_step_linear.cuh) are
    // not in the order of tokens.
    for (int first = (int)c.lane; first < p.chunks; first += 32 * kAtOnce) {
      SamplePartial found[kAtOnce];
      UNROLL for (int k = 0; k < kAtOnce; k++) found[k] = partials[min(first + 32 * k, p.chunks - 1)];
      UNROLL for (int k = 0; k < kAtOnce; k++) {
        if (first + 32 * k >= p.chunks) continue;
        faults |= found[k].faults;
        if (found[k].max > max_value || (found[k].max == max_value && found[k].max_token < token)) {
          max_value = found[k].max;
          token = found[k].max_token;
        }
        if (found[k].score > score) {
          score = found[k].score;
          drawn = found[k].score_token;
        }
      }
    }
    sample_best_of_lanes(max_value, token);
    sample_best_of_lanes(score, drawn);
    faults = (simd_any((faults & kSampleFaultNan) != 0) ? kSampleFaultNan : 0) |
             (simd_any((faults & kSampleFaultInfinite) != 0) ? kSampleFaultInfinite : 0);
    if (max_value == as_float(0x7f800000u)) faults |= kSampleFaultInfinite;
    if (max_value == sample_negative_infinity()) faults |= kSampleFaultEmpty;
    if (row->greedy == 0) token = drawn;
    if (c.lane != 0) return;
    SampleResult found;
    found.token = faults == 0 ? token : 0;
    found.faults = faults;
    found.logprob = 0.0f;
    found.rank = 0;
    results[c.tgx] = found;
    host_results[c.tgx] = found;
  }
};
KERNEL(sample_rows, SampleRows, SampleParams, SampleResult, SampleResult, const SampleRowData, const SamplePartial)

// Computes each chunk's part of the log-softmax and its most likely tokens, of the original logits that the logprob
// mask allows. Grid: (chunks, rows).
struct SampleLogprobChunks {
  enum { kThreads = kSampleThreads };
  typedef SampleBest Smem;
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SampleLogprobPartial* partials,
                     DEVICE const float* logits, DEVICE const SampleRowData* rows, DEVICE const uint* masks) {
    DEVICE const SampleRowData* row = rows + c.tgy;
    if (row->logprobs < 0) return;
    const int begin = (int)c.tgx * kSampleChunk;
    float x[16];
    sample_load(p, logits + (i64)c.tgy * p.stride, begin, c.tid, x);
    UNROLL for (int k = 0; k < 16; k++) {
      const int id = sample_token(begin, c.tid, k);
      if (id < p.vocab) x[k] = sample_masked(x[k], id, p, row->logprob_mask, masks);
    }
    DEVICE SampleLogprobPartial* out = partials + (i64)c.tgy * p.chunks + c.tgx;
    uint taken = 0u;  // bit k: this thread's token k is in the list already, or past the vocabulary
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
      // A chunk that has only -infinity adds nothing.
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
KERNEL(sample_logprob_chunks, SampleLogprobChunks, SampleParams, SampleLogprobPartial, const float, const SampleRowData,
       const uint)

// Computes the logprob and rank of the sampled token, and the most likely tokens in order. Grid: (rows).
struct SampleLogprobRows {
  enum { kThreads = kSampleRowThreads };
  struct Smem {
    float value[kSampleMaxChunks * kSampleTop];
    int token[kSampleMaxChunks * kSampleTop];
    float count[16];
  };
  static FN void run(Ctx c, CONSTANT const SampleParams& p, TGROUP Smem& sm, DEVICE SampleResult* results,
                     DEVICE SampleTopResult* tops, DEVICE const float* logits, DEVICE const SampleRowData* rows,
                     DEVICE const SampleLogprobPartial* all_partials, DEVICE const uint* masks) {
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
    for (int i = (int)c.tid; i < p.vocab; i += kSampleRowThreads) {
      count += sample_masked(x[i], i, p, row->logprob_mask, masks) >= own ? 1.0f : 0.0f;
    }
    count = simd_sum(count);
    if (c.lane == 0) sm.count[c.sg] = count;

    // The place of a candidate is the number of better ones.
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
       const SampleRowData, const SampleLogprobPartial, const uint)

// Writes tokens that the previous step sampled into this step's inputs. Grid: (tokens / threads, rounded up).
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

// Moves a wanted row over the rows whose drafts are the tokens before them. Grid: (wanted / threads, rounded up).
struct SkipAccepted {
  enum { kThreads = 256 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const SkipAcceptedParams& p, TGROUP Smem& sm, DEVICE int* wanted,
                     DEVICE const int* tokens, DEVICE const int* drafts) {
    const int i = (int)(c.tgx * kThreads + c.tid);
    if (i >= p.count) return;
    int row = wanted[i];
    while (row + 1 < p.tokens && drafts[row + 1] >= 0 && drafts[row + 1] == tokens[row]) row++;
    wanted[i] = row;
  }
};
KERNEL(skip_accepted, SkipAccepted, SkipAcceptedParams, int, const int, const int)
