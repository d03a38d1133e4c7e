// SPDX-License-Identifier: Apache-2.0
// The micro-benchmark of kernels: each one's speed, and what share that is of the machine's own limits.
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
  std::string device = "cpu";         // or a GPU's (gpu_kernels.h)
  std::vector<std::string> isa;       // levels; empty: the best one; "all": every one that this machine has
  std::vector<std::string> types;     // of weights; empty: the usual ones
  std::vector<std::string> kv_types;  // of pages; empty: F16 and BF16
  std::vector<int64_t> rows;          // tokens of a step; empty: 1, 4, 32 and 512
  std::vector<std::string> shapes;    // NxK; empty: those of SmolLM2-135M and Qwen3-0.6B
  std::vector<std::string> ops;       // linear, attention, delta, limits (the machine alone); empty: all but the
                                      // last, quick the first two
  int64_t threads = 0;                // 0: all cores
  int64_t samples = 9;                // of each figure
  bool quick = false;                 // few cases, few samples
};

// One instruction's peak, or one way of reading.
struct LimitFigure {
  std::string name;  // "tdpbusd", "2 MiB pages"
  std::string kind;  // fp32, bf16, int8, read
  double rate = 0;   // operations or bytes a second: the median
  double most = 0;   // the best sample
};

// One case. Shares are medians over the samples, each against the limit that was measured just before and just after
// it; a share of bf16 is missing where the level has no bf16 instruction, and so on.
struct KernelFigure {
  std::string op;  // linear, decode, prefill, delta
  std::string isa;
  std::string type;   // of the weights, or of the pages
  std::string shape;  // "3072x576", "9/3 heads of 64, 512 positions"
  int64_t rows = 0;
  double seconds = 0;     // of one call, the median
  double operations = 0;  // of one call
  double bytes = 0;       // of weights as the file holds them, of K and V that are seen, of states; of one call
  std::string peak_kind;  // which of the three is the one to hold it to
  std::optional<double> share_fp32, share_bf16, share_int8;
  double share_read = 0;
  std::optional<double> share_peak() const;  // that of peak_kind
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

// Told what comes next: its group ("amx Q8_0"), the case, the cases done, and their number.
using KernelProgress =
    std::function<void(const std::string& group, const std::string& what, size_t done, size_t total)>;
Result<KernelFigures> kernels(const KernelOptions& options, const KernelProgress& progress);

// What --types and --shapes name; `fallback` where they name nothing.
Result<std::vector<DType>> types_of(const std::vector<std::string>& names, std::vector<DType> fallback);
Result<std::vector<cases::LinearShape>> shapes_of(const KernelOptions& options);

}  // namespace quire::bench
