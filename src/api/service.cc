// SPDX-License-Identifier: Apache-2.0
// The route table and the small endpoints.
#include "api/service.h"

#include <algorithm>
#include <ctime>

#include "api/documents.h"
#include "api/json_writer.h"
#include "base/log.h"

namespace quire::api {
namespace {

void serve_invocations(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  const bool chat = request.body.find("\"messages\"") != std::string::npos;
  (chat ? serve_chat : serve_completions)(service, request, reply);
}

// The routes that take a JSON body and run on a worker.
constexpr std::pair<std::string_view, void (*)(Service&, const HttpRequest&, const ReplyPtr&)> kPosts[] = {
    {"/v1/chat/completions", serve_chat}, {"/v1/completions", serve_completions},
    {"/v1/responses", serve_responses},   {"/v1/messages", serve_messages},
    {"/tokenize", serve_tokenize},        {"/v1/messages/count_tokens", serve_count_tokens},
    {"/detokenize", serve_detokenize},    {"/invocations", serve_invocations},
};

constexpr std::string_view kKeptResponse = "/v1/responses/";  // + an id
constexpr std::string_view kOneModel = "/v1/models/";         // + a name, which may have slashes

bool is_json(const HttpRequest& request) {
  const std::string* type = request.header("Content-Type");
  if (type == nullptr) return true;
  std::string media = type->substr(0, type->find(';'));
  std::transform(media.begin(), media.end(), media.begin(), [](unsigned char c) { return std::tolower(c); });
  while (!media.empty() && media.back() == ' ') media.pop_back();
  return media == "application/json";
}

// The methods that a path takes, but for one that it would take if it were not turned off.
std::string allowed_methods(const HttpRequest& request) {
  std::string allowed;
  const std::string_view path = Service::route_of(request.path);
  for (const RouteDoc& route : route_docs()) {
    if (path != route.path || request.method == route.method) continue;
    const std::string_view method = route.method;
    allowed += std::string(allowed.empty() ? "" : ", ") + (method == "GET" ? "GET, HEAD" : route.method);
  }
  return allowed;
}

void note_error(Reply& reply, const ApiError& error) {
  if (error.status >= 500 && error.status != 503) spdlog::error("{}: {}", error.status, error.message);
  reply.note("error", error.message.substr(0, 200));
}

// An error of the route itself, in the shape that its clients read.
void refuse(const HttpRequest& request, Reply& reply, const ApiError& error, Headers extra = {}) {
  note_error(reply, error);
  reply.send(error.status, "application/json", request.from_anthropic_client() ? error.anthropic_body() : error.body(),
             std::move(extra));
}

void refuse_route(const HttpRequest& request, Reply& reply) {
  if (request.path.starts_with(kKeptResponse)) {
    return refuse(
        request, reply,
        not_found_error("answers are not kept by this server, so none can be fetched, cancelled or deleted by "
                        "its id; close the connection to cancel one.",
                        "response_id"));
  }
  const std::string allowed = allowed_methods(request);
  if (allowed.empty()) {
    return refuse(request, reply,
                  {404, "Not Found", "there is no " + request.path + " here; /docs lists the routes.", ""});
  }
  refuse(request, reply,
         {405, "Method Not Allowed", request.path + " takes " + allowed + ", not " + request.method + ".", ""},
         {{"Allow", allowed}});
}

// "2026-11-16T09:30:00Z"
std::string iso_time(int64_t unix_seconds) {
  const std::time_t time = unix_seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);  // numbers only: no locale changes them
  return text;
}

// A model's card with the fields of both OpenAI's and Anthropic's clients, which ignore each other's.
void write_model(JsonWriter& w, const Service& service, const std::string& name) {
  const ServiceOptions& options = service.options();
  const int64_t max_model_len = service.model().max_model_len();
  w.open_object().member("id", name).member("object", "model").member_int("created", options.created);
  w.member("owned_by", "quire").member("root", options.model_root).member_null("parent");
  w.member_int("max_model_len", max_model_len).key("permission").open_array().open_object();
  w.member("id", "modelperm-" + name).member("object", "model_permission").member_int("created", options.created);
  w.member_bool("allow_create_engine", false).member_bool("allow_sampling", true).member_bool("allow_logprobs", true);
  w.member_bool("allow_search_indices", false).member_bool("allow_view", true).member_bool("allow_fine_tuning", false);
  w.member("organization", "*").member_null("group").member_bool("is_blocking", false);
  w.close_object().close_array();
  w.member("type", "model").member("display_name", name).member("created_at", iso_time(options.created));
  w.member("lifecycle", "active").member_int("max_input_tokens", max_model_len);
  w.member_int("max_tokens", max_model_len).close_object();
}

// See Service::max_text_bytes().
size_t text_bound(const llm::Llm& llm) {
  size_t longest = 1;
  if (const auto& tokenizer = llm.tokenizer(); tokenizer != nullptr) {
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      longest = std::max({longest, tokenizer->token_bytes(id).size(), tokenizer->piece(id).value_or("").size()});
    }
  }
  return std::max(longest * static_cast<size_t>(llm.max_model_len()), Service::kAlwaysTokenised);
}

}  // namespace

