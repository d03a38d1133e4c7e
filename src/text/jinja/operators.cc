// SPDX-License-Identifier: Apache-2.0
// Truth, equality, order, length, iteration, items and slices, by Python's rules.
#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {

namespace {

const char* type_name(Type type) {
  switch (type) {
    case Type::kMissing:
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kLongInt:
      return "int of more than 64 bits";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return "str";
    case Type::kList:
      return "list";
    case Type::kTuple:
      return "tuple";
    case Type::kDict:
      return "dict";
    case Type::kNamespace:
      return "Namespace";
    case Type::kRange:
      return "range";
    case Type::kDictView:
      return "dict_items";
    case Type::kGenerator:
      return "generator";
    case Type::kLoop:
      return "LoopContext";
    case Type::kMacro:
      return "Macro";
    case Type::kFunction:
      return "builtin_function_or_method";
    case Type::kCycler:
      return "Cycler";
    case Type::kJoiner:
      return "Joiner";
  }
  return "object";
}

}  // namespace

const char* python_type_name(const Value& value) {
  switch (value.type()) {
    case Type::kString:
      return value.is_markup() ? "Markup" : "str";
    case Type::kDictView: {
      const auto kind = value.as<DictViewObject>().kind;
      return kind == DictViewObject::Kind::kKeys     ? "dict_keys"
             : kind == DictViewObject::Kind::kValues ? "dict_values"
                                                     : "dict_items";
    }
    case Type::kGenerator:
      return value.as<GeneratorObject>().python_type;
    default:
      return type_name(value.type());
  }
}

std::string undefined_message(const Value& value) {
  switch (value.undefined_kind()) {
    case UndefinedKind::kName:
      return repr_text(value.text()) + " is undefined";
    case UndefinedKind::kAttribute: {
      const Type owner = value.undefined_owner();
      const std::string what = owner == Type::kNone ? "None" : std::string(type_name(owner)) + " object";
      return "'" + what + "' has no attribute " + repr_text(value.text());
    }
    case UndefinedKind::kHint:
      break;
  }
  return value.text();
}

void fail_undefined(const Value& value) {
  fail(undefined_message(value));
}

bool is_true(const Value& value) {
  switch (value.type()) {
    case Type::kMissing:
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
    case Type::kInt:
      return value.as_int() != 0;
    case Type::kFloat:
      return value.as_real() != 0;
    case Type::kString:
      return !value.text().empty();
    case Type::kList:
    case Type::kTuple:
      return !value.list().items.empty();
    case Type::kDict:
      return !value.dict().entries.empty();
    case Type::kRange:
      return value.as<RangeObject>().size() > 0;
    case Type::kDictView:
      return !value.as<DictViewObject>().dict->entries.empty();
    case Type::kLoop:
      return value.as<LoopObject>().length() > 0;
    default:
      return true;
  }
}

namespace {

// -1, 0, 1, or 2 if one is NaN; exact even if a double cannot represent the integer.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_int_like() && b.is_int_like()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
  if (a.is(Type::kFloat) && b.is(Type::kFloat)) {
    const double x = a.as_real(), y = b.as_real();
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  if (a.is(Type::kFloat)) {
    const int reversed = compare_numbers(b, a);
    return reversed == 2 ? 2 : -reversed;
  }
  const double y = b.as_real();
  if (std::isnan(y)) return 2;
  if (y >= 9223372036854775808.0) return -1;
  if (y < -9223372036854775808.0) return 1;
  const double whole = std::floor(y);
  const auto floor_of_y = static_cast<int64_t>(whole);
  if (a.as_int() != floor_of_y) return a.as_int() < floor_of_y ? -1 : 1;
  return y > whole ? -1 : 0;
}

bool equal_dicts(Heap& heap, const DictObject& a, const DictObject& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const DictObject::Entry& entry : a.entries) {
    heap.step();
    const Value* other = b.find(entry.key);
    if (other == nullptr || !equal(heap, entry.value, *other)) return false;
  }
  return true;
}

bool equal_ranges(const RangeObject& a, const RangeObject& b) {
  if (a.size() != b.size()) return false;
  if (a.size() == 0) return true;
  return a.start == b.start && (a.size() == 1 || a.step == b.step);
}

}  // namespace

