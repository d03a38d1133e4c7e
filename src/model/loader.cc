// SPDX-License-Identifier: Apache-2.0
// From an open checkpoint to packed weights: names, shapes, types, and nothing left over.
#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "base/file.h"
#include "base/half.h"
#include "base/log.h"
#include "model/decoder.h"
#include "model/family.h"
#include "weights/dummy.h"
#include "weights/quant.h"

namespace quire::model {
namespace {

using weights::TensorRef;
using weights::WeightSource;

// Fetches, checks, converts and packs the tensors of one model; remembers which were used.
class Loader {
 public:
  Loader(const ModelFiles& files, const LoadOptions& options, std::optional<DType> dtype, Backend& backend)
      : files_(files),
        config_(files.config),
        options_(options),
        dtype_(dtype),
        backend_(backend),
        gguf_(files.gguf != nullptr) {
    pack_.quantise_activations = dtype != DType::kF32;
    total_ = files.source->is_dummy() ? 0 : files.source->total_bytes();
  }

  Result<DecoderWeights> run() {
    DecoderWeights out;
    QUIRE_ASSIGN(out.embedding, matrix({{Part::kEmbedding, config_.vocab_size}}, 0, config_.hidden));
    QUIRE_ASSIGN(out.final_norm, vector(name(Part::kFinalNorm, 0), config_.hidden));
    // The largest matrices first: what packing needs for a moment then lies below what all weights need in the end.
    if (config_.tied_embeddings) {
      out.head.add({out.embedding, {}});
    } else {
      QUIRE_ASSIGN(auto head, matrix({{Part::kHead, config_.vocab_size}}, 0, config_.hidden));
      out.head.add({std::move(head), {}});
    }
    for (int64_t i = 0; i < config_.layers; ++i) {
      QUIRE_ASSIGN(DecoderLayer layer, load_layer(i));
      out.layers.push_back(std::move(layer));
    }
    QUIRE_TRY(refuse_leftovers());
    out.main_dtype = main_dtype();
    return out;
  }

 private:
  // One tensor of a Linear: its part and how many rows it must have.
  struct Rows {
    Part part;
    int64_t rows;
  };

  std::string name(Part part, int64_t layer) const { return files_.family->name_of(part, layer, gguf_); }

  Result<const TensorRef*> require(const std::string& tensor, std::initializer_list<int64_t> shape) {
    const std::vector<int64_t> wanted(shape);
    QUIRE_ASSIGN(const TensorRef* found, files_.source->require(tensor, wanted));
    used_.insert(tensor);
    return found;
  }

  void finished(const TensorRef& tensor) {
    done_ += static_cast<int64_t>(tensor.data.size());
    by_type_[static_cast<size_t>(tensor.dtype)] += static_cast<int64_t>(tensor.data.size());
    if (options_.progress) options_.progress(done_, std::max(total_, done_));
    files_.source->release(tensor);
  }

  // Source bytes that were packed go back at once: a large matrix is never in memory twice.
  void give_back(const std::vector<const TensorRef*>& tensors, std::span<const std::byte> bytes) const {
    for (const TensorRef* tensor : tensors) {
      const std::byte* begin = tensor->data.data();
      if (bytes.data() >= begin && bytes.data() < begin + tensor->data.size()) {
        files_.source->release_part(*tensor, bytes);
      }
    }
  }

  // A 1-D tensor as floats.
  Result<std::vector<float>> vector(const std::string& prefix, int64_t size, const char* suffix = ".weight") {
    QUIRE_ASSIGN(const TensorRef* tensor, require(prefix + suffix, {size}));
    std::vector<float> values(static_cast<size_t>(size));
    if (is_quantised(tensor->dtype)) return unsupported("tensor '" + tensor->name + "' must not be quantised");
    weights::dequantise_row(tensor->dtype, tensor->data.data(), values.data(), size);
    finished(*tensor);
    return values;
  }

  // A plain tensor in the type that --dtype asks for; quantised ones stay as they are.
  struct Converted {
    DType dtype;
    const std::byte* data;
    std::vector<std::byte> owned;
  };
  Converted convert(const TensorRef& tensor) const {
    const bool narrow = dtype_ && (*dtype_ == DType::kF16 || *dtype_ == DType::kBF16);
    if (!narrow || is_quantised(tensor.dtype) || tensor.dtype == *dtype_) return {tensor.dtype, tensor.data.data(), {}};
    const int64_t k = tensor.columns();
    Converted out{*dtype_, nullptr, std::vector<std::byte>(static_cast<size_t>(tensor.elements()) * 2)};
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t r = 0; r < tensor.rows(); ++r) {
      weights::dequantise_row(tensor.dtype, tensor.data.data() + r * row_bytes(tensor.dtype, k), row.data(), k);
      auto* to = reinterpret_cast<uint16_t*>(out.owned.data()) + r * k;
      for (int64_t i = 0; i < k; ++i) to[i] = *dtype_ == DType::kF16 ? float_to_fp16(row[i]) : float_to_bf16(row[i]);
    }
    out.data = out.owned.data();
    return out;
  }

