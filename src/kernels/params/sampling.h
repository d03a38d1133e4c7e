// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/sampling.h, and the records that they share with the host.
#pragma once

#include "kernels/compat/types.h"
#include "ops/sample_settings.h"

enum {
  kSampleThreads = 256,     // of the kernels with a threadgroup for each chunk
  kSampleChunk = 4096,      // tokens of a chunk: 16 for each thread
  kSampleRowThreads = 512,  // of the kernels with a threadgroup for each row
  kSampleTop = 20,          // most of the likeliest tokens
  kSampleThresholds = 15,   // of the first look for a cut
  kSampleMaxChunks = 128,   // so the vocabulary has at most half a million tokens
  kSampleFaultNan = 1,
  kSampleFaultInfinite = 2,
  kSampleFaultEmpty = 4
};

// Grids: (chunks, rows) or (rows).
struct SampleParams {
  i64 stride;  // floats from one row of logits to the next
  int vocab;
  int chunks;
  int words;    // of a row of masks
  int aligned;  // rows begin at multiples of 16 bytes
  int restore;  // sample_edit: put the logits back
};

// A row's settings.
struct SampleRowData {
  uint seed_low, seed_high, position_low, position_high;
  SampleSettings settings;  // temperature 1 for greedy rows
  int mask;                 // row of the masks, or -1
  int first_edit, num_edits;
  int logprobs;  // -1: none
  int greedy;
};

// `what`: bit 0 forbidden, bit 1 seen, then the count in the output.
struct SampleEdit {
  int token;
  uint what;
  float bias;
};

// What a chunk of a row found: its largest value, and the best score of the draw.
struct SamplePartial {
  float max;
  int max_token;
  float score;
  int score_token;
  int faults;
  int pad[3];
};

// What of a chunk lies at or above each threshold, and in all: weights exp(x - max), and how many.
struct SampleBins {
  float weight[kSampleThresholds + 1];
  float count[kSampleThresholds + 1];
};

// The search for a cut: the largest value v with weight(x >= v) >= target, where a weight is 1 or exp(x - max). Known
// are two keys: the weight at `low` reaches the target, that at `high` does not. `above` and `count_above` are of what
// lies at or above `high`, `count` of what lies at or above `low`.
struct SampleSearch {
  uint low, high;
  float above, count_above, count;
  float target;
  int by_mass;
  int kind;
};
enum {
  kSampleNoCut = 0,     // nothing to do: greedy, without a cut, or broken
  kSampleMinCut = 1,    // min_p alone: the key `low` is the cut
  kSampleOneCut = 2,    // top_k or top_p
  kSampleSecondCut = 3  // top_k, then top_p
};

// What a chunk listed for the search: how many values, the lowest and the highest.
struct SampleListed {
  int count;
  float low, high;
  int pad;
};

// The last candidate: its value, and of those with that value the highest id.
struct SampleCut {
  float value;
  int last;
};

// The log-softmax's part of a chunk, and its likeliest tokens.
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

// kernels/cuda/stage_step.cuh
enum { kStageStepThreads = 256 };
struct StageStepParams {
  int pieces;  // of 16 bytes
  int count;   // tokens
};
