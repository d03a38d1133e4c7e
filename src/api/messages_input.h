// SPDX-License-Identifier: Apache-2.0
// The conversation in a request of Anthropic's Messages API.
#pragma once

#include <optional>

#include "api/conversation.h"

namespace quire::api {

// A conversation, and what the request says about thinking.
struct MessagesInput {
  ChatInput chat;
  bool shows_thinking = true;              // false: thinking is disabled
  std::optional<int64_t> thinking_budget;  // tokens
};

// The messages of a chat from `system` and `messages`, with the calls, results and thoughts in their blocks, and the
// template's variables from `thinking` and `output_config`.
ApiResult<MessagesInput> read_messages_input(const Body& body);

}  // namespace quire::api
