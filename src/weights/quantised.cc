// SPDX-License-Identifier: Apache-2.0
// Unpacks the linears of quantised checkpoints. Once unpacked, all integer formats are the same: codes, groups, scales
// and zeros. They differ in where these are in the file.
//
// Codes of b bits are packed without gaps, low bits first, over the bytes of little-endian words: element i has bits
// i*b to i*b + b - 1. This holds along K in MLX and compressed-tensors (rows), down the columns of GPTQ, and across N
// in the zeros of GPTQ and (down the columns) of compressed-tensors. Only AWQ has its own order inside a word.
#include "weights/quantised.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "base/half.h"
#include "base/math.h"
#include "base/parallel.h"
#include "weights/file_sniff.h"
#include "weights/quant.h"

namespace quire::weights {
namespace {

constexpr float kMaxScale = 0x1p40f;         // the limit of the backends
constexpr int64_t kMaxElements = 1LL << 40;  // of a matrix
constexpr int64_t kWordBits = 32;
constexpr int64_t kColumnBlock = 16;  // columns that are unpacked together: a cache line of words

// One tensor of any type as in the file; in a stack of experts, the part of one expert.
struct FileTensor {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;

  const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(data.data()); }
  int64_t elements() const { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }
  bool has_shape(std::initializer_list<int64_t> wanted) const {
    return std::equal(shape.begin(), shape.end(), wanted.begin(), wanted.end());
  }
};

Failure about(const FileTensor& tensor, const std::string& what) {
  return corrupt({"tensor ", in_quotes(tensor.name), " of ", tensor.type, " ", shape_string(tensor.shape), ": ", what});
}

// Looks up the tensors of one linear and records their names.
class Parts {
 public:
  Parts(const WeightSource& source, const QuantRequest& request) : source_(source), request_(request) {}

  // Nothing if the tensor does not exist; an Error if the stack has no such expert.
  Result<std::optional<FileTensor>> find(const char* suffix) {
    FileTensor out;
    out.name = std::string(request_.prefix) + suffix;
    if (const TensorRef* found = source_.find(out.name)) {
      out.type = quire::name(found->dtype);
      out.shape = found->shape;
      out.data = found->data;
    } else if (const UnsupportedTensor* other = source_.find_unsupported(out.name)) {
      out.type = other->type_name;
      out.shape = other->shape;
      out.data = other->data;
    } else {
      return std::optional<FileTensor>();
    }
    add(out.name);
    if (request_.expert >= 0) {
      if (out.shape.empty() || out.shape[0] <= request_.expert) {
        return about(out, "there is no expert " + std::to_string(request_.expert));
      }
      const size_t bytes = out.data.size() / static_cast<size_t>(out.shape[0]);
      out.data = out.data.subspan(bytes * static_cast<size_t>(request_.expert), bytes);
      out.shape.erase(out.shape.begin());
    }
    read_.push_back(out);
    return std::optional<FileTensor>(std::move(out));
  }

  // The tensor. An Error if it is missing or has none of these types.
  Result<FileTensor> get(const char* suffix, std::initializer_list<const char*> types) {
    QUIRE_ASSIGN(std::optional<FileTensor> found, find(suffix));
    if (!found) {
      return not_found({"tensor ", in_quotes(std::string(request_.prefix) + suffix),
                        " is missing: the checkpoint is incomplete, or not quantised as its config.json says"});
    }
    QUIRE_TRY(check_type(*found, types));
    return *std::move(found);
  }

  static Status check_type(const FileTensor& tensor, std::initializer_list<const char*> types) {
    std::string wanted;
    for (const char* type : types) {
      if (tensor.type == type) return {};
      wanted += (wanted.empty() ? "" : " or ") + std::string(type);
    }
    return about(tensor, "its type must be " + wanted);
  }

  // Records tensors that belong to the linear but are not needed.
  void record(std::initializer_list<const char*> suffixes) {
    for (const char* suffix : suffixes) {
      const std::string name = std::string(request_.prefix) + suffix;
      if (source_.find(name) != nullptr || source_.find_unsupported(name) != nullptr) add(name);
    }
  }

  void finish(LoadedMatrix& out) {
    for (const FileTensor& tensor : read_) {
      out.bytes_read += static_cast<int64_t>(tensor.data.size());
      if (const TensorRef* found = source_.find(tensor.name)) source_.release_part(*found, tensor.data);
      if (const auto* found = source_.find_unsupported(tensor.name)) source_.release_part(*found, tensor.data);
    }
    out.tensors = std::move(names_);
  }

 private:
  void add(const std::string& name) {
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
  }

