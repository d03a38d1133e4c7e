// SPDX-License-Identifier: Apache-2.0
// Flags as a table: name, member and description of each. Each has an environment variable, each boolean a --no- form.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "llm/options.h"
#include "sampling/param_table.h"

namespace quire::cli {

// Sampling flags, made from sampling/param_table.h. The model's defaults apply to those that are not given.
struct SamplingFlags {
  sampling::SamplingParams values;
  std::vector<std::pair<const sampling::ParamInfo*, const CLI::Option*>> options;

  // Overwrites the settings whose flags were given.
  void apply(sampling::SamplingParams& params) const;
};

// What a value is, as the name of an option's type: --help shows it, and completion offers such values. "TEXT:{a,b}"
// offers these words.
constexpr const char* kFile = "FILE";
constexpr const char* kFolder = "DIR";
constexpr const char* kModelValue = "MODEL";

// "--max-model-len" -> "QUIRE_MAX_MODEL_LEN".
std::string env_name(const std::string& flag);

void add_model_flags(CLI::App& app, llm::Options& options);
// --lora FOLDER: adapters that are read with the model.
void add_lora_flag(CLI::App& app, llm::Options& options);
void add_sampling_flags(CLI::App& app, SamplingFlags& flags);
// Up to two positional arguments, of which the first is optional. They are two options and not one list, since CLI11
// splits a list's "[a, b]" into items, and a prompt may begin and end with brackets.
struct Words {
  std::string first, second;
  const CLI::Option* first_option = nullptr;
  const CLI::Option* second_option = nullptr;
  std::vector<std::string> given() const;
};
void add_words(CLI::App& app, Words& words, const std::string& second_name, const std::string& second_doc);
// Adds a boolean with its --no- form and environment variable.
CLI::Option* add_switch(CLI::App& app, const std::string& flag, bool& value, const std::string& doc);

// Flags may be written with underscores (--max_model_len); this turns them into dashes before parsing, and vLLM's short
// names (-tp, -pp, -dp) into the long ones.
std::vector<std::string> normalise_arguments(int argc, const char* const* argv);

}  // namespace quire::cli
