// SPDX-License-Identifier: Apache-2.0
// Filters on sequences and mappings.
#include <algorithm>
#include <memory>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/sequences.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {

// --- Shared helpers ---

Values sort_by_keys(Heap& heap, const Values& items, const Values& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Our own merge sort: an inconsistent order (NaN) must not break it, and comparisons may throw.
  std::vector<size_t> scratch(order.size());
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t low = 0; low < order.size(); low += 2 * width) {
      const size_t middle = std::min(low + width, order.size()), high = std::min(low + 2 * width, order.size());
      size_t a = low, b = middle;
      for (size_t k = low; k < high; ++k) {
        heap.step();
        const bool take_right = a >= middle || (b < high && (reverse ? less(heap, keys[order[a]], keys[order[b]])
                                                                     : less(heap, keys[order[b]], keys[order[a]])));
        scratch[k] = order[take_right ? b++ : a++];
      }
    }
    order.swap(scratch);
  }
  Values sorted;
  sorted.reserve(items.size());
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

MarkedText replace_checked(Heap& heap, const MarkedText& text, std::string_view from, const MarkedText& to,
                           int64_t count) {
  heap.touch(text.size());
  size_t times = count_of(text.text, from);
  if (count >= 0) times = std::min(times, static_cast<size_t>(count));
  const size_t growth = to.size() > from.size() ? times * (to.size() - from.size()) : 0;
  heap.touch(growth);
  heap.charge(text.size() + growth);
  heap.discharge(text.size() + growth);
  // If nothing is replaced, or everything has one origin, the fast path is enough.
  const bool uniform = text.origins.uniform() && to.origins.uniform();
  if (times == 0) return text;
  if (uniform && text.origins.least_trusted() == to.origins.least_trusted()) {
    return MarkedText(replace_all(text.text, from, to.text, count), text.origins);
  }
  MarkedText out;
  size_t done = 0;
  for (size_t i = 0; i < times; ++i) {
    // If the old text is empty, Python inserts the new text before each character and at the end.
    size_t at = from.empty() && i > 0 ? done + utf8::decode(text.text, done).size : done;
    if (!from.empty()) at = find_text(text.text, from, done);
    out.add(std::string_view(text.text).substr(done, at - done), text.origins, text.text);
    out.add(to);
    heap.step();
    done = at + from.size();
  }
  out.add(std::string_view(text.text).substr(done), text.origins, text.text);
  return out;
}

bool is_all_case(std::string_view text, bool upper) {
  bool any = false, ok = true;
  each_code_point(text, [&](char32_t c, std::string_view) {
    if (upper ? is_upper(c) : is_lower(c)) any = true;
    if ((upper ? is_lower(c) : is_upper(c)) || is_title(c)) ok = false;
  });
  return any && ok;
}

AttributePath::AttributePath(Interpreter& interpreter, const Value& attribute) : interpreter_(&interpreter) {
  if (attribute.is_missing() || attribute.is_none()) return;
  if (!attribute.is_string()) {
    parts_.push_back(attribute);
    return;
  }
  Heap& heap = interpreter.heap();
  for (const std::string_view part : split_by(attribute.text(), ".", -1, false)) {
    bool overflow = false;
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    const auto index = digits ? parse_int(part, 10, &overflow) : std::nullopt;
    parts_.push_back(index ? Value::integer(*index) : heap.string(part));
  }
}

Value AttributePath::operator()(const Value& item, const Value& fallback) const {
  Value value = item;
  for (const Value& part : parts_) {
    value = interpreter_->get_item(value, part);
    if (value.is_undefined() && !fallback.is_missing() && !fallback.is_none()) value = fallback;
  }
  return value;
}

Value ignore_case(Heap& heap, const Value& value) {
  if (!value.is_string()) return value;
  heap.touch(value.text().size());
  return heap.string(MarkedText(to_lower(value.text()), value.origins().least_trusted()));
}

namespace {

// --- Lengths, ends, order ---

Value length_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("length", args, 0, 0);
  return Value::integer(length(in.heap(), v));
}

Value list_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("list", args, 0, 0);
  return in.heap().list(to_values(in.heap(), v));
}

Value first_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("first", args, 0, 0);
  Iterator it(in.heap(), v);
  Value item;
  return it.next(item) ? item : in.heap().undefined_hint("No first item, sequence was empty.");
}

