// SPDX-License-Identifier: Apache-2.0
// Service: one loaded model as the endpoints see it, and what the models of a server share.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/adapters.h"
#include "api/error.h"
#include "api/handler.h"
#include "api/keys.h"
#include "api/markup_choice.h"
#include "api/model_pool.h"
#include "api/recorder.h"
#include "api/routes.h"
#include "api/schema.h"
#include "api/worker_pool.h"
#include "llm/parallel_llm.h"
#include "metrics/server_metrics.h"

namespace quire::api {

// Where KV events are published.
struct KvEventSource {
  int64_t rank = 0;  // of the engine
  std::string endpoint;
  std::string replay_endpoint;  // "": none
  std::string topic;
};

struct ServiceOptions {
  std::vector<ApiKey> keys;               // those with names and limits
  std::vector<std::string> served_names;  // answers show the first one
  std::vector<std::string> aliases;       // also accepted as `model`: the path, the file's name
  std::string model_root;                 // the model's own name, without its folders
  std::string version;
  std::string fingerprint;  // system_fingerprint of answers; "": none
  int64_t created = 0;      // Unix time of the start
  int64_t stream_interval = 1;
  bool trust_request_chat_template = false;
  bool enable_prompt_tokens_details = true;
  bool enable_force_include_usage = false;
  bool return_tokens_as_token_ids = false;
  bool enable_tokenizer_info_endpoint = false;
  bool enable_reset_prefix_cache = false;
  bool runtime_lora_updating = false;  // /v1/load_lora_adapter and /v1/unload_lora_adapter work
  size_t model_index = 0;              // of the model among those of the server
  bool disable_docs = false;
  bool page = true;  // serve / and the live view
  std::vector<KvEventSource> kv_event_sources;
  // Whether the live view shows the tokens of pages to everyone it serves. With named keys, a key sees its own alone.
  bool page_shows_tokens = true;
  bool log_requests = false;
  bool log_outputs = false;
  int64_t max_log_len = -1;  // -1: all
  text::ContentFormat content_format = text::ContentFormat::kAuto;
  json::Value default_chat_template_kwargs;
  std::string response_role = "assistant";
  MarkupChoice markup;                          // how the model writes tool calls and reasoning
  bool exclude_tools_when_choice_none = false;  // the template does not see tools that may not be called
  int workers = 2;
  // /health is 503 if requests wait this long without a worker beginning or ending one (0: never) ...
  double worker_stall_s = 60;
  std::shared_ptr<Recorder> recorder;    // keeps the receipts of all answers (--record-requests); null: none
  double engine_stall_s = 60;            // ... or if one step of the engine takes this long (0: never)
  std::function<std::string()> trouble;  // ... or if this returns a sentence: about ranks of other processes
};

// What the models of a server share. Owned by the Host, and outlives every Service.
struct Shared {
  explicit Shared(const ServiceOptions& options) : keys(options.keys), workers(std::in_place, options.workers) {}

  // Runs the job on a worker. If the client leaves before, it never runs; if it leaves meanwhile, the flag becomes
  // true. A job that starts an answer replaces the gone callback of the reply by its own.
  void run_on_worker(const ReplyPtr& reply, WorkerPool::Size size, WorkerPool::Job job);

  KeyLedger keys;
  AdapterTable adapters;
  std::vector<std::string> model_names;  // of all models, with their aliases; does not change while requests run
  std::atomic<int64_t> load = 0;         // the generations under way
  std::optional<WorkerPool> workers;     // the Host ends it first: its jobs use the rest
};

// One loaded model. Any thread may call run(), which returns at once: long work goes to the worker pool.
// REQUIRES: it outlives every Reply that it was given.
class Service final : public Resident {
 public:
  Service(std::unique_ptr<llm::ParallelLlm> llm, metrics::ServerMetrics& metrics, Shared& shared,
          ServiceOptions options);

  // Answers a request to a route that is about a model.
  void run(const Route& route, HttpRequest request, ReplyPtr reply);

  llm::ParallelLlm& llm() const { return *llm_; }
  metrics::ServerMetrics& metrics() { return metrics_; }  // of the first engine
  KeyLedger& keys() { return shared_.keys; }
  const llm::Llm& model() const { return llm_->llm(); }
  const ServiceOptions& options() const { return options_; }
  std::atomic<int64_t>& load() { return shared_.load; }  // the generations under way, of all models
  // A text with more bytes has more than max_model_len tokens; at least kAlwaysTokenised.
  size_t max_text_bytes() const { return max_text_bytes_; }
  // Tokenising this much takes a fraction of a second.
  static constexpr size_t kAlwaysTokenised = size_t{1} << 20;

  bool serves(const std::string& model) const;  // it is a served name or an alias
  ApiFailure unknown_model(const std::string& model) const;
  // 404 unless `model` is absent, empty, served or the name of an adapter of this model.
  ApiStatus check_model(const Body& body) const;
  AdapterTable& adapters() const { return shared_.adapters; }
  bool names_a_model(const std::string& name) const;  // any of the server
  // The adapter of this model with that name.
  std::optional<AdapterTable::Entry> find_adapter(const std::string& name) const;

 private:
  metrics::ServerMetrics& metrics_;
  Shared& shared_;
  const ServiceOptions options_;
  const std::unique_ptr<llm::ParallelLlm> llm_;
  const size_t max_text_bytes_;
};

void send_json(Reply& reply, std::string body);
void send_error(Reply& reply, const ApiError& error);
void send_anthropic_error(Reply& reply, const ApiError& error);  // in the shape of /v1/messages
// Sends the error in the shape that the client of this request reads.
void refuse(const HttpRequest& request, Reply& reply, const ApiError& error, Headers extra = {});
// 404, or 405 if the path takes other methods.
void refuse_route(const HttpRequest& request, Reply& reply);

}  // namespace quire::api
