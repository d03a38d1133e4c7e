// SPDX-License-Identifier: Apache-2.0
// Runs the endpoints of a model, and sends errors.
#include "api/service.h"

#include <algorithm>

#include "base/log.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

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
  std::string message;
  utf8::append_valid(message, error.message);
  if (error.status >= 500 && error.status != 503) log_error("{}: {}", error.status, message);
  reply.note("error", utf8::beginning(message, 200));
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
    const std::string meant = similar_path(request.path);
    return refuse(request, reply,
                  {404, "Not Found",
                   "there is no " + utf8::beginning(request.path, 200) + " here; " +
                       (meant.empty() ? "" : "did you mean " + meant + "? ") + "/docs lists the routes.",
                   ""});
  }
  refuse(request, reply,
         {405, "Method Not Allowed", request.path + " takes " + allowed + ", not " + request.method + ".", ""},
         {{"Allow", allowed}});
}

Service::Service(std::unique_ptr<llm::ParallelLlm> llm, metrics::ServerMetrics& metrics, Shared& shared,
                 ServiceOptions options)
    : metrics_(metrics),
      shared_(shared),
      options_(std::move(options)),
      llm_(std::move(llm)),
      max_text_bytes_(text_bound(llm_->llm())) {}

bool Service::serves(const std::string& model) const {
  for (const auto* names : {&options_.served_names, &options_.aliases}) {
    if (std::find(names->begin(), names->end(), model) != names->end()) return true;
  }
  return false;
}

bool Service::names_a_model(const std::string& name) const {
  const std::vector<std::string>& names = shared_.model_names;
  return serves(name) || std::find(names.begin(), names.end(), name) != names.end();
}

std::optional<AdapterTable::Entry> Service::find_adapter(const std::string& name) const {
  auto found = shared_.adapters.find(name);
  if (found && found->model != options_.model_index) found.reset();
  return found;
}

ApiFailure Service::unknown_model(const std::string& model) const {
  std::string known;
  for (const std::string& name : options_.served_names) known += (known.empty() ? "" : ", ") + name;
  for (const AdapterTable::Entry& entry : shared_.adapters.list()) known += ", " + entry.named.name;
  return not_found_error(
      "The model `" + utf8::beginning(model, 200) + "` does not exist; this server has: " + known + ".", "model");
}

ApiStatus Service::check_model(const Body& body) const {
  const std::string model = body.string("model");
  if (model.empty() || serves(model) || find_adapter(model)) return Ok{};
  return unknown_model(model);
}

void Shared::run_on_worker(const ReplyPtr& reply, WorkerPool::Size size, WorkerPool::Job job) {
  const WorkerPool::JobId id = workers->reserve();
  reply->on_gone([this, id] { workers->cancel(id); });
  workers->post(id, std::move(job), size);
}

void Service::run(const Route& route, HttpRequest request, ReplyPtr reply) {
  if ((route.options.pools && !model().pools()) || (route.options.generates && !model().generates())) {
    return refuse(request, *reply,
                  {404, "Not Found",
                   std::string(route.path) + " is not for the model " + options_.served_names[0] +
                       (model().generates() ? ", which generates text; --runner pooling makes embeddings of it."
                                            : ", which makes embeddings or scores and generates no text."),
                   ""});
  }
  if (route.options.schema == nullptr) return route.endpoint(*this, request, reply);
  const auto size = is_quick(request.body) ? WorkerPool::Size::kSmall : WorkerPool::Size::kLarge;
  auto own = std::make_shared<HttpRequest>(std::move(request));
  shared_.run_on_worker(reply, size, [this, endpoint = route.endpoint, own, reply](const std::atomic<bool>& cancelled) {
    own->cancelled = &cancelled;
    endpoint(*this, *own, reply);
  });
}

}  // namespace quire::api
