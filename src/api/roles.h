// SPDX-License-Identifier: Apache-2.0
// Which roles the messages of a chat may have.
#pragma once

#include "api/request_fields.h"

namespace quire::api {

// Refuses a message whose role is neither one of OpenAI's nor one that the chat template names ("ipython"). Most
// templates print a role as it is, so an unknown one would reach the model as a turn that it has never seen in
// training. A missing role is left to chat_tokens().
ApiStatus check_roles(const Service& service, const ChatInput& input);

}  // namespace quire::api
