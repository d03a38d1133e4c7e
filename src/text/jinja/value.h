// SPDX-License-Identifier: Apache-2.0
// The values of templates: Python's None, bool, int, float, str, list, tuple, dict and a few objects.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/origin.h"

namespace quire::text::jinja {

class Heap;
class Interpreter;
struct MacroNode;

// Thrown inside this folder when a template fails; parse() and render() convert it to an Error.
struct TemplateError {
  std::string message;
  int line = 0;         // 0: not known yet
  bool raised = false;  // by raise_exception
  ErrorCode code = ErrorCode::kInvalidArgument;
};

[[noreturn]] void fail(std::string_view message);
[[noreturn]] void fail(Pieces message);
[[noreturn]] void fail_at(int line, std::string_view message);
[[noreturn]] void fail_at(int line, Pieces message);

enum class Type : uint8_t {
  kMissing,  // no value was bound; never visible to a template
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kLongInt,  // an integer of JSON that does not fit 64 bits: it is printed, compared for equality and told to be a
             // number
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kRange,
  kDictView,
  kGenerator,
  kLoop,
  kMacro,
  kFunction,
  kCycler,
  kJoiner,
};

// Why a value is undefined; selects the message of the error when it is used.
enum class UndefinedKind : uint8_t { kName, kAttribute, kHint };

// The text of a string value. Its Values count references, and it is never shared between threads, except for immortal
// strings, which belong to a parsed template and are not counted.
struct StringObject {
  std::string text;
  Heap* heap = nullptr;  // that accounts for its memory; null: immortal
  uint32_t references = 0;
  int64_t code_points = -1;  // -1: not known yet
  Origins origins = {};      // of its bytes
};

struct Object {
  virtual ~Object() = default;
};
struct ListObject;
struct DictObject;

// One value, 16 bytes. Strings are freed with their last Value; lists, dicts and other objects are references into the
// Heap of the render, which frees all of them at its end. So cycles do not matter, and no destructor recurses.
class Value {
 public:
  Value() = default;
  Value(const Value& other) : type_(other.type_), flag_(other.flag_), payload_(other.payload_) { retain(); }
  Value(Value&& other) noexcept : type_(other.type_), flag_(other.flag_), payload_(other.payload_) {
    other.type_ = Type::kMissing;
  }
  Value& operator=(const Value& other) {
    Value copy(other);
    swap(copy);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Value() { release(); }

  static Value none() { return Value(Type::kNone, int64_t{0}); }
  static Value boolean(bool b) { return Value(Type::kBool, int64_t{b}); }
  static Value integer(int64_t i) { return Value(Type::kInt, i); }
  static Value real(double d);
  static Value object(Type type, Object* object);
  static Value string(StringObject* text, bool markup = false);
  static Value long_integer(StringObject* digits);
  static Value undefined(UndefinedKind kind, StringObject* text, Type owner = Type::kMissing);

  Type type() const { return type_; }
  bool is(Type type) const { return type_ == type; }
  bool is_missing() const { return type_ == Type::kMissing; }
  bool is_undefined() const { return type_ == Type::kUndefined; }
  bool is_none() const { return type_ == Type::kNone; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_int_like() const { return type_ == Type::kInt || type_ == Type::kBool; }
  bool is_number() const { return is_int_like() || type_ == Type::kFloat; }
  bool is_sequence() const { return type_ == Type::kList || type_ == Type::kTuple; }
  bool is_markup() const { return type_ == Type::kString && flag_ != 0; }

  bool as_bool() const { return payload_.integer != 0; }
  int64_t as_int() const { return payload_.integer; }
  double as_real() const { return type_ == Type::kFloat ? payload_.real : static_cast<double>(payload_.integer); }
  const std::string& text() const { return payload_.string->text; }
  const Origins& origins() const { return payload_.string->origins; }
  StringObject* string_object() const { return payload_.string; }
  Object* object() const { return payload_.object; }
  ListObject& list() const;
  DictObject& dict() const;
  template <typename T>
  T& as() const {
    return *static_cast<T*>(payload_.object);
  }
  UndefinedKind undefined_kind() const { return static_cast<UndefinedKind>(flag_ & 3); }
  Type undefined_owner() const {
    return static_cast<Type>(flag_ >> 2);
  }  // for kAttribute: the type without that attribute
  // Python's `is`.
  bool same_as(const Value& other) const;
  Value with_markup(bool markup) const {
    Value copy(*this);
    copy.flag_ = markup ? 1 : 0;
    return copy;
  }

 private:
  union Payload {
    int64_t integer;
    double real;
    StringObject* string;
    Object* object;
  };
  Value(Type type, int64_t i) : type_(type) { payload_.integer = i; }
  bool counted() const { return type_ == Type::kString || type_ == Type::kUndefined || type_ == Type::kLongInt; }
  void retain() const {
    if (counted() && payload_.string->heap != nullptr) ++payload_.string->references;
  }
  void release();
  void swap(Value& other) noexcept {
    std::swap(type_, other.type_);
    std::swap(flag_, other.flag_);
    std::swap(payload_, other.payload_);
  }

  Type type_ = Type::kMissing;
  uint8_t flag_ = 0;  // string: is Markup; undefined: its kind in two bits, then the owner's type
  Payload payload_{0};
};

using Values = std::vector<Value>;

// A list or a tuple.
struct ListObject : Object {
  Values items;
  Heap* heap = nullptr;  // that accounts for hashing a tuple
  bool group = false;    // a tuple made by groupby, which also has .grouper and .list
};

// A dict: entries in insertion order, with a hash table if there are many. 1, 1.0 and True are one key.
struct DictObject : Object {
  struct Entry {
    Value key;
    Value value;
  };
  std::vector<Entry> entries;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Heap& heap, Value key, Value value);
  bool erase(const Value& key);
  void clear();

 private:
  static constexpr size_t kSmall = 8;
  int64_t locate(const Value& key) const;
  int64_t locate(std::string_view key) const;
  void add_to_table(size_t index);
  void rebuild();
  std::vector<uint32_t> table_;  // open addressing, entry index + 1; empty while small
  std::vector<uint64_t> hashes_;
};

struct NamespaceObject : Object {
  DictObject attributes;
};

struct RangeObject : Object {
  int64_t start = 0, stop = 0, step = 1;
  int64_t size() const;
  int64_t at(int64_t index) const;  // start + index * step, modulo 2^64: the product alone may need more bits
};

struct DictViewObject : Object {
  enum class Kind { kKeys, kValues, kItems } kind = Kind::kKeys;
  DictObject* dict = nullptr;
};

// A Python generator: each call returns the next item; it can be used once, and is printed as in Python.
struct GeneratorObject : Object {
  std::function<bool(Value&)> next;
  const char* python_type = "generator";
  bool done = false;
  bool running = false;
};

struct CyclerObject : Object {
  Values items;
  size_t position = 0;
};

struct JoinerObject : Object {
  Value separator;
  bool used = false;
};

// The arguments of one call.
struct Args {
  Values positional;
  std::vector<std::pair<Value, Value>> keyword;  // names are strings
};

// A global function, or a method bound to its value.
struct FunctionObject : Object {
  using Native = Value (*)(Interpreter&, const Value& self, Args& args);
  Native call = nullptr;
  const char* name = "";
  Value self;
};

struct Frame;
struct MacroObject : Object {
  const MacroNode* node = nullptr;
  Frame* frame = nullptr;  // where it was defined
};

// Accounts for the memory and time of one render, and owns its objects. Used by one thread.
class Heap {
 public:
  // `cancelled`, if not null, is set to true when nobody waits for the render any more.
  Heap(uint64_t max_steps, size_t max_bytes, const std::atomic<bool>* cancelled = nullptr)
      : steps_reserved_(max_steps), cancelled_(cancelled), max_bytes_(max_bytes) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Counts work; throws if the template exceeded its limit of steps or CPU time, or was cancelled.
  void step(uint64_t count = 1) {
    if (count > steps_left_) take_steps(count);
    steps_left_ -= count;
  }
  void touch(size_t bytes) { step(1 + bytes / 64); }
  void charge(size_t bytes);
  void discharge(size_t bytes) { used_ -= bytes; }

