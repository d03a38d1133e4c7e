// SPDX-License-Identifier: Apache-2.0
// /v1/models, /v1/models/{name}, /ps and /tokenizer_info: what is served.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "api/host.h"
#include "api/json_writer.h"

namespace quire::api {
namespace {

// "2026-11-16T09:30:00Z"
std::string iso_time(int64_t unix_seconds) {
  const std::time_t time = unix_seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);  // numbers only, so the locale does not matter
  return text;
}

// Without the folders that it is in, which are nobody's business.
std::string own_name(const std::filesystem::path& path) {
  return (path.filename().empty() ? path.parent_path() : path).filename().string();
}

// The description of a model, with the fields of OpenAI's clients and of Anthropic's.
void write_model(JsonWriter& w, const Host& host, size_t model, const std::string& name,
                 const AdapterTable::Entry* adapter = nullptr) {
  const ServiceOptions& options = host.options();
  const int64_t length = adapter == nullptr ? host.max_model_len(model).value_or(0) : 0;  // 0: not known
  const int64_t created = adapter == nullptr ? options.created : adapter->created;
  const auto member_length = [&](const char* key) { w.key(key).value_or_null(length > 0, [&] { w.integer(length); }); };
  w.open_object().member("id", name).member("object", "model").member_int("created", created);
  w.member("owned_by", "quire");
  w.member("root", adapter == nullptr ? host.models()[model].root : own_name(adapter->named.path));
  w.key("parent").value_or_null(adapter != nullptr, [&] { w.string(host.models()[model].names[0]); });
  member_length("max_model_len");
  w.key("permission").open_array().open_object();
  w.member("id", "modelperm-" + name).member("object", "model_permission").member_int("created", created);
  w.member_bool("allow_create_engine", false).member_bool("allow_sampling", true).member_bool("allow_logprobs", true);
  w.member_bool("allow_search_indices", false).member_bool("allow_view", true).member_bool("allow_fine_tuning", false);
  w.member("organization", "*").member_null("group").member_bool("is_blocking", false);
  w.close_object().close_array();
  w.member("type", "model").member("display_name", name).member("created_at", iso_time(created));
  w.member("lifecycle", "active");
  member_length("max_input_tokens");
  member_length("max_tokens");
  w.close_object();
}

// What each rank has done, if several compute the model.
void write_ranks(JsonWriter& w, const llm::Llm& llm) {
  std::vector<metrics::RankTotals> ranks;
  for (size_t e = 0; e < llm.num_engines(); ++e)
    std::ranges::copy(llm.engine(e).model().rank_totals(), std::back_inserter(ranks));
  if (ranks.empty()) return;
  w.key("ranks").open_array();
  for (const metrics::RankTotals& rank : ranks) {
    w.open_object().member_int("steps", rank.steps);
    w.key("compute_s").number(static_cast<double>(rank.compute_nanoseconds) * 1e-9);
    w.key("wait_s").number(static_cast<double>(rank.wait_nanoseconds) * 1e-9);
    w.member_int("sent_bytes", rank.sent_bytes).member_int("pages", rank.pages);
    w.member_int("resident_bytes", rank.resident_bytes).close_object();
  }
  w.close_array();
}

// The pages and sequences of a loaded model, for /ps.
void write_engine(JsonWriter& w, Service& service) {
  const engine::EngineStats stats = service.llm().stats();
  const auto engines = static_cast<int64_t>(service.llm().num_engines());
  const int64_t pages = engines * (service.model().engine().options().num_blocks - 1);  // without the null pages
  w.member_int("running", stats.running).member_int("queued", stats.waiting);
  w.member_int("pages", pages);
  w.member_int("pages_used", static_cast<int64_t>(std::llround(stats.kv_usage * static_cast<double>(pages))));
  write_ranks(w, service.model());
}

}  // namespace

