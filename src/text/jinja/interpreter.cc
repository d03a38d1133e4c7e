// SPDX-License-Identifier: Apache-2.0
// Runs statements: output, conditions, loops, assignments, macros and blocks.
#include "text/jinja/interpreter.h"

#include <algorithm>
#include <map>

#include "text/jinja/builtins.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {

Interpreter::Interpreter(const Program& program, const RenderOptions& options)
    : program_(program),
      options_(options),
      heap_(options.limits.max_steps, options.limits.max_memory_bytes, options.cancelled) {
  heap_.max_depth = options.limits.max_depth;
}

MarkedText Interpreter::run(std::span<const Variable> variables) {
  resolve_globals(variables);
  frame_ = new_frame(*program_.unit, nullptr);
  MarkedText out;
  out_ = &out;
  enter(program_.scope);
  exec(program_.body);
  return out;
}

void Interpreter::resolve_globals(std::span<const Variable> variables) {
  // There may be many of both: names in a template, and variables of a request, whose names may have been chosen to
  // collide in a hash table.
  std::map<std::string_view, const Variable*> given;
  for (const Variable& variable : variables) given[variable.name] = &variable;
  globals_.reserve(program_.names.size());
  for (const Value& name : program_.names) {
    const auto found = given.find(name.text());
    if (found == given.end()) {
      globals_.push_back(make_global(name.text()));
      continue;
    }
    const Variable& variable = *found->second;
    globals_.push_back(variable.messages ? from_messages(*variable.value)
                                         : from_json(*variable.value, variable.origin));
  }
}

Value Interpreter::make_global(std::string_view name) {
  const NativeEntry* entry = find_global(name);
  return entry == nullptr ? Value() : function(entry->name, entry->call);
}

Value Interpreter::function(const char* name, FunctionObject::Native native, const Value& self) {
  auto* object = heap_.make<FunctionObject>();
  object->name = name;
  object->call = native;
  object->self = self;
  return Value::object(Type::kFunction, object);
}