  const WeightSource& source_;
  const QuantRequest& request_;
  std::vector<std::string> names_;
  std::vector<FileTensor> read_;
};

Status check_shape(const FileTensor& tensor, std::initializer_list<int64_t> wanted) {
  if (tensor.has_shape(wanted)) return {};
  return about(tensor, "its shape must be " + shape_string(std::span(wanted.begin(), wanted.size())));
}

constexpr std::initializer_list<const char*> kWords = {"I32", "U32"};
constexpr std::initializer_list<const char*> kFloats = {"F32", "F16", "BF16"};

uint32_t word(const uint8_t* bytes, int64_t i) {
  uint32_t value;
  std::memcpy(&value, bytes + 4 * i, sizeof value);
  return value;
}

// Element i of a row of packed codes.
uint8_t code_at(const uint8_t* row, int64_t i, int bits) {
  const int64_t bit = i * bits;
  const int64_t at = bit / 8;
  uint32_t value = row[at];
  if (bit % 8 + bits > 8) value |= static_cast<uint32_t>(row[at + 1]) << 8;
  return static_cast<uint8_t>((value >> (bit % 8)) & ((1u << bits) - 1));
}

// All elements as floats, checked to be scales that a backend accepts.
Result<std::vector<float>> scale_values(const FileTensor& tensor) {
  const int64_t count = tensor.elements();
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    uint16_t half = 0;
    float& value = out[static_cast<size_t>(i)];
    if (tensor.type == "F32") {
      std::memcpy(&value, tensor.bytes() + 4 * i, sizeof value);
    } else if (tensor.type == "F8_E8M0") {
      value = std::ldexp(1.0f, tensor.bytes()[i] - 127);
      if (tensor.bytes()[i] == 255) value = std::numeric_limits<float>::quiet_NaN();
    } else {
      std::memcpy(&half, tensor.bytes() + 2 * i, sizeof half);
      value = tensor.type == "F16" ? fp16_to_float(half) : bf16_to_float(half);
    }
    if (!(std::fabs(value) < kMaxScale)) {
      return about(tensor, "element " + std::to_string(i) + " is not a finite number below 2^40");
    }
  }
  return out;
}

