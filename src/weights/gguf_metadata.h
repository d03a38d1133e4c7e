// SPDX-License-Identifier: Apache-2.0
// GGUF's typed key-value pairs, as views into the file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace quire::weights {

// Numbers as the file has them.
enum class GgufKind : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
// "uint32", "array", ...: for messages.
const char* describe(GgufKind kind);
// Bytes of one element; 0 for strings and arrays, which have no fixed size.
size_t plain_size(GgufKind kind);

struct GgufArray;

// One value. Strings and arrays are views into the file's bytes, which the source keeps alive.
struct GgufValue {
  GgufKind kind = GgufKind::kUint8;
  int64_t integer = 0;    // every integer kind and bool; a uint64 above INT64_MAX has its bits here
  double real = 0;        // float32 and float64
  std::string_view text;  // string
  std::shared_ptr<const GgufArray> array;

  bool is_integer() const;  // bool is not one
  bool fits_int64() const;  // an integer whose value `integer` really is
  bool is_real() const { return kind == GgufKind::kFloat32 || kind == GgufKind::kFloat64; }
};

// The value of a plain kind at `at`, which needs no alignment.
GgufValue plain_value(GgufKind kind, const std::byte* at);

// An array: strings as views, arrays of arrays as values, plain kinds as the raw little-endian bytes.
struct GgufArray {
  GgufKind kind = GgufKind::kUint8;  // of the elements
  size_t size = 0;
  std::vector<std::string_view> strings;
  std::vector<GgufArray> arrays;
  std::span<const std::byte> raw;

  // Element i of a plain kind (not string or array).
  GgufValue at(size_t i) const;
};

// All pairs of a file, in file order; keys are unique. Immutable; any thread may read. The get_*() answer with an Error
// that names file and key when it is missing or of another kind; the *_or() take the fallback when it is missing, and
// are errors still when the kind is wrong. Any integer kind serves for get_int, an integer serves for get_double.
class GgufMetadata {
 public:
  struct Pair {
    std::string_view key;
    GgufValue value;
  };

  const GgufValue* find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  const std::vector<Pair>& pairs() const { return pairs_; }
  const std::string& file() const { return file_; }

  Result<int64_t> get_int(std::string_view key, int64_t min, int64_t max) const;
  Result<int64_t> get_int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
  Result<double> get_double(std::string_view key) const;
  Result<double> get_double_or(std::string_view key, double fallback) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  // Views into the file: valid while the source (or the owner given to parse) lives.
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view fallback) const;
  // Big arrays without copies: tokens, merges.
  Result<std::span<const std::string_view>> get_strings(std::string_view key) const;
  // Copies; every integer kind, and every number kind.
  Result<std::vector<int64_t>> get_ints(std::string_view key) const;
  Result<std::vector<float>> get_floats(std::string_view key) const;
  Result<std::vector<bool>> get_bools(std::string_view key) const;
  // A number, or an array of exactly `count` of them (per-layer values): always `count` numbers.
  Result<std::vector<int64_t>> get_ints_per(std::string_view key, size_t count) const;

  // For the reader: false when the key is taken.
  bool add(std::string_view key, GgufValue value);
  void set_file(std::string file) { file_ = std::move(file); }

 private:
  Result<const GgufValue*> get(std::string_view key) const;
  Error wrong_kind(std::string_view key, const GgufValue& value, const char* wanted) const;
  Result<const GgufArray*> get_array(std::string_view key, const char* wanted) const;

  std::string file_;
  std::vector<Pair> pairs_;
  std::unordered_map<std::string_view, size_t> places_;
};

}  // namespace quire::weights
