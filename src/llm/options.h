// SPDX-License-Identifier: Apache-2.0
// Options: how a model is loaded and run, in the words of the flags; shared by the CLI, the server and the C++ API.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quire::distributed {
class Group;
}

namespace quire::llm {

// Where this process is among the ranks, if each of them is a process of its own.
struct Processes {
  distributed::Group* group =
      nullptr;            // all of them, which outlive every model; null: ranks are threads of one process
  int host_rank = 0;      // among the processes of this host, which share its memory
  int host_ranks = 1;     // how many these are
  bool own_cpus = false;  // and this one has CPUs, or a number of threads, to itself
};

struct Options {
  std::filesystem::path model;  // a folder, a .gguf, or with load_format dummy a config.json

  // Model
  std::string load_format = "auto";              // auto, safetensors, gguf, dummy
  std::string quantization;                      // type of dummy weights: q4_k, awq, ...; "": as config.json says
  std::string dtype = "auto";                    // auto, float32, float16, bfloat16
  std::string max_model_len;                     // "": the model's; "auto"; or a length such as 8192, 8k, 8K
  std::filesystem::path tokenizer;               // "": the model's
  std::filesystem::path chat_template;           // "": the model's; else a file with a Jinja template
  bool allow_special_tokens_in_content = false;  // recognise control tokens that are spelled in messages
  std::string generation_config = "auto";        // auto: the model's folder; vllm: neutral; or a folder
  std::string override_generation_config;        // JSON object
  std::string runner = "auto";                   // auto, generate, pooling
  std::string convert = "auto";                  // auto, none, embed, classify
  std::string pooler_config;                     // JSON object; "": as the model's files say
  std::string hf_overrides;                      // JSON object: members for config.json
  std::optional<int64_t> seed;                   // of dummy weights (none: 0) and of requests without one

  // KV cache
  std::string kv_cache_dtype = "auto";
  int64_t block_size = 16;
  std::string kv_cache_memory_bytes;             // "": by the memory plan
  std::optional<double> gpu_memory_utilization;  // share of the GPU's free memory; none: 0.9
  std::optional<int64_t> num_gpu_blocks_override;
  bool enable_prefix_caching = true;
  int64_t prefix_match_unit = 0;                           // 0: block_size
  std::optional<int64_t> prefix_cache_retention_interval;  // none: the engine chooses
  std::filesystem::path kv_offload_dir;                    // "": no tier on disk
  std::string kv_offload_size;                             // of its files
  std::string kv_offload_host_bytes;                       // for a GPU; "": no tier in host memory
  int64_t memory_bytes = 0;  // the most that weights, pages and scratch may take together; 0: what is free

  // Scheduler
  int64_t max_num_seqs = 0;            // 0: the default
  int64_t max_num_batched_tokens = 0;  // 0: the default
  int64_t long_prefill_token_threshold = 0;
  int64_t fair_share_tokens = 0;  // 0: the default
  bool enable_chunked_prefill = true;
  std::string scheduling_policy = "fcfs";
  bool async_scheduling = true;  // on a GPU: build and queue the next step while one runs
  int64_t max_logprobs = 20;
  std::string speculative_config;     // JSON object; "": no speculation
  std::filesystem::path draft_model;  // where its model is; "": where it says

  // Adapters
  bool enable_lora = false;
  std::vector<std::filesystem::path> lora;  // adapters that are read with the model: Llm::own_adapters()
  int64_t max_loras = 1;                    // different ones in one step
  int64_t max_lora_rank = 16;
  std::optional<int64_t> max_cpu_loras;          // kept in the host's memory; none: max_loras
  std::string lora_dtype = "auto";               // auto, float32, float16, bfloat16
  std::vector<std::string> lora_target_modules;  // parts of modules' names; empty: all that the model has

  // Ranks
  int64_t tensor_parallel_size = 1;     // ranks that share each layer
  int64_t pipeline_parallel_size = 1;   // ranges of layers, each on ranks of its own
  bool enable_expert_parallel = false;  // experts are always shared by expert: accepted, as in vLLM
  double distributed_timeout_s = 300;   // how long the others may wait for a rank's part of a step
  Processes processes;
  int64_t ranks() const { return tensor_parallel_size * pipeline_parallel_size; }

  // Device
  std::string device = "auto";  // auto, cpu, cuda, metal, emulator
  int64_t threads = 0;          // 0: all cores
  std::string cpu_isa;          // "": the best
  // --data-parallel-size. On a CPU they share the weights and divide threads and memory. On GPUs each has its own GPUs,
  // in the order of `device`, and its own weights; `engine` says which of them these options are for.
  int64_t engines = 1;
  int engine = 0;

  std::filesystem::path profile;  // the file for a trace, written when the process ends; "": none
};

}  // namespace quire::llm
