// SPDX-License-Identifier: Apache-2.0
// The server's series with vLLM's names, labels and buckets, and the line of statistics that is logged periodically.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "metrics/rank_totals.h"

namespace quire::metrics {

// Upper bounds per histogram family, from --custom-histogram-buckets.
using HistogramBuckets = std::map<std::string, std::vector<double>>;

// Reads {"time_to_first_token": [0.1, 1], ...}: families are request_latency, time_to_first_token,
// inter_token_latency, iteration_tokens, request_params_n, request_num_preemptions and request_tokens.
Result<HistogramBuckets> parse_histogram_buckets(std::string_view json);

struct ServerMetricsOptions {
  std::string model_name;     // the first served name
  size_t engine = 0;          // its number among the engines of the model
  int64_t max_model_len = 0;  // the largest bound of the token histograms
  // Labels of vllm:cache_config_info ("block_size", "16"). Labels that vLLM has and that are not given become "None".
  std::vector<std::pair<std::string, std::string>> cache_config;
  // One of several models of a server: cache_config_info has the label model_name and exists while the model is loaded,
  // and there are the quire:model_* series.
  bool of_several = false;
  HistogramBuckets custom_buckets;
  int64_t num_speculative_tokens = 0;  // 0: no spec_decode_* series
  int64_t max_loras = 0;               // 0: no lora_requests_info
  bool offload = false;                // the series of the tiers below the KV cache
  int64_t ranks = 1;                   // above 1: the series of each rank
  bool created_series = true;          // false: no x_created gauges (a fifth of the lines)
};

// What one engine step did, and the state after it. The counts are of this step alone.
struct StepStats {
  int64_t running = 0;
  int64_t waiting = 0;           // for room in the batch or for pages
  int64_t waiting_deferred = 0;  // put aside for another reason; not in `waiting`
  double kv_usage = 0;           // 0 to 1; pages that only the prefix cache holds count as free
  // Admitted requests, and their tokens that were looked up and found, without requests resumed after a preemption.
  int64_t prefix_requests = 0, prefix_queries = 0, prefix_hits = 0;
  bool prefix_reset = false;  // the cache was emptied since the last step
  int64_t preemptions = 0;
  // Whole prompts, counted in the step that yields their first token.
  // `cached_tokens` of these tokens were cached.
  int64_t prompt_tokens = 0, cached_tokens = 0;
  // Of the cached ones, those that a tier below the KV cache had; and tokens looked up and found there by the requests
  // that were admitted.
  int64_t host_tokens = 0, disk_tokens = 0;
  int64_t offload_queries = 0, offload_hits = 0;
  int64_t generation_tokens = 0;
  // How many sequences had drafts, how many drafts there were and how many were accepted, also by their place.
  int64_t drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  std::vector<int64_t> accepted_per_position;  // empty without speculation
};

// Totals of the tiers below the KV cache since the model was loaded, and what they hold now.
struct OffloadTotals {
  int64_t disk_written_pages = 0, disk_written_bytes = 0, disk_read_pages = 0, disk_read_bytes = 0;
  double disk_write_seconds = 0, disk_read_seconds = 0;
  int64_t host_written_pages = 0, host_read_pages = 0;
  int64_t dropped_pages = 0, evicted_files = 0, refused_files = 0;
  int64_t files = 0, file_bytes = 0, host_pages = 0;
};

// One finished request (one of its n choices). Times are in seconds.
struct FinishedRequest {
  std::string finish_reason;  // stop, length, abort, error or repetition
  double e2e_s = 0;           // arrival -> now
  double queue_s = 0;         // queued -> first scheduled
  double prefill_s = 0;       // first scheduled -> first token
  double decode_s = 0;        // first token -> last token
  double inference_s = 0;     // first scheduled -> last token
  int64_t prompt_tokens = 0, cached_tokens = 0, generation_tokens = 0, num_preemptions = 0;
  std::optional<int64_t> max_tokens;  // if the request has one
  // Per client request: set only on the last of its choices, so that each is observed once. `n` is the parameter,
  // max_num_generation_tokens the length of the longest choice.
  std::optional<int64_t> n, max_num_generation_tokens;
};

// All series of /metrics. Owned by the server. All methods may be called from any thread and are quick (only on_http
// and expose take a lock). Every label combination exists from the start, so that rates begin at 0, except for the
// http_* series, whose routes are not known here: they appear with the first request.
class ServerMetrics {
 public:
  explicit ServerMetrics(ServerMetricsOptions options);
  // The series of another model of the same server, or of another engine of the same model; expose() of either writes
  // both. REQUIRES: the bounds of histograms are the same.
  ServerMetrics(ServerMetricsOptions options, const ServerMetrics& first);
  ~ServerMetrics();

