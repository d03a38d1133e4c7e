// SPDX-License-Identifier: Apache-2.0
// Flags of vLLM's that have no use here (yet), each with the reason that is given: for quire serve and for programs
// that use the library. Also those that mean what other flags of quire say.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "llm/options.h"

namespace quire::cli {

enum class Treatment {
  kRefused,        // it asks for something that quire does not do
  kIgnoredSwitch,  // without a value; it asks for nothing that could differ, so that a warning is enough
  kIgnoredNumber,  // the same with a number
};

struct UnusedFlag {
  const char* name;
  const char* neutral;  // the value that is accepted silently since it asks for nothing; "": none
  const char* why;
  Treatment treatment = Treatment::kRefused;
};

std::span<const UnusedFlag> unused_flags();

// Logs that `name`, a flag or an option, is accepted but changes nothing.
void warn_unused(std::string_view name, std::string_view why);

// Sets --runner and --convert as vLLM's --task did; "auto" leaves them as they are.
Status apply_task(std::string_view task, llm::Options& options);

}  // namespace quire::cli
