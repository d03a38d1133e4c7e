// SPDX-License-Identifier: Apache-2.0
// Model: the engine's interface to a model of any family: a forward pass over a StepBatch, then logits of some rows.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/backend.h"
#include "base/result.h"
#include "distributed/group.h"
#include "model/adapter.h"
#include "model/config/decoder_config.h"
#include "model/kv_cache.h"
#include "model/pooling/pooler.h"
#include "model/step_batch.h"
#include "weights/adapter.h"
#include "weights/checkpoint.h"
#include "weights/quant_scheme.h"

namespace quire::model {

// The most rows of one step and of one call of logits(). Scratch memory is allocated once, for these.
struct BatchLimits {
  int64_t max_tokens = 2048;
  int64_t max_logit_rows = 64;
  int64_t max_seqs = 0;  // 0: as many as tokens
  bool pools = false;    // hidden() is called
};

// How long a rank waited for the others and copied, and how often; and what else it did. Written by the rank's thread,
// read by any.
struct GatherTimes {
  std::atomic<int64_t> nanoseconds{0}, gathers{0};
  std::atomic<int64_t> sent_bytes{0}, steps{0};
  std::atomic<int64_t> compute_nanoseconds{0};  // of steps, without `nanoseconds`
};

// The ranks with which a model is computed (Share). They outlive it.
struct Ranks {
  Exchange* stage = nullptr;            // between the ranks of this stage; null: one
  Exchange* all = nullptr;              // between all ranks; rank r of stage s is s * ranks + r
  distributed::Group* model = nullptr;  // all ranks
  GatherTimes* times = nullptr;
  bool beside = false;  // none of these: rank 0 runs this model alone, beside one of several ranks
};

// One loaded model. Owned by the engine and used on its thread. forward() runs a step and keeps the hidden states of
// the rows in batch.wanted; logits() computes the logits of any slice of them, which are valid until the next call.
class Model {
 public:
  virtual ~Model() = default;
  virtual const DecoderConfig& config() const = 0;
  virtual size_t weights_bytes() const = 0;
  // Arranges an adapter for this model; an Error names the module that does not fit. Any thread.
  virtual Result<AdapterPtr> make_adapter(const weights::AdapterFiles&) const {
    return unsupported("this model takes no adapters; start quire with --enable-lora");
  }
  // Learns which modules the other ranks adapt; every rank calls it after loading, if there are adapters.
  virtual Status meet_adapters(distributed::Group& /*ranks*/) { return {}; }
  // The type that most bytes of the weights have; for messages.
  virtual DType main_dtype() const = 0;

