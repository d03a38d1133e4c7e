// SPDX-License-Identifier: Apache-2.0
// SampleSettings: the settings of one sampled row, as the host fills them in and as GPU kernels read them.
#pragma once

// Also compiled as kernel text (docs/dialect.md): float and int members only.
struct SampleSettings {
  float temperature = 0;  // 0: greedy
  float log_min_p = 1;    // the logarithm of min_p; 1: off
  float top_p = 1;        // 1: off
  int top_k = 0;          // 0: off
  float repetition = 1;   // penalties, on the tokens that edits name
  float frequency = 0;
  float presence = 0;
};
