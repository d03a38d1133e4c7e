// SPDX-License-Identifier: Apache-2.0
// Reads the request fields that several endpoints share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/generation.h"

namespace quire::api {

// Stop strings of a request. OpenAI takes four, vLLM any number; programs for role play and benchmarks of code send
// more than four.
constexpr size_t kMaxStops = 128;

// The rows of the fields that sampling/param_table.h lists.
std::vector<Field> sampling_param_fields();
// Sets what the request has of them.
ApiStatus read_params(const Body& body, sampling::SamplingParams& params);
// The settings of a request, over the model's defaults; fit_length() sets max_tokens.
ApiResult<sampling::SamplingParams> read_sampling(const Body& body, const Service& service);
// The engine that the header X-data-parallel-rank asks for.
ApiResult<std::optional<int64_t>> read_engine(const HttpRequest& request, const Service& service);
// The model's name, or the adapter that `model` names.
ApiStatus read_adapter(const Body& body, const Service& service, GenerationOptions& o);
// The id of the answer, which begins with `prefix`, and how it is sent (streaming and so on).
ApiResult<GenerationOptions> read_options(const HttpRequest& request, const Body& body, const Service& service,
                                          const char* prefix);
// Shortens the prompt to truncate_prompt_tokens.
void truncate_prompt(const Body& body, int64_t max_model_len, std::vector<int32_t>& ids);
// Sets max_tokens for a prompt: `wanted`, else the model's default, else `otherwise`, but at most what fits after the
// prompt. Refuses a prompt that leaves no room.
ApiStatus fit_length(const Service& service, size_t prompt_tokens, std::optional<int64_t> wanted,
                     std::optional<int64_t> otherwise, sampling::SamplingParams& params);
// priority (or the X-Vllm-Priority header) and cache_salt.
ApiStatus read_scheduling(const HttpRequest& request, const Body& body, llm::GenerateRequest& out);

// A conversation and the fields that template_fields() lists.
struct ChatInput {
  json::Value messages;
  json::Value tools;
  json::Value documents;
  json::Value kwargs;
  std::optional<std::string> chat_template;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
  int64_t earlier_calls = 0;                     // tool calls in the messages
  const std::atomic<bool>* cancelled = nullptr;  // HttpRequest::cancelled
};
// Everything but the tools, which read_chat_tools() reads.
ApiResult<ChatInput> read_chat(const Body& body);

// The prompt of a conversation.
struct ChatTokens {
  std::vector<int32_t> ids;
  std::string tail;  // the last bytes of its text, which show where the answer begins
};
ApiResult<ChatTokens> chat_tokens(const Service& service, ChatInput input);
// Adds the reasoning effort to the template's variables, except where the request has set them itself.
void set_effort(json::Value& kwargs, const std::string& effort);

// Refuses a text, before it is tokenised, that has more bytes than max_model_len times the vocabulary's longest token.
// A text of up to Service::kAlwaysTokenised bytes is never refused, so that the tokens of a text that is slightly too
// long can be counted.
ApiStatus check_text_length(const Service& service, size_t bytes);

}  // namespace quire::api
