// SPDX-License-Identifier: Apache-2.0
// What decides the bytes of a KV page besides its tokens: the name under which tiers keep the pages of a model.
#pragma once

#include <functional>
#include <string>

#include "engine/engine.h"
#include "kv/memory_plan.h"
#include "llm/options.h"
#include "model/model.h"

namespace quire::llm {

// A function that writes down the build, the model, the backend and the layout, one per line. It reads all weights for
// their digest, unless options.kv_offload_dir has the digest of the same, unchanged files. `drafts`: the pages have
// layers of a draft model, too. Their contents change the speed of an answer only, so its weights are not read.
std::function<std::string()> page_identity(const Options& options, const model::ModelFiles& files,
                                           const Backend& backend, const kv::MemoryPlan& plan, bool drafts);

// The digest of what a model's folder or file says besides its weights: config.json, or the start of a GGUF file.
std::string config_digest(const Options& options);

// The digest of a checkpoint's weights. It is kept in `memo` with the sizes, times and numbers of all files in
// `folder`, and computed again when one of these has changed. Without a folder for `memo` it is computed each time.
std::string remembered_weights_digest(const weights::WeightSource& source, const std::filesystem::path& folder,
                                      const std::filesystem::path& memo);

// The tiers that the options ask for; an Error if they are wrong.
Result<kv::OffloadOptions> offload_options(const Options& options, const Backend& backend);

}  // namespace quire::llm