void serve_models(Host& host, const HttpRequest&, const ReplyPtr& reply) {
  const auto& models = host.models();
  JsonWriter w;
  w.open_object().member("object", "list").key("data").open_array();
  for (size_t i = 0; i < models.size(); ++i) {
    for (const std::string& name : models[i].names) write_model(w, host, i, name);
  }
  std::string last = models.back().names.back();
  for (const AdapterTable::Entry& adapter : host.shared().adapters.list()) {
    write_model(w, host, adapter.model, adapter.named.name, &adapter);
    last = adapter.named.name;
  }
  w.close_array().member_bool("has_more", false).member("first_id", models.front().names.front());
  w.member("last_id", last).close_object();
  send_json(*reply, w.take());
}

void serve_model(Host& host, const HttpRequest& request, const ReplyPtr& reply) {
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  const std::optional<size_t> model = host.find(name);
  if (!model) return refuse(request, *reply, host.unknown_model(name));
  const auto& names = host.models()[*model].names;
  JsonWriter w;
  if (const auto adapter = host.shared().adapters.find(name)) {
    write_model(w, host, *model, name, &*adapter);
    return send_json(*reply, w.take());
  }
  write_model(w, host, *model, std::find(names.begin(), names.end(), name) != names.end() ? name : names[0]);
  send_json(*reply, w.take());
}

void serve_ps(Host& host, const HttpRequest&, const ReplyPtr& reply) {
  JsonWriter w;
  w.open_object().key("models").open_array();
  for (size_t i = 0; i < host.models().size(); ++i) {
    const ModelPool::Info info = host.pool().info(i);
    const bool idle = info.state == ModelState::kReady && info.leases == 0;
    const char* state = info.draining ? "draining" : idle ? "idle" : name(info.state);
    w.open_object().member("name", host.models()[i].names[0]).member("state", state);
    w.member_int("requests", static_cast<int64_t>(info.leases));
    w.member_int("waiting", static_cast<int64_t>(info.waiting)).member_int("memory_bytes", info.memory_bytes);
    if (idle) w.key("idle_s").number(info.idle_s);
    if (!info.error.empty()) w.member("error", info.error);
    if (const auto lease = host.pool().look(i)) write_engine(w, static_cast<Service&>(lease->resident()));
    w.close_object();
  }
  const PoolOptions& pool = host.pool().options();
  w.close_array().member_int("max_loaded_models", static_cast<int64_t>(pool.max_loaded));
  w.key("memory_bytes").value_or_null(pool.memory_bytes > 0, [&] { w.integer(pool.memory_bytes); });
  send_json(*reply, w.close_object().take());
}

void serve_tokenizer_info(Service& service, const HttpRequest&, const ReplyPtr& reply) {
  const llm::Llm& model = service.model();
  const auto& tokenizer = model.tokenizer();
  if (tokenizer == nullptr) return send_error(*reply, not_found_error("this model has no tokenizer."));
  if (!service.options().enable_tokenizer_info_endpoint) {
    return send_error(*reply, not_found_error("/tokenizer_info is off; start the server with "
                                              "--enable-tokenizer-info-endpoint."));
  }
  const text::SpecialIds& special = tokenizer->special_ids();
  JsonWriter w;
  w.open_object().member("tokenizer_class", tokenizer->model_type());
  w.member_int("vocab_size", tokenizer->vocab_size()).member_int("model_max_length", model.max_model_len());
  const std::pair<const char*, std::optional<int32_t>> roles[] = {
      {"bos_token", special.bos}, {"eos_token", special.eos}, {"pad_token", special.pad}, {"unk_token", special.unk}};
  for (const auto& [name, id] : roles) {
    w.key(name).value_or_null(id.has_value(), [&, token = id] { w.string(tokenizer->piece(*token).value_or("")); });
  }
  w.member_bool("add_bos_token", tokenizer->adds_bos()).member_bool("add_eos_token", tokenizer->adds_eos());
  const text::ChatTemplate* chat = model.chat_template();
  w.key("chat_template").value_or_null(chat != nullptr, [&] { w.string(chat->source()); });
  send_json(*reply, w.close_object().take());
}

}  // namespace quire::api
