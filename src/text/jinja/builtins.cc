// SPDX-License-Identifier: Apache-2.0
// Global functions, tests, and the lookup of everything that has a name.
#include "text/jinja/builtins.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <unordered_map>

#include "text/jinja/interpreter.h"
#include "text/jinja/sequences.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {

// --- Arguments ---

Bound::Bound(const char* function, const Args& args, std::initializer_list<std::string_view> params, size_t required)
    : function_(function), values_(params.size()) {
  if (args.positional.size() > params.size()) {
    fail({function, "() takes at most ", params.size(), " arguments (", args.positional.size(), " given)"});
  }
  std::copy(args.positional.begin(), args.positional.end(), values_.begin());
  for (const auto& [name, value] : args.keyword) {
    const auto* found = std::find(params.begin(), params.end(), name.text());
    if (found == params.end()) {
      fail({function, "() got an unexpected keyword argument ", repr_text(name.text())});
    }
    Value& slot = values_[static_cast<size_t>(found - params.begin())];
    if (!slot.is_missing()) {
      fail({function, "() got multiple values for argument ", repr_text(name.text())});
    }
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!has(i)) fail({function, "() is missing the argument ", repr_text(*(params.begin() + i))});
  }
}

bool Bound::flag(size_t i, bool fallback) const {
  return has(i) ? is_true(values_[i]) : fallback;
}

int64_t Bound::integer(size_t i, int64_t fallback) const {
  if (!has(i)) return fallback;
  if (values_[i].is_undefined()) fail_undefined(values_[i]);
  if (!values_[i].is_int_like()) {
    fail({function_, "() requires an integer, not '", python_type_name(values_[i]), "'"});
  }
  return values_[i].as_int();
}

const std::string& Bound::text(size_t i) const {
  if (!values_[i].is_string()) {
    fail({function_, "() requires a string, not '", python_type_name(values_[i]), "'"});
  }
  return values_[i].text();
}

void expect_positional(const char* function, const Args& args, size_t min, size_t max) {
  if (!args.keyword.empty()) {
    fail({function, "() got an unexpected keyword argument ", repr_text(args.keyword[0].first.text())});
  }
  if (args.positional.size() < min || args.positional.size() > max) {
    const std::string wanted = min == max ? std::to_string(min) : std::to_string(min) + " to " + std::to_string(max);
    fail({function, "() takes ", wanted, " arguments (", args.positional.size(), " given)"});
  }
}

namespace {

// --- Global functions ---

constexpr int64_t kMaxRange = 100'000;  // as in Jinja2's sandbox

Value range_function(Interpreter& in, const Value&, Args& args) {
  expect_positional("range", args, 1, 3);
  for (const Value& arg : args.positional) {
    if (arg.is_undefined()) fail_undefined(arg);
    if (!arg.is_int_like()) {
      fail({"'", python_type_name(arg), "' object cannot be interpreted as an integer"});
    }
  }
  auto* range = in.heap().make<RangeObject>();
  const Values& a = args.positional;
  range->start = a.size() > 1 ? a[0].as_int() : 0;
  range->stop = a.size() > 1 ? a[1].as_int() : a[0].as_int();
  range->step = a.size() > 2 ? a[2].as_int() : 1;
  if (range->step == 0) fail("range() arg 3 must not be zero");
  if (range->size() > kMaxRange) fail({"the range is larger than ", kMaxRange, " numbers"});
  return Value::object(Type::kRange, range);
}

Value dict_function(Interpreter& in, const Value&, Args& args) {
  Value dict = in.heap().dict();
  update_dict(in.heap(), dict.dict(), "dict", args);
  return dict;
}

Value namespace_function(Interpreter& in, const Value&, Args& args) {
  auto* space = in.heap().make<NamespaceObject>();
  update_dict(in.heap(), space->attributes, "namespace", args);
  return Value::object(Type::kNamespace, space);
}

Value cycler_function(Interpreter& in, const Value&, Args& args) {
  if (!args.keyword.empty()) fail("cycler() takes no keyword arguments");
  if (args.positional.empty()) fail("at least one item has to be provided");
  auto* cycler = in.heap().make<CyclerObject>();
  cycler->items = args.positional;
  return Value::object(Type::kCycler, cycler);
}

Value joiner_function(Interpreter& in, const Value&, Args& args) {
  const Bound bound("joiner", args, {"sep"});
  auto* joiner = in.heap().make<JoinerObject>();
  joiner->separator = bound.value_or(0, in.heap().string(", "));
  return Value::object(Type::kJoiner, joiner);
}

Value lipsum_function(Interpreter&, const Value&, Args&) {
  throw TemplateError{"lipsum() is not supported: its text is random", 0, false, ErrorCode::kUnsupported};
}

Value raise_exception_function(Interpreter& in, const Value&, Args& args) {
  const Bound bound("raise_exception", args, {"message"}, 1);
  throw TemplateError{to_str(in.heap(), bound.value(0)), 0, true, ErrorCode::kInvalidArgument};
}

std::tm local_now() {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

Value strftime_now_function(Interpreter& in, const Value&, Args& args) {
  const Bound bound("strftime_now", args, {"format"}, 1);
  std::tm now = in.options().now.has_value() ? *in.options().now : local_now();
  if (in.options().now.has_value()) {
    // The day of the week and of the year follow from the date.
    std::tm filled = now;
    filled.tm_isdst = 0;
    timegm(&filled);
    now = filled;
  }
  // A datetime without a time zone prints %z and %Z as nothing; %f exists only in Python.
  const std::string& wanted = bound.text(0);
  if (wanted.size() > 4096) fail("strftime_now() accepts a format of at most 4096 bytes");
  std::string format;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const char next = i + 1 < wanted.size() ? wanted[i + 1] : '\0';
    if (wanted[i] != '%') {
      format += wanted[i];
    } else if (next == 'f') {
      format += "000000";
      ++i;
    } else if (next == 'z' || next == 'Z') {
      ++i;
    } else {
      format += '%';
      if (next != '\0') format += next;
      ++i;
    }
  }
  if (format.empty()) return in.heap().string("");
  std::string out(format.size() * 32 + 256, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &now));
  return in.heap().string(MarkedText(std::move(out), bound.value(0).origins().least_trusted()));
}

