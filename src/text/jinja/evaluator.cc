// SPDX-License-Identifier: Apache-2.0
// Evaluates expressions, calls functions, and looks up attributes and items.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {

Value Interpreter::eval(const Expr& expr) {
  if (expr.kind == ExprKind::kConst) return expr.constant;
  const DepthGuard guard(heap_);
  heap_.step();
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kName: {
      const Value& value = variable(expr.var);
      if (!value.is_missing()) return value;
      return Value::undefined(UndefinedKind::kName, program_.names[static_cast<size_t>(expr.name)].string_object());
    }
    case ExprKind::kTuple:
      return heap_.tuple(eval_all(expr.kids));
    case ExprKind::kList:
      return heap_.list(eval_all(expr.kids));
    case ExprKind::kDict: {
      Value dict = heap_.dict();
      for (size_t i = 0; i < expr.kids.size(); i += 2) {
        Value key = eval(*expr.kids[i]);
        dict.dict().set(heap_, std::move(key), eval(*expr.kids[i + 1]));
      }
      return dict;
    }
    case ExprKind::kAttr:
      return get_attr(eval(*expr.kids[0]), expr.constant);
    case ExprKind::kItem: {
      const Value object = eval(*expr.kids[0]);
      return get_item(object, eval(*expr.kids[1]));
    }
    case ExprKind::kSlice: {
      const Value object = eval(*expr.kids[0]);
      auto part = [&](size_t i) { return expr.kids[i] != nullptr ? eval(*expr.kids[i]) : Value::none(); };
      const Value start = part(1), stop = part(2), step = part(3);
      return slice(heap_, object, start, stop, step);
    }
    case ExprKind::kCall:
      return eval_call(expr, nullptr);
    case ExprKind::kFilter:
      return eval_filter(expr, eval(*expr.kids[0]));
    case ExprKind::kTest:
      return Value::boolean(eval_test(expr));
    case ExprKind::kNot:
      return Value::boolean(!is_true(eval(*expr.kids[0])));
    case ExprKind::kAnd: {
      Value left = eval(*expr.kids[0]);
      return is_true(left) ? eval(*expr.kids[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = eval(*expr.kids[0]);
      return is_true(left) ? left : eval(*expr.kids[1]);
    }
    case ExprKind::kCond:
      if (is_true(eval(*expr.kids[0]))) return eval(*expr.kids[1]);
      if (expr.kids[2] != nullptr) return eval(*expr.kids[2]);
      return heap_.undefined_hint("the inline if-expression on line " + std::to_string(expr.line) +
                                  " evaluated to false and no else section was defined.");
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kAdd:
      return add_all(eval_all(expr.kids));
    case ExprKind::kConcat: {
      MarkedText out;
      for (const Value& part : eval_all(expr.kids)) append_str(heap_, out, part);
      return heap_.string(std::move(out));
    }
    default:
      return eval_binary(expr);
  }
}

Value Interpreter::eval_binary(const Expr& expr) {
  const Value left = eval(*expr.kids[0]);
  if (expr.kind == ExprKind::kNeg) return negate(left);
  if (expr.kind == ExprKind::kPos) return positive(left);
  const Value right = eval(*expr.kids[1]);
  switch (expr.kind) {
    case ExprKind::kSub:
      return subtract(left, right);
    case ExprKind::kMul:
      return multiply(heap_, left, right);
    case ExprKind::kDiv:
      return divide(left, right);
    case ExprKind::kFloorDiv:
      return floor_divide(left, right);
    case ExprKind::kMod:
      return modulo(*this, left, right);
    case ExprKind::kPow:
      return power(left, right);
    default:
      fail("this expression cannot be evaluated");
  }
}

Values Interpreter::eval_all(const std::vector<ExprPtr>& exprs) {
  Values values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) values.push_back(eval(*expr));
  return values;
}

bool Interpreter::all_plain_strings(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](const Value& v) { return v.is_string() && !v.is_markup(); });
}

Value Interpreter::add_all(const Values& values) {
  if (all_plain_strings(values)) {
    size_t size = 0;
    for (const Value& value : values) size += value.text().size();
    heap_.charge(size);
    heap_.discharge(size);
    MarkedText out;
    out.text.reserve(size);
    for (const Value& value : values) out.add(value.text(), value.origins(), value.text());
    return heap_.string(std::move(out));
  }
  Value sum = values[0];
  for (size_t i = 1; i < values.size(); ++i) sum = add(heap_, sum, values[i]);
  return sum;
}

