// SPDX-License-Identifier: Apache-2.0
// Finds the endpoint and the model of a request, and runs the endpoint once the model is loaded.
#include "api/host.h"

#include <algorithm>
#include <cctype>

#include "api/documents.h"
#include "base/json.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

// Bodies up to this size are searched for `model` on the I/O thread.
constexpr size_t kQuickBody = size_t{64} << 10;

bool is_json(const HttpRequest& request) {
  const std::string* type = request.header("Content-Type");
  if (type == nullptr) return true;
  std::string media = type->substr(0, type->find(';'));
  std::transform(media.begin(), media.end(), media.begin(), [](unsigned char c) { return std::tolower(c); });
  while (!media.empty() && media.back() == ' ') media.pop_back();
  return media == "application/json";
}

// Whether a Content-Encoding leaves a body as it is.
bool is_identity(std::string_view encoding) {
  std::string name(encoding);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.empty() || name == "identity";
}

// The end of the JSON string that begins at `at`, behind its closing quote; npos if there is none.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

std::string unquoted(std::string_view token) {
  const auto value = json::parse(token);
  return value.ok() && value->is_string() ? value->as_string() : "";
}

// The string `model` of the outermost object, found without reading the rest into memory; "" if there is none, or if
// the text is not JSON. Of a repeated name the last value counts, as in json::parse.
std::string model_field(std::string_view text) {
  std::string model;
  int depth = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c != '"') {
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      ++at;
      continue;
    }
    const size_t end = end_of_string(text, at);
    if (end == std::string_view::npos) return "";
    const std::string_view token = text.substr(at, end - at);
    at = end;
    if (depth != 1) continue;
    const size_t colon = text.find_first_not_of(" \t\r\n", at);
    if (colon == std::string_view::npos || text[colon] != ':') continue;  // a value
    const bool may_be = token == "\"model\"" || token.find('\\') != std::string_view::npos;
    if (!may_be || unquoted(token) != "model") continue;
    const size_t value = text.find_first_not_of(" \t\r\n", colon + 1);
    if (value == std::string_view::npos) return "";
    const size_t value_end = text[value] == '"' ? end_of_string(text, value) : std::string_view::npos;
    model = value_end == std::string_view::npos ? "" : unquoted(text.substr(value, value_end - value));
  }
  return model;
}

// Keeps a model loaded for as long as somebody may write to the reply.
class LeasedReply final : public Reply {
 public:
  LeasedReply(ReplyPtr reply, ModelPool::Lease lease) : lease_(std::move(lease)), reply_(std::move(reply)) {}

  void send(int status, std::string_view content_type, std::string body, Headers extra) override {
    reply_->send(status, content_type, std::move(body), std::move(extra));
  }
  void begin(int status, std::string_view content_type, Headers extra) override {
    reply_->begin(status, content_type, std::move(extra));
  }
  bool write(std::string piece) override { return reply_->write(std::move(piece)); }
  void end() override { reply_->end(); }
  void on_gone(std::function<void()> callback) override { reply_->on_gone(std::move(callback)); }
  void on_stop(std::function<void()> callback) override { reply_->on_stop(std::move(callback)); }
  void note(std::string_view key, std::string_view value) override { reply_->note(key, value); }

 private:
  const ModelPool::Lease lease_;
  const ReplyPtr reply_;
};

std::vector<std::string> first_names(const std::vector<HostedModel>& models) {
  std::vector<std::string> names;
  for (const HostedModel& model : models) names.push_back(model.names[0]);
  return names;
}

PoolOptions always_loaded() {
  PoolOptions options;
  options.max_loaded = 1;
  options.keep_alive_s = -1;
  return options;
}

}  // namespace

Host::Host(std::unique_ptr<llm::ParallelLlm> llm, metrics::ServerMetrics& metrics, ServiceOptions options)
    : Host({{options.served_names, options.aliases, options.model_root, &metrics}}, options, always_loaded(), {}) {
  max_model_len_[0] = llm->llm().max_model_len();
  const int64_t memory = llm->llm().memory_plan().total_bytes();
  pool_->adopt(0, {std::make_unique<Service>(std::move(llm), metrics, shared_, std::move(options)), memory});
}

Host::Host(std::vector<HostedModel> models, ServiceOptions options, const PoolOptions& pool, HostLoader loader)
    : options_(std::move(options)),
      models_(std::move(models)),
      loader_(std::move(loader)),
      openapi_(openapi_json(options_.version)),
      docs_(docs_page(options_.version, models_[0].names[0])),
      max_model_len_(models_.size()),
      shared_(options_) {
  for (size_t i = 0; i < models_.size(); ++i) {
    for (const auto* names : {&models_[i].names, &models_[i].aliases}) {
      shared_.model_names.insert(shared_.model_names.end(), names->begin(), names->end());
    }
    for (const std::string& name : models_[i].names) by_name_.emplace(name, i);
    shared_.keys.add_series(*models_[i].metrics);
  }
  std::map<std::string, std::vector<size_t>> aliases;  // one that two models share means neither
  for (size_t i = 0; i < models_.size(); ++i) {
    for (const std::string& alias : models_[i].aliases) aliases[alias].push_back(i);
  }
  for (const auto& [alias, owners] : aliases) {
    if (std::count(owners.begin(), owners.end(), owners[0]) != static_cast<long>(owners.size())) continue;
    by_name_.emplace(alias, owners[0]);
  }
  pool_ = std::make_unique<ModelPool>(
      first_names(models_), pool,
      PoolLoader{loader_.least_memory, [this](size_t model, int64_t memory, const std::atomic<bool>& cancelled) {
                   return load(model, memory, cancelled);
                 }});
}

