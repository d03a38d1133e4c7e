// SPDX-License-Identifier: Apache-2.0
// DecoderModel: the decoder-only transformer that all families here are settings of, written in ops.
#pragma once

#include <memory>
#include <vector>

#include "model/linear.h"
#include "model/model.h"
#include "model/rope_table.h"

namespace quire::model {

// The weights of one layer; a vector that the family does not have is empty.
struct DecoderLayer {
  std::vector<float> attention_norm, mlp_norm;            // [hidden], before
  std::vector<float> post_attention_norm, post_mlp_norm;  // [hidden], after
  std::vector<float> q_norm, k_norm;                      // [head_dim] or the whole width
  Linear qkv, o, gate_up, down;
};

struct DecoderWeights {
  std::shared_ptr<const PackedMatrix> embedding;  // [vocab, hidden]
  std::vector<DecoderLayer> layers;
  std::vector<float> final_norm;  // [hidden]
  Linear head;                    // [vocab, hidden]; shares the embedding when tied
  DType main_dtype = DType::kF32;
};

class DecoderModel final : public Model {
 public:
  DecoderModel(DecoderConfig config, DecoderWeights weights, int64_t max_model_len, Backend& backend);

  const DecoderConfig& config() const override { return config_; }
  size_t weights_bytes() const override;
  DType main_dtype() const override { return weights_.main_dtype; }
  size_t scratch_bytes(const StepLimits& limits) const override;
  Status prepare(const StepLimits& limits) override;
  void forward(const StepBatch& batch, const KvCache& kv) override;
  std::span<const float> logits(int64_t first_wanted, int64_t count) override;

 private:
  struct Width {  // columns of each scratch matrix
    int64_t hidden, qkv, attention, gate_up;
  };
  struct Scratch {  // views of one block of memory
    Tensor hidden, normed, qkv, attention, gate_up, wanted, logits;
    size_t bytes = 0;
  };
  Width width() const;
  Scratch carve(char* base, const StepLimits& limits) const;
  void run_attention(const StepBatch& batch, const KvCache& kv, int64_t layer);
  void run_mlp(const DecoderLayer& layer);
  void add_to_residual(const std::vector<float>& post_norm);
  void norm(const Tensor& x, const std::vector<float>& weight, int64_t group, const Tensor& out);

  DecoderConfig config_;
  DecoderWeights weights_;
  std::vector<float> head_norm_;  // final_norm with the logits' scale folded in
  RopeTable rope_;
  float attention_scale_;
  Backend& backend_;

  StepLimits limits_;
  std::unique_ptr<Buffer> memory_;
  Scratch scratch_;
  Tensor step_hidden_, step_normed_, step_qkv_, step_attention_;  // cut to the step's tokens by forward()
  std::vector<int32_t> wanted_rows_;
  int64_t num_wanted_ = 0;
};

}  // namespace quire::model