// From [groups, n] to [n, groups].
template <typename T>
std::vector<T> transposed(const std::vector<T>& in, int64_t rows, int64_t columns) {
  std::vector<T> out(in.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = in[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

// -(scale * zero), rounded once.
void set_mins(const std::vector<int32_t>& zeros, const std::vector<float>& scales, std::vector<float>& mins) {
  mins.resize(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    mins[i] = static_cast<float>(-(static_cast<double>(scales[i]) * zeros[i]));
  }
}

// An integer format with everything unpacked except the codes.
struct Groups {
  int bits = 0;
  int64_t size = 0;               // elements of K per group; the last group may have fewer
  std::vector<float> scales;      // [n, ceil(k / size)]
  std::vector<float> mins;        // the same shape
  std::vector<int32_t> group_of;  // [k], if groups are not consecutive in K
  const uint8_t* rows = nullptr;  // packed codes row by row, if the file has them in this order
};

// Reads the codes of a row; one thread calls it, with rows ascending. Each thread makes its own.
using RowCodes = std::function<void(int64_t row, uint8_t* codes)>;
using MakeRowCodes = std::function<RowCodes()>;
constexpr int64_t kRowBlock = 8 * kColumnBlock;  // rows of a thread's work: whole blocks of columns of words

void pack_row(const uint8_t* codes, int64_t k, DType type, std::byte* out) {
  auto* to = reinterpret_cast<uint8_t*>(out);
  if (type == DType::kG8) {
    std::memcpy(to, codes, static_cast<size_t>(k));
    return;
  }
  for (int64_t i = 0; i < k; i += 2) to[i / 2] = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
}

float value_of(DType type, uint8_t code, float scale, float min) {
  if (type == DType::kG4) return std::fma(scale, static_cast<float>(code), min);
  return std::fma(scale, static_cast<float>(code) - 128.0f, std::fma(128.0f, scale, min));
}

// The columns sorted by group if every group has `size` of them; else nothing.
std::optional<std::vector<int32_t>> order_of(const std::vector<int32_t>& group_of, int64_t size, int64_t groups) {
  std::vector<int64_t> counts(static_cast<size_t>(groups), 0);
  for (const int32_t g : group_of) ++counts[static_cast<size_t>(g)];
  for (const int64_t count : counts) {
    if (count != size) return std::nullopt;
  }
  std::vector<int32_t> order(group_of.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return group_of[static_cast<size_t>(a)] < group_of[static_cast<size_t>(b)];
  });
  return order;
}

LoadedMatrix assemble(const QuantRequest& request, Groups g, const MakeRowCodes& make_row_codes) {
  const int64_t n = request.n, k = request.k, groups = ceil_div(k, g.size);
  LoadedMatrix out;
  out.n = n;
  out.k = k;
  const DType type = g.bits <= 4 ? DType::kG4 : DType::kG8;
  bool grouped = g.size % 32 == 0 && k % g.size == 0;
  if (!g.group_of.empty() && grouped) {
    auto order = order_of(g.group_of, g.size, groups);
    const bool sorted = std::is_sorted(g.group_of.begin(), g.group_of.end());
    grouped = order.has_value() && (sorted || request.may_reorder);
    if (grouped && !sorted) out.column_order = *std::move(order);
  }
  // Calls work(row, codes) for every row, on several threads.
  const auto for_each_row = [&](const auto& work) {
    parallel_blocks(n, kRowBlock, [&](int64_t begin, int64_t end) {
      const RowCodes row_codes = make_row_codes();
      std::vector<uint8_t> codes(static_cast<size_t>(k));
      for (int64_t row = begin; row < end; ++row) {
        row_codes(row, codes.data());
        work(row, codes);
      }
    });
  };
  if (!grouped) {
    out.dtype = DType::kF32;
    out.data.resize(static_cast<size_t>(n * k) * sizeof(float));
    for_each_row([&](int64_t row, const std::vector<uint8_t>& codes) {
      std::vector<float> values(static_cast<size_t>(k));
      for (int64_t i = 0; i < k; ++i) {
        const int64_t group = g.group_of.empty() ? i / g.size : g.group_of[static_cast<size_t>(i)];
        const auto at = static_cast<size_t>(row * groups + group);
        values[static_cast<size_t>(i)] = value_of(type, codes[static_cast<size_t>(i)], g.scales[at], g.mins[at]);
      }
      std::memcpy(out.data.data() + static_cast<size_t>(row * k) * sizeof(float), values.data(),
                  values.size() * sizeof(float));
    });
    return out;
  }
  out.dtype = type;
  out.group = g.size;
  const int64_t stride = row_bytes(type, k);
  out.data.resize(static_cast<size_t>(n * stride));
  if (g.rows != nullptr && (g.bits == 4 || g.bits == 8) && out.column_order.empty()) {
    parallel_blocks(n, kRowBlock, [&](int64_t begin, int64_t end) {  // the layouts are the same
      std::memcpy(out.data.data() + begin * stride, g.rows + begin * stride,
                  static_cast<size_t>((end - begin) * stride));
    });
  } else {
    for_each_row([&](int64_t row, const std::vector<uint8_t>& codes) {
      std::vector<uint8_t> ordered(out.column_order.size());
      for (size_t i = 0; i < ordered.size(); ++i) ordered[i] = codes[static_cast<size_t>(out.column_order[i])];
      pack_row(ordered.empty() ? codes.data() : ordered.data(), k, type, out.data.data() + row * stride);
    });
  }
  out.scales = std::move(g.scales);
  out.mins = std::move(g.mins);
  return out;
}

// Rows of packed codes, `words` words each.
MakeRowCodes packed_rows(const uint8_t* rows, int64_t words, int64_t k, int bits) {
  return [=] {
    return [=](int64_t row, uint8_t* codes) {
      const uint8_t* from = rows + row * words * 4;
      for (int64_t i = 0; i < k; ++i) codes[i] = code_at(from, i, bits);
    };
  };
}

// Unpacks blocks of sixteen columns of a matrix [rows, columns] of words; `unpack` makes k codes of one column.
template <typename Unpack>
MakeRowCodes word_columns(const uint8_t* words, int64_t rows, int64_t columns, int64_t k, int64_t codes_in_column,
                          const Unpack& unpack) {
  struct State {
    std::vector<uint32_t> column;
    std::vector<uint8_t> codes;  // [columns of the block * codes_in_column, k]
    int64_t block = -1;
  };
  return [=] {
    return [=, state = std::make_shared<State>()](int64_t row, uint8_t* codes) {
      const int64_t column = row / codes_in_column;
      const int64_t block = column / kColumnBlock;
      if (state->block != block) {
        const int64_t first = block * kColumnBlock;
        const int64_t count = std::min(kColumnBlock, columns - first);
        state->column.resize(static_cast<size_t>(count * rows));
        state->codes.resize(static_cast<size_t>(count * codes_in_column * k));
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < count; ++c) {
            state->column[static_cast<size_t>(c * rows + r)] = word(words, r * columns + first + c);
          }
        }
        for (int64_t c = 0; c < count; ++c) {
          unpack(state->column.data() + c * rows, state->codes.data() + c * codes_in_column * k);
        }
        state->block = block;
      }
      const int64_t in_block = row - block * kColumnBlock * codes_in_column;
      std::memcpy(codes, state->codes.data() + in_block * k, static_cast<size_t>(k));
    };
  };
}

// The size of the groups over k that a tensor of scales with `groups` groups has; an Error if config.json disagrees.
Result<int64_t> group_size(const FileTensor& scales, int64_t groups, int64_t k, int64_t config) {
  if (groups <= 0 || groups > k) return about(scales, "there cannot be " + std::to_string(groups) + " groups");
  const int64_t size = config > 0 ? std::min(config, k) : config < 0 ? k : k / groups;
  if (ceil_div(k, size) != groups || (config == 0 && k % groups != 0)) {
    return about(scales, std::to_string(groups) + " groups do not fit " + std::to_string(k) + " inputs" +
                             (config > 0 ? " in groups of " + std::to_string(config) : ""));
  }
  return size;
}

