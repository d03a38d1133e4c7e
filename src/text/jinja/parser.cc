// SPDX-License-Identifier: Apache-2.0
// The parser: statements and expressions with Jinja2's grammar and precedence.
#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {

namespace {

constexpr int kMaxTreeDepth = 400;
constexpr size_t kMaxArguments = 1000;

using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(Program& program, std::vector<Token> tokens, const ParseOptions& options)
      : program_(program), tokens_(std::move(tokens)), options_(options) {}

  void run() { program_.body = parse_block({}); }

 private:
  // --- Tokens ---
  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool skip_op(std::string_view op) {
    if (!current().is_op(op)) return false;
    take();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!current().is_name(name)) return false;
    take();
    return true;
  }

  [[noreturn]] void fail_expected(const std::string& what) const {
    fail_at(current().line, {"expected ", what, ", got '", describe(current()), "'"});
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail_expected("'" + std::string(op) + "'");
  }
  std::string expect_any_name() {
    if (current().kind != TokenKind::kName) fail_expected("a name");
    return take().text;
  }
  void expect_block_end() {
    if (current().kind != TokenKind::kBlockEnd) fail_expected("the end of the block tag");
    take();
  }

  // --- Nodes ---
  // Limits the recursion of the parser, so that a hostile template cannot exhaust the stack.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > parser_.options_.max_nesting) {
        fail_at(parser_.current().line,
                {"the template nests more than ", parser_.options_.max_nesting, " levels deep"});
      }
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  ExprPtr make(ExprKind kind, int line, std::vector<ExprPtr> kids = {}) {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    expr->kids = std::move(kids);
    for (const ExprPtr& kid : expr->kids) note_depth(*expr, kid);
    return expr;
  }
  static void note_depth(Expr& expr, const ExprPtr& kid) {
    if (kid == nullptr) return;
    expr.depth = std::max(expr.depth, kid->depth + 1);
    if (expr.depth > kMaxTreeDepth) fail_at(expr.line, "the expression is too long or too deeply nested");
  }
  template <typename... Kids>
  ExprPtr make_with(ExprKind kind, int line, Kids... kids) {
    std::vector<ExprPtr> all;
    (all.push_back(std::move(kids)), ...);
    return make(kind, line, std::move(all));
  }
  ExprPtr make_const(int line, Value value) {
    ExprPtr expr = make(ExprKind::kConst, line);
    expr->constant = std::move(value);
    return expr;
  }
  ExprPtr make_name(int line, const std::string& name, NameUse use) {
    ExprPtr expr = make(ExprKind::kName, line);
    expr->name = program_.name_id(name);
    expr->use = use;
    return expr;
  }
  static StmtPtr make_stmt(StmtKind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // --- Blocks ---
  bool at_any(Names names) const {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) { return current().is_name(name); });
  }

  // Parses statements up to one of the end tags, whose name is then the current token.
  Block parse_block(Names ends) {
    Block body;
    Stmt* output = nullptr;
    auto add_output = [&](ExprPtr expr) {
      if (output == nullptr) {
        body.push_back(make_stmt(StmtKind::kOutput, expr->line));
        output = body.back().get();
      }
      output->exprs.push_back(std::move(expr));
    };
    while (current().kind != TokenKind::kEnd) {
      const Token& token = current();
      if (token.kind == TokenKind::kData) {
        add_output(make_const(token.line, program_.intern(token.text)));
        take();
      } else if (token.kind == TokenKind::kVariableBegin) {
        take();
        add_output(parse_tuple());
        if (current().kind != TokenKind::kVariableEnd) fail_expected("the end of the print statement");
        take();
      } else {
        take();  // here the lexer returns only the beginning of a block
        output = nullptr;
        if (at_any(ends)) return body;
        StmtPtr stmt = parse_statement();
        if (stmt != nullptr) body.push_back(std::move(stmt));
        expect_block_end();
      }
    }
    if (ends.size() > 0) {
      std::string wanted;
      for (const std::string_view end : ends) wanted += (wanted.empty() ? "'" : ", '") + std::string(end) + "'";
      fail_at(current().line, {"unexpected end of template; expected ", wanted});
    }
    return body;
  }

  // The body of a statement: the end of its tag, then statements up to an end tag.
  Block parse_body(Names ends) {
    const Nesting nesting(*this);
    skip_op(":");
    expect_block_end();
    return parse_block(ends);
  }

  StmtPtr parse_statement() {
    const Token& token = current();
    if (token.kind != TokenKind::kName) fail_at(token.line, "tag name expected");
    const std::string& tag = token.text;
    if (tag == "for") return parse_for();
    if (tag == "if") return parse_if();
    if (tag == "set") return parse_set();
    if (tag == "macro") return parse_macro();
    if (tag == "call") return parse_call_block();
    if (tag == "filter") return parse_filter_block();
    if (tag == "with") return parse_with();
    if (tag == "print") return parse_print();
    if (tag == "generation") return parse_generation();
    if (tag == "do") {
      StmtPtr stmt = make_stmt(StmtKind::kDo, take().line);
      stmt->value = parse_tuple();
      return stmt;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail_at(token.line, {"'", tag, "' is outside of a loop"});
      return make_stmt(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, take().line);
    }
    static constexpr std::string_view kUnsupported[] = {"include", "import", "from", "extends", "block", "autoescape"};
    if (std::find(std::begin(kUnsupported), std::end(kUnsupported), tag) != std::end(kUnsupported)) {
      throw TemplateError{"the tag '" + tag + "' is not supported: a template cannot use other templates", token.line,
                          false, ErrorCode::kUnsupported};
    }
    fail_at(token.line, {"Encountered unknown tag ", repr_text(tag)});
  }

  StmtPtr parse_for() {
    StmtPtr stmt = make_stmt(StmtKind::kFor, take().line);
    const size_t target_at = at_;
    stmt->target = parse_target(NameUse::kParam, false);
    if (!skip_name("in")) fail_expected("'in'");
    stmt->value = parse_tuple(false);
    if (skip_name("if")) {
      stmt->test = parse_expression();
      const size_t resume = at_;
      at_ = target_at;
      stmt->test_target = parse_target(NameUse::kParam, false);
      at_ = resume;
    }
    stmt->recursive = skip_name("recursive");
    check_loop_target(*stmt->target);
    ++loops_;
    ++for_depth_;
    stmt->body = parse_body({"endfor", "else"});
    --loops_;
    if (take().text == "else") {
      stmt->body2 = parse_body({"endfor"});
      take();
    }
    --for_depth_;
    return stmt;
  }

  void check_loop_target(const Expr& target) {
    if (target.kind == ExprKind::kName && program_.names[static_cast<size_t>(target.name)].text() == "loop") {
      fail_at(target.line, "Can't assign to special loop variable in for-loop target");
    }
    for (const ExprPtr& kid : target.kids) check_loop_target(*kid);
  }

  StmtPtr parse_if() {
    StmtPtr stmt = make_stmt(StmtKind::kIf, take().line);
    while (true) {
      Branch branch;
      branch.test = parse_tuple(false);
      branch.body = parse_body({"elif", "else", "endif"});
      stmt->branches.push_back(std::move(branch));
      const std::string tag = take().text;
      if (tag == "elif") continue;
      if (tag == "else") {
        stmt->body2 = parse_body({"endif"});
        take();
      }
      break;
    }
    return stmt;
  }

  StmtPtr parse_set() {
    const int line = take().line;
    ExprPtr target = parse_target(NameUse::kStore, true);
    if (for_depth_ > 0) check_loop_target(*target);
    if (skip_op("=")) {
      StmtPtr stmt = make_stmt(StmtKind::kSet, line);
      stmt->target = std::move(target);
      stmt->value = parse_tuple();
      return stmt;
    }
    StmtPtr stmt = make_stmt(StmtKind::kSetBlock, line);
    stmt->target = std::move(target);
    stmt->value = parse_filters(nullptr, false);
    stmt->body = parse_body({"endset"});
    take();
    return stmt;
  }

  StmtPtr parse_with() {
    StmtPtr stmt = make_stmt(StmtKind::kWith, take().line);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt->exprs.empty()) expect_op(",");
      stmt->exprs.push_back(parse_target(NameUse::kParam, false));
      expect_op("=");
      stmt->exprs.push_back(parse_expression());
    }
    stmt->body = parse_body({"endwith"});
    take();
    return stmt;
  }

  // A generation block marks what the model should learn; for rendering it is only a scope.
  StmtPtr parse_generation() {
    StmtPtr stmt = make_stmt(StmtKind::kWith, take().line);
    const int loops = loops_;
    loops_ = 0;
    stmt->body = parse_body({"endgeneration"});
    loops_ = loops;
    take();
    return stmt;
  }

  StmtPtr parse_print() {
    StmtPtr stmt = make_stmt(StmtKind::kOutput, take().line);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt->exprs.empty()) expect_op(",");
      stmt->exprs.push_back(parse_expression());
    }
    return stmt;
  }

  void parse_signature(MacroNode& macro) {
    expect_op("(");
    bool defaults = false;
    while (!current().is_op(")")) {
      if (!macro.params.empty()) expect_op(",");
      MacroNode::Param param;
      const std::string name = expect_any_name();
      param.name = program_.intern(name);
      param.name_id = program_.name_id(name);
      if (skip_op("=")) {
        param.fallback = parse_expression();
        defaults = true;
      } else if (defaults) {
        fail_at(current().line, "non-default argument follows default argument");
      }
      for (const MacroNode::Param& other : macro.params) {
        if (other.name_id == param.name_id) fail_at(current().line, {"duplicate argument ", repr_text(name)});
      }
      macro.params.push_back(std::move(param));
      if (macro.params.size() > kMaxArguments) fail_at(current().line, "a macro has too many arguments");
    }
    expect_op(")");
  }

  Block parse_macro_body(Names ends) {
    const int loops = loops_;
    loops_ = 0;
    Block body = parse_body(ends);
    loops_ = loops;
    return body;
  }

  StmtPtr parse_macro() {
    StmtPtr stmt = make_stmt(StmtKind::kMacro, take().line);
    stmt->macro = std::make_unique<MacroNode>();
    stmt->macro->line = stmt->line;
    const std::string name = expect_any_name();
    stmt->macro->name = program_.intern(name);
    stmt->macro_name = program_.name_id(name);
    parse_signature(*stmt->macro);
    stmt->macro->body = parse_macro_body({"endmacro"});
    take();
    return stmt;
  }

  StmtPtr parse_call_block() {
    StmtPtr stmt = make_stmt(StmtKind::kCallBlock, take().line);
    stmt->macro = std::make_unique<MacroNode>();
    stmt->macro->line = stmt->line;
    if (current().is_op("(")) parse_signature(*stmt->macro);
    stmt->value = parse_expression();
    if (stmt->value->kind != ExprKind::kCall) fail_at(stmt->line, "expected call");
    stmt->macro->body = parse_macro_body({"endcall"});
    take();
    return stmt;
  }

  StmtPtr parse_filter_block() {
    StmtPtr stmt = make_stmt(StmtKind::kFilterBlock, take().line);
    stmt->value = parse_filters(nullptr, true);
    stmt->body = parse_body({"endfilter"});
    take();
    return stmt;
  }

  // --- Targets ---
  ExprPtr parse_target_part(NameUse use, bool with_namespace) {
    if (current().kind == TokenKind::kName && !is_constant_name(current().text)) {
      const Token& token = take();
      if (with_namespace && skip_op(".")) {
        ExprPtr ref = make(ExprKind::kNsRef, token.line);
        ref->name = program_.name_id(token.text);
        ref->constant = program_.intern(expect_any_name());
        return ref;
      }
      return make_name(token.line, token.text, use);
    }
    const Nesting nesting(*this);
    if (skip_op("(")) {
      ExprPtr inner = parse_target_list(use, with_namespace, true);
      expect_op(")");
      return inner;
    }
    fail_at(current().line, {"can't assign to '", describe(current()), "'"});
  }

  ExprPtr parse_target_list(NameUse use, bool with_namespace, bool parentheses) {
    const int line = current().line;
    std::vector<ExprPtr> parts;
    bool tuple = false;
    while (true) {
      if (tuple_end()) break;
      parts.push_back(parse_target_part(use, with_namespace));
      if (!skip_op(",")) break;
      tuple = true;
    }
    if (!tuple && parts.size() == 1) return std::move(parts[0]);
    if (parts.empty() && !parentheses) fail_at(line, {"Expected an expression, got '", describe(current()), "'"});
    return make(ExprKind::kTuple, line, std::move(parts));
  }

  ExprPtr parse_target(NameUse use, bool with_namespace) { return parse_target_list(use, with_namespace, false); }

  // --- Expressions, loosest first ---
  bool tuple_end() const {
    return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd || current().is_op(")");
  }

  ExprPtr parse_tuple(bool with_condition = true, bool parentheses = false) {
    const int line = current().line;
    std::vector<ExprPtr> parts;
    bool tuple = false;
    while (true) {
      if (tuple_end()) break;
      parts.push_back(with_condition ? parse_expression() : parse_or());
      if (!skip_op(",")) break;
      tuple = true;
    }
    if (!tuple) {
      if (!parts.empty()) return std::move(parts[0]);
      if (!parentheses) fail_at(line, {"Expected an expression, got '", describe(current()), "'"});
    }
    return make(ExprKind::kTuple, line, std::move(parts));
  }

  ExprPtr parse_expression() {
    const Nesting nesting(*this);
    const int line = current().line;
    ExprPtr value = parse_or();
    while (skip_name("if")) {
      ExprPtr test = parse_or();
      ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
      value = make_with(ExprKind::kCond, line, std::move(test), std::move(value), std::move(otherwise));
    }
    return value;
  }

  ExprPtr parse_or() {
    const int line = current().line;
    ExprPtr left = parse_and();
    while (skip_name("or")) left = make_with(ExprKind::kOr, line, std::move(left), parse_and());
    return left;
  }

  ExprPtr parse_and() {
    const int line = current().line;
    ExprPtr left = parse_not();
    while (skip_name("and")) left = make_with(ExprKind::kAnd, line, std::move(left), parse_not());
    return left;
  }

  ExprPtr parse_not() {
    if (!current().is_name("not")) return parse_compare();
    const Nesting nesting(*this);
    const int line = take().line;
    return make_with(ExprKind::kNot, line, parse_not());
  }

  bool compare_operator(CompareOp* op) {
    static constexpr std::pair<std::string_view, CompareOp> kOperators[] = {
        {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
        {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
    for (const auto& [text, value] : kOperators) {
      if (skip_op(text)) {
        *op = value;
        return true;
      }
    }
    if (skip_name("in")) {
      *op = CompareOp::kIn;
      return true;
    }
    if (current().is_name("not") && look().is_name("in")) {
      take();
      take();
      *op = CompareOp::kNotIn;
      return true;
    }
    return false;
  }

  ExprPtr parse_compare() {
    const int line = current().line;
    ExprPtr first = parse_sum();
    CompareOp op;
    if (!compare_operator(&op)) return first;
    ExprPtr compare = make_with(ExprKind::kCompare, line, std::move(first));
    do {
      compare->ops.push_back(op);
      compare->kids.push_back(parse_sum());
      note_depth(*compare, compare->kids.back());
    } while (compare_operator(&op));
    return compare;
  }

  ExprPtr parse_sum() {
    const Expr* chain = nullptr;  // the sum that another + can extend
    ExprPtr left = parse_concat();
    while (current().is_op("+") || current().is_op("-")) {
      const Token& token = take();
      ExprPtr right = parse_concat();
      if (token.text == "-") {
        left = make_with(ExprKind::kSub, token.line, std::move(left), std::move(right));
      } else if (left->kind == ExprKind::kAdd && chain == left.get()) {
        left->kids.push_back(std::move(right));
        note_depth(*left, left->kids.back());
      } else {
        left = make_with(ExprKind::kAdd, token.line, std::move(left), std::move(right));
      }
      chain = left.get();
    }
    return left;
  }

  ExprPtr parse_concat() {
    const int line = current().line;
    ExprPtr first = parse_product();
    if (current().is_op("~")) {
      std::vector<ExprPtr> parts;
      parts.push_back(std::move(first));
      while (skip_op("~")) parts.push_back(parse_product());
      first = make(ExprKind::kConcat, line, std::move(parts));
    }
    return first;
  }

  ExprPtr parse_product() {
    ExprPtr left = parse_power();
    while (true) {
      const Token& token = current();
      ExprKind kind;
      if (token.is_op("*")) {
        kind = ExprKind::kMul;
      } else if (token.is_op("/")) {
        kind = ExprKind::kDiv;
      } else if (token.is_op("//")) {
        kind = ExprKind::kFloorDiv;
      } else if (token.is_op("%")) {
        kind = ExprKind::kMod;
      } else {
        return left;
      }
      take();
      left = make_with(kind, token.line, std::move(left), parse_power());
    }
  }

  ExprPtr parse_power() {
    const int line = current().line;
    ExprPtr left = parse_unary(true);
    while (skip_op("**")) left = make_with(ExprKind::kPow, line, std::move(left), parse_unary(true));
    return left;
  }

  ExprPtr parse_unary(bool with_filters) {
    const Nesting nesting(*this);
    const Token& token = current();
    ExprPtr expr;
    if (token.is_op("-") || token.is_op("+")) {
      take();
      expr = make_with(token.text == "-" ? ExprKind::kNeg : ExprKind::kPos, token.line, parse_unary(false));
    } else {
      expr = parse_primary();
    }
    expr = parse_postfix(std::move(expr));
    return with_filters ? parse_filter_expr(std::move(expr)) : std::move(expr);
  }

  static bool is_constant_name(std::string_view name) {
    return name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None";
  }

  ExprPtr parse_primary() {
    const Token& token = current();
    switch (token.kind) {
      case TokenKind::kName:
        take();
        if (token.text == "true" || token.text == "True") return make_const(token.line, Value::boolean(true));
        if (token.text == "false" || token.text == "False") return make_const(token.line, Value::boolean(false));
        if (token.text == "none" || token.text == "None") return make_const(token.line, Value::none());
        return make_name(token.line, token.text, NameUse::kLoad);
      case TokenKind::kString: {
        std::string text = take().text;
        while (current().kind == TokenKind::kString) text += take().text;
        return make_const(token.line, program_.intern(text));
      }
      case TokenKind::kInteger:
        return make_const(token.line, Value::integer(take().integer));
      case TokenKind::kFloat:
        return make_const(token.line, Value::real(take().real));
      default:
        break;
    }
    if (skip_op("(")) {
      ExprPtr inner = parse_tuple(true, true);
      expect_op(")");
      return inner;
    }
    if (token.is_op("[")) return parse_list();
    if (token.is_op("{")) return parse_dict();
    fail_at(token.line, {"unexpected '", describe(token), "'"});
  }

  ExprPtr parse_list() {
    const int line = take().line;
    std::vector<ExprPtr> items;
    while (!current().is_op("]")) {
      if (!items.empty()) expect_op(",");
      if (current().is_op("]")) break;
      items.push_back(parse_expression());
    }
    expect_op("]");
    return make(ExprKind::kList, line, std::move(items));
  }

  ExprPtr parse_dict() {
    const int line = take().line;
    std::vector<ExprPtr> items;
    while (!current().is_op("}")) {
      if (!items.empty()) expect_op(",");
      if (current().is_op("}")) break;
      items.push_back(parse_expression());
      expect_op(":");
      items.push_back(parse_expression());
    }
    expect_op("}");
    return make(ExprKind::kDict, line, std::move(items));
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    while (true) {
      if (current().is_op(".")) {
        expr = parse_dot(std::move(expr));
      } else if (current().is_op("[")) {
        expr = parse_subscript(std::move(expr));
      } else if (current().is_op("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_dot(ExprPtr expr) {
    const int line = take().line;
    const Token& token = take();
    if (token.kind == TokenKind::kName) {
      ExprPtr attr = make_with(ExprKind::kAttr, line, std::move(expr));
      attr->constant = program_.intern(token.text);
      return attr;
    }
    if (token.kind != TokenKind::kInteger) fail_at(token.line, "expected name or number");
    return make_with(ExprKind::kItem, line, std::move(expr), make_const(token.line, Value::integer(token.integer)));
  }

  ExprPtr parse_subscript(ExprPtr expr) {
    const int line = take().line;
    std::vector<ExprPtr> keys;
    while (!current().is_op("]")) {
      if (!keys.empty()) expect_op(",");
      keys.push_back(parse_subscribed());
    }
    expect_op("]");
    auto is_open_slice = [](const ExprPtr& key) { return key->kind == ExprKind::kSlice && key->kids[0] == nullptr; };
    if (keys.size() == 1 && is_open_slice(keys[0])) {
      ExprPtr sliced = std::move(keys[0]);
      sliced->kids[0] = std::move(expr);
      note_depth(*sliced, sliced->kids[0]);
      return sliced;
    }
    for (const ExprPtr& key : keys) {
      if (is_open_slice(key)) fail_at(line, "a slice cannot be part of a tuple");
    }
    if (keys.size() == 1) return make_with(ExprKind::kItem, line, std::move(expr), std::move(keys[0]));
    ExprPtr tuple = make(ExprKind::kTuple, line, std::move(keys));
    return make_with(ExprKind::kItem, line, std::move(expr), std::move(tuple));
  }

  // One index, or a slice whose kids[0] is not set yet.
  ExprPtr parse_subscribed() {
    const int line = current().line;
    ExprPtr start;
    if (!current().is_op(":")) {
      start = parse_expression();
      if (!current().is_op(":")) return start;
    }
    take();
    auto part = [&]() -> ExprPtr {
      if (current().is_op(":") || current().is_op("]") || current().is_op(",")) return nullptr;
      return parse_expression();
    };
    ExprPtr stop = part();
    ExprPtr step;
    if (skip_op(":")) step = part();
    return make_with(ExprKind::kSlice, line, ExprPtr(), std::move(start), std::move(stop), std::move(step));
  }

  std::unique_ptr<CallArgs> parse_args() {
    const int line = current().line;
    expect_op("(");
    auto args = std::make_unique<CallArgs>();
    auto ensure = [&](bool ok) {
      if (!ok) fail_at(line, "invalid syntax for function call expression");
    };
    bool comma = false;
    while (!current().is_op(")")) {
      if (comma) {
        expect_op(",");
        if (current().is_op(")")) break;
      }
      comma = true;
      if (skip_op("*")) {
        ensure(args->star == nullptr && args->star_star == nullptr);
        args->star = parse_expression();
      } else if (skip_op("**")) {
        ensure(args->star_star == nullptr);
        args->star_star = parse_expression();
      } else if (current().kind == TokenKind::kName && look().is_op("=")) {
        ensure(args->star_star == nullptr);
        const Value name = program_.intern(take().text);
        take();
        for (const auto& [other, value] : args->keyword) {
          if (other.text() == name.text()) fail_at(line, {"keyword argument repeated: ", name.text()});
        }
        args->keyword.emplace_back(name, parse_expression());
        if (args->keyword.size() > kMaxArguments) fail_at(line, "a call has too many keyword arguments");
      } else {
        ensure(args->star == nullptr && args->star_star == nullptr && args->keyword.empty());
        args->positional.push_back(parse_expression());
      }
    }
    expect_op(")");
    return args;
  }

  static void note_args(Expr& expr) {
    for (const ExprPtr& arg : expr.args->positional) note_depth(expr, arg);
    for (const auto& [name, arg] : expr.args->keyword) note_depth(expr, arg);
    note_depth(expr, expr.args->star);
    note_depth(expr, expr.args->star_star);
  }

  ExprPtr parse_call(ExprPtr callee) {
    ExprPtr call = make_with(ExprKind::kCall, current().line, std::move(callee));
    call->args = parse_args();
    note_args(*call);
    return call;
  }

  ExprPtr parse_filter_expr(ExprPtr expr) {
    while (true) {
      if (current().is_op("|")) {
        expr = parse_filters(std::move(expr), false);
      } else if (current().is_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (current().is_op("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  std::string dotted_name() {
    std::string name = expect_any_name();
    while (skip_op(".")) name += "." + expect_any_name();
    return name;
  }

  ExprPtr parse_filters(ExprPtr expr, bool inline_start) {
    while (inline_start || current().is_op("|")) {
      if (!inline_start) take();
      inline_start = false;
      const int line = current().line;
      const std::string name = dotted_name();
      ExprPtr filter = make_with(ExprKind::kFilter, line, std::move(expr));
      filter->constant = program_.intern(name);
      filter->filter = find_filter(name);
      filter->args = current().is_op("(") ? parse_args() : std::make_unique<CallArgs>();
      note_args(*filter);
      expr = std::move(filter);
    }
    return expr;
  }

  bool starts_test_argument() const {
    if (current().kind == TokenKind::kName) return !at_any({"else", "or", "and"});
    return current().kind == TokenKind::kString || current().kind == TokenKind::kInteger ||
           current().kind == TokenKind::kFloat || current().is_op("[") || current().is_op("{");
  }

  ExprPtr parse_test(ExprPtr expr) {
    const int line = take().line;
    const bool negated = skip_name("not");
    const std::string name = dotted_name();
    ExprPtr test = make_with(ExprKind::kTest, line, std::move(expr));
    test->constant = program_.intern(name);
    test->test = find_test(name);
    if (current().is_op("(")) {
      test->args = parse_args();
    } else {
      test->args = std::make_unique<CallArgs>();
      if (starts_test_argument()) {
        if (current().is_name("is")) fail_at(line, "You cannot chain multiple tests with is");
        const Nesting nesting(*this);
        test->args->positional.push_back(parse_postfix(parse_primary()));
      }
    }
    note_args(*test);
    return negated ? make_with(ExprKind::kNot, line, std::move(test)) : std::move(test);
  }

  Program& program_;
  std::vector<Token> tokens_;
  const ParseOptions& options_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;      // loops that break and continue can refer to
  int for_depth_ = 0;  // all open loops, including those outside of the macro
};

}  // namespace

std::shared_ptr<Program> parse_program(std::string_view source, const ParseOptions& options) {
  if (source.size() > options.max_source_bytes) {
    fail({"the template has ", source.size(), " bytes; at most ", options.max_source_bytes, " are allowed"});
  }
  auto program = std::make_shared<Program>();
  Parser(*program, tokenize(source, options), options).run();
  bind_scopes(*program);
  return program;
}

}  // namespace quire::text::jinja
