// SPDX-License-Identifier: Apache-2.0
// The JSON Schema front end: from a document to the rules of a grammar.
#include <utility>

#include "grammar/compile.h"
#include "grammar/schema_document.h"
#include "grammar/schema_emitter.h"
#include "grammar/schema_evaluator.h"

namespace quire::grammar {

namespace schema {

SchemaEmitter::SchemaEmitter(Grammar& grammar, SchemaEvaluator& evaluator, const JsonOptions& options,
                             Regex white_space)
    : grammar_(grammar),
      store_(grammar.regexes()),
      evaluator_(evaluator),
      options_(options),
      white_space_(white_space) {}

// A mark with white space at its sides.
Regex SchemaEmitter::spaced(std::string_view mark, bool left, bool right) {
  Regex out = store_.literal(mark);
  if (left) out = store_.concat(white_space_, out);
  return right ? store_.concat(out, white_space_) : out;
}

Symbol SchemaEmitter::empty_brackets(std::string_view left, std::string_view right) {
  return grammar_.terminal(store_.concat(spaced(left, false, true), store_.literal(right)));
}

Result<bool> SchemaEmitter::never(ConjId id) {
  if (id == kAny || id == kNever) return id == kNever;
  QUIRE_ASSIGN(const auto set, evaluator_.values(id));
  return evaluator_.is_none(*set);
}

// Appends the symbols of all values but arrays and objects.
Status SchemaEmitter::scalars(const ValueSet& set, std::vector<Symbol>& out) {
  std::vector<Regex> words;
  if (set.has_null) words.push_back(store_.literal("null"));
  if (set.has_true) words.push_back(store_.literal("true"));
  if (set.has_false) words.push_back(store_.literal("false"));
  if (!words.empty()) out.push_back(grammar_.terminal(store_.either(words)));
  if (!evaluator_.numbers().is_none(set.numbers))
    out.push_back(grammar_.terminal(evaluator_.numbers().text(set.numbers)));
  if (!evaluator_.strings().is_none(set.strings))
    out.push_back(grammar_.terminal(evaluator_.strings().text(set.strings)));
  return evaluator_.spend(1);
}

Result<Symbol> SchemaEmitter::value(ConjId id) {
  if (const auto known = known_.find(id); known != known_.end()) return known->second;
  QUIRE_ASSIGN(const auto set, evaluator_.values(id));
  Symbol out;
  if (set->arrays.empty() && set->objects.empty()) {
    std::vector<Symbol> options;
    QUIRE_TRY(scalars(*set, options));
    out = grammar_.choice(options);
  } else {
    out = grammar_.rule("");
    pending_.emplace_back(id, out);
  }
  known_.emplace(id, out);
  return out;
}

Status SchemaEmitter::finish() {
  while (!pending_.empty()) {
    const auto [id, rule] = pending_.front();
    pending_.pop_front();
    QUIRE_TRY(grammar_.status());
    QUIRE_ASSIGN(const auto set, evaluator_.values(id));
    std::vector<Symbol> options;
    QUIRE_TRY(scalars(*set, options));
    for (const ArrayShape& shape : set->arrays) {
      Result<Symbol> symbol = array(shape);
      if (!symbol.ok()) return evaluator_.locate(id, symbol.error());
      options.push_back(*symbol);
    }
    for (const ObjectShape& shape : set->objects) {
      Result<Symbol> symbol = object(shape, Style::kJson);
      if (!symbol.ok()) return evaluator_.locate(id, symbol.error());
      options.push_back(*symbol);
    }
    for (const Symbol option : options) {
      if (!(option == grammar_.nothing())) grammar_.add_production(rule, {option});
    }
  }
  return grammar_.status();
}

}  // namespace schema

namespace {

// Nothing, a blank, or one or two line ends with an indentation: what people and programs write. Without a bound a
// model that is not allowed its favourite token may write blanks or line breaks until max_tokens, because one more is
// always allowed.
constexpr int kMaxIndent = 40;
Regex usual_white_space(RegexStore& store) {
  const Regex blank = store.bytes(ByteSet::of(" \t"));
  const Regex line_end = store.concat(store.optional(store.literal("\r")), store.literal("\n"));
  return store.either(store.optional(blank),
                      store.concat(store.repeat(line_end, 1, 2), store.repeat(blank, 0, kMaxIndent)));
}

// What may stand between the tokens of JSON.
Result<Regex> white_space_of(RegexStore& store, const JsonOptions& options) {
  if (!options.any_whitespace) return store.empty();
  if (!options.whitespace_pattern) return usual_white_space(store);
  const Regex any = store.repeat(store.bytes(ByteSet::of(" \t\n\r")), 0);
  auto wanted = parse_regex(store, *options.whitespace_pattern);
  if (!wanted.ok()) return invalid_argument({"whitespace_pattern: ", wanted.error().message});
  const Regex allowed = store.both(*wanted, any);  // \s has characters that JSON does not take for white space
  if (store.is_nothing(allowed).value_or(false)) {
    return invalid_argument({"whitespace_pattern '", *options.whitespace_pattern,
                             "' matches no white space of JSON (spaces, tabs, line feeds and carriage returns); write "
                             "one that does, or an empty one for none."});
  }
  return allowed;
}

}  // namespace

Result<Symbol> add_json_schema(Grammar& grammar, const json::Value& schema, const JsonOptions& options) {
  QUIRE_ASSIGN(const Regex white_space, white_space_of(grammar.regexes(), options));
  const std::optional<schema::Style> style = schema::style_of(options.style);
  if (!style) return invalid_argument({"The style \"", options.style, "\" of a JSON schema is not known."});
  if (!schema.is_object() && !schema.is_bool())
    return invalid_argument(
        {"A JSON schema must be an object or a boolean, not ", std::string(json::describe(schema.kind())), "."});
  QUIRE_ASSIGN(schema::SchemaDocument document, schema::SchemaDocument::make(schema));
  schema::SchemaEvaluator evaluator(grammar.regexes(), document);
  schema::SchemaEmitter emitter(grammar, evaluator, options, white_space);
  const schema::ConjId root = evaluator.conjunction_of(0);
  Result<Symbol> out = *style == schema::Style::kJson ? emitter.value(root) : emitter.tagged_object(root, *style);
  if (!out.ok()) return evaluator.locate(root, out.error());
  if (const Status status = emitter.finish(); !status.ok()) return evaluator.locate(root, status.error());
  return *out;
}

}  // namespace quire::grammar
