// SPDX-License-Identifier: Apache-2.0
// Draws the progress bar.
#include "cli/hub/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "cli/hub/model_cache.h"

namespace quire::cli {
namespace {

constexpr int64_t kRedrawNs = 100'000'000;
constexpr int kBarCells = 24;

int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

bool can_redraw(int descriptor) {
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::string_view(term) == "dumb";
  return ::isatty(descriptor) == 1 && !dumb;
}

int terminal_columns(int descriptor) {
  struct winsize size {};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string clock_text(double seconds) {
  if (!(seconds < 360'000)) return "--:--";
  const int whole = static_cast<int>(seconds + 0.5);
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%d:%02d", whole / 60, whole % 60);
  }
  return text;
}

}  // namespace

Progress::Progress(Plain plain)
    : descriptor_(STDERR_FILENO), plain_(plain), fixed_columns_(-1), terminal_(can_redraw(STDERR_FILENO)) {}

Progress::Progress(int descriptor, Plain plain, int columns)
    : descriptor_(descriptor), plain_(plain), fixed_columns_(columns), terminal_(columns > 0) {}

Progress::~Progress() {
  clear();
}

void Progress::start(std::string_view label, uint64_t total, uint64_t done) {
  clear();
  const std::lock_guard lock(mutex_);
  active_ = true;
  label_ = std::string(label);
  total_ = total;
  first_ = done;
  done_ = done;
  tenths_ = total == 0 ? 0 : static_cast<int>(static_cast<double>(done) / static_cast<double>(total) * 10);
  started_ = Clock::now();
  next_draw_ns_ = 0;
  draw(false);
}

void Progress::add(uint64_t bytes) {
  done_.fetch_add(bytes, std::memory_order_relaxed);
  redraw();
}

void Progress::set(uint64_t bytes) {
  done_.store(bytes, std::memory_order_relaxed);
  redraw();
}

// Draws if it is time and no other thread is drawing.
void Progress::redraw() {
  if (!terminal_ && plain_ == Plain::kSilent) return;
  if (terminal_ && now_ns() < next_draw_ns_.load(std::memory_order_relaxed)) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) draw(false);
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  draw(true);
  if (drawn_) write_all("\n");
  active_ = drawn_ = false;
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  wipe();
  active_ = drawn_ = false;
}

void Progress::note(std::string_view line) {
  const std::lock_guard lock(mutex_);
  wipe();
  drawn_ = false;
  write_all(std::string(line) + "\n");
  next_draw_ns_ = 0;
  draw(false);
}

// Draws if it is time, or if this is the last state of the task. REQUIRES: the lock is held.
void Progress::draw(bool last) {
  if (!active_) return;
  const uint64_t done = done_.load(std::memory_order_relaxed);
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  if (terminal_) {
    const int64_t now = now_ns();
    if (!last && now < next_draw_ns_.load(std::memory_order_relaxed)) return;
    next_draw_ns_ = now + kRedrawNs;
    write_all("\r" + bar_line(done, seconds) + "\x1b[K");
    drawn_ = true;
    return;
  }
  if (plain_ == Plain::kSilent) return;
  const int tenths =
      total_ == 0 ? 0 : std::min(10, static_cast<int>(static_cast<double>(done) / static_cast<double>(total_) * 10));
  if (tenths <= tenths_ && !(last && tenths_ < 10)) return;
  tenths_ = last ? 10 : tenths;
  std::string line = label_ + ": ";
  if (total_ > 0) line += std::to_string(std::min(tenths, 10) * 10) + "% of " + human_bytes(total_);
  if (total_ == 0) line += human_bytes(done);
  write_all(line + "\n");
}

// "label  [#####...]  41%  12.3 MB of 98.4 MB  24.1 MB/s  0:04 left", truncated to the terminal's width.
std::string Progress::bar_line(uint64_t done, double seconds) const {
  const double rate = seconds > 0.05 && done > first_ ? static_cast<double>(done - first_) / seconds : 0;
  std::string tail = "  ";
  std::string bar;
  if (total_ > 0) {
    const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
    const int cells = static_cast<int>(part * kBarCells);
    bar = "  [" + std::string(static_cast<size_t>(cells), '#') +
          std::string(static_cast<size_t>(kBarCells - cells), '.') + "]";
    char percent[16];
    std::snprintf(percent, sizeof percent, "%3d%%  ", static_cast<int>(part * 100));
    tail += percent + human_bytes(done) + " of " + human_bytes(total_);
  } else {
    tail += human_bytes(done);
  }
  if (rate > 0) tail += "  " + human_bytes(static_cast<uint64_t>(rate)) + "/s";
  if (rate > 0 && total_ > done) tail += "  " + clock_text(static_cast<double>(total_ - done) / rate) + " left";
  // One column stays free: some terminals would wrap a full line, and the next redraw would leave garbage.
  const int columns = fixed_columns_ > 0 ? fixed_columns_ : terminal_columns(descriptor_);
  const size_t room = columns > 1 ? static_cast<size_t>(columns - 1) : 0;
  std::string label = label_;
  if (label.size() + bar.size() + tail.size() > room) bar.clear();
  if (label.size() + tail.size() > room) {
    // Keeps the end of a long label, and never half a UTF-8 character.
    size_t cut = label.size() + tail.size() - room + 3;
    if (cut < label.size()) {
      while (cut < label.size() && (static_cast<unsigned char>(label[cut]) & 0xc0) == 0x80) ++cut;
      label = "..." + label.substr(cut);
    } else {
      label.clear();
    }
  }
  std::string line = label + bar + tail;
  if (line.size() > room) line.resize(room);
  return line;
}

void Progress::wipe() const {
  if (drawn_) write_all("\r\x1b[K");
}

void Progress::write_all(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nobody reads it, which does not matter for progress
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace quire::cli
