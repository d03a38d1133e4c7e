// SPDX-License-Identifier: Apache-2.0
// /v1/models, /v1/models/{name} and /tokenizer_info: what is served.
#include <algorithm>
#include <ctime>

#include "api/json_writer.h"
#include "api/service.h"

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

// The description of a model, with the fields of OpenAI's clients and of Anthropic's.
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

}  // namespace

void serve_models(Service& service, const HttpRequest&, const ReplyPtr& reply) {
  const auto& names = service.options().served_names;
  JsonWriter w;
  w.open_object().member("object", "list").key("data").open_array();
  for (const std::string& name : names) write_model(w, service, name);
  w.close_array().member_bool("has_more", false).member("first_id", names.front());
  w.member("last_id", names.back()).close_object();
  send_json(*reply, w.take());
}

void serve_model(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  if (!service.serves(name)) return refuse(request, *reply, service.unknown_model(name));
  const auto& names = service.options().served_names;
  JsonWriter w;
  write_model(w, service, std::find(names.begin(), names.end(), name) != names.end() ? name : names[0]);
  send_json(*reply, w.take());
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
