// SPDX-License-Identifier: Apache-2.0
// Resolves the options against the model and the machine, and builds the engine.
#include "llm/load.h"

#include <algorithm>
#include <any>
#include <chrono>

#include "backend/cpu/topology.h"
#include "backend/tracing_backend.h"
#include "base/env.h"
#include "base/log.h"
#include "base/trace.h"
#include "distributed/mpi_group.h"
#include "kv/cache_groups.h"
#include "kv/kv_spec.h"
#include "kv/offload.h"
#include "llm/devices.h"
#include "llm/page_identity.h"
#include "llm/rank_facts.h"
#include "llm/ranks.h"
#include "llm/speculative_config.h"
#include "model/parallel_model.h"
#include "weights/dummy_form.h"

namespace quire::llm {
namespace {

// The sizes of a step, with vLLM's defaults for servers.
struct SchedulerDefaults {
  int64_t seqs = 0;
  int64_t batched_tokens = 0;
  int64_t fair_share_tokens = 0;  // 0: the whole step, because a GPU's step hardly takes longer with more rows
};
constexpr SchedulerDefaults kCpuDefaults{128, 512, 16}, kGpuDefaults{256, 2048, 0}, kLargeGpuDefaults{1024, 8192, 0};
constexpr size_t kLargeGpu = size_t{70} << 30;
constexpr int64_t kLogitRows = 64;
constexpr double kGpuUtilization = 0.9;
constexpr int64_t kMaxLength = int64_t{1} << 30;
constexpr double kOpenSeconds = 2;          // how long a start waits for the tier on disk
constexpr double kLeastScratch = 16 << 20;  // SmolLM2-135M needs 14 MiB on a CPU

Status check_counts(const Options& options) {
  const std::pair<const char*, int64_t> counts[] = {
      {"--max-num-seqs", options.max_num_seqs},
      {"--max-num-batched-tokens", options.max_num_batched_tokens},
      {"--fair-share-tokens", options.fair_share_tokens},
      {"--long-prefill-token-threshold", options.long_prefill_token_threshold}};
  for (const auto& [flag, count] : counts) {
    if (count >= 0 && count <= kMaxLength) continue;
    return invalid_argument({flag, " is ", count, "; it must be 0 (the default) to ", kMaxLength});
  }
  return {};
}

std::vector<kv::KvDType> supported_kv_types(const Backend& backend) {
  std::vector<kv::KvDType> out;
  for (const kv::KvDTypeInfo& row : kv::kKvDTypes) {
    const auto known = backend.kv_dtypes();
    if (std::find(known.begin(), known.end(), row.storage) != known.end()) out.push_back(row.type);
  }
  return out;
}

Result<kv::KvDType> kv_dtype(const Options& options, const model::ModelFiles& files, const Backend& backend) {
  kv::KvDTypeChoice choice;
  choice.kv_cache_dtype = options.kv_cache_dtype;
  choice.dtype = options.dtype;
  choice.quantised_file = files.quantised;
  if (backend.kv_dtypes().front() == DType::kBF16) choice.fallback = kv::KvDType::kBFloat16;
  choice.checkpoint = files.config.dtype;
  return kv::resolve_kv_dtype(choice, supported_kv_types(backend));
}

Result<int64_t> context_length(const Options& options, const model::ModelFiles& files) {
  const model::DecoderConfig& config = files.config;
  if (options.max_model_len.empty() || options.max_model_len == "auto" || options.max_model_len == "-1") {
    const int64_t own = files.pooler.max_length;  // sentence-transformers cut texts here
    return own > 0 && (files.pooler.embeds || files.pooler.classifies) ? std::min(own, config.max_position)
                                                                       : config.max_position;
  }
  QUIRE_ASSIGN(const int64_t length, parse_length(options.max_model_len, "--max-model-len"));
  if (length > config.max_position) {
    if (env("QUIRE_ALLOW_LONG_MAX_MODEL_LEN").value_or("0") == "1") return length;
    return invalid_argument({"--max-model-len is ", length, ", but the model was made for ", config.max_position,
                             " positions; set QUIRE_ALLOW_LONG_MAX_MODEL_LEN=1 to try all the same"});
  }
  return length;
}

Result<model::AdapterLimits> adapter_limits(const Options& options) {
  model::AdapterLimits out;
  if (!options.enable_lora && !options.lora_target_modules.empty()) {
    return invalid_argument("--lora-target-modules needs --enable-lora");
  }
  if (!options.enable_lora) return out;
  constexpr int64_t kMostSlots = 1024, kMostRank = 512;
  if (options.max_loras < 1 || options.max_loras > kMostSlots) {
    return invalid_argument({"--max-loras is ", options.max_loras, "; it must be 1 to ", kMostSlots});
  }
  if (options.max_lora_rank < 1 || options.max_lora_rank > kMostRank) {
    return invalid_argument({"--max-lora-rank is ", options.max_lora_rank, "; it must be 1 to ", kMostRank});
  }
  if (options.max_cpu_loras && *options.max_cpu_loras < options.max_loras) {
    return invalid_argument({"--max-cpu-loras is ", *options.max_cpu_loras,
                             "; it must be at least --max-loras, which is ", options.max_loras});
  }
  auto dtype = model::parse_dtype(options.lora_dtype);
  if (!dtype.ok()) {
    return invalid_argument({"--lora-dtype is '", options.lora_dtype, "'; choose auto, float32, float16 or bfloat16"});
  }
  out.slots = options.max_loras;
  out.max_rank = options.max_lora_rank;
  out.dtype = *dtype;
  for (const std::string& name : options.lora_target_modules) {  // a list in YAML has spaces after its commas
    const size_t first = name.find_first_not_of(' '), last = name.find_last_not_of(' ');
    out.targets.push_back(first == std::string::npos ? "" : name.substr(first, last + 1 - first));
  }
  if (std::ranges::any_of(out.targets, &std::string::empty)) {
    return invalid_argument("--lora-target-modules has an empty name; name parts of modules, such as q_proj");
  }
  return out;
}

// A lower bound for the bytes of the weights: the size of the files or, for dummy weights, by the config.
double weights_bytes(const Options& options, const model::ModelFiles& files) {
  const bool halved = options.dtype == "float16" || options.dtype == "half" || options.dtype == "bfloat16";
  const model::DecoderConfig& c = files.config;
  if (!files.source->is_dummy()) {
    return static_cast<double>(files.source->total_bytes()) * (halved && c.dtype == DType::kF32 ? 0.5 : 1.0);
  }
  const bool wide = options.dtype == "auto" ? c.dtype == DType::kF32 : !halved;
  return model::dummy_bytes(c, weights::dummy_element_bytes(files.scheme, wide ? 4 : 2));
}

double draft_bytes(const Options& options, const ResolvedOptions& resolved) {
  const bool own_files = resolved.draft && (!resolved.draft->ahead || resolved.draft->files.config.ahead.eagle);
  return own_files ? weights_bytes(options, resolved.draft->files) : 0;
}

// Checked before anything is read: if memory runs out while weights load, the system may kill the process.
Status check_weights_fit(const Options& options, const model::ModelFiles& files, const ResolvedOptions& resolved,
                         const Backend& backend) {
  const int64_t available = resolved.memory.available_bytes;
  const double needed =
      weights_bytes(options, files) / static_cast<double>(options.ranks()) + draft_bytes(options, resolved);
  if (needed <= static_cast<double>(available)) return {};
  const std::string where = backend.memory_bytes() > 0 ? " of memory on " + backend.describe() : " of memory";
  const double shown = std::min(needed, 9e18);
  return exhausted({"the weights of '", options.model.string(), "'",
                    (resolved.draft ? " and its draft model need " : " need "),
                    kv::format_bytes(static_cast<int64_t>(shown)), where, ", but ", kv::format_bytes(available),
                    " are free; choose a smaller model or a smaller weight type"});
}

SchedulerDefaults scheduler_defaults(const Backend& backend) {
  const size_t memory = backend.memory_bytes();
  return memory == 0 ? kCpuDefaults : memory < kLargeGpu ? kGpuDefaults : kLargeGpuDefaults;
}

// How many rows of logits are computed at once. A GPU reads the head's weights once for all of them, so it gets a row
// for every sequence, as long as the rows are a small part of its memory.
int64_t logit_rows(const Backend& backend, int64_t most, const model::DecoderConfig& config) {
  const auto memory = static_cast<int64_t>(backend.memory_bytes());
  if (memory == 0) return kLogitRows;
  const int64_t room = memory / 32 / (config.vocab_size * static_cast<int64_t>(sizeof(float)));
  return std::max<int64_t>(std::min(most, room), 1);
}

Status check_utilization(const Options& options, const Backend& backend) {
  if (!options.gpu_memory_utilization) return {};
  const double share = *options.gpu_memory_utilization;
  if (!(share > 0 && share <= 1)) {
    return invalid_argument(
        {"--gpu-memory-utilization is ", std::to_string(share), "; it must be above 0 and at most 1"});
  }
  if (backend.memory_bytes() == 0) {
    log_warn(
        "--gpu-memory-utilization has no effect: it is for GPUs; on a CPU, --kv-cache-memory-bytes says how much "
        "memory pages may take");
  }
  return {};
}

Status check_heads(const Options& options, const model::DecoderConfig& config, const Backend& backend) {
  const int64_t most = backend.max_head_dim();
  for (const kv::LayerCache& layer : model::cache_layers(config)) {
    const int64_t head = std::max(layer.head_dim, layer.v_head_dim);
    if (most == 0 || head <= most) continue;
    return unsupported({"'", options.model.string(), "' has attention heads of ", head, " elements, but ",
                        backend.describe(), " takes at most ", most, "; use --device cpu"});
  }
  return {};
}

Result<std::unique_ptr<Backend>> open_backend(const Options& options, int part) {
  QUIRE_ASSIGN(const DeviceChoice device, parse_device(options.device));
  if (device.kind != "cpu") {
    auto gpu = open_gpu(options, device, part);
    if (gpu.ok()) QUIRE_TRY(check_gpus(options, device, **gpu));
    if (gpu.ok()) return gpu;
    if (device.kind != "auto") {
      return invalid_argument(
          {"--device ", options.device, ": ", gpu.error().message, " (quire devices lists what there is)"});
    }
  }
  if (options.engines > 1) {
    const int threads = options.threads > 0 ? static_cast<int>(options.threads) : cpu::choose_cpus().threads;
    const int64_t ranks_here = cpu_share(options, 0).ranks / options.engines;
    if (options.engines * ranks_here > threads) {
      const std::string ranks = ranks_here > 1 ? " for each of its " + std::to_string(ranks_here) + " ranks" : "";
      return invalid_argument({"--data-parallel-size is ", options.engines, ", but there are ", threads,
                               " threads, and each engine needs one", ranks, ": lower it, or raise --threads"});
    }
  }
  const HostShare share = cpu_share(options, part);
  return make_cpu_backend({static_cast<int>(options.threads), options.cpu_isa, share.rank, share.ranks});
}

// Reserves the memory that ops need besides the model's scratch.
Result<size_t> reserve(const ResolvedOptions& resolved, const model::Model& model, const model::Model* draft,
                       Backend& backend) {
  const engine::SchedulerOptions& scheduler = resolved.engine.scheduler;
  const model::BatchLimits limits{scheduler.max_num_batched_tokens, resolved.engine.max_logit_rows};
  WorkspaceLimits sizes = model.workspace_limits(limits);
  if (draft != nullptr) sizes.raise_to(draft->workspace_limits(limits));
  sizes.seqs = scheduler.max_num_seqs;
  std::vector<int64_t> widths;
  for (const kv::CacheLayout::Group& group : resolved.memory.layout.groups) {
    if (group.kind == kv::CacheKind::kState) continue;
    widths.push_back(
        backend.table_width((scheduler.max_model_len + group.block_size - 1) / group.block_size, group.block_size));
    sizes.positions = std::max(sizes.positions, widths.back() * group.block_size);
  }
  size_t groups = resolved.memory.layout.groups.size();
  if (groups == 0) {  // an encoder lays out the pages of a step by itself
    constexpr int64_t kPage = 16;
    widths.push_back(backend.table_width((scheduler.max_model_len + kPage - 1) / kPage, kPage));
    sizes.positions = widths.back() * kPage;
    groups = 1;
  }
  sizes.staged_bytes = model::StepBatch::most_bytes(sizes.tokens, sizes.seqs, groups, widths);
  sizes.staged_arrays = model::StepBatch::num_arrays(groups);
  auto reserved = backend.reserve(sizes);
  if (reserved.ok()) return reserved;
  return exhausted({"a step of ", sizes.tokens, " tokens needs more scratch than the weights leave (",
                    reserved.error().message, "); lower --max-num-batched-tokens or --max-num-seqs"});
}

}  // namespace

Result<Options> with_own_adapters(Options options) {
  if (options.lora.empty()) return options;
  for (const std::filesystem::path& path : options.lora) {
    QUIRE_ASSIGN(const weights::AdapterFiles files, weights::open_adapter(path));
    for (const weights::AdapterModule& module : files.modules) {
      options.max_lora_rank = std::max(options.enable_lora ? options.max_lora_rank : 1, module.rank);
      options.enable_lora = true;
    }
  }
  options.max_loras = std::max(options.max_loras, static_cast<int64_t>(options.lora.size()));
  return options;
}

Result<int64_t> parse_length(const std::string& text, const char* flag) {
  const auto length = kv::parse_bytes(text, flag);
  if (length.ok() && *length >= 1 && *length <= kMaxLength) return *length;
  return invalid_argument(
      {flag, " is '", text, "'; it must be 1 to ", kMaxLength, " tokens, such as 8192, 8k (8000) or 8K (8192)"});
}

Result<model::ModelFiles> open_files(const Options& options) {
  for (const char* known : {"auto", "safetensors", "gguf", "dummy"}) {
    if (options.load_format != known) continue;
    model::LoadOptions load;
    load.dummy = options.load_format == "dummy";
    load.dtype = options.dtype;
    load.seed = static_cast<uint64_t>(options.seed.value_or(0));
    load.quantization = options.quantization;
    if (!load.dummy && !options.quantization.empty()) {
      return invalid_argument({"--quantization is '", options.quantization,
                               "', but the type of the weights is read from their files; it is for random weights "
                               "(--load-format dummy)"});
    }
    load.hf_overrides = options.hf_overrides;
    load.pooler_config = options.pooler_config;
    load.convert = options.convert;
    QUIRE_ASSIGN(model::ModelFiles files, model::open_model(options.model, load));
    const bool gguf = files.gguf != nullptr;
    if ((options.load_format == "gguf" && !gguf) || (options.load_format == "safetensors" && gguf)) {
      return invalid_argument({"--load-format is ", options.load_format, ", but '", options.model.string(), "' is ",
                               (gguf ? "a GGUF file" : "a safetensors folder")});
    }
    if (gguf && !options.hf_overrides.empty() && options.hf_overrides != "{}") {
      return invalid_argument({"--hf-overrides replaces members of config.json, which the GGUF file '",
                               options.model.string(), "' does not have; leave the flag out"});
    }
    return files;
  }
  return invalid_argument({"--load-format is '", options.load_format, "'; choose auto, safetensors, gguf or dummy"});
}

Result<std::unique_ptr<Backend>> make_backend(const Options& options, int part) {
  if (options.threads < 0 || options.threads > 4096)
    return invalid_argument("--threads must be from 0 (all cores) to 4096");
  QUIRE_ASSIGN(std::unique_ptr<Backend> backend, open_backend(options, part));
  return trace::on() ? make_tracing_backend(std::move(backend)) : std::move(backend);
}

Result<RunnerChoice> choose_runner(const Options& options, const model::ModelFiles& files) {
  const model::PoolerConfig& pooler = files.pooler;
  const bool can_generate = files.config.has_head;
  const bool converts = options.convert == "embed" || options.convert == "classify";
  if (options.runner == "auto") {
    const bool pools = pooler.embeds || pooler.classifies;
    return RunnerChoice{.generates = !pools, .pools = pools};
  }
  if (options.runner == "pooling") return RunnerChoice{.generates = false, .pools = true};
  if (options.runner != "generate") {
    return invalid_argument({"--runner is '", options.runner, "'; choose auto, generate or pooling"});
  }
  if (!can_generate) {
    return invalid_argument(
        {"--runner is generate, but ", files.config.architecture, " makes embeddings or scores; leave the flag out"});
  }
  return RunnerChoice{.generates = true, .pools = converts};
}

// What one rank may take, among all that share the memory.
void measure_memory(const Options& options, const Backend& backend, kv::MemoryInputs& memory) {
  const MemoryRanks ranks = ranks_on_memory(options, backend);
  if (const size_t free = backend.memory_bytes(); free > 0) {
    const double share = options.gpu_memory_utilization.value_or(kGpuUtilization);
    memory.available_bytes = static_cast<int64_t>(static_cast<double>(free) * part_of_free(ranks, share));
    memory.device = backend.describe();
  } else if (const auto host = kv::available_memory(); host.ok()) {
    memory.available_bytes = static_cast<int64_t>(static_cast<double>(host->available) * part_of_free(ranks, 1));
  }
  if (options.memory_bytes > 0) {
    const int64_t allowed = options.memory_bytes / ranks.all;
    memory.available_bytes = memory.available_bytes > 0 ? std::min(memory.available_bytes, allowed) : allowed;
  }
}

Result<int64_t> least_memory(const Options& options) {
  QUIRE_ASSIGN(const std::unique_ptr<Backend> backend, make_backend(options));
  QUIRE_ASSIGN(const model::ModelFiles files, open_files(options));
  QUIRE_ASSIGN(const ResolvedOptions resolved, resolve_options(options, files, *backend));
  const kv::MemoryInputs& memory = resolved.memory;
  const auto page = static_cast<double>(memory.layout.page_bytes());
  const bool apart = !backend->host_memory();  // each engine has its own weights
  const double engines = apart ? 1 : static_cast<double>(options.engines);
  int copies = 1;
  for (int e = 1; apart && e < options.engines; ++e) copies += share_memory(options, *backend, e) ? 1 : 0;
  const double loaded = weights_bytes(options, files) + draft_bytes(options, resolved);
  const double weights = loaded + engines * (loaded / 8 + kLeastScratch);  // and scratch
  if (memory.num_gpu_blocks_override || memory.kv_cache_memory_bytes) {    // the pages that were asked for
    const double kv = memory.num_gpu_blocks_override
                          ? engines * static_cast<double>(*memory.num_gpu_blocks_override) * page
                          : static_cast<double>(*memory.kv_cache_memory_bytes);
    return static_cast<int64_t>(std::min(copies * (weights + kv), 9e18));
  }
  const int64_t length = memory.max_model_len_auto ? 1 : memory.max_model_len;           // auto: what fits
  const int64_t pages = kv::max_pages(memory.layout.groups, length, memory.policy) + 1;  // and the null page
  const double kv = engines * static_cast<double>(pages) * page;
  const double least = backend->memory_bytes() > 0 ? weights + kv : std::max(weights + kv, 2 * kv);  // see plan_memory
  return static_cast<int64_t>(std::min(copies * least, 9e18));
}

Result<ResolvedOptions> resolve_options(const Options& options, const model::ModelFiles& files, const Backend& backend,
                                        const model::Share& share) {
  ResolvedOptions out;
  QUIRE_TRY(check_ranks(options, backend));
  QUIRE_TRY(check_counts(options));
  QUIRE_TRY(check_utilization(options, backend));
  QUIRE_TRY(check_heads(options, files.config, backend));
  QUIRE_ASSIGN(out.engine.offload, offload_options(options, backend));
  QUIRE_ASSIGN(const SpeculativeConfig speculation, parse_speculative_config(options.speculative_config));
  QUIRE_ASSIGN(out.draft, open_draft_model(options, speculation, files));
  out.engine.speculation = speculation.options;
  // All stages have the same groups of layers, so that they have the same pages.
  QUIRE_ASSIGN(model::DecoderConfig all_layers, model::share_of(files.config, {share.rank, share.ranks}));
  QUIRE_ASSIGN(const std::optional<DType> plain, model::parse_dtype(options.dtype));
  model::choose_states(backend, model::activation_of(files, plain, backend), all_layers);
  QUIRE_ASSIGN(const model::DecoderConfig own, model::share_of(files.config, share));
  std::vector<kv::LayerCache> layers = model::cache_layers(all_layers);
  if (out.draft) {  // its layers come after those of the model
    QUIRE_TRY(check_heads(options, out.draft->files.config, backend));
    std::ranges::copy(model::cache_layers(out.draft->files.config), std::back_inserter(layers));
  }
  QUIRE_ASSIGN(out.memory.dtype, kv_dtype(options, files, backend));
  out.engine.kv_dtype = kv::storage_type(out.memory.dtype);
  // A backend may pad pages (head sizes that are no multiple of its vectors), so it is asked for their size.
  const auto page_bytes = [&](const KvPageShape& shape) { return static_cast<int64_t>(backend.kv_page_bytes(shape)); };
  const bool encoder = files.config.encoder.on;
  if (encoder) {
    out.memory.layout = kv::layout_without_pages(own.per_layer.size());
  } else {
    QUIRE_ASSIGN(out.memory.layout, kv::group_layers(layers, out.engine.kv_dtype, options.block_size, page_bytes,
                                                     options.prefix_match_unit));
    // Rank 0 alone has the layers of the draft model.
    out.memory.draft_layers = share.leads() ? std::ssize(layers) - files.config.layers : 0;
    if (share.stages > 1 || (out.draft && !share.leads())) {
      out.memory.layout =
          kv::some_layers(out.memory.layout, own.share.first_layer, own.layers, out.memory.draft_layers);
    }
  }
  out.load.share = share;
  QUIRE_ASSIGN(const RunnerChoice runner, choose_runner(options, files));
  out.engine.pools = runner.pools;
  QUIRE_ASSIGN(const int64_t max_len, context_length(options, files));
  out.load.dtype = options.dtype;
  out.load.dummy = options.load_format == "dummy";
  out.load.seed = static_cast<uint64_t>(options.seed.value_or(0));
  out.load.max_model_len = max_len;
  if (out.draft) {
    out.draft->max_length = std::min(out.draft->max_length, max_len);
    out.engine.speculation.max_length = out.draft->max_length;
  }

  QUIRE_ASSIGN(out.load.adapters, adapter_limits(options));
  engine::SchedulerOptions& scheduler = out.engine.scheduler;
  scheduler.max_adapters = out.load.adapters.slots;
  const SchedulerDefaults defaults = scheduler_defaults(backend);
  scheduler.max_num_seqs = options.max_num_seqs > 0 ? options.max_num_seqs : defaults.seqs;
  scheduler.max_num_batched_tokens =
      options.max_num_batched_tokens > 0 ? options.max_num_batched_tokens : defaults.batched_tokens;
  scheduler.chunked_prefill = options.enable_chunked_prefill && !encoder;
  if (!scheduler.chunked_prefill && !(encoder && options.max_num_batched_tokens > 0))
    scheduler.max_num_batched_tokens = std::max(scheduler.max_num_batched_tokens, max_len);
  scheduler.max_num_batched_tokens = std::min(scheduler.max_num_batched_tokens, scheduler.max_num_seqs * max_len);
  scheduler.max_num_seqs = std::min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens);
  scheduler.min_heavy_tokens = options.fair_share_tokens > 0 ? options.fair_share_tokens : defaults.fair_share_tokens;
  if (scheduler.min_heavy_tokens == 0) scheduler.min_heavy_tokens = scheduler.max_num_batched_tokens;
  scheduler.max_model_len = max_len;
  scheduler.long_prefill_token_threshold = encoder ? 0 : options.long_prefill_token_threshold;
  if (options.scheduling_policy != "fcfs" && options.scheduling_policy != "priority") {
    return invalid_argument({"--scheduling-policy is '", options.scheduling_policy, "'; choose fcfs or priority"});
  }
  scheduler.policy = options.scheduling_policy == "priority" ? engine::Policy::kPriority : engine::Policy::kFcfs;
  out.engine.block_size = static_cast<int32_t>(kv::main_block_size(out.memory.layout));
  out.engine.prefix_caching = options.enable_prefix_caching && !encoder;
  if (const std::optional<int64_t> interval = options.prefix_cache_retention_interval) {
    if (*interval < 0) {
      return invalid_argument({"--prefix-cache-retention-interval is ", *interval,
                               "; it must be a number of tokens, or 0 for no checkpoints at intervals"});
    }
    out.engine.checkpoint_interval = *interval;
  }
  if (options.max_logprobs < -1) {
    return invalid_argument(
        {"--max-logprobs is ", options.max_logprobs, "; it must be a number of tokens, or -1 for no limit"});
  }
  out.engine.max_logprobs = options.max_logprobs;
  const int64_t rows_per_seq = 1 + out.engine.speculation.num_tokens;
  out.engine.max_logit_rows = std::min(logit_rows(backend, scheduler.max_num_seqs * rows_per_seq, files.config),
                                       scheduler.max_num_batched_tokens);
  out.engine.async_scheduling = options.async_scheduling;
  out.engine.seed = options.seed;

