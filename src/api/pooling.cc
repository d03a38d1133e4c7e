// SPDX-License-Identifier: Apache-2.0
// Inputs and answers of pooling requests; /pooling and /classify.
#include "api/pooling.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "api/tools.h"
#include "base/half.h"

namespace quire::api {
namespace {

using json::Value;

constexpr const char* kInputPhrase =
    "must be a text, a list of texts, a list of token ids, a list of such lists, or a conversation.";

bool all(const Value& list, bool (*is)(const Value&)) {
  return list.is_array() && !list.as_array().empty() && std::all_of(list.as_array().begin(), list.as_array().end(), is);
}
bool is_id(const Value& v) {
  return v.is_int() && v.as_int() >= 0 && v.as_int() <= 0x7fffffff;
}
bool is_text(const Value& v) {
  return v.is_string();
}
bool is_message(const Value& v) {
  return v.is_object();
}
bool is_ids(const Value& v) {
  return all(v, is_id);
}
bool is_conversation(const Value& v) {
  return all(v, is_message);
}

// Reads the inputs one after another, whatever they are.
class InputReader {
 public:
  InputReader(const Service& service, const HttpRequest& request, const Body& body, const llm::Truncation& truncation)
      : service_(service), request_(request), body_(body), truncation_(truncation) {}

  ApiStatus add_text(const Value& text) {
    QUIRE_ASSIGN(auto ids,
                 text_tokens(service_, text.as_string(), body_.boolean("add_special_tokens", true), truncation_));
    return add(std::move(ids));
  }
  ApiStatus add_ids(const Value& list) {
    std::vector<int32_t> ids;
    for (const Value& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
    if (truncation_.most) llm::cut_tokens(ids, *truncation_.most, truncation_.keep_end);
    return add(std::move(ids));
  }
  ApiStatus add_conversation(Value messages) {
    ChatInput input;
    input.messages = std::move(messages);
    QUIRE_ASSIGN(input.earlier_calls, normalize_history(input.messages));
    input.kwargs = body_.take("chat_template_kwargs");
    if (body_.has("chat_template")) input.chat_template = body_.string("chat_template");
    input.add_generation_prompt = body_.boolean("add_generation_prompt", false);
    input.continue_final_message = body_.boolean("continue_final_message", false);
    input.add_special_tokens = body_.boolean("add_special_tokens", false);
    input.cancelled = request_.cancelled;
    QUIRE_ASSIGN(ChatTokens tokens, chat_tokens(service_, std::move(input)));
    if (truncation_.most) llm::cut_tokens(tokens.ids, *truncation_.most, truncation_.keep_end);
    return add(std::move(tokens.ids));
  }
  std::vector<llm::PoolPrompt> take() { return std::move(prompts_); }

 private:
  ApiStatus add(std::vector<int32_t> ids) {
    total_ += ids.size();
    if (prompts_.size() == kMaxInputs || total_ > kMaxInputTokens) {
      return bad_field("input", {"is too long: one request takes ", kMaxInputs, " inputs with ", kMaxInputTokens,
                                 " tokens; send several requests."});
    }
    prompts_.push_back({std::move(ids)});
    return Ok{};
  }

  const Service& service_;
  const HttpRequest& request_;
  const Body& body_;
  const llm::Truncation truncation_;
  std::vector<llm::PoolPrompt> prompts_;
  size_t total_ = 0;
};

// /classify: a label and probabilities for each input.
class Classifications final : public PoolingAnswer {
 public:
  using PoolingAnswer::PoolingAnswer;

