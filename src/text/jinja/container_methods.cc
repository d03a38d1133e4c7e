// SPDX-License-Identifier: Apache-2.0
// The methods of Python's list, tuple, dict, int and float.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/sequences.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {
namespace {

Values& items_of(const Value& self) {
  return self.list().items;
}

// --- list and tuple ---

Value count_items_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("count", args, 1, 1);
  int64_t count = 0;
  const Values items = items_of(self);
  for (const Value& item : items) count += equal(in.heap(), item, args.positional[0]) ? 1 : 0;
  in.heap().step(items.size());
  return Value::integer(count);
}

Value index_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("index", args, 1, 3);
  const auto size = static_cast<int64_t>(items_of(self).size());
  auto bound = [&](size_t i, int64_t fallback) {
    if (args.positional.size() <= i) return fallback;
    if (!args.positional[i].is_int_like()) fail("slice indices must be integers");
    const int64_t value = args.positional[i].as_int();
    return std::clamp<int64_t>(value < 0 ? value + size : value, 0, size);
  };
  const int64_t end = bound(2, size);
  for (int64_t i = bound(1, 0); i < end; ++i) {
    in.heap().step();
    if (equal(in.heap(), items_of(self)[static_cast<size_t>(i)], args.positional[0])) return Value::integer(i);
  }
  fail({to_repr(in.heap(), args.positional[0]), " is not in list"});
}

Value append_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("append", args, 1, 1);
  in.heap().charge(sizeof(Value) * 2);
  items_of(self).push_back(args.positional[0]);
  return Value::none();
}

Value extend_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("extend", args, 1, 1);
  const Values more = to_values(in.heap(), args.positional[0]);
  in.heap().charge(sizeof(Value) * 2 * more.size());
  items_of(self).insert(items_of(self).end(), more.begin(), more.end());
  return Value::none();
}

Value insert_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("insert", args, 2, 2);
  if (!args.positional[0].is_int_like()) fail("an index must be an integer");
  Values& items = items_of(self);
  const auto size = static_cast<int64_t>(items.size());
  int64_t at = args.positional[0].as_int();
  at = std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  in.heap().charge(sizeof(Value) * 2);
  in.heap().step(items.size() / 16);
  items.insert(items.begin() + at, args.positional[1]);
  return Value::none();
}

Value pop_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("pop", args, 0, 1);
  Values& items = items_of(self);
  if (items.empty()) fail("pop from empty list");
  const auto size = static_cast<int64_t>(items.size());
  int64_t at = size - 1;
  if (!args.positional.empty()) {
    if (!args.positional[0].is_int_like()) fail("an index must be an integer");
    at = args.positional[0].as_int();
    if (at < 0) at += size;
  }
  if (at < 0 || at >= size) fail("pop index out of range");
  in.heap().step(items.size() / 16);
  Value item = items[static_cast<size_t>(at)];
  items.erase(items.begin() + at);
  return item;
}

Value remove_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("remove", args, 1, 1);
  Values& items = items_of(self);
  for (size_t i = 0; i < items.size(); ++i) {
    in.heap().step();
    if (!equal(in.heap(), items[i], args.positional[0])) continue;
    items.erase(items.begin() + static_cast<ptrdiff_t>(i));
    return Value::none();
  }
  fail("list.remove(x): x not in list");
}

Value reverse_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("reverse", args, 0, 0);
  in.heap().step(items_of(self).size());
  std::reverse(items_of(self).begin(), items_of(self).end());
  return Value::none();
}

Value sort_method(Interpreter& in, const Value& self, Args& args) {
  const Bound bound("sort", args, {"key", "reverse"});
  if (!args.positional.empty()) fail("sort() takes no positional arguments");
  Values keys;
  for (const Value& item : Values(items_of(self))) {
    if (bound.none_or_absent(0)) {
      keys.push_back(item);
    } else {
      Args one;
      one.positional.push_back(item);
      keys.push_back(in.call(bound.value(0), one));
    }
  }
  items_of(self) = sort_by_keys(in.heap(), items_of(self), keys, bound.flag(1, false));
  return Value::none();
}

Value copy_list(Interpreter& in, const Value& self, Args&) {
  return in.heap().list(items_of(self));
}

Value clear_list(Interpreter&, const Value& self, Args&) {
  items_of(self).clear();
  return Value::none();
}

// --- dict ---

template <DictViewObject::Kind Kind>
Value view_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("dict method", args, 0, 0);
  auto* view = in.heap().make<DictViewObject>();
  view->kind = Kind;
  view->dict = &self.dict();
  return Value::object(Type::kDictView, view);
}

Value get_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("get", args, 1, 2);
  if (args.positional[0].is_string()) in.heap().touch(args.positional[0].text().size());
  const Value* found = self.dict().find(args.positional[0]);
  if (found != nullptr) return *found;
  return args.positional.size() > 1 ? args.positional[1] : Value::none();
}

