// SPDX-License-Identifier: Apache-2.0
// Binds variables to slots by Jinja2's rules of scope, which are static. A loop, macro, with or block assignment opens
// a scope; a name that is assigned anywhere in a scope belongs to it, and is initially the outer variable of that name,
// or undefined; the branches of a condition share their scope. So a scope alone determines where each of its names is
// stored.
#include <algorithm>
#include <map>
#include <set>

#include "text/jinja/parser.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {
namespace {

// The names of one scope while they are collected. Conditions add layers, so that what one branch defines is not
// visible in the next; closing a condition merges its layers into the one below.
class Scope {
 public:
  Scope(Scope* parent, FunctionUnit* unit) : parent_(parent), unit_(unit), layers_(1) {}

  FunctionUnit* unit() const { return unit_; }

  void load(int name) {
    if (!known(name)) define(name, {Load::Action::kResolve, slot(name), name, {}});
  }
  void store(int name) {
    layers_.back().stores.insert(name);
    if (known_here(name)) return;
    define(name, outer_or(name, Load::Action::kUndefined));
  }
  uint32_t declare(int name) {
    layers_.back().stores.insert(name);
    params_.insert(name);
    define(name, {Load::Action::kUndefined, slot(name), name, {}});
    return slot(name);
  }

  // Where the name is stored, seen from code of `from`.
  VarRef reference(int name, const FunctionUnit* from) {
    Scope* scope = this;
    while (scope != nullptr && !scope->known_here(name)) scope = scope->parent_;
    if (scope == nullptr) {
      load(name);
      scope = this;
    }
    VarRef ref;
    for (const FunctionUnit* unit = from; unit != scope->unit_; unit = unit->parent) ++ref.up;
    ref.slot = scope->slot(name);
    return ref;
  }

  void open_branch() { layers_.emplace_back(); }
  void close_branch(std::vector<int>* stored) {
    Layer top = std::move(layers_.back());
    layers_.pop_back();
    stored->insert(stored->end(), top.stores.begin(), top.stores.end());
    closed_.push_back(std::move(top));
  }
  // Merges the last `count` closed branches into the current layer; what a branch assigned may be the outer value.
  void merge_branches(size_t count, const std::vector<int>& stored) {
    std::vector<int> fresh;
    for (const int name : stored) {
      if (!stored_here(name)) fresh.push_back(name);
    }
    for (size_t i = closed_.size() - count; i < closed_.size(); ++i) {
      for (auto& [name, load] : closed_[i].loads) layers_.back().loads[name] = load;
      layers_.back().stores.insert(closed_[i].stores.begin(), closed_[i].stores.end());
    }
    closed_.resize(closed_.size() - count);
    for (const int name : fresh) layers_.back().loads[name] = outer_or(name, Load::Action::kResolve);
  }

  // The loads on entry of the scope; parameters are not among them.
  void finish(ScopeInfo* info) const {
    for (const auto& [name, load] : layers_[0].loads) {
      info->slots.push_back(load.slot);
      if (params_.count(name) == 0) info->loads.push_back(load);
    }
  }

 private:
  struct Layer {
    std::map<int, Load> loads;
    std::set<int> stores;
  };

  bool known_here(int name) const {
    return std::any_of(layers_.begin(), layers_.end(), [&](const Layer& layer) { return layer.loads.count(name) > 0; });
  }
  bool stored_here(int name) const {
    return std::any_of(layers_.begin(), layers_.end(),
                       [&](const Layer& layer) { return layer.stores.count(name) > 0; });
  }
  bool known(int name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_) {
      if (scope->known_here(name)) return true;
    }
    return false;
  }
  Load outer_or(int name, Load::Action fallback) {
    Load load{fallback, slot(name), name, {}};
    if (parent_ != nullptr && parent_->known(name)) {
      load.action = Load::Action::kAlias;
      load.from = parent_->reference(name, unit_);
    }
    return load;
  }
  void define(int name, const Load& load) { layers_.back().loads[name] = load; }
  uint32_t slot(int name) {
    const auto [it, added] = slots_.try_emplace(name, unit_->slot_count);
    if (added) ++unit_->slot_count;
    return it->second;
  }

