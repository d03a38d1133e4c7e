// SPDX-License-Identifier: Apache-2.0
// A Jinja2 template, parsed once and rendered on any thread, byte for byte as by Jinja2 3.1.
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

// The settings of Jinja2's Environment. The defaults are those of transformers for chat templates.
struct ParseOptions {
  bool trim_blocks = true;    // drop the newline that follows a block tag
  bool lstrip_blocks = true;  // drop the spaces before a block tag on its line
  bool keep_trailing_newline = false;
  size_t max_source_bytes = size_t{1} << 20;
  int max_nesting = 100;  // nested parentheses, blocks and operators
};

// The resources that one render may use. A template is untrusted input; exceeding a limit is an error.
struct RenderLimits {
  uint64_t max_steps = 50'000'000;  // expressions and statements, plus one per 64 bytes of processed text
  size_t max_output_bytes = size_t{64} << 20;
  size_t max_memory_bytes = size_t{512} << 20;
  int max_depth = 1200;       // nested evaluation, in nodes
  int max_macro_depth = 150;  // nested macro calls
};

struct RenderOptions {
  RenderLimits limits;
  // As in transformers' ImmutableSandboxedEnvironment, methods that change a list or a dict (append, update, ...) are
  // an error. If off, they work as in Python.
  bool immutable = true;
  // The local time for strftime_now; default: the clock of the machine.
  std::optional<std::tm> now;
  const std::atomic<bool>* cancelled = nullptr;  // set to true when nobody waits: rendering then fails soon
};

// One variable of a render. REQUIRES: the value outlives the render.
struct Variable {
  std::string_view name;
  const json::Value* value = nullptr;
  Origin origin = Origin::kTemplate;  // of all strings in it
  // The value is a list of chat messages: the origin of each depends on its role, and `origin` is not used.
  bool messages = false;
};

// The beginning of the error message if the template itself called raise_exception().
inline constexpr std::string_view kRaisedPrefix = "The chat template refused the conversation: ";

// One parsed template. Immutable after parse(), so that any number of threads may render it at the same time; copies
// share the parsed form. Values that a render creates live until its end.
class Template {
 public:
  // The error names the line and the problem.
  static Result<Template> parse(std::string_view source, const ParseOptions& options = {});

  // Renders with the members of `context` (an object) as variables; of a repeated name the last one is used.
  Result<std::string> render(const json::Value& context, const RenderOptions& options = {}) const;
  // The same, with the origin of each byte of the result.
  Result<MarkedText> render_marked(std::span<const Variable> variables, const RenderOptions& options = {}) const;

  const Program& program() const { return *program_; }

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const Program> program_;
};

}  // namespace quire::text::jinja
