// SPDX-License-Identifier: Apache-2.0
// Loader: fetches tensors of an open checkpoint by name and shape, converts them, and packs them for the backend. Which
// tensors there are is known to load_model.cc and to the files in layers/.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "model/layers/weights.h"
#include "model/model.h"
#include "weights/dummy_form.h"
#include "weights/quantised.h"

namespace quire::model {

// Rows of one tensor.
struct Slice {
  std::string prefix;             // the tensor's name without ".weight"
  int64_t rows = 0;               // the number of rows that are taken
  std::vector<int32_t> map = {};  // their indices in the tensor; empty: the first ones
  int64_t file_rows = 0;          // of the tensor; 0: as many as are taken
  int64_t expert = -1;            // >= 0: one expert of a stack [experts, rows, k]
  int64_t experts = 0;
  bool bare = false;  // the tensor's name has no ".weight"

  std::string tensor() const { return bare ? prefix : prefix + ".weight"; }
  int64_t all_rows() const { return file_rows > 0 ? file_rows : rows; }
};
// Those rows of the slice, by their places in it.
Slice pick(Slice slice, const std::vector<int32_t>& places);
// Part `part` of `parts` equal parts of the slice's rows; the last ones repeat its last row, if they do not divide.
Slice cut(Slice slice, int64_t part, int64_t parts);
// The same of values, `columns` of them in each row.
std::vector<float> cut(const std::vector<float>& values, int64_t columns, int64_t part, int64_t parts);
// The rows of values that a map names.
std::vector<float> take_rows(const std::vector<float>& values, int64_t columns, const std::vector<int32_t>& map);
// For Slice::map: `times` runs of `count` rows, which begin `step` rows apart, the first one at `begin`.
std::vector<int32_t> strided_rows(int64_t begin, int64_t count, int64_t step, int64_t times);

// Used once, on one thread. Remembers which tensors were used, so that refuse_leftovers() finds the others.
class Loader {
 public:
  // A slice in memory, ready to be packed: a view of the file, or converted.
  struct Rows {
    RawMatrix raw;
    std::vector<std::byte> owned;
    std::vector<std::byte> owned_map;
    std::unique_ptr<weights::LoadedMatrix> quantised;  // of a Hugging Face folder's scheme
    const weights::TensorRef* tensor = nullptr;        // null if the rows are not from a single tensor
    std::string name;                                  // for messages

    // Whether both can be parts of one packed matrix.
    bool can_join(const Rows& other) const;
  };

  // `own` is the config of the share.
  Loader(const ModelFiles& files, const LoadOptions& options, std::optional<DType> dtype, Backend& backend,
         DecoderConfig own);

  const ModelFiles& files() const { return files_; }
  const DecoderConfig& config() const { return files_.config; }
  // The part of the model that is loaded, and the config of it (share_of).
  const Share& share() const { return own_.share; }
  const DecoderConfig& own() const { return own_; }
  // This rank's part of a product's outputs.
  Slice cut_slice(Slice slice) const { return cut(std::move(slice), share().rank, share().ranks); }
  bool gguf() const { return files_.gguf != nullptr; }
  std::optional<DType> dtype() const { return dtype_; }
  DType activation() const { return pack_.activation; }
  bool on_host() const { return backend_.host_memory(); }
  // The type that --dtype makes of a plain type; quantised types stay as they are.
  DType narrowed(DType type) const;
  // The type that most bytes of the tensors so far have, after --dtype.
  DType main_dtype() const;

  // The name of a tensor, without ".weight", as the family calls it in this format.
  std::string name(Part part, int64_t layer, int64_t expert = 0) const;
  // Whether the file has a tensor of this name, in any type. A dummy checkpoint has none.
  bool has(const std::string& tensor) const { return names_.count(tensor) != 0; }
  // Whether the scheme of a quantised Hugging Face folder stores this linear. A dummy checkpoint has it as such folders
  // usually do: no routers, and the embedding and the head only with some methods.
  bool is_quantised_linear(const std::string& prefix) const;

  // A tensor as it is in the file; finished() must follow, when its bytes are no longer needed.
  Result<const weights::TensorRef*> require(const std::string& tensor, std::vector<int64_t> shape);
  void finished(const weights::TensorRef& tensor);
  // A small tensor as floats.
  Result<std::vector<float>> floats(const std::string& tensor, std::vector<int64_t> shape);
  Result<Norm> norm(Part part, int64_t layer, std::vector<int64_t> shape);
  // A matrix of one tensor, and a Linear of one or more tensors, which become one packed matrix if their types agree.
  Result<Packed> matrix(const Slice& slice, int64_t k);
  Result<Linear> linear(const std::vector<Slice>& slices, int64_t k, bool config_has_bias);
  Result<Linear> linear(Part part, int64_t layer, int64_t rows, int64_t k, bool config_has_bias = false) {
    return linear({{name(part, layer), rows}}, k, config_has_bias);
  }

