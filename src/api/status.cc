// SPDX-License-Identifier: Apache-2.0
// The server's own state and description: /health, /ping, /version, /load, /metrics, /reset_prefix_cache,
// /openapi.json and /docs.
#include "api/json_writer.h"
#include "api/service.h"
#include "base/log.h"

namespace quire::api {
namespace {

// The sentence that says why the server makes no progress; "" if it does.
std::string stall(Service& service) {
  const auto whole = [](double seconds) { return std::to_string(static_cast<int64_t>(seconds)) + " seconds"; };
  const ServiceOptions& options = service.options();
  const double workers = service.workers().stalled_seconds();
  if (options.worker_stall_s > 0 && workers > options.worker_stall_s) {
    return "Requests have been waiting for a worker thread for " + whole(workers) + " while none was begun or ended.";
  }
  const double engine = service.llm().stalled_seconds().value_or(0);
  if (options.engine_stall_s > 0 && engine > options.engine_stall_s) {
    return "The engine has been at one step for " + whole(engine) + ".";
  }
  return "";
}

}  // namespace

void serve_health(Service& service, const HttpRequest&, const ReplyPtr& reply) {
  const std::string sentence = stall(service);
  if (!sentence.empty()) reply->note("error", sentence);
  reply->send(sentence.empty() ? 200 : 503, "text/plain; charset=utf-8", sentence);
}

void serve_version(Service& service, const HttpRequest&, const ReplyPtr& reply) {
  send_json(*reply, "{\"version\":\"" + service.options().version + "\"}");
}

void serve_load(Service& service, const HttpRequest&, const ReplyPtr& reply) {
  send_json(*reply, "{\"server_load\":" + std::to_string(service.load()) + "}");
}

void serve_metrics(Service& service, const HttpRequest&, const ReplyPtr& reply) {
  reply->send(200, metrics::ServerMetrics::kContentType, service.metrics().expose());
}

void serve_reset_prefix_cache(Service& service, const HttpRequest&, const ReplyPtr& reply) {
  if (!service.options().enable_reset_prefix_cache) {
    return send_error(*reply, {403, "Forbidden",
                               "/reset_prefix_cache is off; start the server with --api-key or "
                               "--enable-reset-prefix-cache.",
                               ""});
  }
  const bool done = service.llm().reset_prefix_cache().get();
  spdlog::info("prefix cache {}", done ? "reset" : "not reset: pages are in use");
  JsonWriter w;
  w.open_object().member_bool("success", done).close_object();
  send_json(*reply, w.take());
}

void serve_openapi(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (service.options().disable_docs) return refuse_route(request, *reply);
  send_json(*reply, service.openapi());
}

void serve_docs(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (service.options().disable_docs) return refuse_route(request, *reply);
  reply->send(200, "text/html; charset=utf-8", service.docs());
}

}  // namespace quire::api
