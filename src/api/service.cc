// SPDX-License-Identifier: Apache-2.0
// Finds the endpoint of a request and runs it, at once or on a worker.
#include "api/service.h"

#include <algorithm>
#include <cctype>

#include "api/documents.h"
#include "base/log.h"

namespace quire::api {
namespace {

bool is_json(const HttpRequest& request) {
  const std::string* type = request.header("Content-Type");
  if (type == nullptr) return true;
  std::string media = type->substr(0, type->find(';'));
  std::transform(media.begin(), media.end(), media.begin(), [](unsigned char c) { return std::tolower(c); });
  while (!media.empty() && media.back() == ' ') media.pop_back();
  return media == "application/json";
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

// Sends an error and notes it in the access line.
void send(Reply& reply, const ApiError& error, std::string body, Headers headers) {
  if (error.status >= 500 && error.status != 503) spdlog::error("{}: {}", error.status, error.message);
  reply.note("error", error.message.substr(0, 200));
  reply.send(error.status, "application/json", std::move(body), std::move(headers));
}

// Whether a worker is soon done with a request. A constraint may take a second to compile: such requests must not take
// the threads that are for small ones.
bool is_quick(const std::string& body) {
  constexpr size_t kSmallBody = size_t{64} << 10;
  if (body.size() > kSmallBody) return false;
  const auto has = [&](std::string_view name) { return body.find(name) != std::string::npos; };
  return !has("schema") && !has("structured_outputs") && !has("structural_tag") && !has("\"tools\"");
}

}  // namespace

void send_json(Reply& reply, std::string body) {
  reply.send(200, "application/json", std::move(body));
}

void send_error(Reply& reply, const ApiError& error) {
  send(reply, error, error.body(), error.headers());
}

void send_anthropic_error(Reply& reply, const ApiError& error) {
  send(reply, error, error.anthropic_body(), error.headers());
}

void refuse(const HttpRequest& request, Reply& reply, const ApiError& error, Headers extra) {
  send(reply, error, request.from_anthropic_client() ? error.anthropic_body() : error.body(), std::move(extra));
}

void refuse_route(const HttpRequest& request, Reply& reply) {
  const std::string allowed = other_methods(request.method, request.path);
  if (allowed.empty()) {
    return refuse(request, reply,
                  {404, "Not Found", "there is no " + request.path + " here; /docs lists the routes.", ""});
  }
  refuse(request, reply,
         {405, "Method Not Allowed", request.path + " takes " + allowed + ", not " + request.method + ".", ""},
         {{"Allow", allowed}});
}

Service::Service(llm::AsyncLlm& llm, metrics::ServerMetrics& metrics, ServiceOptions options)
    : llm_(llm),
      metrics_(metrics),
      options_(std::move(options)),
      openapi_(openapi_json(options_.version)),
      docs_(docs_page(options_.version, options_.served_names[0])),
      max_text_bytes_(text_bound(llm.llm())),
      keys_(options_.keys, &metrics),
      workers_(options_.workers) {}

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

// A job that still waits when its client leaves never runs, and one that runs sees the flag. An endpoint that starts an
// answer replaces the gone callback by its own.
void Service::run_on_worker(HttpRequest request, ReplyPtr reply, Endpoint* endpoint) {
  const WorkerPool::JobId id = workers_.reserve();
  reply->on_gone([this, id] { workers_.cancel(id); });
  const auto size = is_quick(request.body) ? WorkerPool::Size::kSmall : WorkerPool::Size::kLarge;
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  workers_.post(
      id,
      [this, endpoint, shared, reply = std::move(reply)](const std::atomic<bool>& cancelled) {
        shared->cancelled = &cancelled;
        endpoint(*this, *shared, reply);
      },
      size);
}

void Service::handle(HttpRequest request, ReplyPtr reply) {
  const Route* route = find_route(request.method, request.path);
  if (route == nullptr) return refuse_route(request, *reply);
  const bool has_body = route->options.schema != nullptr;
  if (has_body && !is_json(request)) {
    return refuse(request, *reply,
                  {400, "Bad Request",
                   "Unsupported Media Type: the body must come with the header Content-Type: application/json.", ""});
  }
  if (has_body || route->options.slow) {
    return run_on_worker(std::move(request), std::move(reply), route->endpoint);
  }
  route->endpoint(*this, request, reply);
}

}  // namespace quire::api
