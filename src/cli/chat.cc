// SPDX-License-Identifier: Apache-2.0
// quire chat: a conversation in the terminal. Earlier turns are reused through the prefix cache.
#include "cli/chat.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string>

#include "base/suggest.h"
#include "cli/chat_history.h"
#include "cli/command.h"
#include "cli/line_editor.h"

namespace quire::cli {
namespace {

constexpr const char* kHelp =
    "/help            this list\n"
    "/clear           forget the conversation\n"
    "/drop [N]        forget the N oldest turns; without N, as many as needed for the next answer\n"
    "/system TEXT     set the system message (and forget the conversation)\n"
    "/retry           answer the last message again, with another seed\n"
    "/stats           tokens, prefix cache hits and speed of the last answer\n"
    "/exit            leave (or press Ctrl-D)\n"
    "Ctrl-C stops the answer. The arrow keys edit the line and recall earlier ones; Tab completes a command.\n"
    "Pasted text is one message; Alt-Enter starts a new line, and \"\"\" starts and ends a message of several "
    "lines.\n";
const std::vector<std::string> kCommands = {"/help", "/clear", "/drop", "/system", "/retry", "/stats", "/exit"};

// The source of messages: the line editor on a terminal, else lines of standard input.
class Input {
 public:
  using Read = LineEditor::Read;

  explicit Input(const ChatFlags& flags)
      : terminal_(::isatty(STDIN_FILENO) != 0),
        history_(flags.history && terminal_ ? chat_history_file() : std::nullopt),
        editor_(LineEditor::open(kCommands)) {
    if (editor_ == nullptr) return;
    for (const std::string& message : history_.load()) editor_->remember(message);
  }
  bool is_terminal() const { return terminal_; }

  // Call it often while an answer is computed.
  void collect() {
    if (editor_ != nullptr) editor_->collect();
  }

  Read read_message(std::string& message) {
    const Read read = read_line(">>> ", message);
    if (read != Read::kMessage) return read;
    if (message.starts_with("\"\"\"")) return read_quoted(message);
    if (editor_ != nullptr && !message.empty()) {
      editor_->remember(message);
      history_.append(message);
    }
    return read;
  }

 private:
  // Reads the rest of a message that begins with three quotes.
  Read read_quoted(std::string& message) {
    std::string text = message.substr(3);
    std::string line;
    while (!text.ends_with("\"\"\"")) {
      const Read read = read_line("... ", line);
      if (read == Read::kInterrupted) return read;
      if (read == Read::kEnd) break;
      text += "\n" + line;
    }
    if (text.ends_with("\"\"\"")) text.resize(text.size() - 3);
    message = std::move(text);
    if (editor_ != nullptr) {
      editor_->remember(message);
      history_.append(message);
    }
    return Read::kMessage;
  }

  Read read_line(const char* prompt, std::string& line) {
    line.clear();
    if (editor_ == nullptr) return read_plain_line(prompt, line);
    const Read read = editor_->read(prompt, line);
    if (read == Read::kInterrupted) std::fputs("\n(/exit or Ctrl-D leaves)\n", stdout);
    return read;
  }

  Read read_plain_line(const char* prompt, std::string& line) {
    if (terminal_) {
      std::fputs(prompt, stdout);
      std::fflush(stdout);
    }
    for (;;) {
      if (const size_t end = typed_.find('\n'); end != std::string::npos) {
        line = typed_.substr(0, end);
        typed_.erase(0, end + 1);
        return Read::kMessage;
      }
      if (wait_for_input() == Wait::kInterrupted) {
        typed_.clear();
        std::fputs("\n(/exit or Ctrl-D leaves)\n", stdout);
        return Read::kInterrupted;
      }
      char buffer[4096];
      const ssize_t size = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (size <= 0) {
        std::swap(line, typed_);
        return line.empty() ? Read::kEnd : Read::kMessage;
      }
      typed_.append(buffer, static_cast<size_t>(size));
    }
  }

