// SPDX-License-Identifier: Apache-2.0
// The line editor on libedit, with its own keys for history, completion and bracketed paste.
#include "cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/utf8.h"
#include "cli/command.h"
#include "cli/terminal.h"

namespace quire::cli {
namespace {

constexpr size_t kMaxHistory = 1000;
constexpr size_t kMaxPaste = size_t{16} << 20;  // characters
// Terminals with bracketed paste send \e[200~ and \e[201~ around pasted text once this is turned on.
constexpr char kPasteOn[] = "\x1b[?2004h";
constexpr char kPasteOff[] = "\x1b[?2004l";
constexpr wchar_t kToEnd = L'\x05';  // Ctrl-E
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";

// For the signal handlers, which restore the original terminal mode before the program stops or ends.
termios g_found{};
volatile sig_atomic_t g_active = 0;
volatile sig_atomic_t g_resized = 0;
volatile sig_atomic_t g_continued = 0;

void put_back() {
  if (g_active == 0) return;
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, kPasteOff, sizeof kPasteOff - 1);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &g_found);
}

void on_end(int signal) {  // SA_RESETHAND: a second signal ends the program
  put_back();
  ::raise(signal);
}

void set_handler(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = flags;
  ::sigaction(signal, &action, nullptr);
}

void on_suspend(int) {
  const int saved = errno;
  put_back();
  struct sigaction usual {
  }, own{};
  usual.sa_handler = SIG_DFL;
  sigemptyset(&usual.sa_mask);
  ::sigaction(SIGTSTP, &usual, &own);
  sigset_t stop, before;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, &before);  // the process stops here until SIGCONT
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::sigaction(SIGTSTP, &own, nullptr);
  g_continued = 1;
  errno = saved;
}

void on_resize(int) {
  g_resized = 1;
}

// The display must know the width of characters, whatever the user's locale is.
void use_utf8() {
  const char* own = std::setlocale(LC_CTYPE, "");
  if (own != nullptr && std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0) return;
  for (const char* name : {"C.UTF-8", "en_US.UTF-8", "UTF-8"}) {
    if (std::setlocale(LC_CTYPE, name) != nullptr) return;
  }
}

std::string to_utf8(std::wstring_view text) {
  std::string out;
  for (const wchar_t c : text) utf8::append(out, static_cast<char32_t>(c));
  return out;
}

std::wstring to_wide(std::string_view text) {
  std::wstring out;
  for (size_t at = 0; at < text.size();) {
    const utf8::Decoded c = utf8::decode(text, at);
    out += static_cast<wchar_t>(c.code_point);
    at += c.size;
  }
  return out;
}

class EditLineEditor : public LineEditor {
 public:
  explicit EditLineEditor(std::vector<std::string> commands) : commands_(std::move(commands)) {
    use_utf8();
    ::tcgetattr(STDIN_FILENO, &g_found);
    g_active = 1;
    line_ = el_init("quire", stdin, stdout, stderr);
    el_set(line_, EL_CLIENTDATA, this);
    el_set(line_, EL_PROMPT, &prompt_of);
    el_set(line_, EL_EDITOR, "emacs");
    el_set(line_, EL_SIGNAL, 0);
    el_set(line_, EL_GETCFN, &get_char);
    // Between prompts, while an answer is computed, there is no echo and no line buffering.
    el_set(line_, EL_SETTY, "-x", "-icanon", "-echo", "-icrnl", "+noflsh", nullptr);
    el_set(line_, EL_SETTY, "-d", "-icrnl", "-inlcr", nullptr);  // so that a pasted "\r\n" is one line break
    bind_keys();
    el_source(line_, nullptr);  // ~/.editrc: the user's key bindings
    enter_quiet_mode();
    set_handler(SIGTERM, on_end, static_cast<int>(SA_RESETHAND));
    set_handler(SIGHUP, on_end, static_cast<int>(SA_RESETHAND));
    set_handler(SIGTSTP, on_suspend, SA_RESTART);
    set_handler(SIGWINCH, on_resize, 0);
  }

