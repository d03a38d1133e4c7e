// SPDX-License-Identifier: Apache-2.0
// /v1/embeddings (OpenAI's) and /v2/embed (Cohere's).
#include <algorithm>

#include "api/pooling.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

class Embeddings final : public PoolingAnswer {
 public:
  Embeddings(Service& service, ReplyPtr reply, GenerationOptions options, const llm::PoolSettings& settings,
             VectorFormat format)
      : PoolingAnswer(service, std::move(reply), std::move(options), llm::PoolTask::kEmbed, settings),
        format_(std::move(format)) {}

 private:
  void finish() override {
    const bool raw = format_.kind == VectorFormat::Kind::kBytes || format_.kind == VectorFormat::Kind::kBytesOnly;
    raw ? finish_bytes() : finish_json();
  }

  void finish_json() {
    JsonWriter w;
    write_head(w, "list");
    w.key("data").open_array();
    for (size_t i = 0; i < size(); ++i) {
      w.open_object().member_int("index", static_cast<int64_t>(i)).member("object", "embedding").key("embedding");
      write_vector(w, rows(i).at(0), format_);
      w.close_object();
    }
    w.close_array().key("usage");
    write_pooling_usage(w);
    send_json(*reply_, w.close_object().take());
  }

  // All vectors one after the other; a header says where each of them is.
  void finish_bytes() {
    std::string body;
    JsonWriter w;
    w.open_object().member("id", options_.id).member_int("created", created_);
    w.member("model", options_.model).key("data").open_array();
    for (size_t i = 0; i < size(); ++i) {
      const std::vector<float> vector = rows(i).at(0);
      w.open_object().member_int("index", static_cast<int64_t>(i)).member("embed_dtype", format_.dtype);
      w.member("endianness", format_.endianness).member_int("start", static_cast<int64_t>(body.size()));
      body += format_.bytes(vector);
      w.member_int("end", static_cast<int64_t>(body.size())).key("shape").open_array();
      w.integer(static_cast<int64_t>(vector.size())).close_array().close_object();
    }
    w.close_array().key("usage");
    write_pooling_usage(w);
    w.close_object();
    Headers headers;
    if (format_.kind == VectorFormat::Kind::kBytes) headers.emplace_back("metadata", w.take());
    reply_->send(200, "application/octet-stream", std::move(body), std::move(headers));
  }

  const VectorFormat format_;
};

// Cohere's answer has every type that was asked for.
class CohereEmbeddings final : public PoolingAnswer {
 public:
  CohereEmbeddings(Service& service, ReplyPtr reply, GenerationOptions options, const llm::PoolSettings& settings,
                   std::vector<std::string> types, std::vector<std::string> texts)
      : PoolingAnswer(service, std::move(reply), std::move(options), llm::PoolTask::kEmbed, settings),
        types_(std::move(types)),
        texts_(std::move(texts)) {}

 private:
  void finish() override {
    std::vector<std::vector<float>> vectors;
    for (size_t i = 0; i < size(); ++i) vectors.push_back(rows(i).at(0));
    JsonWriter w;
    w.open_object().member("id", options_.id).key("embeddings").open_object();
    for (const std::string& type : types_) {
      w.key(type).open_array();
      for (const std::vector<float>& vector : vectors) write_as(w, vector, type);
      w.close_array();
    }
    w.close_object().key("texts").open_array();
    for (const std::string& text : texts_) w.string(text);
    w.close_array().key("meta").open_object();
    w.key("api_version").open_object().member("version", "2").close_object();
    w.key("billed_units").open_object().member_int("input_tokens", prompt_tokens()).close_object();
    w.close_object().member("response_type", "embeddings_by_type");
    send_json(*reply_, w.close_object().take());
  }

  // Bits, the first one highest: whether each number is at least 0.
  static void write_as(JsonWriter& w, const std::vector<float>& vector, const std::string& type) {
    if (type == "float") return write_floats(w, vector);
    if (type == "base64") {
      w.string(base64(VectorFormat{}.bytes(vector)));
      return;
    }
    w.open_array();
    for (size_t i = 0; i < vector.size(); i += 8) {
      int byte = 0;
      for (size_t bit = 0; bit < 8; ++bit) byte = byte << 1 | (vector[i + bit] >= 0 ? 1 : 0);
      w.integer(type == "ubinary" ? byte : byte - 128);
    }
    w.close_array();
  }

  const std::vector<std::string> types_, texts_;
};

ApiStatus start_embeddings(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, embeddings_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_TRY(service.model().check_task(llm::PoolTask::kEmbed));
  QUIRE_ASSIGN(GenerationOptions options, read_pooling_options(request, body, service, "embd-"));
  QUIRE_ASSIGN(const auto settings, read_pool_settings(service.model(), body));
  QUIRE_ASSIGN(VectorFormat format, read_vector_format(body));
  QUIRE_ASSIGN(std::vector<llm::PoolPrompt> prompts, read_inputs(service, request, body));
  return std::make_shared<Embeddings>(service, reply, std::move(options), settings, std::move(format))
      ->begin(request, body, std::move(prompts), input_place(body));
}

