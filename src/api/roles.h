// SPDX-License-Identifier: Apache-2.0
// Which roles the messages of a chat may have.
#pragma once

#include "api/request_fields.h"

namespace quire::api {

// Refuses a message whose role is neither one of the API's nor one that the chat template names ("ipython"): most
// templates print a role as it is, so an unknown one would reach the model as a turn that it was never taught. The
// error lists the known ones. A role that is missing is left to chat_tokens().
ApiStatus check_roles(const Service& service, const ChatInput& input);

}  // namespace quire::api
