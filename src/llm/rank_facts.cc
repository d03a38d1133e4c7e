// SPDX-License-Identifier: Apache-2.0
// Collects the facts of this rank.
#include "llm/rank_facts.h"

#include "base/strings.h"
#include "llm/page_identity.h"
#include "weights/weights_digest.h"

namespace quire::llm {
namespace {

std::string number(const std::optional<int64_t>& value) {
  return value ? std::to_string(*value) : "";
}

}  // namespace

std::vector<distributed::Fact> rank_facts(const Options& options, const model::ModelFiles& files,
                                          const Backend& backend) {
  std::vector<distributed::Fact> out = distributed::build_facts();
  const std::string device = backend.describe();
  out.push_back({"the backend", device.substr(0, device.find(' '))});
  out.push_back({backend.host_memory() ? "the level of instructions" : "the GPU", backend.isa()});
  out.push_back({"the model's config", config_digest(options)});
  out.push_back(
      {"the model's weights", files.source->is_dummy() ? "dummy" : weights::weights_sample_digest(*files.source)});
  const std::pair<const char*, std::string> flags[] = {
      {"--load-format", options.load_format},
      {"--quantization", options.quantization},
      {"--dtype", options.dtype},
      {"--max-model-len", options.max_model_len},
      {"--runner", options.runner},
      {"--convert", options.convert},
      {"--pooler-config", options.pooler_config},
      {"--hf-overrides", options.hf_overrides},
      {"--seed", number(options.seed)},
      {"--kv-cache-dtype", options.kv_cache_dtype},
      {"--block-size", std::to_string(options.block_size)},
      {"--num-gpu-blocks-override", number(options.num_gpu_blocks_override)},
      {"--max-num-seqs", std::to_string(options.max_num_seqs)},
      {"--max-num-batched-tokens", std::to_string(options.max_num_batched_tokens)},
      {"--speculative-config", options.speculative_config},
      {"--kv-offload-dir", options.kv_offload_dir.empty() ? "none" : "given"},
      {"--kv-offload-host-bytes", options.kv_offload_host_bytes.empty() ? "none" : "given"},
      {"--enable-lora", options.enable_lora ? "on" : "off"},
      {"--max-loras", std::to_string(options.max_loras)},
      {"--max-lora-rank", std::to_string(options.max_lora_rank)},
      {"--lora-dtype", options.lora_dtype},
      {"--lora-target-modules", joined(options.lora_target_modules)},
      {"--tensor-parallel-size", std::to_string(options.tensor_parallel_size)},
      {"--pipeline-parallel-size", std::to_string(options.pipeline_parallel_size)},
      {"--data-parallel-size", std::to_string(options.engines)},
  };
  for (const auto& [name, value] : flags) out.push_back({name, value});
  return out;
}

}  // namespace quire::llm