  if (out.engine.speculation.on() && encoder) {
    return invalid_argument("--speculative-config is for models that generate text; this one is an encoder");
  }
  out.memory.policy = {scheduler.max_num_batched_tokens, out.engine.prefix_caching};
  out.memory.max_model_len = max_len;
  out.memory.max_model_len_auto = options.max_model_len == "auto" || options.max_model_len == "-1";
  out.memory.max_num_seqs = scheduler.max_num_seqs;
  out.memory.engines = backend.host_memory() ? options.engines : 1;
  out.memory.num_gpu_blocks_override = options.num_gpu_blocks_override;
  if (!options.kv_cache_memory_bytes.empty()) {
    QUIRE_ASSIGN(out.memory.kv_cache_memory_bytes,
                 kv::parse_bytes(options.kv_cache_memory_bytes, "--kv-cache-memory-bytes"));
  }
  return out;
}

namespace {

Status check_size(const Options& options, const distributed::Group& all) {
  if (all.size() == options.ranks()) return {};
  return invalid_argument({"there are ", all.describe(), ", but --tensor-parallel-size times ",
                           "--pipeline-parallel-size is ", options.ranks(),
                           "; start as many ranks as these flags say"});
}

}  // namespace

// One rank's model, before it has pages.
struct LoadedRank {
  ResolvedOptions resolved;
  std::unique_ptr<model::Model> model, draft;
  model::BatchLimits limits;
};

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// How long the weights took, apart from the checks of the vendor's library, which were `checked` seconds before.
void log_weights(const model::ModelFiles& files, int64_t bytes, std::chrono::steady_clock::time_point start,
                 Backend& backend, double checked) {
  backend.synchronise();  // a device may still be making or copying some
  checked = backend.library_seconds() - checked;
  const double seconds = std::max(seconds_since(start) - checked, 1e-9);
  log_info("{} {} of weights in {:.2f} s ({:.1f} GB/s){}", files.source->is_dummy() ? "made" : "loaded",
           kv::format_bytes(bytes), seconds, static_cast<double>(bytes) / seconds / 1e9,
           checked > 0 ? fmt::format("; the check of the library's products took {:.2f} s", checked) : "");
}

