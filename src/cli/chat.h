// SPDX-License-Identifier: Apache-2.0
// A conversation in the terminal, for quire chat and for quire run without a prompt.
#pragma once

#include <string>

#include "cli/flags.h"
#include "llm/options.h"

namespace quire::cli {

struct ChatFlags {
  llm::Options options;
  SamplingFlags sampling;
  std::string model;
  std::string system;
  bool history = true;       // keep what was typed for the next conversation
  bool drop_oldest = false;  // make room by itself when the context is full
};

// Loads the model and talks until the user leaves; the exit code.
int chat(const ChatFlags& flags);

}  // namespace quire::cli
