// SPDX-License-Identifier: Apache-2.0
// The conversation in a request of the Responses API.
#pragma once

#include "api/conversation.h"

namespace quire::api {

// The messages of a chat from `instructions` and `input`: texts, messages, tool calls, their results and reasoning.
ApiResult<ChatInput> read_responses_input(const Body& body);

}  // namespace quire::api