Result<LoadedRank> load_weights(const Options& options, const model::ModelFiles& files, Backend& backend,
                                std::function<void(int64_t, int64_t)> progress, const std::atomic<bool>* cancelled,
                                const RankGroups& ranks) {
  LoadedRank out;
  ResolvedOptions& resolved = out.resolved;
  auto resolvable = resolve_options(options, files, backend, ranks.share);
  QUIRE_TRY(agree(ranks.all, resolvable.ok() ? Status() : Status(resolvable.error())));
  resolved = std::move(*resolvable);
  QUIRE_TRY(agree_on_sizes(ranks.all, resolved.engine));
  resolved.load.progress = std::move(progress);
  resolved.load.cancelled = cancelled;
  resolved.load.ranks = ranks.ranks();
  // Before the weights are loaded, so that a plan without room for them fails early. Ranks share the host's memory.
  measure_memory(options, backend, resolved.memory);
  if (resolved.memory.available_bytes > 0) QUIRE_TRY(check_weights_fit(options, files, resolved, backend));
  const auto start = std::chrono::steady_clock::now();
  const double checked = backend.library_seconds();
  QUIRE_ASSIGN(out.model, model::load_model(files, resolved.load, backend));
  if (resolved.draft && resolved.draft->ahead) {
    const model::AheadConfig& layer = resolved.draft->files.config.ahead;
    layer.eagle ? out.model->keep_hidden_before(layer.taps) : out.model->keep_hidden();
  }
  // Rank 0 drafts alone, with the whole of the draft model.
  if (resolved.draft && (ranks.all == nullptr || ranks.all->rank() == 0)) {
    model::LoadOptions load = resolved.load;
    load.share = {};
    load.ranks = {};
    load.ranks.beside = ranks.all != nullptr;
    load.max_model_len = resolved.draft->max_length;
    load.progress = {};
    load.adapters = {};  // drafts are made without them, and checked with them
    const model::ModelFiles& source = resolved.draft->files;
    QUIRE_ASSIGN(out.draft, resolved.draft->ahead ? model::load_layer_ahead(source, load, backend, *out.model, files)
                                                  : model::load_model(source, load, backend));
    resolved.memory.draft_weights_bytes = static_cast<int64_t>(out.draft->weights_bytes());
  }
  out.limits = {resolved.engine.scheduler.max_num_batched_tokens, resolved.engine.max_logit_rows,
                resolved.engine.scheduler.max_num_seqs, resolved.engine.pools};
  resolved.memory.weights_bytes =
      resolved.memory.draft_weights_bytes + static_cast<int64_t>(out.model->weights_bytes());
  if (ranks.all == nullptr || ranks.all->rank() == 0) {
    log_weights(files, resolved.memory.weights_bytes, start, backend, checked);
  }
  resolved.memory.scratch_bytes = static_cast<int64_t>(out.model->scratch_bytes(out.limits));
  if (out.draft != nullptr) resolved.memory.scratch_bytes += static_cast<int64_t>(out.draft->scratch_bytes(out.limits));
  QUIRE_ASSIGN(const size_t reserved, reserve(resolved, *out.model, out.draft.get(), backend));
  resolved.memory.scratch_bytes += static_cast<int64_t>(reserved);
  return out;
}