  // The model was loaded, with these labels for cache_config_info, or unloaded. Only for one of several.
  using CacheConfig = std::vector<std::pair<std::string, std::string>>;
  void on_loaded(const CacheConfig& cache_config);
  void on_unloaded();
  // The state of the model before a scrape; the counts are since the start. Only for one of several.
  void set_model(bool loaded, int64_t waiting, int64_t loads, int64_t failures);

  void on_step(const StepStats& step);
  // Only the gauges, for changes of the queue outside a step: a request was added or aborted, or the engine is idle.
  void on_queue(int64_t running, int64_t waiting, int64_t waiting_deferred, double kv_usage);
  // The names of the adapters with requests that run or wait, when they change. Only with max_loras.
  void on_adapters(const std::vector<std::string>& running, const std::vector<std::string>& waiting);
  void on_first_token(double ttft_s);
  void on_inter_token(double seconds);  // once per request and step after its first token
  void on_finished(const FinishedRequest& request);
  void on_rejected(std::string_view reason);  // max_num_queued_reqs, max_num_queued_tokens or max_request_bytes
  // Where the figures of the tiers below the KV cache come from; they are asked for before each scrape. An empty
  // function: the model is unloaded, and its totals stay. REQUIRES: ServerMetricsOptions::offload.
  void set_offload_source(std::function<OffloadTotals()> source);
  // The same for what ranks have done, one entry for each. REQUIRES: ServerMetricsOptions::ranks is above 1.
  void set_rank_source(std::function<std::vector<RankTotals>()> source);
  // Asks for these figures now: expose() does it for its own alone.
  void refresh();
  // Usage per API key. REQUIRES: add_key() was called for the key before the other functions.
  void add_key(const std::string& name);
  void on_key_begin(const std::string& name, int64_t prompt_tokens, int64_t sequences);
  void on_key_end(const std::string& name, int64_t generation_tokens, int64_t sequences);
  void on_key_rejected(const std::string& name, std::string_view limit);  // the limit's name in the key file
  // `handler` is the route as it is declared ("/v1/models"), or "none" for a path that nothing serves; `seconds` is the
  // time to the end of the response.
  // Probes and scrapes (/metrics, /health, ...) are not counted, as in vLLM.
  void on_http(std::string_view handler, std::string_view method, int status, double seconds, int64_t request_bytes,
               int64_t response_bytes);

  // Totals that something else counts. From now on they are read before each scrape, by a function that any thread may
  // call; before that they do not exist. The series belong to the server and not to a model.
  enum class Total { kKvEventBatches, kKvEventBatchesDropped, kTraceSpans, kTraceSpansDropped };
  void watch(Total total, std::function<int64_t()> read);

  // The body of GET /metrics; its content type is kContentType.
  std::string expose() const;
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Together;
  struct Series;
  std::unique_ptr<Series> series_;
};

// Formats vLLM's line of averages: "Engine 000: Avg prompt throughput: ...". Steps may be added from any thread; the
// owner asks for the line() periodically. It has no thread or clock of its own, so that a test can set the time.
class StatLogger {
 public:
  using Clock = std::chrono::steady_clock;
  // `device` names the memory of the KV cache in the line: CPU or GPU.
  StatLogger(Clock::time_point start, std::chrono::milliseconds interval, std::string device, size_t engine = 0);

  void on_step(const StepStats& step);
  void on_queue(int64_t running, int64_t waiting, int64_t waiting_deferred, double kv_usage);
  // The line, once per interval; nothing before its end, or if neither this interval nor the last one had a token.
  std::optional<std::string> line(Clock::time_point now);

 private:
  // The hit rate covers the last requests, not all since the start, so that it follows the current traffic.
  static constexpr int64_t kRequestsInHitRate = 1000;
  struct Admission {
    int64_t requests, queries, hits;
  };
  void admit(const StepStats& step);
  std::string format(double seconds) const;
  std::string format_drafts(double seconds) const;

  const std::chrono::milliseconds interval_;
  const std::string device_;
  const size_t engine_;
  std::mutex mutex_;  // guards the members below
  Clock::time_point last_;
  StepStats now_;                                           // the gauges
  int64_t computed_ = 0, generated_ = 0, preemptions_ = 0;  // since last_
  // The same of drafts.
  int64_t drafts_ = 0, draft_tokens_ = 0, accepted_tokens_ = 0;
  std::vector<int64_t> accepted_per_position_;
  bool was_busy_ = false;
  std::deque<Admission> admissions_;
  Admission total_{0, 0, 0};
};

}  // namespace quire::metrics
