// SPDX-License-Identifier: Apache-2.0
// Tools for chat templates that have no place for them: described in a system message, in the markup "hermes".
#pragma once

#include "base/json.h"

namespace quire::api {

// Adds a description of the tools to the system message, or puts a system message with it in front. `tools` is a list
// of {"type": "function", "function": {...}}; the description says how a call is written.
void describe_tools(const json::Value& tools, json::Value& messages);
// Writes the past calls of assistants into the content of their messages, and turns results (role tool) into messages
// of the user, in the markup of the description.
void write_out_calls(json::Value& messages);

}  // namespace quire::api
