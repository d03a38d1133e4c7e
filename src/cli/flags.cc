// SPDX-License-Identifier: Apache-2.0
// The tables of flags.
#include "cli/flags.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace quire::cli {
namespace {

using llm::Options;

// One flag. The type of the member decides the type of the value.
struct ModelFlag {
  const char* group;
  const char* name;
  std::variant<std::string Options::*, int64_t Options::*, bool Options::*, std::optional<int64_t> Options::*,
               std::optional<double> Options::*, std::filesystem::path Options::*, std::vector<std::string> Options::*>
      member;
  const char* doc;
  const char* value = nullptr;  // the name of its type, if CLI11's name for the member's type says too little
};

constexpr const char* kModel = "Model";
constexpr const char* kKv = "KV cache";
constexpr const char* kScheduler = "Scheduler";
constexpr const char* kAdapters = "Adapters";
constexpr const char* kRanks = "Ranks";
constexpr const char* kDevice = "Device";

const ModelFlag kModelFlags[] = {
    {kModel, "--dtype", &Options::dtype,
     "Type of unquantised weights and of arithmetic: auto, float32, float16 or bfloat16. float32 never quantises "
     "activations",
     "TEXT:{auto,float32,float16,bfloat16}"},
    {kModel, "--load-format", &Options::load_format,
     "auto, safetensors, gguf, or dummy: random weights from --seed, which need only a config.json",
     "TEXT:{auto,safetensors,gguf,dummy}"},
    {kModel, "--quantization", &Options::quantization,
     "With --load-format dummy: the type of random weights, instead of the one that config.json names. A type of GGUF "
     "files (q4_k, q6_k, q8_0, mxfp4, ...), or awq, gptq, fp8, fp8_per_channel, fp8_per_block or "
     "int8_per_channel_weight_only. The type of other weights is read from their files"},
    {kModel, "--max-model-len", &Options::max_model_len,
     "Maximum length of prompt plus output in tokens (8192, 8k = 8000, 8K = 8192), or auto: the longest that fits in "
     "memory"},
    {kModel, "--tokenizer", &Options::tokenizer, "Folder with a tokenizer to use instead of the model's", kFolder},
    {kModel, "--chat-template", &Options::chat_template,
     "File with a Jinja chat template to use instead of the model's, or the template itself", kFile},
    {kModel, "--allow-special-tokens-in-content", &Options::allow_special_tokens_in_content,
     "Recognise control tokens such as <|im_end|> in the text of messages, as other servers do. If off, they are text, "
     "so that a user cannot forge a turn"},
    {kModel, "--generation-config", &Options::generation_config,
     "Sampling defaults: auto (the model's generation_config.json), vllm (neutral), or a folder", "DIR:{auto,vllm}"},
    {kModel, "--override-generation-config", &Options::override_generation_config,
     "JSON object that overrides sampling defaults, such as {\"temperature\": 0.5}"},
    {kModel, "--runner", &Options::runner,
     "generate (text), pooling (embeddings and scores), or auto: as the model's files say. generate with --convert "
     "embed does both",
     "TEXT:{auto,generate,pooling}"},
    {kModel, "--convert", &Options::convert,
     "Use a model that generates text for embeddings (embed) or, with the weights of a classifier, for scores "
     "(classify)",
     "TEXT:{auto,none,embed,classify}"},
    {kModel, "--pooler-config", &Options::pooler_config,
     "JSON object over what the model's files say of pooling: {\"pooling_type\": \"MEAN\", \"use_activation\": "
     "false}"},
    {kModel, "--hf-overrides", &Options::hf_overrides,
     "JSON object whose members replace those of config.json, such as {\"is_matryoshka\": true}"},
    {kModel, "--seed", &Options::seed,
     "Seed of dummy weights and of requests without a seed: serve draws their seeds from it in order of arrival "
     "(default: at random); run and chat use it as it is (default 0)"},
    {kKv, "--kv-cache-dtype", &Options::kv_cache_dtype,
     "Type of K and V in the KV cache: auto, float32, float16, bfloat16, fp8 (fp8_e4m3), fp8_e5m2 or "
     "int8_per_token_head",
     "TEXT:{auto,float32,float16,bfloat16,fp8,fp8_e4m3,fp8_e5m2,int8_per_token_head}"},
    {kKv, "--block-size", &Options::block_size,
     "Tokens per page: a multiple of 8 from 8 to 65536, preferably of 16; changes no result. Raised if a model has "
     "recurrent states, so that a state fits a page"},
    {kKv, "--kv-cache-memory-bytes", &Options::kv_cache_memory_bytes,
     "Memory for the KV cache (4GiB, 512M, 1.5g); default: what fits"},
    {kKv, "--gpu-memory-utilization", &Options::gpu_memory_utilization,
     "Fraction of a GPU's free memory to use for weights, KV cache and scratch memory (default: 0.9)"},
    {kKv, "--num-gpu-blocks-override", &Options::num_gpu_blocks_override,
     "Number of KV cache pages; default: what fits"},
    {kKv, "--enable-prefix-caching", &Options::enable_prefix_caching,
     "Reuse the KV cache of prompts with the same prefix"},
    {kKv, "--prefix-match-unit", &Options::prefix_match_unit,
     "For models with recurrent states: prefix hits end at multiples of so many tokens, a multiple of 8 (default: "
     "--block-size)"},
    {kKv, "--prefix-cache-retention-interval", &Options::prefix_cache_retention_interval,
     "For models with recurrent states: tokens of a prompt between the states that are kept for other prompts; 0: only "
     "where prompts end or part (default: at most an eighth of the way back, within a quarter of the pages)"},
    {kKv, "--kv-offload-dir", &Options::kv_offload_dir,
     "Keep KV cache pages in files of this folder, so that known prefixes need not be computed again, even after a "
     "restart; needs --kv-offload-size",
     kFolder},
    {kKv, "--kv-offload-size", &Options::kv_offload_size,
     "The most that the files of --kv-offload-dir may take (20GiB, 500M); the least recently used are deleted first"},
    {kKv, "--kv-offload-host-bytes", &Options::kv_offload_host_bytes,
     "On a GPU: host memory in which pages are kept that the GPU has no room for (8GiB, 500M)"},
    {kScheduler, "--max-num-seqs", &Options::max_num_seqs,
     "Maximum number of sequences per step (default: 128 on a CPU, 256 on a GPU, 1024 on one with 70 GiB or more)"},
    {kScheduler, "--max-num-batched-tokens", &Options::max_num_batched_tokens,
     "Maximum number of tokens per step (default: 512 on a CPU, 2048 on a GPU, 8192 on one with 70 GiB or more)"},
    {kScheduler, "--fair-share-tokens", &Options::fair_share_tokens,
     "While small requests run, long prompts and requests for many sequences get at most twice the share of the small "
     "ones in a step, but at least this many prompt tokens (default: 16 on a CPU, the whole step on a GPU)"},
    {kScheduler, "--long-prefill-token-threshold", &Options::long_prefill_token_threshold,
     "Maximum number of tokens of one prompt per step; 0: limited only by the step"},
    {kScheduler, "--enable-chunked-prefill", &Options::enable_chunked_prefill,
     "Compute long prompts over several steps"},
    {kScheduler, "--scheduling-policy", &Options::scheduling_policy, "fcfs or priority", "TEXT:{fcfs,priority}"},
    {kScheduler, "--async-scheduling", &Options::async_scheduling,
     "On a GPU: schedule and launch the next step while the current one runs. Changes no result"},
    {kScheduler, "--speculative-config", &Options::speculative_config,
     "JSON object that turns on speculation: {\"method\": \"ngram\", \"num_speculative_tokens\": 5, "
     "\"prompt_lookup_max\": 4, \"prompt_lookup_min\": 2}, {\"method\": \"suffix\"}, with a draft model "
     "{\"model\": MODEL, \"num_speculative_tokens\": 3}, or with the MTP layer of the model {\"method\": \"mtp\", "
     "\"num_speculative_tokens\": 2}. Changes no answer, only its speed"},
    {kScheduler, "--max-logprobs", &Options::max_logprobs,
     "Maximum number of logprobs per token in a request; -1: no limit"},
    {kAdapters, "--enable-lora", &Options::enable_lora, "Take LoRA adapters; requests without one are not changed"},
    {kAdapters, "--max-loras", &Options::max_loras, "Different adapters in one step; requests with others wait"},
    {kAdapters, "--max-lora-rank", &Options::max_lora_rank,
     "Maximum rank of an adapter, 1 to 512. Memory for --max-loras adapters of this rank is taken at the start"},
    {kAdapters, "--max-cpu-loras", &Options::max_cpu_loras,
     "Adapters that are kept in the host's memory; others are read again when they are used (default: --max-loras)"},
    {kAdapters, "--lora-dtype", &Options::lora_dtype,
     "Type of adapters on a CPU: auto (that of the model, bfloat16 if it is quantised), float32, float16 or bfloat16. "
     "A "
     "GPU has them in the type of its activations",
     "TEXT:{auto,float32,float16,bfloat16}"},
    {kAdapters, "--lora-target-modules", &Options::lora_target_modules,
     "The modules that can have adapters, by parts of their names, with spaces or commas between them: q_proj o_proj, "
     "self_attn, mlp.experts. Only these take memory, and adapters with others are refused (default: all)",
     "NAME ..."},
    {kRanks, "--tensor-parallel-size", &Options::tensor_parallel_size,
     "Ranks that share each layer: heads, columns and experts. On a CPU they are groups of threads, which share "
     "--threads; on NVIDIA GPUs each has a GPU. Changes no result"},
    {kRanks, "--pipeline-parallel-size", &Options::pipeline_parallel_size,
     "Stages of consecutive layers, each with --tensor-parallel-size ranks of its own. Changes no result"},
    {kRanks, "--enable-expert-parallel", &Options::enable_expert_parallel,
     "Accepted as in vLLM: ranks always share experts by expert"},
    {kDevice, "--device", &Options::device,
     "auto (cuda or metal if available, else cpu), cpu, cuda, metal, or emulator: GPU kernels run on the CPU, for "
     "tests. cuda:1 names a GPU, and cuda:0,2 one for each rank of this host. quire devices lists what is available",
     "TEXT:{auto,cpu,cuda,metal,emulator}"},
    {kDevice, "--threads", &Options::threads,
     "Threads of the cpu backend; 0: one per performance core. Changes no result"},
    {kDevice, "--cpu-isa", &Options::cpu_isa,
     "ISA level instead of the best one: portable, avx2, avx512, amx, neon_dotprod, neon_i8mm",
     "TEXT:{portable,avx2,avx512,amx,neon_dotprod,neon_i8mm}"},
    {kDevice, "--profile", &Options::profile,
     "Write a trace of the last steps, by op and thread, to this file at the end (chrome://tracing, ui.perfetto.dev)",
     kFile},
};

}  // namespace

