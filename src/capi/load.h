// SPDX-License-Identifier: Apache-2.0
// From the JSON of quire_load to the options of a model, by the table of flags.
#pragma once

#include <string_view>

#include "base/result.h"
#include "llm/options.h"

namespace quire::capi {

// `text` is a JSON object whose names are those of the flags, with underscores; its model is resolved to a path.
Result<llm::Options> read_options(std::string_view text);

}  // namespace quire::capi
