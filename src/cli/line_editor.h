// SPDX-License-Identifier: Apache-2.0
// A line editor for quire chat: arrow keys, history, completion, and pasted text that stays one message.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace quire::cli {

// Reads messages from the terminal with libedit. From open() to the destructor the terminal does not echo and does not
// buffer lines, so that messages have no length limit and what is typed during an answer appears at the next prompt.
// The destructor restores the terminal, and so do SIGTERM, SIGHUP and Ctrl-Z. REQUIRES: catch_interrupts() was called,
// for Ctrl-C. Only one may exist at a time; used by one thread.
class LineEditor {
 public:
  // Null if standard input or output is not a terminal that supports editing. Tab completes `commands` at the beginning
  // of a line.
  static std::unique_ptr<LineEditor> open(std::vector<std::string> commands);
  virtual ~LineEditor() = default;

  enum class Read { kMessage, kInterrupted, kEnd };
  // Reads one message in UTF-8, with line breaks if it was pasted or Alt-Enter was pressed. kInterrupted: Ctrl-C.
  virtual Read read(const std::string& prompt, std::string& message) = 0;
  // Reads what was typed since the last call, for the next read(). Call it often while an answer is computed: once the
  // terminal's buffer of 4 KiB is full, Ctrl-C has no effect.
  virtual void collect() = 0;
  // Adds a message to the history of the up arrow; call it in order, oldest first.
  virtual void remember(const std::string& message) = 0;
};

}  // namespace quire::cli
