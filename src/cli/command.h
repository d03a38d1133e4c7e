// SPDX-License-Identifier: Apache-2.0
// What the subcommands share: registration, exit codes, loading with a progress bar, standard input.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "base/json.h"
#include "base/result.h"
#include "cli/terminal.h"
#include "llm/llm.h"

namespace quire::cli {

// Exit codes: 0 success, 1 failure, 2 a wrong command line, 130 stopped by Ctrl-C.
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitInterrupted = 130;

// Each adds its subcommand, whose callback stores the exit code.
void add_serve(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_embed(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_devices(CLI::App& app, int& exit_code);
void add_selftest(CLI::App& app, int& exit_code);
void add_pull(CLI::App& app, int& exit_code);
void add_list(CLI::App& app, int& exit_code);
void add_show(CLI::App& app, int& exit_code);
void add_rm(CLI::App& app, int& exit_code);
void add_ps(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_schema(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);

// Prints "quire: <sentence>" to standard error and returns the exit code for that kind of error.
int report(const Error& error);

// Resolves the MODEL argument (options.model) and loads it, with a progress bar if standard error is a terminal.
Result<std::unique_ptr<llm::Llm>> load_llm(llm::Options options);
// Turns the MODEL argument into a path: a folder, a .gguf, a cached name, or "" for the default model.
Status resolve_model_argument(llm::Options& options);
// Sets Options::draft_model to what `resolve` finds for the draft model of --speculative-config, if there is one.
Status resolve_draft_model(llm::Options& options,
                           const std::function<Result<std::filesystem::path>(const std::string&)>& resolve);

// Shows how much of a long prompt has been computed, on standard error if that is a terminal.
class PrefillLine {
 public:
  PrefillLine(const llm::Llm& llm, int64_t prompt_tokens);
  void update();  // call it after each step without a token
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

// After the first call, SIGINT is recorded instead of ending the program.
void catch_interrupts();
bool take_interrupt();       // true once for each Ctrl-C
int interrupt_descriptor();  // readable for poll() when take_interrupt() would return true
// Waits until standard input can be read or Ctrl-C was pressed, even if that was before the call.
enum class Wait { kInput, kInterrupted };
Wait wait_for_input();

// Logprobs as JSON: [{"token_id", "token", "logprob", "rank"}...], the sampled token first.
json::Value logprobs_json(const std::vector<sampling::TokenLogprob>& row, const text::Tokenizer* tokenizer);
json::Value stop_reason_json(const std::variant<std::monostate, int32_t, std::string>& reason);

}  // namespace quire::cli