constexpr NativeEntry kGlobals[] = {
    {"range", range_function},
    {"dict", dict_function},
    {"namespace", namespace_function},
    {"cycler", cycler_function},
    {"joiner", joiner_function},
    {"lipsum", lipsum_function},
    {"raise_exception", raise_exception_function},
    {"strftime_now", strftime_now_function},
};

// --- Tests ---

template <typename F>
bool no_arguments(const Args& args, const F& test) {
  expect_positional("test", args, 0, 0);
  return test();
}

const Value& operand(const Args& args) {
  expect_positional("test", args, 1, 1);
  return args.positional[0];
}

template <Type Wanted>
bool is_type(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return v.is(Wanted); });
}

bool test_defined(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return !v.is_undefined(); });
}
bool test_true(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return v.is(Type::kBool) && v.as_bool(); });
}
bool test_false(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return v.is(Type::kBool) && !v.as_bool(); });
}
bool test_integer(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return v.is(Type::kInt) || v.is(Type::kLongInt); });
}
bool test_number(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return v.is_number() || v.is(Type::kLongInt); });
}
bool test_sequence(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return has_length(v) && !v.is(Type::kDictView) && !v.is(Type::kLoop); });
}
bool test_iterable(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return is_iterable(v); });
}
bool test_callable(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] {
    return v.is(Type::kMacro) || v.is(Type::kFunction) || v.is(Type::kJoiner) || v.is(Type::kLoop) || v.is_undefined();
  });
}
bool test_escaped(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return v.is_markup(); });
}
bool test_lower(Interpreter& in, const Value& v, Args& args) {
  return no_arguments(args, [&] { return is_all_case(to_str(in.heap(), v), false); });
}
bool test_upper(Interpreter& in, const Value& v, Args& args) {
  return no_arguments(args, [&] { return is_all_case(to_str(in.heap(), v), true); });
}
bool rest_is(Interpreter& in, const Value& v, const Value& divisor, int64_t rest) {
  return equal(in.heap(), modulo(in, v, divisor), Value::integer(rest));
}
bool test_odd(Interpreter& in, const Value& v, Args& args) {
  return no_arguments(args, [&] { return rest_is(in, v, Value::integer(2), 1); });
}
bool test_even(Interpreter& in, const Value& v, Args& args) {
  return no_arguments(args, [&] { return rest_is(in, v, Value::integer(2), 0); });
}
bool test_divisibleby(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("divisibleby", args, {"num"}, 1);
  return rest_is(in, v, bound.value(0), 0);
}
bool test_filter(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return v.is_string() && find_filter(v.text()) != nullptr; });
}
bool test_test(Interpreter&, const Value& v, Args& args) {
  return no_arguments(args, [&] { return v.is_string() && find_test(v.text()) != nullptr; });
}
bool test_sameas(Interpreter&, const Value& v, Args& args) {
  const Bound bound("sameas", args, {"other"}, 1);
  return v.same_as(bound.value(0));
}
bool test_in(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("in", args, {"seq"}, 1);
  return contains(in.heap(), bound.value(0), v);
}
bool test_eq(Interpreter& in, const Value& v, Args& args) {
  return equal(in.heap(), v, operand(args));
}
bool test_ne(Interpreter& in, const Value& v, Args& args) {
  return !equal(in.heap(), v, operand(args));
}
bool test_lt(Interpreter& in, const Value& v, Args& args) {
  return less(in.heap(), v, operand(args), "<");
}
bool test_le(Interpreter& in, const Value& v, Args& args) {
  return less_or_equal(in.heap(), v, operand(args), "<=");
}
bool test_gt(Interpreter& in, const Value& v, Args& args) {
  return less(in.heap(), operand(args), v, ">");
}
bool test_ge(Interpreter& in, const Value& v, Args& args) {
  return less_or_equal(in.heap(), operand(args), v, ">=");
}

