// SPDX-License-Identifier: Apache-2.0
// Fetching, converting and packing tensors.
#include "model/load/loader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/half.h"
#include "base/parallel.h"
#include "weights/dummy.h"
#include "weights/quant.h"

namespace quire::model {

using weights::TensorRef;

std::vector<int32_t> strided_rows(int64_t begin, int64_t count, int64_t step, int64_t times) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < times * count; ++i) {
    out.push_back(static_cast<int32_t>(begin + i / count * step + i % count));
  }
  return out;
}

Slice pick(Slice slice, const std::vector<int32_t>& places) {
  std::vector<int32_t> map = places;
  for (int32_t& row : map) row = slice.map.empty() ? row : slice.map[static_cast<size_t>(row)];
  slice.file_rows = slice.all_rows();
  slice.rows = std::ssize(map);
  slice.map = std::move(map);
  return slice;
}

Slice cut(Slice slice, int64_t part, int64_t parts) {
  if (parts == 1) return slice;
  const int64_t rows = (slice.rows + parts - 1) / parts;
  std::vector<int32_t> places(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    places[static_cast<size_t>(i)] = static_cast<int32_t>(std::min(part * rows + i, slice.rows - 1));
  }
  return pick(std::move(slice), places);
}

std::vector<float> take_rows(const std::vector<float>& values, int64_t columns, const std::vector<int32_t>& map) {
  std::vector<float> out;
  out.reserve(map.size() * static_cast<size_t>(columns));
  for (const int32_t row : map) {
    const auto begin = values.begin() + row * columns;
    out.insert(out.end(), begin, begin + columns);
  }
  return out;
}

std::vector<float> cut(const std::vector<float>& values, int64_t columns, int64_t part, int64_t parts) {
  if (parts == 1) return values;
  return take_rows(values, columns, cut({"", std::ssize(values) / columns}, part, parts).map);
}

namespace {

// What quantised folders leave as it is: tables, routers, and the part of latent attention that is expanded anyway.
// MLX and GGUF quantise the embedding and the head, compressed-tensors the head if its config does not exclude it.
std::set<std::string> plain_linears(const Loader& loader) {
  using weights::QuantMethod;
  const QuantMethod method = loader.files().scheme.method;
  const Family& family = *loader.files().family;
  std::set<std::string> out;
  const auto add = [&](Part part, int64_t layer) {
    if (family.has_name(part)) out.insert(loader.name(part, layer));
  };
  const bool tables = method == QuantMethod::kMlx || method == QuantMethod::kGguf;
  if (!tables) add(Part::kEmbedding, 0);
  if (!tables) add(Part::kPerLayerEmbedding, 0);
  if (!tables && method != QuantMethod::kCompressed) add(Part::kHead, 0);
  for (const Part part : {Part::kPositionEmbedding, Part::kTypeEmbedding}) add(part, 0);
  for (int64_t i = 0; i < loader.config().layers; ++i) {
    for (const Part part : {Part::kRouter, Part::kSharedExpertGate, Part::kKvB}) add(part, i);
  }
  return out;
}

}  // namespace

Loader::Loader(const ModelFiles& files, const LoadOptions& options, std::optional<DType> dtype, Backend& backend,
               DecoderConfig own)
    : files_(files), options_(options), dtype_(dtype), backend_(backend), own_(std::move(own)) {
  pack_.quantise_activations = dtype != DType::kF32;
  pack_.activation = activation_of(files, dtype, backend);
  total_ = files.source->is_dummy() ? 0 : files.source->total_bytes();
  if (const auto random = files.source->random("", {}); random.ok()) {  // dummy weights
    dummy_dtype_ = random->stored;
    const double size = weights::dummy_element_bytes(files.scheme, static_cast<double>(info(dummy_dtype_).block_bytes));
    const double bytes = dummy_bytes(files.config, size);
    total_ = static_cast<int64_t>(std::min(bytes, 0x1p62)) / own_.share.ranks;
    plain_ = plain_linears(*this);
  }
  for (std::string& tensor : files.source->names()) names_.insert(std::move(tensor));
}