 private:
  void finish() override {
    const std::vector<std::string>& names = service_.model().pooler().config().label_names;
    JsonWriter w;
    write_head(w, "list");
    w.key("data").open_array();
    for (size_t i = 0; i < size(); ++i) {
      const std::vector<float> probs = rows(i).at(0);
      const auto best = static_cast<size_t>(std::max_element(probs.begin(), probs.end()) - probs.begin());
      w.open_object().member_int("index", static_cast<int64_t>(i));
      w.key("label").value_or_null(best < names.size(), [&] { w.string(names[best]); });
      w.key("probs");
      write_floats(w, probs);
      w.member_int("num_classes", static_cast<int64_t>(probs.size())).close_object();
    }
    w.close_array().key("usage");
    write_pooling_usage(w);
    send_json(*reply_, w.close_object().take());
  }
};

// /pooling: whatever the task makes, as nested lists or base64.
class Pooled final : public PoolingAnswer {
 public:
  Pooled(Service& service, ReplyPtr reply, GenerationOptions options, llm::PoolTask task,
         const llm::PoolSettings& settings, VectorFormat format)
      : PoolingAnswer(service, std::move(reply), std::move(options), task, settings), format_(std::move(format)) {}

 private:
  void finish() override {
    const bool per_token = service_.model().pools_to_rows(task_);
    JsonWriter w;
    write_head(w, "list");
    w.key("data").open_array();
    for (size_t i = 0; i < size(); ++i) {
      w.open_object().member_int("index", static_cast<int64_t>(i)).member("object", "pooling").key("data");
      const std::vector<std::vector<float>> found = rows(i);
      if (format_.kind == VectorFormat::Kind::kBase64) {
        std::string bytes;
        for (const std::vector<float>& row : found) bytes += format_.bytes(row);
        w.string(base64(bytes));
      } else if (per_token) {
        w.open_array();
        for (const std::vector<float>& row : found) write_floats(w, row);
        w.close_array();
      } else {
        write_floats(w, found.at(0));
      }
      w.close_object();
    }
    w.close_array().key("usage");
    write_pooling_usage(w);
    send_json(*reply_, w.close_object().take());
  }

