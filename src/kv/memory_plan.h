// SPDX-License-Identifier: Apache-2.0
// The memory plan: how many KV pages there are, and the one line at start-up that says where the memory goes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kv/cache_groups.h"
#include "kv/kv_spec.h"

namespace quire::kv {

// Bytes from a flag's text: a whole number; with a suffix k m g t a decimal number of powers of 1000, with K M G T a
// whole number of powers of 1024 (vLLM's rules); also kB MB GB TB (1000) and KiB MiB GiB TiB (1024), decimals allowed.
// `flag` names the flag in the error.
Result<int64_t> parse_bytes(std::string_view text, std::string_view flag);
// "87.5 MiB": for people, at most four digits.
std::string format_bytes(int64_t bytes);

struct MemoryInfo {
  int64_t total = 0;
  int64_t available = 0;  // what this process may still take without swapping or being killed
};
// Memory of this machine, within the limits of the control groups (v1 and v2) that the process is in. `root` is the
// folder that stands for "/" (tests).
Result<MemoryInfo> available_memory(const std::filesystem::path& root = "/");

struct MemoryInputs {
  CacheLayout layout;  // of group_layers; num_pages is what is planned
  KvDType dtype = KvDType::kFloat16;
  StepRules rules;
  int64_t weights_bytes = 0;
  int64_t scratch_bytes = 0;    // activations, logits, sampler: the most that a step takes
  int64_t available_bytes = 0;  // before weights and scratch are allocated; 0: unknown, not checked
  // "": the host's memory, of which others want some too; else the name of the device whose memory this is: pages may
  // take all that weights and scratch leave.
  std::string device = {};
  int64_t max_model_len = 0;
  bool max_model_len_auto = false;  // --max-model-len auto: max_model_len is the model's, lowered to what fits
  int64_t max_num_seqs = 1;
  std::optional<int64_t> kv_cache_memory_bytes;    // --kv-cache-memory-bytes
  std::optional<int64_t> num_gpu_blocks_override;  // --num-gpu-blocks-override; wins over the bytes
};

struct MemoryPlan {
  CacheLayout layout;  // with num_pages
  KvDType dtype = KvDType::kFloat16;
  StepRules rules;
  int32_t num_blocks = 0;  // with the null page
  int64_t max_model_len = 0;
  int64_t weights_bytes = 0;
  int64_t kv_bytes = 0;  // num_blocks * page_bytes()
  int64_t scratch_bytes = 0;
  std::string device;                 // whose memory it is; "": the host's
  std::optional<int64_t> left_bytes;  // of the available memory; nothing when that is unknown

  int64_t page_bytes() const { return layout.page_bytes(); }
  // Pages over all groups that a request of this length holds at once, at most.
  int64_t pages_for(int64_t num_tokens) const { return most_pages(layout.groups, num_tokens, rules); }
  int64_t num_tokens() const;           // that the pages hold, in requests of max_model_len where groups differ
  double full_length_requests() const;  // how many requests of max_model_len fit at once
  // Weights, KV pages (states among them) and their groups, scratch, what is left, full-length requests.
  std::string line() const;
};

// Default budget: min(max_num_seqs x max_model_len, what weights and scratch leave, and of the host's memory half of
// what is available). An Error carries the numbers when not even one request of max_model_len fits, and says what to
// change.
Result<MemoryPlan> plan_memory(const MemoryInputs& inputs);

}  // namespace quire::kv
