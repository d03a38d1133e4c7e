// SPDX-License-Identifier: Apache-2.0
// Which device a rank has: --device, and the GPUs of this host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "llm/options.h"

namespace quire::llm {

// --device: a kind of device and, for CUDA, which of them (cuda:0,2), one for each rank of this host; with several
// engines, for each rank of the first one, then of the next.
struct DeviceChoice {
  std::string kind;
  std::vector<int> indices;  // empty: as many as there are ranks, from 0 on

  // Of rank `rank` of this host.
  int index(int rank) const;
  // How many of the ranks [begin, end) have that rank's device.
  int sharing(int rank, int begin, int end) const;
};
Result<DeviceChoice> parse_device(const std::string& text);

// The GPU of rank `part` of this process's ranks, or of this process among those of its host.
Result<std::unique_ptr<Backend>> open_gpu(const Options& options, const DeviceChoice& choice, int part);
// An Error if there are fewer GPUs like this one than ranks on this host.
Status check_gpus(const Options& options, const DeviceChoice& choice, const Backend& gpu);

// The ranks that share the memory of the backend, and those of them whose engines were loaded before.
struct MemoryRanks {
  int before = 0;
  int all = 1;
};
MemoryRanks ranks_on_memory(const Options& options, const Backend& backend);
// The part of the free memory that the next rank gets, if all get the same and `share` of the memory belongs to them.
constexpr double part_of_free(const MemoryRanks& ranks, double share) {
  return share / (ranks.all - ranks.before * share);
}
// Whether an engine has the GPU of the first engine's rank 0.
bool share_memory(const Options& options, const Backend& gpu, int engine);

}  // namespace quire::llm
