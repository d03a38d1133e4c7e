// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/sampling.h, and the records that kernels and host share.
#pragma once

#include "kernels/compat/types.h"
#include "ops/row_digest_constants.h"
#include "ops/sample_settings.h"

enum {
  kSampleThreads = 256,     // threads of the kernels with a threadgroup per chunk
  kSampleChunk = 4096,      // tokens per chunk, 16 per thread
  kSampleRowThreads = 512,  // threads of the kernels with a threadgroup per row
  kSampleTop = 20,          // the largest number of top logprobs
  kSampleThresholds = 15,   // thresholds of the first pass of the search for a cut-off
  kSampleMaxChunks = 128,   // so the vocabulary may have half a million tokens
  kSampleFaultNan = 1,
  kSampleFaultInfinite = 2,
  kSampleFaultEmpty = 4
};

// Grids: (chunks, rows) or (rows).
struct SampleParams {
  i64 stride;  // floats from one row of logits to the next
  int vocab;
  int chunks;
  int words;    // 32-bit words in a row of the masks
  int aligned;  // rows begin at multiples of 16 bytes
  int restore;  // sample_edits: restore the original logits
};

// The sampling settings of a row.
struct SampleRowData {
  uint seed_low, seed_high, position_low, position_high;
  SampleSettings settings;  // temperature 1 for greedy rows
  int mask;                 // index of its row in the masks, or -1
  int logprob_mask;         // the same for its logprobs
  int first_edit, num_edits;
  int logprobs;  // -1: none
  int greedy;
  int digest;  // 1: wanted
};

// Four threadgroups read a row of the largest vocabularies about as fast as its memory delivers it.
enum { kSampleDigestSimdgroups = 16, kSampleDigestParts = 4 };
// Grid: (parts, rows), with a threadgroup of `simdgroups`.
struct SampleDigestParams {
  i64 stride;
  int vocab;
  int chunks;      // of kRowDigestChunk
  int parts;       // at most kSampleDigestParts
  int simdgroups;  // at most kSampleDigestSimdgroups
};
// What a threadgroup adds to its row's digest.
struct SampleDigestSums {
  uint high, low;
};

// `what`: bit 0: the token is forbidden; bit 1: it has occurred; above: its count in the output.
struct SampleEdit {
  int token;
  uint what;
  float bias;
};

// Results of one chunk of a row: the largest logit, and the best score of the Gumbel-max draw.
struct SamplePartial {
  float max;
  int max_token;
  float score;
  int score_token;
  int faults;
  int pad[3];
};

// Sums over a chunk for each threshold, and over the whole chunk: the weights exp(x - max), and the number, of the
// values that are at or above the threshold.
struct SampleBins {
  float weight[kSampleThresholds + 1];
  float count[kSampleThresholds + 1];
};

// The search for a cut-off: the largest value v with weight(x >= v) >= target, where each weight is 1 (top_k) or exp(x
// - max) (top_p). It keeps two keys: the weight at `low` reaches the target, the weight at `high` does not. `above` and
// `count_above` are the weight and the number of values at or above `high`, `count` is the number at or above `low`.
struct SampleSearch {
  uint low, high;
  float above, count_above, count;
  float target;
  int by_mass;
  int kind;
};
enum {
  kSampleNoCut = 0,     // no search: the row is greedy, has no cut-off, or has a fault
  kSampleMinCut = 1,    // min_p only: the key `low` is the cut-off
  kSampleOneCut = 2,    // top_k or top_p
  kSampleSecondCut = 3  // top_k, then top_p
};

// A chunk's list of values for the search: its length, its lowest and its highest value.
struct SampleListed {
  int count;
  float low, high;
  int pad;
};

// The last candidate: its value, and the highest token id among candidates of exactly that value.
struct SampleCut {
  float value;
  int last;
};

// A chunk's part of the log-softmax, and its most likely tokens.
struct SampleLogprobPartial {
  float max, sum;
  float value[kSampleTop];
  int token[kSampleTop];
};

struct SampleResult {
  int token, faults;
  float logprob;
  int rank;
};
struct SampleTopResult {
  int token;
  float logprob;
};

struct TakeSampledParams {
  int count;
};
struct SkipAcceptedParams {
  int count;   // wanted rows
  int tokens;  // of the step
};

// Parameters of kernels/cuda/stage_step.cuh.
enum { kStageStepThreads = 256 };
struct StageStepParams {
  int pieces;  // 16-byte pieces
  int count;   // tokens
};
