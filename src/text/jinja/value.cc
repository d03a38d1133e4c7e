// SPDX-License-Identifier: Apache-2.0
// Storage of values: reference-counted strings, the heap of a render, and the insertion-ordered dict.
#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <random>

#include "text/jinja/operators.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {

void fail(std::string_view message) {
  fail_at(0, message);
}
void fail(Pieces message) {
  fail_at(0, joined(message));
}

void fail_at(int line, std::string_view message) {
  throw TemplateError{std::string(message), line, false, ErrorCode::kInvalidArgument};
}
void fail_at(int line, Pieces message) {
  fail_at(line, joined(message));
}

Value Value::real(double d) {
  Value value(Type::kFloat, int64_t{0});
  value.payload_.real = d;
  return value;
}

Value Value::object(Type type, Object* object) {
  Value value(type, int64_t{0});
  value.payload_.object = object;
  return value;
}

Value Value::string(StringObject* text, bool markup) {
  Value value(Type::kString, int64_t{0});
  value.payload_.string = text;
  value.flag_ = markup ? 1 : 0;
  value.retain();
  return value;
}

Value Value::long_integer(StringObject* digits) {
  Value value = string(digits);
  value.type_ = Type::kLongInt;
  return value;
}

Value Value::undefined(UndefinedKind kind, StringObject* text, Type owner) {
  Value value = string(text);
  value.type_ = Type::kUndefined;
  value.flag_ = static_cast<uint8_t>(static_cast<uint8_t>(kind) | (static_cast<uint8_t>(owner) << 2));
  return value;
}

void Value::release() {
  if (!counted()) return;
  StringObject* object = payload_.string;
  if (object->heap == nullptr || --object->references > 0) return;
  object->heap->discharge(object->text.capacity() + object->origins.heap_bytes() + sizeof(StringObject));
  std::unique_ptr<StringObject> last(object);
}

bool Value::same_as(const Value& other) const {
  if (type_ != other.type_) return false;
  switch (type_) {
    case Type::kMissing:
    case Type::kNone:
      return true;
    case Type::kFloat:
      return payload_.real == other.payload_.real;
    case Type::kString:
    case Type::kLongInt:
      return payload_.string == other.payload_.string || text() == other.text();
    default:
      return payload_.integer == other.payload_.integer;
  }
}

// --- Heap ---

namespace {

// The CPU time of a render in seconds. Real templates need milliseconds. A step on long strings can cost fifty times
// one of arithmetic, so the number of steps alone does not bound the time.
constexpr double kMaxCpuSeconds = 2;

// CPU time of this thread, so that a busy machine does not make a template fail.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

// Steps are taken from the reserve in thousands, so that checking the flag and the clock costs nothing.
void Heap::take_steps(uint64_t count) {
  constexpr uint64_t kSlice = 10'000;
  const double now = cpu_seconds();
  if (cpu_deadline_ == 0) cpu_deadline_ = now + kMaxCpuSeconds;
  if (now > cpu_deadline_) {
    throw TemplateError{"the template exceeded the limit of " + std::to_string(static_cast<int>(kMaxCpuSeconds)) +
                            " seconds of CPU time",
                        0, false, ErrorCode::kExhausted};
  }
  if (cancelled_ != nullptr && *cancelled_) {
    throw TemplateError{"the render was cancelled", 0, false, ErrorCode::kCancelled};
  }
  const uint64_t missing = count - steps_left_;
  if (missing > steps_reserved_) {
    throw TemplateError{"the template exceeded the limit of steps", 0, false, ErrorCode::kExhausted};
  }
  const uint64_t taken = std::min(steps_reserved_, std::max(missing, kSlice));
  steps_reserved_ -= taken;
  steps_left_ += taken;
}

void Heap::charge(size_t bytes) {
  used_ += bytes;
  if (used_ > max_bytes_) {
    used_ -= bytes;
    throw TemplateError{"the template exceeded the memory limit", 0, false, ErrorCode::kExhausted};
  }
}

Value Heap::string(MarkedText text, bool markup) {
  const size_t marks = text.origins.heap_bytes();
  touch(text.size() + marks);
  charge(text.text.capacity() + marks + sizeof(StringObject));
  auto object = std::make_unique<StringObject>();
  object->text = std::move(text.text);
  object->origins = std::move(text.origins);
  object->heap = this;
  return Value::string(object.release(), markup);
}

Value Heap::list(Values items) {
  step();
  charge(items.size() * sizeof(Value));
  auto* object = make<ListObject>();
  object->items = std::move(items);
  object->heap = this;
  return Value::object(Type::kList, object);
}

Value Heap::tuple(Values items) {
  step();
  charge(items.size() * sizeof(Value));
  auto* object = make<ListObject>();
  object->items = std::move(items);
  object->heap = this;
  return Value::object(Type::kTuple, object);
}

Value Heap::dict() {
  return Value::object(Type::kDict, make<DictObject>());
}

Value Heap::undefined_hint(std::string message) {
  const Value text = string(std::move(message));
  return Value::undefined(UndefinedKind::kHint, text.string_object());
}

std::unique_ptr<StringObject> make_immortal(std::string text) {
  auto object = std::make_unique<StringObject>();
  object->text = std::move(text);
  object->code_points = static_cast<int64_t>(count_code_points(object->text));
  return object;
}

// --- Hashing ---

namespace {

// Random per process, so that nobody can prepare colliding keys.
uint64_t hash_seed() {
  static const uint64_t seed = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  return seed;
}

uint64_t mix(uint64_t h, uint64_t word) {
  h = (h ^ word) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

}  // namespace

uint64_t hash_text(std::string_view text) {
  uint64_t h = mix(hash_seed(), text.size());
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    h = mix(h, word);
  }
  uint64_t tail = 0;
  if (i < text.size()) std::memcpy(&tail, text.data() + i, text.size() - i);
  return mix(h, tail);
}

uint64_t hash_value(const Value& value) {
  switch (value.type()) {
    case Type::kString:
    case Type::kLongInt:
      return hash_text(value.text());
    case Type::kBool:
    case Type::kInt:
      return mix(hash_seed(), static_cast<uint64_t>(value.as_int()));
    case Type::kFloat: {
      const double d = value.as_real();
      if (d == std::floor(d) && std::fabs(d) < 9.2e18) {
        return mix(hash_seed(), static_cast<uint64_t>(static_cast<int64_t>(d)));
      }
      uint64_t bits;
      std::memcpy(&bits, &d, 8);
      return mix(hash_seed(), bits);
    }
    case Type::kTuple: {
      uint64_t h = hash_seed() + 1;
      // A tuple may contain the same tuple many times, so each visit counts as work.
      Heap& heap = *value.list().heap;
      const DepthGuard guard(heap);
      heap.step(value.list().items.size());
      for (const Value& item : value.list().items) h = mix(h, hash_value(item));
      return h;
    }
    case Type::kList:
    case Type::kDict:
    case Type::kDictView:
      fail({"unhashable type: '", python_type_name(value), "'"});
    case Type::kNone:
    case Type::kUndefined:
    case Type::kMissing:
      return mix(hash_seed(), static_cast<uint64_t>(value.type()));
    default:
      return mix(hash_seed(), reinterpret_cast<uintptr_t>(value.object()));
  }
}

// --- DictObject ---

int64_t DictObject::locate(std::string_view key) const {
  if (table_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].key.is_string() && entries[i].key.text() == key) return static_cast<int64_t>(i);
    }
    return -1;
  }
  const uint64_t hash = hash_text(key);
  for (size_t at = hash & (table_.size() - 1);; at = (at + 1) & (table_.size() - 1)) {
    if (table_[at] == 0) return -1;
    const size_t i = table_[at] - 1;
    if (hashes_[i] == hash && entries[i].key.is_string() && entries[i].key.text() == key)
      return static_cast<int64_t>(i);
  }
}

