// SPDX-License-Identifier: Apache-2.0
// The server's series under vLLM's names, labels and buckets, and the line of figures that is logged now and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace quire::metrics {

// Upper bounds by family of histograms, as --custom-histogram-buckets gives them.
using HistogramBuckets = std::map<std::string, std::vector<double>>;

// Reads {"time_to_first_token": [0.1, 1], ...}: families are request_latency, time_to_first_token,
// inter_token_latency, iteration_tokens, request_params_n, request_num_preemptions and request_tokens.
Result<HistogramBuckets> parse_histogram_buckets(std::string_view json);

struct ServerMetricsOptions {
  std::string model_name;     // the first served name
  int64_t max_model_len = 0;  // the token histograms end here
  // Labels of vllm:cache_config_info ("block_size", "16"); those of vLLM's labels that are not given say "None".
  std::vector<std::pair<std::string, std::string>> cache_config;
  HistogramBuckets custom_buckets;
  bool created_series = true;  // false: no x_created gauges (a fifth of the lines)
};

// What one engine step did, and how things stand after it. Counts are those of this step.
struct StepStats {
  int64_t running = 0;
  int64_t waiting = 0;           // for room in the batch or for pages
  int64_t waiting_deferred = 0;  // put aside for another reason; not in `waiting`
  double kv_usage = 0;           // 0..1; pages that only the prefix cache holds are free
  // Admitted requests and their tokens that were looked up and found; not those that come back after a preemption.
  int64_t prefix_requests = 0, prefix_queries = 0, prefix_hits = 0;
  bool prefix_reset = false;  // the cache was emptied since the last step
  int64_t preemptions = 0;
  // Whole prompts, counted in the step that yields their first token; of these tokens `cached_tokens` came from the
  // cache.
  int64_t prompt_tokens = 0, cached_tokens = 0;
  int64_t generation_tokens = 0;
};

// One request (one of the n answers) at its end. Times in seconds.
struct FinishedRequest {
  std::string finish_reason;  // stop, length, abort, error or repetition
  double e2e_s = 0;           // arrival -> now
  double queue_s = 0;         // queued -> first scheduled
  double prefill_s = 0;       // first scheduled -> first token
  double decode_s = 0;        // first token -> last token
  double inference_s = 0;     // first scheduled -> last token
  int64_t prompt_tokens = 0, cached_tokens = 0, generation_tokens = 0, num_preemptions = 0;
  std::optional<int64_t> max_tokens;  // if the request gave one
  // Of the client's request: set on the last of its answers alone, so that it is observed once. `n` is the parameter,
  // max_num_generation_tokens the length of its longest answer.
  std::optional<int64_t> n, max_num_generation_tokens;
};

// Every series that /metrics shows. Owned by the server; all methods may be called from any thread and are quick (no
// lock except in on_http and expose). Each label combination is there from the start, so that rates begin at 0; the
// http_* series, whose handlers are not known here, appear with their first request.
class ServerMetrics {
 public:
  explicit ServerMetrics(ServerMetricsOptions options);
  ~ServerMetrics();

  void on_step(const StepStats& step);
  // The gauges alone, where the queue changed outside of a step: a request was added, aborted, or the engine idles.
  void on_queue(int64_t running, int64_t waiting, int64_t waiting_deferred, double kv_usage);
  void on_first_token(double ttft_s);
  void on_inter_token(double seconds);  // once for each request and step after its first token
  void on_finished(const FinishedRequest& request);
  void on_rejected(std::string_view reason);  // max_num_queued_reqs, max_num_queued_tokens or max_request_bytes
  // What the owners of API keys use; each key is announced once, before the others are called for it.
  void add_key(const std::string& name);
  void on_key_begin(const std::string& name, int64_t prompt_tokens, int64_t sequences);
  void on_key_end(const std::string& name, int64_t generation_tokens, int64_t sequences);
  void on_key_rejected(const std::string& name, std::string_view limit);  // the limit's name in the key file
  // `handler` is the route as it is declared ("/v1/models"), or "none" for a path that nothing serves. Probes and
  // scrapes
  // (/metrics, /health, ...) are left out, as vLLM leaves them out.
  void on_http(std::string_view handler, std::string_view method, int status, double seconds, int64_t request_bytes,
               int64_t response_bytes);

  // The body of GET /metrics; its content type is kContentType.
  std::string expose() const;
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

// Makes vLLM's line of averages: "Engine 000: Avg prompt throughput: ...". Fed with the steps from any thread; whoever
// owns it asks for the line() now and then. No thread or clock of its own, so that a test may be the clock.
class StatLogger {
 public:
  using Clock = std::chrono::steady_clock;
  // device: whose pages the line counts, CPU or GPU.
  StatLogger(Clock::time_point start, std::chrono::milliseconds interval, std::string device);

  void on_step(const StepStats& step);
  void on_queue(int64_t running, int64_t waiting, int64_t waiting_deferred, double kv_usage);
  // The line, once an interval; nothing before its end, and nothing when no token was made in it nor in the one before.
  std::optional<std::string> line(Clock::time_point now);

 private:
  // The hit rate is that of the last requests, not of all since the start, so that it shows today's traffic.
  static constexpr int64_t kRequestsInHitRate = 1000;
  struct Admission {
    int64_t requests, queries, hits;
  };
  void admit(const StepStats& step);
  std::string format(double seconds) const;

  const std::chrono::milliseconds interval_;
  const std::string device_;
  std::mutex mutex_;  // guards all below
  Clock::time_point last_;
  StepStats now_;                                           // the gauges
  int64_t computed_ = 0, generated_ = 0, preemptions_ = 0;  // since last_
  bool was_busy_ = false;
  std::deque<Admission> admissions_;
  Admission total_{0, 0, 0};
};

}  // namespace quire::metrics