  // A text with known origins; the strings below are the template's own.
  Value string(MarkedText text, bool markup = false);
  Value string(std::string text, bool markup = false) { return string(MarkedText(std::move(text)), markup); }
  Value string(std::string_view text) { return string(std::string(text)); }
  Value string(const char* text) { return string(std::string(text)); }
  Value list(Values items);
  Value tuple(Values items);
  Value dict();
  Value undefined_hint(std::string message);
  template <typename T>
  T* make() {
    charge(sizeof(T) + 64);
    auto owned = std::make_unique<T>();
    T* raw = owned.get();
    objects_.push_back(std::move(owned));
    return raw;
  }

  // Nested printing, comparing and iterating share one depth, so that hostile nesting is an error.
  int depth = 0;
  int max_depth = 1200;

 private:
  void take_steps(uint64_t count);
  uint64_t steps_left_ = 0;  // of the steps taken from the reserve
  uint64_t steps_reserved_;
  const std::atomic<bool>* cancelled_;
  double cpu_deadline_ = 0;  // in CPU time of this thread, in seconds; 0: not set yet
  size_t max_bytes_;
  size_t used_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

// Holds one level of nesting.
class DepthGuard {
 public:
  explicit DepthGuard(Heap& heap) : heap_(heap) {
    if (++heap_.depth > heap_.max_depth) {
      --heap_.depth;
      fail("the template is nested too deeply");
    }
  }
  ~DepthGuard() { --heap_.depth; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Heap& heap_;
};

inline ListObject& Value::list() const {
  return *static_cast<ListObject*>(payload_.object);
}
inline DictObject& Value::dict() const {
  return *static_cast<DictObject*>(payload_.object);
}

// A string that belongs to a parsed template: not counted, and safe to share between threads.
std::unique_ptr<StringObject> make_immortal(std::string text);

uint64_t hash_value(const Value& value);  // throws for unhashable types, as in Python
uint64_t hash_text(std::string_view text);

}  // namespace quire::text::jinja
