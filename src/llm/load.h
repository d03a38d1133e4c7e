// SPDX-License-Identifier: Apache-2.0
// From flags to an engine: lengths, types and the memory plan are settled here, before anything large is allocated.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "kv/memory_plan.h"
#include "llm/options.h"
#include "model/model.h"

namespace quire::llm {

// Everything that follows from options and config alone: what `quire inspect` prints and load_engine allocates.
struct Settled {
  model::LoadOptions load;
  engine::EngineOptions engine;
  kv::MemoryInputs memory;
};
Result<Settled> settle(const Options& options, const model::ModelFiles& files, const Backend& backend);
Result<model::ModelFiles> open_files(const Options& options);
// The backend that --device names: an Error where it is not there. auto is the first of cuda and metal that is, else
// cpu; the emulator is never chosen by itself.
Result<std::unique_ptr<Backend>> make_backend(const Options& options);
// Fills in what memory there is for weights, pages and scratch: a GPU's own, or the host's. Before anything is loaded.
void see_memory(const Options& options, const Backend& backend, kv::MemoryInputs& memory);

struct LoadedEngine {
  std::unique_ptr<engine::Engine> engine;
  kv::MemoryPlan plan;
};
Result<LoadedEngine> load_engine(const Options& options, const model::ModelFiles& files,
                                 std::unique_ptr<Backend> backend, std::function<void(int64_t, int64_t)> progress);

// A length such as 8192, 8k (8000) or 8K (8192), as vLLM reads it.
Result<int64_t> parse_length(const std::string& text, const char* flag);

}  // namespace quire::llm