  Scope* parent_;
  FunctionUnit* unit_;
  std::vector<Layer> layers_;
  std::vector<Layer> closed_;
  std::set<int> params_;
  std::map<int, uint32_t> slots_;
};

template <typename F>
void each_argument(const CallArgs& args, const F& f) {
  for (const ExprPtr& arg : args.positional) f(*arg);
  for (const auto& [name, arg] : args.keyword) f(*arg);
  if (args.star != nullptr) f(*args.star);
  if (args.star_star != nullptr) f(*args.star_star);
}

template <typename F>
void each_child(const Expr& expr, const F& f) {
  for (const ExprPtr& kid : expr.kids) {
    if (kid != nullptr) f(*kid);
  }
  if (expr.args != nullptr) each_argument(*expr.args, f);
}

// Whether some names are read before they are bound in a tree.
class UndeclaredFinder {
 public:
  explicit UndeclaredFinder(std::set<int> names) : names_(std::move(names)) {}
  std::set<int> found;

  void visit(const Block& block) {
    for (const StmtPtr& stmt : block) visit(*stmt);
  }

 private:
  void visit(const Expr& expr) {
    if (expr.kind == ExprKind::kName) name(expr.name, expr.use == NameUse::kLoad);
    each_child(expr, [&](const Expr& kid) { visit(kid); });
  }
  void visit_if(const ExprPtr& expr) {
    if (expr != nullptr) visit(*expr);
  }
  void name(int id, bool load) {
    if (names_.count(id) == 0) return;
    if (load) {
      found.insert(id);
    } else {
      names_.erase(id);
    }
  }
  void visit(const Stmt& stmt) {
    for (const ExprPtr& expr : stmt.exprs) visit(*expr);
    visit_if(stmt.target);
    visit_if(stmt.value);
    for (const Branch& branch : stmt.branches) {
      visit(*branch.test);
      visit(branch.body);
    }
    visit(stmt.body);
    visit(stmt.body2);
    visit_if(stmt.test);
    if (stmt.macro != nullptr) {
      for (const MacroNode::Param& param : stmt.macro->params) name(param.name_id, false);
      for (const MacroNode::Param& param : stmt.macro->params) visit_if(param.fallback);
      visit(stmt.macro->body);
    }
  }

  std::set<int> names_;
};

// First collects the names of a scope, then binds the code in it, scope by scope from the outside in.
class Binder {
 public:
  explicit Binder(Program& program) : program_(program) {
    loop_ = program_.name_id("loop");
    caller_ = program_.name_id("caller");
    kwargs_ = program_.name_id("kwargs");
    varargs_ = program_.name_id("varargs");
  }

  void run() {
    program_.unit = new_unit(nullptr);
    Scope scope(nullptr, program_.unit);
    find(program_.body, scope);
    bind(program_.body, scope, false);
    scope.finish(&program_.scope);
  }

 private:
  FunctionUnit* new_unit(FunctionUnit* parent) {
    program_.units.push_back(std::make_unique<FunctionUnit>());
    program_.units.back()->parent = parent;
    return program_.units.back().get();
  }

  // --- Finding names ---
  void find(const Expr& expr, Scope& scope) {
    switch (expr.kind) {
      case ExprKind::kName:
        if (expr.use == NameUse::kLoad) {
          scope.load(expr.name);
        } else if (expr.use == NameUse::kStore) {
          scope.store(expr.name);
        } else {
          scope.declare(expr.name);
        }
        return;
      case ExprKind::kNsRef:
        scope.load(expr.name);
        return;
      default:
        each_child(expr, [&](const Expr& kid) { find(kid, scope); });
    }
  }

  void find(const Block& block, Scope& scope) {
    for (const StmtPtr& stmt : block) find(*stmt, scope);
  }

  void find_branch(const Block& block, Scope& scope, std::vector<int>* stored) {
    scope.open_branch();
    find(block, scope);
    scope.close_branch(stored);
  }

  void find_if(const Stmt& stmt, Scope& scope) {
    find(*stmt.branches[0].test, scope);
    std::vector<int> stored;
    find_branch(stmt.branches[0].body, scope, &stored);
    // All elif branches together count as one branch, in which each sees the previous ones.
    scope.open_branch();
    for (size_t i = 1; i < stmt.branches.size(); ++i) {
      find(*stmt.branches[i].test, scope);
      std::vector<int> inner;
      find_branch(stmt.branches[i].body, scope, &inner);
      scope.merge_branches(1, inner);
    }
    scope.close_branch(&stored);
    find_branch(stmt.body2, scope, &stored);
    scope.merge_branches(3, stored);
  }

