// SPDX-License-Identifier: Apache-2.0
// The typed key-value pairs of GGUF, as views into the file.
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

// The numbers are those in the file.
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
// "uint32", "array", ...: for error messages.
const char* describe(GgufKind kind);
// Bytes of one element; 0 for strings and arrays, which have no fixed size.
size_t plain_size(GgufKind kind);

struct GgufArray;

// One value. Strings and arrays are views into the file's bytes, which the source keeps alive.
struct GgufValue {
  GgufKind kind = GgufKind::kUint8;
  int64_t integer = 0;    // all integer kinds and bool; a uint64 above INT64_MAX keeps its bits
  double real = 0;        // float32 and float64
  std::string_view text;  // string
  std::shared_ptr<const GgufArray> array;

  bool is_integer() const;  // a bool is not an integer
  bool fits_int64() const;  // false for a uint64 above INT64_MAX
  bool is_real() const { return kind == GgufKind::kFloat32 || kind == GgufKind::kFloat64; }
};

// The scalar of that kind at `at`, which needs no alignment.
GgufValue plain_value(GgufKind kind, const std::byte* at);

// An array: strings as views, arrays of arrays as values, scalars as raw little-endian bytes.
struct GgufArray {
  GgufKind kind = GgufKind::kUint8;  // of the elements
  size_t size = 0;
  std::vector<std::string_view> strings;
  std::vector<GgufArray> arrays;
  std::span<const std::byte> raw;

  // Element i. REQUIRES: the elements are scalars (not strings or arrays).
  GgufValue at(size_t i) const;
};

// All pairs of a file, in file order; keys are unique. Immutable; any thread may read. get_*() returns an Error that
// names the file and the key if the key is missing or has another kind; *_or() returns the fallback if the key is
// missing, but still an Error if the kind is wrong. get_int accepts all integer kinds, get_double also integers.
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
  // Views into the file: valid while the source (or the owner given to parse) is alive.
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view fallback) const;
  // Large arrays without copies: tokens, merges.
  Result<std::span<const std::string_view>> get_strings(std::string_view key) const;
  // Copies; get_ints accepts all integer kinds, get_doubles all number kinds.
  Result<std::vector<int64_t>> get_ints(std::string_view key) const;
  Result<std::vector<float>> get_floats(std::string_view key) const;
  Result<std::vector<bool>> get_bools(std::string_view key) const;
  // A number or an array of exactly `count` numbers (values per layer); always returns `count` numbers.
  Result<std::vector<int64_t>> get_ints_per(std::string_view key, size_t count) const;

  // For the parser; false if the key exists already.
  bool add(std::string_view key, GgufValue value);
  void set_file(std::string file) { file_ = std::move(file); }

 private:
  Result<const GgufValue*> get(std::string_view key) const;
  Failure wrong_kind(std::string_view key, const GgufValue& value, const char* wanted) const;
  Result<const GgufArray*> get_array(std::string_view key, const char* wanted) const;

  std::string file_;
  std::vector<Pair> pairs_;
  std::unordered_map<std::string_view, size_t> places_;
};

}  // namespace quire::weights
