// SPDX-License-Identifier: Apache-2.0
// DecoderModel: the decoder that all families configure, written in ops. decoder.cc has the frame of the forward pass;
// the kinds of mixers (mixer.h) and the feed-forward part (feed_forward.h) have files of their own.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "backend/exchange.h"
#include "model/layers/rope_table.h"
#include "model/layers/weights.h"
#include "model/model.h"

namespace quire::model {

// Allocates row-major matrices from one block of memory, each on a 64-byte boundary. Without a block it only counts
// the bytes.
class ScratchAllocator {
 public:
  explicit ScratchAllocator(char* base) : base_(base) {}
  Tensor take(int64_t rows, int64_t cols, DType type) {
    const Tensor t{base_ == nullptr ? nullptr : base_ + used_, type, rows, cols, cols};
    used_ += (static_cast<size_t>(rows * row_bytes(type, cols)) + 63) / 64 * 64;
    return t;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// The arrays of a step (StepBatch) in the backend's memory.
struct StagedGroup {
  std::span<const int64_t> slot_mapping;
  std::span<const int32_t> block_tables, state_source, state_destination, state_rows;
  int64_t max_blocks = 0;
};
struct StagedBatch {
  std::span<const int32_t> tokens, positions, token_types, cu_seqlens_q, context_lens, hidden_rows, wanted;
  std::span<const float> query_scales;  // [tokens] where the config has an attention temperature or zero_first
  std::vector<StagedGroup> groups;
};

// The layer that runs.
struct LayerContext {
  const KvCache& kv;
  int64_t index;
  const LayerConfig& config;
  const DecoderLayer& weights;
};
// The input of a mixer or feed-forward part: rows that may still have to go through a norm.
struct LayerInput {
  Tensor x;
  const Norm* norm = nullptr;
  bool keep_normed = false;  // the rows after the norm are read again later (DecoderModel::normed)
};
// Where a mixer or feed-forward part writes its output. With may_add it may add the output to the residual stream
// instead; functions with a LayerOutput return whether they did.
struct LayerOutput {
  Tensor out;
  bool may_add = false;
};

// Where adapters have their places; no sites: the model takes none.
struct DecoderAdapters {
  std::shared_ptr<const LoraSites> sites;  // twins have the same
  int64_t embedding_site = -1;
  std::string architecture;  // of a GGUF file; "": unknown
};

// A loaded decoder. Owned by the engine and used on its thread.
class DecoderModel final : public Model {
 public:
  DecoderModel(DecoderConfig config, DecoderWeights weights, DecoderAdapters adapters, Pooler pooler,
               int64_t max_model_len, Backend& backend, const Ranks& ranks, const DecoderModel* target = nullptr);

  const DecoderConfig& config() const override { return config_; }
  size_t weights_bytes() const override;
  DType main_dtype() const override { return weights_.main_dtype; }
  Result<AdapterPtr> make_adapter(const weights::AdapterFiles& files) const override;
  Status meet_adapters(distributed::Group& ranks) override;
  size_t scratch_bytes(const BatchLimits& limits) const override;
  WorkspaceLimits workspace_limits(const BatchLimits& limits) const override;
  Status prepare(const BatchLimits& limits) override;
  void keep_hidden_before(std::vector<int64_t> layers) override;
  void keep_hidden() override { hands_over_ = config_.share.stages > 1; }
  bool whole_steps() const override { return config_.share.stages > 1 && (hands_over_ || !kept_layers_.empty()); }
  Result<std::unique_ptr<Model>> make_twin(Backend& backend, const Model* target, const Ranks& ranks) const override;
  void forward(const StepBatch& batch, const KvCache& kv) override;
  std::span<const float> logits(int64_t first_wanted, int64_t count) override;
  Tensor run_head(int64_t first_wanted, int64_t count) override;
  std::span<const float> hidden(int64_t first, int64_t count) override;
  const Pooler& pooler() const override { return pooler_; }

  const DecoderWeights& weights() const { return weights_; }

  // The rest is for the layers, during forward().
  Backend& backend() const { return backend_; }
  DType activation() const { return activation_; }
  const StagedBatch& step() const { return step_; }
  // The pages of a layer, and where the step's tokens are in them. An encoder keeps nothing: the K and V of a step are
  // in pages that all layers use one after another.
  KvLayer pages(const LayerContext& layer) const {
    return config_.encoder.on ? encoder_pages_ : layer.kv.layer(layer.index);
  }
  const StagedGroup& group(const LayerContext& layer) const {
    return config_.encoder.on ? step_.groups.front() : step_.groups[static_cast<size_t>(layer.kv.group(layer.index))];
  }
  const Tensor& residual() const { return step_hidden_; }  // the residual stream, [tokens, hidden]
  // Memory that mixers, feed-forward parts and the head use one after another.
  ScratchAllocator scratch() const { return ScratchAllocator(scratch_.shared); }
  // The columns of all ranks of the stage, of which this rank computed `mine`: the first of `room`, which has as many
  // as all ranks together. Without other ranks, `mine` itself.
  Tensor gathered(const Tensor& mine, const Tensor& room, int64_t columns);
  // The same into `all`; on `root` alone, if there is one.
  void gather(const Tensor& mine, const Tensor& all, int root = distributed::Group::kEvery);
  // Row i of `x` from the rank ids[i] / width of the stage.
  void gather_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width);
  // The same for this rank's part of the columns, where that is worth while (Exchange::scatters).
  bool scatters(const Tensor& x) const { return ranks_.stage->scatters(x); }
  void scatter_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width, const Tensor& mine);
  // The rows from which on ops run: those of a part of the step.
  void select_rows(int64_t first) {
    if (lora_ != nullptr) lora_->select_step_rows(first);
  }
  // Adds what adapters have for each head, whose sites are consecutive: the first k columns of a head of x make the
  // first n of a head of out.
  void add_adapters_by_head(int64_t first_site, int64_t heads, const Tensor& x, int64_t k, const Tensor& out,
                            int64_t n);
  // What adapters add to experts in this step (LoraState::of_experts).
  std::optional<MoeLora> lora_of_experts(int64_t first_site) const {
    if (lora_ == nullptr || first_site < 0) return std::nullopt;
    return lora_->of_experts(first_site, config_.share.num_experts(config_.moe.experts));
  }
  const float* ones() const { return ones_.data(); }  // the weight of a norm that has none
  const RopeConfig& rope_config(RopeUse use) const { return use == RopeUse::kMain ? config_.rope : config_.local_rope; }
  const RopeTable& rope_table(RopeUse use) const { return use == RopeUse::kMain ? rope_ : local_rope_; }