// The same number of pages on every rank.
Result<kv::MemoryPlan> plan_rank(LoadedRank& rank, distributed::Group* all) {
  kv::MemoryInputs& memory = rank.resolved.memory;
  auto plan = kv::plan_memory(memory);
  QUIRE_TRY(agree(all, plan.ok() ? Status() : Status(plan.error())));
  const int64_t blocks = smallest(all, plan->num_blocks), length = smallest(all, plan->max_model_len);
  if (blocks < plan->num_blocks || length < plan->max_model_len) {
    memory.num_gpu_blocks_override = blocks;
    memory.max_model_len = length;
    memory.max_model_len_auto = false;
    plan = kv::plan_memory(memory);
  }
  QUIRE_TRY(agree(all, plan.ok() ? Status() : Status(plan.error())));
  rank.resolved.engine.num_blocks = plan->num_blocks;
  rank.resolved.engine.cache = plan->layout;
  rank.resolved.engine.scheduler.max_model_len = plan->max_model_len;
  return plan;
}

// Decides what names the pages in the tiers. Each rank keeps its own part of a page, in a folder of its own.
void name_pages(const Options& options, const model::ModelFiles& files, const Backend& backend,
                const kv::MemoryPlan& plan, const RankGroups& groups, ResolvedOptions& resolved) {
  kv::OffloadOptions& offload = resolved.engine.offload;
  const int64_t ranks = options.engines * (groups.all != nullptr ? groups.all->size() : 1);
  if (offload.host_bytes > 0) offload.host_bytes = std::max<int64_t>(offload.host_bytes / ranks, 1);
  if (offload.folder.empty()) return;
  Options own = options;
  std::string rank;
  if (groups.all != nullptr) {
    const model::Share& share = groups.share;
    rank = "rank " + std::to_string(share.rank) + " of " + std::to_string(share.ranks) + ", stage " +
           std::to_string(share.stage) + " of " + std::to_string(share.stages) + "\n";
    own.kv_offload_dir /= "rank-" + std::to_string(groups.all->rank()) + "-of-" + std::to_string(groups.all->size());
    offload.folder = own.kv_offload_dir;
    offload.folder_bytes /= groups.all->size();
  }
  offload.identity = [digest = page_identity(own, files, backend, plan, resolved.draft.has_value()), rank] {
    return digest() + rank;
  };
}

