// SPDX-License-Identifier: Apache-2.0
// From options to an engine: decides lengths, types and the memory plan before anything large is allocated.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "kv/memory_plan.h"
#include "llm/draft_model.h"
#include "llm/options.h"
#include "model/model.h"

namespace quire::llm {

// What follows from the options, the config and the device. `quire inspect` prints it; load_engine() allocates it.
struct ResolvedOptions {
  model::LoadOptions load;
  engine::EngineOptions engine;
  kv::MemoryInputs memory;
  std::optional<DraftModel> draft;
};
Result<ResolvedOptions> resolve_options(const Options& options, const model::ModelFiles& files, const Backend& backend,
                                        const model::Share& share = {});
Result<model::ModelFiles> open_files(const Options& options);
// The backend that --device names; an Error if there is no such device. auto is the first of cuda and metal that is
// there, else cpu; it is never the emulator.
// `part`: which of several engines, or of the ranks in threads; they share the threads of a CPU.
Result<std::unique_ptr<Backend>> make_backend(const Options& options, int part = 0);
// What the model is used for: by --runner and --convert, else by its files.
struct RunnerChoice {
  bool generates = true;
  bool pools = false;
};
Result<RunnerChoice> choose_runner(const Options& options, const model::ModelFiles& files);
// Sets the memory available for weights, pages and scratch: the GPU's, or the host's, within options.memory_bytes.
// REQUIRES: nothing is loaded yet.
void measure_memory(const Options& options, const Backend& backend, kv::MemoryInputs& memory);

// The bytes with which the model can answer one request of the full length, by its files alone: weights, its pages, and
// for scratch an eighth of the weights and 16 MiB.
Result<int64_t> least_memory(const Options& options);

struct LoadedEngine {
  std::unique_ptr<engine::Engine> engine;
  kv::MemoryPlan plan;
  std::vector<std::unique_ptr<engine::Engine>> twins;  // the others of Options::engines, with the same weights
};
// Once `cancelled` is true, the load ends with an Error. `all` are the ranks of which this process is the first
// (llm/ranks.h); without them, ranks are threads of this process, if the options ask for several.
Result<LoadedEngine> load_engine(const Options& options, const model::ModelFiles& files,
                                 std::unique_ptr<Backend> backend, std::function<void(int64_t, int64_t)> progress,
                                 const std::atomic<bool>* cancelled = nullptr, distributed::Group* all = nullptr);

// Turns adapters on if some are to be read with the model (Options::lora), for the ranks that they have.
Result<Options> with_own_adapters(Options options);

// A length such as 8192, 8k (8000) or 8K (8192), as vLLM reads it.
Result<int64_t> parse_length(const std::string& text, const char* flag);

}  // namespace quire::llm