bool equal(Heap& heap, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    heap.touch(std::min(a.text().size(), b.text().size()));
    return a.text() == b.text();
  }
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kLongInt:
      return a.text() == b.text();
    case Type::kList:
    case Type::kTuple: {
      if (a.object() == b.object()) return true;
      const DepthGuard guard(heap);
      const Values &x = a.list().items, &y = b.list().items;
      if (x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
        heap.step();
        if (!equal(heap, x[i], y[i])) return false;
      }
      return true;
    }
    case Type::kDict: {
      if (a.object() == b.object()) return true;
      const DepthGuard guard(heap);
      return equal_dicts(heap, a.dict(), b.dict());
    }
    case Type::kRange:
      return equal_ranges(a.as<RangeObject>(), b.as<RangeObject>());
    case Type::kDictView: {
      const auto &x = a.as<DictViewObject>(), &y = b.as<DictViewObject>();
      if (x.dict == y.dict && x.kind == y.kind)
        return x.kind != DictViewObject::Kind::kValues || a.object() == b.object();
      if (x.kind != y.kind || x.kind == DictViewObject::Kind::kValues) return false;
      if (x.kind == DictViewObject::Kind::kItems) return equal_dicts(heap, *x.dict, *y.dict);
      if (x.dict->entries.size() != y.dict->entries.size()) return false;
      return std::all_of(x.dict->entries.begin(), x.dict->entries.end(),
                         [&](const DictObject::Entry& e) { return y.dict->find(e.key) != nullptr; });
    }
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kFunction:
      return a.as<FunctionObject>().call == b.as<FunctionObject>().call &&
             a.as<FunctionObject>().self.same_as(b.as<FunctionObject>().self);
    default:
      return a.object() == b.object();
  }
}

bool equal_keys(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) return a.text() == b.text();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  if (a.is(Type::kTuple)) {
    const Values &x = a.list().items, &y = b.list().items;
    const DepthGuard guard(*a.list().heap);
    a.list().heap->step(x.size());
    return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin(), equal_keys);
  }
  return a.is_none() || a.is_undefined() || a.object() == b.object();
}

namespace {

[[noreturn]] void fail_order(const Value& a, const Value& b, const char* symbol) {
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  fail({"'", symbol, "' not supported between instances of '", python_type_name(a), "' and '", python_type_name(b),
        "'"});
}

// Lexicographic order of two lists or tuples.
bool less_sequences(Heap& heap, const Value& a, const Value& b, bool or_equal, const char* symbol) {
  const DepthGuard guard(heap);
  const Values &x = a.list().items, &y = b.list().items;
  for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
    heap.step();
    if (equal(heap, x[i], y[i])) continue;
    return or_equal ? less_or_equal(heap, x[i], y[i], symbol) : less(heap, x[i], y[i], symbol);
  }
  return or_equal ? x.size() <= y.size() : x.size() < y.size();
}

}  // namespace

bool less(Heap& heap, const Value& a, const Value& b, const char* symbol) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) {
    heap.touch(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();
  }
  if (a.is_sequence() && a.type() == b.type()) return less_sequences(heap, a, b, false, symbol);
  fail_order(a, b, symbol);
}

bool less_or_equal(Heap& heap, const Value& a, const Value& b, const char* symbol) {
  if (a.is_number() && b.is_number()) {
    const int order = compare_numbers(a, b);
    return order == -1 || order == 0;
  }
  if (a.is_string() && b.is_string()) {
    heap.touch(std::min(a.text().size(), b.text().size()));
    return a.text() <= b.text();
  }
  if (a.is_sequence() && a.type() == b.type()) return less_sequences(heap, a, b, true, symbol);
  fail_order(a, b, symbol);
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  switch (container.type()) {
    case Type::kString:
      if (!item.is_string()) {
        fail({"'in <string>' requires string as left operand, not ", python_type_name(item)});
      }
      heap.touch(container.text().size());
      return find_text(container.text(), item.text()) != std::string::npos;
    case Type::kDict:
      if (item.is_string()) heap.touch(item.text().size());
      return container.dict().find(item) != nullptr;
    case Type::kDictView:
      if (container.as<DictViewObject>().kind == DictViewObject::Kind::kKeys) {
        return container.as<DictViewObject>().dict->find(item) != nullptr;
      }
      break;
    case Type::kRange: {
      if (!item.is_number()) return false;
      if (item.is(Type::kFloat) && item.as_real() != std::floor(item.as_real())) return false;
      break;
    }
    default:
      break;
  }
  if (!is_iterable(container)) {
    fail({"argument of type '", python_type_name(container), "' is not iterable"});
  }
  Iterator it(heap, container);
  Value candidate;
  while (it.next(candidate)) {
    if (candidate.same_as(item) || equal(heap, candidate, item)) return true;
  }
  return false;
}

// --- Sequences ---

int64_t code_points(const Value& string) {
  StringObject* object = string.string_object();
  if (object->code_points < 0) object->code_points = static_cast<int64_t>(count_code_points(object->text));
  return object->code_points;
}

bool has_length(const Value& value) {
  switch (value.type()) {
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kDict:
    case Type::kRange:
    case Type::kDictView:
    case Type::kLoop:
    case Type::kUndefined:
      return true;
    default:
      return false;
  }
}

