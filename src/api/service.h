// SPDX-License-Identifier: Apache-2.0
// Service: the routes of the server, from an HTTP request to the AsyncLlm and back.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "api/error.h"
#include "api/exchange.h"
#include "api/schema.h"
#include "api/worker_pool.h"
#include "llm/async_llm.h"
#include "metrics/server_metrics.h"

namespace quire::api {

struct ServiceOptions {
  std::vector<std::string> served_names;  // the first one stands in answers
  std::vector<std::string> aliases;       // also taken as `model`: the path, the file's name
  std::string model_root;                 // where the model came from
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
  const llm::Llm& model() const { return llm_.llm(); }
  const ServiceOptions& options() const { return options_; }
  std::atomic<int64_t>& load() { return load_; }

  // 404 unless `model` is absent, empty or one of the served names.
  ApiStatus check_model(const Body& body) const;

 private:
  void models(const HttpRequest& request, Reply& reply) const;
  void tokenizer_info(Reply& reply) const;
  void reset_prefix_cache(Reply& reply);

  llm::AsyncLlm& llm_;
  metrics::ServerMetrics& metrics_;
  const ServiceOptions options_;
  const std::string openapi_;
  const std::string page_;
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