// The prompt that the model's files have for an input type, which goes before each text.
std::string prompt_of(const Service& service, const std::string& input_type) {
  std::vector<std::string> names = {input_type};
  if (input_type == "search_query") names = {"search_query", "query"};
  if (input_type == "search_document") names = {"search_document", "document", "passage"};
  for (const std::string& name : names) {
    for (const auto& [known, text] : service.model().pooler().config().prompts) {
      if (known == name) return text;
    }
  }
  return "";
}

ApiResult<std::vector<std::string>> read_texts(const Body& body) {
  if (body.has("images")) return bad_field("images", "are not supported; send texts.");
  if (body.has("texts") == body.has("inputs")) return bad_request("give either texts or inputs.", "texts");
  if (body.has("texts")) return body.strings("texts");
  std::vector<std::string> out;
  for (const json::Value& input : body.get("inputs")->as_array()) {
    std::string text;
    const json::Value* content = input.find("content");
    if (content == nullptr || !content->is_array()) return bad_field("inputs", "must have lists named content.");
    for (const json::Value& part : content->as_array()) {
      const json::Value* words = part.find("text");
      if (words == nullptr || !words->is_string()) return bad_field("inputs", "must have parts of the type text only.");
      text += words->as_string();
    }
    out.push_back(std::move(text));
  }
  return out;
}

ApiStatus start_cohere(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, cohere_embed_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_TRY(service.model().check_task(llm::PoolTask::kEmbed));
  QUIRE_ASSIGN(GenerationOptions options, read_pooling_options(request, body, service, "embd-"));
  llm::PoolSettings settings;
  settings.dimensions = body.integer("output_dimension");
  if (settings.dimensions) {
    const auto fits = service.model().pooler().check_dimensions(*settings.dimensions);
    if (!fits.ok()) return bad_request({"output_dimension: ", fits.error().message}, "output_dimension");
  }
  std::vector<std::string> types =
      body.has("embedding_types") ? body.strings("embedding_types") : std::vector<std::string>{"float"};
  const int64_t size = settings.dimensions.value_or(service.model().pooler().usual_dimensions());
  for (const std::string& type : types) {
    if (type != "float" && type != "base64" && type != "binary" && type != "ubinary") {
      return bad_field("embedding_types",
                       {"must hold float, base64, binary or ubinary, not ", utf8::beginning(type, 40), "."});
    }
    if ((type == "binary" || type == "ubinary") && size % 8 != 0) {
      return bad_field("embedding_types",
                       {"cannot be ", type, ": the embeddings have ", size, " numbers, which is no multiple of 8."});
    }
  }
  llm::Truncation truncation;
  const std::string side = body.string("truncate", "END");
  const int64_t longest = service.model().max_model_len();
  if (side != "NONE") truncation.most = std::min(body.integer("max_tokens").value_or(longest), longest);
  truncation.keep_end = side == "START";
  QUIRE_ASSIGN(std::vector<std::string> texts, read_texts(body));
  if (texts.empty()) return bad_field("texts", "must not be empty.");
  if (texts.size() > kMaxInputs) {
    return bad_field("texts", {"has more than ", kMaxInputs, " texts; send several requests."});
  }
  const std::string prompt = prompt_of(service, body.string("input_type"));
  if (const auto& config = service.model().pooler().config(); !prompt.empty() && config.without_prompt) {
    return bad_field("input_type",
                     "has a prompt whose tokens this model's pooling leaves out (include_prompt is false), "
                     "which quire does not do; send the texts without it.");
  }
  const auto place = [field = std::string(body.has("texts") ? "texts" : "inputs")](size_t i) {
    return field + "[" + std::to_string(i) + "]";
  };
  std::vector<llm::PoolPrompt> prompts;
  for (size_t i = 0; i < texts.size(); ++i) {
    auto ids = text_tokens(service, prompt + texts[i], true, truncation);
    if (!ids.ok()) return at_place(ids.error(), place(i));
    if (side == "NONE" && std::ssize(*ids) > longest) {
      return bad_field(place(i), {"has ", ids->size(), " tokens, but the model takes at most ", longest,
                                  "; shorten it, or let truncate be END or START."});
    }
    prompts.push_back({std::move(*ids)});
  }
  return std::make_shared<CohereEmbeddings>(service, reply, std::move(options), settings, std::move(types),
                                            std::move(texts))
      ->begin(request, body, std::move(prompts), place);
}

}  // namespace

void serve_embeddings(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_embeddings(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

void serve_cohere_embed(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_cohere(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

}  // namespace quire::api