// "g_idx": the group of each input. Empty if it has no information (all -1).
Result<std::vector<int32_t>> read_group_index(const FileTensor& tensor, int64_t k, int64_t groups) {
  QUIRE_TRY(check_shape(tensor, {k}));
  std::vector<int32_t> out(static_cast<size_t>(k));
  std::memcpy(out.data(), tensor.bytes(), out.size() * sizeof(int32_t));
  if (std::all_of(out.begin(), out.end(), [](int32_t g) { return g == -1; })) return std::vector<int32_t>();
  for (const int32_t g : out) {
    if (g < 0 || g >= groups) {
      return about(tensor, "group " + std::to_string(g) + " is not one of the " + std::to_string(groups));
    }
  }
  return out;
}

Result<LoadedMatrix> load_mxfp4(const QuantRequest& r, const FileTensor& blocks, const FileTensor& scales) {
  LoadedMatrix out;
  out.dtype = DType::kMXFP4;
  out.n = r.n;
  out.k = r.k;
  out.data.resize(static_cast<size_t>(r.n * row_bytes(DType::kMXFP4, r.k)));
  constexpr int64_t kBlocks = 1 << 15;  // half a MB, worth a thread
  parallel_blocks(r.n * r.k / 32, kBlocks, [&](int64_t begin, int64_t end) {
    mxfp4_from_blocks(blocks.data.data() + 16 * begin, scales.data.data() + begin, end - begin,
                      out.data.data() + row_bytes(DType::kMXFP4, 32 * begin));
  });
  return out;
}

Result<LoadedMatrix> load_mlx(const QuantScheme& scheme, const QuantRequest& r, Parts& parts) {
  QuantScheme::Override mode{{}, scheme.bits, scheme.group, scheme.fp4};
  for (const auto& own : scheme.overrides) {
    if (own.module == r.prefix) mode = own;
  }
  QUIRE_ASSIGN(const FileTensor weight, parts.get(".weight", kWords));
  if (r.k % mode.group != 0) {
    return about(weight, std::to_string(r.k) + " inputs are not whole groups of " + std::to_string(mode.group));
  }
  const int64_t words = r.k * mode.bits / kWordBits, groups = r.k / mode.group;
  QUIRE_TRY(check_shape(weight, {r.n, words}));
  if (mode.fp4) {
    QUIRE_ASSIGN(const FileTensor scales, parts.get(".scales", {"U8"}));
    QUIRE_TRY(check_shape(scales, {r.n, groups}));
    return load_mxfp4(r, weight, scales);
  }
  QUIRE_ASSIGN(const FileTensor scales, parts.get(".scales", kFloats));
  QUIRE_ASSIGN(const FileTensor biases, parts.get(".biases", kFloats));
  QUIRE_TRY(check_shape(scales, {r.n, groups}));
  QUIRE_TRY(check_shape(biases, {r.n, groups}));
  Groups g;
  g.bits = mode.bits;
  g.size = mode.group;
  g.rows = weight.bytes();
  QUIRE_ASSIGN(g.scales, scale_values(scales));
  QUIRE_ASSIGN(g.mins, scale_values(biases));
  return assemble(r, std::move(g), packed_rows(weight.bytes(), words, r.k, mode.bits));
}

// Nibble c of an AWQ word is column kAwqOrder[c] of its eight columns.
constexpr std::array<int, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};

Result<LoadedMatrix> load_awq(const QuantScheme& scheme, const QuantRequest& r, Parts& parts) {
  QUIRE_ASSIGN(const FileTensor weight, parts.get(".qweight", kWords));
  QUIRE_ASSIGN(const FileTensor zeros, parts.get(".qzeros", kWords));
  QUIRE_ASSIGN(const FileTensor scales, parts.get(".scales", kFloats));
  if (r.n % 8 != 0) return about(weight, std::to_string(r.n) + " outputs are not whole words of eight");
  QUIRE_TRY(check_shape(weight, {r.k, r.n / 8}));
  const int64_t groups = scales.shape.empty() ? 0 : scales.shape[0];
  QUIRE_TRY(check_shape(scales, {groups, r.n}));
  QUIRE_TRY(check_shape(zeros, {groups, r.n / 8}));
  Groups g;
  g.bits = 4;
  QUIRE_ASSIGN(g.size, group_size(scales, groups, r.k, scheme.group));
  QUIRE_ASSIGN(g.scales, scale_values(scales));
  g.scales = transposed(g.scales, groups, r.n);
  std::vector<int32_t> zero(static_cast<size_t>(r.n * groups));
  for (int64_t i = 0; i < groups * r.n / 8; ++i) {
    const uint32_t packed = word(zeros.bytes(), i);
    for (int j = 0; j < 8; ++j) {
      const int64_t row = i % (r.n / 8) * 8 + kAwqOrder[static_cast<size_t>(j)];
      zero[static_cast<size_t>(row * groups + i / (r.n / 8))] = static_cast<int32_t>((packed >> (4 * j)) & 15);
    }
  }
  set_mins(zero, g.scales, g.mins);
  const int64_t k = r.k;
  return assemble(
      r, std::move(g), word_columns(weight.bytes(), k, r.n / 8, k, 8, [k](const uint32_t* column, uint8_t* codes) {
        for (int64_t i = 0; i < k; ++i) {
          for (int j = 0; j < 8; ++j) {
            codes[kAwqOrder[static_cast<size_t>(j)] * k + i] = static_cast<uint8_t>((column[i] >> (4 * j)) & 15);
          }
        }
      }));
}