void send_json(Reply& reply, int status, std::string body) {
  reply.send(status, "application/json", std::move(body));
}

void send_error(Reply& reply, const ApiError& error) {
  note_error(reply, error);
  reply.send(error.status, "application/json", error.body(), error.headers());
}

void send_anthropic_error(Reply& reply, const ApiError& error) {
  note_error(reply, error);
  reply.send(error.status, "application/json", error.anthropic_body(), error.headers());
}

Service::Service(llm::AsyncLlm& llm, metrics::ServerMetrics& metrics, ServiceOptions options)
    : llm_(llm),
      metrics_(metrics),
      options_(std::move(options)),
      openapi_(openapi_json(options_.version)),
      page_(docs_page(options_.version, options_.served_names[0])),
      max_text_bytes_(text_bound(llm.llm())),
      keys_(options_.keys, &metrics),
      workers_(options_.workers) {}

std::string_view Service::route_of(std::string_view path) {
  if (path.rfind("/metrics", 0) == 0) return "/metrics";
  if (path.rfind(kKeptResponse, 0) == 0) {
    const bool cancel = path.size() > 7 && path.substr(path.size() - 7) == "/cancel";
    return cancel ? "/v1/responses/{id}/cancel" : "/v1/responses/{id}";
  }
  if (path.size() > kOneModel.size() && path.starts_with(kOneModel)) return "/v1/models/{name}";
  for (const RouteDoc& route : route_docs()) {
    if (path == route.path) return route.path;
  }
  return "none";
}

bool Service::serves(const std::string& model) const {
  for (const auto* names : {&options_.served_names, &options_.aliases}) {
    if (std::find(names->begin(), names->end(), model) != names->end()) return true;
  }
  return false;
}

ApiError Service::unknown_model(const std::string& model) const {
  std::string known;
  for (const std::string& name : options_.served_names) known += (known.empty() ? "" : ", ") + name;
  return not_found_error("The model `" + model.substr(0, 200) + "` does not exist; this server has: " + known + ".",
                         "model");
}

ApiStatus Service::check_model(const Body& body) const {
  const std::string model = body.string("model");
  if (model.empty() || serves(model)) return Ok{};
  return unknown_model(model);
}

void Service::models(Reply& reply) const {
  JsonWriter w;
  w.open_object().member("object", "list").key("data").open_array();
  for (const std::string& name : options_.served_names) write_model(w, *this, name);
  w.close_array().member_bool("has_more", false).member("first_id", options_.served_names.front());
  w.member("last_id", options_.served_names.back()).close_object();
  send_json(reply, 200, w.take());
}

void Service::one_model(const HttpRequest& request, Reply& reply) const {
  const std::string name = request.path.substr(kOneModel.size());
  if (!serves(name)) return refuse(request, reply, unknown_model(name));
  const auto& names = options_.served_names;
  JsonWriter w;
  write_model(w, *this, std::find(names.begin(), names.end(), name) != names.end() ? name : names[0]);
  send_json(reply, 200, w.take());
}

