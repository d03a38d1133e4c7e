// SPDX-License-Identifier: Apache-2.0
// What must be the same on every rank of a model: the facts of the ranks' handshake.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "distributed/handshake.h"
#include "llm/options.h"
#include "model/model.h"

namespace quire::llm {

// The build, the model's files, the backend with its level of instructions, and the flags that decide bits or shapes.
std::vector<distributed::Fact> rank_facts(const Options& options, const model::ModelFiles& files,
                                          const Backend& backend);

}  // namespace quire::llm
