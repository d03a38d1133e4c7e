// SPDX-License-Identifier: Apache-2.0
// What the subcommands share: registration, exit codes, loading with a progress bar, standard input.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "cli/terminal.h"
#include "llm/llm.h"

namespace quire::cli {

// Exit codes: 0 fine, 1 it failed, 2 the command line was wrong, 130 stopped by Ctrl-C.
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitInterrupted = 130;

// Each adds its subcommand; the callback stores the exit code.
void add_serve(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_devices(CLI::App& app, int& exit_code);
void add_selftest(CLI::App& app, int& exit_code);
void add_pull(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_schema(CLI::App& app, int& exit_code);

// Prints "quire: <sentence>" to standard error and gives the exit code of that kind of error.
int report(const Error& error);

// Resolves the MODEL argument (options.model) and loads it, with a bar on standard error when that is a terminal.
Result<std::unique_ptr<llm::Llm>> load_llm(llm::Options options);
// The MODEL argument as a path: a folder, a .gguf, a cached name, or "" for the default model.
Status resolve_model_argument(llm::Options& options);

// Shows on standard error, when that is a terminal, how much of a long prompt has been computed.
class PrefillLine {
 public:
  PrefillLine(const llm::Llm& llm, int64_t prompt_tokens);
  void update();  // after each step that gave no token
  void clear() { line_.clear(); }

 private:
  const llm::Llm& llm_;
  const int64_t tokens_;
  const int64_t computed_before_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  StatusLine line_;
};

bool stdin_is_piped();
Result<std::string> read_stdin();

// Ctrl-C: from the first call on, SIGINT is noted instead of ending the program.
void catch_interrupts();
bool take_interrupt();       // true once for each Ctrl-C since the last call
int interrupt_descriptor();  // can be read, as poll() sees it, when take_interrupt() would be true
// Waits until standard input can be read or Ctrl-C was pressed, also when that was just before the call.
enum class Wait { kInput, kInterrupted };
Wait wait_for_input();

// JSON of logprobs: [{"token_id", "token", "logprob", "rank"}...], sampled token first.
json::Value logprobs_json(const std::vector<sampling::TokenLogprob>& row, const text::Tokenizer* tokenizer);
json::Value stop_reason_json(const std::variant<std::monostate, int32_t, std::string>& reason);

}  // namespace quire::cli
