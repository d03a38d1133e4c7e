// SPDX-License-Identifier: Apache-2.0
// Flags that do not come as one word each: the file of --config, --FLAG.MEMBER VALUE for a member of a JSON flag, and
// --api-key K1 K2.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace quire::cli {

// Adds the flags of the file that --config names, unless the command line has them. The file has one `flag: value` per
// line; a list, or the members of a flag that takes a JSON object, follow on indented lines.
Result<std::vector<std::string>> with_config_file(std::vector<std::string> arguments);

// Gives each word behind --api-key and --served-model-name a flag of its own, as vLLM reads them: `serve MODEL
// --api-key K1 K2`. Without a MODEL in front of the flags the second word is the MODEL. An error if a key is a model's
// file, or if that second word is no model.
Result<std::vector<std::string>> spread_lists(std::vector<std::string> arguments);

// Joins --FLAG.MEMBER VALUE and --FLAG.MEMBER=VALUE of one flag into --FLAG=JSON, as vLLM does. A member may have
// members itself (--FLAG.A.B), and --FLAG.MEMBER+ appends to a list. A value that is no JSON is a string.
std::vector<std::string> join_members(std::vector<std::string> arguments);

}  // namespace quire::cli