std::string Loader::name(Part part, int64_t layer, int64_t expert) const {
  std::string out = files_.family->name_of(part, layer + config().first_layer, gguf(), expert);
  constexpr std::string_view kLayers = "model.layers.";
  if (out.starts_with("mtp.")) return config().ahead.prefix + out;
  constexpr std::string_view kMiddle = "midlayer.";  // EAGLE-3, whose newer files name it as others do
  if (out.starts_with(kMiddle) && has("layers.0.hidden_norm.weight"))
    return out.replace(0, kMiddle.size(), "layers.0.");
  if (!config().layer_prefix.empty() && out.starts_with(kLayers)) {
    return out.replace(0, kLayers.size(), config().layer_prefix);
  }
  if (!gguf() && out.starts_with("model.")) out.replace(0, 6, config().text_prefix);
  if (!gguf() && part == Part::kHead) out.insert(0, config().head_prefix);
  return out;
}

Status Loader::check_cancelled() const {
  if (options_.cancelled == nullptr || !*options_.cancelled) return {};
  return Error{ErrorCode::kCancelled, "the load was cancelled"};
}

Result<const TensorRef*> Loader::require(const std::string& tensor, std::vector<int64_t> shape) {
  QUIRE_TRY(check_cancelled());
  QUIRE_ASSIGN(const TensorRef* found, files_.source->require(tensor, shape));
  used_.insert(tensor);
  return found;
}

void Loader::count(DType type, int64_t bytes) {
  done_ += bytes;
  by_type_[static_cast<size_t>(type)] += bytes;
  if (options_.progress) options_.progress(done_, std::max(total_, done_));
}

void Loader::finished(const TensorRef& tensor) {
  count(tensor.dtype, static_cast<int64_t>(tensor.data.size()));
  files_.source->release(tensor);
}

// Releases bytes of the file as soon as they are packed: a large matrix is never in memory twice.
void Loader::release(std::span<const Rows> rows, std::span<const std::byte> bytes) const {
  for (const Rows& row : rows) {
    if (row.tensor == nullptr) continue;
    const std::byte* begin = row.tensor->data.data();
    if (bytes.data() >= begin && bytes.data() < begin + row.tensor->data.size()) {
      files_.source->release_part(*row.tensor, bytes);
    }
  }
}

Result<std::vector<float>> Loader::floats(const std::string& tensor, std::vector<int64_t> shape) {
  QUIRE_ASSIGN(const TensorRef* found, require(tensor, std::move(shape)));
  if (is_quantised(found->dtype)) return unsupported({"tensor '", found->name, "' must not be quantised"});
  std::vector<float> values(static_cast<size_t>(found->elements()));
  weights::dequantise_row(found->dtype, found->data.data(), values.data(), found->elements());
  finished(*found);
  return values;
}

Result<Norm> Loader::norm(Part part, int64_t layer, std::vector<int64_t> shape) {
  Norm out;
  QUIRE_ASSIGN(out.weight, floats(name(part, layer) + ".weight", shape));
  // MLX's converter adds the 1 for the hybrid families.
  const bool added = gguf() || (files_.scheme.method == weights::QuantMethod::kMlx && config().gdn.key_heads > 0);
  if (config().norm_plus_one && !added) {
    for (float& w : out.weight.host()) w += 1.0f;
  }
  if (config().norm_kind == NormKind::kLayerWithBias) {
    QUIRE_ASSIGN(out.bias, floats(name(part, layer) + ".bias", std::move(shape)));
  }
  return out;
}

DType Loader::narrowed(DType type) const {
  if (is_quantised(type)) return type;
  if (pack_.activation != DType::kF32) return pack_.activation;  // a GPU's matrix units take one type
  return dtype_ && (*dtype_ == DType::kF16 || *dtype_ == DType::kBF16) ? *dtype_ : type;
}

