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

// Rows [first, first + count) of t.
inline Tensor some_rows(Tensor t, int64_t first, int64_t count) {
  QUIRE_CHECK(first >= 0 && first + count <= t.rows);
  t.data = t.row_f32(first);
  t.rows = count;
  return t;
}

// Cuts row-major matrices out of one block of memory, each on a 64-byte boundary. Without a block it only counts.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
  Tensor take(int64_t rows, int64_t cols) {
    const Tensor t{base_ == nullptr ? nullptr : base_ + used_, DType::kF32, rows, cols, cols};
    used_ += (static_cast<size_t>(rows * cols) * sizeof(float) + 63) / 64 * 64;
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
  Status prepare(const StepLimits& limits) override;
  void forward(const StepBatch& batch, const KvCache& kv) override;
  std::span<const float> logits(int64_t first_wanted, int64_t count) override;

 private:
  // A layer at work: what its functions are given.
  struct LayerContext {
    const StepBatch& batch;
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
    Tensor hidden, normed, parallel, per_layer, wanted, logits;
    char* shared = nullptr;  // mixers, feeds and the head follow one another and share one region
    size_t bytes = 0;
  };
  AttentionScratch attention_scratch(Carver& carver, const LayerConfig& layer, int64_t tokens) const;
  MlaScratch mla_scratch(Carver& carver, int64_t tokens) const;
  RecurrentScratch recurrent_scratch(Carver& carver, const LayerConfig& layer, int64_t tokens) const;
  FeedScratch feed_scratch(Carver& carver, const LayerConfig& layer, int64_t tokens) const;
  Scratch carve(char* base, const StepLimits& limits) const;

  // Each takes the normed rows and leaves its output in `out`.
  void run_mixer(const LayerContext& layer, const Tensor& x, const Tensor& out);
  void run_attention(const LayerContext& layer, const Tensor& x, const Tensor& out);
  void run_mla(const LayerContext& layer, const Tensor& x, const Tensor& out);
  void run_gated_delta_net(const LayerContext& layer, const Tensor& x, const Tensor& out);
  void run_mamba2(const LayerContext& layer, const Tensor& x, const Tensor& out);
  void run_short_conv(const LayerContext& layer, const Tensor& x, const Tensor& out);
  // Runs over parts of the rows; `out` may be x.
  void run_feed(const LayerContext& layer, const Tensor& x, const Tensor& out);
  void run_mlp(const MlpWeights& mlp, int64_t intermediate, bool gated, const Tensor& x, const Tensor& gate_up,
               const Tensor& out);
  void run_experts(const MoeWeights& weights, const FeedScratch& scratch, const Tensor& router_x, const Tensor& x);
  void run_moe(const DecoderLayer& layer, const FeedScratch& scratch, const Tensor& x, const Tensor& out);
  void add_experts_beside(const MoeWeights& weights, const FeedScratch& scratch, const Tensor& hidden,
                          const Tensor& out);
  void embed(const StepBatch& batch);
  void add_per_layer_input(const LayerContext& layer);

  void norm(const Tensor& x, const Norm& norm, int64_t group, const Tensor& out);
  void normalise_heads(const Tensor& x, const Norm& norm, int64_t head_dim);
  void rotate(const Tensor& x, int64_t head_dim, int64_t offset, RopeUse use, const StepBatch& batch);
  void grow_queries(const Tensor& q, const StepBatch& batch);
  void add_to_residual(const Tensor& x, const Norm& post_norm);
  AttentionArgs attention_args(const LayerContext& layer, const Tensor& q, const Tensor& out) const;
  StateSequences state_sequences(const LayerContext& layer) const;

  DecoderConfig config_;
  DecoderWeights weights_;
  Norm head_norm_;           // final_norm with the logits' scale folded in
  std::vector<float> ones_;  // a norm without a weight
  RopeTable rope_, local_rope_;
  float attention_scale_;
  Backend& backend_;

  StepLimits limits_;
  std::unique_ptr<Buffer> memory_;
  Scratch scratch_;
  Tensor step_hidden_, step_normed_;  // cut to the step's tokens by forward()
  std::vector<int32_t> wanted_rows_;
  std::vector<float> query_growth_;  // a factor a token
  int64_t num_wanted_ = 0;
};

}  // namespace quire::model
