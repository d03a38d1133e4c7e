// SPDX-License-Identifier: Apache-2.0
// DecoderModel: the decoder that all families here are settings of, written in ops. One file a kind of layer:
// attention.cc, mla.cc, recurrent.cc, feed.cc; decoder.cc has the frame.
#pragma once

#include <memory>
#include <vector>

#include "model/model.h"
#include "model/rope_table.h"
#include "model/weights.h"

namespace quire::model {

// Cuts row-major matrices out of one block of memory, each on a 64-byte boundary. Without a block it only counts.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
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

class DecoderModel final : public Model {
 public:
  DecoderModel(DecoderConfig config, DecoderWeights weights, int64_t max_model_len, Backend& backend);

  const DecoderConfig& config() const override { return config_; }
  size_t weights_bytes() const override { return weights_.bytes(); }
  DType main_dtype() const override { return weights_.main_dtype; }
  size_t scratch_bytes(const StepLimits& limits) const override;
  WorkspaceLimits workspace_limits(const StepLimits& limits) const override;
  Status prepare(const StepLimits& limits) override;
  void forward(const StepBatch& batch, const KvCache& kv) override;
  std::span<const float> logits(int64_t first_wanted, int64_t count) override;
  Tensor run_head(int64_t first_wanted, int64_t count) override;

 private:
  // The step's arrays in the backend's memory.
  struct StagedGroup {
    std::span<const int64_t> slot_mapping;
    std::span<const int32_t> block_tables, state_source, state_destination;
    int64_t max_blocks = 0;
  };
  struct StagedBatch {
    std::span<const int32_t> tokens, positions, cu_seqlens_q, context_lens, wanted;
    std::span<const float> query_growth;  // a factor a token, where queries grow
    std::vector<StagedGroup> groups;
  };
  // What a layer takes: rows that may still have to go through a norm.
  struct Source {
    Tensor x;
    const Norm* norm = nullptr;
    bool keep = false;  // the normed rows are wanted afterwards, in step_normed_
  };
  // Where a layer leaves its output, or (where may_add and the backend can) that it was added to the residual stream.
  struct Sink {
    Tensor out;
    bool may_add = false;
    mutable bool added = false;
  };
  // A layer at work: what its functions are given.
  struct LayerContext {
    const KvCache& kv;
    int64_t index;
    const LayerConfig& config;
    const DecoderLayer& weights;
  };
  // What a mixer or a feed needs for `tokens` rows, cut from the shared region.
  struct AttentionScratch {
    Tensor qkv, v, out;
  };
  struct MlaScratch {
    Tensor q_a, q, kv, q_latent, out_latent, out;
  };
  struct RecurrentScratch {
    Tensor in, out;
  };
  struct FeedScratch {
    Tensor gate_up, router, out, shared_gate, normed;
    Tensor ids, weights;  // [rows, k]; ids are int32
  };
  struct Scratch {  // views of one block of memory
    Tensor hidden, normed, parallel, per_layer, wanted_hidden, wanted, logits;
    char* shared = nullptr;  // mixers, feeds and the head follow one another and share one region
    size_t bytes = 0;
  };
  AttentionScratch attention_scratch(Carver& carver, const LayerConfig& layer, int64_t tokens) const;
  MlaScratch mla_scratch(Carver& carver, int64_t tokens) const;
  int64_t recurrent_columns(const LayerConfig& layer) const;  // floats a token, on the way to the recurrence
  RecurrentScratch recurrent_scratch(Carver& carver, const LayerConfig& layer, int64_t tokens) const;
  FeedScratch feed_scratch(Carver& carver, const LayerConfig& layer, int64_t tokens) const;
  Scratch carve(char* base, const StepLimits& limits) const;

  void stage(const StepBatch& batch);
  void run_layers(const KvCache& kv);
  const StagedGroup& group(const LayerContext& layer) const {
    return step_.groups[static_cast<size_t>(layer.kv.group(layer.index))];
  }
  void run_mixer(const LayerContext& layer, const Source& source, const Sink& sink);
  void run_attention(const LayerContext& layer, const Source& source, const Sink& sink);
  void write_keys(const LayerContext& layer, const AttentionScratch& scratch);
  bool joined_qkv(const LayerContext& layer, const AttentionScratch& scratch);
  void run_mla(const LayerContext& layer, const Tensor& x, const Sink& sink);
  void run_gated_delta_net(const LayerContext& layer, const Source& source, const Sink& sink);
  void run_mamba2(const LayerContext& layer, const Source& source, const Sink& sink);
  void run_short_conv(const LayerContext& layer, const Source& source, const Sink& sink);
  // Runs over parts of the rows.
  void run_feed(const LayerContext& layer, const Source& source, const Sink& sink);
  void run_mlp(const MlpWeights& mlp, int64_t intermediate, bool gated, const Source& source, const Tensor& gate_up,
               const Sink& sink);
  void run_experts(const MoeWeights& weights, const FeedScratch& scratch, const Tensor& router_x, const Tensor& x);
  void run_moe(const DecoderLayer& layer, const FeedScratch& scratch, const Tensor& x, const Tensor& out);
  void add_experts_beside(const MoeWeights& weights, const FeedScratch& scratch, const Tensor& hidden,
                          const Tensor& out);
  void embed();
  void add_per_layer_input(const LayerContext& layer);

  void norm(const Tensor& x, const Norm& norm, int64_t group, const Tensor& out);
  Tensor normed(const Source& source);  // the source's rows through its norm, in the activations' type
  Tensor activations(const Tensor& x);  // x in that type
  // The first linear of a layer, with the source's norm joined to it where the backend can.
  bool joins_norm(const Source& source, const Linear& linear) const;
  void begin(const Linear& linear, const Source& source, const Tensor& out);
  void finish(const Linear& linear, const Tensor& x, const Sink& sink);
  void normalise_heads(const Tensor& x, const Norm& norm, int64_t head_dim);
  void rotate(const Tensor& x, int64_t head_dim, int64_t offset, RopeUse use);
  void grow_queries(const Tensor& q);
  void add_to_residual(const Tensor& x, const Norm& post_norm);
  AttentionArgs attention_args(const LayerContext& layer, const Tensor& q, const Tensor& out) const;
  StateSequences state_sequences(const LayerContext& layer) const;

  DecoderConfig config_;
  DecoderWeights weights_;
  DType activation_;
  Floats ones_;  // a norm without a weight
  RopeTable rope_, local_rope_;
  float attention_scale_;
  Backend& backend_;

  StepLimits limits_;
  std::unique_ptr<Buffer> memory_;
  Scratch scratch_;
  Tensor step_hidden_, step_normed_;  // cut to the step's tokens by forward()
  StagedBatch step_;
  std::vector<float> query_growth_;  // a factor a token
  int64_t num_wanted_ = 0;
  bool head_in_step_ = false;  // the logits of all wanted rows are made with the layers
};

}  // namespace quire::model
