// SPDX-License-Identifier: Apache-2.0
// The tables: every field of every request, and every route.
#include <algorithm>

#include "api/request_fields.h"

namespace quire::api {
namespace {

using T = FieldType;

constexpr const char* kNoGrammar = "asks for constrained output, which this server does not do yet; leave it out.";
constexpr const char* kEfforts = "none|minimal|low|medium|high|xhigh|max";
constexpr const char* kNoTransfer = "is for KV transfer between servers, which this server does not do; leave it out.";

// Rows whose texts, or whose list, must not be empty.
Field with_text(Field row) {
  row.no_empty_text = true;
  return row;
}
Field with_items(Field row) {
  row.no_empty_list = true;
  return row;
}
Field with_shape(Field row, const char* shape) {
  row.shape = shape;
  return row;
}

// What completions and chat share.
std::vector<Field> sampling_fields() {
  std::vector<Field> fields = {
      {"model", T::kString, "the served model", "A served name; an unknown one is a 404."},
      {"truncate_prompt_tokens", T::kInt, "", "Keep the last N tokens of the prompt; -1: as many as fit.", -1},
      {"truncation_side", T::kString, "left", "Which end of the prompt truncate_prompt_tokens cuts.", -kNoBound,
       kNoBound, false, false, "left|right"},
      {"stream", T::kBool, "false", "Send the answer as server-sent events while it is made."},
      {"stream_options", T::kObject, "", "{include_usage, continuous_usage_stats}; only with stream."},
      {"stream_interval", T::kInt, "--stream-interval", "Tokens in one event; the first and the last come at once.", 1},
      {"priority", T::kInt, "0", "Lower runs earlier, with --scheduling-policy priority.", -9007199254740991.0,
       9007199254740991.0},
      with_text({"cache_salt", T::kString, "", "Separates this request's prefix cache from that of others."}),
      {"request_id", T::kString, "the X-Request-Id header, else drawn", "Becomes a part of the answer's id."},
      {"return_token_ids", T::kBool, "false", "Adds prompt_token_ids and each choice's token_ids."},
      {"return_tokens_as_token_ids", T::kBool, "--return-tokens-as-token-ids",
       "Logprobs name tokens as token_id:N instead of by their text."},
      {"user", T::kString, "", "Ignored."},
      {"use_beam_search", T::kBool, "false", "", -kNoBound, kNoBound, false, false, nullptr,
       "is not supported: this server samples; leave it out, or use n."},
      {"best_of", T::kInt, "1", "Only 1.", 0, 1},
      with_shape({"response_format", T::kObject, "{\"type\": \"text\"}", "Only the type text for now."},
                 R"("required":["type"],"properties":{"type":{"enum":["text"]}})"),
      {"structured_outputs", T::kObject, "", "", -kNoBound, kNoBound, false, false, nullptr, kNoGrammar},
      {"logprob_token_ids", T::kInts, "", "", -kNoBound, kNoBound, false, false, nullptr,
       "is not supported; use logprobs."},
      {"repetition_detection", T::kObject, "", "", -kNoBound, kNoBound, false, false, nullptr,
       "is not supported; leave it out."},
      {"kv_transfer_params", T::kObject, "", "", -kNoBound, kNoBound, false, false, nullptr, kNoTransfer},
      {"ec_transfer_params", T::kObject, "", "", -kNoBound, kNoBound, false, false, nullptr, kNoTransfer},
      {"watermarking", T::kAny, "", "", -kNoBound, kNoBound, false, false, nullptr, "is not supported; leave it out."},
      {"guided_json", T::kAny, "", "Removed; without effect but for a warning in the log."},
      {"guided_regex", T::kAny, "", "Removed; without effect."},
      {"guided_choice", T::kAny, "", "Removed; without effect."},
      {"guided_grammar", T::kAny, "", "Removed; without effect."},
  };
  const std::vector<Field> params = sampling_param_fields();
  fields.insert(fields.begin() + 1, params.begin(), params.end());
  return fields;
}

// What every form of chat takes for its template.
std::vector<Field> template_fields() {
  return {
      {"add_generation_prompt", T::kBool, "true", "End the prompt with the beginning of the assistant's turn."},
      {"continue_final_message", T::kBool, "false",
       "The model goes on with the last message; needs "
       "add_generation_prompt false."},
      {"add_special_tokens", T::kBool, "false", "Let the tokenizer add its own special tokens to the template's text."},
      {"chat_template", T::kString, "the model's", "A Jinja template; only with --trust-request-chat-template."},
      {"chat_template_kwargs", T::kObject, "", "Further variables of the template."},
      {"documents", T::kObjects, "", "Documents for templates that take them."},
      {"tools", T::kObjects, "", "Only with tool_choice none: shown to the template."},
  };
}

std::vector<Field> joined(std::vector<Field> a, const std::vector<Field>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Those of the rows that have these names.
std::vector<Field> picked(std::vector<Field> rows, std::initializer_list<std::string_view> names) {
  std::erase_if(rows, [&](const Field& row) { return std::find(names.begin(), names.end(), row.name) == names.end(); });
  return rows;
}

}  // namespace

const Schema& completion_schema() {
  static const std::string default_max_tokens = std::to_string(sampling::kDefaultMaxTokens);
  static const Schema schema{
      "CompletionRequest", "A text to be continued.",
      joined(
          {
              with_items(
                  {"prompt", T::kPrompt, "", "Text or token ids, one or several.", -kNoBound, kNoBound, false, true}),
              {"max_tokens", T::kInt, default_max_tokens.c_str(), "Longest answer in tokens; 0 only with echo.", 0},
              {"logprobs", T::kInt, "", "Log probabilities of the N likeliest tokens; at most --max-logprobs.", -1},
              {"echo", T::kBool, "false", "Give the prompt back in front of the answer."},
              {"add_special_tokens", T::kBool, "true", "Let the tokenizer add its special tokens (BOS)."},
              {"suffix", T::kString, "", "", -kNoBound, kNoBound, false, false, nullptr,
               "is not supported: this server's models do not fill in the middle; leave it out."},
              {"prompt_embeds", T::kAny, "", "", -kNoBound, kNoBound, false, false, nullptr,
               "is not supported; send text or token ids in prompt."},
          },
          sampling_fields())};
  return schema;
}

const Schema& chat_schema() {
  static const Schema schema{
      "ChatCompletionRequest", "A conversation to be answered.",
      joined(
          joined(
              {
                  with_items({"messages", T::kObjects, "",
                              "The conversation: role, and content as a string or text parts.", -kNoBound, kNoBound,
                              false, true}),
                  {"max_completion_tokens", T::kInt, "what fits", "Longest answer in tokens; wins over max_tokens.", 1},
                  {"max_tokens", T::kInt, "what fits", "The same, older.", 1},
                  {"logprobs", T::kBool, "false", "Give each token's log probability."},
                  {"top_logprobs", T::kInt, "0", "The N likeliest tokens too; needs logprobs.", -1},
                  {"echo", T::kBool, "false",
                   "Give back the last message in front of the answer, if its role is the "
                   "assistant's."},
                  {"tool_choice", T::kAny, "none", "Only none for now."},
                  {"parallel_tool_calls", T::kBool, "true", "Without effect until tools are supported."},
                  {"reasoning_effort", T::kString, "", "Handed to the template.", -kNoBound, kNoBound, false, false,
                   kEfforts},
                  {"include_reasoning", T::kBool, "true", "Without effect until reasoning parsers exist."},
                  {"thinking_token_budget", T::kInt, "-1", "", -kNoBound, -1},
                  {"media_io_kwargs", T::kObject, "", "", -kNoBound, kNoBound, false, false, nullptr,
                   "is for images and audio, which this server does not take yet."},
                  {"mm_processor_kwargs", T::kObject, "", "", -kNoBound, kNoBound, false, false, nullptr,
                   "is for images and audio, which this server does not take yet."},
              },
              template_fields()),
          sampling_fields())};
  return schema;
}

const Schema& responses_schema() {
  static const Schema schema{
      "ResponsesRequest",
      "OpenAI's Responses API: text in, text out. Answers are not kept. A stream ends with response.completed, or with "
      "response.incomplete when max_output_tokens cut it, or response.failed; there is no [DONE].",
      joined(
          {
              with_items({"input", T::kStringOrParts, "", "A text, or a list of messages with text.", -kNoBound,
                          kNoBound, false, true}),
              {"instructions", T::kString, "", "A system message in front of the input."},
              {"max_output_tokens", T::kInt, "what fits", "Longest answer in tokens.", 1},
              {"top_logprobs", T::kInt, "0",
               "The N likeliest tokens at each place; needs message.output_text.logprobs in include.", 0, 20},
              {"include", T::kStrings, "",
               "message.output_text.logprobs gives each token's log probability; others are ignored."},
              {"metadata", T::kObject, "", "Names and texts, given back."},
              {"user", T::kString, "", "Given back."},
              {"parallel_tool_calls", T::kBool, "true", "Given back."},
              {"service_tier", T::kString, "auto", "Given back.", -kNoBound, kNoBound, false, false,
               "auto|default|flex|scale|priority"},
              {"truncation", T::kString, "disabled",
               "auto drops the oldest messages of an input that is too long; disabled refuses it.", -kNoBound, kNoBound,
               false, false, "auto|disabled"},
              {"text", T::kObject, "{\"format\": {\"type\": \"text\"}}", "Only the format text for now."},
              {"tool_choice", T::kAny, "auto", "There are no tools to be called.", -kNoBound, kNoBound, false, false,
               "auto|none"},
              {"tools", T::kObjects, "", "", -kNoBound, kNoBound, false, false, nullptr,
               "cannot be called by this server yet; leave them out."},
              {"reasoning", T::kObject, "", "effort is handed to the template."},
              {"store", T::kBool, "false", "Answers are not kept: the answer says store false."},
              {"background", T::kBool, "false", "", -kNoBound, kNoBound, false, false, nullptr,
               "is not supported: answers are not kept; leave it out and stream instead."},
              {"previous_response_id", T::kString, "", "", -kNoBound, kNoBound, false, false, nullptr,
               "is not supported: answers are not kept; send the whole conversation in input."},
              {"conversation", T::kAny, "", "", -kNoBound, kNoBound, false, false, nullptr,
               "is not supported: conversations are not kept; send the whole conversation in input."},
              {"prompt", T::kObject, "", "", -kNoBound, kNoBound, false, false, nullptr,
               "is not supported: prompts are not kept; send their text in input or instructions."},
              {"chat_template_kwargs", T::kObject, "", "Further variables of the template."},
          },
          picked(sampling_fields(), {"model",
                                     "temperature",
                                     "top_p",
                                     "top_k",
                                     "min_p",
                                     "repetition_penalty",
                                     "presence_penalty",
                                     "frequency_penalty",
                                     "logit_bias",
                                     "seed",
                                     "stop",
                                     "stop_token_ids",
                                     "include_stop_str_in_output",
                                     "ignore_eos",
                                     "skip_special_tokens",
                                     "stream",
                                     "priority",
                                     "cache_salt",
                                     "request_id",
                                     "structured_outputs",
                                     "kv_transfer_params",
                                     "ec_transfer_params"}))};
  return schema;
}

const Schema& messages_schema() {
  static const Schema schema{
      "MessagesRequest",
      "Anthropic's Messages API: text in, text out; its errors have Anthropic's shape. usage.input_tokens leaves out "
      "what came from the prefix cache (cache_read_input_tokens), as Anthropic and vLLM count.",
      joined(
          {
              with_items(
                  {"messages", T::kObjects, "",
                   "Turns of user and assistant; content is a string or text blocks. A last turn of the assistant is "
                   "continued.",
                   -kNoBound, kNoBound, false, true}),
              {"max_tokens", T::kInt, "", "Longest answer in tokens.", 1, kNoBound, false, true},
              {"system", T::kStringOrParts, "", "The system prompt: a string or text blocks."},
              with_text({"stop_sequences", T::kStrings, "", "Up to four texts that end the answer."}),
              {"metadata", T::kObject, "", "Ignored."},
              {"thinking", T::kObject, "", "{type: disabled}; enabled is refused for now."},
              {"output_config", T::kObject, "", "effort is handed to the template; format is refused for now."},
              {"tools", T::kObjects, "", "", -kNoBound, kNoBound, false, false, nullptr,
               "cannot be called by this server yet; leave them out."},
              {"tool_choice", T::kObject, "", "{type: auto} or {type: none}: there are no tools to be called."},
              {"chat_template_kwargs", T::kObject, "", "Further variables of the template."},
          },
          picked(sampling_fields(), {"model", "temperature", "top_p", "top_k", "seed", "stream", "priority",
                                     "cache_salt", "request_id", "kv_transfer_params", "ec_transfer_params"}))};
  return schema;
}

const Schema& count_tokens_schema() {
  static const Schema schema{
      "CountTokensRequest",
      "Anthropic's token count: the messages as /v1/messages would see them.",
      {
          {"model", T::kString, "the served model", "A served name; an unknown one is a 404."},
          with_items({"messages", T::kObjects, "", "Turns of user and assistant.", -kNoBound, kNoBound, false, true}),
          {"system", T::kStringOrParts, "", "The system prompt."},
          {"thinking", T::kObject, "", "{type: disabled}; enabled is refused for now."},
          {"output_config", T::kObject, "", "effort is handed to the template; format is refused for now."},
          {"tools", T::kObjects, "", "", -kNoBound, kNoBound, false, false, nullptr,
           "cannot be called by this server yet; leave them out."},
          {"tool_choice", T::kObject, "", "{type: auto} or {type: none}: there are no tools to be called."},
          {"chat_template_kwargs", T::kObject, "", "Further variables of the template."},
      }};
  return schema;
}

const Schema& tokenize_schema() {
  static const Schema schema{
      "TokenizeRequest", "A prompt, or messages, whose token ids are wanted.",
      joined(
          {
              {"model", T::kString, "the served model", "A served name; an unknown one is a 404."},
              {"prompt", T::kString, "", "The text; or give messages."},
              with_items({"messages", T::kObjects, "", "A conversation, put through the chat template."}),
              {"return_token_strs", T::kBool, "false", "Adds token_strs: each token as the vocabulary spells it."},
              {"reasoning_effort", T::kString, "", "Handed to the template.", -kNoBound, kNoBound, false, false,
               kEfforts},
          },
          template_fields())};
  return schema;
}

const Schema& detokenize_schema() {
  static const Schema schema{"DetokenizeRequest",
                             "Token ids whose text is wanted.",
                             {
                                 {"model", T::kString, "the served model", "A served name; an unknown one is a 404."},
                                 {"tokens", T::kInts, "", "The token ids.", -kNoBound, kNoBound, false, true},
                             }};
  return schema;
}

const std::vector<RouteDoc>& route_docs() {
  static const std::vector<RouteDoc> routes = {
      {"POST", "/v1/chat/completions", "Answers a conversation.", &chat_schema()},
      {"POST", "/v1/completions", "Continues a text.", &completion_schema()},
      {"POST", "/v1/responses", "Answers a conversation, in OpenAI's newer form.", &responses_schema()},
      {"GET", "/v1/responses/{id}", "Always a 404: answers are not kept."},
      {"POST", "/v1/responses/{id}/cancel", "Always a 404: answers are not kept; close the connection instead."},
      {"POST", "/v1/messages", "Answers a conversation, in Anthropic's form.", &messages_schema()},
      {"POST", "/v1/messages/count_tokens", "Counts a conversation's tokens.", &count_tokens_schema()},
      {"GET", "/v1/models", "The served names, for OpenAI's and Anthropic's clients."},
      {"GET", "/v1/models/{name}", "One of them; its name may have slashes."},
      {"POST", "/tokenize", "Token ids of a text or a conversation.", &tokenize_schema()},
      {"POST", "/detokenize", "Text of token ids.", &detokenize_schema()},
      {"GET", "/tokenizer_info", "The tokenizer's settings; only with --enable-tokenizer-info-endpoint."},
      {"GET", "/health", "200 while the server works; 503 and a sentence when workers or the engine make no progress.",
       nullptr, "text/plain"},
      {"GET", "/ping", "The same.", nullptr, "text/plain"},
      {"POST", "/ping", "The same.", nullptr, "text/plain"},
      {"GET", "/version", "The version."},
      {"GET", "/load", "The requests that are being answered."},
      {"GET", "/metrics", "Prometheus metrics.", nullptr, "text/plain"},
      {"POST", "/reset_prefix_cache",
       "Forgets the prefix cache, if no request runs; needs a key or "
       "--enable-reset-prefix-cache."},
      {"POST", "/invocations", "SageMaker's name for chat (with messages) and completions (with prompt).",
       &completion_schema()},
      {"GET", "/openapi.json", "This API as an OpenAPI document."},
      {"GET", "/docs", "This API as a page.", nullptr, "text/html"},
  };
  return routes;
}

}  // namespace quire::api