namespace {

bool compare(Heap& heap, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return equal(heap, a, b);
    case CompareOp::kNe:
      return !equal(heap, a, b);
    case CompareOp::kLt:
      return less(heap, a, b, "<");
    case CompareOp::kLe:
      return less_or_equal(heap, a, b, "<=");
    case CompareOp::kGt:
      return less(heap, b, a, ">");
    case CompareOp::kGe:
      return less_or_equal(heap, b, a, ">=");
    case CompareOp::kIn:
      return contains(heap, b, a);
    case CompareOp::kNotIn:
      return !contains(heap, b, a);
  }
  return false;
}

}  // namespace

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.kids[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.kids[i + 1]);
    if (!compare(heap_, expr.ops[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

// --- Calls ---

void Interpreter::eval_args(const CallArgs& from, Args& to) {
  to.positional.reserve(from.positional.size());
  for (const ExprPtr& arg : from.positional) to.positional.push_back(eval(*arg));
  for (const auto& [name, arg] : from.keyword) to.keyword.emplace_back(name, eval(*arg));
  if (from.star != nullptr) {
    for (Value& item : to_values(heap_, eval(*from.star))) to.positional.push_back(std::move(item));
  }
  if (from.star_star == nullptr) return;
  const Value more = eval(*from.star_star);
  if (!more.is(Type::kDict)) fail("argument after ** must be a mapping");
  for (const DictObject::Entry& entry : more.dict().entries) {
    if (!entry.key.is_string()) fail("keywords must be strings");
    for (const auto& [name, value] : to.keyword) {
      if (name.text() == entry.key.text()) fail({"got multiple values for keyword argument ", repr_text(name.text())});
    }
    heap_.step(1 + to.keyword.size());
    to.keyword.emplace_back(entry.key, entry.value);
  }
}

// Calls a method without creating the bound method first; false if the callee is not a method.
bool Interpreter::call_method(const Expr& expr, Value* result, Value* callee) {
  const Expr& name = *expr.kids[0];
  const Value object = eval(*name.kids[0]);
  const NativeEntry* method = find_method(object.type(), name.constant.text());
  if (method == nullptr || (method->mutates && options_.immutable)) {
    *callee = get_attr(object, name.constant);
    return false;
  }
  Args args;
  eval_args(*expr.args, args);
  *result = method->call(*this, object, args);
  return true;
}

Value Interpreter::eval_call(const Expr& expr, const Value* caller) {
  Value callee;
  if (expr.kids[0]->kind == ExprKind::kAttr && caller == nullptr) {
    Value result;
    if (call_method(expr, &result, &callee)) return result;
  } else {
    callee = eval(*expr.kids[0]);
  }
  Args args;
  eval_args(*expr.args, args);
  if (caller != nullptr) args.keyword.emplace_back(heap_.string("caller"), *caller);
  return call(callee, args);
}

Value Interpreter::call(const Value& callee, Args& args) {
  switch (callee.type()) {
    case Type::kMacro:
      return call_macro(callee.as<MacroObject>(), args);
    case Type::kFunction: {
      const auto& function = callee.as<FunctionObject>();
      return function.call(*this, function.self, args);
    }
    case Type::kJoiner: {
      expect_positional("joiner", args, 0, 0);
      auto& joiner = callee.as<JoinerObject>();
      if (joiner.used) return joiner.separator;
      joiner.used = true;
      return heap_.string("");
    }
    case Type::kLoop:
      expect_positional("loop", args, 1, 1);
      return call_recursive_loop(callee.as<LoopObject>(), args.positional[0]);
    case Type::kUndefined:
      fail_undefined(callee);
    default:
      fail({"'", python_type_name(callee), "' object is not callable"});
  }
}

Value Interpreter::eval_filter(const Expr& expr, const Value& subject) {
  Args args;
  if (expr.filter == nullptr) fail({"No filter named ", repr_text(expr.constant.text()), " found."});
  eval_args(*expr.args, args);
  return expr.filter(*this, subject, args);
}

// The innermost filter of the chain has no operand: it gets the text of the block.
Value Interpreter::eval_block_filter(const Expr& expr, const Value& text) {
  const DepthGuard guard(heap_);
  return eval_filter(expr, expr.kids[0] == nullptr ? text : eval_block_filter(*expr.kids[0], text));
}

bool Interpreter::eval_test(const Expr& expr) {
  const Value subject = eval(*expr.kids[0]);
  if (expr.test == nullptr) fail({"No test named ", repr_text(expr.constant.text()), " found."});
  Args args;
  eval_args(*expr.args, args);
  return expr.test(*this, subject, args);
}

Value Interpreter::call_filter(const Value& name, const Value& subject, Args& args) {
  const FilterFunction filter = name.is_string() ? find_filter(name.text()) : nullptr;
  if (filter == nullptr) fail({"No filter named ", to_repr(heap_, name), "."});
  const DepthGuard guard(heap_);
  return filter(*this, subject, args);
}

bool Interpreter::call_test(const Value& name, const Value& subject, Args& args) {
  const TestFunction test = name.is_string() ? find_test(name.text()) : nullptr;
  if (test == nullptr) fail({"No test named ", to_repr(heap_, name), "."});
  const DepthGuard guard(heap_);
  return test(*this, subject, args);
}

// --- Attributes and items ---

namespace {

bool is_hashable(Heap& heap, const Value& value) {
  if (value.is(Type::kTuple)) {
    const DepthGuard guard(heap);
    const Values& items = value.list().items;
    heap.step(items.size());
    return std::all_of(items.begin(), items.end(), [&](const Value& v) { return is_hashable(heap, v); });
  }
  return !value.is(Type::kList) && !value.is(Type::kDict) && !value.is(Type::kDictView);
}

Value unsafe_attribute(Heap& heap, const Value& object, std::string_view name) {
  return heap.undefined_hint("access to attribute " + repr_text(name) + " of '" + python_type_name(object) +
                             "' object is unsafe.");
}

// Attributes that all Python objects have.
bool is_universal(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "__class__",        "__delattr__", "__dir__",    "__doc__",  "__eq__",      "__format__",        "__ge__",
      "__getattribute__", "__gt__",      "__hash__",   "__init__", "__le__",      "__init_subclass__", "__lt__",
      "__ne__",           "__new__",     "__reduce__", "__repr__", "__setattr__", "__sizeof__",        "__str__",
      "__subclasshook__"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool loop_attribute(Interpreter& interpreter, const Value& object, std::string_view name, Value* out) {
  auto& loop = object.as<LoopObject>();
  Heap& heap = interpreter.heap();
  if (name == "index") {
    *out = Value::integer(loop.index0 + 1);
  } else if (name == "index0") {
    *out = Value::integer(loop.index0);
  } else if (name == "first") {
    *out = Value::boolean(loop.index0 == 0);
  } else if (name == "last") {
    *out = Value::boolean(loop.peek().is_missing());
  } else if (name == "length") {
    *out = Value::integer(loop.length());
  } else if (name == "revindex") {
    *out = Value::integer(loop.length() - loop.index0);
  } else if (name == "revindex0") {
    *out = Value::integer(loop.length() - loop.index0 - 1);
  } else if (name == "depth") {
    *out = Value::integer(loop.depth0 + 1);
  } else if (name == "depth0") {
    *out = Value::integer(loop.depth0);
  } else if (name == "previtem") {
    *out = loop.index0 == 0 ? heap.undefined_hint("there is no previous item") : loop.before;
  } else if (name == "nextitem") {
    *out = loop.peek().is_missing() ? heap.undefined_hint("there is no next item") : loop.peek();
  } else if (name == "cycle") {
    *out = interpreter.function(
        "cycle",
        [](Interpreter&, const Value& self, Args& args) {
          if (args.positional.empty()) fail("no items for cycling given");
          const auto index = static_cast<size_t>(self.as<LoopObject>().index0);
          return args.positional[index % args.positional.size()];
        },
        object);
  } else if (name == "changed") {
    *out = interpreter.function(
        "changed",
        [](Interpreter& in, const Value& self, Args& args) {
          auto& me = self.as<LoopObject>();
          const Value now = in.heap().tuple(args.positional);
          const bool changed = me.last_changed.is_missing() || !equal(in.heap(), me.last_changed, now);
          if (changed) me.last_changed = now;
          return Value::boolean(changed);
        },
        object);
  } else {
    return false;
  }
  return true;
}

bool macro_attribute(Interpreter& interpreter, const Value& object, std::string_view name, Value* out) {
  const MacroNode& node = *object.as<MacroObject>().node;
  if (name == "name") {
    *out = node.name.is_string() ? node.name : Value::none();
  } else if (name == "arguments") {
    Values names;
    for (const MacroNode::Param& param : node.params) names.push_back(param.name);
    *out = interpreter.heap().tuple(std::move(names));
  } else if (name == "catch_kwargs") {
    *out = Value::boolean(node.uses_kwargs);
  } else if (name == "catch_varargs") {
    *out = Value::boolean(node.uses_varargs);
  } else if (name == "caller") {
    *out = Value::boolean(node.uses_caller);
  } else if (name == "explicit_caller") {
    *out = Value::boolean(node.explicit_caller);
  } else {
    return false;
  }
  return true;
}

bool cycler_attribute(Interpreter& interpreter, const Value& object, std::string_view name, Value* out) {
  auto& cycler = object.as<CyclerObject>();
  if (name == "current") {
    *out = cycler.items[cycler.position];
  } else if (name == "items") {
    *out = interpreter.heap().tuple(cycler.items);
  } else if (name == "pos") {
    *out = Value::integer(static_cast<int64_t>(cycler.position));
  } else if (name == "next") {
    *out = interpreter.function(
        "next",
        [](Interpreter&, const Value& self, Args&) {
          auto& me = self.as<CyclerObject>();
          const Value current = me.items[me.position];
          me.position = (me.position + 1) % me.items.size();
          return current;
        },
        object);
  } else if (name == "reset") {
    *out = interpreter.function(
        "reset",
        [](Interpreter&, const Value& self, Args&) {
          self.as<CyclerObject>().position = 0;
          return Value::none();
        },
        object);
  } else {
    return false;
  }
  return true;
}

// Attributes that are values, not methods, on plain types.
bool plain_attribute(const Value& object, std::string_view name, Value* out) {
  switch (object.type()) {
    case Type::kTuple:
      if (!object.list().group || (name != "grouper" && name != "list")) return false;
      *out = object.list().items[name == "grouper" ? 0 : 1];
      return true;
    case Type::kRange: {
      const auto& range = object.as<RangeObject>();
      if (name != "start" && name != "stop" && name != "step") return false;
      *out = Value::integer(name == "start" ? range.start : name == "stop" ? range.stop : range.step);
      return true;
    }
    case Type::kBool:
    case Type::kInt:
      if (name == "real" || name == "numerator") {
        *out = Value::integer(object.as_int());
      } else if (name == "imag" || name == "denominator") {
        *out = Value::integer(name == "imag" ? 0 : 1);
      } else {
        return false;
      }
      return true;
    case Type::kFloat:
      if (name != "real" && name != "imag") return false;
      *out = name == "real" ? object : Value::real(0);
      return true;
    case Type::kJoiner:
      if (name != "sep" && name != "used") return false;
      *out = name == "sep" ? object.as<JoinerObject>().separator : Value::boolean(object.as<JoinerObject>().used);
      return true;
    default:
      return false;
  }
}

}  // namespace

bool Interpreter::attribute(const Value& object, const Value& name_value, Value* out) {
  const std::string& name = name_value.text();
  if (object.is(Type::kNamespace)) {
    const Value* found = object.as<NamespaceObject>().attributes.find(std::string_view(name));
    if (found == nullptr) return false;
    *out = !name.empty() && name[0] == '_' ? unsafe_attribute(heap_, object, name) : *found;
    return true;
  }
  if (!name.empty() && name[0] == '_') {
    if (!is_universal(name)) return false;
    *out = unsafe_attribute(heap_, object, name);
    return true;
  }
  const NativeEntry* method = find_method(object.type(), name);
  if (method != nullptr) {
    const bool refused = method->mutates && options_.immutable;
    *out = refused ? unsafe_attribute(heap_, object, name) : function(method->name, method->call, object);
    return true;
  }
  switch (object.type()) {
    case Type::kLoop:
      return loop_attribute(*this, object, name, out);
    case Type::kMacro:
      return macro_attribute(*this, object, name, out);
    case Type::kCycler:
      return cycler_attribute(*this, object, name, out);
    default:
      return plain_attribute(object, name, out);
  }
}

Value Interpreter::get_attr(const Value& object, const Value& name) {
  if (object.is_undefined()) fail_undefined(object);
  Value out;
  if (attribute(object, name, &out)) return out;
  if (object.is(Type::kDict)) {
    const Value* found = object.dict().find(std::string_view(name.text()));
    if (found != nullptr) return *found;
  }
  return Value::undefined(UndefinedKind::kAttribute, name.string_object(), object.type());
}

Value Interpreter::get_item(const Value& object, const Value& key) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.is(Type::kDict)) {
    if (key.is_string()) heap_.touch(key.text().size());
    const Value* found = is_hashable(heap_, key) ? object.dict().find(key) : nullptr;
    if (found != nullptr) return *found;
  } else if (key.is_int_like()) {
    Value out;
    if (item_at(heap_, object, key.as_int(), &out)) return out;
  }
  if (key.is_string()) {
    Value out;
    if (attribute(object, key, &out)) return out;
    return Value::undefined(UndefinedKind::kAttribute, key.string_object(), object.type());
  }
  return heap_.undefined_hint(
      (object.is_none() ? std::string("None") : python_type_name(object) + std::string(" object")) +
      " has no element " + to_repr(heap_, key));
}

}  // namespace quire::text::jinja
