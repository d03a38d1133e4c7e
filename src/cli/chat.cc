// SPDX-License-Identifier: Apache-2.0
// quire chat: a conversation in the terminal. History reuses its pages through the prefix cache.
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "cli/command.h"
#include "cli/flags.h"

namespace quire::cli {
namespace {

struct ChatFlags {
  llm::Options options;
  SamplingFlags sampling;
  std::string model;
  std::string system;
};

constexpr const char* kHelp =
    "/help            this list\n"
    "/clear           forget the conversation\n"
    "/system TEXT     set the system message (and forget the conversation)\n"
    "/retry           answer the last message again, with another seed\n"
    "/stats           tokens, reuse and speed of the last answer\n"
    "/exit            leave (Ctrl-D does too)\n"
    "Ctrl-C stops the answer. \"\"\" begins and ends a message of several lines.\n";

// One conversation: reads a turn, streams the answer, keeps both.
class Conversation {
 public:
  Conversation(llm::Llm& llm, const ChatFlags& flags)
      : llm_(llm), flags_(flags), system_(flags.system), interactive_(::isatty(STDIN_FILENO) != 0) {
    forget();
  }

  int run() {
    if (interactive_) std::printf("%s. /help lists the commands.\n", llm_.name().c_str());
    catch_interrupts();
    std::string message;
    for (;;) {
      const Input input = read_message(message);
      if (input == Input::kEnd) break;
      if (input == Input::kInterrupted || message.empty()) continue;
      if (message[0] == '/') {
        if (!command(message)) break;
        continue;
      }
      add("user", message);
      if (!answer()) messages_.as_array().pop_back();
    }
    if (interactive_) std::fputc('\n', stdout);
    return 0;
  }

 private:
  enum class Input { kMessage, kInterrupted, kEnd };

  Input read_line(const char* prompt, std::string& line) {
    if (interactive_) {
      std::fputs(prompt, stdout);
      std::fflush(stdout);
    }
    line.clear();
    for (;;) {
      if (const size_t end = typed_.find('\n'); end != std::string::npos) {
        line = typed_.substr(0, end);
        typed_.erase(0, end + 1);
        return Input::kMessage;
      }
      if (wait_for_input() == Wait::kInterrupted) {
        typed_.clear();
        std::fputs("\n(/exit or Ctrl-D leaves)\n", stdout);
        return Input::kInterrupted;
      }
      char buffer[4096];
      const ssize_t size = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (size <= 0) {
        std::swap(line, typed_);
        return line.empty() ? Input::kEnd : Input::kMessage;
      }
      typed_.append(buffer, static_cast<size_t>(size));
    }
  }

  Input read_message(std::string& message) {
    Input input = read_line(">>> ", message);
    if (input != Input::kMessage || message.rfind("\"\"\"", 0) != 0) return input;
    std::string text = message.substr(3);
    std::string line;
    while (text.size() < 3 || text.compare(text.size() - 3, 3, "\"\"\"") != 0) {
      input = read_line("... ", line);
      if (input == Input::kInterrupted) return input;
      if (input == Input::kEnd) break;
      text += "\n" + line;
    }
    if (text.size() >= 3 && text.compare(text.size() - 3, 3, "\"\"\"") == 0) text.resize(text.size() - 3);
    message = std::move(text);
    return Input::kMessage;
  }

  // False: leave.
  bool command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/exit" || name == "/quit" || name == "/bye") return false;
    if (name == "/help") {
      std::fputs(kHelp, stdout);
    } else if (name == "/clear") {
      forget();
      std::puts("(forgotten)");
    } else if (name == "/system") {
      system_ = rest;
      forget();
      std::puts(rest.empty() ? "(no system message)" : "(system message set)");
    } else if (name == "/retry") {
      retry();
    } else if (name == "/stats") {
      std::fputs(stats_.empty() ? "(no answer yet)\n" : stats_.c_str(), stdout);
    } else {
      std::printf("There is no %s; /help lists the commands.\n", name.c_str());
    }
    return true;
  }

