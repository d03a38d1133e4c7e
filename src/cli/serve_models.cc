// SPDX-License-Identifier: Apache-2.0
// Lists the models of quire serve, pulls what is missing, and loads one at a time for the host.
#include "cli/serve_models.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "base/log.h"
#include "cli/hub/hub_client.h"
#include "cli/hub/model_cache.h"
#include "cli/hub/pull.h"
#include "llm/load.h"
#include "llm/speculative_config.h"

namespace quire::cli {
namespace {

// The largest bound of the token histograms: the same for all models, so that their series can be added up.
constexpr int64_t kLongestModel = int64_t{1} << 20;

// Servers with the same fingerprint give the same bits: it covers version, ISA level, model and types.
std::string fingerprint(const std::string& mode, const llm::Llm& llm, const llm::Options& options) {
  if (mode == "none") return "";
  std::string device = llm.engine().backend().describe();  // "cpu (avx512, 2 threads)"
  const size_t open = device.find('(');
  std::string isa = open == std::string::npos ? device : device.substr(open + 1, device.find_first_of(",)") - open - 1);
  std::replace(isa.begin(), isa.end(), ' ', '-');  // "NVIDIA H200"
  uint64_t hash = 1469598103934665603ull;          // FNV-1a
  const auto mix = [&](const std::string& text) {
    for (const char c : text + '\n') hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  };
  mix(QUIRE_VERSION);
  mix(isa);
  mix(llm.name());
  mix(std::to_string(llm.engine().model().weights_bytes()));
  mix(options.dtype);
  mix(options.kv_cache_dtype);
  char hex[9];
  std::snprintf(hex, sizeof hex, "%08x", static_cast<unsigned>(hash ^ (hash >> 32)));
  return mode == "hash" ? hex : "quire-" QUIRE_VERSION "-" + isa + "-" + hex;
}

// Whether a name could be one on a hub: owner/name, optionally with :QUANT.
bool may_be_on_hub(const std::string& argument) {
  const size_t colon = argument.find(':');
  const std::string name = argument.substr(0, colon);
  const bool variant = colon == std::string::npos || is_model_name("x/" + argument.substr(colon + 1));
  return variant && name.find('/') != std::string::npos && is_model_name(name);
}

// "a" of "folder/a.gguf" and of "folder/a".
std::string own_name(const std::filesystem::path& path) {
  const std::filesystem::path last = path.filename().empty() ? path.parent_path().filename() : path.filename();
  return last.extension() == ".gguf" ? last.stem().string() : last.string();
}

Status check_for_several(const ServeFlags& flags) {
  if (!flags.served_names.empty()) {
    return invalid_argument(
        "--served-model-name is for one model: with several, write NAME=MODEL; for another name of the same "
        "model, give the flag again");
  }
  const std::pair<const char*, bool> of_one[] = {{"--tokenizer", !flags.options.tokenizer.empty()},
                                                 {"--chat-template", !flags.options.chat_template.empty()},
                                                 {"--profile", !flags.options.profile.empty()}};
  for (const auto& [flag, given] : of_one) {
    if (given) return invalid_argument({flag, " is for one model, but this server has several"});
  }
  return {};
}

// The memory that all models together may use; 0 if it is not known.
Result<int64_t> memory_for_models(const ServeFlags& flags) {
  QUIRE_ASSIGN(const std::unique_ptr<Backend> backend, llm::make_backend(flags.options));
  kv::MemoryInputs memory;
  llm::measure_memory(flags.options, *backend, memory);
  if (flags.models_memory.empty()) return memory.available_bytes;
  QUIRE_ASSIGN(const int64_t given, kv::parse_bytes(flags.models_memory, "--models-memory-bytes"));
  if (given < 1) return invalid_argument("--models-memory-bytes must be at least 1 byte");
  return given;
}

struct LoraModule {
  std::string name, path, base;
};

// NAME=PATH, or a JSON object with name, path and base_model_name.
Result<LoraModule> parse_lora_module(const std::string& text) {
  const Error wrong = invalid_argument({"--lora-modules has '", text,
                                        "'; each entry is NAME=PATH or a JSON object like {\"name\": \"sql\", "
                                        "\"path\": \"adapters/sql\"}"});
  LoraModule out;
  if (text.starts_with("{")) {
    const auto parsed = json::parse(text);
    if (!parsed.ok() || !parsed->is_object()) return wrong;
    auto name = json::get_string(*parsed, "name"), path = json::get_string(*parsed, "path"),
         base = json::get_string_or(*parsed, "base_model_name", "");
    if (!name.ok() || !path.ok() || !base.ok()) return wrong;
    out = {*name, *path, *base};
  } else {
    const size_t equal = text.find('=');
    if (equal == std::string::npos) return wrong;
    out = {text.substr(0, equal), text.substr(equal + 1), ""};
  }
  if (out.name.empty() || out.path.empty()) return wrong;
  return out;
}

Result<size_t> base_of(const LoraModule& module, const api::Host& host) {
  const bool has_name = !module.base.empty();
  if (!has_name && host.models().size() == 1) return size_t{0};
  if (!has_name) {
    return invalid_argument({"--lora-modules: the server has several models, so the adapter '", module.name,
                             "' needs a base_model_name; write it as JSON"});
  }
  if (const auto found = host.find(module.base)) return *found;
  return invalid_argument({"--lora-modules: the base model '", module.base, "' of the adapter '", module.name,
                           "' is not one of this server"});
}

}  // namespace

Status add_lora_modules(const ServeFlags& flags, api::Host& host) {
  for (const std::string& text : flags.lora_modules) {
    QUIRE_ASSIGN(const LoraModule module, parse_lora_module(text));
    QUIRE_ASSIGN(const size_t base, base_of(module, host));
    if (host.find(module.name)) {
      return invalid_argument({"--lora-modules: the name '", module.name, "' is taken; choose another one"});
    }
    const llm::NamedAdapter named = api::AdapterTable::make(module.name, module.path);
    QUIRE_TRY(weights::open_adapter(named.path));  // also where the model is not loaded yet
    Status status;
    host.each_loaded([&](size_t index, api::Service& service) {
      if (index != base) return;
      auto adapter = service.model().adapters().read(named.path);
      if (adapter.ok()) {
        service.model().adapters().put(named, std::move(*adapter));
      } else {
        status = adapter.error();
      }
    });
    QUIRE_TRY(status);
    std::optional<api::AdapterTable::Entry> replaced;
    host.shared().adapters.add({named, base, static_cast<int64_t>(std::time(nullptr))}, false, replaced);
    log_info("The adapter {} of {} is served from {}", module.name, host.models()[base].names[0], module.path);
  }
  return {};
}

metrics::ServerMetrics::CacheConfig cache_config(const llm::Llm& llm, const llm::Options& options) {
  const engine::EngineOptions& engine = llm.engine().options();
  const auto yes_no = [](bool b) { return std::string(b ? "True" : "False"); };
  return {{"block_size", std::to_string(engine.block_size)},
          {"num_gpu_blocks", std::to_string(engine.num_blocks)},
          {"cache_dtype", options.kv_cache_dtype},
          {"enable_prefix_caching", yes_no(engine.prefix_caching)},
          {"prefix_match_unit", options.prefix_match_unit > 0 ? std::to_string(options.prefix_match_unit) : "None"},
          {"prefix_cache_retention_interval",
           options.prefix_cache_retention_interval ? std::to_string(*options.prefix_cache_retention_interval) : "None"},
          {"num_gpu_blocks_override",
           options.num_gpu_blocks_override ? std::to_string(*options.num_gpu_blocks_override) : std::string("None")},
          {"kv_cache_size_tokens", std::to_string(llm.memory_plan().num_tokens())},
          {"is_attention_free", "False"}};
}

Result<api::ServiceOptions> service_options(const ServeFlags& flags, const llm::Llm& llm, const llm::Options& options,
                                            std::vector<std::string> names, const std::string& argument) {
  api::ServiceOptions service = flags.service;
  service.model_root = llm.name();
  service.served_names = std::move(names);
  service.aliases = {llm.name(), options.model.string(), argument};
  service.version = QUIRE_VERSION;
  service.created = static_cast<int64_t>(std::time(nullptr));
  service.worker_stall_s = flags.health_stall_s;
  // One step of a long prompt may take minutes on a small CPU without being stuck.
  const bool cpu = llm.engine().backend().describe().starts_with("cpu");
  service.engine_stall_s = flags.health_stall_s * (cpu ? 10 : 1);
  service.fingerprint = fingerprint(flags.fingerprint_mode, llm, options);
  QUIRE_ASSIGN(service.markup, api::choose_markup(llm, flags.tool_parser, flags.reasoning_parser));
  log_info("Parsers: {}", api::describe(service.markup));
  return service;
}

EngineMetrics make_engine_metrics(metrics::ServerMetricsOptions series, size_t engines,
                                  const metrics::ServerMetrics* with) {
  EngineMetrics out;
  for (size_t e = 0; e < engines; ++e) {
    series.engine = e;
    out.push_back(with == nullptr ? std::make_unique<metrics::ServerMetrics>(series)
                                  : std::make_unique<metrics::ServerMetrics>(series, *with));
    if (with == nullptr) with = out[0].get();
  }
  return out;
}

std::vector<llm::AsyncOptions> async_options(const llm::AsyncOptions& options, const EngineMetrics& metrics) {
  std::vector<llm::AsyncOptions> out;
  for (const auto& one : metrics) {
    out.push_back(options);
    out.back().metrics = one.get();
  }
  return out;
}

llm::TraceSink trace_sink(const ServeFlags& flags, const std::string& model) {
  if (flags.traces == nullptr) return {};
  return [traces = flags.traces.get(), model](const llm::RequestTrace& trace) { traces->add(trace, model); };
}

namespace {

// Passes the events of an engine to its publisher. When the engine is gone, so are its blocks.
class EventForwarder {
 public:
  EventForwarder(telemetry::KvEventPublisher& publisher, const std::string& topic, telemetry::EventGroups groups)
      : publisher_(publisher),
        stream_(publisher.stream(topic)),
        groups_(std::make_shared<const telemetry::EventGroups>(std::move(groups))) {}
  ~EventForwarder() {
    if (published_) publish({{.kind = kv::CacheEvent::Kind::kCleared}});
  }
  EventForwarder(const EventForwarder&) = delete;
  EventForwarder& operator=(const EventForwarder&) = delete;

