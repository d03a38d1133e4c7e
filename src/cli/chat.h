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
  bool history = true;       // save typed messages for later conversations
  bool drop_oldest = false;  // drop the oldest turns if the context is full
};

// Loads the model and chats until the user leaves; returns the exit code.
int chat(const ChatFlags& flags);

}  // namespace quire::cli