namespace {

// Templates build control tokens from roles ("<|" + role + "|>"), so a role that is a plain word is trusted.
bool is_plain_word(const std::string& text) {
  constexpr size_t kLongestRole = 32;
  return !text.empty() && text.size() <= kLongestRole && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

Origin origin_of_role(const json::Value* role) {
  if (role == nullptr || !role->is_string()) return Origin::kUntrusted;
  const std::string& name = role->as_string();
  return name == "assistant" || name == "system" || name == "developer" ? Origin::kModel : Origin::kUntrusted;
}

}  // namespace

Value Interpreter::from_messages(const json::Value& messages) {
  if (!messages.is_array()) return from_json(messages, Origin::kUntrusted);
  Values items;
  items.reserve(messages.as_array().size());
  for (const json::Value& message : messages.as_array()) {
    if (!message.is_object()) {
      items.push_back(from_json(message, Origin::kUntrusted));
      continue;
    }
    const Origin origin = origin_of_role(message.find("role"));
    Value dict = heap_.dict();
    for (const auto& [name, member] : message.as_object()) {
      const bool trusted = name == "role" && member.is_string() && is_plain_word(member.as_string());
      dict.dict().set(heap_, heap_.string(MarkedText(name, origin)),
                      from_json(member, trusted ? Origin::kTemplate : origin));
    }
    items.push_back(dict);
  }
  return heap_.list(std::move(items));
}

Value Interpreter::from_json(const json::Value& value, Origin origin) {
  const DepthGuard guard(heap_);
  switch (value.kind()) {
    case json::Kind::kNull:
      return Value::none();
    case json::Kind::kBool:
      return Value::boolean(value.as_bool());
    case json::Kind::kInt:
      return Value::integer(value.as_int());
    case json::Kind::kDouble:
      if (const std::string* digits = value.long_digits(); digits != nullptr) {
        return Value::long_integer(heap_.string(MarkedText(*digits, origin)).string_object());
      }
      return Value::real(value.as_double());
    case json::Kind::kString:
      return heap_.string(MarkedText(value.as_string(), origin));
    case json::Kind::kArray: {
      Values items;
      items.reserve(value.as_array().size());
      for (const json::Value& item : value.as_array()) items.push_back(from_json(item, origin));
      return heap_.list(std::move(items));
    }
    case json::Kind::kObject: {
      Value dict = heap_.dict();
      dict.dict().entries.reserve(value.as_object().size());
      for (const auto& [name, member] : value.as_object()) {
        dict.dict().set(heap_, heap_.string(MarkedText(name, origin)), from_json(member, origin));
      }
      return dict;
    }
  }
  return Value::none();
}

// --- Frames and scopes ---

Frame* Interpreter::new_frame(const FunctionUnit& unit, Frame* parent) {
  Frame* frame = nullptr;
  if (!free_frames_.empty()) {
    frame = free_frames_.back();
    free_frames_.pop_back();
  } else {
    heap_.charge(sizeof(Frame) + unit.slot_count * sizeof(Value));
    frames_.push_back(std::make_unique<Frame>());
    frame = frames_.back().get();
  }
  heap_.step(unit.slot_count / 8);
  frame->parent = parent;
  frame->slots.assign(unit.slot_count, Value());
  return frame;
}

void Interpreter::release(Frame* frame) {
  if (frame->captured) return;
  frame->slots.clear();
  free_frames_.push_back(frame);
}

void Interpreter::capture(Frame* frame) {
  for (; frame != nullptr && !frame->captured; frame = frame->parent) frame->captured = true;
}

Value& Interpreter::variable(VarRef ref) {
  Frame* frame = frame_;
  for (uint32_t i = 0; i < ref.up; ++i) frame = frame->parent;
  return frame->slots[ref.slot];
}

void Interpreter::enter(const ScopeInfo& scope) {
  heap_.step(scope.loads.size() / 8);
  for (const Load& load : scope.loads) {
    Value& slot = frame_->slots[load.slot];
    switch (load.action) {
      case Load::Action::kResolve:
        slot = globals_[static_cast<size_t>(load.name)];
        break;
      case Load::Action::kAlias:
        slot = Value(variable(load.from));
        break;
      case Load::Action::kUndefined:
        slot = Value();
        break;
    }
  }
}

void Interpreter::leave(const ScopeInfo& scope) {
  for (const uint32_t slot : scope.slots) frame_->slots[slot] = Value();
}

void Interpreter::assign(const Expr& target, const Value& value) {
  switch (target.kind) {
    case ExprKind::kName:
      variable(target.var) = value;
      return;
    case ExprKind::kNsRef: {
      const Value& space = variable(target.var);
      if (!space.is(Type::kNamespace)) fail("cannot assign attribute on non-namespace object");
      space.as<NamespaceObject>().attributes.set(heap_, target.constant, value);
      return;
    }
    default:
      break;
  }
  const DepthGuard guard(heap_);
  const Values parts = to_values(heap_, value);
  if (parts.size() != target.kids.size()) {
    fail(parts.size() > target.kids.size()
             ? "too many values to unpack (expected " + std::to_string(target.kids.size()) + ")"
             : "not enough values to unpack (expected " + std::to_string(target.kids.size()) + ", got " +
                   std::to_string(parts.size()) + ")");
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(*target.kids[i], parts[i]);
}

// --- Statements ---

Flow Interpreter::exec(const Block& block) {
  const DepthGuard guard(heap_);
  for (const StmtPtr& stmt : block) {
    heap_.step();
    line_ = stmt->line;
    const Flow flow = exec(*stmt);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Flow Interpreter::exec(const Stmt& stmt) {
  switch (stmt.kind) {
    case StmtKind::kOutput:
      for (const ExprPtr& expr : stmt.exprs) {
        line_ = expr->line;
        output(*expr);
      }
      check_output();
      return Flow::kNext;
    case StmtKind::kIf:
      return exec_if(stmt);
    case StmtKind::kFor:
      return exec_for(stmt);
    case StmtKind::kSet:
      assign(*stmt.target, eval(*stmt.value));
      return Flow::kNext;
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock:
      return exec_captured(stmt);
    case StmtKind::kMacro:
      variable(stmt.macro_var) = make_macro(*stmt.macro);
      return Flow::kNext;
    case StmtKind::kCallBlock: {
      const Value caller = make_macro(*stmt.macro);
      write_text(eval_call(*stmt.value, &caller));
      return Flow::kNext;
    }
    case StmtKind::kWith:
      return exec_with(stmt);
    case StmtKind::kDo:
      eval(*stmt.value);
      return Flow::kNext;
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::check_output() {
  if (out_->size() > options_.limits.max_output_bytes) {
    throw TemplateError{
        "the template's output is larger than " + std::to_string(options_.limits.max_output_bytes) + " bytes", 0, false,
        ErrorCode::kExhausted};
  }
}

// Prints an expression directly to the output: sums and concatenations of strings need no string of their own.
void Interpreter::output(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      append_str(heap_, *out_, expr.constant);
      return;
    case ExprKind::kConcat:
      for (const Value& part : eval_all(expr.kids)) append_str(heap_, *out_, part);
      return;
    case ExprKind::kAdd: {
      const Values parts = eval_all(expr.kids);
      if (all_plain_strings(parts)) {
        for (const Value& part : parts) append_str(heap_, *out_, part);
      } else {
        append_str(heap_, *out_, add_all(parts));
      }
      return;
    }
    default:
      append_str(heap_, *out_, eval(expr));
  }
}

Flow Interpreter::exec_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    if (is_true(eval(*branch.test))) return exec(branch.body);
  }
  return stmt.body2.empty() ? Flow::kNext : exec(stmt.body2);
}

Flow Interpreter::exec_with(const Stmt& stmt) {
  // The values are evaluated outside the scope, so all of them are computed before it opens.
  Values values;
  for (size_t i = 1; i < stmt.exprs.size(); i += 2) values.push_back(eval(*stmt.exprs[i]));
  enter(stmt.scope);
  for (size_t i = 0; i < values.size(); ++i) assign(*stmt.exprs[2 * i], values[i]);
  const Flow flow = exec(stmt.body);
  leave(stmt.scope);
  return flow;
}

Flow Interpreter::exec_captured(const Stmt& stmt) {
  MarkedText buffer;
  MarkedText* outer = out_;
  out_ = &buffer;
  enter(stmt.scope);
  const Flow flow = exec(stmt.body);
  out_ = outer;
  if (flow != Flow::kNext) return flow;
  Value text = heap_.string(std::move(buffer));
  if (stmt.value != nullptr) text = eval_block_filter(*stmt.value, text);
  leave(stmt.scope);
  if (stmt.target != nullptr) {
    assign(*stmt.target, text);
  } else {
    write_text(text);
  }
  return Flow::kNext;
}

// The result of a filter or call block, which Jinja2 does not convert to text.
void Interpreter::write_text(const Value& text) {
  if (!text.is_string()) fail({"a block must return a string, not '", python_type_name(text), "'"});
  append_str(heap_, *out_, text);
  check_output();
}

// --- Loops ---

Flow Interpreter::exec_for(const Stmt& stmt) {
  const Value iterable = eval(*stmt.value);
  if (!stmt.recursive) return run_loop(stmt, iterable, 0, frame_);
  const Value text = run_recursive(stmt, iterable, 0, frame_);
  append_str(heap_, *out_, text);
  check_output();
  return Flow::kNext;
}

Value Interpreter::run_recursive(const Stmt& stmt, const Value& iterable, int64_t depth0, Frame* outer_frame) {
  const MacroDepth nested(*this);
  Frame* frame = new_frame(*stmt.unit, outer_frame);
  Frame* saved_frame = frame_;
  MarkedText* saved_out = out_;
  const int saved_line = line_;
  MarkedText buffer;
  frame_ = frame;
  out_ = &buffer;
  run_loop(stmt, iterable, depth0, outer_frame);
  frame_ = saved_frame;
  out_ = saved_out;
  line_ = saved_line;
  release(frame);
  return heap_.string(std::move(buffer));
}

Value Interpreter::call_recursive_loop(LoopObject& loop, const Value& iterable) {
  if (!loop.node->recursive) fail("The loop must have the 'recursive' marker to be called recursively.");
  return run_recursive(*loop.node, iterable, loop.depth0 + 1, loop.outer_frame);
}

Flow Interpreter::run_loop(const Stmt& stmt, const Value& iterable, int64_t depth0, Frame* outer_frame) {
  LoopObject local;
  // Only a loop whose body uses `loop` can outlive its statement.
  LoopObject& loop = stmt.extended ? *heap_.make<LoopObject>() : local;
  loop.interpreter = this;
  loop.node = &stmt;
  loop.frame = frame_;
  loop.outer_frame = outer_frame;
  loop.source = Iterator(heap_, iterable);
  loop.depth0 = depth0;
  if (stmt.extended && (stmt.recursive || stmt.test != nullptr)) capture(frame_);
  bool finished_a_turn = false;
  while (loop.advance()) {
    assign(*stmt.target, loop.current);
    if (stmt.extended) frame_->slots[stmt.loop_slot] = Value::object(Type::kLoop, &loop);
    enter(stmt.scope);
    const Flow flow = exec(stmt.body);
    if (flow == Flow::kBreak) break;
    // As in Jinja2, an iteration that ended with `continue` or `break` does not count against the else branch.
    if (flow == Flow::kNext) finished_a_turn = true;
  }
  leave(stmt.scope);
  if (finished_a_turn || stmt.body2.empty()) return Flow::kNext;
  enter(stmt.scope2);
  const Flow flow = exec(stmt.body2);
  leave(stmt.scope2);
  return flow;
}

bool Interpreter::loop_test(LoopObject& loop, const Value& item) {
  Frame* saved = frame_;
  frame_ = loop.frame;
  assign(*loop.node->test_target, item);
  enter(loop.node->test_scope);
  const bool keep = is_true(eval(*loop.node->test));
  frame_ = saved;
  return keep;
}

bool LoopObject::pull(Value& out) {
  if (from_buffer) {
    if (buffered_at >= buffered.size()) return false;
    out = buffered[buffered_at++];
    return true;
  }
  while (source.next(out)) {
    if (node->test == nullptr || interpreter->loop_test(*this, out)) return true;
  }
  return false;
}

bool LoopObject::advance() {
  Value next;
  if (!after.is_missing()) {
    next = std::move(after);
    after = Value();
  } else if (!pull(next)) {
    return false;
  }
  ++index0;
  before = std::move(current);
  current = std::move(next);
  return true;
}

const Value& LoopObject::peek() {
  if (after.is_missing()) {
    Value next;
    if (pull(next)) after = std::move(next);
  }
  return after;
}

int64_t LoopObject::length() {
  if (known_length >= 0) return known_length;
  if (node->test == nullptr && source.known_length(&known_length)) return known_length;
  Values rest;
  Value item;
  while (pull(item)) rest.push_back(item);
  interpreter->heap().charge(rest.size() * sizeof(Value));
  known_length = static_cast<int64_t>(rest.size()) + index0 + 1 + (after.is_missing() ? 0 : 1);
  buffered = std::move(rest);
  buffered_at = 0;
  from_buffer = true;
  return known_length;
}

// --- Macros ---

Value Interpreter::make_macro(const MacroNode& node) {
  capture(frame_);
  auto* macro = heap_.make<MacroObject>();
  macro->node = &node;
  macro->frame = frame_;
  return Value::object(Type::kMacro, macro);
}

namespace {

std::string macro_label(const MacroNode& node) {
  return node.name.is_string() ? "macro " + repr_text(node.name.text()) : "the call block";
}

// Removes the keyword argument of that name from the call and returns it, or missing.
Value take_keyword(Heap& heap, Args& args, const Value& name) {
  heap.step(args.keyword.size() / 8);
  for (size_t i = 0; i < args.keyword.size(); ++i) {
    if (args.keyword[i].first.text() != name.text()) continue;
    Value value = std::move(args.keyword[i].second);
    args.keyword.erase(args.keyword.begin() + static_cast<ptrdiff_t>(i));
    return value;
  }
  return Value();
}

}  // namespace

void Interpreter::bind_macro(const MacroNode& node, Args& args, Frame& frame) {
  const size_t count = node.params.size();
  bool found_caller = args.positional.size() >= count && node.explicit_caller;
  for (size_t i = 0; i < count; ++i) {
    if (i < args.positional.size()) {
      frame.slots[node.params[i].slot] = args.positional[i];
      continue;
    }
    frame.slots[node.params[i].slot] = take_keyword(heap_, args, node.params[i].name);
    if (node.params[i].name.text() == "caller") found_caller = true;
  }
  if (node.uses_caller && !found_caller) {
    Value caller = take_keyword(heap_, args, heap_.string("caller"));
    if (caller.is_missing() || caller.is_none()) caller = heap_.undefined_hint("No caller defined");
    if (!node.explicit_caller) frame.slots[node.caller_slot] = std::move(caller);
  }
  if (node.uses_kwargs) {
    Value kwargs = heap_.dict();
    for (auto& [name, value] : args.keyword) kwargs.dict().set(heap_, name, value);
    frame.slots[node.kwargs_slot] = kwargs;
  } else if (!args.keyword.empty()) {
    fail({macro_label(node), " takes no keyword argument ", repr_text(args.keyword[0].first.text())});
  }
  if (node.uses_varargs) {
    Values rest;
    for (size_t i = count; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    frame.slots[node.varargs_slot] = heap_.tuple(std::move(rest));
  } else if (args.positional.size() > count) {
    fail({macro_label(node), " takes not more than ", count, " argument(s)"});
  }
}

Value Interpreter::call_macro(const MacroObject& macro, Args& args) {
  const MacroDepth nested(*this);
  const MacroNode& node = *macro.node;
  Frame* frame = new_frame(*node.unit, macro.frame);
  bind_macro(node, args, *frame);
  Frame* saved_frame = frame_;
  MarkedText* saved_out = out_;
  const int saved_line = line_;
  MarkedText buffer;
  frame_ = frame;
  out_ = &buffer;
  enter(node.scope);
  for (const MacroNode::Param& param : node.params) {
    if (!frame->slots[param.slot].is_missing()) continue;
    frame->slots[param.slot] =
        param.fallback != nullptr
            ? eval(*param.fallback)
            : heap_.undefined_hint("parameter " + repr_text(param.name.text()) + " was not provided");
  }
  exec(node.body);
  frame_ = saved_frame;
  out_ = saved_out;
  line_ = saved_line;
  release(frame);
  return heap_.string(std::move(buffer));
}

}  // namespace quire::text::jinja
