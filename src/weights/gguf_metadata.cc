// SPDX-License-Identifier: Apache-2.0
// Look-ups in GGUF metadata. Errors name the file, the key and what was found.
#include "weights/gguf_metadata.h"

#include <cstring>
#include <limits>

#include "weights/file_sniff.h"

namespace quire::weights {
namespace {

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

const char* describe(GgufKind kind) {
  switch (kind) {
    case GgufKind::kUint8:
      return "uint8";
    case GgufKind::kInt8:
      return "int8";
    case GgufKind::kUint16:
      return "uint16";
    case GgufKind::kInt16:
      return "int16";
    case GgufKind::kUint32:
      return "uint32";
    case GgufKind::kInt32:
      return "int32";
    case GgufKind::kFloat32:
      return "float32";
    case GgufKind::kBool:
      return "bool";
    case GgufKind::kString:
      return "string";
    case GgufKind::kArray:
      return "array";
    case GgufKind::kUint64:
      return "uint64";
    case GgufKind::kInt64:
      return "int64";
    case GgufKind::kFloat64:
      return "float64";
  }
  return "unknown";
}

size_t plain_size(GgufKind kind) {
  switch (kind) {
    case GgufKind::kUint8:
    case GgufKind::kInt8:
    case GgufKind::kBool:
      return 1;
    case GgufKind::kUint16:
    case GgufKind::kInt16:
      return 2;
    case GgufKind::kUint32:
    case GgufKind::kInt32:
    case GgufKind::kFloat32:
      return 4;
    case GgufKind::kUint64:
    case GgufKind::kInt64:
    case GgufKind::kFloat64:
      return 8;
    case GgufKind::kString:
    case GgufKind::kArray:
      return 0;
  }
  return 0;
}

GgufValue plain_value(GgufKind kind, const std::byte* at) {
  GgufValue value;
  value.kind = kind;
  switch (kind) {
    case GgufKind::kUint8:
    case GgufKind::kBool:
      value.integer = load<uint8_t>(at);
      break;
    case GgufKind::kInt8:
      value.integer = load<int8_t>(at);
      break;
    case GgufKind::kUint16:
      value.integer = load<uint16_t>(at);
      break;
    case GgufKind::kInt16:
      value.integer = load<int16_t>(at);
      break;
    case GgufKind::kUint32:
      value.integer = load<uint32_t>(at);
      break;
    case GgufKind::kInt32:
      value.integer = load<int32_t>(at);
      break;
    case GgufKind::kUint64:
    case GgufKind::kInt64:
      value.integer = load<int64_t>(at);
      break;
    case GgufKind::kFloat32:
      value.real = static_cast<double>(load<float>(at));
      break;
    case GgufKind::kFloat64:
      value.real = load<double>(at);
      break;
    case GgufKind::kString:
    case GgufKind::kArray:
      QUIRE_CHECK(false, "only scalar kinds have a fixed size");
  }
  return value;
}

bool GgufValue::is_integer() const {
  return plain_size(kind) != 0 && kind != GgufKind::kBool && !is_real();
}

bool GgufValue::fits_int64() const {
  return is_integer() && (kind != GgufKind::kUint64 || integer >= 0);
}

GgufValue GgufArray::at(size_t i) const {
  QUIRE_CHECK(i < size && plain_size(kind) != 0, "GgufArray::at() is for scalar kinds");
  return plain_value(kind, raw.data() + i * plain_size(kind));
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto it = places_.find(key);
  return it == places_.end() ? nullptr : &pairs_[it->second].value;
}

bool GgufMetadata::add(std::string_view key, GgufValue value) {
  if (!places_.emplace(key, pairs_.size()).second) return false;
  pairs_.push_back({key, std::move(value)});
  return true;
}

Result<const GgufValue*> GgufMetadata::get(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return corrupt_file(file_, "the metadata has no " + in_quotes(key));
  return value;
}

Failure GgufMetadata::wrong_kind(std::string_view key, const GgufValue& value, const char* wanted) const {
  std::string kind = describe(value.kind);
  if (value.kind == GgufKind::kArray) kind += std::string(" of ") + describe(value.array->kind);
  return corrupt_file(file_, "metadata " + in_quotes(key) + " must be " + wanted + ", not " + kind);
}

Result<int64_t> GgufMetadata::get_int(std::string_view key, int64_t min, int64_t max) const {
  QUIRE_ASSIGN(const GgufValue* value, get(key));
  if (!value->is_integer()) return wrong_kind(key, *value, "a whole number");
  if (!value->fits_int64() || value->integer < min || value->integer > max) {
    const std::string number = value->kind == GgufKind::kUint64 ? std::to_string(static_cast<uint64_t>(value->integer))
                                                                : std::to_string(value->integer);
    return corrupt_file(file_, "metadata " + in_quotes(key) + " is " + number + ", outside of " + std::to_string(min) +
                                   " to " + std::to_string(max));
  }
  return value->integer;
}

Result<int64_t> GgufMetadata::get_int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
  if (!contains(key)) return fallback;
  return get_int(key, min, max);
}

Result<double> GgufMetadata::get_double(std::string_view key) const {
  QUIRE_ASSIGN(const GgufValue* value, get(key));
  if (value->is_real()) return value->real;
  if (value->fits_int64()) return static_cast<double>(value->integer);
  return wrong_kind(key, *value, "a number");
}

Result<double> GgufMetadata::get_double_or(std::string_view key, double fallback) const {
  if (!contains(key)) return fallback;
  return get_double(key);
}

Result<bool> GgufMetadata::get_bool(std::string_view key) const {
  QUIRE_ASSIGN(const GgufValue* value, get(key));
  if (value->kind != GgufKind::kBool) return wrong_kind(key, *value, "a bool");
  return value->integer != 0;
}

Result<bool> GgufMetadata::get_bool_or(std::string_view key, bool fallback) const {
  if (!contains(key)) return fallback;
  return get_bool(key);
}

Result<std::string_view> GgufMetadata::get_string(std::string_view key) const {
  QUIRE_ASSIGN(const GgufValue* value, get(key));
  if (value->kind != GgufKind::kString) return wrong_kind(key, *value, "a string");
  return value->text;
}

Result<std::string_view> GgufMetadata::get_string_or(std::string_view key, std::string_view fallback) const {
  if (!contains(key)) return fallback;
  return get_string(key);
}

Result<const GgufArray*> GgufMetadata::get_array(std::string_view key, const char* wanted) const {
  QUIRE_ASSIGN(const GgufValue* value, get(key));
  if (value->kind != GgufKind::kArray) return wrong_kind(key, *value, wanted);
  return static_cast<const GgufArray*>(value->array.get());
}

Result<std::span<const std::string_view>> GgufMetadata::get_strings(std::string_view key) const {
  constexpr const char* kWanted = "an array of strings";
  QUIRE_ASSIGN(const GgufArray* array, get_array(key, kWanted));
  if (array->kind != GgufKind::kString) return wrong_kind(key, *find(key), kWanted);
  return std::span<const std::string_view>(array->strings);
}

Result<std::vector<int64_t>> GgufMetadata::get_ints(std::string_view key) const {
  constexpr const char* kWanted = "an array of whole numbers";
  QUIRE_ASSIGN(const GgufArray* array, get_array(key, kWanted));
  std::vector<int64_t> out;
  if (plain_size(array->kind) == 0) return wrong_kind(key, *find(key), kWanted);
  out.reserve(array->size);
  for (size_t i = 0; i < array->size; ++i) {
    const GgufValue value = array->at(i);
    if (!value.fits_int64()) return wrong_kind(key, *find(key), kWanted);
    out.push_back(value.integer);
  }
  return out;
}

Result<std::vector<float>> GgufMetadata::get_floats(std::string_view key) const {
  constexpr const char* kWanted = "an array of numbers";
  QUIRE_ASSIGN(const GgufArray* array, get_array(key, kWanted));
  std::vector<float> out;
  if (plain_size(array->kind) == 0) return wrong_kind(key, *find(key), kWanted);
  out.reserve(array->size);
  for (size_t i = 0; i < array->size; ++i) {
    const GgufValue value = array->at(i);
    if (!value.is_real() && !value.fits_int64()) return wrong_kind(key, *find(key), kWanted);
    out.push_back(value.is_real() ? static_cast<float>(value.real) : static_cast<float>(value.integer));
  }
  return out;
}

Result<std::vector<bool>> GgufMetadata::get_bools(std::string_view key) const {
  constexpr const char* kWanted = "an array of bools";
  QUIRE_ASSIGN(const GgufArray* array, get_array(key, kWanted));
  if (array->kind != GgufKind::kBool) return wrong_kind(key, *find(key), kWanted);
  std::vector<bool> out;
  out.reserve(array->size);
  for (size_t i = 0; i < array->size; ++i) out.push_back(array->at(i).integer != 0);
  return out;
}

Result<std::vector<int64_t>> GgufMetadata::get_ints_per(std::string_view key, size_t count) const {
  QUIRE_ASSIGN(const GgufValue* value, get(key));
  if (value->kind != GgufKind::kArray) {
    QUIRE_ASSIGN(const int64_t number,
                 get_int(key, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
    return std::vector<int64_t>(count, number);
  }
  QUIRE_ASSIGN(std::vector<int64_t> numbers, get_ints(key));
  if (numbers.size() != count) {
    return corrupt_file(file_, "metadata " + in_quotes(key) + " has " + std::to_string(numbers.size()) +
                                   " numbers where " + std::to_string(count) + " are needed");
  }
  return numbers;
}

}  // namespace quire::weights