  virtual size_t scratch_bytes(const BatchLimits& limits) const = 0;
  // The sizes on which the memory of the ops depends; the caller fills in those of sequences and staged arrays.
  virtual WorkspaceLimits workspace_limits(const BatchLimits&) const { return {}; }
  virtual Status prepare(const BatchLimits& limits) = 0;
  // Keeps the hidden states before these layers, or after the last one, during each step: for an EAGLE-3 layer or one
  // for multi-token prediction. Every rank calls it, before the functions above; rank 0 gets them from the stages.
  virtual void keep_hidden_before(std::vector<int64_t> /*layers*/) {}
  virtual void keep_hidden() {}
  // Whether steps must not be computed in parts.
  virtual bool whole_steps() const { return false; }
  // Another model with the same weights in memory once, for an engine with a backend of its own; both may run at the
  // same time, and either may end first. For a layer ahead, `target` is the twin of its target; a share of a model has
  // `ranks` of its own. Null if the weights cannot be shared. REQUIRES: both backends are of one kind.
  virtual Result<std::unique_ptr<Model>> make_twin(Backend& /*backend*/, const Model* /*target*/,
                                                   const Ranks& /*ranks*/) const {
    return std::unique_ptr<Model>();
  }
  // What each rank has done, if several compute the model. Any thread.
  virtual std::vector<metrics::RankTotals> rank_totals() const { return {}; }
  // The tiers of the other ranks, if several compute the model.
  virtual kv::RankTiers* rank_tiers() { return nullptr; }
  // Called after the engine has copied a page (KvCache::copy_page): other ranks of the model copy theirs.
  virtual void copied_page(int64_t /*from*/, int64_t /*to*/, size_t /*group*/) {}
  virtual void forward(const StepBatch& batch, const KvCache& kv) = 0;
  virtual std::span<const float> logits(int64_t first_wanted, int64_t count) = 0;  // [count, vocab_size]
  // The same rows in the backend's memory, without waiting for them.
  virtual Tensor run_head(int64_t first_wanted, int64_t count) = 0;
  // The hidden states, after the last norm, of some of the batch.num_pooled last wanted rows: [count, hidden], valid
  // until the next call.
  virtual std::span<const float> hidden(int64_t /*first*/, int64_t /*count*/) {
    QUIRE_CHECK(false, "this model hands out no hidden states");
    return {};
  }
  // What becomes of pooled rows. Any thread.
  virtual const Pooler& pooler() const {
    static const Pooler kNone;
    return kNone;
  }
};

struct LoadOptions {
  std::string dtype = "auto";  // auto, float32, float16, bfloat16 (and half, float)
  int64_t max_model_len = 0;   // 0: the model's own
  bool dummy = false;          // --load-format dummy: random weights in the shapes of the config
  uint64_t seed = 0;
  std::string quantization;  // --quantization, of random weights; "": as config.json says
  AdapterLimits adapters;
  Share share;  // of the model that is loaded
  Ranks ranks;
  std::string hf_overrides;      // JSON object whose members replace those of config.json; "": none
  std::string pooler_config;     // --pooler-config; "": as the files say
  std::string convert = "auto";  // auto, none, embed, classify
  std::function<void(int64_t done, int64_t total)> progress;  // bytes; may be empty
  const std::atomic<bool>* cancelled = nullptr;               // once it is true, the load ends with an Error
};

// An opened model: its config, without its weights. Enough for `quire inspect` and the memory plan.
struct ModelFiles {
  weights::CheckpointFiles files;
  std::shared_ptr<const weights::WeightSource> source;  // a DummySource when dummy
  std::shared_ptr<const weights::GgufSource> gguf;      // set for GGUF
  const struct Family* family = nullptr;
  DecoderConfig config;
  PoolerConfig pooler;
  weights::QuantScheme scheme;  // of the quantised linears in a Hugging Face folder
  bool quantised = false;       // any tensor is quantised
};

// Opens the checkpoint at `path` (with dummy: a folder or a config.json) and reads its config.
Result<ModelFiles> open_model(const std::filesystem::path& path, const LoadOptions& options);
// A lower bound for the bytes of a config's random weights: attention, MLPs, experts and tables, in elements of `size`
// bytes.
double dummy_bytes(const DecoderConfig& config, double size);
// What each layer keeps per sequence.
std::vector<kv::LayerCache> cache_layers(const DecoderConfig& config);
// Asks the backend in which form it keeps recurrent states; cache_layers() depends on it.
void choose_states(const Backend& backend, DType activation, DecoderConfig& config);
// Loads the weights and packs them for the backend.
Result<std::unique_ptr<Model>> load_model(const ModelFiles& files, const LoadOptions& options, Backend& backend);

// The layer ahead of a model (AheadConfig) as a model of one layer: its config, with the files of `target`; an Error if
// there is none. (An EAGLE-3 layer has files of its own, which open_model() opens.)
Result<ModelFiles> layer_ahead(const ModelFiles& target);
// Loads it. It shares the embedding and the head of `target`, unless that is one of several ranks and has only a part
// of them: then it loads its own from `target_files`. StepBatch::hidden_rows are rows of target's last step. An EAGLE-3
// layer has its own head, and sees what keep_hidden_before() keeps. REQUIRES: `target` was loaded from the same files,
// or is the model that the EAGLE-3 layer is for; it outlives the layer.
Result<std::unique_ptr<Model>> load_layer_ahead(const ModelFiles& files, const LoadOptions& options, Backend& backend,
                                                const Model& target, const ModelFiles& target_files);

// The type that --dtype names, or nothing for auto; an Error lists the choices.
Result<std::optional<DType>> parse_dtype(const std::string& text);
// The type of activations on a backend, if --dtype is `dtype`.
DType activation_of(const ModelFiles& files, std::optional<DType> dtype, const Backend& backend);

}  // namespace quire::model