  // Row 2i + j of a head in the file is row j * d/2 + i of the model: GGUF's order for interleaved rotation.
  std::vector<int32_t> unpermuted(Part part, int64_t rows) const {
    std::vector<int32_t> map;
    if (!gguf_ || !config_.gguf_permuted || (part != Part::kQ && part != Part::kK)) return map;
    const int64_t d = config_.head_dim;
    map.resize(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t in_head = r % d;
      const int64_t j = in_head / (d / 2);
      const int64_t i = in_head % (d / 2);
      map[static_cast<size_t>(r)] = static_cast<int32_t>(r - in_head + 2 * i + j);
    }
    return map;
  }

  // The parts as one packed matrix; they must share a type.
  Result<std::shared_ptr<const PackedMatrix>> matrix(std::vector<Rows> parts, int64_t layer, int64_t k) {
    std::vector<const TensorRef*> tensors;
    std::vector<Converted> data;
    std::vector<std::vector<int32_t>> maps;
    std::vector<RawMatrix> raw;
    for (const Rows& part : parts) {
      QUIRE_ASSIGN(const TensorRef* tensor, require(name(part.part, layer) + ".weight", {part.rows, k}));
      tensors.push_back(tensor);
      data.push_back(convert(*tensor));
      if (!data.back().owned.empty()) files_.source->release_part(*tensor, tensor->data);
      maps.push_back(unpermuted(part.part, part.rows));
    }
    for (size_t i = 0; i < parts.size(); ++i) raw.push_back({data[i].dtype, parts[i].rows, k, data[i].data, maps[i]});
    PackOptions options = pack_;
    options.consumed = [&](std::span<const std::byte> bytes) { give_back(tensors, bytes); };
    auto packed = backend_.pack(raw, options);
    if (!packed.ok()) return Error{packed.error().code, "tensor '" + tensors[0]->name + "': " + packed.error().message};
    for (const TensorRef* tensor : tensors) finished(*tensor);
    return std::shared_ptr<const PackedMatrix>(std::move(packed).value());
  }

  Result<std::vector<float>> bias(Part part, int64_t layer, int64_t rows) {
    QUIRE_ASSIGN(std::vector<float> values, vector(name(part, layer), rows, ".bias"));
    const std::vector<int32_t> map = unpermuted(part, rows);
    if (map.empty()) return values;
    std::vector<float> ordered(values.size());
    for (size_t i = 0; i < map.size(); ++i) ordered[i] = values[static_cast<size_t>(map[i])];
    return ordered;
  }

  // GGUF leaves it to the file whether a tensor has a bias; a Hugging Face config says so.
  bool has_bias(Part part, int64_t layer, bool config_says) const {
    return gguf_ ? files_.source->find(name(part, layer) + ".bias") != nullptr : config_says;
  }

  // One Linear of one or more tensors: fused into one packed matrix where their types agree.
  Result<Linear> linear(std::vector<Rows> parts, int64_t layer, int64_t k, bool config_has_bias) {
    std::vector<std::vector<Rows>> groups;
    std::optional<DType> last;
    for (const Rows& part : parts) {
      QUIRE_ASSIGN(const TensorRef* tensor, require(name(part.part, layer) + ".weight", {part.rows, k}));
      const DType type = tensor->dtype;
      if (last != type) groups.emplace_back();
      groups.back().push_back(part);
      last = type;
    }
    Linear out;
    for (const auto& group : groups) {
      Linear::Piece piece;
      QUIRE_ASSIGN(piece.weight, matrix(group, layer, k));
      const bool any = std::any_of(group.begin(), group.end(),
                                   [&](const Rows& part) { return has_bias(part.part, layer, config_has_bias); });
      for (const Rows& part : group) {
        if (!any) continue;
        std::vector<float> values(static_cast<size_t>(part.rows), 0.0f);
        if (has_bias(part.part, layer, config_has_bias)) {
          QUIRE_ASSIGN(values, bias(part.part, layer, part.rows));
        }
        piece.bias.insert(piece.bias.end(), values.begin(), values.end());
      }
      out.add(std::move(piece));
    }
    return out;
  }

