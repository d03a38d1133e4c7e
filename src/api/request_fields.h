// SPDX-License-Identifier: Apache-2.0
// From a request's fields to the engine's settings: what completions, chat and the other forms share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/generation.h"

namespace quire::api {

// The rows of the fields that sampling/param_table.h lists.
std::vector<Field> sampling_param_fields();
// The settings of a request, over the model's defaults; fit_length() sets max_tokens.
ApiResult<sampling::SamplingParams> read_sampling(const Body& body, const Service& service);
// id, streaming and the like, for answers whose ids begin with `prefix`.
ApiResult<GenerationOptions> read_options(const HttpRequest& request, const Body& body, const Service& service,
                                          const char* prefix);
// Cuts the prompt as truncate_prompt_tokens says.
void truncate_prompt(const Body& body, const Service& service, std::vector<int32_t>& ids);
// Settles max_tokens for a prompt: `wanted` (or else the model's default, or else `otherwise`; nothing: all that fits)
// cut to what fits behind the prompt. Refuses a prompt that leaves no room.
ApiStatus fit_length(const Service& service, size_t prompt_tokens, std::optional<int64_t> wanted,
                     std::optional<int64_t> otherwise, sampling::SamplingParams& params);
// priority (or the X-Vllm-Priority header) and cache_salt.
ApiStatus read_scheduling(const HttpRequest& request, const Body& body, llm::GenerateRequest& out);

// A conversation's token ids, by the fields that template_fields() lists.
struct ChatInput {
  json::Value messages;
  json::Value tools;
  json::Value documents;
  json::Value kwargs;
  std::optional<std::string> chat_template;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
  const std::atomic<bool>* cancelled = nullptr;  // the request's
};
ApiResult<ChatInput> read_chat(const Body& body);
ApiResult<std::vector<int32_t>> chat_tokens(const Service& service, ChatInput input);

// Refuses a text that is longer than max_model_len of the vocabulary's longest token before it is tokenised. A text of
// Service::kAlwaysTokenised bytes is never refused, so that the tokens of a text that is somewhat too long can be
// counted.
ApiStatus check_text_length(const Service& service, size_t bytes);

}  // namespace quire::api
