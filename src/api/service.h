// SPDX-License-Identifier: Apache-2.0
// Service: the routes of the server, from an HTTP request to the AsyncLlm and back.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "api/error.h"
#include "api/handler.h"
#include "api/keys.h"
#include "api/schema.h"
#include "api/worker_pool.h"
#include "llm/async_llm.h"
#include "metrics/server_metrics.h"

namespace quire::api {

struct ServiceOptions {
  std::vector<ApiKey> keys;               // those with names and limits
  std::vector<std::string> served_names;  // the first one stands in answers
  std::vector<std::string> aliases;       // also taken as `model`: the path, the file's name
  std::string model_root;                 // the model's own name, without its folders
  std::string version;
  std::string fingerprint;  // of answers; "": none
  int64_t created = 0;      // Unix time of the start
  int64_t stream_interval = 1;
  bool trust_request_chat_template = false;
  bool enable_prompt_tokens_details = true;
  bool enable_force_include_usage = false;
  bool return_tokens_as_token_ids = false;
  bool enable_tokenizer_info_endpoint = false;
  bool enable_reset_prefix_cache = false;
  bool disable_docs = false;
  bool log_requests = false;
  bool log_outputs = false;
  int64_t max_log_len = -1;  // -1: all
  text::ContentFormat content_format = text::ContentFormat::kAuto;
  json::Value default_chat_template_kwargs;
  std::string response_role = "assistant";
  int workers = 2;
  // /health is 503 when requests wait this long without a worker beginning or ending one (0: never) ...
  double worker_stall_s = 60;
  double engine_stall_s = 60;  // ... or when one step of the engine takes this long (0: never)
};

// One for the server. handle() may be called from any thread and returns at once; long work goes to the pool. Lives
// until the last Reply it was given is finished (the HTTP server is stopped first).
class Service {
 public:
  Service(llm::AsyncLlm& llm, metrics::ServerMetrics& metrics, ServiceOptions options);

  void handle(HttpRequest request, ReplyPtr reply);
  Handler handler() {
    return [this](HttpRequest request, ReplyPtr reply) { handle(std::move(request), std::move(reply)); };
  }
  // The route as it is declared ("/v1/models"), or "none": the label of the http_* metrics.
  static std::string_view route_of(std::string_view path);

  llm::AsyncLlm& llm() { return llm_; }
  KeyLedger& keys() { return keys_; }
  const llm::Llm& model() const { return llm_.llm(); }
  const ServiceOptions& options() const { return options_; }
  std::atomic<int64_t>& load() { return load_; }
  // No text of more bytes can be max_model_len tokens; see kAlwaysTokenised.
  size_t max_text_bytes() const { return max_text_bytes_; }
  // Takes a fraction of a second.
  static constexpr size_t kAlwaysTokenised = size_t{1} << 20;

  // 404 unless `model` is absent, empty or one of the served names.
  ApiStatus check_model(const Body& body) const;

 private:
  using Endpoint = void (*)(Service&, const HttpRequest&, const ReplyPtr&);
  bool handle_get(const HttpRequest& request, Reply& reply);  // false: no route of its kind
  void run_on_worker(HttpRequest request, ReplyPtr reply, Endpoint endpoint);
  bool serves(const std::string& model) const;
  ApiError unknown_model(const std::string& model) const;
  void health(Reply& reply) const;
  void models(Reply& reply) const;
  void one_model(const HttpRequest& request, Reply& reply) const;
  void tokenizer_info(Reply& reply) const;
  static void reset_prefix_cache(Service& service, const HttpRequest& request, const ReplyPtr& reply);

  llm::AsyncLlm& llm_;
  metrics::ServerMetrics& metrics_;
  const ServiceOptions options_;
  const std::string openapi_;
  const std::string page_;
  const size_t max_text_bytes_;
  KeyLedger keys_;
  std::atomic<int64_t> load_ = 0;
  WorkerPool workers_;  // last: its jobs use all of the above
};

// The endpoints that generate or tokenise. Each runs on a worker and answers, now or later, through the reply.
void serve_completions(Service& service, const HttpRequest& request, const ReplyPtr& reply);
void serve_chat(Service& service, const HttpRequest& request, const ReplyPtr& reply);
void serve_responses(Service& service, const HttpRequest& request, const ReplyPtr& reply);
void serve_messages(Service& service, const HttpRequest& request, const ReplyPtr& reply);
void serve_count_tokens(Service& service, const HttpRequest& request, const ReplyPtr& reply);
void serve_tokenize(Service& service, const HttpRequest& request, const ReplyPtr& reply);
void serve_detokenize(Service& service, const HttpRequest& request, const ReplyPtr& reply);

void send_json(Reply& reply, int status, std::string body);
void send_error(Reply& reply, const ApiError& error);
void send_anthropic_error(Reply& reply, const ApiError& error);  // in the shape of /v1/messages

}  // namespace quire::api
