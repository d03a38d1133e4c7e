// SPDX-License-Identifier: Apache-2.0
// The micro-benchmark of CPU kernels: the speed of each, and its share of the machine's limits.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/limits/limits.h"
#include "backend/testing/linear_cases.h"
#include "base/json.h"
#include "base/result.h"
#include "ops/dtype.h"

namespace quire::bench {

struct KernelOptions {
  std::string device = "cpu";         // or a GPU (gpu_kernels.h)
  std::vector<std::string> isa;       // levels; empty: the best one; "all": all levels of this machine
  std::vector<std::string> types;     // of weights; empty: the default set
  std::vector<std::string> kv_types;  // of the KV cache; empty: F16 and BF16
  std::vector<int64_t> rows;          // tokens per step; empty: 1, 4, 32 and 512
  std::vector<std::string> shapes;    // NxK; empty: those of SmolLM2-135M and Qwen3-0.6B
  std::vector<std::string> ops;       // linear, attention, delta, limits (only the machine's); empty: all except
                                      // limits, with --quick the first two
  int64_t threads = 0;                // 0: all cores
  int64_t samples = 9;                // per figure
  bool quick = false;                 // fewer cases, fewer samples
};

// The peak of one instruction, or of one way of reading memory.
struct LimitFigure {
  std::string name;  // "tdpbusd", "2 MiB pages"
  std::string kind;  // fp32, bf16, int8, read
  double rate = 0;   // operations/s or bytes/s, the median
  double most = 0;   // the best sample
};

// One case. Shares are medians over the samples, each relative to the limits measured just before and after it. A share
// is missing if the level has no such instruction.
struct KernelFigure {
  std::string op;  // linear, decode, prefill, delta
  std::string isa;
  std::string type;   // of the weights or of the KV cache
  std::string shape;  // "3072x576", "9/3 heads of 64, 512 positions"
  int64_t rows = 0;
  double seconds = 0;     // per call, the median
  double operations = 0;  // per call
  double bytes = 0;       // per call: weights as in the file, K and V that are read, states
  std::string peak_kind;  // which of the three shares applies
  std::optional<double> share_fp32, share_bf16, share_int8;
  double share_read = 0;
  std::optional<double> share_peak() const;  // the share of peak_kind
};

struct KernelFigures {
  int threads = 0;
  int64_t buffer_bytes = 0;
  std::vector<LimitFigure> limits;
  std::vector<KernelFigure> kernels;
  std::vector<std::string> notes;
  json::Value to_json() const;
  std::string limits_text() const;
  std::string to_text() const;
};

// Called before each case with its group ("amx Q8_0"), the case, the number of cases done, and their total.
using KernelProgress =
    std::function<void(const std::string& group, const std::string& what, size_t done, size_t total)>;
Result<KernelFigures> kernels(const KernelOptions& options, const KernelProgress& progress);

// The types and shapes that --types and --shapes name; `fallback` if there are none. `gpu`: also types that only GPUs
// pack.
Result<std::vector<DType>> types_of(const std::vector<std::string>& names, std::vector<DType> fallback,
                                    bool gpu = false);
Result<std::vector<cases::LinearShape>> shapes_of(const KernelOptions& options);

}  // namespace quire::bench