Value last_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("last", args, 0, 0);
  Heap& heap = in.heap();
  if (!has_length(v) || v.is(Type::kLoop)) fail({"'", python_type_name(v), "' object is not reversible"});
  if (length(heap, v) == 0) return heap.undefined_hint("No last item, sequence was empty.");
  Value item;
  if (item_at(heap, v, -1, &item)) return item;
  return to_values(heap, v).back();
}

Value reverse_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("reverse", args, 0, 0);
  Heap& heap = in.heap();
  if (v.is_string()) return slice(heap, v, Value::none(), Value::none(), Value::integer(-1));
  if (!is_iterable(v)) fail("argument must be iterable");
  Values items = to_values(heap, v);
  std::reverse(items.begin(), items.end());
  if (v.is(Type::kGenerator)) return heap.list(std::move(items));
  auto position = std::make_shared<size_t>(0);
  const Value list = heap.list(std::move(items));
  return make_generator(
      heap,
      [list, position](Value& out) {
        if (*position >= list.list().items.size()) return false;
        out = list.list().items[(*position)++];
        return true;
      },
      "list_reverseiterator");
}

Value sort_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("sort", args, {"reverse", "case_sensitive", "attribute"});
  Heap& heap = in.heap();
  std::vector<AttributePath> paths;
  if (bound.has(2) && bound.value(2).is_string()) {
    for (const std::string_view part : split_by(bound.value(2).text(), ",", -1, false)) {
      paths.emplace_back(in, heap.string(part));
    }
  } else {
    paths.emplace_back(in, bound.value(2));
  }
  const Values items = to_values(heap, v);
  Values keys;
  for (const Value& item : items) {
    Values key;
    for (const AttributePath& path : paths) {
      const Value part = path(item);
      key.push_back(bound.flag(1, false) ? part : ignore_case(heap, part));
    }
    keys.push_back(key.size() == 1 ? key[0] : heap.list(std::move(key)));
  }
  return heap.list(sort_by_keys(heap, items, keys, bound.flag(0, false)));
}

Value dictsort_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("dictsort", args, {"case_sensitive", "by", "reverse"});
  Heap& heap = in.heap();
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is(Type::kDict)) fail({"dictsort requires a dict, not '", python_type_name(v), "'"});
  const std::string by = bound.has(1) ? bound.text(1) : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  Values items, keys;
  for (const DictObject::Entry& entry : v.dict().entries) {
    items.push_back(heap.tuple({entry.key, entry.value}));
    const Value& key = by == "key" ? entry.key : entry.value;
    keys.push_back(bound.flag(0, false) ? key : ignore_case(heap, key));
  }
  return heap.list(sort_by_keys(heap, items, keys, bound.flag(2, false)));
}

template <bool Largest>
Value extreme_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("min", args, {"case_sensitive", "attribute"});
  Heap& heap = in.heap();
  const AttributePath path(in, bound.value(1));
  Iterator it(heap, v);
  Value item, best, best_key;
  while (it.next(item)) {
    const Value part = path(item);
    Value key = bound.flag(0, false) ? part : ignore_case(heap, part);
    if (best.is_missing() || (Largest ? less(heap, best_key, key, ">") : less(heap, key, best_key))) {
      best = item;
      best_key = std::move(key);
    }
  }
  return best.is_missing() ? heap.undefined_hint("No aggregated item, sequence was empty.") : best;
}

Value sum_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("sum", args, {"attribute", "start"});
  const AttributePath path(in, bound.value(0));
  Value total = bound.value_or(1, Value::integer(0));
  if (total.is_string()) fail("sum() can't sum strings");
  Iterator it(in.heap(), v);
  Value item;
  while (it.next(item)) total = add(in.heap(), total, path(item));
  return total;
}

Value join_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("join", args, {"d", "attribute"});
  Heap& heap = in.heap();
  const MarkedText separator = bound.has(0) ? to_marked_str(heap, bound.value(0)) : MarkedText();
  const AttributePath path(in, bound.value(1));
  Iterator it(heap, v);
  MarkedText out;
  Value item;
  for (bool first = true; it.next(item); first = false) {
    if (!first) out.add(separator);
    heap.touch(separator.size());
    append_str(heap, out, path(item));
    heap.charge(out.size());
    heap.discharge(out.size());
  }
  return heap.string(std::move(out));
}

Value default_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("default", args, {"default_value", "boolean"});
  if (v.is_undefined() || (bound.flag(1, false) && !is_true(v))) return bound.value_or(0, in.heap().string(""));
  return v;
}

Value attr_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("attr", args, {"name"}, 1);
  bound.text(0);
  if (v.is_undefined()) fail_undefined(v);
  Value out;
  if (in.attribute(v, bound.value(0), &out)) return out;
  return Value::undefined(UndefinedKind::kAttribute, bound.value(0).string_object(), v.type());
}