Result<LoadedMatrix> load_gptq(const QuantScheme& scheme, const QuantRequest& r, Parts& parts) {
  QUIRE_ASSIGN(const FileTensor weight, parts.get(".qweight", kWords));
  QUIRE_ASSIGN(const FileTensor zeros, parts.get(".qzeros", kWords));
  QUIRE_ASSIGN(const FileTensor scales, parts.get(".scales", kFloats));
  const int64_t words = weight.shape.empty() ? 0 : weight.shape[0];
  QUIRE_TRY(check_shape(weight, {words, r.n}));
  int bits = scheme.bits;
  for (const int b : {2, 3, 4, 8}) {
    if (scheme.bits == 0 && words * kWordBits == r.k * b) bits = b;
  }
  if (bits == 0 || words * kWordBits != r.k * bits) {
    return about(weight, std::to_string(words) + " words do not hold " + std::to_string(r.k) + " inputs" +
                             (scheme.bits != 0 ? " of " + std::to_string(bits) + " bits" : ""));
  }
  if (r.n * bits % kWordBits != 0) return about(weight, "the zeros of its outputs are not whole words");
  const int64_t groups = scales.shape.empty() ? 0 : scales.shape[0], zero_words = r.n * bits / kWordBits;
  QUIRE_TRY(check_shape(scales, {groups, r.n}));
  QUIRE_TRY(check_shape(zeros, {groups, zero_words}));
  Groups g;
  g.bits = bits;
  QUIRE_ASSIGN(g.size, group_size(scales, groups, r.k, scheme.group));
  QUIRE_ASSIGN(g.scales, scale_values(scales));
  g.scales = transposed(g.scales, groups, r.n);
  std::vector<int32_t> zero(static_cast<size_t>(r.n * groups));
  for (int64_t row = 0; row < r.n; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      zero[static_cast<size_t>(row * groups + group)] =
          code_at(zeros.bytes() + group * zero_words * 4, row, bits) + (scheme.zeros_minus_one ? 1 : 0);
    }
  }
  set_mins(zero, g.scales, g.mins);
  QUIRE_ASSIGN(const std::optional<FileTensor> index, parts.find(".g_idx"));
  if (index) {
    QUIRE_TRY(Parts::check_type(*index, {"I32"}));
    QUIRE_ASSIGN(g.group_of, read_group_index(*index, r.k, groups));
  }
  const int64_t k = r.k;
  return assemble(r, std::move(g),
                  word_columns(weight.bytes(), words, r.n, k, 1, [=](const uint32_t* column, uint8_t* codes) {
                    const auto* bytes = reinterpret_cast<const uint8_t*>(column);
                    for (int64_t i = 0; i < k; ++i) codes[i] = code_at(bytes, i, bits);
                  }));
}

// Scales [n, groups], [n], [1] or none, expanded to rows; sets `groups`.
Result<std::vector<float>> row_scales(const FileTensor& tensor, int64_t n, int64_t& groups) {
  QUIRE_ASSIGN(std::vector<float> values, scale_values(tensor));
  if (values.size() == 1) {
    groups = 1;
    return std::vector<float>(static_cast<size_t>(n), values[0]);
  }
  groups = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  if (tensor.shape.empty() || tensor.shape.size() > 2 || tensor.shape[0] != n || groups <= 0) {
    return about(tensor, "it should have a scale for each of " + std::to_string(n) + " rows, or for groups of them");
  }
  return values;
}

