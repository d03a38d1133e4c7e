// SPDX-License-Identifier: Apache-2.0
// The flags that constrain answers: --json-schema, --regex, --grammar and --choice.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "llm/constraint.h"

namespace quire::cli {

struct ConstraintFlags {
  std::string json_schema;  // a file
  std::string regex;
  std::string grammar;  // a file
  std::vector<std::string> choice;
  const CLI::Option* regex_option = nullptr;  // an empty pattern is a pattern, too

  bool given() const;
  // What the flags ask for; no grammar if none was given.
  Result<llm::ConstraintSpec> read() const;
};

void add_constraint_flags(CLI::App& app, ConstraintFlags& flags);
// The schema in a file, as a constraint; `flag` names it in errors.
Result<grammar::Spec> read_schema(const std::string& path, const std::string& flag);

}  // namespace quire::cli