// The live view, which looks at models, ends first. Nothing may start any more; then the workers' jobs go, which hold
// leases; then the models.
Host::~Host() {
  live_.stop();
  pool_->stop();
  shared_.workers.reset();
  pool_.reset();
}

Result<PoolLoader::Loaded> Host::load(size_t model, int64_t memory_bytes, const std::atomic<bool>& cancelled) {
  QUIRE_ASSIGN(LoadedModel loaded, loader_.load(model, memory_bytes, cancelled));
  metrics::ServerMetrics& metrics = *models_[model].metrics;
  max_model_len_[model] = loaded.llm->llm().max_model_len();
  loaded.llm->note_loaded(loaded.cache_config);
  PoolLoader::Loaded out;
  out.memory_bytes = loaded.llm->llm().memory_plan().total_bytes();
  loaded.options.model_index = model;
  out.resident = std::make_unique<Service>(std::move(loaded.llm), metrics, shared_, std::move(loaded.options));
  return out;
}

void Host::each_loaded(const std::function<void(size_t model, Service& service)>& use) {
  for (size_t i = 0; i < models_.size(); ++i) {
    if (const auto lease = pool_->look(i)) use(i, static_cast<Service&>(lease->resident()));
  }
}

std::optional<int64_t> Host::max_model_len(size_t model) const {
  const int64_t length = max_model_len_[model];
  return length > 0 ? std::optional(length) : std::nullopt;
}

std::optional<size_t> Host::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  if (it != by_name_.end()) return it->second;
  const auto adapter = shared_.adapters.find(name);
  return adapter ? std::optional(adapter->model) : std::nullopt;
}

ApiFailure Host::unknown_model(const std::string& name) const {
  std::string known;
  for (const HostedModel& model : models_) {
    for (const std::string& one : model.names) known += (known.empty() ? "" : ", ") + one;
  }
  for (const AdapterTable::Entry& entry : shared_.adapters.list()) known += ", " + entry.named.name;
  return not_found_error(
      "The model `" + utf8::beginning(name, 200) + "` does not exist; this server has: " + known + ".", "model");
}

ApiResult<size_t> Host::model_of(const Route& route, const HttpRequest& request) const {
  const bool has_body = route.options.schema != nullptr;
  const std::string name = has_body ? model_field(request.body) : request.query_value("model");
  if (!name.empty()) {
    if (const auto found = find(name)) return *found;
    return unknown_model(name);
  }
  if (has_body) {  // what is wrong with the body may be something else
    const auto body = json::parse(request.body);
    const json::Value* model = body.ok() ? body->find("model") : nullptr;
    if (!body.ok() || !body->is_object() || (model != nullptr && !model->is_null() && !model->is_string())) {
      QUIRE_TRY(Body::parse(request.body, route.options.schema()));
    }
  }
  const std::string known = joined(first_names(models_));
  return bad_field("model", {"is missing: this server has several models; name one of ", known, "."});
}

void Host::handle(HttpRequest request, ReplyPtr reply) {
  const Route* route = find_route(request.method, request.path);
  if (route == nullptr) return refuse_route(request, *reply);
  if (route->options.schema != nullptr && !is_json(request)) {
    return refuse(request, *reply,
                  {400, "Bad Request",
                   "Unsupported Media Type: the body must come with the header Content-Type: application/json.", ""});
  }
  if (const std::string* encoding = request.header("Content-Encoding");
      encoding != nullptr && route->options.schema != nullptr && !is_identity(*encoding)) {
    return refuse(request, *reply,
                  {415, "Unsupported Media Type",
                   "The body comes with Content-Encoding: " + utf8::beginning(*encoding, 100) +
                       ", but this server does not decompress: send the JSON as it is, without that header.",
                   ""},
                  {{"Accept-Encoding", "identity"}});
  }
  if (route->host_endpoint != nullptr && !route->options.slow) return route->host_endpoint(*this, request, reply);
  if (route->host_endpoint == nullptr && !has_several()) return start(*route, 0, std::move(request), std::move(reply));
  if (route->host_endpoint == nullptr && request.body.size() <= kQuickBody) {
    return dispatch(*route, std::move(request), std::move(reply));
  }
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  shared_.run_on_worker(reply, WorkerPool::Size::kLarge, [this, route, shared, reply](const std::atomic<bool>&) {
    if (route->host_endpoint != nullptr) return route->host_endpoint(*this, *shared, reply);
    dispatch(*route, std::move(*shared), reply);
  });
}

void Host::dispatch(const Route& route, HttpRequest request, ReplyPtr reply) {
  ApiResult<size_t> model = model_of(route, request);
  if (!model.ok()) return refuse(request, *reply, model.error());
  start(route, *model, std::move(request), std::move(reply));
}

void Host::start(const Route& route, size_t model, HttpRequest request, ReplyPtr reply) {
  if (has_several()) reply->note("model", models_[model].names[0]);
  const ModelPool::Ticket ticket = pool_->reserve();
  reply->on_gone([this, ticket] { pool_->cancel(ticket); });
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  pool_->acquire(ticket, model, [&route, shared, reply = std::move(reply)](ApiResult<ModelPool::Lease> lease) {
    if (!lease.ok()) return refuse(*shared, *reply, lease.error(), lease.error().headers());
    auto& service = static_cast<Service&>(lease->resident());
    service.run(route, std::move(*shared), std::make_shared<LeasedReply>(reply, std::move(*lease)));
  });
}

}  // namespace quire::api