// weight_zero_point of compressed-tensors (bytes, or packed down the columns) as unsigned codes.
Result<std::vector<int32_t>> read_zero_points(const FileTensor& tensor, int64_t n, int64_t groups, int bits) {
  std::vector<int32_t> out(static_cast<size_t>(n * groups));
  if (tensor.type == "I8") {
    if (tensor.elements() != n * groups) return about(tensor, "there should be as many as there are scales");
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<int8_t>(tensor.bytes()[i]) + (1 << (bits - 1));
    }
    return out;
  }
  const int64_t words = ceil_div(n * bits, kWordBits);
  QUIRE_TRY(check_shape(tensor, {words, groups}));
  std::vector<uint32_t> column(static_cast<size_t>(words));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t w = 0; w < words; ++w) column[static_cast<size_t>(w)] = word(tensor.bytes(), w * groups + g);
    for (int64_t row = 0; row < n; ++row) {
      out[static_cast<size_t>(row * groups + g)] = code_at(reinterpret_cast<const uint8_t*>(column.data()), row, bits);
    }
  }
  return out;
}

// The integer formats of compressed-tensors: int8 codes or packed codes.
Result<LoadedMatrix> load_integers(const QuantRequest& r, Parts& parts, const FileTensor& weight, bool packed) {
  Groups g;
  g.bits = 8;
  int64_t words = r.k / 4;
  if (packed) {
    words = weight.shape.empty() ? 0 : weight.shape.back();
    QUIRE_TRY(check_shape(weight, {r.n, words}));
    g.bits = 0;
    for (int b = 1; b <= 8; ++b) {
      if (ceil_div(r.k * b, kWordBits) == words) g.bits = b;
    }
    if (g.bits == 0) {
      return about(weight, std::to_string(words) + " words do not hold " + std::to_string(r.k) + " inputs");
    }
  } else {
    QUIRE_TRY(check_shape(weight, {r.n, r.k}));
  }
  QUIRE_ASSIGN(const FileTensor scales, parts.get(".weight_scale", kFloats));
  int64_t groups = 0;
  QUIRE_ASSIGN(g.scales, row_scales(scales, r.n, groups));
  QUIRE_ASSIGN(g.size, group_size(scales, groups, r.k, 0));
  std::vector<int32_t> zeros(g.scales.size(), 1 << (g.bits - 1));
  QUIRE_ASSIGN(const std::optional<FileTensor> points, parts.find(".weight_zero_point"));
  if (points) {
    QUIRE_TRY(Parts::check_type(*points, {"I8", "I32"}));
    QUIRE_ASSIGN(zeros, read_zero_points(*points, r.n, groups, g.bits));
  }
  set_mins(zeros, g.scales, g.mins);
  QUIRE_ASSIGN(const std::optional<FileTensor> index, parts.find(".weight_g_idx"));
  if (index) {
    QUIRE_TRY(Parts::check_type(*index, {"I32"}));
    QUIRE_ASSIGN(g.group_of, read_group_index(*index, r.k, groups));
  }
  if (packed) {
    const int bits = g.bits;
    if (words * kWordBits == r.k * bits) g.rows = weight.bytes();
    return assemble(r, std::move(g), packed_rows(weight.bytes(), words, r.k, bits));
  }
  const uint8_t* bytes = weight.bytes();
  const int64_t k = r.k;
  const auto unsigned_codes = [=](int64_t row, uint8_t* codes) {
    for (int64_t i = 0; i < k; ++i) codes[i] = static_cast<uint8_t>(bytes[row * k + i] ^ 0x80);
  };
  return assemble(r, std::move(g), [&] { return unsigned_codes; });
}

