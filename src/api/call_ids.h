// SPDX-License-Identifier: Apache-2.0
// Ids of tool calls and of other parts of an answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire::api {

// 32 random hex digits. Any thread.
std::string random_hex();

// How a model's chat template wants the ids of calls.
enum class CallIdStyle : uint8_t {
  kRandom,  // the API's prefix and 32 hex digits
  kShort,   // nine letters and digits: Mistral's templates refuse others
  kKimi,    // functions.<name>:<n>; n counts the calls of the whole conversation
};
CallIdStyle call_id_style(std::string_view tool_parser);

// The id as a template of that style takes it: `id` itself, or, where it must be short and is not, nine hex digits that
// depend on nothing but it.
std::string fitting_call_id(CallIdStyle style, const std::string& id);

// The id of a call of `name`; `number` calls came before it in the conversation.
std::string make_call_id(CallIdStyle style, std::string_view prefix, std::string_view name, int64_t number);

}  // namespace quire::api
