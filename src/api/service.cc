// SPDX-License-Identifier: Apache-2.0
// The route table and the small endpoints.
#include "api/service.h"

#include <algorithm>

#include "api/docs_page.h"
#include "api/json_writer.h"
#include "base/log.h"

namespace quire::api {
namespace {

using Endpoint = void (*)(Service&, const HttpRequest&, const ReplyPtr&);

void serve_invocations(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  const bool chat = request.body.find("\"messages\"") != std::string::npos;
  (chat ? serve_chat : serve_completions)(service, request, reply);
}

// The routes that take a JSON body and run on a worker.
constexpr std::pair<std::string_view, Endpoint> kPosts[] = {
    {"/v1/chat/completions", serve_chat}, {"/v1/completions", serve_completions},
    {"/v1/responses", serve_responses},   {"/v1/messages", serve_messages},
    {"/tokenize", serve_tokenize},        {"/v1/messages/count_tokens", serve_count_tokens},
    {"/detokenize", serve_detokenize},    {"/invocations", serve_invocations},
};

constexpr std::string_view kKeptResponse = "/v1/responses/";  // + an id

bool is_json(const HttpRequest& request) {
  const std::string* type = request.header("Content-Type");
  if (type == nullptr) return true;
  std::string media = type->substr(0, type->find(';'));
  std::transform(media.begin(), media.end(), media.begin(), [](unsigned char c) { return std::tolower(c); });
  while (!media.empty() && media.back() == ' ') media.pop_back();
  return media == "application/json";
}

ApiError no_route(const HttpRequest& request) {
  std::string allowed;
  for (const RouteDoc& route : route_docs()) {
    const bool hidden = request.method == route.method;  // it takes this method, but is turned off
    if (request.path == route.path && !hidden) allowed += std::string(allowed.empty() ? "" : ", ") + route.method;
  }
  if (!allowed.empty()) {
    return {405, "Method Not Allowed", request.path + " takes " + allowed + ", not " + request.method + ".", ""};
  }
  if (request.path.rfind(kKeptResponse, 0) == 0) {
    return not_found_error(
        "answers are not kept by this server, so none can be fetched, cancelled or deleted by its id; "
        "close the connection to cancel one.",
        "response_id");
  }
  return {404, "Not Found", "there is no " + request.path + " here; /docs lists the routes.", ""};
}

void note_error(Reply& reply, const ApiError& error) {
  if (error.status >= 500 && error.status != 503) spdlog::error("{}: {}", error.status, error.message);
  reply.note("error", error.message.substr(0, 200));
}

// An error of the route itself, in the shape that its clients read.
void refuse(const HttpRequest& request, Reply& reply, const ApiError& error) {
  request.path.rfind("/v1/messages", 0) == 0 ? send_anthropic_error(reply, error) : send_error(reply, error);
}

}  // namespace

void send_json(Reply& reply, int status, std::string body) {
  reply.send(status, "application/json", std::move(body));
}

void send_error(Reply& reply, const ApiError& error) {
  note_error(reply, error);
  send_json(reply, error.status, error.body());
}

void send_anthropic_error(Reply& reply, const ApiError& error) {
  note_error(reply, error);
  send_json(reply, error.status, error.anthropic_body());
}

Service::Service(llm::AsyncLlm& llm, metrics::ServerMetrics& metrics, ServiceOptions options)
    : llm_(llm),
      metrics_(metrics),
      options_(std::move(options)),
      openapi_(openapi_json(options_.version)),
      page_(docs_page(options_.version, options_.served_names[0])),
      workers_(options_.workers) {}

std::string_view Service::route_of(std::string_view path) {
  if (path.rfind("/metrics", 0) == 0) return "/metrics";
  if (path.rfind(kKeptResponse, 0) == 0) {
    const bool cancel = path.size() > 7 && path.substr(path.size() - 7) == "/cancel";
    return cancel ? "/v1/responses/{id}/cancel" : "/v1/responses/{id}";
  }
  for (const RouteDoc& route : route_docs()) {
    if (path == route.path) return route.path;
  }
  return "none";
}

ApiStatus Service::check_model(const Body& body) const {
  const std::string model = body.string("model");
  if (model.empty()) return Ok{};
  for (const auto* names : {&options_.served_names, &options_.aliases}) {
    if (std::find(names->begin(), names->end(), model) != names->end()) return Ok{};
  }
  std::string known;
  for (const std::string& name : options_.served_names) known += (known.empty() ? "" : ", ") + name;
  return not_found_error("The model `" + model.substr(0, 200) + "` does not exist; this server has: " + known + ".",
                         "model");
}

void Service::models(const HttpRequest&, Reply& reply) const {
  JsonWriter w;
  w.open_object().member("object", "list").key("data").open_array();
  for (const std::string& name : options_.served_names) {
    w.open_object().member("id", name).member("object", "model").member_int("created", options_.created);
    w.member("owned_by", "quire").member("root", options_.model_root).member_null("parent");
    w.member_int("max_model_len", model().max_model_len()).key("permission").open_array().open_object();
    w.member("id", "modelperm-" + name).member("object", "model_permission").member_int("created", options_.created);
    w.member_bool("allow_create_engine", false).member_bool("allow_sampling", true).member_bool("allow_logprobs", true);
    w.member_bool("allow_search_indices", false)
        .member_bool("allow_view", true)
        .member_bool("allow_fine_tuning", false);
    w.member("organization", "*").member_null("group").member_bool("is_blocking", false);
    w.close_object().close_array().close_object();
  }
  w.close_array().close_object();
  send_json(reply, 200, w.take());
}

void Service::tokenizer_info(Reply& reply) const {
  const auto& tokenizer = model().tokenizer();
  if (!options_.enable_tokenizer_info_endpoint || tokenizer == nullptr) {
    return send_error(reply, not_found_error(tokenizer == nullptr ? "this model has no tokenizer."
                                                                  : "/tokenizer_info is off; start the server with "
                                                                    "--enable-tokenizer-info-endpoint."));
  }
  const text::SpecialIds& special = tokenizer->special_ids();
  JsonWriter w;
  w.open_object().member("tokenizer_class", tokenizer->model_type());
  w.member_int("vocab_size", tokenizer->vocab_size()).member_int("model_max_length", model().max_model_len());
  const std::pair<const char*, std::optional<int32_t>> roles[] = {
      {"bos_token", special.bos}, {"eos_token", special.eos}, {"pad_token", special.pad}, {"unk_token", special.unk}};
  for (const auto& [name, id] : roles) {
    w.key(name);
    if (id) {
      w.string(tokenizer->piece(*id).value_or(""));
    } else {
      w.null();
    }
  }
  w.member_bool("add_bos_token", tokenizer->adds_bos()).member_bool("add_eos_token", tokenizer->adds_eos());
  w.key("chat_template");
  if (model().chat_template() != nullptr) {
    w.string(model().chat_template()->source());
  } else {
    w.null();
  }
  w.close_object();
  send_json(reply, 200, w.take());
}

void Service::reset_prefix_cache(Reply& reply) {
  if (!options_.enable_reset_prefix_cache) {
    return send_error(reply, {403, "Forbidden",
                              "/reset_prefix_cache is off; start the server with --api-key or "
                              "--enable-reset-prefix-cache.",
                              ""});
  }
  const bool done = llm_.reset_prefix_cache().get();
  spdlog::info("prefix cache {}", done ? "reset" : "not reset: pages are in use");
  JsonWriter w;
  w.open_object().member_bool("success", done).close_object();
  send_json(reply, 200, w.take());
}

void Service::handle(HttpRequest request, ReplyPtr reply) {
  const std::string& path = request.path;
  const bool get = request.method == "GET";
  const bool post = request.method == "POST";
  for (const auto& [route, endpoint] : kPosts) {
    if (path != route) continue;
    if (!post) return refuse(request, *reply, no_route(request));
    if (!is_json(request)) {
      return refuse(request, *reply,
                    {400, "Bad Request",
                     "Unsupported Media Type: the body must come with the header Content-Type: "
                     "application/json.",
                     ""});
    }
    auto shared = std::make_shared<HttpRequest>(std::move(request));
    workers_.post([this, endpoint = endpoint, shared, reply] { endpoint(*this, *shared, reply); });
    return;
  }
  if ((path == "/health" && get) || (path == "/ping" && (get || post))) {
    return reply->send(200, "text/plain; charset=utf-8", "");
  }
  if (get && path.rfind("/metrics", 0) == 0) {
    return reply->send(200, metrics::ServerMetrics::kContentType, metrics_.expose());
  }
  if (get && path == "/v1/models") return models(request, *reply);
  if (get && path == "/version") {
    return send_json(*reply, 200, "{\"version\":\"" + options_.version + "\"}");
  }
  if (get && path == "/load") {
    return send_json(*reply, 200, "{\"server_load\":" + std::to_string(load_.load()) + "}");
  }
  if (get && path == "/tokenizer_info") return tokenizer_info(*reply);
  if (get && !options_.disable_docs && path == "/openapi.json") return send_json(*reply, 200, openapi_);
  if (get && !options_.disable_docs && (path == "/docs" || path == "/")) {
    return reply->send(200, "text/html; charset=utf-8", page_);
  }
  if (post && path == "/reset_prefix_cache") {
    workers_.post([this, reply] { reset_prefix_cache(*reply); });
    return;
  }
  refuse(request, *reply, no_route(request));
}

}  // namespace quire::api
