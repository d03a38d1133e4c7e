// SPDX-License-Identifier: Apache-2.0
// Tensors by name and shape, converted, packed, and nothing left over.
#include "model/load/loader.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "weights/quant.h"

namespace quire::model {

using weights::TensorRef;

Loader::Loader(const ModelFiles& files, const LoadOptions& options, std::optional<DType> dtype, Backend& backend)
    : files_(files),
      config_(files.config),
      options_(options),
      dtype_(dtype),
      backend_(backend),
      gguf_(files.gguf != nullptr) {
  pack_.quantise_activations = dtype != DType::kF32;
  pack_.activation = backend.activation_dtype(dtype.value_or(files.quantised ? DType::kBF16 : files.config.dtype));
  total_ = files.source->is_dummy() ? 0 : files.source->total_bytes();
  for (std::string& tensor : files.source->names()) names_.insert(std::move(tensor));
}

Result<DecoderWeights> Loader::run() {
  DecoderWeights out;
  QUIRE_ASSIGN(out.embedding, matrix({name(Part::kEmbedding, 0), config_.vocab_size}, config_.hidden));
  QUIRE_ASSIGN(out.final_norm, norm(Part::kFinalNorm, 0, {config_.hidden}));
  for (float& w : out.final_norm.weight.host()) w *= config_.logits_scale;
  for (float& b : out.final_norm.bias.host()) b *= config_.logits_scale;
  // The largest matrices first: what packing needs for a moment then lies below what all weights need in the end.
  if (config_.tied_embeddings) {
    Linear::Piece piece{out.embedding, {}};
    if (config_.head_bias) {
      QUIRE_ASSIGN(piece.bias, floats(name(Part::kHead, 0) + ".bias", {config_.vocab_size}));
    }
    out.head.add(std::move(piece));
  } else {
    QUIRE_ASSIGN(out.head, linear({{name(Part::kHead, 0), config_.vocab_size}}, config_.hidden, config_.head_bias));
  }
  if (config_.per_layer_input.dim > 0) QUIRE_TRY(load_per_layer_input(out));
  for (int64_t i = 0; i < config_.layers; ++i) {
    QUIRE_ASSIGN(DecoderLayer layer, load_layer(i));
    out.layers.push_back(std::move(layer));
  }
  QUIRE_TRY(refuse_leftovers());
  QUIRE_TRY(out.place(backend_));
  out.main_dtype = main_dtype();
  out.activation = pack_.activation;
  return out;
}

std::string Loader::name(Part part, int64_t layer, int64_t expert) const {
  std::string out = files_.family->name_of(part, layer, gguf_, expert);
  if (!gguf_ && out.rfind("model.", 0) == 0) out.replace(0, 6, config_.text_prefix);
  return out;
}

Result<const TensorRef*> Loader::require(const std::string& tensor, std::vector<int64_t> shape) {
  QUIRE_ASSIGN(const TensorRef* found, files_.source->require(tensor, shape));
  used_.insert(tensor);
  return found;
}

void Loader::finished(const TensorRef& tensor) {
  done_ += static_cast<int64_t>(tensor.data.size());
  by_type_[static_cast<size_t>(tensor.dtype)] += static_cast<int64_t>(tensor.data.size());
  if (options_.progress) options_.progress(done_, std::max(total_, done_));
  files_.source->release(tensor);
}

// Source bytes that were packed go back at once: a large matrix is never in memory twice.
void Loader::give_back(std::span<const Rows> rows, std::span<const std::byte> bytes) const {
  for (const Rows& row : rows) {
    if (row.tensor == nullptr) continue;
    const std::byte* begin = row.tensor->data.data();
    if (bytes.data() >= begin && bytes.data() < begin + row.tensor->data.size()) {
      files_.source->release_part(*row.tensor, bytes);
    }
  }
}

// A small tensor as floats.
Result<std::vector<float>> Loader::floats(const std::string& tensor, std::vector<int64_t> shape) {
  QUIRE_ASSIGN(const TensorRef* found, require(tensor, std::move(shape)));
  if (is_quantised(found->dtype)) return unsupported("tensor '" + found->name + "' must not be quantised");
  std::vector<float> values(static_cast<size_t>(found->elements()));
  weights::dequantise_row(found->dtype, found->data.data(), values.data(), found->elements());
  finished(*found);
  return values;
}

// The type that --dtype makes of a plain one; quantised ones stay as they are.
DType Loader::narrowed(DType type) const {
  if (is_quantised(type)) return type;
  if (pack_.activation != DType::kF32) return pack_.activation;  // a GPU's matrix units take one type
  return dtype_ && (*dtype_ == DType::kF16 || *dtype_ == DType::kBF16) ? *dtype_ : type;
}

namespace {

void narrow_row(const float* from, DType type, std::byte* to, int64_t count) {
  if (type == DType::kF32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* halves = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) {
    halves[i] = type == DType::kF16 ? float_to_fp16(from[i]) : float_to_bf16(from[i]);
  }
}

}  // namespace

bool Loader::Rows::goes_with(const Rows& other) const {
  const auto ordered = [](const Rows& rows) {
    return rows.quantised != nullptr && !rows.quantised->column_order.empty();
  };
  return raw.dtype == other.raw.dtype && raw.group == other.raw.group &&
         (raw.mins == nullptr) == (other.raw.mins == nullptr) && !ordered(*this) && !ordered(other);
}

Result<std::unique_ptr<weights::LoadedMatrix>> Loader::quantised(const Slice& slice, int64_t k, bool may_reorder) {
  weights::QuantRequest request{.prefix = slice.prefix, .n = slice.all_rows(), .k = k, .expert = slice.expert};
  request.want_f32 = dtype_ == DType::kF32;
  request.may_reorder = may_reorder;
  QUIRE_ASSIGN(weights::LoadedMatrix loaded, weights::load_quantised(*files_.source, files_.scheme, request));
  used_.insert(loaded.tensors.begin(), loaded.tensors.end());
  done_ += loaded.bytes_read;
  by_type_[static_cast<size_t>(loaded.dtype)] += loaded.bytes_read;
  if (options_.progress) options_.progress(done_, std::max(total_, done_));
  return std::make_unique<weights::LoadedMatrix>(std::move(loaded));
}

namespace {

void set_map(const Slice& slice, RawMatrix& raw, std::vector<std::byte>& memory) {
  if (slice.map.empty()) return;
  const size_t size = slice.map.size() * sizeof(int32_t);
  memory.resize(size);
  std::memcpy(memory.data(), slice.map.data(), size);
  raw.file_rows = slice.all_rows();
  raw.row_map = {reinterpret_cast<const int32_t*>(memory.data()), slice.map.size()};
}

}  // namespace

Result<Loader::Rows> Loader::rows(const Slice& slice, int64_t k, bool may_reorder) {
  if (is_quantised_linear(slice.prefix)) {
    Rows out;
    out.name = slice.prefix;
    QUIRE_ASSIGN(out.quantised, quantised(slice, k, may_reorder));
    out.raw = out.quantised->raw();
    out.raw.n = slice.rows;
    set_map(slice, out.raw, out.owned_map);
    return out;
  }
  std::vector<int64_t> shape = {slice.all_rows(), k};
  if (slice.expert >= 0) shape.insert(shape.begin(), slice.experts);
  QUIRE_ASSIGN(const TensorRef* tensor, require(slice.tensor(), shape));
  if (k % info(tensor->dtype).block_elems != 0) {
    return corrupt("tensor '" + tensor->name + "' has rows of " + std::to_string(k) +
                   ", which are no whole blocks of " + quire::name(tensor->dtype));
  }
  const int64_t bytes = row_bytes(tensor->dtype, k);
  const int64_t first = slice.expert >= 0 ? slice.expert * slice.all_rows() : 0;
  Rows out;
  out.tensor = tensor;
  out.raw = {narrowed(tensor->dtype), slice.rows, k, tensor->data.data() + first * bytes};
  out.name = tensor->name;
  set_map(slice, out.raw, out.owned_map);
  if (out.raw.dtype == tensor->dtype) return out;
  out.owned.resize(static_cast<size_t>(slice.all_rows() * row_bytes(out.raw.dtype, k)));
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t r = 0; r < slice.all_rows(); ++r) {
    weights::dequantise_row(tensor->dtype, out.raw.data + r * bytes, row.data(), k);
    narrow_row(row.data(), out.raw.dtype, out.owned.data() + r * row_bytes(out.raw.dtype, k), k);
  }
  files_.source->release_part(*tensor, {out.raw.data, static_cast<size_t>(slice.all_rows() * bytes)});
  out.raw.data = out.owned.data();
  return out;
}