std::string env_name(const std::string& flag) {
  std::string out = "QUIRE_";
  for (const char c : flag.substr(flag.find_first_not_of('-'))) {
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

CLI::Option* add_switch(CLI::App& app, const std::string& flag, bool& value, const std::string& doc) {
  const std::string negative = "--no-" + flag.substr(2);
  return app.add_flag(flag + ",!" + negative, value, doc + (value ? " (on; " + negative + " turns it off)" : ""))
      ->envname(env_name(flag));
}

std::vector<std::string> Words::given() const {
  std::vector<std::string> out;
  if (first_option != nullptr && first_option->count() > 0) out.push_back(first);
  if (second_option != nullptr && second_option->count() > 0) out.push_back(second);
  return out;
}

void add_words(CLI::App& app, Words& words, const std::string& second_name, const std::string& second_doc) {
  words.first_option =
      app.add_option("MODEL", words.first, "A folder, a .gguf, a cached name, or omitted for the default model")
          ->type_name(kModelValue);
  words.second_option = app.add_option(second_name, words.second, second_doc);
}

void add_model_flags(CLI::App& app, Options& options) {
  for (const ModelFlag& flag : kModelFlags) {
    std::visit(
        [&](auto member) {
          using Value = std::remove_reference_t<decltype(options.*member)>;
          CLI::Option* option = nullptr;
          if constexpr (std::is_same_v<Value, bool>) {
            option = add_switch(app, flag.name, options.*member, flag.doc);
          } else {
            option = app.add_option(flag.name, options.*member, flag.doc)->envname(env_name(flag.name));
          }
          if constexpr (std::is_same_v<Value, std::vector<std::string>>) option->delimiter(',');
          option->group(flag.group);
          if (flag.value != nullptr) option->type_name(flag.value);
        },
        flag.member);
  }
}

void add_lora_flag(CLI::App& app, Options& options) {
  app.add_option("--lora", options.lora,
                 "Folder or GGUF file of a LoRA adapter to use (may be repeated where receipts need several)")
      ->envname(env_name("--lora"))
      ->type_name(kFolder)
      ->group(kAdapters)
      ->allow_extra_args(false);
}

void add_sampling_flags(CLI::App& app, SamplingFlags& flags) {
  for (const sampling::ParamInfo& info : sampling::param_table()) {
    if ((info.sources & sampling::kHasFlag) == 0) continue;
    std::string name = "--" + std::string(info.name);
    std::replace(name.begin(), name.end(), '_', '-');
    std::string doc = info.rules.flag_doc != nullptr ? info.rules.flag_doc : info.doc;
    if (doc.ends_with('.')) doc.pop_back();
    std::visit(
        [&](auto member) {
          auto& value = flags.values.*member;
          using Value = std::remove_reference_t<decltype(value)>;
          CLI::Option* option = nullptr;
          if constexpr (std::is_same_v<Value, bool>) {
            option = add_switch(app, name, value, doc);
          } else if constexpr (std::is_same_v<Value, sampling::Strings> || std::is_same_v<Value, sampling::TokenIds>) {
            using List = std::vector<typename Value::value_type>;
            option = app.add_option_function<List>(
                name, [&value](const List& list) { value = list; }, doc);
          } else if constexpr (std::is_arithmetic_v<Value> || std::is_same_v<Value, std::optional<int64_t>>) {
            option = app.add_option(name, value, doc);
          }
          QUIRE_CHECK(option != nullptr, "parameters of this type have no flags");
          // A list's flag is repeated; it does not swallow the arguments behind it.
          option->envname(env_name(name))->group("Sampling")->allow_extra_args(false);
          flags.options.emplace_back(&info, option);
        },
        info.member);
  }
}

void SamplingFlags::apply(sampling::SamplingParams& params) const {
  for (const auto& [info, option] : options) {
    if (option->count() == 0) continue;
    std::visit([&](auto member) { params.*member = values.*member; }, info->member);
  }
}

std::vector<std::string> normalise_arguments(int argc, const char* const* argv) {
  constexpr std::pair<std::string_view, const char*> kShort[] = {
      {"-tp", "--tensor-parallel-size"}, {"-pp", "--pipeline-parallel-size"}, {"-dp", "--data-parallel-size"}};
  std::vector<std::string> out(argv + 1, argv + argc);
  for (std::string& argument : out) {
    if (argument == "--") break;
    for (const auto& [name, whole] : kShort) {
      if (argument == name || argument.starts_with(std::string(name) + "=")) argument.replace(0, name.size(), whole);
    }
    if (argument.rfind("--", 0) != 0) continue;
    const size_t end = std::min(argument.find_first_of("=."), argument.size());
    std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  }
  return out;
}

}  // namespace quire::cli