Failure no_twin() {
  return unsupported("--data-parallel-size: this model's weights cannot be shared between engines; use 1");
}

// Another engine for a loaded model, with its own backend, scratch and pages. `all`: of rank 0, if it has several
// ranks; `keep` is destroyed after the model, which sets `leader`.
Result<std::unique_ptr<engine::Engine>> make_twin_engine(std::unique_ptr<Backend> backend, const LoadedRank& rank,
                                                         const model::Ranks& all,
                                                         std::shared_ptr<model::AdapterBook> adapters, std::any keep,
                                                         model::ParallelModel*& leader) {
  const ResolvedOptions& resolved = rank.resolved;
  QUIRE_ASSIGN(std::unique_ptr<model::Model> twin, rank.model->make_twin(*backend, nullptr, all));
  std::unique_ptr<model::Model> draft_twin;
  if (rank.draft != nullptr) {
    QUIRE_ASSIGN(draft_twin, rank.draft->make_twin(*backend, resolved.draft->ahead ? twin.get() : nullptr, {}));
  }
  if (twin == nullptr || (rank.draft != nullptr && draft_twin == nullptr)) return no_twin();
  QUIRE_TRY(reserve(resolved, *twin, draft_twin.get(), *backend));
  if (all.model != nullptr) {
    auto parallel = std::make_unique<model::ParallelModel>(std::move(twin), all, std::move(adapters), std::move(keep));
    leader = parallel.get();
    twin = std::move(parallel);
  }
  return engine::Engine::make(std::move(backend), std::move(twin), resolved.engine, std::move(draft_twin));
}