// All rows as one packed matrix; they must share a type.
Result<Packed> Loader::pack(std::vector<Rows> rows) {
  std::vector<RawMatrix> raw;
  for (const Rows& row : rows) raw.push_back(row.raw);
  PackOptions options = pack_;
  options.consumed = [&](std::span<const std::byte> bytes) { give_back(rows, bytes); };
  auto packed = backend_.pack(raw, options);
  const std::string& first = rows.front().name;
  if (!packed.ok() && !first.empty()) {
    return Error{packed.error().code, "tensor '" + first + "': " + packed.error().message};
  }
  if (!packed.ok()) return packed.error();
  return Packed(std::move(packed).value());
}

Result<Packed> Loader::from_floats(std::vector<float> values, int64_t n, int64_t k, DType type) {
  Rows rows;
  rows.owned.resize(static_cast<size_t>(n * row_bytes(type, k)));
  narrow_row(values.data(), type, rows.owned.data(), n * k);
  rows.raw = {type, n, k, rows.owned.data()};
  std::vector<Rows> all;
  all.push_back(std::move(rows));
  return pack(std::move(all));
}

Result<Packed> Loader::matrix(const Slice& slice, int64_t k) {
  std::vector<Rows> all(1);
  QUIRE_ASSIGN(all[0], rows(slice, k));
  const TensorRef* tensor = all[0].tensor;
  QUIRE_ASSIGN(Packed packed, pack(std::move(all)));
  if (tensor != nullptr) finished(*tensor);
  return packed;
}

