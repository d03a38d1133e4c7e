// SPDX-License-Identifier: Apache-2.0
// From the fields of a checked request to sampling settings, lengths and chat prompts.
#include "api/request_fields.h"

#include <algorithm>
#include <charconv>

#include "api/json_writer.h"
#include "api/tools.h"
#include "base/utf8.h"
#include "sampling/param_table.h"

namespace quire::api {
namespace {

using sampling::LogitBias;
using sampling::ParamInfo;
using sampling::SamplingParams;
using sampling::Strings;
using sampling::TokenIds;

constexpr size_t kTailBytes = 4096;  // more than a turn's markers take

FieldType field_type(const ParamInfo& info) {
  return std::visit(
      []<typename T>(T SamplingParams::*member) {
        if constexpr (std::is_same_v<T, bool>) return FieldType::kBool;
        if constexpr (std::is_same_v<T, double>) return FieldType::kNumber;
        if constexpr (std::is_same_v<T, LogitBias>) return FieldType::kStringMap;
        if constexpr (std::is_same_v<T, TokenIds> || std::is_same_v<T, std::optional<TokenIds>>) {
          return FieldType::kInts;
        }
        // OpenAI's stop may be a single string.
        if constexpr (std::is_same_v<T, Strings>) {
          return member == &SamplingParams::stop ? FieldType::kStringOrStrings : FieldType::kStrings;
        }
        return FieldType::kInt;
      },
      info.member);
}

Field row_of(const ParamInfo& info) {
  return {info.name,
          field_type(info),
          info.doc,
          {.fallback = default_text(info),
           .min = info.rules.min,
           .max = info.rules.max,
           .above_min = info.rules.above_min,
           .no_empty_text = std::holds_alternative<Strings SamplingParams::*>(info.member),
           .no_empty_list = std::holds_alternative<std::optional<TokenIds> SamplingParams::*>(info.member)}};
}

ApiStatus read(const Body& body, const char* name, LogitBias& to) {
  std::vector<std::pair<int32_t, float>> entries;
  for (const auto& [key, value] : body.get(name)->as_object()) {
    int32_t token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0) {
      return bad_request({"logit_bias has the name '", utf8::beginning(key, 40), "', which is no token id."}, name);
    }
    entries.emplace_back(token, static_cast<float>(value.as_double()));
  }
  to = std::move(entries);
  return Ok{};
}

// REQUIRES: the request has the field.
template <typename T>
ApiStatus read(const Body& body, const char* name, T& to) {
  if constexpr (std::is_same_v<T, bool>) {
    to = body.boolean(name, false);
  } else if constexpr (std::is_same_v<T, double>) {
    to = *body.number(name);
  } else if constexpr (std::is_same_v<T, Strings>) {
    to = body.strings(name);
  } else if constexpr (std::is_same_v<T, TokenIds> || std::is_same_v<T, std::optional<TokenIds>>) {
    to = TokenIds(body.ints(name));
  } else {
    to = *body.integer(name);
  }
  return Ok{};
}

}  // namespace

std::vector<Field> sampling_param_fields() {
  std::vector<Field> fields;
  for (const ParamInfo& info : sampling::param_table()) {
    if (info.doc != nullptr) fields.push_back(row_of(info));
  }
  return fields;
}

ApiStatus read_params(const Body& body, SamplingParams& params) {
  for (const ParamInfo& info : sampling::param_table()) {
    if (info.doc == nullptr || !body.has(info.name)) continue;
    QUIRE_TRY(std::visit([&](auto member) { return read(body, info.name, params.*member); }, info.member));
  }
  if (params.seed == -1) params.seed.reset();
  return Ok{};
}

ApiResult<SamplingParams> read_sampling(const Body& body, const Service& service) {
  SamplingParams p = service.model().default_params();
  QUIRE_TRY(read_params(body, p));
  if (p.stop.size() > kMaxStops) {
    return bad_request({"stop has ", p.stop.size(), " texts; at most ", kMaxStops, " are taken."}, "stop");
  }
  if (p.prompt_logprobs && body.boolean("stream", false)) {
    return bad_request("prompt_logprobs are not given in a stream; leave out stream.", "prompt_logprobs");
  }
  return p;
}

ApiResult<std::optional<int64_t>> read_engine(const HttpRequest& request, const Service& service) {
  constexpr const char* kHeader = "X-data-parallel-rank";
  const std::string* text = request.header(kHeader);
  if (text == nullptr) return std::optional<int64_t>();
  int64_t rank = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), rank);
  const auto engines = static_cast<int64_t>(service.llm().num_engines());
  if (error == std::errc() && end == text->data() + text->size() && rank >= 0 && rank < engines) {
    return std::optional(rank);
  }
  return bad_request(
      {kHeader, " is '", utf8::beginning(*text, 100), "'; it must be the number of an engine, ",
       (engines > 1 ? "0 to " + std::to_string(engines - 1) : std::string("and this server has one: 0")), "."},
      kHeader);
}

