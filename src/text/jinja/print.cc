// SPDX-License-Identifier: Apache-2.0
// Values as text: Python's str, repr, json.dumps and pprint.pformat.
#include <algorithm>
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/sequences.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {
namespace {

// Prints a value and its contents; a container inside itself is printed as "...".
class Printer {
 public:
  Printer(Heap& heap, MarkedText& out, bool sort_keys) : heap_(heap), out_(out), sort_keys_(sort_keys) {}

  void print(const Value& value) {
    heap_.step();
    switch (value.type()) {
      case Type::kMissing:
      case Type::kUndefined:
        out_.add("Undefined");
        return;
      case Type::kNone:
        out_.add("None");
        return;
      case Type::kBool:
        out_.add(value.as_bool() ? "True" : "False");
        return;
      case Type::kInt:
        out_.add(std::to_string(value.as_int()));
        return;
      case Type::kLongInt:
        out_.add(value.text());
        return;
      case Type::kFloat:
        out_.add(float_repr(value.as_real()));
        return;
      case Type::kString:
        print_string(value);
        return;
      case Type::kList:
        print_items(value, "[", "]");
        return;
      case Type::kTuple:
        print_items(value, "(", value.list().items.size() == 1 ? ",)" : ")");
        return;
      case Type::kDict:
        print_dict(value.object(), value.dict());
        return;
      default:
        print_object(value);
    }
  }

 private:
  bool open(const Object* object, const char* if_inside_itself) {
    if (std::find(active_.begin(), active_.end(), object) != active_.end()) {
      out_.add(if_inside_itself);
      return false;
    }
    active_.push_back(object);
    return true;
  }

  void print_string(const Value& value) {
    heap_.touch(value.text().size());
    if (value.is_markup()) out_.add("Markup(");
    std::string repr;
    append_repr(repr, value.text());
    out_.add(repr, value.origins().least_trusted());
    if (value.is_markup()) out_.add(")");
  }

  void print_items(const Value& value, const char* begin, const char* end) {
    const DepthGuard guard(heap_);
    if (!open(value.object(), value.is(Type::kList) ? "[...]" : "(...)")) return;
    out_.add(begin);
    bool first = true;
    for (const Value& item : value.list().items) {
      if (!first) out_.add(", ");
      first = false;
      print(item);
    }
    out_.add(end);
    active_.pop_back();
  }

  void print_dict(const Object* identity, const DictObject& dict) {
    const DepthGuard guard(heap_);
    if (!open(identity, "{...}")) return;
    out_.add("{");
    bool first = true;
    for (const DictObject::Entry* entry : ordered(dict)) {
      if (!first) out_.add(", ");
      first = false;
      print(entry->key);
      out_.add(": ");
      print(entry->value);
    }
    out_.add("}");
    active_.pop_back();
  }

  void print_object(const Value& value) {
    switch (value.type()) {
      case Type::kNamespace: {
        const DepthGuard guard(heap_);
        out_.add("<Namespace ");
        print_dict(value.object(), value.as<NamespaceObject>().attributes);
        out_.add(">");
        return;
      }
      case Type::kRange: {
        const auto& range = value.as<RangeObject>();
        out_.add("range(" + std::to_string(range.start) + ", " + std::to_string(range.stop));
        if (range.step != 1) out_.add(", " + std::to_string(range.step));
        out_.add(")");
        return;
      }
      case Type::kDictView: {
        out_.add(python_type_name(value));
        out_.add("(");
        print_items(heap_.list(to_values(heap_, value)), "[", "]");
        out_.add(")");
        return;
      }
      case Type::kLoop: {
        auto& loop = value.as<LoopObject>();
        out_.add("<LoopContext " + std::to_string(loop.index0 + 1) + "/" + std::to_string(loop.length()) + ">");
        return;
      }
      case Type::kMacro: {
        const Value& name = value.as<MacroObject>().node->name;
        out_.add("<Macro " + (name.is_string() ? repr_text(name.text()) : std::string("anonymous")) + ">");
        return;
      }
      case Type::kFunction:
        out_.add(std::string("<built-in function ") + value.as<FunctionObject>().name + ">");
        return;
      default:
        out_.add(std::string("<") + python_type_name(value) + " object>");
    }
  }

 public:
  std::vector<const DictObject::Entry*> ordered(const DictObject& dict) const {
    std::vector<const DictObject::Entry*> entries;
    bool strings = true;
    for (const DictObject::Entry& entry : dict.entries) {
      entries.push_back(&entry);
      strings = strings && entry.key.is_string();
    }
    if (sort_keys_ && strings) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return a->key.text() < b->key.text(); });
    }
    return entries;
  }

 private:
  Heap& heap_;
  MarkedText& out_;
  bool sort_keys_;
  std::vector<const Object*> active_;
};

}  // namespace

void append_repr(Heap& heap, MarkedText& out, const Value& value) {
  const size_t before = out.size();
  Printer(heap, out, false).print(value);
  heap.touch(out.size() - before);
}