// --- Generators ---

// What a lazy filter keeps until its items are needed.
struct Lazy {
  Value source;
  Args args;
  bool started = false;
  std::unique_ptr<Iterator> items;

  // Opens the source at the first call; an empty or false one has no items, whatever the arguments are.
  bool start(Heap& heap) {
    started = true;
    if (!is_true(source)) return false;
    items = std::make_unique<Iterator>(heap, source);
    return true;
  }
};

std::shared_ptr<Lazy> make_lazy(const Value& v, const Args& args) {
  auto lazy = std::make_shared<Lazy>();
  lazy->source = v;
  lazy->args = args;
  return lazy;
}

Value keyword(const Args& args, std::string_view name) {
  for (const auto& [key, value] : args.keyword) {
    if (key.text() == name) return value;
  }
  return Value();
}

Value map_filter(Interpreter& in, const Value& v, Args& args) {
  auto lazy = make_lazy(v, args);
  auto path = std::make_shared<std::unique_ptr<AttributePath>>();
  return make_generator(in.heap(), [&in, lazy, path](Value& out) {
    const Args& a = lazy->args;
    const Value attribute = a.positional.empty() ? keyword(a, "attribute") : Value();
    if (!lazy->started) {
      if (!lazy->start(in.heap())) return false;
      if (!attribute.is_missing()) {
        for (const auto& [name, value] : a.keyword) {
          if (name.text() != "attribute" && name.text() != "default") {
            fail({"Unexpected keyword argument ", repr_text(name.text())});
          }
        }
        *path = std::make_unique<AttributePath>(in, attribute);
      } else if (a.positional.empty()) {
        fail("map requires a filter argument");
      }
    }
    Value item;
    if (lazy->items == nullptr || !lazy->items->next(item)) return false;
    if (!attribute.is_missing()) {
      out = (**path)(item, keyword(a, "default"));
      return true;
    }
    Args rest;
    rest.positional.assign(a.positional.begin() + 1, a.positional.end());
    rest.keyword = a.keyword;
    out = in.call_filter(a.positional[0], item, rest);
    return true;
  });
}

template <bool Keep, bool ByAttribute>
Value select_filter(Interpreter& in, const Value& v, Args& args) {
  auto lazy = make_lazy(v, args);
  auto path = std::make_shared<std::unique_ptr<AttributePath>>();
  return make_generator(in.heap(), [&in, lazy, path](Value& out) {
    const Args& a = lazy->args;
    if (!lazy->started) {
      if (!lazy->start(in.heap())) return false;
      if (ByAttribute && a.positional.empty()) fail("Missing parameter for attribute name");
      *path = std::make_unique<AttributePath>(in, ByAttribute ? a.positional[0] : Value());
    }
    if (lazy->items == nullptr) return false;
    constexpr size_t kTest = ByAttribute ? 1 : 0;
    Value item;
    while (lazy->items->next(item)) {
      const Value subject = (**path)(item);
      bool passed;
      if (a.positional.size() > kTest) {
        Args rest;
        rest.positional.assign(a.positional.begin() + kTest + 1, a.positional.end());
        rest.keyword = a.keyword;
        passed = in.call_test(a.positional[kTest], subject, rest);
      } else {
        passed = is_true(subject);
      }
      if (passed != Keep) continue;
      out = item;
      return true;
    }
    return false;
  });
}

Value items_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("items", args, 0, 0);
  auto position = std::make_shared<size_t>(0);
  return make_generator(in.heap(), [&in, v, position](Value& out) {
    if (v.is_undefined()) return false;
    if (!v.is(Type::kDict)) fail("Can only get item pairs from a mapping.");
    if (*position >= v.dict().entries.size()) return false;
    const DictObject::Entry& entry = v.dict().entries[(*position)++];
    out = in.heap().tuple({entry.key, entry.value});
    return true;
  });
}

Value unique_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("unique", args, {"case_sensitive", "attribute"});
  auto lazy = make_lazy(v, args);
  auto path = std::make_shared<AttributePath>(in, bound.value(1));
  const bool case_sensitive = bound.flag(0, false);
  const Value seen = in.heap().dict();
  return make_generator(in.heap(), [&in, lazy, path, case_sensitive, seen](Value& out) {
    Heap& heap = in.heap();
    if (lazy->items == nullptr) lazy->items = std::make_unique<Iterator>(heap, lazy->source);
    Value item;
    while (lazy->items->next(item)) {
      const Value part = (*path)(item);
      const Value key = case_sensitive ? part : ignore_case(heap, part);
      if (seen.dict().find(key) != nullptr) continue;
      seen.dict().set(heap, key, Value::none());
      out = item;
      return true;
    }
    return false;
  });
}

