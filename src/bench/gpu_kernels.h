// SPDX-License-Identifier: Apache-2.0
// The micro-benchmark of a GPU's kernels: the time of each op through the backend, compared with the GPU's fastest copy
// and matrix product.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/kernels.h"

namespace quire::bench {

// One case. Its time is that of one call in a recorded run of many, on inputs that together do not fit the cache.
struct GpuFigure {
  std::string op;         // linear, decode, prefill, norm, rope, glu, greedy, top_p
  std::string type;       // of the weights, the pages or the rows
  std::string shape;      // "4096x12288", "16/8x128 64@4096"
  int64_t rows = 0;       // tokens
  double seconds = 0;     // per call: the median; of linear beside the library, the best
  double operations = 0;  // multiplications and additions
  double bytes = 0;       // the fewest that the op must read and write
  double library = 0;     // seconds of the vendor library's best algorithm; 0: none was timed
};

struct GpuFigures {
  std::string device;
  double copy_rate = 0;    // bytes/s that a large copy reads and writes
  double matmul_rate = 0;  // operations/s of the vendor library for 8192^3 in bf16; 0: there is no library
  std::vector<GpuFigure> kernels;
  std::vector<std::string> notes;

  double share_copy(const GpuFigure& figure) const { return figure.bytes / figure.seconds / copy_rate; }
  std::optional<double> share_matmul(const GpuFigure& figure) const;
  json::Value to_json() const;
  std::string to_text() const;
};

// Uses device, types, rows, shapes, ops (linear, quantised, attention, delta, rows, limits), samples and quick of the
// options.
Result<GpuFigures> gpu_kernels(const KernelOptions& options, const KernelProgress& progress);

}  // namespace quire::bench
