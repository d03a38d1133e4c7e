// SPDX-License-Identifier: Apache-2.0
// Helpers of the subcommands.
#include "cli/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/check.h"
#include "base/printable.h"
#include "base/trace.h"
#include "cli/environment.h"
#include "cli/hub/model_cache.h"
#include "cli/hub/progress.h"
#include "llm/speculative_config.h"

namespace quire::cli {
namespace {

// The signal handler writes one byte per Ctrl-C, so that a poll() on the other end sees it even if it came earlier.
int g_interrupts[2] = {-1, -1};
void on_interrupt(int) {
  const int saved = errno;
  [[maybe_unused]] const ssize_t written = ::write(g_interrupts[1], "", 1);  // if the pipe is full, it has enough bytes
  errno = saved;
}

}  // namespace

int report(const Error& error) {
  std::string sentence = printable(error.message);  // it may quote a model's files
  const std::string source = environment_source(sentence);
  if (!source.empty() && sentence.back() == '.') sentence.pop_back();
  std::fprintf(stderr, "quire: %s%s\n", sentence.c_str(), source.c_str());
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

Status resolve_draft_model(llm::Options& options,
                           const std::function<Result<std::filesystem::path>(const std::string&)>& resolve) {
  QUIRE_ASSIGN(const llm::SpeculativeConfig config, llm::parse_speculative_config(options.speculative_config));
  if (config.model.empty() || !options.draft_model.empty() || options.load_format == "dummy") return {};
  auto path = resolve(config.model);
  if (!path.ok()) return Error{path.error().code, "--speculative-config: the draft model: " + path.error().message};
  options.draft_model = *path;
  return {};
}

Status resolve_model_argument(llm::Options& options) {
  if (options.load_format == "dummy") {
    if (options.model.empty()) {
      return invalid_argument("--load-format dummy needs MODEL: a config.json or the folder it is in");
    }
    return {};
  }
  QUIRE_ASSIGN(options.model, resolve_model(options.model.string()));
  return resolve_draft_model(options, [](const std::string& name) { return resolve_model(name); });
}

Result<std::unique_ptr<llm::Llm>> load_llm(llm::Options options) {
  QUIRE_TRY(resolve_model_argument(options));
  trace::name_thread("main");
  Progress progress;
  bool started = false;
  auto loaded = llm::Llm::load(options, [&](int64_t done, int64_t total) {
    if (!started) progress.start("Loading " + options.model.filename().string(), static_cast<uint64_t>(total));
    started = true;
    progress.set(static_cast<uint64_t>(done));
  });
  progress.clear();
  return loaded;
}

PrefillLine::PrefillLine(const llm::Llm& llm, int64_t prompt_tokens)
    : llm_(llm), tokens_(prompt_tokens), computed_before_(llm.engine().stats().tokens_computed) {
  update();
}

void PrefillLine::update() {
  constexpr int64_t kLongPrompt = 512;  // shorter prompts finish before the line could be read
  if (tokens_ < kLongPrompt || !line_.due()) return;
  const int64_t done = std::min(llm_.engine().stats().tokens_computed - computed_before_, tokens_);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string text = "Processing the prompt: " + with_commas(done) + " of " + with_commas(tokens_) + " tokens";
  if (done > 0 && seconds > 0) {
    text += ", " + with_commas(static_cast<int64_t>(static_cast<double>(done) / seconds)) + " tokens/s";
  }
  line_.show(text);
}

bool stdin_is_piped() {
  struct stat info {};
  if (::fstat(STDIN_FILENO, &info) != 0) return false;
  return S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode) || S_ISSOCK(info.st_mode);
}

Result<std::string> read_stdin() {
  constexpr size_t kMaxBytes = size_t{256} << 20;
  constexpr int kPatienceMs = 3000;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (::poll(&input, 1, kPatienceMs) == 0) {
    std::fputs("quire: waiting for standard input; use < /dev/null to run without it\n", stderr);
  }
  std::string text;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, stdin)) {
    text.append(buffer, n);
    if (text.size() > kMaxBytes) return invalid_argument("standard input is longer than 256 MiB");
  }
  return text;
}

void catch_interrupts() {
  if (g_interrupts[0] >= 0) return;
  QUIRE_CHECK(::pipe(g_interrupts) == 0);
  for (const int end : g_interrupts) {
    ::fcntl(end, F_SETFL, O_NONBLOCK);
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
  }
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
}

bool take_interrupt() {
  char byte = 0;
  return g_interrupts[0] >= 0 && ::read(g_interrupts[0], &byte, 1) == 1;
}

int interrupt_descriptor() {
  return g_interrupts[0];
}

Wait wait_for_input() {
  pollfd ends[] = {{STDIN_FILENO, POLLIN, 0}, {g_interrupts[0], POLLIN, 0}};
  while (::poll(ends, 2, -1) < 0 && errno == EINTR) {
  }
  return take_interrupt() ? Wait::kInterrupted : Wait::kInput;
}

json::Value logprobs_json(const std::vector<sampling::TokenLogprob>& row, const text::Tokenizer* tokenizer) {
  json::Array out;
  for (const sampling::TokenLogprob& entry : row) {
    json::Value item{json::Object{}};
    item.set("token_id", int64_t{entry.token});
    if (tokenizer != nullptr) {
      const int32_t id[] = {entry.token};
      item.set("token", tokenizer->decode(id, false));
    }
    item.set("logprob", static_cast<double>(entry.logprob));
    item.set("rank", int64_t{entry.rank});
    out.push_back(std::move(item));
  }
  return out;
}

json::Value stop_reason_json(const std::variant<std::monostate, int32_t, std::string>& reason) {
  if (const auto* token = std::get_if<int32_t>(&reason)) return int64_t{*token};
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  return nullptr;
}

}  // namespace quire::cli