constexpr TestEntry kTests[] = {
    {"odd", test_odd},
    {"even", test_even},
    {"divisibleby", test_divisibleby},
    {"defined", test_defined},
    {"undefined", is_type<Type::kUndefined>},
    {"filter", test_filter},
    {"test", test_test},
    {"none", is_type<Type::kNone>},
    {"boolean", is_type<Type::kBool>},
    {"false", test_false},
    {"true", test_true},
    {"integer", test_integer},
    {"float", is_type<Type::kFloat>},
    {"lower", test_lower},
    {"upper", test_upper},
    {"string", is_type<Type::kString>},
    {"mapping", is_type<Type::kDict>},
    {"number", test_number},
    {"sequence", test_sequence},
    {"iterable", test_iterable},
    {"callable", test_callable},
    {"sameas", test_sameas},
    {"escaped", test_escaped},
    {"in", test_in},
    {"==", test_eq},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"!=", test_ne},
    {"ne", test_ne},
    {">", test_gt},
    {"gt", test_gt},
    {"greaterthan", test_gt},
    {"ge", test_ge},
    {">=", test_ge},
    {"<", test_lt},
    {"lt", test_lt},
    {"lessthan", test_lt},
    {"<=", test_le},
    {"le", test_le},
};

using MethodTable = std::unordered_map<std::string_view, NativeEntry>;

MethodTable table_of(const std::vector<NativeEntry>& entries) {
  MethodTable table;
  for (const NativeEntry& entry : entries) table.emplace(entry.name, entry);
  return table;
}

const NativeEntry* look_up(const MethodTable& table, std::string_view name) {
  const auto it = table.find(name);
  return it == table.end() ? nullptr : &it->second;
}

}  // namespace

FilterFunction find_filter(std::string_view name) {
  static const auto table = [] {
    std::unordered_map<std::string_view, FilterFunction> all;
    for (const FilterEntry& entry : text_filters()) all.emplace(entry.name, entry.call);
    for (const FilterEntry& entry : sequence_filters()) all.emplace(entry.name, entry.call);
    return all;
  }();
  const auto it = table.find(name);
  return it == table.end() ? nullptr : it->second;
}

TestFunction find_test(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const TestEntry& e) { return e.name == name; });
  return it == std::end(kTests) ? nullptr : it->call;
}

const NativeEntry* find_global(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kGlobals), std::end(kGlobals), [&](const NativeEntry& e) { return e.name == name; });
  return it == std::end(kGlobals) ? nullptr : it;
}

const NativeEntry* find_method(Type type, std::string_view name) {
  static const MethodTable strings = table_of(string_methods()), lists = table_of(list_methods()),
                           tuples = table_of(tuple_methods()), dicts = table_of(dict_methods()),
                           numbers = table_of(number_methods());
  switch (type) {
    case Type::kString:
      return look_up(strings, name);
    case Type::kList:
      return look_up(lists, name);
    case Type::kTuple:
      return look_up(tuples, name);
    case Type::kDict:
      return look_up(dicts, name);
    case Type::kBool:
    case Type::kInt:
      return name == "is_integer" ? nullptr : look_up(numbers, name);
    case Type::kFloat:
      return name == "bit_length" ? nullptr : look_up(numbers, name);
    default:
      return nullptr;
  }
}

}  // namespace quire::text::jinja
