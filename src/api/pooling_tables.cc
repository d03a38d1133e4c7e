// SPDX-License-Identifier: Apache-2.0
// The tables of the fields of embeddings, scores and the other pooling requests.
#include <utility>

#include "api/schema.h"

namespace quire::api {
namespace {

using enum FieldType;

constexpr const char* kInputShape =
    R"("anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}},{"type":"array","items":{"type":"integer"}},)"
    R"({"type":"array","items":{"type":"array","items":{"type":"integer"}}},{"type":"array","items":{"type":"object"}}])";

Field field(const char* name, FieldType type, const char* doc, FieldRules rules = {}) {
  return {name, type, doc, std::move(rules)};
}

// What all of them have.
std::vector<Field> common_fields() {
  return {
      field("model", kString, "A served name; an unknown one is a 404.", {.fallback = "the served model"}),
      field("user", kString, "Ignored."),
      field("truncate_prompt_tokens", kInt,
            "Cut longer inputs to so many tokens, special tokens included; -1: to what the model takes.",
            {.fallback = "longer inputs are refused", .min = -1}),
      field("truncation_side", kString, "Which end is cut.", {.fallback = "right", .choices = {"left", "right"}}),
      field("use_activation", kBool, "Whether embeddings are normalised, or scores go through sigmoid or softmax.",
            {.fallback = "as the model's files say"}),
      field("normalize", kAny, "", {.refused = "is not a field any more; use use_activation."}),
      field("priority", kInt, "Lower runs earlier, with --scheduling-policy priority.",
            {.fallback = "0", .min = -9007199254740991.0, .max = 9007199254740991.0}),
      field("cache_salt", kString, "Separates this request's prefix cache from that of others.",
            {.no_empty_text = true}),
      field("request_id", kString, "Becomes a part of the answer's id.",
            {.fallback = "the X-Request-Id header, else drawn"}),
      field("padding", kAny, "Ignored: nothing is padded."),
      field("mm_processor_kwargs", kObject, "",
            {.refused = "is for images and audio, which this server does not take yet."}),
  };
}

// Inputs of one kind: texts, ids or conversations.
std::vector<Field> input_fields() {
  return {
      field("input", kAny, "A text, a list of texts, token ids, lists of token ids, or conversations.",
            {.shape = kInputShape}),
      field("messages", kObjects, "A conversation instead of input, put through the chat template.",
            {.no_empty_list = true}),
      field("add_special_tokens", kBool, "Let the tokenizer add its special tokens to texts.", {.fallback = "true"}),
      field("add_generation_prompt", kBool, "End a conversation with the beginning of the assistant's turn.",
            {.fallback = "false"}),
      field("continue_final_message", kBool, "Leave the last message of a conversation open.", {.fallback = "false"}),
      field("chat_template", kString, "A Jinja template; only with --trust-request-chat-template.",
            {.fallback = "the model's"}),
      field("chat_template_kwargs", kObject, "Further variables of the template."),
  };
}

std::vector<Field> format_fields() {
  return {
      field("encoding_format", kString,
            "float: numbers; base64: the bytes of the values; bytes: the body is the bytes, and the header metadata "
            "says where each vector is; bytes_only: without that header.",
            {.fallback = "float", .choices = {"float", "base64", "bytes", "bytes_only"}}),
      field("embed_dtype", kString, "The type of the values in bytes.",
            {.fallback = "float32", .choices = {"float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"}}),
      field("endianness", kString, "The order of their bytes.",
            {.fallback = "native", .choices = {"native", "big", "little"}}),
      field("dimensions", kInt, "Cut embeddings to so many numbers, for models that were made for it (matryoshka).",
            {.min = 1}),
  };
}

std::vector<Field> pair_fields() {
  return {
      field("max_tokens_per_query", kInt, "Cut queries to so many tokens; 0: not.", {.fallback = "0", .min = 0}),
      field("max_tokens_per_doc", kInt, "Cut documents to so many tokens; 0: not.", {.fallback = "0", .min = 0}),
      field("instruction", kString, "What the documents are judged by, for models that take it (Qwen3-Reranker)."),
      field("chat_template_kwargs", kObject, "Ignored."),
  };
}

std::vector<Field> together(std::initializer_list<std::vector<Field>> lists) {
  std::vector<Field> out;
  for (const std::vector<Field>& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

}  // namespace

const Schema& embeddings_schema() {
  static const Schema schema{"EmbeddingRequest", "Texts whose embeddings are wanted.",
                             together({input_fields(), format_fields(), common_fields()})};
  return schema;
}

const Schema& classify_schema() {
  static const Schema schema{"ClassifyRequest", "Texts whose classes are wanted.",
                             together({input_fields(), common_fields()})};
  return schema;
}

const Schema& pooling_schema() {
  static const Schema schema{
      "PoolingRequest", "Texts for any task of a model that pools.",
      together(
          {{field("task", kString,
                  "embed, classify, token_embed (a vector per token), token_classify or embed&token_classify (BGE-M3).",
                  {.fallback = "what the model is for"})},
           input_fields(),
           format_fields(),
           common_fields()})};
  return schema;
}

const Schema& score_schema() {
  static const Schema schema{
      "ScoreRequest", "Queries and documents: one query for all documents, or one for each.",
      together(
          {{field("queries", kAny, "A text or a list of texts."),
            field("documents", kAny, "A text or a list of texts."), field("items", kAny, "Another name of documents."),
            field("data_1", kAny, "Another name of queries."), field("data_2", kAny, "Another name of documents."),
            field("text_1", kAny, "Another name of queries."), field("text_2", kAny, "Another name of documents.")},
           pair_fields(),
           common_fields()})};
  return schema;
}

const Schema& rerank_schema() {
  static const Schema schema{
      "RerankRequest", "A query and documents, which are sorted by how well they answer it.",
      together({{field("query", kAny, "The query.", {.required = true}),
                 field("documents", kAny, "The documents: texts, or objects with a text.", {.required = true}),
                 field("top_n", kInt, "How many documents come back; 0: all.", {.fallback = "0", .min = 0}),
                 field("return_documents", kBool, "Ignored: results always have their document.")},
                pair_fields(),
                common_fields()})};
  return schema;
}

const Schema& cohere_embed_schema() {
  static const Schema schema{
      "CohereEmbedRequest",
      "Texts whose embeddings are wanted, in Cohere's form.",
      {
          field("model", kString, "A served name; an unknown one is a 404.", {.fallback = "the served model"}),
          field("texts", kStrings, "The texts.", {.no_empty_list = true}),
          field("inputs", kObjects, "Instead of texts: objects with content, a list of text parts.",
                {.no_empty_list = true}),
          field("images", kAny, "Refused."),
          field("input_type", kString,
                "search_query, search_document, ...: the prompt that the model's files have for it goes before each "
                "text."),
          field("embedding_types", kStrings, "float, base64, binary or ubinary (bits).",
                {.fallback = "float", .no_empty_list = true}),
          field("output_dimension", kInt, "As dimensions of /v1/embeddings.", {.min = 1}),
          field("max_tokens", kInt, "Cut longer texts to so many tokens.",
                {.fallback = "the model's length", .min = 1}),
          field("truncate", kString, "Which end of a longer text is cut; NONE refuses it.",
                {.fallback = "END", .choices = {"NONE", "START", "END"}}),
          field("priority", kInt, "Lower runs earlier, with --scheduling-policy priority.",
                {.fallback = "0", .min = -9007199254740991.0, .max = 9007199254740991.0}),
      }};
  return schema;
}

}  // namespace quire::api
