// SPDX-License-Identifier: Apache-2.0
// The table of a request's fields, put together from those of the HTTP API, and their reader.
#include "capi/request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "api/constraint_fields.h"
#include "api/pooling.h"
#include "api/request_fields.h"
#include "base/suggest.h"
#include "base/utf8.h"
#include "sampling/param_table.h"

namespace quire::capi {
namespace {

using api::ApiResult;
using api::Body;
using api::Field;

void add_rows(std::vector<Field>& to, const api::Schema& from, std::initializer_list<std::string_view> names) {
  for (const Field& field : from.fields) {
    if (std::ranges::find(names, std::string_view(field.name)) == names.end()) continue;
    to.push_back(field);
    to.back().rules.required = false;
  }
}

const api::Schema& schema() {
  static const api::Schema all = [] {
    api::Schema out{"Request", "A request of the C API.", api::sampling_param_fields()};
    const std::vector<Field> constraints = api::constraint_fields();
    out.fields.insert(out.fields.end(), constraints.begin(), constraints.end());
    add_rows(out.fields, api::completion_schema(),
             {"max_tokens", "logprobs", "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "priority",
              "cache_salt"});
    add_rows(out.fields, api::chat_schema(),
             {"messages", "tools", "documents", "chat_template", "chat_template_kwargs", "add_generation_prompt",
              "continue_final_message", "reasoning_effort"});
    out.fields.push_back({"prompt", api::FieldType::kString, "The text to continue."});
    out.fields.push_back({"lora_path", api::FieldType::kString, "The LoRA adapter to use: a folder or a GGUF file."});
    out.fields.push_back({"lora_name", api::FieldType::kString, "Another name means that it is read again."});
    out.fields.push_back({"prompt_token_ids", api::FieldType::kInts, "The same as token ids."});
    return out;
  }();
  return all;
}

// The fields of a request with a task.
const api::Schema& pool_schema() {
  static const api::Schema all = [] {
    api::Schema out{"PoolRequest", "A request of the C API for vectors or scores.", {}};
    add_rows(out.fields, api::pooling_schema(),
             {"task", "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "use_activation", "dimensions",
              "priority", "cache_salt"});
    add_rows(out.fields, api::score_schema(), {"max_tokens_per_query", "max_tokens_per_doc", "instruction"});
    add_rows(out.fields, schema(), {"prompt", "prompt_token_ids", "lora_path", "lora_name"});
    out.fields.push_back(
        {"text_pair", api::FieldType::kString, "A second text, which the model reads with the first."});
    return out;
  }();
  return all;
}

ApiResult<Body> read_body(std::string_view text) {
  const auto raw = json::parse(text);
  if (!raw.ok()) return api::bad_request("the request is " + raw.error().message);
  if (!raw->is_object()) return api::bad_request("the request must be a JSON object.");
  const json::Value* task = raw->find("task");
  const api::Schema& schema = task != nullptr && !task->is_null() ? pool_schema() : capi::schema();
  std::vector<std::string> known;
  for (const Field& field : schema.fields) known.emplace_back(field.name);
  for (const auto& [name, value] : raw->as_object()) {
    if (std::ranges::find(known, name) != known.end() || (name == "task" && value.is_null())) continue;
    return api::bad_field(utf8::beginning(name, 60), "is no field of a request" + did_you_mean(name, known) + ".");
  }
  return Body::parse(text, schema);
}

ApiResult<llm::Prompt> chat_prompt(const llm::Llm& llm, const Body& body) {
  QUIRE_ASSIGN(api::ChatInput input, api::read_chat(body));
  text::ChatRequest chat;
  chat.messages = std::move(input.messages);
  chat.tools = body.take("tools");
  chat.documents = std::move(input.documents);
  chat.kwargs = std::move(input.kwargs);
  chat.add_generation_prompt = input.add_generation_prompt;
  chat.continue_final_message = input.continue_final_message;
  std::optional<text::ChatTemplate> own;
  if (input.chat_template) {
    QUIRE_ASSIGN(own, text::ChatTemplate::parse(*input.chat_template));
  }
  QUIRE_ASSIGN(llm::TextPrompt rendered, llm.render_chat(std::move(chat), own ? &*own : nullptr));
  rendered.add_special_tokens = input.add_special_tokens;
  return llm::Prompt(std::move(rendered));
}

ApiResult<std::vector<int32_t>> prompt_tokens(const llm::Llm& llm, const Body& body) {
  const bool chat = body.has("messages");
  const int given = int{body.has("prompt")} + int{body.has("prompt_token_ids")} + int{chat};
  if (given != 1) return api::bad_request("a request needs one of prompt, prompt_token_ids and messages.", "prompt");
  llm::Prompt prompt;
  if (chat) {
    QUIRE_ASSIGN(prompt, chat_prompt(llm, body));
  } else if (body.has("prompt")) {
    prompt = llm::TextPrompt{body.string("prompt"), body.boolean("add_special_tokens", true)};
  } else {
    prompt = body.ints("prompt_token_ids");
  }
  QUIRE_ASSIGN(std::vector<int32_t> tokens, llm.tokens_of(prompt));
  return tokens;
}

ApiResult<sampling::SamplingParams> params_of(const llm::Llm& llm, const Body& body) {
  sampling::SamplingParams params = llm.default_params();
  QUIRE_TRY(api::read_params(body, params));
  if (body.has("logprobs")) params.logprobs = body.integer("logprobs");
  if (body.has("max_tokens")) {
    params.max_tokens = body.integer("max_tokens");
  } else if (body.json().find("max_tokens") != nullptr) {
    params.max_tokens = llm.max_model_len();  // null: as many as fit
  } else if (!params.max_tokens) {
    params.max_tokens = body.has("messages") ? llm.max_model_len() : sampling::kDefaultMaxTokens;
  }
  return params;
}

ApiResult<model::AdapterPtr> read_adapter(const llm::Llm& llm, const Body& body) {
  if (!body.has("lora_path")) {
    if (body.has("lora_name")) return api::bad_field("lora_name", "needs the adapter's lora_path.");
    return model::AdapterPtr();
  }
  QUIRE_ASSIGN(model::AdapterPtr adapter, llm.adapters().get(body.string("lora_path"), body.string("lora_name")));
  return adapter;
}

ApiResult<llm::PoolPrompt> pool_prompt(const llm::Llm& llm, const Body& body, std::span<const int32_t> tokens) {
  QUIRE_ASSIGN(const llm::Truncation truncation, api::read_truncation(body, llm));
  const bool is_text = tokens.empty() && body.has("prompt");
  if (body.has("text_pair")) {
    if (!is_text) return api::bad_field("text_pair", "needs a first text as prompt.");
    const llm::PairLimits limits{.first = body.integer("max_tokens_per_query").value_or(0),
                                 .second = body.integer("max_tokens_per_doc").value_or(0),
                                 .total = truncation.most.value_or(0)};
    QUIRE_ASSIGN(llm::PoolPrompt pair,
                 llm.pair_tokens(body.string("prompt"), body.string("text_pair"), limits, body.string("instruction")));
    return pair;
  }
  llm::PoolPrompt out;
  if (is_text && truncation.most) {
    QUIRE_ASSIGN(out.tokens,
                 llm.text_tokens(body.string("prompt"), body.boolean("add_special_tokens", true), truncation));
    return out;
  }
  out.tokens.assign(tokens.begin(), tokens.end());
  if (tokens.empty()) {
    QUIRE_ASSIGN(out.tokens, prompt_tokens(llm, body));
  }
  if (truncation.most) llm::cut_tokens(out.tokens, *truncation.most, truncation.keep_end);
  return out;
}

ApiResult<ReadRequest> prepare_pooling(const llm::Llm& llm, const Body& body, std::span<const int32_t> tokens) {
  PoolUse use;
  QUIRE_ASSIGN(use.task, api::read_task(llm, body));
  QUIRE_ASSIGN(use.settings, api::read_pool_settings(llm, body));
  QUIRE_ASSIGN(llm::PoolPrompt prompt, pool_prompt(llm, body, tokens));
  QUIRE_ASSIGN(model::AdapterPtr adapter, read_adapter(llm, body));
  QUIRE_ASSIGN(engine::Request ready,
               llm.prepare_pooling(std::move(prompt), use.task, body.integer("priority").value_or(0),
                                   body.string("cache_salt"), std::move(adapter)));
  return ReadRequest{std::move(ready), use};
}

ApiResult<ReadRequest> prepare(const llm::Llm& llm, const Body& body, std::span<const int32_t> tokens) {
  if (body.has("task")) return prepare_pooling(llm, body, tokens);
  if (!llm.generates()) {
    return api::bad_request("this model makes embeddings or scores, not text; give a task, such as embed.", "task");
  }
  llm::GenerateRequest request;
  std::vector<int32_t> prompt(tokens.begin(), tokens.end());
  if (tokens.empty()) {
    QUIRE_ASSIGN(prompt, prompt_tokens(llm, body));
  }
  api::truncate_prompt(body, llm.max_model_len(), prompt);
  request.prompt = std::move(prompt);
  QUIRE_ASSIGN(request.params, params_of(llm, body));
  QUIRE_ASSIGN(request.constraint, api::read_constraint(body));
  request.priority = body.integer("priority").value_or(0);
  request.cache_salt = body.string("cache_salt");
  QUIRE_ASSIGN(request.adapter, read_adapter(llm, body));
  QUIRE_ASSIGN(engine::Request ready, llm.prepare(std::move(request)));
  return ReadRequest{std::move(ready)};
}

// The API's errors are those of a request, unless something ran out.
Failure from_api(const api::ApiError& error) {
  const ErrorCode code = error.status < 500 ? ErrorCode::kInvalidArgument : ErrorCode::kExhausted;
  return Error{code, error.message, error.param};
}

template <typename T>
Result<T> from_api(ApiResult<T> result) {
  if (!result.ok()) return from_api(result.error());
  return std::move(result).value();
}

}  // namespace

Result<ReadRequest> read_request(const llm::Llm& llm, std::string_view text, std::span<const int32_t> tokens) {
  auto body = read_body(text);
  if (!body.ok()) return from_api(body.error());
  return from_api(prepare(llm, *body, tokens));
}

Result<std::vector<int32_t>> read_prompt(const llm::Llm& llm, std::string_view text) {
  auto body = read_body(text);
  if (!body.ok()) return from_api(body.error());
  return from_api(prompt_tokens(llm, *body));
}

json::Value pooling_json(const llm::Llm& llm) {
  json::Value out{json::Object{}};
  json::Array tasks;
  for (const llm::PoolTask task : llm.tasks()) tasks.emplace_back(llm::name(task));
  constexpr const char* kScores[] = {"cross", "cosine", "late"};
  const auto score = llm.score_kind();
  out.set("tasks", std::move(tasks));
  out.set("score", score.ok() ? json::Value(kScores[static_cast<size_t>(*score)]) : json::Value());
  out.set("embedding_size", llm.pools() ? json::Value(llm.pooler().usual_dimensions()) : json::Value());
  json::Array labels;
  if (llm.pools()) {
    for (const std::string& label : llm.pooler().config().label_names) labels.emplace_back(label);
  }
  out.set("labels", std::move(labels));
  return out;
}

json::Value default_params_json(const llm::Llm& llm) {
  const sampling::SamplingParams& params = llm.default_params();
  json::Value out{json::Object{}};
  for (const sampling::ParamInfo& info : sampling::param_table()) {
    if (const auto* real = std::get_if<double sampling::SamplingParams::*>(&info.member)) {
      out.set(info.name, params.**real);
    } else if (const auto* integer = std::get_if<int64_t sampling::SamplingParams::*>(&info.member)) {
      out.set(info.name, params.**integer);
    }
  }
  out.set("max_tokens", params.max_tokens ? json::Value(*params.max_tokens) : json::Value());
  return out;
}

}  // namespace quire::capi