void append_str(Heap& heap, MarkedText& out, const Value& value) {
  if (value.is_string()) {
    heap.touch(value.text().size());
    out.add(value.text(), value.origins(), value.text());
  } else if (!value.is_undefined() && !value.is_missing()) {
    append_repr(heap, out, value);
  }
}

MarkedText to_marked_str(Heap& heap, const Value& value) {
  MarkedText out;
  append_str(heap, out, value);
  return out;
}

MarkedText to_marked_repr(Heap& heap, const Value& value) {
  MarkedText out;
  append_repr(heap, out, value);
  return out;
}

std::string to_str(Heap& heap, const Value& value) {
  return std::move(to_marked_str(heap, value).text);
}

std::string to_repr(Heap& heap, const Value& value) {
  return std::move(to_marked_repr(heap, value).text);
}

Value soft_str(Heap& heap, const Value& value) {
  return value.is_string() ? value : heap.string(to_marked_str(heap, value));
}

Value escape(Heap& heap, const Value& value) {
  if (value.is_markup()) return value;
  const MarkedText text = to_marked_str(heap, value);
  return heap.string(MarkedText(escape_html(text.text), text.origins.least_trusted()), true);
}

// --- JSON ---

namespace {

class JsonWriter {
 public:
  JsonWriter(Heap& heap, MarkedText& out, const JsonStyle& style) : heap_(heap), out_(out), style_(style) {}

  void write(const Value& value) {
    heap_.step();
    switch (value.type()) {
      case Type::kNone:
        out_.add("null");
        return;
      case Type::kBool:
        out_.add(value.as_bool() ? "true" : "false");
        return;
      case Type::kInt:
        out_.add(std::to_string(value.as_int()));
        return;
      case Type::kLongInt:
        out_.add(value.text());
        return;
      case Type::kFloat:
        out_.add(number(value.as_real()));
        return;
      case Type::kString:
        heap_.touch(value.text().size());
        write_text(value.text(), value.origins().least_trusted());
        return;
      case Type::kList:
      case Type::kTuple:
        write_list(value);
        return;
      case Type::kDict:
        write_dict(value);
        return;
      default:
        fail({"Object of type ", python_type_name(value), " is not JSON serializable"});
    }
  }

 private:
  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return float_repr(d);
  }

  void write_text(std::string_view text, Origin origin) {
    std::string quoted;
    append_json_string(quoted, text, style_.ensure_ascii);
    out_.add(quoted, origin);
  }

  void open(const Object* object) {
    if (std::find(active_.begin(), active_.end(), object) != active_.end()) fail("Circular reference detected");
    active_.push_back(object);
  }

  void new_line() {
    if (!style_.pretty) return;
    heap_.touch(active_.size() * style_.indent.size());
    out_.add('\n');
    for (size_t i = 0; i < active_.size(); ++i) out_.add(style_.indent, style_.origin);
  }

  void write_list(const Value& value) {
    const DepthGuard guard(heap_);
    const Values& items = value.list().items;
    if (items.empty()) {
      out_.add("[]");
      return;
    }
    open(value.object());
    out_.add("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.add(style_.item_separator, style_.origin);
      new_line();
      write(items[i]);
    }
    active_.pop_back();
    new_line();
    out_.add("]");
  }

  std::string key_text(const Value& key) {
    switch (key.type()) {
      case Type::kString:
        return key.text();
      case Type::kNone:
        return "null";
      case Type::kBool:
        return key.as_bool() ? "true" : "false";
      case Type::kInt:
        return std::to_string(key.as_int());
      case Type::kFloat:
        return number(key.as_real());
      default:
        fail({"keys must be str, int, float, bool or None, not ", python_type_name(key)});
    }
  }

  void write_dict(const Value& value) {
    const DepthGuard guard(heap_);
    if (value.dict().entries.empty()) {
      out_.add("{}");
      return;
    }
    open(value.object());
    std::vector<const DictObject::Entry*> entries;
    for (const DictObject::Entry& entry : value.dict().entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      Values order, keys;
      for (size_t i = 0; i < entries.size(); ++i) {
        order.push_back(Value::integer(static_cast<int64_t>(i)));
        keys.push_back(entries[i]->key);
      }
      const auto unsorted = entries;
      order = sort_by_keys(heap_, order, keys, false);
      for (size_t i = 0; i < entries.size(); ++i) entries[i] = unsorted[static_cast<size_t>(order[i].as_int())];
    }
    out_.add("{");
    bool first = true;
    for (const DictObject::Entry* entry : entries) {
      if (!first) out_.add(style_.item_separator, style_.origin);
      first = false;
      new_line();
      const bool text = entry->key.is_string();
      write_text(key_text(entry->key), text ? entry->key.origins().least_trusted() : Origin::kTemplate);
      out_.add(style_.key_separator, style_.origin);
      write(entry->value);
    }
    active_.pop_back();
    new_line();
    out_.add("}");
  }

  Heap& heap_;
  MarkedText& out_;
  const JsonStyle& style_;
  std::vector<const Object*> active_;
};

}  // namespace

void append_json(Heap& heap, MarkedText& out, const Value& value, const JsonStyle& style) {
  JsonWriter(heap, out, style).write(value);
}

// --- pprint ---