namespace {

// Rows that are worth a thread.
int64_t rows_per_block(int64_t k) {
  return std::max<int64_t>(1, (int64_t{1} << 17) / k);
}

void narrow_row(const float* from, DType type, std::byte* to, int64_t count) {
  if (is_quantised(type)) return weights::quantise_row(type, from, to, count);
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

bool Loader::Rows::can_join(const Rows& other) const {
  const auto ordered = [](const Rows& rows) {
    return rows.quantised != nullptr && !rows.quantised->column_order.empty();
  };
  const auto codes = [](const Rows& rows) { return rows.raw.random ? rows.raw.random->codes.bits > 0 : false; };
  return raw.dtype == other.raw.dtype && raw.group == other.raw.group &&
         raw.random.has_value() == other.raw.random.has_value() && codes(*this) == codes(other) &&
         (raw.mins == nullptr) == (other.raw.mins == nullptr) && !ordered(*this) && !ordered(other);
}

// Whether fp8 may stay one byte per weight. A backend rounds its values by the type of activations, which must say the
// same as the type that the weight would have had.
bool Loader::keeps_fp8() const {
  return backend_.packs(DType::kGF8) && (dtype_ == DType::kF32) == (pack_.activation == DType::kF32);
}

bool Loader::is_quantised_linear(const std::string& prefix) const {
  const weights::QuantScheme& scheme = files_.scheme;
  if (!files_.source->is_dummy()) return !gguf() && scheme.applies_to(*files_.source, prefix);
  // GPT-OSS has only its experts in MXFP4, and not with --dtype float32.
  if (scheme.method == weights::QuantMethod::kMxfp4 &&
      (dtype_ == DType::kF32 || prefix.find(".experts") == prefix.npos)) {
    return false;
  }
  return scheme.method != weights::QuantMethod::kNone && plain_.count(prefix) == 0 && !scheme.ignored.contains(prefix);
}

std::optional<weights::DummyForm> Loader::dummy_form(const Slice& slice, int64_t k) const {
  if (!files_.source->is_dummy() || !is_quantised_linear(slice.prefix)) return std::nullopt;
  return weights::dummy_form(files_.scheme, slice.prefix, slice.all_rows(), k);
}

int64_t Loader::fp8_group(const Slice& slice, int64_t k) const {
  if (!keeps_fp8() || !is_quantised_linear(slice.prefix)) return 0;
  if (files_.source->is_dummy()) {
    const auto form = dummy_form(slice, k);
    return form && form->type == DType::kGF8 ? form->group : 0;
  }
  return weights::fp8_group(*files_.source, files_.scheme,
                            {.prefix = slice.prefix, .n = slice.all_rows(), .k = k, .expert = slice.expert});
}

Result<std::unique_ptr<weights::LoadedMatrix>> Loader::quantised(const Slice& slice, int64_t k, RowOptions options) {
  weights::QuantRequest request{.prefix = slice.prefix, .n = slice.all_rows(), .k = k, .expert = slice.expert};
  request.want_f32 = dtype_ == DType::kF32;
  request.may_reorder = options.may_reorder;
  request.keep_fp8 = options.keep_fp8 && keeps_fp8();
  QUIRE_ASSIGN(weights::LoadedMatrix loaded, weights::load_quantised(*files_.source, files_.scheme, request));
  used_.insert(loaded.tensors.begin(), loaded.tensors.end());
  count(loaded.dtype, loaded.bytes_read);
  return std::make_unique<weights::LoadedMatrix>(std::move(loaded));
}

namespace {

// raw.row_map refers to `memory`.
void set_map(const Slice& slice, RawMatrix& raw, std::vector<std::byte>& memory) {
  if (slice.map.empty()) return;
  const size_t size = slice.map.size() * sizeof(int32_t);
  memory.resize(size);
  std::memcpy(memory.data(), slice.map.data(), size);
  raw.file_rows = slice.all_rows();
  raw.row_map = {reinterpret_cast<const int32_t*>(memory.data()), slice.map.size()};
}

}  // namespace

Result<Loader::Rows> Loader::made_rows(const std::string& tensor, const std::vector<int64_t>& shape, const Made& made) {
  QUIRE_TRY(check_cancelled());
  QUIRE_ASSIGN(RandomElements random, files_.source->random(tensor, shape));
  random.first = made.first;
  random.row_step = made.row_step;
  random.column_step = made.column_step;
  random.rows = made.made > 0 ? made.made : made.rows;
  Rows out;
  out.name = tensor;
  out.raw = {made.type, made.rows, made.k};
  out.raw.random = random;
  count(random.stored, random.rows * row_bytes(random.stored, made.k));
  return out;
}

// As load_quantised() loads a file's: codes, or values of fp8, or floats where the groups do not fit.
Result<Loader::Rows> Loader::made_codes(const Slice& slice, int64_t k, weights::DummyForm form, RowOptions options) {
  QUIRE_TRY(check_cancelled());
  if (form.reordered && !options.may_reorder) form = {};
  if (form.type == DType::kGF8 && (!options.keep_fp8 || !keeps_fp8() || form.group == 0)) {
    form.type = dtype_ == DType::kF32 ? DType::kF32 : DType::kBF16;
    form.group = 0;
  }
  std::vector<int64_t> shape = {slice.all_rows(), k};
  if (slice.expert >= 0) shape.insert(shape.begin(), slice.experts);
  QUIRE_ASSIGN(RandomElements random, files_.source->random(slice.tensor(), shape));
  random.first = std::max<int64_t>(slice.expert, 0) * slice.all_rows() * k;
  random.row_step = k;
  random.rows = slice.rows;
  Rows out;
  out.name = slice.tensor();
  out.raw = {form.type, slice.rows, k};
  out.raw.group = form.group;
  count(form.type, slice.rows * row_bytes(form.type, k));
  if (form.bits > 0) weights::set_codes(form, k, random);
  random.stored = DType::kF32;
  if (form.bits > 0 || makes(DType::kF32)) {
    out.raw.random = random;
    set_map(slice, out.raw, out.owned_map);
  } else {
    out.owned.resize(static_cast<size_t>(slice.rows * k) * sizeof(float));
    parallel_blocks(slice.rows, rows_per_block(k), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t from = slice.map.empty() ? r : slice.map[static_cast<size_t>(r)];
        auto* to = reinterpret_cast<float*>(out.owned.data()) + r * k;
        weights::fill_random(random, random.first + from * k, {to, static_cast<size_t>(k)});
      }
    });
    out.raw.data = out.owned.data();
  }
  if (form.reordered) {
    out.quantised = std::make_unique<weights::LoadedMatrix>();
    out.quantised->column_order = weights::dummy_order(random.key, k);
  }
  return out;
}