  void publish(std::vector<kv::CacheEvent> events) {
    published_ = true;
    publisher_.publish(stream_, groups_, std::move(events));
  }

 private:
  telemetry::KvEventPublisher& publisher_;
  telemetry::EventStream& stream_;
  const std::shared_ptr<const telemetry::EventGroups> groups_;
  bool published_ = false;
};

}  // namespace

void publish_events(const ServeFlags& flags, const llm::Llm& llm, const std::string& topic,
                    std::vector<llm::AsyncOptions>& engines) {
  if (flags.kv_publishers.empty()) return;
  if (!llm.engine().options().prefix_caching) log_warn("KV events: without prefix caching there are none");
  for (size_t e = 0; e < engines.size(); ++e) {
    const auto forwarder = std::make_shared<EventForwarder>(*flags.kv_publishers[e], topic,
                                                            telemetry::event_groups(llm.engine().cache_layout()));
    engines[e].on_cache_events = [forwarder](std::vector<kv::CacheEvent> events) {
      forwarder->publish(std::move(events));
    };
  }
}

void watch_telemetry(const ServeFlags& flags, metrics::ServerMetrics& metrics) {
  using enum metrics::ServerMetrics::Total;
  if (const auto& publishers = flags.kv_publishers; !publishers.empty()) {
    const auto sum = [&publishers](auto count) {
      int64_t all = 0;
      for (const auto& one : publishers) all += (*one.*count)();
      return all;
    };
    metrics.watch(kKvEventBatches, [sum] { return sum(&telemetry::KvEventPublisher::num_batches); });
    metrics.watch(kKvEventBatchesDropped, [sum] { return sum(&telemetry::KvEventPublisher::num_dropped); });
  }
  if (const auto* traces = flags.traces.get()) {
    metrics.watch(kTraceSpans, [traces] { return traces->num_exported(); });
    metrics.watch(kTraceSpansDropped, [traces] { return traces->num_dropped(); });
  }
}

bool has_several_models(const ServeFlags& flags) {
  return flags.models.size() > 1 || !flags.models_dir.empty();
}

NamedArgument split_argument(const std::string& argument) {
  const size_t equal = argument.find('=');
  std::error_code failed;
  const bool named = equal != std::string::npos && equal > 0 && equal + 1 < argument.size() &&
                     argument.find('/') > equal && !std::filesystem::exists(argument, failed);
  if (!named) return {"", argument};
  return {argument.substr(0, equal), argument.substr(equal + 1)};
}

Result<std::filesystem::path> resolve_or_pull(const std::string& argument, const std::atomic<bool>* cancelled) {
  auto found = resolve_model(argument);
  if (found.ok() || found.error().code != ErrorCode::kNotFound || !may_be_on_hub(argument)) return found;
  log_info("{} is not on this machine yet; downloading it", argument);
  PullOptions pull;
  pull.name = argument;
  pull.cancelled = cancelled;
  Progress progress(Progress::Plain::kLines);
  auto pulled = pull_model(pull, progress);
  if (pulled.ok()) return pulled;
  return Error{pulled.error().code, "'" + argument +
                                        "' is not a file, a folder or a cached model, and it could not be " +
                                        "downloaded: " + pulled.error().message};
}

Result<std::vector<ServedModel>> list_served_models(const ServeFlags& flags) {
  std::vector<ServedModel> models;
  for (const std::string& argument : flags.models) {
    auto [name, model] = split_argument(argument);
    auto path = flags.options.load_format == "dummy" ? Result<std::filesystem::path>(model) : resolve_model(model);
    const bool later = !path.ok() && path.error().code == ErrorCode::kNotFound && may_be_on_hub(model);
    if (!path.ok() && !later) return path.failure();
    models.push_back({name.empty() ? model : name, model, later ? std::filesystem::path() : *path});
  }
  if (!flags.models_dir.empty()) {
    std::error_code failed;
    if (!std::filesystem::is_directory(flags.models_dir, failed)) {
      return not_found({"--models-dir '", flags.models_dir, "' is not a folder"});
    }
    for (const LoadableModel& found : list_loadable_models(flags.models_dir)) {
      models.push_back({found.name, found.name, found.path});
    }
    if (models.empty()) {
      return not_found({"--models-dir '", flags.models_dir,
                        "' has no model: put .gguf files into it, or folders with a model each"});
    }
  }
  std::map<std::string, const ServedModel*> names;
  for (const ServedModel& model : models) {
    if (names.emplace(model.name, &model).second) continue;
    return invalid_argument({"two models have the name '", model.name, "'; name one of them with NAME=MODEL"});
  }
  return models;
}

Result<std::unique_ptr<SeveralModels>> SeveralModels::make(const ServeFlags& flags,
                                                           const metrics::HistogramBuckets& custom_buckets) {
  QUIRE_TRY(check_for_several(flags));
  QUIRE_ASSIGN(const llm::SpeculativeConfig speculation,
               llm::parse_speculative_config(flags.options.speculative_config));
  if (!speculation.model.empty()) {
    return invalid_argument("--speculative-config: a draft model is for one model, but this server has several");
  }
  std::unique_ptr<SeveralModels> out(new SeveralModels(flags));
  QUIRE_ASSIGN(out->models_, list_served_models(flags));
  api::PoolOptions pool;
  pool.max_loaded = static_cast<size_t>(flags.max_loaded_models);
  pool.keep_alive_s = flags.model_keep_alive_s;
  pool.max_waiting = static_cast<size_t>(flags.model_queue_size);
  pool.max_wait_s = flags.model_queue_timeout_s;
  pool.max_loaded = std::min(pool.max_loaded, out->models_.size());
  QUIRE_ASSIGN(pool.memory_bytes, memory_for_models(flags));
  std::vector<api::HostedModel> hosted;
  for (const ServedModel& model : out->models_) {
    metrics::ServerMetricsOptions series;
    series.model_name = model.name;
    series.max_model_len = kLongestModel;
    series.of_several = true;
    series.num_speculative_tokens = speculation.options.num_tokens;
    series.max_loras = flags.options.enable_lora ? flags.options.max_loras : 0;
    series.offload = !flags.options.kv_offload_dir.empty() || !flags.options.kv_offload_host_bytes.empty();
    series.ranks = flags.options.ranks();
    series.custom_buckets = custom_buckets;
    out->metrics_.push_back(make_engine_metrics(std::move(series), static_cast<size_t>(flags.options.engines),
                                                out->metrics_.empty() ? nullptr : out->metrics_[0][0].get()));
    std::vector<std::string> aliases = {model.argument};
    if (!model.path.empty()) aliases.insert(aliases.end(), {model.path.string(), own_name(model.path)});
    hosted.push_back({{model.name}, std::move(aliases), own_name(model.argument), out->metrics_.back()[0].get()});
  }
  api::ServiceOptions service = flags.service;
  service.version = QUIRE_VERSION;
  service.created = static_cast<int64_t>(std::time(nullptr));
  service.worker_stall_s = flags.health_stall_s;
  api::HostLoader loader;
  SeveralModels* self = out.get();
  loader.least_memory = [self](size_t model, const std::atomic<bool>& cancelled) -> Result<int64_t> {
    QUIRE_ASSIGN(const llm::Options options, self->options_of(model, cancelled));
    return llm::least_memory(options);
  };
  loader.load = [self](size_t model, int64_t memory_bytes, const std::atomic<bool>& cancelled) {
    return self->load(model, memory_bytes, cancelled);
  };
  out->host_ = std::make_unique<api::Host>(std::move(hosted), std::move(service), pool, std::move(loader));
  return out;
}

Result<llm::Options> SeveralModels::options_of(size_t model, const std::atomic<bool>& cancelled) {
  ServedModel& served = models_[model];
  if (served.path.empty()) {
    QUIRE_ASSIGN(served.path, resolve_or_pull(served.argument, &cancelled));
  }
  llm::Options options = flags_.options;
  options.model = served.path;
  return options;
}

Result<api::LoadedModel> SeveralModels::load(size_t model, int64_t memory_bytes, const std::atomic<bool>& cancelled) {
  QUIRE_ASSIGN(llm::Options options, options_of(model, cancelled));
  options.memory_bytes = memory_bytes;
  QUIRE_ASSIGN(std::unique_ptr<llm::Llm> llm, llm::Llm::load(options, {}, &cancelled));
  api::LoadedModel out;
  const ServedModel& served = models_[model];
  QUIRE_ASSIGN(out.options, service_options(flags_, *llm, options, {served.name}, served.argument));
  out.cache_config = cache_config(*llm, options);
  llm::AsyncOptions async = flags_.async;
  async.name = served.name;
  async.on_trace = trace_sink(flags_, served.name);
  std::vector<llm::AsyncOptions> engines = async_options(async, metrics_[model]);
  publish_events(flags_, *llm, telemetry::topic_of_model(flags_.kv_events_config, served.name), engines);
  out.llm = std::make_unique<llm::ParallelLlm>(std::move(llm), std::move(engines));
  return out;
}

}  // namespace quire::cli