// The same with ranks of its own, which share the weights of `first`, if the model has several.
Result<std::unique_ptr<engine::Engine>> add_twin_engine(const Options& options, int index, const LoadedRank& rank,
                                                        const RankThreads* first, int64_t pages,
                                                        const std::shared_ptr<model::AdapterBook>& adapters) {
  model::ParallelModel* leader = nullptr;
  auto backend = make_backend(options, index * static_cast<int>(options.ranks()));
  std::shared_ptr<RankThreads> threads;
  std::shared_ptr<distributed::Group> all;
  if (options.processes.group != nullptr) {
    all = distributed::make_twin_group(*options.processes.group, index);
  } else if (first != nullptr) {
    threads = std::make_shared<RankThreads>(options, index, *first);
    all = std::shared_ptr<distributed::Group>(threads, &threads->first());
  } else {
    if (!backend.ok()) return backend.failure();
    return make_twin_engine(std::move(*backend), rank, {}, nullptr, {}, leader);
  }
  QUIRE_TRY(agree(all.get(), backend.ok() ? Status() : Status(backend.error())));
  const auto groups = std::make_shared<RankGroups>();
  QUIRE_ASSIGN(*groups, RankGroups::make(options, *all, **backend));
  groups->report(pages);
  auto twin = make_twin_engine(std::move(*backend), rank, groups->ranks(), adapters, std::pair(all, groups), leader);
  QUIRE_TRY(agree(groups->all, twin.ok() ? Status() : Status(twin.error())));
  leader->start();
  return twin;
}

