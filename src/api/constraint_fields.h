// SPDX-License-Identifier: Apache-2.0
// Reads the request fields that constrain an answer: response_format, structured_outputs and their like.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "api/schema.h"
#include "llm/constraint.h"

namespace quire::api {

// The rows of response_format and structured_outputs.
std::vector<Field> constraint_fields();

// The grammar that a request asks for, with the name of its field: from response_format and structured_outputs (chat,
// completions), text.format and structured_outputs (responses), or output_config.format (messages). No grammar: the
// answer is free. The reasoning rules are left empty. Everything that can be said without compiling is checked; the
// rest is Llm::constrain()'s.
ApiResult<llm::ConstraintSpec> read_constraint(const Body& body);

// thinking_token_budget: nothing if it is absent or negative. It needs a model whose reasoning has an end marker:
// `has_reasoning` says whether this one does.
ApiResult<std::optional<int64_t>> read_thinking_budget(const Body& body, bool has_reasoning);

// The same constraint as the `format` of a structural tag, so that it can be a part of a larger one. The options of
// JSON stay with the spec.
json::Value tag_format(const grammar::Spec& spec);

}  // namespace quire::api