ApiStatus read_adapter(const Body& body, const Service& service, GenerationOptions& o) {
  o.model = service.options().served_names[0];
  if (const auto adapter = service.find_adapter(body.string("model"))) {
    QUIRE_ASSIGN(o.adapter, service.model().adapters().get(adapter->named));
    o.model = adapter->named.name;
  }
  return Ok{};
}

ApiResult<GenerationOptions> read_options(const HttpRequest& request, const Body& body, const Service& service,
                                          const char* prefix) {
  GenerationOptions o;
  o.id_key = answer_key(request, body);
  o.id = prefix + o.id_key;
  o.caller = request.caller;
  if (const std::string* parent = request.header("traceparent")) o.trace.traceparent = *parent;
  if (const std::string* state = request.header("tracestate")) o.trace.tracestate = *state;
  QUIRE_ASSIGN(o.engine, read_engine(request, service));
  QUIRE_TRY(read_adapter(body, service, o));
  o.n = body.integer("n").value_or(1);
  o.stream = body.boolean("stream", false);
  o.stream_interval = body.integer("stream_interval").value_or(service.options().stream_interval);
  o.return_token_ids = body.boolean("return_token_ids", false);
  o.return_receipt = body.boolean("return_receipt", false);
  o.tokens_as_ids = body.boolean("return_tokens_as_token_ids", service.options().return_tokens_as_token_ids);
  if (const json::Value* stream = body.get("stream_options")) {
    if (!o.stream) return bad_request("stream_options need stream to be true.", "stream_options");
    for (const char* name : {"include_usage", "continuous_usage_stats"}) {
      const json::Value* value = stream->find(name);
      if (value != nullptr && !value->is_null() && !value->is_bool()) {
        return bad_request({"stream_options.", name, " must be true or false."}, "stream_options");
      }
    }
    const auto flag = [&](const char* name) {
      const json::Value* value = stream->find(name);
      return value != nullptr && value->is_bool() && value->as_bool();
    };
    o.include_usage = flag("include_usage");
    o.continuous_usage = o.include_usage && flag("continuous_usage_stats");
  }
  if (o.stream && service.options().enable_force_include_usage) o.include_usage = o.continuous_usage = true;
  return o;
}

void truncate_prompt(const Body& body, int64_t max_model_len, std::vector<int32_t>& ids) {
  const auto wanted = body.integer("truncate_prompt_tokens");
  if (!wanted) return;
  const size_t most = static_cast<size_t>(*wanted < 0 ? std::max<int64_t>(max_model_len - 1, 1) : *wanted);
  if (ids.size() <= most) return;
  if (body.string("truncation_side", "left") == "right") {
    ids.resize(most);
  } else {
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(most));
  }
}

ApiStatus fit_length(const Service& service, size_t prompt_tokens, std::optional<int64_t> wanted,
                     std::optional<int64_t> otherwise, sampling::SamplingParams& params) {
  const int64_t max_len = service.model().max_model_len();
  const int64_t prompt = static_cast<int64_t>(prompt_tokens);
  if (prompt >= max_len) {
    return bad_request({"The model's maximum context length is ", max_len, " tokens, but the prompt has ", prompt,
                        " and leaves no room for an answer; shorten it."},
                       "input_tokens");
  }
  if (wanted && *wanted > max_len) {
    return bad_request({"max_tokens is ", *wanted, ", but the model's maximum context length is ", max_len, " tokens."},
                       "max_tokens");
  }
  if (!wanted) wanted = params.max_tokens ? params.max_tokens : otherwise;
  params.max_tokens = std::min(wanted.value_or(max_len), max_len - prompt);
  if (params.min_tokens > *params.max_tokens) {
    return bad_request({"min_tokens is ", params.min_tokens, ", more than the ", *params.max_tokens,
                        " tokens that the answer may have."},
                       "min_tokens");
  }
  return Ok{};
}