namespace {

// pprint.pformat with its defaults: 80 columns, an indent of one space, sorted keys.
class PrettyPrinter {
 public:
  PrettyPrinter(Heap& heap, std::string& out) : heap_(heap), out_(out) {}

  // The least trusted origin of what was printed.
  Origin origin() const { return origin_; }

  void format(const Value& value, size_t indent, size_t allowance, int level) {
    const DepthGuard guard(heap_);
    const std::string whole = repr(value);
    if (static_cast<int64_t>(count_code_points(whole)) <= kWidth - static_cast<int64_t>(indent + allowance)) {
      out_ += whole;
    } else if (value.is(Type::kDict)) {
      format_dict(value.dict(), indent, allowance, level + 1);
    } else if (value.is_sequence()) {
      const bool tuple = value.is(Type::kTuple);
      const std::string end = !tuple ? "]" : value.list().items.size() == 1 ? ",)" : ")";
      out_ += tuple ? "(" : "[";
      format_items(value.list().items, indent + 1, allowance + end.size(), level + 1);
      out_ += end;
    } else if (value.is_string() && !value.is_markup() && !value.text().empty()) {
      format_string(value.text(), indent, allowance, level + 1);
    } else {
      out_ += whole;
    }
  }

 private:
  static constexpr int64_t kWidth = 80;

  std::string repr(const Value& value) {
    MarkedText out;
    Printer(heap_, out, true).print(value);
    heap_.touch(out.size());
    origin_ = std::max(origin_, out.origins.least_trusted());
    return std::move(out.text);
  }

  void new_line(size_t indent) {
    heap_.touch(indent);
    out_ += ",\n" + std::string(indent, ' ');
  }

  void format_dict(const DictObject& dict, size_t indent, size_t allowance, int level) {
    out_ += "{";
    MarkedText unused;
    const auto entries = Printer(heap_, unused, true).ordered(dict);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) new_line(indent + 1);
      const std::string key = repr(entries[i]->key);
      out_ += key + ": ";
      format(entries[i]->value, indent + 1 + count_code_points(key) + 2, i + 1 == entries.size() ? allowance + 1 : 1,
             level);
    }
    out_ += "}";
  }

  void format_items(const Values& items, size_t indent, size_t allowance, int level) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) new_line(indent);
      format(items[i], indent, i + 1 == items.size() ? allowance : 1, level);
    }
  }

  // Splits a line into runs of text, each with the white space that follows it.
  static std::vector<std::string_view> words(std::string_view line) {
    std::vector<std::string_view> out;
    size_t start = 0;
    bool in_space = false;
    for (size_t i = 0; i < line.size();) {
      const utf8::Decoded d = utf8::decode(line, i);
      const bool space = is_space(d.code_point);
      if (in_space && !space) {
        out.push_back(line.substr(start, i - start));
        start = i;
      }
      in_space = space;
      i += d.size;
    }
    if (start < line.size()) out.push_back(line.substr(start));
    return out;
  }

  size_t width_of(std::string_view text) {
    heap_.touch(text.size());
    return count_code_points(repr_text(text));
  }

  void format_string(std::string_view text, size_t indent, size_t allowance, int level) {
    if (level == 1) {
      ++indent;
      ++allowance;
    }
    const int64_t width = kWidth - static_cast<int64_t>(indent);
    std::vector<std::string> chunks;
    std::string last;
    const auto lines = split_lines(text, true);
    for (size_t i = 0; i < lines.size(); ++i) {
      const bool last_line = i + 1 == lines.size();
      last = repr_text(lines[i]);
      const int64_t line_width = width - (last_line ? static_cast<int64_t>(allowance) : 0);
      if (static_cast<int64_t>(count_code_points(last)) <= line_width) {
        chunks.push_back(last);
        continue;
      }
      split_words(lines[i], width, last_line ? static_cast<int64_t>(allowance) : 0, &chunks);
    }
    if (chunks.size() == 1) {
      out_ += last;
      return;
    }
    if (level == 1) out_ += "(";
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i > 0) out_ += "\n" + std::string(indent, ' ');
      out_ += chunks[i];
    }
    if (level == 1) out_ += ")";
  }

  void split_words(std::string_view line, int64_t width, int64_t last_allowance, std::vector<std::string>* chunks) {
    const auto parts = words(line);
    std::string current;
    for (size_t j = 0; j < parts.size(); ++j) {
      const std::string candidate = current + std::string(parts[j]);
      if (j + 1 == parts.size()) width -= last_allowance;
      if (static_cast<int64_t>(width_of(candidate)) > width) {
        if (!current.empty()) chunks->push_back(repr_text(current));
        current = std::string(parts[j]);
      } else {
        current = candidate;
      }
    }
    if (!current.empty()) chunks->push_back(repr_text(current));
  }

  Heap& heap_;
  std::string& out_;
  Origin origin_ = Origin::kTemplate;
};

}  // namespace

MarkedText pretty_print(Heap& heap, const Value& value) {
  std::string out;
  PrettyPrinter printer(heap, out);
  printer.format(value, 0, 0, 0);
  return MarkedText(std::move(out), printer.origin());
}

}  // namespace quire::text::jinja
