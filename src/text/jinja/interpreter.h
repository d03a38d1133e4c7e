// SPDX-License-Identifier: Apache-2.0
// Runs a parsed template: one Interpreter per render.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/jinja/ast.h"
#include "text/jinja/operators.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace quire::text::jinja {

// The variables of one running function (the template, a macro, a recursive loop).
struct Frame {
  Frame* parent = nullptr;
  Values slots;
  bool captured = false;  // a macro refers to it, so it must not be reused
};

// The state of one for loop, and the `loop` variable of its body.
struct LoopObject : Object {
  Interpreter* interpreter = nullptr;
  const Stmt* node = nullptr;
  Frame* frame = nullptr;        // where the loop runs
  Frame* outer_frame = nullptr;  // where a recursive loop is defined
  Iterator source;
  Values buffered;  // items that length() had to read ahead
  size_t buffered_at = 0;
  bool from_buffer = false;
  Value current, before, after, last_changed;  // missing: none yet
  int64_t index0 = -1;
  int64_t known_length = -1;
  int64_t depth0 = 0;

  bool advance();       // to the next item
  const Value& peek();  // the item after this one, or missing
  int64_t length();

 private:
  bool pull(Value& out);
};

enum class Flow : uint8_t { kNext, kBreak, kContinue };

// Evaluates expressions and runs statements. Owns everything that the render creates (heap, frames, output). Errors are
// thrown as TemplateError; their line is line() at that time. One thread, one render.
class Interpreter {
 public:
  Interpreter(const Program& program, const RenderOptions& options);

  MarkedText run(std::span<const Variable> variables);

  Heap& heap() { return heap_; }
  const RenderOptions& options() const { return options_; }
  int line() const { return line_; }

  Value eval(const Expr& expr);
  Value call(const Value& callee, Args& args);
  Value call_recursive_loop(LoopObject& loop, const Value& iterable);
  bool loop_test(LoopObject& loop, const Value& item);

  // obj.name and obj[key], looked up as in Jinja2's sandbox.
  Value get_attr(const Value& object, const Value& name);
  Value get_item(const Value& object, const Value& key);
  // Python's getattr; false if there is no such attribute.
  bool attribute(const Value& object, const Value& name, Value* out);

  Value call_filter(const Value& name, const Value& subject, Args& args);
  bool call_test(const Value& name, const Value& subject, Args& args);
  Value from_json(const json::Value& value, Origin origin);
  Value function(const char* name, FunctionObject::Native native, const Value& self = Value());

 private:
  // Counts nested macro calls.
  class MacroDepth {
   public:
    explicit MacroDepth(Interpreter& interpreter) : interpreter_(interpreter) {
      if (++interpreter_.macro_depth_ > interpreter_.options_.limits.max_macro_depth) {
        fail({"macro calls are nested more than ", interpreter_.options_.limits.max_macro_depth, " levels deep"});
      }
    }
    ~MacroDepth() { --interpreter_.macro_depth_; }
    MacroDepth(const MacroDepth&) = delete;
    MacroDepth& operator=(const MacroDepth&) = delete;

   private:
    Interpreter& interpreter_;
  };

  Flow exec(const Block& block);
  Flow exec(const Stmt& stmt);
  Flow exec_if(const Stmt& stmt);
  Flow exec_for(const Stmt& stmt);
  Flow run_loop(const Stmt& stmt, const Value& iterable, int64_t depth0, Frame* outer_frame);
  Value run_recursive(const Stmt& stmt, const Value& iterable, int64_t depth0, Frame* outer_frame);
  Flow exec_with(const Stmt& stmt);
  Flow exec_captured(const Stmt& stmt);
  void output(const Expr& expr);
  void check_output();
  void write_text(const Value& text);

  Values eval_all(const std::vector<ExprPtr>& exprs);
  static bool all_plain_strings(const Values& values);
  Value add_all(const Values& values);
  Value eval_compare(const Expr& expr);
  Value eval_binary(const Expr& expr);
  Value eval_call(const Expr& expr, const Value* caller);
  bool call_method(const Expr& expr, Value* result, Value* callee);
  Value eval_filter(const Expr& expr, const Value& subject);
  // Applies the chain of a filter block to its text.
  Value eval_block_filter(const Expr& expr, const Value& text);
  bool eval_test(const Expr& expr);
  void eval_args(const CallArgs& from, Args& to);
  Value call_macro(const MacroObject& macro, Args& args);
  void bind_macro(const MacroNode& node, Args& args, Frame& frame);

  void assign(const Expr& target, const Value& value);
  void enter(const ScopeInfo& scope);
  void leave(const ScopeInfo& scope);
  Value& variable(VarRef ref);
  Frame* new_frame(const FunctionUnit& unit, Frame* parent);
  void release(Frame* frame);
  void capture(Frame* frame);  // keeps it and the enclosing frames until the end of the render
  Value make_macro(const MacroNode& node);
  void resolve_globals(std::span<const Variable> variables);
  Value from_messages(const json::Value& messages);
  Value make_global(std::string_view name);

  const Program& program_;
  const RenderOptions& options_;
  Heap heap_;
  Values globals_;  // by name id; missing: no such variable
  MarkedText* out_ = nullptr;
  Frame* frame_ = nullptr;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<Frame*> free_frames_;
  int line_ = 0;
  int macro_depth_ = 0;
};

}  // namespace quire::text::jinja
