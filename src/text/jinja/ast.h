// SPDX-License-Identifier: Apache-2.0
// The parsed form of a template: expressions and statements, with every variable bound to a slot.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace quire::text::jinja {

using FilterFunction = Value (*)(Interpreter&, const Value& subject, Args& args);
using TestFunction = bool (*)(Interpreter&, const Value& subject, Args& args);

// Where a variable is stored: `up` functions outwards, then that slot of the frame.
struct VarRef {
  uint32_t up = 0;
  uint32_t slot = 0;
};

enum class ExprKind : uint8_t {
  kConst,
  kName,    // var
  kNsRef,   // var.constant, only as a target of set
  kTuple,   // kids
  kList,    // kids
  kDict,    // kids: key, value, key, value, ...
  kAttr,    // kids[0].constant
  kItem,    // kids[0][kids[1]]
  kSlice,   // kids[0][kids[1] : kids[2] : kids[3]], null if absent
  kCall,    // kids[0](args)
  kFilter,  // kids[0] | name(args); kids[0] is null in a filter block
  kTest,    // kids[0] is name(args)
  kNot,
  kAnd,
  kOr,
  kCond,     // kids[1] if kids[0] else kids[2]; kids[2] may be null
  kCompare,  // kids[0] ops[0] kids[1] ops[1] kids[2] ...
  kAdd,      // kids[0] + kids[1] + ...: a chain, so that long sums are neither deep nor copied repeatedly
  kConcat,   // kids joined by ~
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kNeg,
  kPos,
};

enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<Value, ExprPtr>> keyword;
  ExprPtr star, star_star;
};

// How a name is used: read, assigned by set, or bound as a parameter or loop target.
enum class NameUse : uint8_t { kLoad, kStore, kParam };

struct Expr {
  ExprKind kind = ExprKind::kConst;
  NameUse use = NameUse::kLoad;
  int line = 0;
  int depth = 1;  // of the subtree
  int name = -1;  // kName, kNsRef: index into Program::names
  VarRef var;
  Value constant;  // kConst: the value; kAttr, kNsRef: the attribute; kFilter, kTest: the name
  std::vector<ExprPtr> kids;
  std::vector<CompareOp> ops;
  std::unique_ptr<CallArgs> args;
  FilterFunction filter = nullptr;
  TestFunction test = nullptr;
};

// How a variable of a scope is initialised when the scope is entered.
struct Load {
  enum class Action : uint8_t { kResolve, kAlias, kUndefined } action = Action::kUndefined;
  uint32_t slot = 0;
  int name = -1;  // kResolve: the context variable
  VarRef from;    // kAlias: the outer variable
};
struct ScopeInfo {
  std::vector<Load> loads;
  std::vector<uint32_t> slots;  // all slots, cleared when the scope is left
};

// Code with its own frame at run time: the template, a macro, a call block, a recursive loop.
struct FunctionUnit {
  FunctionUnit* parent = nullptr;
  uint32_t slot_count = 0;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

enum class StmtKind : uint8_t {
  kOutput,       // exprs, printed one after another
  kIf,           // branches, body2 is the else
  kFor,          // for target in value if test: body, else body2
  kSet,          // target = value
  kSetBlock,     // target = body, through the filter `value` if there is one
  kMacro,        // macro
  kCallBlock,    // value is the call, macro the caller
  kFilterBlock,  // value is the filter, applied to body
  kWith,         // exprs: target, value, target, value, ...
  kDo,           // value
  kBreak,
  kContinue,
};

struct Branch {
  ExprPtr test;
  Block body;
};

struct MacroNode {
  struct Param {
    Value name;
    int name_id = -1;
    uint32_t slot = 0;
    ExprPtr fallback;
  };
  Value name;  // missing for a call block
  int line = 0;
  std::vector<Param> params;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false, explicit_caller = false;
  uint32_t caller_slot = 0, kwargs_slot = 0, varargs_slot = 0;
  Block body;
  ScopeInfo scope;
  FunctionUnit* unit = nullptr;
};

struct Stmt {
  StmtKind kind = StmtKind::kOutput;
  int line = 0;
  std::vector<ExprPtr> exprs;
  ExprPtr target, value, test;
  std::vector<Branch> branches;
  Block body, body2;
  ScopeInfo scope, scope2, test_scope;  // of body, of body2, of a loop's test
  ExprPtr test_target;                  // a loop's target, bound again in the scope of its test
  bool recursive = false;
  bool extended = false;  // the loop's body uses `loop`
  uint32_t loop_slot = 0;
  FunctionUnit* unit = nullptr;  // of a recursive loop
  std::unique_ptr<MacroNode> macro;
  VarRef macro_var;
  int macro_name = -1;
};

// A whole template. Immutable once parsed.
struct Program {
  std::vector<std::unique_ptr<StringObject>>
      strings;  // the first member, so that it outlives the Values that point into it
  Block body;
  ScopeInfo scope;
  FunctionUnit* unit = nullptr;
  std::vector<Value> names;  // of the variables, as strings
  std::vector<std::unique_ptr<FunctionUnit>> units;

  // The string constant with that text, created once.
  Value intern(std::string_view text);
  int name_id(std::string_view name);

 private:
  std::unordered_map<std::string, StringObject*> interned_;
  std::unordered_map<std::string, int> name_ids_;
};

}  // namespace quire::text::jinja