void Service::health(Reply& reply) const {
  const auto red = [&](const std::string& sentence) {
    reply.note("error", sentence);
    reply.send(503, "text/plain; charset=utf-8", sentence);
  };
  const auto whole = [](double seconds) { return std::to_string(static_cast<int64_t>(seconds)) + " seconds"; };
  const double workers = workers_.stalled_seconds();
  if (options_.worker_stall_s > 0 && workers > options_.worker_stall_s) {
    return red("Requests have been waiting for a worker thread for " + whole(workers) +
               " while none was begun or ended.");
  }
  const double engine = llm_.stalled_seconds().value_or(0);
  if (options_.engine_stall_s > 0 && engine > options_.engine_stall_s) {
    return red("The engine has been at one step for " + whole(engine) + ".");
  }
  reply.send(200, "text/plain; charset=utf-8", "");
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

void Service::reset_prefix_cache(Service& service, const HttpRequest&, const ReplyPtr& reply) {
  if (!service.options_.enable_reset_prefix_cache) {
    return send_error(*reply, {403, "Forbidden",
                               "/reset_prefix_cache is off; start the server with --api-key or "
                               "--enable-reset-prefix-cache.",
                               ""});
  }
  const bool done = service.llm_.reset_prefix_cache().get();
  spdlog::info("prefix cache {}", done ? "reset" : "not reset: pages are in use");
  JsonWriter w;
  w.open_object().member_bool("success", done).close_object();
  send_json(*reply, 200, w.take());
}

// A job that still waits when its client leaves never runs, and one that runs sees it. An endpoint that starts an
// answer replaces the gone callback by its own.
void Service::run_on_worker(HttpRequest request, ReplyPtr reply, Endpoint endpoint) {
  const WorkerPool::JobId id = workers_.reserve();
  reply->on_gone([this, id] { workers_.cancel(id); });
  constexpr size_t kSmallBody = size_t{64} << 10;
  const auto size = request.body.size() <= kSmallBody ? WorkerPool::Size::kSmall : WorkerPool::Size::kLarge;
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  workers_.post(
      id,
      [this, endpoint, shared, reply = std::move(reply)](const std::atomic<bool>& cancelled) {
        shared->cancelled = &cancelled;
        endpoint(*this, *shared, reply);
      },
      size);
}

bool Service::handle_get(const HttpRequest& request, Reply& reply) {
  const std::string& path = request.path;
  if (path == "/health" || path == "/ping") {
    health(reply);
  } else if (path.starts_with("/metrics")) {
    reply.send(200, metrics::ServerMetrics::kContentType, metrics_.expose());
  } else if (path == "/v1/models") {
    models(reply);
  } else if (route_of(path) == "/v1/models/{name}") {
    one_model(request, reply);
  } else if (path == "/version") {
    send_json(reply, 200, "{\"version\":\"" + options_.version + "\"}");
  } else if (path == "/load") {
    send_json(reply, 200, "{\"server_load\":" + std::to_string(load_.load()) + "}");
  } else if (path == "/tokenizer_info") {
    tokenizer_info(reply);
  } else if (!options_.disable_docs && path == "/openapi.json") {
    send_json(reply, 200, openapi_);
  } else if (!options_.disable_docs && (path == "/docs" || path == "/")) {
    reply.send(200, "text/html; charset=utf-8", page_);
  } else {
    return false;
  }
  return true;
}

void Service::handle(HttpRequest request, ReplyPtr reply) {
  if (request.method == "GET") {
    if (!handle_get(request, *reply)) refuse_route(request, *reply);
    return;
  }
  if (request.method != "POST") return refuse_route(request, *reply);
  if (request.path == "/ping") return health(*reply);
  if (request.path == "/reset_prefix_cache") {
    return run_on_worker(std::move(request), std::move(reply), reset_prefix_cache);
  }
  for (const auto& [route, endpoint] : kPosts) {
    if (request.path != route) continue;
    if (!is_json(request)) {
      return refuse(request, *reply,
                    {400, "Bad Request",
                     "Unsupported Media Type: the body must come with the header Content-Type: "
                     "application/json.",
                     ""});
    }
    return run_on_worker(std::move(request), std::move(reply), endpoint);
  }
  refuse_route(request, *reply);
}

}  // namespace quire::api