Result<Loader::Rows> Loader::rows(const Slice& slice, int64_t k, RowOptions options) {
  if (const auto form = dummy_form(slice, k)) return made_codes(slice, k, *form, options);
  if (!files_.source->is_dummy() && is_quantised_linear(slice.prefix)) {
    Rows out;
    out.name = slice.prefix;
    QUIRE_ASSIGN(out.quantised, quantised(slice, k, options));
    out.raw = out.quantised->raw();
    out.raw.n = slice.rows;
    set_map(slice, out.raw, out.owned_map);
    return out;
  }
  std::vector<int64_t> shape = {slice.all_rows(), k};
  if (slice.expert >= 0) shape.insert(shape.begin(), slice.experts);
  if (const DType type = narrowed(dummy_dtype()); makes(type)) {
    const int64_t before = std::max<int64_t>(slice.expert, 0) * slice.all_rows() * k;
    QUIRE_ASSIGN(Rows made, made_rows(slice.tensor(), shape, {type, slice.rows, k, before, k}));
    set_map(slice, made.raw, made.owned_map);
    return made;
  }
  QUIRE_ASSIGN(const TensorRef* tensor, require(slice.tensor(), shape));
  if (k % info(tensor->dtype).block_elems != 0) {
    return corrupt({"tensor '", tensor->name, "' has rows of ", k,
                    " elements, which is not a whole number of blocks of ", quire::name(tensor->dtype)});
  }
  const int64_t bytes = row_bytes(tensor->dtype, k);
  const int64_t first = slice.expert >= 0 ? slice.expert * slice.all_rows() : 0;
  Rows out;
  out.tensor = tensor;
  out.raw = {narrowed(tensor->dtype), slice.rows, k, tensor->data.data() + first * bytes};
  out.name = tensor->name;
  if (out.raw.dtype == tensor->dtype) {
    set_map(slice, out.raw, out.owned_map);
    return out;
  }
  out.owned.resize(static_cast<size_t>(slice.rows * row_bytes(out.raw.dtype, k)));
  parallel_blocks(slice.rows, rows_per_block(k), [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = slice.map.empty() ? r : slice.map[static_cast<size_t>(r)];
      weights::dequantise_row(tensor->dtype, out.raw.data + from * bytes, row.data(), k);
      narrow_row(row.data(), out.raw.dtype, out.owned.data() + r * row_bytes(out.raw.dtype, k), k);
    }
  });
  files_.source->release_part(*tensor, {out.raw.data, static_cast<size_t>(slice.all_rows() * bytes)});
  out.raw.data = out.owned.data();
  return out;
}

