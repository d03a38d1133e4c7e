// SPDX-License-Identifier: Apache-2.0
// A Jinja2 template: parsed once, rendered any number of times, on any thread, byte for byte as Jinja2 3.1 renders it.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "text/origin.h"

namespace quire::text::jinja {

struct Program;

// How Jinja2's Environment is set up. The defaults are those that transformers uses for chat templates.
struct ParseOptions {
  bool trim_blocks = true;    // drop the newline that follows a block tag
  bool lstrip_blocks = true;  // drop the blanks that stand before a block tag on its line
  bool keep_trailing_newline = false;
  size_t max_source_bytes = size_t{1} << 20;
  int max_nesting = 100;  // parentheses, blocks and operators inside each other
};

// What one render may use up; a template is untrusted input, and each limit ends in one clear error.
struct RenderLimits {
  uint64_t max_steps = 50'000'000;  // expressions and statements run, plus one for each 64 bytes of text handled
  size_t max_output_bytes = size_t{64} << 20;
  size_t max_memory_bytes = size_t{512} << 20;
  int max_depth = 1200;       // nested evaluation, in nodes
  int max_macro_depth = 150;  // macros that call macros
};

struct RenderOptions {
  RenderLimits limits;
  // As transformers' ImmutableSandboxedEnvironment: methods that change a list or a dict (append, update, ...) are an
  // error. Off: they work as in Python.
  bool immutable = true;
  // The local time that strftime_now sees; absent: the clock of the machine.
  std::optional<std::tm> now;
  const std::atomic<bool>* cancelled = nullptr;  // turns true when nobody waits for the result: the render fails soon
};

// One variable of a render. The value is only looked at, and must outlive the render.
struct Variable {
  std::string_view name;
  const json::Value* value = nullptr;
  Origin origin = Origin::kTemplate;  // of all texts in it
  // The value is a list of chat messages: each message's origin follows from its role, and `origin` is not used.
  bool messages = false;
};

// The text that starts the message of an error that the template itself raised by raise_exception().
inline constexpr std::string_view kRaisedPrefix = "The chat template refused the conversation: ";

// One parsed template. Immutable after parse(), so that any number of threads may render it at the same time; copies
// share the parsed form. Values made by a render live and die with that render.
class Template {
 public:
  // The error names the line and what was wrong.
  static Result<Template> parse(std::string_view source, const ParseOptions& options = {});

  // Renders with the members of `context` (an object) as variables; of a repeated name the last one counts.
  Result<std::string> render(const json::Value& context, const RenderOptions& options = {}) const;
  // The same, and the result says which of its bytes came from where.
  Result<MarkedText> render_marked(std::span<const Variable> variables, const RenderOptions& options = {}) const;

  const Program& program() const { return *program_; }

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const Program> program_;
};

}  // namespace quire::text::jinja