  bool is_fused(Part fused, int64_t layer, bool config_says) const {
    return config_says ||
           (gguf_ && files_.source->find(name(fused, layer) + ".weight") != nullptr && fused == Part::kQkv);
  }

  Result<DecoderLayer> load_layer(int64_t i) {
    const int64_t q = config_.heads * config_.head_dim;
    const int64_t kv = config_.kv_heads * config_.head_dim;
    DecoderLayer out;
    if (config_.norms != NormPlacement::kPost) {
      QUIRE_ASSIGN(out.attention_norm, vector(name(Part::kAttentionNorm, i), config_.hidden));
      QUIRE_ASSIGN(out.mlp_norm, vector(name(Part::kMlpNorm, i), config_.hidden));
    }
    if (config_.norms != NormPlacement::kPre) {
      QUIRE_ASSIGN(out.post_attention_norm, vector(name(Part::kPostAttentionNorm, i), config_.hidden));
      QUIRE_ASSIGN(out.post_mlp_norm, vector(name(Part::kPostMlpNorm, i), config_.hidden));
    }
    if (config_.qk_norm != QkNorm::kNone) {
      const bool whole = config_.qk_norm == QkNorm::kWhole;
      QUIRE_ASSIGN(out.q_norm, vector(name(Part::kQNorm, i), whole ? q : config_.head_dim));
      QUIRE_ASSIGN(out.k_norm, vector(name(Part::kKNorm, i), whole ? kv : config_.head_dim));
    }
    std::vector<Rows> qkv = {{Part::kQ, q}, {Part::kK, kv}, {Part::kV, kv}};
    if (is_fused(Part::kQkv, i, config_.fused_qkv)) qkv = {{Part::kQkv, q + 2 * kv}};
    std::vector<Rows> gate_up = {{Part::kGate, config_.intermediate}, {Part::kUp, config_.intermediate}};
    if (config_.fused_gate_up) gate_up = {{Part::kGateUp, 2 * config_.intermediate}};
    QUIRE_ASSIGN(out.qkv, linear(qkv, i, config_.hidden, config_.qkv_bias));
    QUIRE_ASSIGN(out.o, linear({{Part::kO, config_.hidden}}, i, q, config_.o_bias));
    QUIRE_ASSIGN(out.gate_up, linear(gate_up, i, config_.hidden, config_.mlp_bias));
    QUIRE_ASSIGN(out.down, linear({{Part::kDown, config_.hidden}}, i, config_.intermediate, config_.mlp_bias));
    return out;
  }

  // A tensor that nobody asked for would have changed the maths.
  Status refuse_leftovers() const {
    if (files_.source->is_dummy()) return {};
    for (const std::string& tensor : files_.source->names()) {
      if (used_.count(tensor) != 0) continue;
      const auto ends_with = [&](std::string_view end) {
        return tensor.size() >= end.size() && tensor.compare(tensor.size() - end.size(), end.size(), end) == 0;
      };
      if (ends_with("rotary_emb.inv_freq") || ends_with(".attention.bias") || ends_with(".masked_bias"))
        continue;                                    // tables
      if (tensor.rfind("rope_f", 0) == 0) continue;  // rope_freqs, rope_factors_*: read with the config
      if (config_.tied_embeddings && tensor == name(Part::kHead, 0) + ".weight") continue;
      return unsupported("tensor '" + tensor + "' has no place in the " + config_.family +
                         " family; this checkpoint computes something that quire does not");
    }
    return {};
  }

  DType main_dtype() const {
    const auto most = std::max_element(by_type_.begin(), by_type_.end());
    const DType type = static_cast<DType>(most - by_type_.begin());
    return dtype_ && *dtype_ != DType::kF32 && !is_quantised(type) ? *dtype_ : type;
  }

  const ModelFiles& files_;
  const DecoderConfig& config_;
  const LoadOptions& options_;
  std::optional<DType> dtype_;
  Backend& backend_;
  bool gguf_;
  PackOptions pack_;
  std::set<std::string> used_;
  std::array<int64_t, kNumDTypes> by_type_{};
  int64_t done_ = 0;
  int64_t total_ = 0;
};

}  // namespace

Result<std::unique_ptr<Model>> load_model(const ModelFiles& files, const LoadOptions& options, Backend& backend) {
  QUIRE_ASSIGN(const std::optional<DType> dtype, parse_dtype(options.dtype));
  QUIRE_ASSIGN(DecoderWeights loaded, Loader(files, options, dtype, backend).run());
  const int64_t max_len = options.max_model_len > 0 ? options.max_model_len : files.config.max_position;
  return std::unique_ptr<Model>(std::make_unique<DecoderModel>(files.config, std::move(loaded), max_len, backend));
}

}  // namespace quire::model
