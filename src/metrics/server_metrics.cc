// SPDX-License-Identifier: Apache-2.0
// The server's series: which are exported, with which labels and buckets.
#include "metrics/server_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "base/env.h"
#include "base/json.h"
#include "metrics/process_stats.h"
#include "metrics/registry.h"

namespace quire::metrics {
namespace {

using Bounds = std::vector<double>;

const Bounds kFirstTokenBounds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                  1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Bounds kInterTokenBounds = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const Bounds kLatencyBounds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                               30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Bounds kIterationBounds = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const Bounds kAnswerCountBounds = {1, 2, 5, 10, 20};
const Bounds kPreemptionBounds = {1, 2, 3, 4, 5, 10, 20};
const Bounds kHttpFineBounds = {.01, .025, .05, .075, .1,  .25, .5,  .75, 1,  1.5, 2,
                                2.5, 3,    3.5, 4,    4.5, 5,   7.5, 10,  30, 60};
const Bounds kHttpBounds = {.1, .5, 1};

// The attributes of vLLM's CacheConfig, all of which are labels of cache_config_info.
constexpr std::array kCacheConfigLabels = {"block_size",
                                           "user_specified_block_size",
                                           "kv_cache_layout",
                                           "prefix_match_unit",
                                           "gpu_memory_utilization",
                                           "cache_dtype",
                                           "is_attention_free",
                                           "num_gpu_blocks_override",
                                           "sliding_window",
                                           "enable_prefix_caching",
                                           "prefix_caching_hash_algo",
                                           "prefix_cache_retention_interval",
                                           "kv_cache_dtype_skip_layers",
                                           "mamba_page_size_padded",
                                           "skip_page_size_padded",
                                           "mamba_block_size",
                                           "mamba_cache_dtype",
                                           "mamba_ssm_cache_dtype",
                                           "mamba_cache_mode",
                                           "enable_mamba_shared_prefix_checkpoint",
                                           "replayssm_buffer_len",
                                           "use_replayssm",
                                           "use_kda_recoverssm",
                                           "num_gpu_blocks",
                                           "num_cpu_blocks",
                                           "effective_attention_block_size",
                                           "kv_cache_size_tokens",
                                           "kv_cache_max_concurrency",
                                           "hash_block_size",
                                           "cache_hit_alignment_tokens",
                                           "kv_sharing_fast_prefill",
                                           "swa_bounded_replay",
                                           "kv_cache_memory_bytes",
                                           "kv_offloading_size",
                                           "kv_offloading_backend",
                                           "_block_size_resolved"};

constexpr std::array kBucketFamilies = {"request_latency",  "time_to_first_token", "inter_token_latency",
                                        "iteration_tokens", "request_params_n",    "request_num_preemptions",
                                        "request_tokens"};
constexpr std::array kFinishReasons = {"stop", "length", "abort", "error", "repetition"};
constexpr std::array kRejections = {"max_num_queued_reqs", "max_num_queued_tokens", "max_request_bytes"};
constexpr std::array kKeyLimits = {"requests_per_minute", "tokens_per_minute", "max_sequences"};
constexpr std::array kUncountedHandlers = {"/metrics", "/health",      "/load", "/ping",
                                           "/version", "/server_info", "/live"};
constexpr std::array kMethods = {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"};
// There are few routes. If a caller ever passes paths instead, this bounds the number of series.
constexpr size_t kMaxHandlers = 100;
constexpr const char* kNoHandler = "none";
// The process's figures are read at most this often: some gateways scrape every 50 ms.
constexpr std::chrono::seconds kProcessStatsAge(1);

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// 1, 2, 5, 10, 20, 50, ... up to the longest sequence.
Bounds token_bounds(int64_t max) {
  Bounds bounds;
  for (int64_t power = 1; power <= max; power *= 10) {
    for (const int64_t factor : {1, 2, 5}) {
      if (factor * power <= max) bounds.push_back(static_cast<double>(factor * power));
    }
    if (power > INT64_MAX / 50) break;
  }
  return bounds;
}

bool created_series_wanted() {
  const auto value = env("PROMETHEUS_DISABLE_CREATED_SERIES");  // prometheus_client reads it, too
  return !value || !(*value == "true" || *value == "True" || *value == "TRUE" || *value == "1");
}

double at_least_zero(double seconds) {
  return std::max(seconds, 0.0);  // the wall clock may have been set back
}

}  // namespace

Result<HistogramBuckets> parse_histogram_buckets(std::string_view text) {
  constexpr const char* kFlag = "--custom-histogram-buckets ";
  auto parsed = json::parse(text, {.max_depth = 4, .max_bytes = 1 << 20, .max_values = 10'000, .refuse_repeats = true});
  if (!parsed.ok()) return invalid_argument({kFlag, "is ", parsed.error().message});
  if (!parsed->is_object()) {
    return invalid_argument({kFlag, "must be an object of lists, like {\"time_to_first_token\": [0.1, 1]}"});
  }
  HistogramBuckets buckets;
  for (const auto& [family, list] : parsed->as_object()) {
    if (!contains(kBucketFamilies, family)) {
      std::string known;
      for (const char* name : kBucketFamilies) known += (known.empty() ? "" : ", ") + std::string(name);
      return invalid_argument(kFlag + ("has an unknown family '" + family + "'; the families are " + known));
    }
    const Error wrong = invalid_argument(kFlag + ("needs a list of ascending, finite numbers for '" + family + "'"));
    if (!list.is_array() || list.as_array().empty()) return wrong;
    Bounds bounds;
    for (const json::Value& value : list.as_array()) {
      if (!value.is_number() || !std::isfinite(value.as_double())) return wrong;
      if (value.as_double() < 0 || (!bounds.empty() && value.as_double() <= bounds.back())) return wrong;
      bounds.push_back(value.as_double());
    }
    buckets.emplace(family, std::move(bounds));
  }
  return buckets;
}

// What the models and engines of a server have together.
struct ServerMetrics::Together {
  explicit Together(bool created_series) : registry(created_series) {}
  Registry registry;
  std::mutex adapters_mutex;
  std::map<const Series*, std::array<std::set<std::string>, 2>> adapters;  // those that run, and those that wait
};

// The series, created in the order in which they are exposed.
struct ServerMetrics::Series {
  Series(ServerMetricsOptions options, std::shared_ptr<Together> shared);

  Gauge& gauge(std::string_view name, std::string help) {
    return registry.gauge(name, std::move(help), own).with(self);
  }
  Counter& counter(std::string_view name, std::string help) {
    return registry.counter(name, std::move(help), own).with(self);
  }
  Histogram& histogram(std::string_view name, std::string help, const char* family, const Bounds& bounds) {
    const auto custom = options.custom_buckets.find(family);
    return registry
        .histogram(name, std::move(help), custom == options.custom_buckets.end() ? bounds : custom->second, own)
        .with(self);
  }
  // Series that differ in one more label; all of them are created at once.
  template <typename T, size_t N>
  std::array<T*, N> each(Family<T>& family, const std::array<const char*, N>& values) {
    std::array<T*, N> all{};
    for (size_t i = 0; i < N; ++i) {
      std::vector<std::string> labels = self;
      labels.emplace_back(values[i]);
      all[i] = &family.with(labels);
    }
    return all;
  }
  std::vector<std::string> own_and(const char* name) const {
    std::vector<std::string> labels = own;
    labels.emplace_back(name);
    return labels;
  }
  // The labels of cache_config_info: their names and values.
  std::pair<std::vector<std::string>, std::vector<std::string>> cache_labels(const CacheConfig& given) const;
  void refresh_process_stats();

  const ServerMetricsOptions options;
  const std::shared_ptr<Together> shared;
  Registry& registry = shared->registry;
  const std::vector<std::string> own = {"model_name", "engine"};
  const std::vector<std::string> self = {options.model_name, std::to_string(options.engine)};

  // The process. A family without a figure on this system has no series.
  Family<Gauge>& virtual_memory =
      registry.gauge("process_virtual_memory_bytes", "Virtual memory of the process, bytes.");
  Family<Gauge>& resident_memory =
      registry.gauge("process_resident_memory_bytes", "Memory of the process that is in RAM, bytes.");
  Family<Gauge>& start_time = registry.gauge("process_start_time_seconds", "When the process started, in Unix time.");
  Family<Counter>& cpu_seconds =
      registry.plain_counter("process_cpu_seconds", "CPU time that the process used, user and system, seconds.");
  Family<Gauge>& open_fds = registry.gauge("process_open_fds", "Open file descriptors.");
  Family<Gauge>& max_fds = registry.gauge("process_max_fds", "The limit on open file descriptors.");
  std::mutex process_mutex;
  std::chrono::steady_clock::time_point process_read{};
  bool process_known = false;

  // The engine's state
  Gauge& running = gauge("vllm:num_requests_running", "Requests in the running batch.");
  Gauge& waiting = gauge("vllm:num_requests_waiting", "Requests in the queue, deferred ones included.");
  std::array<Gauge*, 2> waiting_by_reason =
      each(registry.gauge("vllm:num_requests_waiting_by_reason", "Requests in the queue, by what they wait for.",
                          own_and("reason")),
           std::array{"capacity", "deferred"});
  std::array<Gauge*, 3> sleep_state =
      each(registry.gauge("vllm:engine_sleep_state", "1 for the state that the engine is in.", own_and("sleep_state")),
           std::array{"awake", "weights_offloaded", "discard_all"});
  Gauge& kv_usage = gauge("vllm:kv_cache_usage_perc", "Share of the KV cache pages in use, from 0 to 1.");

  // Totals
  Counter& prefix_queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.");
  Counter& prefix_hits = counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.");
  Counter& preemptions = counter("vllm:num_preemptions", "Requests put back into the queue because pages ran out.");
  Counter& prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens processed, including cached ones.");
  std::array<Counter*, 3> prompt_by_source =
      each(registry.counter("vllm:prompt_tokens_by_source", "Prompt tokens by where their keys and values came from.",
                            own_and("source")),
           std::array{"local_compute", "local_cache_hit", "external_kv_transfer"});
  Counter& prompt_cached = counter("vllm:prompt_tokens_cached", "Prompt tokens that came from a cache.");
  std::array<Counter*, 5> cached_by_source =
      each(registry.counter("vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by the place of the cache.",
                            own_and("source")),
           std::array{"device", "host", "disk", "p2p", "external_unspecified"});
  Counter& generation_tokens = counter("vllm:generation_tokens", "Tokens generated.");
  std::array<Counter*, kFinishReasons.size()> finished =
      each(registry.counter("vllm:request_success", "Finished requests by reason, including aborts and errors.",
                            own_and("finished_reason")),
           kFinishReasons);
  std::array<Counter*, kRejections.size()> rejected{};
  // Speculation; null and empty without it.
  Counter* drafts = nullptr;
  Counter* draft_tokens = nullptr;
  Counter* accepted_tokens = nullptr;
  std::vector<Counter*> accepted_per_position;

  Family<Gauge>* adapters = nullptr;  // null without adapters

  // The tiers below the KV cache; null without them.
  struct OffloadSeries {
    Counter *queries, *hits;
    std::array<Counter*, 3> disk_write, disk_read;  // pages, bytes, seconds
    Counter *host_write, *host_read, *dropped, *evicted, *refused;
    Gauge *files, *file_bytes, *host_pages;
  };
  std::optional<OffloadSeries> offload;
  std::mutex offload_mutex;  // of the next two
  std::function<OffloadTotals()> offload_source;
  OffloadTotals offload_seen;  // what the counters have of the source
  void make_offload_series();
  void refresh_offload();

  // Of each rank; empty if the model is on one.
  struct RankSeries {
    Counter *steps, *compute_seconds, *wait_seconds, *sent_bytes;
    Gauge *pages, *resident_bytes;
  };
  std::vector<RankSeries> ranks;
  std::mutex ranks_mutex;  // of the next two
  std::function<std::vector<RankTotals>()> rank_source;
  std::vector<RankTotals> ranks_seen;  // what the counters have of the source
  void make_rank_series();
  void refresh_ranks();

  // Distributions
  const Bounds tokens = token_bounds(options.max_model_len);
  Histogram& iteration_tokens =
      histogram("vllm:iteration_tokens_total", "Tokens in an engine step.", "iteration_tokens", kIterationBounds);
  Histogram& ttft = histogram("vllm:time_to_first_token_seconds", "Time from arrival to the first token.",
                              "time_to_first_token", kFirstTokenBounds);
  Histogram& itl = histogram("vllm:inter_token_latency_seconds", "Time between two tokens of a request.",
                             "inter_token_latency", kInterTokenBounds);
  Histogram& tpot =
      histogram("vllm:request_time_per_output_token_seconds", "Mean time per token after the first, for each request.",
                "inter_token_latency", kInterTokenBounds);
  Histogram& e2e = histogram("vllm:e2e_request_latency_seconds", "Time from arrival to the end of a request.",
                             "request_latency", kLatencyBounds);
  Histogram& queue_time = histogram("vllm:request_queue_time_seconds", "Time in the queue before the first step.",
                                    "request_latency", kLatencyBounds);
  Histogram& prefill_time =
      histogram("vllm:request_prefill_time_seconds", "Time from the first step to the first token.", "request_latency",
                kLatencyBounds);
  Histogram& decode_time = histogram("vllm:request_decode_time_seconds", "Time from the first token to the last.",
                                     "request_latency", kLatencyBounds);
  Histogram& inference_time =
      histogram("vllm:request_inference_time_seconds", "Time from the first step to the last token.", "request_latency",
                kLatencyBounds);
  Histogram& request_prompt =
      histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", "request_tokens", tokens);
  Histogram& request_generation =
      histogram("vllm:request_generation_tokens", "Generated tokens of a request.", "request_tokens", tokens);
  Histogram& request_longest =
      histogram("vllm:request_max_num_generation_tokens", "Generated tokens of the longest of a request's n choices.",
                "request_tokens", tokens);
  Histogram& request_max_tokens =
      histogram("vllm:request_params_max_tokens", "The parameter max_tokens, where given.", "request_tokens", tokens);
  Histogram& request_computed =
      histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not in the cache.",
                "request_tokens", tokens);
  Histogram& request_n = histogram("vllm:request_params_n", "The parameter n.", "request_params_n", kAnswerCountBounds);
  Histogram& request_preemptions = histogram("vllm:request_num_preemptions", "How often a request was preempted.",
                                             "request_num_preemptions", kPreemptionBounds);

  // API keys; empty unless keys have names.
  Family<Counter>& key_requests =
      registry.counter("quire:key_requests", "Requests started for an API key.", {"model_name", "key"});
  Family<Counter>& key_prompt_tokens =
      registry.counter("quire:key_prompt_tokens", "Prompt tokens of an API key's requests.", {"model_name", "key"});
  Family<Counter>& key_generation_tokens =
      registry.counter("quire:key_generation_tokens", "Tokens generated for an API key, counted when a request ends.",
                       {"model_name", "key"});
  Family<Gauge>& key_sequences =
      registry.gauge("quire:key_sequences", "Waiting and running sequences of an API key.", {"model_name", "key"});
  Family<Counter>& key_rejections = registry.counter(
      "quire:key_rejections", "Requests refused because of a limit of their API key.", {"model_name", "key", "limit"});

  // HTTP
  Family<Counter>& http_requests =
      registry.counter("http_requests", "Requests by method, status class and route.", {"method", "status", "handler"});
  Family<Summary>& http_request_size =
      registry.summary("http_request_size_bytes", "Size of request bodies in bytes, by route.", {"handler"});
  Family<Summary>& http_response_size = registry.summary(
      "http_response_size_bytes", "Size of responses in bytes, including their headers, by route.", {"handler"});
  Histogram& http_fine =
      registry
          .histogram("http_request_duration_highr_seconds",
                     "Time from a request to the end of its response, for all routes.", kHttpFineBounds)
          .with();
  Family<Histogram>& http_duration = registry.histogram(
      "http_request_duration_seconds", "Time from a request to the end of its response, by route and method.",
      kHttpBounds, {"handler", "method"});
  std::mutex http_mutex;
  std::set<std::string, std::less<>> http_handlers;

  Family<Gauge>* cache_config = nullptr;
  // These are null unless this is one of several models.
  Gauge* model_loaded = nullptr;
  Gauge* model_waiting = nullptr;
  Counter* model_loads = nullptr;
  Counter* model_failures = nullptr;
  Gauge* loaded_cache = nullptr;  // its series for the cache that is there

  std::vector<std::pair<Counter*, std::function<int64_t()>>> watched;  // filled at start
};

ServerMetrics::Series::Series(ServerMetricsOptions given, std::shared_ptr<Together> with_others)
    : options(std::move(given)), shared(std::move(with_others)) {
  sleep_state[0]->set(1);
  if (options.max_loras > 0) {
    adapters = &registry.gauge("vllm:lora_requests_info",
                               "The LoRA adapters with requests that run or wait; the value is the time of the change.",
                               {"max_lora", "waiting_lora_adapters", "running_lora_adapters"});
  }
  if (options.num_speculative_tokens > 0) {
    drafts = &counter("vllm:spec_decode_num_drafts", "How often a request had drafts in a step.");
    draft_tokens = &counter("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted.");
    accepted_tokens = &counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.");
    auto& by_position = registry.counter("vllm:spec_decode_num_accepted_tokens_per_pos",
                                         "Accepted tokens by their place among the drafts.", own_and("position"));
    for (int64_t i = 0; i < options.num_speculative_tokens; ++i) {
      std::vector<std::string> labels = self;
      labels.push_back(std::to_string(i));
      accepted_per_position.push_back(&by_position.with(labels));
    }
  }
  if (options.offload) make_offload_series();
  if (options.ranks > 1) make_rank_series();
  auto& rejections = registry.counter("vllm:admission_rejections", "Requests refused because the queue was full.",
                                      {"model_name", "reason"});
  for (size_t i = 0; i < rejected.size(); ++i) rejected[i] = &rejections.with({options.model_name, kRejections[i]});
  const auto [labels, values] = cache_labels(options.cache_config);
  cache_config = &registry.gauge("vllm:cache_config_info", "How the KV cache is set up; always 1.", labels);
  if (!options.of_several) {
    cache_config->with(values).set(1);
    return;
  }
  const std::vector<std::string> label = {"model_name"}, name = {options.model_name};
  model_loaded = &registry.gauge("quire:model_loaded", "1 while the model is loaded.", label).with(name);
  model_waiting =
      &registry.gauge("quire:model_waiting", "Requests that wait for the model to be loaded.", label).with(name);
  model_loads = &registry.counter("quire:model_loads", "How often the model was loaded.", label).with(name);
  model_failures = &registry.counter("quire:model_load_failures", "Loads of the model that failed.", label).with(name);
}

void ServerMetrics::Series::make_offload_series() {
  const auto by_tier = [&](const char* name, const char* help, const char* tier, const char* direction) -> Counter* {
    std::vector<std::string> labels = own_and("tier"), values = self;
    labels.emplace_back("direction");
    values.emplace_back(tier);
    values.emplace_back(direction);
    return &registry.counter(name, help, labels).with(values);
  };
  const auto all = [&](const char* direction) {
    return std::array{
        by_tier("quire:kv_offload_pages", "Pages copied to a tier below the KV cache, or back.", "disk", direction),
        by_tier("quire:kv_offload_bytes", "Bytes of these pages.", "disk", direction),
        by_tier("quire:kv_offload_seconds", "Time of the threads that write and read page files.", "disk", direction)};
  };
  const auto host = [&](const char* direction) {
    return by_tier("quire:kv_offload_pages", "Pages copied to a tier below the KV cache, or back.", "host", direction);
  };
  offload = OffloadSeries{
      .queries = &counter("vllm:external_prefix_cache_queries", "Prompt tokens looked up in tiers below the KV cache."),
      .hits = &counter("vllm:external_prefix_cache_hits", "Prompt tokens found in tiers below the KV cache."),
      .disk_write = all("write"),
      .disk_read = all("read"),
      .host_write = host("write"),
      .host_read = host("read"),
      .dropped = &counter("quire:kv_offload_dropped_pages", "Pages that were evicted before the disk had them."),
      .evicted = &counter("quire:kv_offload_evicted_files", "Page files deleted to make room."),
      .refused = &counter("quire:kv_offload_refused_files", "Page files that were damaged or foreign."),
      .files = &gauge("quire:kv_offload_files", "Page files in the folder."),
      .file_bytes = &gauge("quire:kv_offload_file_bytes", "Bytes of the page files in the folder."),
      .host_pages = &gauge("quire:kv_offload_host_pages", "Pages in the tier in host memory."),
  };
}

void ServerMetrics::Series::refresh_offload() {
  if (!offload) return;
  const std::lock_guard lock(offload_mutex);
  if (!offload_source) return;
  const OffloadTotals now = offload_source();
  const OffloadTotals before = std::exchange(offload_seen, now);
  const auto add = [](Counter* counter, auto later, auto earlier) {
    counter->add(static_cast<double>(later) - static_cast<double>(earlier));
  };
  add(offload->disk_write[0], now.disk_written_pages, before.disk_written_pages);
  add(offload->disk_write[1], now.disk_written_bytes, before.disk_written_bytes);
  add(offload->disk_write[2], now.disk_write_seconds, before.disk_write_seconds);
  add(offload->disk_read[0], now.disk_read_pages, before.disk_read_pages);
  add(offload->disk_read[1], now.disk_read_bytes, before.disk_read_bytes);
  add(offload->disk_read[2], now.disk_read_seconds, before.disk_read_seconds);
  add(offload->host_write, now.host_written_pages, before.host_written_pages);
  add(offload->host_read, now.host_read_pages, before.host_read_pages);
  add(offload->dropped, now.dropped_pages, before.dropped_pages);
  add(offload->evicted, now.evicted_files, before.evicted_files);
  add(offload->refused, now.refused_files, before.refused_files);
  offload->files->set(static_cast<double>(now.files));
  offload->file_bytes->set(static_cast<double>(now.file_bytes));
  offload->host_pages->set(static_cast<double>(now.host_pages));
}

void ServerMetrics::Series::make_rank_series() {
  const std::vector<std::string> labels = own_and("rank");
  for (int64_t rank = 0; rank < options.ranks; ++rank) {
    std::vector<std::string> values = self;
    values.push_back(std::to_string(rank));
    const auto total = [&](const char* name, const char* help) {
      return &registry.counter(name, help, labels).with(values);
    };
    const auto now = [&](const char* name, const char* help) {
      return &registry.gauge(name, help, labels).with(values);
    };
    ranks.push_back({total("quire:rank_steps", "Steps that a rank has computed."),
                     total("quire:rank_compute_seconds", "Time of a rank's steps without the exchange with others."),
                     total("quire:rank_wait_seconds", "Time in which a rank waited for others and exchanged bytes."),
                     total("quire:rank_sent_bytes", "Bytes that a rank has handed to others."),
                     now("quire:rank_pages", "Pages of a rank's part of the KV cache."),
                     now("quire:rank_resident_memory_bytes", "Resident memory of a rank's process.")});
  }
  ranks_seen.resize(ranks.size());
}

void ServerMetrics::Series::refresh_ranks() {
  const std::lock_guard lock(ranks_mutex);
  if (!rank_source) return;
  const std::vector<RankTotals> now = rank_source();
  for (size_t i = 0; i < std::min(now.size(), ranks.size()); ++i) {
    const RankTotals before = std::exchange(ranks_seen[i], now[i]);
    const auto add = [&](Counter* counter, int64_t RankTotals::*field, double unit) {
      counter->add(std::max(0.0, static_cast<double>(now[i].*field - before.*field) * unit));
    };
    add(ranks[i].steps, &RankTotals::steps, 1);
    add(ranks[i].compute_seconds, &RankTotals::compute_nanoseconds, 1e-9);
    add(ranks[i].wait_seconds, &RankTotals::wait_nanoseconds, 1e-9);
    add(ranks[i].sent_bytes, &RankTotals::sent_bytes, 1);
    ranks[i].pages->set(static_cast<double>(now[i].pages));
    ranks[i].resident_bytes->set(static_cast<double>(now[i].resident_bytes));
  }
}

std::pair<std::vector<std::string>, std::vector<std::string>> ServerMetrics::Series::cache_labels(
    const CacheConfig& given) const {
  std::vector<std::string> names, values;
  for (const char* label : kCacheConfigLabels) {
    names.emplace_back(label);
    values.emplace_back("None");
  }
  for (const auto& [name, value] : given) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end()) {
      names.push_back(name);
      values.push_back(value);
    } else {
      values[static_cast<size_t>(place - names.begin())] = value;
    }
  }
  names.emplace_back("engine");
  values.push_back(std::to_string(options.engine));
  if (options.of_several) {
    names.emplace_back("model_name");
    values.push_back(options.model_name);
  }
  return {std::move(names), std::move(values)};
}

void ServerMetrics::Series::refresh_process_stats() {
  const std::lock_guard lock(process_mutex);
  const auto now = std::chrono::steady_clock::now();
  if (process_known && now - process_read < kProcessStatsAge) return;
  process_known = true;
  process_read = now;
  const ProcessStats stats = read_process_stats();
  cpu_seconds.with().set_total(stats.cpu_seconds);
  if (stats.virtual_bytes) virtual_memory.with().set(*stats.virtual_bytes);
  if (stats.resident_bytes) resident_memory.with().set(*stats.resident_bytes);
  if (stats.start_time) start_time.with().set(*stats.start_time);
  if (stats.open_fds) open_fds.with().set(*stats.open_fds);
  if (stats.max_fds) max_fds.with().set(*stats.max_fds);
}

ServerMetrics::ServerMetrics(ServerMetricsOptions options) {
  auto together = std::make_shared<Together>(options.created_series && created_series_wanted());
  series_ = std::make_unique<Series>(std::move(options), std::move(together));
}

ServerMetrics::ServerMetrics(ServerMetricsOptions options, const ServerMetrics& first)
    : series_(std::make_unique<Series>(std::move(options), first.series_->shared)) {}

ServerMetrics::~ServerMetrics() {
  const std::lock_guard lock(series_->shared->adapters_mutex);
  series_->shared->adapters.erase(series_.get());
}

void ServerMetrics::on_loaded(const CacheConfig& cache_config) {
  series_->loaded_cache = &series_->cache_config->with(series_->cache_labels(cache_config).second);
  series_->loaded_cache->set(1);
}

void ServerMetrics::on_unloaded() {
  on_queue(0, 0, 0, 0);
  if (series_->loaded_cache != nullptr) series_->loaded_cache->set(0);
}

void ServerMetrics::set_offload_source(std::function<OffloadTotals()> source) {
  if (!source) series_->refresh_offload();
  const std::lock_guard lock(series_->offload_mutex);
  series_->offload_source = std::move(source);
  series_->offload_seen = {};
}

void ServerMetrics::set_rank_source(std::function<std::vector<RankTotals>()> source) {
  if (!source) series_->refresh_ranks();
  const std::lock_guard lock(series_->ranks_mutex);
  series_->rank_source = std::move(source);
  std::ranges::fill(series_->ranks_seen, RankTotals());
}

void ServerMetrics::refresh() {
  series_->refresh_offload();
  series_->refresh_ranks();
}

void ServerMetrics::set_model(bool loaded, int64_t waiting, int64_t loads, int64_t failures) {
  series_->model_loaded->set(loaded ? 1 : 0);
  series_->model_waiting->set(static_cast<double>(waiting));
  series_->model_loads->set_total(static_cast<double>(loads));
  series_->model_failures->set_total(static_cast<double>(failures));
  refresh();
}

void ServerMetrics::on_adapters(const std::vector<std::string>& running, const std::vector<std::string>& waiting) {
  if (series_->adapters == nullptr) return;
  Together& together = *series_->shared;
  const std::lock_guard lock(together.adapters_mutex);
  together.adapters[series_.get()] = {std::set(running.begin(), running.end()),
                                      std::set(waiting.begin(), waiting.end())};
  const auto listed = [&](size_t state) {  // of all models and engines
    std::set<std::string> names;
    for (const auto& [series, lists] : together.adapters) names.insert(lists[state].begin(), lists[state].end());
    std::string out;
    for (const std::string& name : names) out += (out.empty() ? "" : ",") + name;
    return out;
  };
  series_->adapters->only({std::to_string(series_->options.max_loras), listed(1), listed(0)})
      .set(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
}

void ServerMetrics::on_queue(int64_t running, int64_t waiting, int64_t waiting_deferred, double kv_usage) {
  Series& s = *series_;
  s.running.set(static_cast<double>(running));
  s.waiting.set(static_cast<double>(waiting + waiting_deferred));
  s.waiting_by_reason[0]->set(static_cast<double>(waiting));
  s.waiting_by_reason[1]->set(static_cast<double>(waiting_deferred));
  s.kv_usage.set(kv_usage);
}

void ServerMetrics::on_step(const StepStats& step) {
  Series& s = *series_;
  on_queue(step.running, step.waiting, step.waiting_deferred, step.kv_usage);
  s.prefix_queries.add(static_cast<double>(step.prefix_queries));
  s.prefix_hits.add(static_cast<double>(step.prefix_hits));
  s.preemptions.add(static_cast<double>(step.preemptions));
  if (s.drafts != nullptr) {
    s.drafts->add(static_cast<double>(step.drafts));
    s.draft_tokens->add(static_cast<double>(step.draft_tokens));
    s.accepted_tokens->add(static_cast<double>(step.accepted_tokens));
    const size_t positions = std::min(s.accepted_per_position.size(), step.accepted_per_position.size());
    for (size_t i = 0; i < positions; ++i) {
      s.accepted_per_position[i]->add(static_cast<double>(step.accepted_per_position[i]));
    }
  }
  const double prompt = static_cast<double>(step.prompt_tokens), cached = static_cast<double>(step.cached_tokens);
  s.prompt_tokens.add(prompt);
  const double host = static_cast<double>(step.host_tokens), disk = static_cast<double>(step.disk_tokens);
  s.prompt_by_source[0]->add(prompt - cached);
  s.prompt_by_source[1]->add(cached - host - disk);
  s.prompt_by_source[2]->add(host + disk);
  s.prompt_cached.add(cached);
  s.cached_by_source[0]->add(cached - host - disk);
  s.cached_by_source[1]->add(host);
  s.cached_by_source[2]->add(disk);
  if (s.offload) {
    s.offload->queries->add(static_cast<double>(step.offload_queries));
    s.offload->hits->add(static_cast<double>(step.offload_hits));
  }
  s.generation_tokens.add(static_cast<double>(step.generation_tokens));
  s.iteration_tokens.observe(prompt - cached + static_cast<double>(step.generation_tokens));
}

void ServerMetrics::on_first_token(double ttft_s) {
  series_->ttft.observe(at_least_zero(ttft_s));
}

void ServerMetrics::on_inter_token(double seconds) {
  series_->itl.observe(at_least_zero(seconds));
}

void ServerMetrics::on_finished(const FinishedRequest& request) {
  Series& s = *series_;
  const auto reason = std::find(kFinishReasons.begin(), kFinishReasons.end(), request.finish_reason);
  QUIRE_CHECK(reason != kFinishReasons.end(), request.finish_reason.c_str());
  s.finished[static_cast<size_t>(reason - kFinishReasons.begin())]->add();
  s.e2e.observe(at_least_zero(request.e2e_s));
  s.queue_time.observe(at_least_zero(request.queue_s));
  s.prefill_time.observe(at_least_zero(request.prefill_s));
  s.decode_time.observe(at_least_zero(request.decode_s));
  s.inference_time.observe(at_least_zero(request.inference_s));
  const int64_t later_tokens = request.generation_tokens - 1;
  s.tpot.observe(later_tokens > 0 ? at_least_zero(request.decode_s) / static_cast<double>(later_tokens) : 0);
  s.request_prompt.observe(static_cast<double>(request.prompt_tokens));
  s.request_generation.observe(static_cast<double>(request.generation_tokens));
  s.request_computed.observe(static_cast<double>(std::max<int64_t>(request.prompt_tokens - request.cached_tokens, 0)));
  s.request_preemptions.observe(static_cast<double>(request.num_preemptions));
  if (request.max_tokens) s.request_max_tokens.observe(static_cast<double>(*request.max_tokens));
  if (request.n) s.request_n.observe(static_cast<double>(*request.n));
  if (request.max_num_generation_tokens) {
    s.request_longest.observe(static_cast<double>(*request.max_num_generation_tokens));
  }
}

void ServerMetrics::add_key(const std::string& name) {
  const std::vector<std::string> labels = {series_->options.model_name, name};
  series_->key_requests.with(labels);
  series_->key_prompt_tokens.with(labels);
  series_->key_generation_tokens.with(labels);
  series_->key_sequences.with(labels);
  for (const char* limit : kKeyLimits) series_->key_rejections.with({labels[0], name, limit});
}

void ServerMetrics::on_key_begin(const std::string& name, int64_t prompt_tokens, int64_t sequences) {
  const std::vector<std::string> labels = {series_->options.model_name, name};
  series_->key_requests.with(labels).add();
  series_->key_prompt_tokens.with(labels).add(static_cast<double>(prompt_tokens));
  series_->key_sequences.with(labels).add(static_cast<double>(sequences));
}

void ServerMetrics::on_key_end(const std::string& name, int64_t generation_tokens, int64_t sequences) {
  const std::vector<std::string> labels = {series_->options.model_name, name};
  series_->key_generation_tokens.with(labels).add(static_cast<double>(generation_tokens));
  series_->key_sequences.with(labels).add(static_cast<double>(-sequences));
}

void ServerMetrics::on_key_rejected(const std::string& name, std::string_view limit) {
  series_->key_rejections.with({series_->options.model_name, name, std::string(limit)}).add();
}

void ServerMetrics::on_rejected(std::string_view reason) {
  const auto place = std::find(kRejections.begin(), kRejections.end(), reason);
  QUIRE_CHECK(place != kRejections.end(), "an admission is refused only when a queue limit is reached");
  series_->rejected[static_cast<size_t>(place - kRejections.begin())]->add();
}

void ServerMetrics::on_http(std::string_view handler, std::string_view method, int status, double seconds,
                            int64_t request_bytes, int64_t response_bytes) {
  if (contains(kUncountedHandlers, handler)) return;
  Series& s = *series_;
  std::string route(handler.empty() ? kNoHandler : handler);
  {
    const std::lock_guard lock(s.http_mutex);
    if (s.http_handlers.size() < kMaxHandlers) s.http_handlers.insert(route);
    if (!s.http_handlers.contains(route)) route = kNoHandler;
  }
  const std::string verb(contains(kMethods, method) ? method : "OTHER");  // clients may invent any number of methods
  const std::string status_class = std::to_string(status / 100) + "xx";
  s.http_requests.with({verb, status_class, route}).add();
  s.http_request_size.with({route}).observe(static_cast<double>(request_bytes));
  s.http_response_size.with({route}).observe(static_cast<double>(response_bytes));
  s.http_fine.observe(at_least_zero(seconds));
  s.http_duration.with({route, verb}).observe(at_least_zero(seconds));
}

void ServerMetrics::watch(Total total, std::function<int64_t()> read) {
  const auto family = [&]() -> Family<Counter>& {
    Registry& all = series_->registry;
    switch (total) {
      case Total::kKvEventBatches:
        return all.counter("quire:kv_event_batches", "Batches of KV events that were published.");
      case Total::kKvEventBatchesDropped:
        return all.counter("quire:kv_event_batches_dropped", "Batches of KV events that did not fit into the queue.");
      case Total::kTraceSpans:
        return all.counter("quire:trace_spans", "Spans that the collector of traces took.");
      case Total::kTraceSpansDropped:
        return all.counter("quire:trace_spans_dropped", "Spans dropped because the collector was away or too slow.");
    }
    QUIRE_CHECK(false, "there is no such total");
  };
  series_->watched.emplace_back(&family().with(), std::move(read));
}

std::string ServerMetrics::expose() const {
  series_->refresh_process_stats();
  for (const auto& [counter, read] : series_->watched) counter->set_total(static_cast<double>(read()));
  series_->refresh_offload();
  series_->refresh_ranks();
  std::string out;
  out.reserve(size_t{128} << 10);
  series_->registry.expose(out);
  return out;
}

namespace {

std::string fixed(double value, int digits) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

}  // namespace

StatLogger::StatLogger(Clock::time_point start, std::chrono::milliseconds interval, std::string device, size_t engine)
    : interval_(interval), device_(std::move(device)), engine_(engine), last_(start) {}

void StatLogger::on_queue(int64_t running, int64_t waiting, int64_t waiting_deferred, double kv_usage) {
  const std::lock_guard lock(mutex_);
  now_.running = running;
  now_.waiting = waiting;
  now_.waiting_deferred = waiting_deferred;
  now_.kv_usage = kv_usage;
}

void StatLogger::on_step(const StepStats& step) {
  on_queue(step.running, step.waiting, step.waiting_deferred, step.kv_usage);
  const std::lock_guard lock(mutex_);
  computed_ += step.prompt_tokens - step.cached_tokens;
  generated_ += step.generation_tokens;
  preemptions_ += step.preemptions;
  drafts_ += step.drafts;
  draft_tokens_ += step.draft_tokens;
  accepted_tokens_ += step.accepted_tokens;
  accepted_per_position_.resize(std::max(accepted_per_position_.size(), step.accepted_per_position.size()));
  for (size_t i = 0; i < step.accepted_per_position.size(); ++i) {
    accepted_per_position_[i] += step.accepted_per_position[i];
  }
  admit(step);
}

void StatLogger::admit(const StepStats& step) {
  if (step.prefix_reset) {
    admissions_.clear();
    total_ = {0, 0, 0};
  }
  if (step.prefix_requests == 0) return;
  admissions_.push_back({step.prefix_requests, step.prefix_queries, step.prefix_hits});
  total_.requests += step.prefix_requests;
  total_.queries += step.prefix_queries;
  total_.hits += step.prefix_hits;
  while (admissions_.size() > 1 && total_.requests > kRequestsInHitRate) {
    total_.requests -= admissions_.front().requests;
    total_.queries -= admissions_.front().queries;
    total_.hits -= admissions_.front().hits;
    admissions_.pop_front();
  }
}

std::optional<std::string> StatLogger::line(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (now - last_ < interval_) return std::nullopt;
  const bool busy = computed_ > 0 || generated_ > 0;
  std::optional<std::string> text;
  if (busy || was_busy_) text = format(std::chrono::duration<double>(now - last_).count());
  was_busy_ = busy;
  last_ = now;
  computed_ = generated_ = preemptions_ = 0;
  drafts_ = draft_tokens_ = accepted_tokens_ = 0;
  std::ranges::fill(accepted_per_position_, 0);
  return text;
}

std::string StatLogger::format(double seconds) const {
  const auto number = [](double value) { return fixed(value, 1); };
  const auto rate = [&](int64_t tokens) { return number(static_cast<double>(tokens) / seconds) + " tokens/s, "; };
  const std::string number_of = std::to_string(engine_);
  std::string line = "Engine " + std::string(3 - std::min<size_t>(number_of.size(), 3), '0') + number_of +
                     ": Avg prompt throughput: " + rate(computed_);
  line += "Avg generation throughput: " + rate(generated_);
  line += "Running: " + std::to_string(now_.running) + " reqs, Waiting: " + std::to_string(now_.waiting) + " reqs, ";
  if (now_.waiting_deferred > 0) line += "Deferred: " + std::to_string(now_.waiting_deferred) + " reqs, ";
  if (preemptions_ > 0) line += "Preemptions: " + std::to_string(preemptions_) + ", ";
  line += device_ + " KV cache usage: " + number(now_.kv_usage * 100) + "%, Prefix cache hit rate: ";
  const double hit_rate =
      total_.queries > 0 ? 100 * static_cast<double>(total_.hits) / static_cast<double>(total_.queries) : 0;
  return line + number(hit_rate) + "%" + (drafts_ > 0 ? ", " + format_drafts(seconds) : "");
}

// What became of the drafts, in vLLM's words. The mean acceptance length counts the token that each step gives anyway.
std::string StatLogger::format_drafts(double seconds) const {
  const auto ratio = [](int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
  std::string line = "SpecDecoding metrics: Mean acceptance length: " + fixed(1 + ratio(accepted_tokens_, drafts_), 2);
  line += ", Accepted throughput: " + fixed(static_cast<double>(accepted_tokens_) / seconds, 2) + " tokens/s";
  line += ", Drafted throughput: " + fixed(static_cast<double>(draft_tokens_) / seconds, 2) + " tokens/s";
  line += ", Per-position acceptance rate: ";
  for (size_t i = 0; i < accepted_per_position_.size(); ++i) {
    line += (i == 0 ? "" : ", ") + fixed(ratio(accepted_per_position_[i], drafts_), 3);
  }
  return line + ", Avg Draft acceptance rate: " + fixed(100 * ratio(accepted_tokens_, draft_tokens_), 1) + "%";
}

}  // namespace quire::metrics