int64_t length(Heap& heap, const Value& value) {
  switch (value.type()) {
    case Type::kString:
      if (value.string_object()->code_points < 0) heap.touch(value.text().size());
      return code_points(value);
    case Type::kList:
    case Type::kTuple:
      return static_cast<int64_t>(value.list().items.size());
    case Type::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    case Type::kRange:
      return value.as<RangeObject>().size();
    case Type::kDictView:
      return static_cast<int64_t>(value.as<DictViewObject>().dict->entries.size());
    case Type::kLoop:
      return value.as<LoopObject>().length();
    case Type::kUndefined:
      return 0;
    default:
      fail({"object of type '", python_type_name(value), "' has no len()"});
  }
}

namespace {

bool is_plain_ascii(const Value& string) {
  return code_points(string) == static_cast<int64_t>(string.text().size());
}

}  // namespace

Value substring(Heap& heap, const Value& source, std::string_view part) {
  MarkedText out;
  out.add(part, source.origins(), source.text());
  return heap.string(std::move(out), source.is_markup());
}

bool item_at(Heap& heap, const Value& value, int64_t index, Value* out) {
  if (!has_length(value) || value.is(Type::kLoop) || value.is(Type::kUndefined)) return false;
  const int64_t size = length(heap, value);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return false;
  switch (value.type()) {
    case Type::kString: {
      const std::string& text = value.text();
      if (is_plain_ascii(value)) {
        *out = substring(heap, value, std::string_view(text).substr(static_cast<size_t>(index), 1));
        return true;
      }
      heap.touch(text.size());
      const size_t at = byte_offset(text, static_cast<size_t>(index));
      *out = substring(heap, value, std::string_view(text).substr(at, utf8::decode(text, at).size));
      return true;
    }
    case Type::kList:
    case Type::kTuple:
      *out = value.list().items[static_cast<size_t>(index)];
      return true;
    case Type::kRange: {
      const auto& range = value.as<RangeObject>();
      *out = Value::integer(range.at(index));
      return true;
    }
    default:
      return false;
  }
}

namespace {

// One bound of a slice: an integer or None.
int64_t slice_bound(const Value& bound, int64_t fallback, int64_t size, int64_t low, int64_t high) {
  if (bound.is_none() || bound.is_missing()) return fallback;
  if (!bound.is_int_like()) fail("slice indices must be integers or None or have an __index__ method");
  int64_t i = bound.as_int();
  if (i < 0) i += size;  // cannot overflow, since size is small
  return std::clamp(i, low, high);
}

Value slice_string(Heap& heap, const Value& value, int64_t start, int64_t stop, int64_t step, int64_t count) {
  const std::string_view text = value.text();
  heap.touch(text.size() / 4);
  if (step == 1) {
    if (is_plain_ascii(value)) {
      return substring(heap, value, text.substr(static_cast<size_t>(start), static_cast<size_t>(count)));
    }
    const size_t from = byte_offset(text, static_cast<size_t>(start));
    const size_t size = byte_offset(text.substr(from), static_cast<size_t>(stop - start));
    return substring(heap, value, text.substr(from, size));
  }
  heap.step(text.size() / 8);
  std::vector<std::string_view> points;
  each_code_point(text, [&](char32_t, std::string_view part) { points.push_back(part); });
  MarkedText out;
  for (int64_t k = 0; k < count; ++k) {
    out.add(points[static_cast<size_t>(start + k * step)], value.origins(), text);
  }
  return heap.string(std::move(out), value.is_markup());
}

}  // namespace

Value slice(Heap& heap, const Value& value, const Value& start_value, const Value& stop_value,
            const Value& step_value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_string() && !value.is_sequence() && !value.is(Type::kRange)) {
    fail({"'", python_type_name(value), "' object cannot be sliced"});
  }
  int64_t step = 1;
  if (!step_value.is_none() && !step_value.is_missing()) {
    if (!step_value.is_int_like()) fail("slice indices must be integers or None or have an __index__ method");
    step = step_value.as_int();
    if (step == 0) fail("slice step cannot be zero");
  }
  const int64_t size = length(heap, value);
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const int64_t start = slice_bound(start_value, step > 0 ? 0 : size - 1, size, low, high);
  const int64_t stop = slice_bound(stop_value, step > 0 ? size : -1, size, low, high);
  RangeObject indices;
  indices.start = start;
  indices.stop = stop;
  indices.step = step;
  const int64_t count = indices.size();
  if (count <= 1) step = 1;  // keeps the products below small
  if (value.is_string()) {
    if (count == 0) return substring(heap, value, std::string_view(value.text()).substr(0, 0));
    return slice_string(heap, value, start, step == 1 ? start + count : stop, step, count);
  }
  heap.step(static_cast<uint64_t>(count));
  if (value.is(Type::kRange)) {
    const auto& range = value.as<RangeObject>();
    auto* part = heap.make<RangeObject>();
    part->start = range.at(start);
    if (__builtin_mul_overflow(range.step, step, &part->step)) fail_large_int();
    part->stop = part->start;
    if (count == 0) return Value::object(Type::kRange, part);
    const int64_t last = range.at(start + (count - 1) * step);
    if (__builtin_add_overflow(last, part->step, &part->stop)) {
      part->stop = part->step > 0 ? INT64_MAX : INT64_MIN;
      if (part->stop == last) fail_large_int();  // one more is needed, as the end of a range is not in it
    }
    return Value::object(Type::kRange, part);
  }
  Values items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) items.push_back(value.list().items[static_cast<size_t>(start + k * step)]);
  return value.is(Type::kList) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

