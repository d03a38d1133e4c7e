// SPDX-License-Identifier: Apache-2.0
// Reads --json-schema and --grammar, or their files.
#include "cli/constraint_flags.h"

#include <utility>

#include "base/file.h"
#include "cli/flags.h"

namespace quire::cli {
namespace {

constexpr size_t kMaxConstraintBytes = size_t{16} << 20;

Result<std::string> read_text(const std::string& path, const std::string& flag) {
  auto text = read_file(path, kMaxConstraintBytes);
  if (!text.ok()) return Error{text.error().code, flag + ": " + text.error().message};
  return text;
}

}  // namespace

bool ConstraintFlags::given() const {
  return !json_schema.empty() || regex_option->count() > 0 || !grammar.empty() || !choice.empty();
}

Result<grammar::Spec> read_schema(const std::string& path, const std::string& flag) {
  std::string text = path;
  const bool is_text = path.starts_with('{');
  if (!is_text) {
    QUIRE_ASSIGN(text, read_text(path, flag));
  }
  auto schema = json::parse(text);
  if (!schema.ok()) return invalid_argument({flag, ": ", (is_text ? "" : path + ": "), schema.error().message});
  grammar::Spec spec;
  spec.json = std::move(*schema);
  spec.additional_properties = false;  // both as the server's defaults
  spec.any_order = false;
  return spec;
}

Result<llm::ConstraintSpec> ConstraintFlags::read() const {
  llm::ConstraintSpec out;
  if (!json_schema.empty()) {
    out.field = "--json-schema";
    QUIRE_ASSIGN(out.grammar, read_schema(json_schema, out.field));
  } else if (regex_option->count() > 0) {
    out.field = "--regex";
    out.grammar.emplace().kind = grammar::Spec::Kind::kRegex;
    out.grammar->text = regex;
  } else if (!grammar.empty()) {
    out.field = "--grammar";
    out.grammar.emplace().kind = grammar::Spec::Kind::kGrammar;
    if (grammar.find("::=") != std::string::npos) {
      out.grammar->text = grammar;
    } else {
      QUIRE_ASSIGN(out.grammar->text, read_text(grammar, out.field));
    }
  } else if (!choice.empty()) {
    out.field = "--choice";
    out.grammar.emplace().kind = grammar::Spec::Kind::kChoice;
    out.grammar->choice = choice;
  }
  return out;
}

void add_constraint_flags(CLI::App& app, ConstraintFlags& flags) {
  CLI::Option* schema =
      app.add_option("--json-schema", flags.json_schema, "A JSON Schema that the answer follows, or a file with one")
          ->type_name(kFile);
  CLI::Option* regex = app.add_option("--regex", flags.regex, "Regular expression that the whole answer matches");
  CLI::Option* grammar =
      app.add_option("--grammar", flags.grammar,
                     "File with a grammar that the answer follows (GBNF, EBNF or Lark), or a grammar with ::=")
          ->type_name(kFile);
  CLI::Option* choice = app.add_option("--choice", flags.choice, "The answer is one of these, separated by commas");
  choice->delimiter(',');
  flags.regex_option = regex;
  const std::vector<CLI::Option*> all = {schema, regex, grammar, choice};
  for (CLI::Option* option : all) {
    option->envname(env_name(option->get_name()));
    for (CLI::Option* other : all) {
      if (other != option) option->excludes(other);
    }
  }
}

}  // namespace quire::cli
