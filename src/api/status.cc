// SPDX-License-Identifier: Apache-2.0
// The server's own state and description: /health, /ping, /version, /load, /metrics, /reset_prefix_cache,
// /openapi.json and /docs.
#include "api/host.h"
#include "api/json_writer.h"
#include "base/log.h"

namespace quire::api {
namespace {

// The sentence that says why the server makes no progress; "" if it does.
std::string stall(Host& host) {
  if (host.options().trouble) {
    if (const std::string sentence = host.options().trouble(); !sentence.empty()) return sentence;
  }
  const auto whole = [](double seconds) { return std::to_string(static_cast<int64_t>(seconds)) + " seconds"; };
  const double workers = host.shared().workers->stalled_seconds();
  if (host.options().worker_stall_s > 0 && workers > host.options().worker_stall_s) {
    return "Requests have been waiting for a worker thread for " + whole(workers) + " while none was begun or ended.";
  }
  std::string sentence;
  host.each_loaded([&](size_t, Service& service) {
    const double engine = service.llm().stalled_seconds().value_or(0);
    const double most = service.options().engine_stall_s;
    if (most > 0 && engine > most) sentence = "The engine has been at one step for " + whole(engine) + ".";
  });
  return sentence;
}

}  // namespace

void serve_health(Host& host, const HttpRequest&, const ReplyPtr& reply) {
  const std::string sentence = stall(host);
  if (!sentence.empty()) reply->note("error", sentence);
  reply->send(sentence.empty() ? 200 : 503, "text/plain; charset=utf-8", sentence);
}

void serve_version(Host& host, const HttpRequest&, const ReplyPtr& reply) {
  send_json(*reply, "{\"version\":\"" + host.options().version + "\"}");
}

void serve_kv_event_sources(Host& host, const HttpRequest&, const ReplyPtr& reply) {
  JsonWriter w;
  w.open_array();
  for (const KvEventSource& source : host.options().kv_event_sources) {
    w.open_object()
        .member_int("data_parallel_rank", source.rank)
        .member("endpoint", source.endpoint)
        .key("replay_endpoint");
    w.value_or_null(!source.replay_endpoint.empty(), [&] { w.string(source.replay_endpoint); });
    w.member("topic", source.topic).close_object();
  }
  send_json(*reply, w.close_array().take());
}

void serve_load(Host& host, const HttpRequest&, const ReplyPtr& reply) {
  send_json(*reply, "{\"server_load\":" + std::to_string(host.shared().load) + "}");
}

void serve_metrics(Host& host, const HttpRequest&, const ReplyPtr& reply) {
  for (size_t i = 0; host.has_several() && i < host.models().size(); ++i) {
    const ModelPool::Info info = host.pool().info(i);
    host.models()[i].metrics->set_model(info.state == ModelState::kReady, static_cast<int64_t>(info.waiting),
                                        info.loads, info.failures);
  }
  host.each_loaded([](size_t, Service& service) {
    for (size_t e = 1; e < service.llm().num_engines(); ++e) {
      if (metrics::ServerMetrics* metrics = service.llm().engine(e).metrics()) metrics->refresh();
    }
  });
  reply->send(200, metrics::ServerMetrics::kContentType, host.metrics().expose());
}

void serve_reset_prefix_cache(Host& host, const HttpRequest&, const ReplyPtr& reply) {
  if (!host.options().enable_reset_prefix_cache) {
    return send_error(*reply, {403, "Forbidden",
                               "/reset_prefix_cache is off; start the server with --api-key or "
                               "--enable-reset-prefix-cache.",
                               ""});
  }
  bool done = true;
  host.each_loaded([&](size_t, Service& service) { done = service.llm().reset_prefix_cache() && done; });
  log_info("prefix cache {}", done ? "reset" : "not reset: pages are in use");
  JsonWriter w;
  w.open_object().member_bool("success", done).close_object();
  send_json(*reply, w.take());
}

void serve_openapi(Host& host, const HttpRequest& request, const ReplyPtr& reply) {
  if (host.options().disable_docs) return refuse_route(request, *reply);
  send_json(*reply, host.openapi());
}

void serve_docs(Host& host, const HttpRequest& request, const ReplyPtr& reply) {
  if (host.options().disable_docs) return refuse_route(request, *reply);
  reply->send(200, "text/html; charset=utf-8", host.docs());
}

}  // namespace quire::api
