// SPDX-License-Identifier: Apache-2.0
// Model: what the engine sees of any family: one forward pass over a StepBatch, then logits of the wanted rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/backend.h"
#include "base/result.h"
#include "model/cache.h"
#include "model/config.h"
#include "model/step_batch.h"
#include "weights/checkpoint.h"
#include "weights/quant_scheme.h"

namespace quire::model {

// Most rows that one step and one call of logits() may have; scratch is allocated for them once.
struct StepLimits {
  int64_t max_tokens = 2048;
  int64_t max_logit_rows = 64;
};

// One loaded model. Owned by the engine, used on its thread. forward() runs a step and leaves the hidden states of
// batch.wanted behind; logits() turns any slice of them into rows of the vocabulary, valid until the next call.
class Model {
 public:
  virtual ~Model() = default;
  virtual const DecoderConfig& config() const = 0;
  virtual size_t weights_bytes() const = 0;
  // The weight type that most bytes are in: for messages.
  virtual DType main_dtype() const = 0;

  virtual size_t scratch_bytes(const StepLimits& limits) const = 0;
  // What ops may need for themselves in a step; sequences and what is staged are not the model's to know.
  virtual WorkspaceLimits workspace_limits(const StepLimits&) const { return {}; }
  virtual Status prepare(const StepLimits& limits) = 0;
  virtual void forward(const StepBatch& batch, const KvCache& kv) = 0;
  virtual std::span<const float> logits(int64_t first_wanted, int64_t count) = 0;  // [count, vocab_size]
  // The same rows where they are, in the backend's memory; nothing waits.
  virtual Tensor run_head(int64_t first_wanted, int64_t count) = 0;
};

struct LoadOptions {
  std::string dtype = "auto";  // auto, float32, float16, bfloat16 (and half, float)
  int64_t max_model_len = 0;   // 0: the model's own
  bool dummy = false;          // --load-format dummy: random weights of the config
  uint64_t seed = 0;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes; may be empty
};

// A model's config before its weights: enough for inspect and the memory plan.
struct ModelFiles {
  weights::CheckpointFiles files;
  std::shared_ptr<const weights::WeightSource> source;  // a DummySource when dummy
  std::shared_ptr<const weights::GgufSource> gguf;      // set for GGUF
  const struct Family* family = nullptr;
  DecoderConfig config;
  weights::QuantScheme scheme;  // of a Hugging Face folder's quantised linears
  bool quantised = false;       // any tensor is
};

// Opens the checkpoint at `path` (with dummy: a folder or a config.json) and reads its config.
Result<ModelFiles> open_model(const std::filesystem::path& path, const LoadOptions& options);
// What each layer keeps of a sequence.
std::vector<LayerCache> cache_layers(const DecoderConfig& config);
// Packs the weights for the backend.
Result<std::unique_ptr<Model>> load_model(const ModelFiles& files, const LoadOptions& options, Backend& backend);

// The plain type that --dtype names, or nothing for auto; an Error lists the choices.
Result<std::optional<DType>> parse_dtype(const std::string& text);

}  // namespace quire::model