  const VectorFormat format_;
};

ApiStatus start_classify(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, classify_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_TRY(service.model().check_task(llm::PoolTask::kClassify));
  QUIRE_ASSIGN(GenerationOptions options, read_pooling_options(request, body, service, "classify-"));
  QUIRE_ASSIGN(const auto settings, read_pool_settings(service.model(), body));
  QUIRE_ASSIGN(std::vector<llm::PoolPrompt> prompts, read_inputs(service, request, body));
  return std::make_shared<Classifications>(service, reply, std::move(options), llm::PoolTask::kClassify, settings)
      ->begin(request, body, std::move(prompts), input_place(body));
}

ApiStatus start_pooling(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, pooling_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(const llm::PoolTask task, read_task(service.model(), body));
  QUIRE_ASSIGN(GenerationOptions options, read_pooling_options(request, body, service, "pool-"));
  QUIRE_ASSIGN(const auto settings, read_pool_settings(service.model(), body));
  QUIRE_ASSIGN(VectorFormat format, read_vector_format(body));
  if (format.kind != VectorFormat::Kind::kFloat && format.kind != VectorFormat::Kind::kBase64) {
    return bad_field("encoding_format", "must be float or base64 here; /v1/embeddings also has bytes.");
  }
  QUIRE_ASSIGN(std::vector<llm::PoolPrompt> prompts, read_inputs(service, request, body));
  return std::make_shared<Pooled>(service, reply, std::move(options), task, settings, std::move(format))
      ->begin(request, body, std::move(prompts), input_place(body));
}

void append_value(std::string& out, const void* value, size_t size, bool swap) {
  char bytes[4];
  std::memcpy(bytes, value, size);
  if (swap) std::reverse(bytes, bytes + size);
  out.append(bytes, size);
}

}  // namespace

ApiResult<llm::Truncation> read_truncation(const Body& body, const llm::Llm& model) {
  llm::Truncation out;
  out.keep_end = body.string("truncation_side", "right") == "left";
  const auto wanted = body.integer("truncate_prompt_tokens");
  if (!wanted) return out;
  const int64_t longest = model.max_model_len();
  if (*wanted > longest) {
    return bad_field("truncate_prompt_tokens",
                     {"must be at most ", longest, ", the number of tokens that the model takes."});
  }
  if (*wanted == 0) return bad_field("truncate_prompt_tokens", "must be at least 1, or -1 for the model's length.");
  out.most = *wanted < 0 ? longest : *wanted;
  return out;
}

ApiResult<std::vector<int32_t>> text_tokens(const Service& service, const std::string& text, bool special,
                                            const llm::Truncation& truncation) {
  // A text that will be cut is tokenised only as far as its end may matter.
  std::string_view used = text;
  if (truncation.most && used.size() > service.max_text_bytes()) {
    const size_t most = service.max_text_bytes();
    used = truncation.keep_end ? used.substr(used.size() - most) : used.substr(0, most);
  }
  QUIRE_TRY(check_text_length(service, used.size()));
  QUIRE_ASSIGN(std::vector<int32_t> ids, service.model().text_tokens(used, special, truncation));
  return ids;
}

ApiResult<std::vector<llm::PoolPrompt>> read_inputs(const Service& service, const HttpRequest& request,
                                                    const Body& body) {
  QUIRE_ASSIGN(const llm::Truncation truncation, read_truncation(body, service.model()));
  InputReader reader(service, request, body, truncation);
  const bool chat = body.has("messages");
  if (chat == body.has("input")) return bad_request("give either input or messages.", "input");
  if (chat) {
    QUIRE_TRY(reader.add_conversation(body.take("messages")));
    return reader.take();
  }
  const Value& input = *body.get("input");
  const PromptPlace place = input_place(body);
  if (is_text(input)) {
    QUIRE_TRY(reader.add_text(input));
  } else if (is_ids(input)) {
    QUIRE_TRY(reader.add_ids(input));
  } else if (is_conversation(input)) {
    QUIRE_TRY(reader.add_conversation(input));
  } else if (input.is_array() && input.as_array().empty()) {
    return bad_field("input", "must not be empty.");
  } else if (all(input, is_text) || all(input, is_ids) || all(input, is_conversation)) {
    for (size_t i = 0; i < input.as_array().size(); ++i) {
      if (request.cancelled != nullptr && *request.cancelled) break;  // nobody waits for the answer
      const Value& one = input.as_array()[i];
      ApiStatus added = is_text(one)  ? reader.add_text(one)
                        : is_ids(one) ? reader.add_ids(one)
                                      : reader.add_conversation(one);
      if (!added.ok()) return at_place(added.error(), place(i));
    }
  } else {
    return bad_field("input", kInputPhrase);
  }
  return reader.take();
}

PromptPlace input_place(const Body& body) {
  const Value* input = body.get("input");
  const bool several = input != nullptr && !is_text(*input) && !is_ids(*input) && !is_conversation(*input);
  return [field = std::string(input != nullptr ? "input" : "messages"), several](size_t i) {
    return several ? field + "[" + std::to_string(i) + "]" : field;
  };
}

ApiStatus PoolingAnswer::begin(const HttpRequest& request, const Body& body, std::vector<llm::PoolPrompt> prompts,
                               const PromptPlace& place) {
  llm::GenerateRequest common;
  QUIRE_TRY(read_scheduling(request, body, common));
  std::vector<engine::Request> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    auto ready = service_.model().prepare_pooling(std::move(prompts[i]), task_, common.priority, common.cache_salt);
    if (!ready.ok()) return at_place(to_api_error(ready.error()).get(), place(i));
    requests.push_back(std::move(*ready));
  }
  return start(std::move(requests));
}

std::vector<std::vector<float>> PoolingAnswer::rows(size_t prompt) const {
  return service_.model().finish_pooling(task_, choices_.at(prompt).pooled, prompts_[prompt].ids, settings_);
}

void PoolingAnswer::write_pooling_usage(JsonWriter& w) const {
  const int64_t tokens = prompt_tokens();
  w.open_object().member_int("prompt_tokens", tokens).member_int("total_tokens", tokens);
  w.member_int("completion_tokens", 0);
  w.key("prompt_tokens_details").value_or_null(service_.options().enable_prompt_tokens_details, [&] {
    w.open_object().member_int("cached_tokens", cached_tokens()).close_object();
  });
  w.close_object();
}

void PoolingAnswer::write_head(JsonWriter& w, const char* object) const {
  w.open_object().member("id", options_.id).member("object", object).member_int("created", created_);
  w.member("model", options_.model);
}

ApiResult<GenerationOptions> read_pooling_options(const HttpRequest& request, const Body& body, const Service& service,
                                                  const char* prefix) {
  GenerationOptions options;
  QUIRE_ASSIGN(options.engine, read_engine(request, service));
  QUIRE_TRY(read_adapter(body, service, options));
  options.id_key = answer_key(request, body);
  options.id = prefix + options.id_key;
  options.caller = request.caller;
  options.pools = true;
  return options;
}

ApiResult<llm::PoolTask> read_task(const llm::Llm& model, const Body& body) {
  const std::string word = body.string("task");
  if (word.empty() && model.pools()) return model.tasks().front();
  const std::optional<llm::PoolTask> task = llm::find_task(word.empty() ? "embed" : word);
  if (!task) return bad_field("task", "must be embed, classify, token_embed, token_classify or embed&token_classify.");
  const Status has = model.check_task(*task);
  if (!has.ok()) return bad_field("task", {"is ", std::string(llm::name(*task)), ": ", has.error().message, "."});
  return *task;
}

ApiResult<llm::PoolSettings> read_pool_settings(const llm::Llm& model, const Body& body) {
  llm::PoolSettings settings;
  if (body.has("use_activation")) settings.activate = body.boolean("use_activation", true);
  settings.dimensions = body.integer("dimensions");
  if (settings.dimensions) QUIRE_TRY(model.pooler().check_dimensions(*settings.dimensions));
  return settings;
}

std::string VectorFormat::bytes(std::span<const float> values) const {
  const bool little = std::endian::native == std::endian::little;
  const bool swap = endianness == (little ? "big" : "little");
  std::string out;
  out.reserve(values.size() * sizeof(float));
  for (const float value : values) {
    if (dtype == "float32") {
      append_value(out, &value, sizeof value, swap);
    } else if (dtype == "float16" || dtype == "bfloat16") {
      const uint16_t half = dtype == "float16" ? float_to_fp16(value) : float_to_bf16(value);
      append_value(out, &half, sizeof half, swap);
    } else {
      const uint8_t byte = dtype == "fp8_e4m3" ? float_to_fp8_e4m3(value) : float_to_fp8_e5m2(value);
      append_value(out, &byte, sizeof byte, false);
    }
  }
  return out;
}

ApiResult<VectorFormat> read_vector_format(const Body& body) {
  VectorFormat out;
  const std::string kind = body.string("encoding_format", "float");
  if (kind == "base64") out.kind = VectorFormat::Kind::kBase64;
  if (kind == "bytes") out.kind = VectorFormat::Kind::kBytes;
  if (kind == "bytes_only") out.kind = VectorFormat::Kind::kBytesOnly;
  out.dtype = body.string("embed_dtype", "float32");
  out.endianness = body.string("endianness", "native");
  return out;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += i + j <= bytes.size() ? kLetters[bits >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

void write_floats(JsonWriter& w, std::span<const float> values) {
  w.open_array();
  for (const float value : values) w.number32(value);
  w.close_array();
}

void write_vector(JsonWriter& w, std::span<const float> values, const VectorFormat& format) {
  if (format.kind == VectorFormat::Kind::kFloat) return write_floats(w, values);
  w.string(base64(format.bytes(values)));
}

void serve_classify(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_classify(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

void serve_pooling(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_pooling(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

}  // namespace quire::api