  void norm(const Tensor& x, const Norm& norm, int64_t group, const Tensor& out);
  // The input's rows after its norm, in the type of activations.
  Tensor normed(const LayerInput& input);
  // Whether the backend computes the input's norm together with the product.
  bool joins_norm(const LayerInput& input, const Linear& linear) const;
  // The first product of a layer, with the input's norm, and the last one.
  void project_in(const Linear& linear, const LayerInput& input, const Tensor& out);
  [[nodiscard]] bool project_out(const Linear& linear, const Tensor& x, const LayerOutput& output);
  void rotate(const Tensor& x, int64_t head_dim, int64_t offset, RopeUse use);
  // The rotated elements go to the end of each head of `into` (RopeArgs). REQUIRES: use is not kNone.
  void rotate_into(const Tensor& x, int64_t head_dim, int64_t offset, RopeUse use, const Tensor& into,
                   int64_t into_head_dim);
  AttentionArgs attention_args(const LayerContext& layer, const Tensor& q, const Tensor& out) const;

 private:
  struct Scratch {  // views of one block of memory
    Tensor hidden, normed, parallel, per_layer, wanted_hidden, wanted, logits, lora, pooled;
    Tensor own_logits;  // the columns of this rank
    Tensor own_tokens;  // [tokens, 1] ids: rows of this rank's part of the embedding
    // keep_hidden_before(): [tokens, kept layers * hidden]; on other stages [kept layers * tokens, hidden] of their
    // own.
    Tensor kept;
    Tensor both, draft_logits;  // of an EAGLE-3 layer: the input of its mixer, and the rows of its head
    char* shared = nullptr;
    size_t bytes = 0;
  };
  Scratch lay_out_scratch(char* base, const BatchLimits& limits) const;

  KvLayer encoder_pages(const BatchLimits& limits) const;  // without their memory
  void lay_out_encoder_pages(const StepBatch& batch);
  void run_added(bool added, const Tensor& out, const Norm& post_norm);
  void stage(const StepBatch& batch);
  bool adapted() const { return lora_ != nullptr && lora_->active(); }  // some row of the step has an adapter
  void run_layers(const KvCache& kv);
  void keep_hidden_of(int64_t layer);
  void hand_over_hidden();
  int64_t num_kept() const;
  void run_layer(const LayerContext& layer);
  void look_up_tokens();
  void embed();
  void embed_ahead();
  void embed_eagle();
  void add_encoder_tables();
  void add_per_layer_input(const LayerContext& layer);
  Tensor activations(const Tensor& x);  // x in the type of activations
  void add_to_residual(const Tensor& x, const Norm& post_norm);
  void add_now();  // what add_to_residual() has put off

  DecoderConfig config_;
  DecoderWeights weights_;
  DecoderAdapters adapters_;
  std::unique_ptr<LoraState> lora_;  // null: the model takes no adapters
  Pooler pooler_;
  int64_t max_model_len_;
  DType activation_;
  Floats ones_;
  RopeTable rope_, local_rope_;
  float attention_scale_;
  Backend& backend_;
  const Ranks ranks_;
  std::vector<int64_t> kept_layers_;       // of the whole model, sorted
  bool hands_over_ = false;                // rank 0 gets the rows of the last stage
  std::map<int64_t, int64_t> sent_bytes_;  // to other ranks, in a step of so many tokens
  const DecoderModel* const target_;       // of a layer ahead; else null

  BatchLimits limits_;
  std::unique_ptr<Buffer> memory_;
  Scratch scratch_;
  // The addition to the residual stream that is not done yet, so that it becomes one op with the norm that follows;
  // without rows there is none.
  AddNormArgs put_off_;
  Tensor step_hidden_, step_normed_;  // the first rows of scratch_.hidden and .normed: one per token of the step
  StagedBatch step_;
  std::vector<float> query_scales_;  // [tokens]
  bool own_hidden_ = false;          // StepBatch::own_hidden
  int64_t num_wanted_ = 0;           // rows for the head
  int64_t wanted_before_ = 0;        // StepBatch::wanted_before
  int64_t num_pooled_ = 0;           // rows for hidden(), which follow them in StagedBatch::wanted
  KvLayer encoder_pages_;
  std::unique_ptr<Buffer> encoder_memory_;
  GroupBatch encoder_group_;
  std::vector<int32_t> token_types_;  // [tokens]
  bool head_in_step_ = false;         // the logits of all wanted rows are computed together with the layers
};

}  // namespace quire::model