  ~EditLineEditor() override {
    set_handler(SIGTERM, SIG_DFL, 0);
    set_handler(SIGHUP, SIG_DFL, 0);
    set_handler(SIGTSTP, SIG_DFL, 0);
    set_handler(SIGWINCH, SIG_DFL, 0);
    std::fflush(stdout);
    el_end(line_);
    put_back();
    g_active = 0;
  }
  EditLineEditor(const EditLineEditor&) = delete;
  EditLineEditor& operator=(const EditLineEditor&) = delete;

  Read read(const std::string& prompt, std::string& message) override {
    prompt_ = prompt;
    interrupted_ = false;
    place_ = history_.size();
    draft_.clear();
    if (g_continued != 0) enter_quiet_mode();
    g_continued = 0;
    int size = 0;
    const wchar_t* text = el_wgets(line_, &size);
    if (text == nullptr || size <= 0) return interrupted_ ? Read::kInterrupted : Read::kEnd;
    std::wstring_view read_text(text, static_cast<size_t>(size));
    while (!read_text.empty() && (read_text.back() == L'\n' || read_text.back() == L'\r')) read_text.remove_suffix(1);
    message = to_utf8(read_text);
    return Read::kMessage;
  }

  void collect() override {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    while (typed_.size() < kMaxPaste && ::poll(&input, 1, 0) > 0 && (input.revents & POLLIN) != 0) {
      if (!read_more()) return;
    }
  }

  void remember(const std::string& message) override {
    std::wstring text = to_wide(message);
    if (text.empty() || (!history_.empty() && history_.back() == text)) return;
    history_.push_back(std::move(text));
    if (history_.size() > kMaxHistory) history_.erase(history_.begin());
  }

 private:
  using Key = unsigned char (*)(EditLine*, wint_t);