  void find(const Stmt& stmt, Scope& scope) {
    switch (stmt.kind) {
      case StmtKind::kOutput:
        for (const ExprPtr& expr : stmt.exprs) find(*expr, scope);
        return;
      case StmtKind::kIf:
        find_if(stmt, scope);
        return;
      case StmtKind::kSet:
        find(*stmt.value, scope);
        find(*stmt.target, scope);
        return;
      case StmtKind::kSetBlock:
        find(*stmt.target, scope);
        return;
      case StmtKind::kMacro:
        scope.store(stmt.macro_name);
        return;
      case StmtKind::kWith:
        for (size_t i = 1; i < stmt.exprs.size(); i += 2) find(*stmt.exprs[i], scope);
        return;
      case StmtKind::kFor:
      case StmtKind::kDo:
      case StmtKind::kCallBlock:
      case StmtKind::kFilterBlock:
        find(*stmt.value, scope);
        return;
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        return;
    }
  }

  // --- Binding ---
  // `soft`: inside a condition of this scope, where an unknown filter is an error only when it runs.
  void bind(Expr& expr, Scope& scope, bool soft) {
    if (expr.kind == ExprKind::kName || expr.kind == ExprKind::kNsRef) {
      expr.var = scope.reference(expr.name, scope.unit());
      return;
    }
    const bool unknown = (expr.kind == ExprKind::kFilter && expr.filter == nullptr) ||
                         (expr.kind == ExprKind::kTest && expr.test == nullptr);
    if (unknown && !soft) {
      const std::string what = expr.kind == ExprKind::kFilter ? "filter" : "test";
      throw TemplateError{"No " + what + " named " + repr_text(expr.constant.text()) + ".", expr.line, false,
                          ErrorCode::kInvalidArgument};
    }
    const bool inner_soft = soft || expr.kind == ExprKind::kCond;
    for (const ExprPtr& kid : expr.kids) {
      if (kid != nullptr) bind(*kid, scope, inner_soft);
    }
    if (expr.args == nullptr) return;
    for (const ExprPtr& arg : expr.args->positional) bind(*arg, scope, inner_soft);
    for (const auto& [name, arg] : expr.args->keyword) bind(*arg, scope, inner_soft);
    if (expr.args->star != nullptr) bind(*expr.args->star, scope, inner_soft);
    if (expr.args->star_star != nullptr) bind(*expr.args->star_star, scope, inner_soft);
  }

  void bind(Block& block, Scope& scope, bool soft) {
    for (const StmtPtr& stmt : block) bind(*stmt, scope, soft);
  }

  void bind(Stmt& stmt, Scope& scope, bool soft) {
    switch (stmt.kind) {
      case StmtKind::kOutput:
        for (const ExprPtr& expr : stmt.exprs) bind(*expr, scope, soft);
        return;
      case StmtKind::kIf:
        for (Branch& branch : stmt.branches) {
          bind(*branch.test, scope, true);
          bind(branch.body, scope, true);
        }
        bind(stmt.body2, scope, true);
        return;
      case StmtKind::kFor:
        bind_for(stmt, scope, soft);
        return;
      case StmtKind::kSet:
        bind(*stmt.value, scope, soft);
        bind(*stmt.target, scope, soft);
        return;
      case StmtKind::kSetBlock:
      case StmtKind::kFilterBlock:
        bind_captured(stmt, scope, soft);
        return;
      case StmtKind::kMacro:
        bind_macro(*stmt.macro, scope);
        stmt.macro_var = scope.reference(stmt.macro_name, scope.unit());
        return;
      case StmtKind::kCallBlock:
        bind_macro(*stmt.macro, scope);
        bind(*stmt.value, scope, soft);
        return;
      case StmtKind::kWith:
        bind_with(stmt, scope, soft);
        return;
      case StmtKind::kDo:
        bind(*stmt.value, scope, soft);
        return;
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        return;
    }
  }