// --- Iteration ---

bool is_iterable(const Value& value) {
  switch (value.type()) {
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kDict:
    case Type::kRange:
    case Type::kDictView:
    case Type::kGenerator:
    case Type::kLoop:
    case Type::kUndefined:
      return true;
    default:
      return false;
  }
}

Iterator::Iterator(Heap& heap, const Value& iterable) : heap_(&heap), source_(iterable) {
  if (!is_iterable(iterable)) fail({"'", python_type_name(iterable), "' object is not iterable"});
  if (iterable.is(Type::kDict)) size_at_start_ = iterable.dict().entries.size();
  if (iterable.is(Type::kDictView)) size_at_start_ = iterable.as<DictViewObject>().dict->entries.size();
}

bool Iterator::known_length(int64_t* out) const {
  if (!has_length(source_)) return false;
  *out = jinja::length(*heap_, source_);
  return true;
}

namespace {

bool next_from_generator(Heap& heap, GeneratorObject& generator, Value& out) {
  if (generator.done) return false;
  if (generator.running) fail("generator already executing");
  const DepthGuard guard(heap);
  generator.running = true;
  try {
    generator.done = !generator.next(out);
  } catch (...) {
    generator.running = false;
    generator.done = true;
    throw;
  }
  generator.running = false;
  return !generator.done;
}

bool next_entry(Heap& heap, const DictObject& dict, DictViewObject::Kind kind, size_t* position, size_t expected,
                Value& out) {
  if (dict.entries.size() != expected) fail("dictionary changed size during iteration");
  if (*position >= dict.entries.size()) return false;
  const DictObject::Entry& entry = dict.entries[(*position)++];
  switch (kind) {
    case DictViewObject::Kind::kKeys:
      out = entry.key;
      break;
    case DictViewObject::Kind::kValues:
      out = entry.value;
      break;
    case DictViewObject::Kind::kItems:
      out = heap.tuple({entry.key, entry.value});
      break;
  }
  return true;
}

}  // namespace

bool Iterator::next(Value& out) {
  heap_->step();
  switch (source_.type()) {
    case Type::kList:
    case Type::kTuple: {
      const Values& items = source_.list().items;
      if (position_ >= items.size()) return false;
      out = items[position_++];
      return true;
    }
    case Type::kString: {
      const std::string& text = source_.text();
      if (position_ >= text.size()) return false;
      const size_t size = utf8::decode(text, position_).size;
      out = substring(*heap_, source_, std::string_view(text).substr(position_, size)).with_markup(false);
      position_ += size;
      return true;
    }
    case Type::kRange: {
      const auto& range = source_.as<RangeObject>();
      if (static_cast<int64_t>(position_) >= range.size()) return false;
      out = Value::integer(range.at(static_cast<int64_t>(position_++)));
      return true;
    }
    case Type::kDict:
      return next_entry(*heap_, source_.dict(), DictViewObject::Kind::kKeys, &position_, size_at_start_, out);
    case Type::kDictView: {
      const auto& view = source_.as<DictViewObject>();
      return next_entry(*heap_, *view.dict, view.kind, &position_, size_at_start_, out);
    }
    case Type::kGenerator:
      return next_from_generator(*heap_, source_.as<GeneratorObject>(), out);
    case Type::kLoop:
      fail("a loop object cannot be iterated over inside the template");
    default:
      return false;
  }
}

Values to_values(Heap& heap, const Value& iterable) {
  Iterator it(heap, iterable);
  Values out;
  int64_t size = 0;
  if (it.known_length(&size)) {
    heap.charge(static_cast<size_t>(size) * sizeof(Value));
    heap.discharge(static_cast<size_t>(size) * sizeof(Value));
    out.reserve(static_cast<size_t>(size));
  }
  Value item;
  while (it.next(item)) out.push_back(std::move(item));
  return out;
}

Value make_generator(Heap& heap, std::function<bool(Value&)> next, const char* python_type) {
  auto* generator = heap.make<GeneratorObject>();
  heap.charge(128);
  generator->next = std::move(next);
  generator->python_type = python_type;
  return Value::object(Type::kGenerator, generator);
}

}  // namespace quire::text::jinja