Value copy_dict(Interpreter& in, const Value& self, Args&) {
  Value copy = in.heap().dict();
  for (const DictObject::Entry& entry : self.dict().entries) copy.dict().set(in.heap(), entry.key, entry.value);
  in.heap().step(self.dict().entries.size());
  return copy;
}

Value update_method(Interpreter& in, const Value& self, Args& args) {
  update_dict(in.heap(), self.dict(), "update", args);
  return Value::none();
}

Value pop_dict(Interpreter& in, const Value& self, Args& args) {
  expect_positional("pop", args, 1, 2);
  const Value* found = self.dict().find(args.positional[0]);
  if (found == nullptr) {
    if (args.positional.size() > 1) return args.positional[1];
    fail({"no such key: ", to_repr(in.heap(), args.positional[0])});
  }
  Value value = *found;
  in.heap().step(self.dict().entries.size());
  self.dict().erase(args.positional[0]);
  return value;
}

Value popitem_method(Interpreter& in, const Value& self, Args&) {
  if (self.dict().entries.empty()) fail("popitem(): dictionary is empty");
  const DictObject::Entry entry = self.dict().entries.back();
  in.heap().step(self.dict().entries.size());
  self.dict().erase(entry.key);
  return in.heap().tuple({entry.key, entry.value});
}

Value setdefault_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("setdefault", args, 1, 2);
  const Value* found = self.dict().find(args.positional[0]);
  if (found != nullptr) return *found;
  const Value value = args.positional.size() > 1 ? args.positional[1] : Value::none();
  self.dict().set(in.heap(), args.positional[0], value);
  return value;
}

Value clear_dict(Interpreter&, const Value& self, Args&) {
  self.dict().clear();
  return Value::none();
}

Value fromkeys_method(Interpreter& in, const Value&, Args& args) {
  expect_positional("fromkeys", args, 1, 2);
  Value dict = in.heap().dict();
  for (const Value& key : to_values(in.heap(), args.positional[0])) {
    dict.dict().set(in.heap(), key, args.positional.size() > 1 ? args.positional[1] : Value::none());
  }
  return dict;
}

// --- numbers ---

Value bit_length_method(Interpreter&, const Value& self, Args& args) {
  expect_positional("bit_length", args, 0, 0);
  const int64_t value = self.as_int();
  uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  int64_t bits = 0;
  for (; magnitude != 0; magnitude >>= 1) ++bits;
  return Value::integer(bits);
}

Value is_integer_method(Interpreter&, const Value& self, Args& args) {
  expect_positional("is_integer", args, 0, 0);
  const double value = self.as_real();
  return Value::boolean(std::isfinite(value) && value == std::floor(value));
}

Value conjugate_method(Interpreter&, const Value& self, Args&) {
  return positive(self);
}

}  // namespace

void update_dict(Heap& heap, DictObject& dict, const char* function, const Args& args) {
  if (args.positional.size() > 1) fail({function, " expected at most 1 argument"});
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is(Type::kDict)) {
      const std::vector<DictObject::Entry> entries = source.dict().entries;
      for (const DictObject::Entry& entry : entries) dict.set(heap, entry.key, entry.value);
      heap.step(entries.size());
    } else {
      for (const Value& pair : to_values(heap, source)) {
        const Values parts = to_values(heap, pair);
        if (parts.size() != 2) fail("a dictionary update sequence element must have length 2");
        dict.set(heap, parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.keyword) dict.set(heap, name, value);
}

std::vector<NativeEntry> list_methods() {
  return {
      {"append", append_method, true},   {"clear", clear_list, true},     {"copy", copy_list},
      {"count", count_items_method},     {"extend", extend_method, true}, {"index", index_method},
      {"insert", insert_method, true},   {"pop", pop_method, true},       {"remove", remove_method, true},
      {"reverse", reverse_method, true}, {"sort", sort_method, true},
  };
}

std::vector<NativeEntry> tuple_methods() {
  return {{"count", count_items_method}, {"index", index_method}};
}

std::vector<NativeEntry> dict_methods() {
  return {
      {"clear", clear_dict, true},
      {"copy", copy_dict},
      {"fromkeys", fromkeys_method},
      {"get", get_method},
      {"items", view_method<DictViewObject::Kind::kItems>},
      {"keys", view_method<DictViewObject::Kind::kKeys>},
      {"pop", pop_dict, true},
      {"popitem", popitem_method, true},
      {"setdefault", setdefault_method, true},
      {"update", update_method, true},
      {"values", view_method<DictViewObject::Kind::kValues>},
  };
}

std::vector<NativeEntry> number_methods() {
  return {{"bit_length", bit_length_method}, {"conjugate", conjugate_method}, {"is_integer", is_integer_method}};
}

}  // namespace quire::text::jinja
