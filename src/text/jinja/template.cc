// SPDX-License-Identifier: Apache-2.0
// The interface of the engine: from sources and JSON to text or an Error.
#include "text/jinja/template.h"

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace quire::text::jinja {
namespace {

Failure to_error(const TemplateError& error, int line) {
  if (error.raised) return Error{ErrorCode::kInvalidArgument, std::string(kRaisedPrefix) + error.message};
  if (error.line > 0) line = error.line;
  std::string where = "The chat template fails";
  if (line > 0) where += " at line " + std::to_string(line);
  return Error{error.code, where + ": " + error.message};
}

}  // namespace

Result<Template> Template::parse(std::string_view source, const ParseOptions& options) {
  try {
    return Template(parse_program(source, options));
  } catch (const TemplateError& error) {
    return to_error(error, 0);
  }
}

Result<std::string> Template::render(const json::Value& context, const RenderOptions& options) const {
  std::vector<Variable> variables;
  if (context.is_object()) {
    for (const auto& [name, value] : context.as_object()) variables.push_back({name, &value});
  }
  QUIRE_ASSIGN(MarkedText text, render_marked(variables, options));
  return std::move(text.text);
}

Result<MarkedText> Template::render_marked(std::span<const Variable> variables, const RenderOptions& options) const {
  Interpreter interpreter(*program_, options);
  try {
    return interpreter.run(variables);
  } catch (const TemplateError& error) {
    return to_error(error, interpreter.line());
  }
}

}  // namespace quire::text::jinja