  void bind_for(Stmt& stmt, Scope& scope, bool soft) {
    bind(*stmt.value, scope, soft);
    FunctionUnit* unit = scope.unit();
    if (stmt.recursive) unit = stmt.unit = new_unit(unit);
    UndeclaredFinder finder({loop_});
    finder.visit(stmt.body);
    stmt.extended = stmt.recursive || !finder.found.empty();
    Scope body(&scope, unit);
    if (stmt.extended) stmt.loop_slot = body.declare(loop_);
    find(*stmt.target, body);
    find(stmt.body, body);
    bind(*stmt.target, body, false);
    bind(stmt.body, body, false);
    body.finish(&stmt.scope);
    if (!stmt.body2.empty()) {
      Scope otherwise(&scope, unit);
      find(stmt.body2, otherwise);
      bind(stmt.body2, otherwise, false);
      otherwise.finish(&stmt.scope2);
    }
    if (stmt.test != nullptr) {
      Scope test(&scope, unit);
      find(*stmt.test_target, test);
      find(*stmt.test, test);
      bind(*stmt.test_target, test, false);
      bind(*stmt.test, test, false);
      test.finish(&stmt.test_scope);
    }
  }

  void bind_captured(Stmt& stmt, Scope& scope, bool soft) {
    if (stmt.target != nullptr) bind(*stmt.target, scope, soft);
    Scope inner(&scope, scope.unit());
    find(stmt.body, inner);
    if (stmt.value != nullptr) find(*stmt.value, inner);
    bind(stmt.body, inner, false);
    if (stmt.value != nullptr) bind(*stmt.value, inner, false);
    inner.finish(&stmt.scope);
  }

  void bind_with(Stmt& stmt, Scope& scope, bool soft) {
    Scope inner(&scope, scope.unit());
    for (size_t i = 0; i < stmt.exprs.size(); i += 2) find(*stmt.exprs[i], inner);
    find(stmt.body, inner);
    for (size_t i = 0; i < stmt.exprs.size(); i += 2) {
      bind(*stmt.exprs[i], inner, false);
      bind(*stmt.exprs[i + 1], scope, soft);
    }
    bind(stmt.body, inner, false);
    inner.finish(&stmt.scope);
  }

  void bind_macro(MacroNode& macro, Scope& outer) {
    macro.unit = new_unit(outer.unit());
    Scope scope(&outer, macro.unit);
    for (MacroNode::Param& param : macro.params) {
      param.slot = scope.declare(param.name_id);
      if (param.name_id == caller_) macro.explicit_caller = true;
    }
    for (MacroNode::Param& param : macro.params) {
      if (param.fallback != nullptr) find(*param.fallback, scope);
    }
    find(macro.body, scope);
    UndeclaredFinder finder({caller_, kwargs_, varargs_});
    finder.visit(macro.body);
    auto is_param = [&](int name) {
      return std::any_of(macro.params.begin(), macro.params.end(), [&](const auto& p) { return p.name_id == name; });
    };
    if (finder.found.count(caller_) > 0) {
      macro.uses_caller = true;
      if (!macro.explicit_caller) {
        macro.caller_slot = scope.declare(caller_);
      } else if (std::any_of(macro.params.begin(), macro.params.end(),
                             [&](const auto& p) { return p.name_id == caller_ && p.fallback == nullptr; })) {
        throw TemplateError{"a macro's argument named 'caller' must have a default", macro.line, false,
                            ErrorCode::kInvalidArgument};
      }
    }
    macro.uses_kwargs = finder.found.count(kwargs_) > 0 && !is_param(kwargs_);
    if (macro.uses_kwargs) macro.kwargs_slot = scope.declare(kwargs_);
    macro.uses_varargs = finder.found.count(varargs_) > 0 && !is_param(varargs_);
    if (macro.uses_varargs) macro.varargs_slot = scope.declare(varargs_);
    for (MacroNode::Param& param : macro.params) {
      if (param.fallback != nullptr) bind(*param.fallback, scope, false);
    }
    bind(macro.body, scope, false);
    scope.finish(&macro.scope);
  }

  Program& program_;
  int loop_, caller_, kwargs_, varargs_;
};

}  // namespace

void bind_scopes(Program& program) {
  Binder(program).run();
}

}  // namespace quire::text::jinja