ApiStatus read_scheduling(const HttpRequest& request, const Body& body, llm::GenerateRequest& out) {
  out.priority = body.integer("priority").value_or(0);
  if (const std::string* header = request.header("X-Vllm-Priority")) {
    const auto [end, error] = std::from_chars(header->data(), header->data() + header->size(), out.priority);
    if (error != std::errc() || end != header->data() + header->size()) {
      return bad_request("the X-Vllm-Priority header must be an integer.", "priority");
    }
  }
  if (body.has("cache_salt")) {
    out.cache_salt = body.string("cache_salt");
    const bool odd = out.cache_salt.find_first_of(std::string_view("@/\\\0", 4)) != std::string::npos;
    if (out.cache_salt.empty() || out.cache_salt.size() > 128 || odd) {
      return bad_request("cache_salt must have 1 to 128 characters, none of them @, / or \\.", "cache_salt");
    }
  }
  return Ok{};
}

ApiResult<ChatInput> read_chat(const Body& body) {
  ChatInput input;
  input.messages = body.take("messages");
  QUIRE_ASSIGN(input.earlier_calls, normalize_history(input.messages));
  input.documents = body.take("documents");
  input.kwargs = body.take("chat_template_kwargs");
  if (body.has("chat_template")) input.chat_template = body.string("chat_template");
  input.continue_final_message = body.boolean("continue_final_message", false);
  input.add_generation_prompt = body.boolean("add_generation_prompt", true);
  input.add_special_tokens = body.boolean("add_special_tokens", false);
  if (input.continue_final_message && input.add_generation_prompt) {
    return bad_request(
        "continue_final_message and add_generation_prompt cannot both be true; set "
        "add_generation_prompt to false.",
        "continue_final_message");
  }
  if (body.has("reasoning_effort")) set_effort(input.kwargs, body.string("reasoning_effort"));
  return input;
}

void set_effort(json::Value& kwargs, const std::string& effort) {
  if (!kwargs.is_object()) kwargs = json::Object{};
  if (kwargs.find("reasoning_effort") == nullptr) kwargs.set("reasoning_effort", effort);
  if (kwargs.find("enable_thinking") == nullptr) kwargs.set("enable_thinking", effort != "none");
}

ApiStatus check_text_length(const Service& service, size_t bytes) {
  const size_t most = service.max_text_bytes();
  if (bytes <= most) return Ok{};
  return bad_request({"The text has ", bytes, " bytes; the model's context of ", service.model().max_model_len(),
                      " tokens can hold ", most, " at most; shorten it."},
                     "input_text");
}

ApiResult<ChatTokens> chat_tokens(const Service& service, ChatInput input) {
  const ServiceOptions& options = service.options();
  if (input.messages.as_array().empty()) return bad_request("messages must not be empty.", "messages");
  size_t at = 0;
  for (const json::Value& message : input.messages.as_array()) {
    const json::Value* role = message.find("role");
    if (role == nullptr || !role->is_string()) {
      return bad_request({"messages[", at, "].role is missing or not a string."}, "messages");
    }
    ++at;
  }
  text::ChatRequest chat;
  chat.messages = std::move(input.messages);
  const markup::ToolFormat* format = options.markup.dialect.tools;
  const std::string_view parser = format == nullptr ? std::string_view() : markup::name(*format);
  complete_results(chat.messages, call_id_style(parser), parser == "functiongemma");
  if (input.tools.is_array() && !input.tools.as_array().empty()) chat.tools = std::move(input.tools);
  chat.documents = std::move(input.documents);
  chat.add_generation_prompt = input.add_generation_prompt;
  chat.continue_final_message = input.continue_final_message;
  chat.content_format = options.content_format;
  chat.cancelled = input.cancelled;
  chat.default_kwargs = options.default_chat_template_kwargs;
  chat.kwargs = std::move(input.kwargs);
  std::optional<text::ChatTemplate> own;
  if (input.chat_template) {
    if (!options.trust_request_chat_template) {
      return bad_request(
          "chat_template is not taken from requests unless the server runs with "
          "--trust-request-chat-template.",
          "chat_template");
    }
    auto parsed = text::ChatTemplate::parse(*input.chat_template);
    if (!parsed.ok()) return bad_request({"chat_template: ", parsed.error().message}, "chat_template");
    own = std::move(*parsed);
  }
  auto prompt = service.model().render_chat(std::move(chat), own ? &*own : nullptr);
  if (!prompt.ok()) {
    // Errors that a template raises are about the messages.
    return bad_request(prompt.error().message, "messages");
  }
  if (auto length = check_text_length(service, prompt->text.size()); !length.ok()) return length.failure();
  prompt->add_special_tokens = input.add_special_tokens;
  ChatTokens out;
  out.tail = prompt->text.substr(prompt->text.size() - std::min(prompt->text.size(), kTailBytes));
  auto ids = service.model().tokens_of(std::move(*prompt));
  if (!ids.ok()) return to_api_error(ids.error());
  out.ids = std::move(*ids);
  return out;
}

}  // namespace quire::api