  // This rank's part of it.
  Result<Linear> cut_linear(Part part, int64_t layer, int64_t rows, int64_t k, bool config_has_bias = false) {
    return linear({cut_slice({name(part, layer), rows})}, k, config_has_bias);
  }
  // Tensors whose names begin so belong to other ranks.
  void leave(std::string prefix) { left_.insert(std::move(prefix)); }

  struct RowOptions {
    bool may_reorder = false;  // as in QuantRequest
    bool keep_fp8 = true;      // where the backend packs it; false: fp8 becomes a plain type
  };

  // Whether the backend makes random weights of this type itself (Backend::makes).
  bool makes(DType type) const { return files_.source->is_dummy() && backend_.makes(type); }
  // The type in which a dummy checkpoint has its tensors.
  DType dummy_dtype() const { return dummy_dtype_; }
  // `rows` rows of such a weight: element (r, c) is element first + r * row_step + c * column_step of the tensor. The
  // rows from `made` on are zeros, if it is not 0. REQUIRES: makes(type)
  struct Made {
    DType type = DType::kF32;
    int64_t rows = 0, k = 0;
    int64_t first = 0, row_step = 0, column_step = 1;
    int64_t made = 0;
  };
  Result<Rows> made_rows(const std::string& tensor, const std::vector<int64_t>& shape, const Made& made);

  // The steps of matrix() and linear(), for layers that need them one by one.
  Result<Rows> rows(const Slice& slice, int64_t k, RowOptions options);
  Result<Rows> rows(const Slice& slice, int64_t k) { return rows(slice, k, RowOptions()); }
  Result<std::unique_ptr<weights::LoadedMatrix>> quantised(const Slice& slice, int64_t k, RowOptions options);
  // The group of the GF8 that rows() makes of the slice; 0: it makes another type. Reads only the header.
  int64_t fp8_group(const Slice& slice, int64_t k) const;
  // All rows as one packed matrix. REQUIRES: they can_join().
  struct PackPlace {
    bool for_linear = true;  // as in PackOptions
    PackOptions::Stack stack = {};
  };
  Result<Packed> pack(std::vector<Rows> rows, const PackPlace& place);
  Result<Packed> pack(std::vector<Rows> rows) { return pack(std::move(rows), PackPlace()); }
  // The next of `count` matrices of one shape and type, of which `packed` are there.
  static PackPlace next_of(const std::vector<Packed>& packed, int64_t count);
  Result<Packed> from_floats(std::vector<float> values, int64_t n, int64_t k, DType type, const PackPlace& place);
  // A matrix [n, k] that is stored by columns: `read` writes columns [begin, end) one after the other, n floats each.
  // Several threads may call it at once. `type` is a plain one, or one with blocks of 32 elements.
  using ReadColumns = std::function<void(int64_t begin, int64_t end, float* to)>;
  Result<Packed> from_columns(int64_t n, int64_t k, DType type, const ReadColumns& read, const PackPlace& place);

  // Fails if the file has a tensor that was not used: it would have changed the results.
  Status refuse_leftovers() const;

 private:
  // Packs rows that lie one behind the other.
  Result<Packed> pack_owned(std::vector<std::byte> bytes, int64_t n, int64_t k, DType type, const PackPlace& place);
  Status check_cancelled() const;
  Result<std::vector<float>> bias(std::span<const Slice> slices, bool config_has_bias);
  void release(std::span<const Rows> rows, std::span<const std::byte> bytes) const;
  void count(DType type, int64_t bytes);
  bool is_zero_bias(const std::string& tensor) const;
  // A quantised linear of a dummy checkpoint: its form, and rows of it. No form: it is plain.
  std::optional<weights::DummyForm> dummy_form(const Slice& slice, int64_t k) const;
  Result<Rows> made_codes(const Slice& slice, int64_t k, weights::DummyForm form, RowOptions options);
  bool keeps_fp8() const;

  const ModelFiles& files_;
  const LoadOptions& options_;
  std::optional<DType> dtype_;
  Backend& backend_;
  PackOptions pack_;
  DType dummy_dtype_ = DType::kF32;
  DecoderConfig own_;
  std::set<std::string> names_, used_, left_;
  std::set<std::string> plain_;                // linears of a dummy checkpoint that are never quantised
  std::array<int64_t, kNumDTypes> by_type_{};  // bytes read
  int64_t done_ = 0;
  int64_t total_ = 0;
};

}  // namespace quire::model