int64_t DictObject::locate(const Value& key) const {
  if (key.is_string()) return locate(std::string_view(key.text()));
  const uint64_t hash = hash_value(key);
  if (table_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (equal_keys(entries[i].key, key)) return static_cast<int64_t>(i);
    }
    return -1;
  }
  for (size_t at = hash & (table_.size() - 1);; at = (at + 1) & (table_.size() - 1)) {
    if (table_[at] == 0) return -1;
    const size_t i = table_[at] - 1;
    if (hashes_[i] == hash && equal_keys(entries[i].key, key)) return static_cast<int64_t>(i);
  }
}

const Value* DictObject::find(const Value& key) const {
  const int64_t i = locate(key);
  return i < 0 ? nullptr : &entries[static_cast<size_t>(i)].value;
}

const Value* DictObject::find(std::string_view key) const {
  const int64_t i = locate(key);
  return i < 0 ? nullptr : &entries[static_cast<size_t>(i)].value;
}

void DictObject::add_to_table(size_t index) {
  size_t at = hashes_[index] & (table_.size() - 1);
  while (table_[at] != 0) at = (at + 1) & (table_.size() - 1);
  table_[at] = static_cast<uint32_t>(index + 1);
}

void DictObject::rebuild() {
  table_.clear();
  hashes_.clear();
  if (entries.size() <= kSmall) return;
  size_t size = 32;
  while (size < entries.size() * 2) size *= 2;
  table_.assign(size, 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    hashes_.push_back(hash_value(entries[i].key));
    add_to_table(i);
  }
}

void DictObject::set(Heap& heap, Value key, Value value) {
  if (key.is_string()) heap.touch(key.text().size());
  const int64_t found = locate(key);
  if (found >= 0) {
    entries[static_cast<size_t>(found)].value = std::move(value);
    return;
  }
  heap.charge(sizeof(Entry) + 16);
  entries.push_back({std::move(key), std::move(value)});
  if (entries.size() <= kSmall) return;
  if (table_.size() < entries.size() * 2) {
    rebuild();
  } else {
    hashes_.push_back(hash_value(entries.back().key));
    add_to_table(entries.size() - 1);
  }
}

bool DictObject::erase(const Value& key) {
  const int64_t found = locate(key);
  if (found < 0) return false;
  entries.erase(entries.begin() + found);
  rebuild();
  return true;
}

void DictObject::clear() {
  entries.clear();
  rebuild();
}

int64_t RangeObject::size() const {
  const auto from = static_cast<uint64_t>(start), to = static_cast<uint64_t>(stop);
  uint64_t count = 0;
  if (step > 0 && start < stop) count = (to - from - 1) / static_cast<uint64_t>(step) + 1;
  if (step < 0 && start > stop) count = (from - to - 1) / (0 - static_cast<uint64_t>(step)) + 1;
  return static_cast<int64_t>(std::min<uint64_t>(count, INT64_MAX));
}

int64_t RangeObject::at(int64_t index) const {
  return static_cast<int64_t>(static_cast<uint64_t>(start) +
                              static_cast<uint64_t>(index) * static_cast<uint64_t>(step));
}

}  // namespace quire::text::jinja
