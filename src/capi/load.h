// SPDX-License-Identifier: Apache-2.0
// From the JSON of quire_load to the options of a model, by the table of flags.
#pragma once

#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "llm/options.h"

namespace quire::capi {

// `text` is a JSON object whose names are those of the flags, with underscores; its model is resolved to a path.
Result<llm::Options> read_options(std::string_view text);

// The names that read_options() knows, as a JSON object, each with a description.
json::Value options_json();

}  // namespace quire::capi