Value batch_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("batch", args, {"linecount", "fill_with"}, 1);
  const int64_t size = bound.integer(0, 0);
  const Value fill = bound.none_or_absent(1) ? Value() : bound.value(1);
  auto lazy = make_lazy(v, args);
  auto pending = std::make_shared<Value>();
  return make_generator(in.heap(), [&in, lazy, pending, size, fill](Value& out) {
    Heap& heap = in.heap();
    if (lazy->items == nullptr) lazy->items = std::make_unique<Iterator>(heap, lazy->source);
    Values batch;
    if (!pending->is_missing()) batch.push_back(*pending);
    *pending = Value();
    Value item;
    while (lazy->items->next(item)) {
      if (static_cast<int64_t>(batch.size()) == size) {
        *pending = item;
        out = heap.list(std::move(batch));
        return true;
      }
      batch.push_back(item);
    }
    if (batch.empty()) return false;
    while (!fill.is_missing() && static_cast<int64_t>(batch.size()) < size) {
      heap.step();
      heap.charge(sizeof(Value));
      batch.push_back(fill);
    }
    out = heap.list(std::move(batch));
    return true;
  });
}

Value slice_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("slice", args, {"slices", "fill_with"}, 1);
  const int64_t slices = bound.integer(0, 0);
  const Value fill = bound.none_or_absent(1) ? Value() : bound.value(1);
  auto items = std::make_shared<Value>();
  auto number = std::make_shared<int64_t>(0);
  return make_generator(in.heap(), [&in, v, items, number, slices, fill](Value& out) {
    Heap& heap = in.heap();
    if (items->is_missing()) {
      *items = heap.list(to_values(heap, v));
      if (slices == 0) fail("integer division or modulo by zero");
    }
    if (*number >= slices) return false;
    const Values& all = items->list().items;
    const auto size = static_cast<int64_t>(all.size());
    const int64_t each = size / slices, extra = size % slices, i = (*number)++;
    const int64_t start = i * each + std::min(i, extra), end = (i + 1) * each + std::min(i + 1, extra);
    Values part(all.begin() + start, all.begin() + end);
    if (!fill.is_missing() && i >= extra) part.push_back(fill);
    out = heap.list(std::move(part));
    return true;
  });
}

Value groupby_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  Heap& heap = in.heap();
  const AttributePath path(in, bound.value(0));
  const bool case_sensitive = bound.flag(2, false);
  auto key_of = [&](const Value& item) {
    const Value key = path(item, bound.value(1));
    return case_sensitive ? key : ignore_case(heap, key);
  };
  const Values items = to_values(heap, v);
  Values keys;
  for (const Value& item : items) keys.push_back(key_of(item));
  Values groups, group;
  Value key;
  auto flush = [&] {
    if (group.empty()) return;
    const Value grouper = case_sensitive ? key : path(group[0], bound.value(1));
    Value tuple = heap.tuple({grouper, heap.list(std::move(group))});
    tuple.list().group = true;
    groups.push_back(tuple);
    group.clear();
  };
  for (const Value& item : sort_by_keys(heap, items, keys, false)) {
    Value next = key_of(item);
    if (group.empty() || !equal(heap, key, next)) {
      flush();
      key = std::move(next);
    }
    group.push_back(item);
  }
  flush();
  return heap.list(std::move(groups));
}

}  // namespace

std::vector<FilterEntry> sequence_filters() {
  return {
      {"attr", attr_filter},
      {"batch", batch_filter},
      {"count", length_filter},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort_filter},
      {"first", first_filter},
      {"groupby", groupby_filter},
      {"items", items_filter},
      {"join", join_filter},
      {"last", last_filter},
      {"length", length_filter},
      {"list", list_filter},
      {"map", map_filter},
      {"max", extreme_filter<true>},
      {"min", extreme_filter<false>},
      {"reject", select_filter<false, false>},
      {"rejectattr", select_filter<false, true>},
      {"reverse", reverse_filter},
      {"select", select_filter<true, false>},
      {"selectattr", select_filter<true, true>},
      {"slice", slice_filter},
      {"sort", sort_filter},
      {"sum", sum_filter},
      {"unique", unique_filter},
  };
}

}  // namespace quire::text::jinja