// All 256 values of an fp8 type. E4M3 has no infinity and one NaN per sign; E5M2 is the upper half of fp16.
std::array<float, 256> fp8_values(bool e5m2) {
  std::array<float, 256> out{};
  for (int i = 0; i < 256; ++i) {
    if (e5m2) {
      out[static_cast<size_t>(i)] = fp16_to_float(static_cast<uint16_t>(i << 8));
      continue;
    }
    const int exponent = (i >> 3) & 15, mantissa = i & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    if ((i & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
    out[static_cast<size_t>(i)] = i >= 128 ? -value : value;
  }
  return out;
}

// The block of rows and columns that shares a scale.
struct Fp8Blocks {
  int64_t rows = 0, columns = 0;
  FileTensor scale;

  // Elements per scale of each row, as GF8 has them; 0: no group fits.
  int64_t group(int64_t k) const {
    const int64_t size = std::gcd(columns, k);
    return size % 32 == 0 ? size : 0;
  }
};

Result<Fp8Blocks> fp8_blocks(const QuantScheme& scheme, const QuantRequest& r, Parts& parts) {
  QUIRE_ASSIGN(std::optional<FileTensor> scale, parts.find(".weight_scale_inv"));
  if (!scale) {
    QUIRE_ASSIGN(FileTensor other, parts.get(".weight_scale", {"F32", "F16", "BF16", "F8_E8M0"}));
    scale = std::move(other);
  }
  QUIRE_TRY(Parts::check_type(*scale, {"F32", "F16", "BF16", "F8_E8M0"}));
  Fp8Blocks out{1, r.k, *std::move(scale)};
  if (out.scale.elements() == 1) {
    out.rows = r.n;
  } else if (scheme.block_rows > 0 &&
             out.scale.has_shape({ceil_div(r.n, scheme.block_rows), ceil_div(r.k, scheme.block_columns)})) {
    out.rows = scheme.block_rows;
    out.columns = std::min(scheme.block_columns, r.k);
  } else if (!out.scale.has_shape({r.n}) && !out.scale.has_shape({r.n, 1})) {
    return about(out.scale, "it is not a scale for a matrix " + shape_string(std::array{r.n, r.k}) +
                                (scheme.block_rows > 0 ? " in blocks of " + std::to_string(scheme.block_rows) + " by " +
                                                             std::to_string(scheme.block_columns)
                                                       : ": it has neither one value nor one per row"));
  }
  return out;
}

// E4M3 as it is, with the scales of each row.
LoadedMatrix kept_fp8(const QuantRequest& r, const FileTensor& weight, const Fp8Blocks& blocks,
                      const std::vector<float>& scales) {
  LoadedMatrix out;
  out.dtype = DType::kGF8;
  out.n = r.n;
  out.k = r.k;
  out.group = blocks.group(r.k);
  out.data.resize(weight.data.size());
  constexpr int64_t kBytes = 1 << 20;  // worth a thread
  parallel_blocks(static_cast<int64_t>(weight.data.size()), kBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(out.data.data() + begin, weight.data.data() + begin, static_cast<size_t>(end - begin));
  });
  const int64_t per_row = ceil_div(r.k, blocks.columns);
  out.scales.reserve(static_cast<size_t>(r.n * (r.k / out.group)));
  for (int64_t row = 0; row < r.n; ++row) {
    for (int64_t i = 0; i < r.k; i += out.group) {
      out.scales.push_back(scales[static_cast<size_t>(row / blocks.rows * per_row + i / blocks.columns)]);
    }
  }
  return out;
}

Result<LoadedMatrix> load_fp8(const QuantScheme& scheme, const QuantRequest& r, Parts& parts,
                              const FileTensor& weight) {
  QUIRE_TRY(check_shape(weight, {r.n, r.k}));
  QUIRE_ASSIGN(const Fp8Blocks blocks, fp8_blocks(scheme, r, parts));
  QUIRE_ASSIGN(const std::vector<float> scales, scale_values(blocks.scale));
  if (r.keep_fp8 && weight.type == "F8_E4M3" && blocks.group(r.k) > 0) return kept_fp8(r, weight, blocks, scales);
  const std::array<float, 256> values = fp8_values(weight.type == "F8_E5M2");
  LoadedMatrix out;
  out.dtype = r.want_f32 ? DType::kF32 : DType::kBF16;
  out.n = r.n;
  out.k = r.k;
  out.data.resize(static_cast<size_t>(r.n * row_bytes(out.dtype, r.k)));
  const int64_t per_row = ceil_div(r.k, blocks.columns);
  parallel_blocks(r.n, kRowBlock, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* from = weight.bytes() + row * r.k;
      for (int64_t i = 0; i < r.k; ++i) {
        const float value =
            values[from[i]] * scales[static_cast<size_t>(row / blocks.rows * per_row + i / blocks.columns)];
        const auto at = static_cast<size_t>(row * r.k + i);
        const uint16_t half = float_to_bf16(value);
        if (r.want_f32) std::memcpy(out.data.data() + 4 * at, &value, sizeof value);
        if (!r.want_f32) std::memcpy(out.data.data() + 2 * at, &half, sizeof half);
      }
    }
  });
  return out;
}

Result<LoadedMatrix> load_compressed(const QuantScheme& scheme, const QuantRequest& r, Parts& parts) {
  QUIRE_ASSIGN(const std::optional<FileTensor> packed, parts.find(".weight_packed"));
  if (packed) {
    QUIRE_TRY(Parts::check_type(*packed, {"I32"}));
    QUIRE_ASSIGN(const std::optional<FileTensor> shape, parts.find(".weight_shape"));
    if (shape && shape->type == "I64" && shape->has_shape({2})) {
      int64_t dims[2];
      std::memcpy(dims, shape->bytes(), sizeof dims);
      if (dims[0] != r.n || dims[1] != r.k) {
        return about(
            *shape, "it is " + shape_string(dims) + " where the config asks for " + shape_string(std::array{r.n, r.k}));
      }
    }
    return load_integers(r, parts, *packed, true);
  }
  QUIRE_ASSIGN(const FileTensor weight, parts.get(".weight", {"I8", "F8_E4M3", "F8_E5M2"}));
  if (weight.type == "I8") return load_integers(r, parts, weight, false);
  return load_fp8(scheme, r, parts, weight);
}

