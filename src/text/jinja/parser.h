// SPDX-License-Identifier: Apache-2.0
// Parses source text to a bound Program.
#pragma once

#include <memory>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/template.h"

namespace quire::text::jinja {

// Throws TemplateError.
std::shared_ptr<Program> parse_program(std::string_view source, const ParseOptions& options);

// Assigns a slot to every variable of the program, by Jinja2's rules of scope. Called by parse_program().
void bind_scopes(Program& program);

}  // namespace quire::text::jinja