Loader::PackPlace Loader::next_of(const std::vector<Packed>& packed, int64_t count) {
  const PackedMatrix* first = packed.empty() ? nullptr : packed.front().get();
  return {.for_linear = false, .stack = {count, std::ssize(packed), first}};
}

Result<Packed> Loader::pack(std::vector<Rows> rows, const PackPlace& place) {
  std::vector<RawMatrix> raw;
  for (const Rows& row : rows) raw.push_back(row.raw);
  PackOptions options = pack_;
  options.for_linear = place.for_linear;
  options.stack = place.stack;
  options.consumed = [&](std::span<const std::byte> bytes) { release(rows, bytes); };
  auto packed = backend_.pack(raw, options);
  const std::string& first = rows.front().name;
  if (!packed.ok() && !first.empty()) {
    return Error{packed.error().code, "tensor '" + first + "': " + packed.error().message};
  }
  if (!packed.ok()) return packed.failure();
  return Packed(std::move(packed).value());
}

Result<Packed> Loader::pack_owned(std::vector<std::byte> bytes, int64_t n, int64_t k, DType type,
                                  const PackPlace& place) {
  std::vector<Rows> all(1);
  all[0].owned = std::move(bytes);
  all[0].raw = {type, n, k, all[0].owned.data()};
  return pack(std::move(all), place);
}

Result<Packed> Loader::from_columns(int64_t n, int64_t k, DType type, const ReadColumns& read, const PackPlace& place) {
  const int64_t row = row_bytes(type, k);
  std::vector<std::byte> bytes(static_cast<size_t>(n * row));
  // A few columns at a time, so that they become short runs of each row: one block, if the type has blocks.
  constexpr int64_t kColumns = 32;
  parallel_blocks(k, kColumns, [&](int64_t begin, int64_t end) {
    std::vector<float> columns(static_cast<size_t>(kColumns * n));
    std::array<float, kColumns> run{};
    read(begin, end, columns.data());
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t i = 0; i < end - begin; ++i) run[static_cast<size_t>(i)] = columns[static_cast<size_t>(i * n + r)];
      narrow_row(run.data(), type, bytes.data() + r * row + row_bytes(type, begin), end - begin);
    }
  });
  return pack_owned(std::move(bytes), n, k, type, place);
}

Result<Packed> Loader::from_floats(std::vector<float> values, int64_t n, int64_t k, DType type,
                                   const PackPlace& place) {
  const int64_t row = row_bytes(type, k);
  std::vector<std::byte> bytes(static_cast<size_t>(n * row));
  parallel_blocks(n, rows_per_block(k), [&](int64_t begin, int64_t end) {
    narrow_row(values.data() + begin * k, type, bytes.data() + begin * row, (end - begin) * k);
  });
  return pack_owned(std::move(bytes), n, k, type, place);
}

Result<Packed> Loader::matrix(const Slice& slice, int64_t k) {
  std::vector<Rows> all(1);
  QUIRE_ASSIGN(all[0], rows(slice, k));
  const TensorRef* tensor = all[0].tensor;
  QUIRE_ASSIGN(Packed packed, pack(std::move(all)));
  if (tensor != nullptr) finished(*tensor);
  return packed;
}

