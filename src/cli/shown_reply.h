// SPDX-License-Identifier: Apache-2.0
// ShownReply: what a reply shows of an answer, and whether this is what the answer's tokens say.
#pragma once

#include <string>
#include <vector>

#include "llm/receipt_check.h"

namespace quire::cli {

struct ShownCall {
  std::string name;
  std::string arguments;  // JSON, unless the answer was cut off
};

// One choice of a reply, or the events of its stream joined.
struct ShownReply {
  bool chat = false;
  bool partial = false;  // some of its stream is missing: only the finish reason is known
  std::string text;      // or the content
  std::string reasoning;
  std::vector<ShownCall> calls;
  std::string finish;  // "": it does not say
};

// Compares the finish reasons.
std::string finish_difference(const ShownReply& reply, const llm::Receipt& receipt);
// Compares texts, reasoning and tool calls. `text` is that of the receipt's tokens with its settings.
llm::TextFindings check_shown(const ShownReply& reply, const llm::Receipt& receipt, const std::string& text,
                              const llm::Llm& llm);

}  // namespace quire::cli