  static EditLineEditor& of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return *static_cast<EditLineEditor*>(self);
  }
  static char* prompt_of(EditLine* line) { return of(line).prompt_.data(); }

  void bind_keys() {
    const auto add = [&](const char* name, const char* help, Key key) { el_set(line_, EL_ADDFN, name, help, key); };
    const auto bind = [&](const char* keys, const char* name) { el_set(line_, EL_BIND, keys, name, nullptr); };
    add("quire-paste", "Insert pasted text", [](EditLine* line, wint_t) { return of(line).paste(); });
    add("quire-complete", "Complete a command", [](EditLine* line, wint_t) { return of(line).complete(); });
    add("quire-newline", "Insert a line break", [](EditLine* line, wint_t) { return insert(line, L"\n"); });
    add("quire-up", "Previous line or message", [](EditLine* line, wint_t) { return of(line).up(); });
    add("quire-down", "Next line or message", [](EditLine* line, wint_t) { return of(line).down(); });
    add("quire-delete", "Delete a character or leave", [](EditLine* line, wint_t) { return delete_or_leave(line); });
    bind("^D", "quire-delete");
    bind("\\e[200~", "quire-paste");
    bind("\\t", "quire-complete");
    bind("\\e\\r", "quire-newline");
    bind("\\e\\n", "quire-newline");
    for (const char* keys : {"\\e[A", "\\eOA", "^P"}) bind(keys, "quire-up");
    for (const char* keys : {"\\e[B", "\\eOB", "^N"}) bind(keys, "quire-down");
    for (const char* keys : {"\\e[H", "\\eOH", "\\e[1~"}) bind(keys, "ed-move-to-beg");
    for (const char* keys : {"\\e[F", "\\eOF", "\\e[4~"}) bind(keys, "ed-move-to-end");
    bind("\\e[3~", "ed-delete-next-char");
    bind("\\e[1;5C", "em-next-word");
    bind("\\e[1;5D", "ed-prev-word");
  }

  // Sets the mode between prompts, at the start; libedit does so from the first prompt on.
  static void enter_quiet_mode() {
    termios mode = g_found;
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    mode.c_lflag |= NOFLSH;  // Ctrl-C stops the answer and keeps what was typed meanwhile
    mode.c_iflag &= ~static_cast<tcflag_t>(ICRNL);
    mode.c_cc[VMIN] = 1;
    mode.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
    std::fputs(kPasteOn, stdout);
    std::fflush(stdout);
  }

  // Reads one typed character. 1: success; 0: the terminal was closed; -1: Ctrl-C.
  static int get_char(EditLine* line, wchar_t* out) {
    EditLineEditor& self = of(line);
    for (;;) {
      if (self.interrupted_) {
        errno = EINTR;
        return -1;
      }
      if (self.take_char(out)) return 1;
      pollfd ends[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_descriptor(), POLLIN, 0}};
      const int ready = ::poll(ends, 2, -1);
      self.follow_signals();
      if (ready < 0) continue;
      if (take_interrupt()) {
        // Moves the cursor to the end of the abandoned line, so that what follows does not overwrite it.
        self.interrupted_ = true;
        self.typed_.clear();
        self.at_ = 0;
        *out = kToEnd;
        return 1;
      }
      if (ends[0].revents != 0 && !self.read_more()) return 0;
    }
  }

  // Reads what is available. False if the terminal was closed.
  bool read_more() {
    char buffer[4096];
    const ssize_t size = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (size > 0) typed_.append(buffer, static_cast<size_t>(size));
    return size > 0 || (size < 0 && (errno == EINTR || errno == EAGAIN));
  }

  // A whole character of what was read, if there is one. A byte that is not UTF-8 becomes U+FFFD.
  bool take_char(wchar_t* out) {
    if (at_ == typed_.size()) {
      typed_.clear();
      at_ = 0;
      return false;
    }
    const std::string_view rest = std::string_view(typed_).substr(at_);
    if (utf8::incomplete_suffix(rest) == rest.size()) return false;  // the rest will follow
    const utf8::Decoded c = utf8::decode(rest, 0);
    *out = static_cast<wchar_t>(c.code_point);
    at_ += c.size;
    return true;
  }

  void follow_signals() {
    if (g_resized != 0) {
      g_resized = 0;
      el_resize(line_);
    }
    if (g_continued != 0) {
      g_continued = 0;
      el_set(line_, EL_PREP_TERM, 0);
      el_set(line_, EL_PREP_TERM, 1);
      std::fputs(kPasteOn, stdout);
      std::fputc('\n', stdout);
      el_set(line_, EL_REFRESH);
    }
  }

  static unsigned char insert(EditLine* line, const std::wstring& text) {
    if (text.empty()) return CC_NORM;
    return el_winsertstr(line, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  // Ctrl-D: ends the input on an empty line, else deletes the character under the cursor. (libedit's own prints "^D".)
  static unsigned char delete_or_leave(EditLine* line) {
    const LineInfoW* info = el_wline(line);
    if (info->lastchar == info->buffer) return CC_EOF;
    if (info->cursor == info->lastchar) return CC_ERROR;
    el_cursor(line, 1);
    el_deletestr(line, 1);
    return CC_REFRESH;
  }

  // Inserts everything up to the end of the paste, with line breaks but without other control characters.
  unsigned char paste() {
    std::wstring text;
    while (text.size() < kMaxPaste) {
      wchar_t c = 0;
      if (el_wgetc(line_, &c) != 1) return CC_EOF;
      text += c;
      if (text.ends_with(kPasteEnd)) {
        text.resize(text.size() - kPasteEnd.size());
        break;
      }
    }
    std::wstring clean;
    for (size_t i = 0; i < text.size(); ++i) {
      const wchar_t c = text[i];
      if (c == L'\r') {
        if (i + 1 == text.size() || text[i + 1] != L'\n') clean += L'\n';
      } else if (c == L'\n' || c == L'\t' || (c >= 0x20 && c != 0x7f)) {
        clean += c;
      }
    }
    return insert(line_, clean);
  }

  unsigned char complete() {
    const LineInfoW* info = el_wline(line_);
    const std::string typed =
        to_utf8(std::wstring_view(info->buffer, static_cast<size_t>(info->cursor - info->buffer)));
    if (typed.empty() || typed[0] != '/') return insert(line_, L"\t");
    std::vector<std::string> found;
    for (const std::string& command : commands_) {
      if (command.starts_with(typed)) found.push_back(command);
    }
    if (found.empty()) return CC_ERROR;
    std::string common = found[0];
    for (const std::string& one : found) {
      const auto differ = std::mismatch(common.begin(), common.end(), one.begin(), one.end());
      common.erase(differ.first, common.end());
    }
    if (common.size() > typed.size() || found.size() == 1) {
      return insert(line_, to_wide(common.substr(typed.size()) + (found.size() == 1 ? " " : "")));
    }
    std::fputc('\n', stdout);
    for (const std::string& one : found) std::printf("%s  ", one.c_str());
    std::fputc('\n', stdout);
    return CC_REDISPLAY;
  }

  // Replaces the whole line and moves the cursor to its end.
  unsigned char replace(const std::wstring& text) {
    const LineInfoW* info = el_wline(line_);
    const auto size = static_cast<int>(info->lastchar - info->buffer);
    el_cursor(line_, static_cast<int>(info->lastchar - info->cursor));
    if (size > 0) el_deletestr(line_, size);
    return text.empty() ? CC_REFRESH : insert(line_, text);
  }

  // Up and down first move within a message of several lines, then through the history. (libedit's own history keeps
  // only the first 1,024 characters of the line that is left.)
  unsigned char up() {
    const LineInfoW* info = el_wline(line_);
    const std::wstring_view before(info->buffer, static_cast<size_t>(info->cursor - info->buffer));
    const size_t line_start = before.rfind(L'\n');
    if (line_start != std::wstring_view::npos) {
      const size_t above = line_start == 0 ? std::wstring_view::npos : before.rfind(L'\n', line_start - 1);
      const size_t above_start = above == std::wstring_view::npos ? 0 : above + 1;
      const size_t column = before.size() - line_start - 1;
      const size_t target = std::min(above_start + column, line_start);
      el_cursor(line_, static_cast<int>(target) - static_cast<int>(before.size()));
      return CC_REFRESH;
    }
    if (place_ == 0) return CC_ERROR;
    if (place_ == history_.size()) draft_.assign(info->buffer, info->lastchar);
    return replace(history_[--place_]);
  }

  unsigned char down() {
    const LineInfoW* info = el_wline(line_);
    const std::wstring_view all(info->buffer, static_cast<size_t>(info->lastchar - info->buffer));
    const auto cursor = static_cast<size_t>(info->cursor - info->buffer);
    const size_t line_end = all.find(L'\n', cursor);
    if (line_end != std::wstring_view::npos) {
      const size_t before = cursor == 0 ? std::wstring_view::npos : all.rfind(L'\n', cursor - 1);
      const size_t column = before == std::wstring_view::npos ? cursor : cursor - before - 1;
      const size_t below_end = std::min(all.find(L'\n', line_end + 1), all.size());
      const size_t target = std::min(line_end + 1 + column, below_end);
      el_cursor(line_, static_cast<int>(target - cursor));
      return CC_REFRESH;
    }
    if (place_ >= history_.size()) return CC_ERROR;
    ++place_;
    return replace(place_ == history_.size() ? draft_ : history_[place_]);
  }

  const std::vector<std::string> commands_;
  EditLine* line_ = nullptr;  // owned: from el_init(), freed in the destructor
  std::string prompt_;
  std::string typed_;  // bytes that were read
  size_t at_ = 0;      // how many of them were consumed
  bool interrupted_ = false;
  std::vector<std::wstring> history_;
  size_t place_ = 0;    // index of the message shown; history_.size(): the new message
  std::wstring draft_;  // the new message, while an older one is shown
};

}  // namespace

std::unique_ptr<LineEditor> LineEditor::open(std::vector<std::string> commands) {
  if (!is_capable_terminal(STDIN_FILENO) || !is_capable_terminal(STDOUT_FILENO)) return nullptr;
  return std::make_unique<EditLineEditor>(std::move(commands));
}

}  // namespace quire::cli