  void retry() {
    json::Array& list = messages_.as_array();
    if (list.empty() || list.back().find("role")->as_string() != "assistant") {
      std::puts("(nothing to answer again)");
      return;
    }
    list.pop_back();
    ++seed_shift_;
    if (!answer()) list.pop_back();
  }

  void forget() {
    messages_ = json::Array{};
    if (!system_.empty()) add("system", system_);
  }

  void add(const char* role, const std::string& content) {
    json::Value message{json::Object{}};
    message.set("role", role);
    message.set("content", content);
    messages_.as_array().push_back(std::move(message));
  }

  // False when the turn could not be answered and should be taken back.
  bool answer() {
    using Clock = std::chrono::steady_clock;
    sampling::SamplingParams params = llm_.default_params();
    flags_.sampling.apply(params);
    params.n = 1;
    params.seed = flags_.options.seed + seed_shift_;
    text::ChatRequest chat;
    chat.messages = messages_;
    while (take_interrupt()) {
    }  // those at the prompt are not about this answer
    const auto start = Clock::now();
    llm::GenerateRequest request;
    request.prompt = std::move(chat);
    request.params = params;
    auto id = llm_.submit(std::move(request));
    if (!id.ok()) {
      report(id.error());
      return false;
    }
    std::string text;
    double first = 0;
    int64_t tokens = 0, prompt = 0, cached = 0;
    while (llm_.has_work()) {
      if (take_interrupt()) {
        llm_.abort(*id);
        std::fputs(" (stopped)", stdout);
        break;
      }
      for (llm::Delta& delta : llm_.step()) {
        if (delta.error) {
          report(*delta.error);
          return false;
        }
        if (tokens == 0) first = std::chrono::duration<double>(Clock::now() - start).count();
        tokens += static_cast<int64_t>(delta.tokens.size());
        prompt = delta.prompt_tokens;
        cached = delta.cached_tokens;
        text += delta.text;
        std::fwrite(delta.text.data(), 1, delta.text.size(), stdout);
        std::fflush(stdout);
      }
    }
    std::fputc('\n', stdout);
    std::fflush(stdout);
    const double total = std::chrono::duration<double>(Clock::now() - start).count();
    char line[256];
    std::snprintf(line, sizeof line,
                  "prompt %lld tokens (%lld reused), first token after %.2f s, answer %lld tokens at %.1f tokens/s\n",
                  static_cast<long long>(prompt), static_cast<long long>(cached), first, static_cast<long long>(tokens),
                  tokens > 1 && total > first ? static_cast<double>(tokens - 1) / (total - first) : 0.0);
    stats_ = line;
    add("assistant", text);
    return true;
  }

  llm::Llm& llm_;
  const ChatFlags& flags_;
  std::string system_;
  std::string typed_;  // read, not yet taken as a line
  bool interactive_;
  json::Value messages_;
  int64_t seed_shift_ = 0;
  std::string stats_;
};

int chat(const ChatFlags& flags) {
  llm::Options options = flags.options;
  options.model = flags.model;
  auto llm = load_llm(options);
  if (!llm.ok()) return report(llm.error());
  if ((*llm)->tokenizer() == nullptr || (*llm)->chat_template() == nullptr) {
    return report(unsupported("'" + (*llm)->name() +
                              "' has no chat template; give one with --chat-template, or use quire run --raw"));
  }
  return Conversation(**llm, flags).run();
}

}  // namespace

void add_chat(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  command->footer(std::string("In the conversation:\n") + kHelp);
  command->add_option("MODEL", flags->model, "A folder, a .gguf, a cached name, or nothing: the default model")
      ->envname("QUIRE_MODEL");
  command->add_option("--system", flags->system, "System message")->envname("QUIRE_SYSTEM");
  add_model_flags(*command, flags->options);
  add_sampling_flags(*command, flags->sampling);
  command->callback([flags, &exit_code] { exit_code = chat(*flags); });
}

}  // namespace quire::cli
