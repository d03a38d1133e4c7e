// SPDX-License-Identifier: Apache-2.0
// Tools for chat templates that have no place for them: described in a message, in the markup "hermes".
#pragma once

#include "base/json.h"

namespace quire::api {

// Adds a description of the tools to the system message, or puts a system message with it in front; without `in_system`
// it is in the first message of the user. `tools` is a list of {"type": "function", "function": {...}}; the description
// says how a call is written.
void describe_tools(const json::Value& tools, bool in_system, json::Value& messages);
// Writes the past calls of assistants into the content of their messages, and turns results (role tool) into messages
// of the user, in the markup of the description. What the user says after results is added to them.
void write_out_calls(json::Value& messages);

}  // namespace quire::api
