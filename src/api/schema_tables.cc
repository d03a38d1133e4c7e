// SPDX-License-Identifier: Apache-2.0
// The tables: every field of every request. A row has name, type, description and rules.
#include <string>
#include <utility>

#include "api/constraint_fields.h"
#include "api/request_fields.h"

namespace quire::api {
namespace {

using enum FieldType;

// The values of tool_choice and thinking, as JSON Schema.
constexpr const char* kToolChoice =
    R"("anyOf":[{"enum":["none","auto","required",null]},{"type":"object","required":["type"]}])";
constexpr const char* kAnthropicChoice =
    R"("required":["type"],"properties":{"type":{"enum":["auto","any","tool","none"]}})";
constexpr const char* kThinking = R"("properties":{"type":{"enum":["enabled","disabled","adaptive"]}})";
constexpr const char* kNoTransfer = "is for KV transfer between servers, which this server does not do; leave it out.";

Field row(const char* name, FieldType type, const char* doc, FieldRules rules = {}) {
  return {name, type, doc, std::move(rules)};
}

// What completions and chat share.
std::vector<Field> sampling_fields() {
  std::vector<Field> fields = {
      row("model", kString, "A served name; an unknown one is a 404.", {.fallback = "the served model"}),
      row("truncate_prompt_tokens", kInt, "Keep the last N tokens of the prompt; -1: as many as fit.", {.min = -1}),
      row("truncation_side", kString, "Which end of the prompt truncate_prompt_tokens cuts.",
          {.fallback = "left", .choices = {"left", "right"}}),
      row("stream", kBool, "Send the answer as server-sent events while it is made.", {.fallback = "false"}),
      row("stream_options", kObject, "{include_usage, continuous_usage_stats}; only with stream."),
      row("stream_interval", kInt, "Tokens in one event; the first and the last come at once.",
          {.fallback = "--stream-interval", .min = 1}),
      row("priority", kInt, "Lower runs earlier, with --scheduling-policy priority.",
          {.fallback = "0", .min = -9007199254740991.0, .max = 9007199254740991.0}),
      row("cache_salt", kString, "Separates this request's prefix cache from that of others.", {.no_empty_text = true}),
      row("request_id", kString, "Becomes a part of the answer's id.",
          {.fallback = "the X-Request-Id header, else drawn"}),
      row("return_token_ids", kBool, "Adds prompt_token_ids and each choice's token_ids.", {.fallback = "false"}),
      row("return_receipt", kBool,
          "Adds a receipt to each choice, with which quire verify checks the answer; in a stream, to its last event.",
          {.fallback = "false"}),
      row("return_tokens_as_token_ids", kBool, "Logprobs name tokens as token_id:N instead of by their text.",
          {.fallback = "--return-tokens-as-token-ids"}),
      row("user", kString, "Ignored."),
      row("use_beam_search", kBool, "",
          {.fallback = "false", .refused = "is not supported: this server samples; leave it out, or use n."}),
      row("best_of", kInt, "Only 1.", {.fallback = "1", .min = 0, .max = 1}),
      row("logprob_token_ids", kInts, "", {.refused = "is not supported; use logprobs."}),
      row("repetition_detection", kObject, "", {.refused = "is not supported; leave it out."}),
      row("kv_transfer_params", kObject, "", {.refused = kNoTransfer}),
      row("ec_transfer_params", kObject, "", {.refused = kNoTransfer}),
      row("watermarking", kAny, "", {.refused = "is not supported; leave it out."}),
      row("guided_json", kAny, "Older name of structured_outputs.json."),
      row("guided_regex", kString, "Older name of structured_outputs.regex."),
      row("guided_choice", kStrings, "Older name of structured_outputs.choice."),
      row("guided_grammar", kString, "Older name of structured_outputs.grammar."),
      row("json_schema", kAny, "llama.cpp's name of structured_outputs.json."),
      row("grammar", kString, "llama.cpp's name of structured_outputs.grammar."),
  };
  const std::vector<Field> params = sampling_param_fields();
  fields.insert(fields.begin() + 1, params.begin(), params.end());
  const std::vector<Field> constraints = constraint_fields();
  fields.insert(fields.end(), constraints.begin(), constraints.end());
  return fields;
}

// How the chat template is applied: /v1/chat/completions and /tokenize.
std::vector<Field> template_fields() {
  return {
      row("add_generation_prompt", kBool, "End the prompt with the beginning of the assistant's turn.",
          {.fallback = "true"}),
      row("continue_final_message", kBool, "The model continues the last message; needs add_generation_prompt false.",
          {.fallback = "false"}),
      row("add_special_tokens", kBool, "Let the tokenizer add its own special tokens to the template's text.",
          {.fallback = "false"}),
      row("chat_template", kString, "A Jinja template; only with --trust-request-chat-template.",
          {.fallback = "the model's"}),
      row("chat_template_kwargs", kObject, "Further variables of the template."),
      row("documents", kObjects, "Documents for templates that take them."),
      row("tools", kObjects,
          "Functions that the model may call: {type: function, function: {name, description, parameters, strict}}."),
  };
}

std::vector<Field> joined(std::vector<Field> a, const std::vector<Field>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The rows with these names, which are separated by spaces.
std::vector<Field> picked(std::vector<Field> rows, std::string_view names) {
  const std::string padded = " " + std::string(names) + " ";
  std::erase_if(rows, [&](const Field& row) { return padded.find(" " + std::string(row.name) + " ") == padded.npos; });
  return rows;
}

}  // namespace

const std::vector<std::string_view>& reasoning_efforts() {
  static const std::vector<std::string_view> efforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  return efforts;
}

const Schema& completion_schema() {
  static const std::string default_max_tokens = std::to_string(sampling::kDefaultMaxTokens);
  static const Schema schema{
      "CompletionRequest", "A text to continue.",
      joined(
          {
              row("prompt", kPrompt, "Text or token ids, one or several.", {.required = true, .no_empty_list = true}),
              row("max_tokens", kInt, "Maximum number of tokens to generate; 0 only with echo.",
                  {.fallback = default_max_tokens.c_str(), .min = 0}),
              row("logprobs", kInt, "Log probabilities of the N likeliest tokens; at most --max-logprobs.",
                  {.min = -1}),
              row("echo", kBool, "Put the prompt before the output.", {.fallback = "false"}),
              row("add_special_tokens", kBool, "Let the tokenizer add its special tokens (BOS).", {.fallback = "true"}),
              row("suffix", kString, "",
                  {.refused = "is not supported: this server's models do not fill in the middle; leave it out."}),
              row("prompt_embeds", kAny, "", {.refused = "is not supported; send text or token ids in prompt."}),
          },
          sampling_fields())};
  return schema;
}

const Schema& chat_schema() {
  static const Schema schema{
      "ChatCompletionRequest", "A conversation to answer.",
      joined(
          joined(
              {
                  row("messages", kObjects,
                      "The conversation: role, and content as a string or text parts; tool_calls and reasoning of the "
                      "assistant, results in the role tool.",
                      {.required = true, .no_empty_list = true}),
                  row("max_completion_tokens", kInt, "Maximum number of tokens to generate; wins over max_tokens.",
                      {.fallback = "what fits", .min = 1}),
                  row("max_tokens", kInt, "Deprecated name of max_completion_tokens.",
                      {.fallback = "what fits", .min = 1}),
                  row("logprobs", kBool, "Return each token's log probability.", {.fallback = "false"}),
                  row("top_logprobs", kInt, "The N likeliest tokens too; needs logprobs.",
                      {.fallback = "0", .min = -1}),
                  row("echo", kBool, "Put the last message before the output if its role is assistant.",
                      {.fallback = "false"}),
                  row("tool_choice", kAny,
                      "none, auto, required (a call at least), a function ({type: function, function: {name}}) or "
                      "allowed_tools; not without tools, except for none.",
                      {.fallback = "auto with tools, else none", .shape = kToolChoice}),
                  row("parallel_tool_calls", kBool, "false: at most one call.", {.fallback = "true"}),
                  row("reasoning_effort", kString, "Passed to the template.", {.choices = reasoning_efforts()}),
                  row("include_reasoning", kBool, "false: the answer has no reasoning; the model reasons all the same.",
                      {.fallback = "true"}),
                  row("thinking_token_budget", kInt,
                      "Maximum number of tokens of reasoning; -1: no bound. Needs a model with reasoning.",
                      {.fallback = "-1", .min = -1}),
                  row("media_io_kwargs", kObject, "",
                      {.refused = "is for images and audio, which this server does not take yet."}),
                  row("mm_processor_kwargs", kObject, "",
                      {.refused = "is for images and audio, which this server does not take yet."}),
              },
              template_fields()),
          sampling_fields())};
  return schema;
}

const Schema& responses_schema() {
  static const Schema schema{
      "ResponsesRequest",
      "OpenAI's Responses API: text in; text, reasoning and tool calls out. Answers are not kept. A stream ends with "
      "response.completed, or with "
      "response.incomplete when max_output_tokens cut it, or response.failed; there is no [DONE].",
      joined(
          {
              row("input", kStringOrParts,
                  "A text, or a list of messages, tool calls (function_call, custom_tool_call), their outputs and "
                  "reasoning.",
                  {.required = true, .no_empty_list = true}),
              row("instructions", kString, "A system message in front of the input."),
              row("max_output_tokens", kInt, "Maximum number of tokens to generate.",
                  {.fallback = "what fits", .min = 1}),
              row("top_logprobs", kInt,
                  "The N likeliest tokens at each position; needs message.output_text.logprobs in include.",
                  {.fallback = "0", .min = 0, .max = 20}),
              row("include", kStrings,
                  "message.output_text.logprobs gives each token's log probability; others are ignored."),
              row("metadata", kObject, "Names and texts, returned in the response."),
              row("user", kString, "Returned in the response."),
              row("parallel_tool_calls", kBool, "false: at most one call.", {.fallback = "true"}),
              row("max_tool_calls", kInt,
                  "Of built-in tools, which this server does not have; returned in the response."),
              row("service_tier", kString, "Returned in the response.",
                  {.fallback = "auto", .choices = {"auto", "default", "flex", "scale", "priority"}}),
              row("truncation", kString,
                  "auto drops the oldest messages of an input that is too long; disabled refuses it.",
                  {.fallback = "disabled", .choices = {"auto", "disabled"}}),
              row("text", kObject,
                  "format: the form of the answer, as in response_format, but with the schema beside the type.",
                  {.fallback = "{\"format\": {\"type\": \"text\"}}"}),
              row("tool_choice", kAny,
                  "none, auto, required, a tool ({type: function or custom, name}) or allowed_tools.",
                  {.fallback = "auto", .shape = kToolChoice}),
              row("tools", kObjects,
                  "Tools that the model may call: {type: function, name, description, parameters, strict}, {type: "
                  "custom, name, description} or a namespace of functions."),
              row("reasoning", kObject, "effort is passed to the template."),
              row("store", kBool, "Answers are not kept: the answer says store false.", {.fallback = "false"}),
              row("background", kBool, "",
                  {.fallback = "false",
                   .refused = "is not supported: answers are not kept; leave it out and stream instead."}),
              row("previous_response_id", kString, "",
                  {.refused = "is not supported: answers are not kept; send the whole conversation in input."}),
              row("conversation", kAny, "",
                  {.refused = "is not supported: conversations are not kept; send the whole conversation in input."}),
              row("prompt", kObject, "",
                  {.refused = "is not supported: prompts are not kept; send their text in input or instructions."}),
              row("chat_template_kwargs", kObject, "Further variables of the template."),
          },
          picked(sampling_fields(),
                 "model temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty logit_bias "
                 "seed stop stop_token_ids include_stop_str_in_output ignore_eos skip_special_tokens stream priority "
                 "cache_salt request_id structured_outputs kv_transfer_params ec_transfer_params"))};
  return schema;
}

const Schema& input_tokens_schema() {
  static const Schema schema{
      "InputTokensRequest", "OpenAI's token count: the prompt that /v1/responses would make of the same body.",
      picked(responses_schema().fields,
             "model input instructions text tools tool_choice parallel_tool_calls reasoning truncation "
             "previous_response_id conversation prompt chat_template_kwargs")};
  return schema;
}

const Schema& messages_schema() {
  static const Schema schema{
      "MessagesRequest",
      "Anthropic's Messages API: text in; text, thinking and tool calls out; its errors have Anthropic's shape. "
      "usage.input_tokens leaves out "
      "what came from the prefix cache (cache_read_input_tokens), as Anthropic and vLLM count.",
      joined(
          {
              row("messages", kObjects,
                  "Turns of user and assistant; content is a string or blocks: text, tool_use, tool_result, thinking. "
                  "A "
                  "last turn of the assistant is continued.",
                  {.required = true, .no_empty_list = true}),
              row("max_tokens", kInt, "Maximum number of tokens to generate.", {.required = true, .min = 1}),
              row("system", kStringOrParts, "The system prompt: a string or text blocks."),
              row("stop_sequences", kStrings, "Up to 128 texts that end the output.", {.no_empty_text = true}),
              row("metadata", kObject, "Ignored."),
              row("thinking", kObject, "{type: enabled (with budget_tokens), disabled or adaptive}.",
                  {.shape = kThinking}),
              row("output_config", kObject, "effort is passed to the template; format: {type: json_schema, schema}."),
              row("tools", kObjects, "Tools that the model may call: {name, description, input_schema, strict}."),
              row("tool_choice", kObject,
                  "{type: auto, any (a call at least), tool (with name) or none, disable_parallel_tool_use}.",
                  {.shape = kAnthropicChoice}),
              row("chat_template_kwargs", kObject, "Further variables of the template."),
          },
          picked(sampling_fields(),
                 "model temperature top_p top_k seed stream priority cache_salt request_id kv_transfer_params "
                 "ec_transfer_params"))};
  return schema;
}

const Schema& count_tokens_schema() {
  static const Schema schema{
      "CountTokensRequest",
      "Anthropic's token count: the messages as /v1/messages would see them.",
      {
          row("model", kString, "A served name; an unknown one is a 404.", {.fallback = "the served model"}),
          row("messages", kObjects, "Turns of user and assistant.", {.required = true, .no_empty_list = true}),
          row("system", kStringOrParts, "The system prompt."),
          row("thinking", kObject, "{type: enabled (with budget_tokens), disabled or adaptive}.", {.shape = kThinking}),
          row("output_config", kObject, "effort is passed to the template; format: {type: json_schema, schema}."),
          row("tools", kObjects, "Tools that the model may call: {name, description, input_schema, strict}."),
          row("tool_choice", kObject,
              "{type: auto, any (a call at least), tool (with name) or none, disable_parallel_tool_use}.",
              {.shape = kAnthropicChoice}),
          row("chat_template_kwargs", kObject, "Further variables of the template."),
      }};
  return schema;
}

const Schema& tokenize_schema() {
  static const Schema schema{
      "TokenizeRequest", "A prompt, or messages, whose token ids are wanted.",
      joined(
          {
              row("model", kString, "A served name; an unknown one is a 404.", {.fallback = "the served model"}),
              row("prompt", kString, "The text; or give messages."),
              row("messages", kObjects, "A conversation, put through the chat template.", {.no_empty_list = true}),
              row("return_token_strs", kBool, "Adds token_strs: each token as the vocabulary spells it.",
                  {.fallback = "false"}),
              row("reasoning_effort", kString, "Passed to the template.", {.choices = reasoning_efforts()}),
          },
          template_fields())};
  return schema;
}

const Schema& detokenize_schema() {
  static const Schema schema{
      "DetokenizeRequest",
      "Token ids whose text is wanted.",
      {
          row("model", kString, "A served name; an unknown one is a 404.", {.fallback = "the served model"}),
          row("tokens", kInts, "The token ids.", {.required = true}),
      }};
  return schema;
}

const Schema& load_lora_adapter_schema() {
  static const Schema schema{
      "LoadLoraAdapterRequest",
      "A LoRA adapter to be loaded.",
      {
          row("lora_name", kString, "The name that requests give as `model`.",
              {.required = true, .no_empty_text = true}),
          row("lora_path", kString, "Its folder (PEFT or MLX) or GGUF file on the server.",
              {.required = true, .no_empty_text = true}),
          row("load_inplace", kBool, "Replace an adapter of the same name.", {.fallback = "false"}),
          row("model", kString, "The base model, if the server has several.", {.fallback = "the served model"}),
          row("is_3d_lora_weight", kBool, "",
              {.fallback = "false", .refused = "is not supported: experts in one tensor are not adapted."}),
      }};
  return schema;
}

const Schema& unload_lora_adapter_schema() {
  static const Schema schema{"UnloadLoraAdapterRequest",
                             "A LoRA adapter to be forgotten.",
                             {
                                 row("lora_name", kString, "Its name.", {.required = true, .no_empty_text = true}),
                                 row("lora_int_id", kInt, "Ignored."),
                             }};
  return schema;
}

}  // namespace quire::api