// The biases of the slices side by side, zeros where one has none; empty if none has. The config of a Hugging Face
// folder says whether tensors have a bias; a GGUF file has one or not.
Result<std::vector<float>> Loader::bias(std::span<const Slice> slices, bool config_has_bias) {
  const auto has_bias = [&](const Slice& slice) { return gguf() ? has(slice.prefix + ".bias") : config_has_bias; };
  std::vector<float> out;
  if (std::none_of(slices.begin(), slices.end(), has_bias)) return out;
  for (const Slice& slice : slices) {
    std::vector<float> all;
    if (has_bias(slice)) {
      QUIRE_ASSIGN(all, floats(slice.prefix + ".bias", {slice.all_rows()}));
    }
    for (size_t r = 0; r < static_cast<size_t>(slice.rows); ++r) {
      out.push_back(all.empty() ? 0.0f : all[slice.map.empty() ? r : static_cast<size_t>(slice.map[r])]);
    }
  }
  return out;
}

Result<Linear> Loader::linear(const std::vector<Slice>& slices, int64_t k, bool config_has_bias) {
  Linear out;
  std::span<const Slice> left = slices;
  std::optional<Rows> ahead;  // read, and left for the next piece
  while (!left.empty()) {
    std::vector<Rows> group;
    std::set<const TensorRef*> tensors;
    for (const Slice& slice : left) {
      if (!ahead) {
        QUIRE_ASSIGN(Rows more, rows(slice, k, {.may_reorder = true}));
        ahead = std::move(more);
      }
      if (!group.empty() && !ahead->can_join(group.front())) break;
      if (ahead->tensor != nullptr) tensors.insert(ahead->tensor);
      group.push_back(std::move(*ahead));
      ahead.reset();
    }
    Linear::Piece piece;
    if (group.front().quantised != nullptr) piece.columns = group.front().quantised->column_order;
    QUIRE_ASSIGN(piece.bias, bias(left.first(group.size()), config_has_bias));
    left = left.subspan(group.size());
    QUIRE_ASSIGN(piece.weight, pack(std::move(group)));
    out.add(std::move(piece));
    // A tensor that a later slice takes again stays until then.
    for (const TensorRef* tensor : tensors) {
      const bool again =
          std::any_of(left.begin(), left.end(), [&](const Slice& slice) { return slice.tensor() == tensor->name; });
      if (!again) finished(*tensor);
    }
  }
  if (!options_.adapters.on()) return out;
  int64_t column = 0;
  for (const Slice& slice : slices) {
    out.add_source({slice.prefix, column, slice.rows, slice.map, slice.all_rows()});
    column += slice.rows;
  }
  return out;
}

// Old GPTQ files carry a bias of zeros for linears without one.
bool Loader::is_zero_bias(const std::string& tensor) const {
  if (files_.scheme.method == weights::QuantMethod::kNone || !tensor.ends_with(".bias")) return false;
  const TensorRef* found = files_.source->find(tensor);
  if (found == nullptr || is_quantised(found->dtype)) return false;
  return std::all_of(found->data.begin(), found->data.end(), [](std::byte b) { return b == std::byte{0}; });
}

Status Loader::refuse_leftovers() const {
  if (files_.source->is_dummy()) return {};
  for (const std::string& tensor : files_.source->names()) {
    if (used_.count(tensor) != 0) continue;
    const auto left = left_.upper_bound(tensor);  // no prefix begins with another one
    if (left != left_.begin() && tensor.starts_with(*std::prev(left))) continue;
    if (tensor.ends_with("rotary_emb.inv_freq") || tensor.ends_with(".attention.bias") ||
        tensor.ends_with(".masked_bias")) {
      continue;  // tables
    }
    if (tensor.starts_with("rope_f")) continue;  // rope_freqs, rope_factors_*: read with the config
    if (config().tied_embeddings && tensor == name(Part::kHead, 0) + ".weight") continue;
    if (is_ignored(tensor, config()) || weights::is_activation_scale(tensor) || is_zero_bias(tensor)) continue;
    return unsupported({"tensor '", tensor, "' has no place in the ", config().family,
                        " family; the checkpoint needs something that quire does not compute"});
  }
  return {};
}

DType Loader::main_dtype() const {
  const auto most = std::max_element(by_type_.begin(), by_type_.end());
  const DType type = static_cast<DType>(most - by_type_.begin());
  return dtype_ && *dtype_ != DType::kF32 && !is_quantised(type) ? *dtype_ : type;
}

}  // namespace quire::model