  const bool terminal_;
  std::string typed_;  // read, but not yet used as a line
  ChatHistory history_;
  std::unique_ptr<LineEditor> editor_;
};

// Names a turn that is dropped: "hello" or "tell me a story about..." in quotes.
std::string excerpt(const std::string& text) {
  constexpr size_t kLongest = 30;
  std::string line = text.substr(0, text.find('\n'));
  if (line.size() <= kLongest) return "\"" + line + (line.size() < text.size() ? "..." : "") + "\"";
  size_t cut = kLongest;
  while (cut > 0 && (static_cast<unsigned char>(line[cut]) & 0xc0) == 0x80) --cut;  // no half characters
  return "\"" + line.substr(0, cut) + "...\"";
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::string turns(size_t count) {
  return std::to_string(count) + (count == 1 ? " turn" : " turns");
}

// One conversation: reads a message, streams the answer, keeps both.
class Conversation {
 public:
  Conversation(llm::Llm& llm, const ChatFlags& flags)
      : llm_(llm), flags_(flags), system_(flags.system), input_(flags), interactive_(input_.is_terminal()) {
    forget();
  }

  int run() {
    if (interactive_) std::printf("%s. /help lists the commands.\n", llm_.name().c_str());
    std::string message;
    for (;;) {
      const Input::Read read = input_.read_message(message);
      if (read == Input::Read::kEnd) break;
      if (read == Input::Read::kInterrupted || message.empty()) continue;
      if (is_command(message)) {
        if (!command(message)) break;
        continue;
      }
      say(message);
    }
    if (interactive_) std::fputc('\n', stdout);
    return 0;
  }

 private:
  // "/clear" or "/system be brief", but not a path, and not a text of several lines that begins with a slash.
  static bool is_command(const std::string& message) {
    const std::string name = message.substr(0, message.find(' '));
    return name.size() > 1 && name[0] == '/' && name.find('/', 1) == std::string::npos &&
           message.find('\n') == std::string::npos;
  }

  void say(const std::string& message) {
    unanswered_.clear();
    add("user", message);
    if (!answer()) messages_.as_array().pop_back();
  }

  void note(const std::string& text) const { std::printf("%s\n", faint(STDOUT_FILENO, text).c_str()); }

  // Returns false to leave.
  bool command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : trimmed(line.substr(space + 1));
    if (name == "/exit" || name == "/quit" || name == "/bye") return false;
    if (name == "/help") {
      std::fputs(kHelp, stdout);
    } else if (name == "/clear") {
      forget();
      note("(forgotten)");
    } else if (name == "/drop") {
      drop_command(rest);
    } else if (name == "/system") {
      system_ = rest;
      forget();
      note(rest.empty() ? "(system message removed)" : "(system message set)");
    } else if (name == "/retry") {
      retry();
    } else if (name == "/stats") {
      std::fputs(stats_.empty() ? "(no answer yet)\n" : stats_.c_str(), stdout);
    } else {
      const auto meant = closest_word(name, kCommands);
      std::printf("There is no command %s; %s/help lists the commands.\n", name.c_str(),
                  meant ? ("did you mean " + *meant + "? ").c_str() : "");
    }
    return true;
  }

  void retry() {
    if (!unanswered_.empty()) {
      say(std::string(unanswered_));
      return;
    }
    json::Array& list = messages_.as_array();
    if (list.empty() || list.back().find("role")->as_string() != "assistant") {
      note("(there is no message to answer again)");
      return;
    }
    list.pop_back();
    ++seed_shift_;
    if (!answer()) list.pop_back();
  }

  void forget() {
    unanswered_.clear();
    messages_ = json::Array{};
    if (!system_.empty()) add("system", system_);
  }

  void add(const char* role, const std::string& content) {
    json::Value message{json::Object{}};
    message.set("role", role);
    message.set("content", content);
    messages_.as_array().push_back(std::move(message));
  }

  // The number of turns that can be dropped, which do not include a last user message without an answer.
  size_t old_turns() const {
    const json::Array& list = messages_.as_array();
    const bool waits = !list.empty() && list.back().find("role")->as_string() == "user";
    return (list.size() - (system_.empty() ? 0 : 1) - (waits ? 1 : 0)) / 2;
  }

  // Forgets the oldest turn, a message and its answer; returns how it begins.
  std::string drop_turn() {
    json::Array& list = messages_.as_array();
    const auto first = list.begin() + (system_.empty() ? 0 : 1);
    const std::string dropped = excerpt(first->find("content")->as_string());
    list.erase(first, first + 2);
    return dropped;
  }

  void drop_command(const std::string& count_text) {
    size_t count = 0;
    const auto [end, failed] = std::from_chars(count_text.data(), count_text.data() + count_text.size(), count);
    if (!count_text.empty() && (failed != std::errc() || end != count_text.data() + count_text.size() || count == 0)) {
      std::printf("/drop needs the number of turns to forget, such as /drop 2.\n");
      return;
    }
    if (old_turns() == 0) {
      note("(there is no turn to forget)");
      return;
    }
    if (count_text.empty() && !unanswered_.empty()) {
      const std::string message = unanswered_;
      unanswered_.clear();
      add("user", message);
      if (!answer(true)) messages_.as_array().pop_back();
      return;
    }
    std::string dropped;
    const size_t wanted = std::min(std::max<size_t>(count, 1), old_turns());
    for (size_t i = 0; i < wanted; ++i) dropped += (i == 0 ? "" : ", ") + drop_turn();
    note("(forgot " + turns(wanted) + ": " + dropped + ")");
  }

  // The tokens of the conversation. If they leave too little room for an answer, drops the oldest turns or tells the
  // user what to do. Nothing if it cannot be answered now.
  std::optional<std::vector<int32_t>> fitting_prompt(const sampling::SamplingParams& params, bool drop) {
    const int64_t context = llm_.max_model_len();
    // Room for an answer: --max-tokens, but at most a quarter of the context.
    const int64_t wanted_room =
        std::min<int64_t>(params.max_tokens.value_or(context), std::max<int64_t>(context / 4, 1));
    std::string dropped;
    size_t count = 0;
    for (;;) {
      text::ChatRequest chat;
      chat.messages = messages_;
      auto tokens = llm_.tokens_of(llm::Prompt(std::move(chat)));
      if (!tokens.ok()) {
        report(tokens.error());
        return std::nullopt;
      }
      const auto size = static_cast<int64_t>(tokens->size());
      const bool crowded = size + (drop ? wanted_room : 1) > context;
      if (crowded && drop && old_turns() > 0) {
        dropped += (count++ == 0 ? "" : ", ") + drop_turn();
        continue;
      }
      if (count > 0) note("(forgot the oldest " + turns(count) + " to make room: " + dropped + ")");
      if (size < context) return std::move(*tokens);
      if (old_turns() == 0) {
        report(invalid_argument({"the message needs a prompt of ", size, " tokens, but the context length is ", context,
                                 ": send a shorter one, or start with a larger --max-model-len"}));
      } else {
        unanswered_ = messages_.as_array().back().find("content")->as_string();
        report(invalid_argument({"the context is full: the conversation has ", size, " tokens, and ", context,
                                 " fit; /drop forgets the oldest turns and answers, /clear forgets all of them "
                                 "(--drop-oldest drops them automatically)"}));
      }
      return std::nullopt;
    }
  }

  // Returns false if the message could not be answered and should be removed.
  bool answer(bool drop = false) {
    sampling::SamplingParams params = llm_.default_params();
    flags_.sampling.apply(params);
    params.n = 1;
    params.seed = flags_.options.seed.value_or(0) + seed_shift_;
    while (take_interrupt()) {
    }  // earlier interrupts do not concern this answer
    const auto start = Clock::now();
    auto prompt = fitting_prompt(params, drop || flags_.drop_oldest);
    if (!prompt) return false;
    PrefillLine prefill(llm_, static_cast<int64_t>(prompt->size()));
    llm::GenerateRequest request;
    request.prompt = std::move(*prompt);
    request.params = params;
    if (!llm_.own_adapters().empty()) request.adapter = llm_.own_adapters().front();
    auto id = llm_.submit(std::move(request));
    if (!id.ok()) {
      prefill.clear();
      report(id.error());
      return false;
    }
    Progress progress;
    if (!stream(*id, start, prefill, progress)) return false;
    finish(progress, start);
    return true;
  }

  using Clock = std::chrono::steady_clock;
  struct Progress {
    std::string text;
    double first_s = 0;
    int64_t tokens = 0, prompt = 0, cached = 0;
    engine::FinishReason finish = engine::FinishReason::kNone;
    bool stopped = false;
  };

  // Prints the answer as it is generated. Returns false if it failed.
  bool stream(engine::RequestId id, Clock::time_point start, PrefillLine& prefill, Progress& progress) {
    while (llm_.has_work()) {
      input_.collect();
      if (take_interrupt()) {
        llm_.abort(id);
        progress.stopped = true;
        break;
      }
      for (llm::Delta& delta : llm_.step()) {
        prefill.clear();
        if (delta.error) {
          report(*delta.error);
          return false;
        }
        if (progress.tokens == 0) progress.first_s = std::chrono::duration<double>(Clock::now() - start).count();
        progress.tokens += static_cast<int64_t>(delta.tokens.size());
        progress.prompt = delta.prompt_tokens;
        progress.cached = delta.cached_tokens;
        progress.text += delta.text;
        if (delta.finish != engine::FinishReason::kNone) progress.finish = delta.finish;
        std::fwrite(delta.text.data(), 1, delta.text.size(), stdout);
        std::fflush(stdout);
      }
      if (progress.tokens == 0) prefill.update();
    }
    prefill.clear();
    return true;
  }

  // Ends the line of the answer, marks an answer that was cut off, and keeps it.
  void finish(const Progress& progress, Clock::time_point start) {
    if (progress.stopped) std::fputs(faint(STDOUT_FILENO, " (stopped)").c_str(), stdout);
    std::fputc('\n', stdout);
    if (interactive_ && progress.finish == engine::FinishReason::kLength) {
      const bool full = progress.prompt + progress.tokens >= llm_.max_model_len();
      note(full ? "(cut off: the context of " + std::to_string(llm_.max_model_len()) +
                      " tokens is full; /drop forgets the oldest turns, /clear all of them)"
                : "(cut off after " + std::to_string(progress.tokens) + " tokens: --max-tokens)");
    }
    std::fflush(stdout);
    const double total = std::chrono::duration<double>(Clock::now() - start).count();
    const double decode_s = total - progress.first_s;
    char line[256];
    std::snprintf(line, sizeof line,
                  "prompt %lld tokens (%lld cached), first token after %.2f s, answer %lld tokens at %.1f tok/s\n",
                  static_cast<long long>(progress.prompt), static_cast<long long>(progress.cached), progress.first_s,
                  static_cast<long long>(progress.tokens),
                  progress.tokens > 1 && decode_s > 0 ? static_cast<double>(progress.tokens - 1) / decode_s : 0.0);
    stats_ = line;
    add("assistant", progress.text);
  }

  llm::Llm& llm_;
  const ChatFlags& flags_;
  std::string system_;
  Input input_;
  bool interactive_;
  json::Value messages_;
  std::string unanswered_;  // the message that did not fit, for /drop and /retry
  int64_t seed_shift_ = 0;
  std::string stats_;
};

}  // namespace

int chat(const ChatFlags& flags) {
  llm::Options options = flags.options;
  options.model = flags.model;
  auto llm = load_llm(options);
  if (!llm.ok()) return report(llm.error());
  if ((*llm)->tokenizer() == nullptr || (*llm)->chat_template() == nullptr) {
    return report(unsupported(
        {"'", (*llm)->name(), "' has no chat template; give one with --chat-template, or use quire run --raw"}));
  }
  catch_interrupts();
  return Conversation(**llm, flags).run();
}

void add_chat(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "Chat with a model in the terminal");
  command->footer(std::string("In the conversation:\n") + kHelp);
  command->add_option("MODEL", flags->model, "A folder, a .gguf, a cached name, or omitted for the default model")
      ->envname("QUIRE_MODEL")
      ->type_name(kModelValue);
  command->add_option("--system", flags->system, "System message")->envname("QUIRE_SYSTEM");
  add_switch(*command, "--drop-oldest", flags->drop_oldest,
             "If the context is full, forget the oldest turns and show which");
  add_switch(*command, "--history", flags->history, "Save typed messages for later conversations");
  add_model_flags(*command, flags->options);
  add_lora_flag(*command, flags->options);
  add_sampling_flags(*command, flags->sampling);
  command->callback([flags, &exit_code] { exit_code = chat(*flags); });
}

}  // namespace quire::cli