Result<LoadedMatrix> load_parts(const QuantScheme& scheme, const QuantRequest& r, Parts& parts) {
  switch (scheme.method) {
    case QuantMethod::kMlx:
      return load_mlx(scheme, r, parts);
    case QuantMethod::kAwq:
      return load_awq(scheme, r, parts);
    case QuantMethod::kGptq:
      return load_gptq(scheme, r, parts);
    case QuantMethod::kMxfp4: {
      QUIRE_ASSIGN(const FileTensor blocks, parts.get("_blocks", {"U8"}));
      QUIRE_ASSIGN(const FileTensor scales, parts.get("_scales", {"U8"}));
      if (r.k % 32 != 0) return about(blocks, std::to_string(r.k) + " inputs are not whole blocks of 32");
      QUIRE_TRY(check_shape(blocks, {r.n, r.k / 32, 16}));
      QUIRE_TRY(check_shape(scales, {r.n, r.k / 32}));
      return load_mxfp4(r, blocks, scales);
    }
    default:
      return load_compressed(scheme, r, parts);
  }
}

}  // namespace

RawMatrix LoadedMatrix::raw() const {
  RawMatrix out;
  out.dtype = dtype;
  out.n = n;
  out.k = k;
  out.data = data.data();
  if (group > 0) {
    out.group = group;
    out.scales = scales.data();
    out.mins = mins.empty() ? nullptr : mins.data();
  }
  return out;
}

std::vector<float> LoadedMatrix::values() const {
  QUIRE_CHECK(dtype != DType::kGF8, "the rounding of fp8 depends on the activations");
  std::vector<float> out(static_cast<size_t>(n * k)), row(static_cast<size_t>(k));
  const int64_t stride = row_bytes(dtype, k);
  for (int64_t r = 0; r < n; ++r) {
    const std::byte* from = data.data() + r * stride;
    if (group == 0) {
      dequantise_row(dtype, from, out.data() + r * k, k);
      continue;
    }
    for (int64_t i = 0; i < k; ++i) {
      const auto byte = static_cast<uint8_t>(from[dtype == DType::kG4 ? i / 2 : i]);
      const uint8_t code = dtype == DType::kG8 ? byte : i % 2 == 0 ? byte & 15 : byte >> 4;
      const auto at = static_cast<size_t>(r * (k / group) + i / group);
      const int64_t column = column_order.empty() ? i : column_order[static_cast<size_t>(i)];
      out[static_cast<size_t>(r * k + column)] = value_of(dtype, code, scales[at], mins[at]);
    }
  }
  return out;
}

int64_t output_rows(const WeightSource& source, const QuantScheme& scheme, std::string_view prefix) {
  const auto dim = [&](const char* suffix, size_t axis) -> int64_t {
    const std::string name = std::string(prefix) + suffix;
    const TensorRef* plain = source.find(name);
    const UnsupportedTensor* other = plain == nullptr ? source.find_unsupported(name) : nullptr;
    if (plain == nullptr && other == nullptr) return 0;
    const std::vector<int64_t>& shape = plain != nullptr ? plain->shape : other->shape;
    return shape.size() == 2 ? shape[axis] : 0;
  };
  if (scheme.applies_to(source, prefix)) {
    switch (scheme.method) {
      case QuantMethod::kAwq:  // [k, n / 8]
        return dim(".qweight", 1) * (kWordBits / 4);
      case QuantMethod::kGptq:  // [k * bits / 32, n]
        return dim(".qweight", 1);
      case QuantMethod::kCompressed:  // [n, k * bits / 32], or not packed
        if (const int64_t rows = dim(".weight_packed", 0); rows > 0) return rows;
        break;
      default:
        break;
    }
  }
  return dim(".weight", 0);  // [n, k], or MLX's [n, k * bits / 32]
}

int64_t fp8_group(const WeightSource& source, const QuantScheme& scheme, const QuantRequest& request) {
  if (scheme.method != QuantMethod::kFp8 && scheme.method != QuantMethod::kCompressed) return 0;
  Parts parts(source, request);
  const auto weight = parts.find(".weight");
  if (!weight.ok() || !weight.value() || weight.value()->type != "F8_E4M3") return 0;
  const auto blocks = fp8_blocks(scheme, request, parts);
  return blocks.ok() ? blocks.value().group(request.k) : 0;
}

Result<LoadedMatrix> load_quantised(const WeightSource& source, const QuantScheme& scheme,
                                    const QuantRequest& request) {
  QUIRE_CHECK(scheme.method != QuantMethod::kNone && request.n > 0 && request.k > 0);
  QUIRE_CHECK(request.n <= kMaxElements / request.k);
  Parts parts(source, request);
  QUIRE_ASSIGN(LoadedMatrix out, load_parts(scheme, request, parts));
  parts.record({".g_idx", ".qzeros", ".weight_shape", ".weight_zero_point", ".input_scale", ".input_zero_point",
                ".output_scale", ".input_global_scale"});
  parts.finish(out);
  return out;
}

}  // namespace quire::weights
