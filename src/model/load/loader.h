// SPDX-License-Identifier: Apache-2.0
// Loader: from the tensors of an open checkpoint to the weights of a decoder. loader.cc fetches, checks, converts and
// packs; loader_layers.cc knows which tensors a layer has.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "model/layers/decoder.h"
#include "weights/quantised.h"

namespace quire::model {

// A step of Loader::linear: rows of one tensor.
struct Slice {
  std::string prefix;             // the tensor's name without ".weight"
  int64_t rows = 0;               // that are taken
  std::vector<int32_t> map = {};  // which they are; empty: the first ones
  int64_t file_rows = 0;          // of the tensor; 0: as many as are taken
  int64_t expert = -1;            // >= 0: one of a stack [experts, rows, k]
  int64_t experts = 0;
  bool bare = false;  // the tensor is called by the prefix alone

  std::string tensor() const { return bare ? prefix : prefix + ".weight"; }
  int64_t all_rows() const { return file_rows > 0 ? file_rows : rows; }
};

// Used once, on one thread. Remembers which tensors were used, so that none is left over unseen.
class Loader {
 public:
  Loader(const ModelFiles& files, const LoadOptions& options, std::optional<DType> dtype, Backend& backend);
  Result<DecoderWeights> run();

 private:
  // A slice in memory, ready to be packed: in the file, or converted.
  struct Rows {
    RawMatrix raw;
    std::vector<std::byte> owned;
    std::vector<std::byte> owned_map;
    std::unique_ptr<weights::LoadedMatrix> quantised;  // of a Hugging Face folder's scheme
    const weights::TensorRef* tensor = nullptr;        // null where there is no one tensor
    std::string name;                                  // for messages

    // Whether both may be parts of one packed matrix.
    bool goes_with(const Rows& other) const;
  };

  // loader.cc
  std::string name(Part part, int64_t layer, int64_t expert = 0) const;
  // In the file, in whatever type. (A dummy has what was asked for.)
  bool has(const std::string& tensor) const { return names_.count(tensor) != 0; }
  Result<const weights::TensorRef*> require(const std::string& tensor, std::vector<int64_t> shape);
  void finished(const weights::TensorRef& tensor);
  void give_back(std::span<const Rows> rows, std::span<const std::byte> bytes) const;
  Result<std::vector<float>> floats(const std::string& tensor, std::vector<int64_t> shape);
  Result<Rows> rows(const Slice& slice, int64_t k, bool may_reorder = false);
  bool is_quantised_linear(const std::string& prefix) const {
    return !gguf_ && files_.scheme.applies_to(*files_.source, prefix);
  }
  Result<std::unique_ptr<weights::LoadedMatrix>> quantised(const Slice& slice, int64_t k, bool may_reorder);
  Result<Packed> pack(std::vector<Rows> rows);
  Result<Linear> linear(const std::vector<Slice>& slices, int64_t k, bool config_has_bias);
  Result<Packed> matrix(const Slice& slice, int64_t k);
  Result<Packed> from_floats(std::vector<float> values, int64_t n, int64_t k, DType type);
  DType narrowed(DType type) const;
  bool is_zero_bias(const std::string& tensor) const;
  Status refuse_leftovers() const;
  DType main_dtype() const;

  // loader_layers.cc
  Result<Norm> norm(Part part, int64_t layer, std::vector<int64_t> shape);
  Result<DecoderLayer> load_layer(int64_t index);
  Status load_norms(const LayerConfig& config, int64_t index, DecoderLayer& out);
  Status load_attention(const LayerConfig& config, int64_t index, AttentionWeights& out);
  Status load_mla(int64_t index, MlaWeights& out);
  Status load_latent_heads(int64_t index, MlaWeights& out);
  Status load_gated_delta_net(int64_t index, RecurrentWeights& out);
  Result<std::vector<Slice>> gated_delta_net_slices(int64_t index) const;
  Status load_mamba2(int64_t index, RecurrentWeights& out);
  Status load_short_conv(int64_t index, RecurrentWeights& out);
  Status load_conv(int64_t index, int64_t channels, int64_t kernel, bool bias, RecurrentWeights& out);
  Status load_decay(int64_t index, int64_t heads, RecurrentWeights& out);
  Status load_mlp(const LayerConfig& config, int64_t index, MlpWeights& out);
  Status load_moe(int64_t index, MoeWeights& out);
  Status load_experts(int64_t index, MoeWeights& out);
  Status load_beside_mlp(int64_t index, MoeWeights& out);
  Status load_transposed_experts(int64_t index, MoeWeights& out);
  Status load_expert_biases(int64_t index, MoeWeights& out);
  Status load_shared_expert(int64_t index, MoeWeights& out);
  Status load_per_layer_input(DecoderWeights& out);
  std::vector<int32_t> unpermuted(int64_t rows, int64_t head_dim) const;

  const ModelFiles& files_;
  const DecoderConfig& config_;
  const LoadOptions& options_;
  std::optional<DType> dtype_;
  Backend& backend_;
  bool gguf_;
  PackOptions pack_;
  std::set<std::string> names_, used_;
  std::array<int64_t, kNumDTypes> by_type_{};
  int64_t done_ = 0;
  int64_t total_ = 0;
};

}  // namespace quire::model
