// SPDX-License-Identifier: Apache-2.0
// A line editor for quire chat: arrows, history, completion, and pasted text that stays one message.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace quire::cli {

// Reads messages from the terminal through libedit. From open() to the destructor the terminal does not echo and does
// not collect lines itself, so a message has no longest length and what is typed during an answer appears at the next
// prompt. The destructor puts the terminal back, and so do SIGTERM, SIGHUP and Ctrl-Z. Ctrl-C must be caught with
// catch_interrupts() before. One at a time; one thread.
class LineEditor {
 public:
  // Null when standard input or output is not a terminal that can be edited on. `commands` are completed by Tab at the
  // beginning of a line.
  static std::unique_ptr<LineEditor> open(std::vector<std::string> commands);
  virtual ~LineEditor() = default;

  enum class Read { kMessage, kInterrupted, kEnd };
  // One message in UTF-8; it has line breaks when it was pasted or when Alt-Enter was pressed. kInterrupted: Ctrl-C.
  virtual Read read(const std::string& prompt, std::string& message) = 0;
  // Takes what was typed since the last call, for the next read(). To be called often while an answer is computed: when
  // the terminal's own buffer of 4 KiB is full, Ctrl-C does not come through.
  virtual void collect() = 0;
  // What the up arrow gives, oldest first.
  virtual void remember(const std::string& message) = 0;
};

}  // namespace quire::cli
