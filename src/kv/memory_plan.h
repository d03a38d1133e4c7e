// SPDX-License-Identifier: Apache-2.0
// The memory plan: the number of KV pages, and the line at start-up that says what the memory is used for.
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

// Parses the value of a flag as bytes: a whole number, or a number with a suffix. k, m, g, t are powers of 1000 and may
// follow a decimal number; K, M, G, T are powers of 1024 and follow whole numbers (vLLM's rules). kB, MB, GB, TB (1000)
// and KiB, MiB, GiB, TiB (1024) may follow decimal numbers. `flag` is the name of the flag, for the error.
Result<int64_t> parse_bytes(std::string_view text, std::string_view flag);
// For example "87.5 MiB"; at most four digits.
std::string format_bytes(int64_t bytes);

struct MemoryInfo {
  int64_t total = 0;
  int64_t available = 0;  // what this process can still allocate without swapping or being killed
};
// The memory of this machine, within the limits of the process's control groups (v1 and v2). Tests pass a folder that
// takes the place of "/".
Result<MemoryInfo> available_memory(const std::filesystem::path& root = "/");

struct MemoryInputs {
  CacheLayout layout;  // from group_layers; num_pages is not set
  KvDType dtype = KvDType::kFloat16;
  CachePolicy policy;
  int64_t weights_bytes = 0;
  int64_t draft_weights_bytes = 0;  // of them: those of a draft model
  int64_t draft_layers = 0;         // the last layers of the layout are the draft model's
  int64_t scratch_bytes = 0;        // activations, logits and sampler of the largest step
  int64_t available_bytes = 0;      // before weights and scratch are allocated; 0: unknown, not checked
  // The name of the device whose memory this is, or "" for the host's. On a device the KV cache may use all that
  // weights and scratch leave; the host's memory is shared with other processes.
  std::string device = {};
  int64_t max_model_len = 0;
  bool max_model_len_auto = false;  // --max-model-len auto: lower max_model_len (the model's) to what fits
  int64_t max_num_seqs = 1;
  int64_t engines = 1;  // that share the weights; each has its own scratch and pages, and max_num_seqs sequences
  std::optional<int64_t> kv_cache_memory_bytes;    // --kv-cache-memory-bytes
  std::optional<int64_t> num_gpu_blocks_override;  // --num-gpu-blocks-override; takes precedence over the bytes
};

struct MemoryPlan {
  CacheLayout layout;  // with num_pages
  KvDType dtype = KvDType::kFloat16;
  CachePolicy policy;
  int32_t num_blocks = 0;  // includes the null page
  int64_t max_model_len = 0;
  int64_t weights_bytes = 0;
  int64_t draft_weights_bytes = 0, draft_layers = 0;  // as in MemoryInputs
  int64_t kv_bytes = 0;                               // num_blocks * page_bytes()
  int64_t scratch_bytes = 0;
  int64_t engines = 1;                // pages, KV bytes and scratch are those of one of them
  int64_t beside_bytes = 0;           // of other engines in the same memory that have weights of their own
  std::string device;                 // as in MemoryInputs
  std::optional<int64_t> left_bytes;  // of the available memory, if that is known

  int64_t page_bytes() const { return layout.page_bytes(); }
  int64_t total_bytes() const { return weights_bytes + engines * (kv_bytes + scratch_bytes) + beside_bytes; }
  // The most pages, over all groups, that a request of this length holds at once.
  int64_t pages_for(int64_t num_tokens) const { return max_pages(layout.groups, num_tokens, policy); }
  int64_t num_tokens() const;           // that fit into the pages; with several groups: in requests of max_model_len
  double full_length_requests() const;  // how many requests of max_model_len fit at once
  // The line at start-up: weights, KV pages and their groups, scratch, what is left, full-length requests.
  std::string line() const;
};

// By default the KV cache gets pages for max_num_seqs requests of max_model_len, but no more than weights and scratch
// leave, and on the host no more than half of the available memory; several engines divide these, and the bytes of
// --kv-cache-memory-bytes, among them. If not even one request of max_model_len fits, the
// Error has the numbers and says what to change.
Result<MemoryPlan> plan_memory(const MemoryInputs& inputs);

}  // namespace quire::kv