// One engine, and on a CPU its twins.
Result<LoadedEngine> load_first_engine(const Options& options, const model::ModelFiles& files,
                                       std::unique_ptr<Backend> backend, std::function<void(int64_t, int64_t)> progress,
                                       const std::atomic<bool>* cancelled, distributed::Group* all,
                                       const std::shared_ptr<model::AdapterBook>& adapters) {
  std::shared_ptr<RankThreads> threads;  // they end after the model that they follow
  if (options.processes.group != nullptr) {
    all = options.processes.group;
    QUIRE_TRY(agree(all, check_ranks(options, *backend)));
    QUIRE_TRY(distributed::shake_hands(*all, rank_facts(options, files, *backend)));
  } else {
    QUIRE_TRY(check_ranks(options, *backend));
    if (all != nullptr) QUIRE_TRY(check_size(options, *all));
    if (all == nullptr && (options.ranks() > 1 || gathers_alone())) {
      threads = std::make_shared<RankThreads>(options, cancelled);
      all = &threads->first();
    }
    if (all != nullptr) {
      QUIRE_TRY(agree(all, {}));  // whether every rank has a backend
      QUIRE_TRY(check_same_device(*all, *backend));
    }
  }
  auto groups = std::make_shared<RankGroups>();
  if (all != nullptr) {
    QUIRE_ASSIGN(*groups, RankGroups::make(options, *all, *backend));
  }
  auto rank = load_weights(options, files, *backend, std::move(progress), cancelled, *groups);
  QUIRE_TRY(agree(all, rank.ok() ? Status() : Status(rank.error())));
  if (all != nullptr) QUIRE_TRY(rank->model->meet_adapters(*all));
  LoadedEngine out;
  QUIRE_ASSIGN(out.plan, plan_rank(*rank, all));
  ResolvedOptions& resolved = rank->resolved;
  groups->report(out.plan.num_blocks - 1);
  const bool apart = options.engines > 1 && !backend->host_memory();
  log_info("{}{}{}", apart ? "engine " + std::to_string(options.engine) + ": " : "",
           all == nullptr ? "" : "rank 0 of " + all->describe() + ": ", out.plan.line());
  name_pages(options, files, *backend, out.plan, *groups, resolved);
  if (options.engines > 1 && !apart && options.ranks() == 1 && resolved.engine.prefix_caching) {
    resolved.engine.offload.peers = std::make_shared<kv::PeerPages>();
  }
  for (int i = 1; !apart && i < options.engines; ++i) {
    auto twin = add_twin_engine(options, i, *rank, threads.get(), out.plan.num_blocks - 1, adapters);
    if (!twin.ok()) {  // the ranks of the first engine must learn it, too
      QUIRE_TRY(agree(all, twin.error()));
    }
    out.twins.push_back(std::move(*twin));
  }
  model::ParallelModel* leader = nullptr;
  if (all != nullptr) {
    auto parallel = std::make_unique<model::ParallelModel>(std::move(rank->model), groups->ranks(), adapters,
                                                           std::pair(threads, groups));
    leader = parallel.get();
    rank->model = std::move(parallel);
  }
  auto engine =
      engine::Engine::make(std::move(backend), std::move(rank->model), resolved.engine, std::move(rank->draft));
  QUIRE_TRY(agree(all, engine.ok() ? Status() : Status(engine.error())));
  if (leader != nullptr) leader->start();
  out.engine = std::move(*engine);
  if (kv::Offload* offload = out.engine->offload(); offload != nullptr && !offload->wait_until_open(kOpenSeconds)) {
    log_info("KV offload: the digest of the weights takes a while; until it is known, nothing comes from the disk");
  }
  const kv::CacheLayout& pages = out.engine->cache_layout();
  QUIRE_CHECK(pages.page_bytes() * pages.num_pages == out.plan.kv_bytes, "as much is allocated as was planned");
  return out;
}

}  // namespace