// One Linear of one or more tensors: fused into one packed matrix where their types agree.
Result<Linear> Loader::linear(const std::vector<Slice>& slices, int64_t k, bool config_has_bias) {
  Linear out;
  std::set<std::string> biases;
  // GGUF leaves it to the file whether a tensor has a bias; a Hugging Face config says so.
  const auto has_bias = [&](const Slice& slice) { return gguf_ ? has(slice.prefix + ".bias") : config_has_bias; };
  size_t next = 0;
  std::optional<Rows> ahead;  // read, and left for the next piece
  while (next < slices.size()) {
    std::vector<Rows> group;
    size_t end = next;
    for (; end < slices.size(); ++end) {
      if (!ahead) {
        QUIRE_ASSIGN(Rows more, rows(slices[end], k, true));
        ahead = std::move(more);
      }
      if (!group.empty() && !ahead->goes_with(group.front())) break;
      group.push_back(std::move(*ahead));
      ahead.reset();
    }
    Linear::Piece piece;
    std::vector<float> bias;
    if (group.front().quantised != nullptr) piece.columns = group.front().quantised->column_order;
    const bool any = std::any_of(slices.begin() + static_cast<ptrdiff_t>(next),
                                 slices.begin() + static_cast<ptrdiff_t>(end), has_bias);
    for (size_t i = next; any && i < end; ++i) {
      const Slice& slice = slices[i];
      std::vector<float> values(static_cast<size_t>(slice.rows), 0.0f);
      if (has_bias(slice)) {
        QUIRE_ASSIGN(std::vector<float> all, floats(slice.prefix + ".bias", {slice.all_rows()}));
        for (size_t r = 0; r < values.size(); ++r) {
          values[r] = all[slice.map.empty() ? r : static_cast<size_t>(slice.map[r])];
        }
      }
      bias.insert(bias.end(), values.begin(), values.end());
    }
    piece.bias = std::move(bias);
    std::set<const TensorRef*> tensors;
    for (const Rows& row : group) {
      if (row.tensor != nullptr) tensors.insert(row.tensor);
    }
    QUIRE_ASSIGN(piece.weight, pack(std::move(group)));
    out.add(std::move(piece));
    // A tensor that a later slice takes again stays until then.
    for (const TensorRef* tensor : tensors) {
      const bool again = std::any_of(slices.begin() + static_cast<ptrdiff_t>(end), slices.end(),
                                     [&](const Slice& slice) { return slice.tensor() == tensor->name; });
      if (!again) finished(*tensor);
    }
    next = end;
  }
  return out;
}

// Old GPTQ files carry a bias of zeros for linears without one.
bool Loader::is_zero_bias(const std::string& tensor) const {
  if (files_.scheme.method == weights::QuantMethod::kNone || tensor.size() < 5) return false;
  if (tensor.compare(tensor.size() - 5, 5, ".bias") != 0) return false;
  const TensorRef* found = files_.source->find(tensor);
  if (found == nullptr || is_quantised(found->dtype)) return false;
  return std::all_of(found->data.begin(), found->data.end(), [](std::byte b) { return b == std::byte{0}; });
}

// A tensor that nobody asked for would have changed the maths.
Status Loader::refuse_leftovers() const {
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
    if (is_ignored(tensor, config_) || weights::is_activation_scale(tensor) || is_zero_bias(tensor)) continue;
    return unsupported("tensor '" + tensor + "' has no place in the " + config_.family +
                       " family; this checkpoint computes something that quire does not");
  }
  return {};
}

DType Loader::main_dtype() const {
  const auto most = std::max_element(by_type_.begin(), by_type_.end());
  const DType type = static_cast<DType>(most - by_type_.begin());
  return dtype_ && *dtype_ != DType::kF32 && !is_quantised(type) ? *dtype_ : type;
}

Result<std::unique_ptr<Model>> load_model(const ModelFiles& files, const LoadOptions& options, Backend& backend) {
  QUIRE_ASSIGN(const std::optional<DType> dtype, parse_dtype(options.dtype));
  QUIRE_ASSIGN(DecoderWeights loaded, Loader(files, options, dtype, backend).run());
  const int64_t max_len = options.max_model_len > 0 ? options.max_model_len : files.config.max_position;
  return std::unique_ptr<Model>(std::make_unique<DecoderModel>(files.config, std::move(loaded), max_len, backend));
}

}  // namespace quire::model