Result<LoadedEngine> load_engine(const Options& options, const model::ModelFiles& files,
                                 std::unique_ptr<Backend> backend, std::function<void(int64_t, int64_t)> progress,
                                 const std::atomic<bool>* cancelled, distributed::Group* all) {
  const auto adapters = std::make_shared<model::AdapterBook>(options.engines);
  QUIRE_ASSIGN(LoadedEngine out,
               load_first_engine(options, files, std::move(backend), std::move(progress), cancelled, all, adapters));
  const Backend& first = out.engine->backend();
  // The other engines of GPUs have GPUs and weights of their own, but the same lengths: some models' bits follow them.
  for (int i = 1 + static_cast<int>(out.twins.size()); i < options.engines; ++i) {
    Options own = options;
    own.engine = i;
    own.max_model_len = std::to_string(out.engine->options().scheduler.max_model_len);
    QUIRE_ASSIGN(std::unique_ptr<Backend> gpu, make_backend(own));
    if (gpu->isa() != first.isa()) {
      return invalid_argument(
          "--data-parallel-size: the device of engine " + std::to_string(i) + " is " + gpu->isa() +
          ", but that of engine 0 is " + first.isa() +
          "; bits depend on the kind of device, so choose equal ones (--device cuda:0,2 names them)");
    }
    QUIRE_ASSIGN(LoadedEngine more, load_first_engine(own, files, std::move(gpu), {}, cancelled, nullptr, adapters));
    if (share_memory(options, first, i)) out.plan.beside_bytes += more.plan.total_bytes();
    out.twins.push_back(std::move(more.engine));
  }
  return out;
}

// A follower with its pages, ready for the first step. What is declared first outlives the others.
struct Follower {
  std::unique_ptr<Backend> backend;
  model::ModelFiles files;
  RankGroups groups;
  LoadedRank rank;
  std::unique_ptr<model::KvCache> pages;
  std::unique_ptr<kv::Offload> tiers;  // of its pages, or null
};

namespace {

Result<Follower> open_follower(const Options& options, int rank) {
  Follower out;
  QUIRE_ASSIGN(out.backend, make_backend(options, rank));
  QUIRE_ASSIGN(out.files, open_files(options));
  return out;
}

Status load_follower(const Options& options, const std::atomic<bool>* cancelled, Follower& follower) {
  QUIRE_ASSIGN(follower.rank, load_weights(options, follower.files, *follower.backend, {}, cancelled, follower.groups));
  return {};
}

Status allocate(Follower& follower) {
  kv::CacheLayout layout = follower.rank.resolved.engine.cache;
  layout.num_pages = follower.rank.resolved.engine.num_blocks;
  QUIRE_ASSIGN(follower.pages, model::KvCache::make(*follower.backend, std::move(layout)));
  const engine::EngineOptions& engine = follower.rank.resolved.engine;
  if (engine.offload.has_tiers() && engine.prefix_caching) {
    follower.tiers = std::make_unique<kv::Offload>(engine.offload, follower.pages->memory(*follower.backend));
    (void)follower.tiers->wait_until_open(kOpenSeconds);
  }
  return follower.rank.model->prepare(follower.rank.limits);
}

Result<Follower> open_twin(const Options& options, int part, const Follower* source) {
  if (source == nullptr) return Error{ErrorCode::kCancelled, "the first engine was not loaded"};
  Follower out;
  QUIRE_ASSIGN(out.backend, make_backend(options, part));
  return out;
}

Status load_twin(const Follower& source, Follower& out) {
  out.rank.resolved = source.rank.resolved;
  out.rank.limits = source.rank.limits;
  QUIRE_ASSIGN(out.rank.model, source.rank.model->make_twin(*out.backend, nullptr, out.groups.ranks()));
  if (out.rank.model == nullptr) return no_twin();
  QUIRE_TRY(reserve(out.rank.resolved, *out.rank.model, nullptr, *out.backend));
  return allocate(out);
}

}  // namespace

Status run_twin_follower(const Options& options, int engine, distributed::Group& all, const FollowerShow& source,
                         bool* loaded) {
  const auto part = engine * static_cast<int>(options.ranks()) + all.rank();
  const Follower* const first = source.wait();
  auto twin = open_twin(options, part, first);
  QUIRE_TRY(agree(&all, twin.ok() ? Status() : Status(twin.error())));
  QUIRE_ASSIGN(twin->groups, RankGroups::make(options, all, *twin->backend));
  const Status made = load_twin(*first, *twin);
  QUIRE_TRY(agree(&all, made));
  twin->groups.report(twin->rank.resolved.engine.num_blocks - 1);
  *loaded = true;
  return model::follow(*twin->rank.model, *twin->backend, *twin->pages, twin->rank.limits, twin->groups.ranks(),
                       twin->tiers.get());
}

Status run_follower(const Options& given, distributed::Group& all, const std::atomic<bool>* cancelled, bool* loaded,
                    FollowerShow* show) {
  QUIRE_ASSIGN(const Options options, with_own_adapters(given));
  QUIRE_TRY(check_size(options, all));
  auto follower = open_follower(options, all.rank());
  QUIRE_TRY(agree(&all, follower.ok() ? Status() : Status(follower.error())));
  if (options.processes.group != nullptr) {
    QUIRE_TRY(distributed::shake_hands(all, rank_facts(options, follower->files, *follower->backend)));
  } else {
    QUIRE_TRY(check_same_device(all, *follower->backend));
  }
  QUIRE_ASSIGN(follower->groups, RankGroups::make(options, all, *follower->backend));
  const RankGroups& groups = follower->groups;
  const Status weights = load_follower(options, cancelled, *follower);
  QUIRE_TRY(agree(&all, weights));
  QUIRE_TRY(follower->rank.model->meet_adapters(all));
  QUIRE_ASSIGN(const kv::MemoryPlan plan, plan_rank(follower->rank, &all));
  groups.report(plan.num_blocks - 1);
  name_pages(options, follower->files, *follower->backend, plan, groups, follower->rank.resolved);
  TwinFollowers twins(options);
  twins.show(*follower);
  if (show != nullptr) show->set(&*follower);
  const Status allocated = allocate(*follower);
  QUIRE_TRY(agree(&all, allocated));
  if (loaded != nullptr) *loaded = true;
  return model::follow(*follower->rank.model, *follower->backend, *follower->pages, follower->rank.limits,
                       groups.ranks(), follower->tiers.get());
}

}  // namespace quire::llm
