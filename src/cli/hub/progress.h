// SPDX-License-Identifier: Apache-2.0
// A progress bar on standard error, for downloads and for loading weights.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace quire::cli {

// Shows the progress of a task with a known number of bytes. On a terminal it is one line, redrawn at most ten times
// per second, with rate and remaining time; it is cleared or completed at the end. Elsewhere it prints nothing, or a
// line per 10%. All members may be called from any thread; add() costs an atomic addition when nothing is drawn.
class Progress {
 public:
  enum class Plain { kSilent, kLines };  // if the output is not a terminal

  explicit Progress(Plain plain = Plain::kSilent);
  // For tests: another descriptor, treated as a terminal with that many columns (0: not a terminal).
  Progress(int descriptor, Plain plain, int columns);
  ~Progress();  // clears a bar that was not finished
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Starts a task and ends the previous one. `total` 0 means unknown. The first `done` bytes do not count for the rate.
  void start(std::string_view label, uint64_t total, uint64_t done = 0);
  void add(uint64_t bytes);
  void set(uint64_t bytes);  // may go backwards: a download that restarts
  void finish();             // completes the task; its last state stays visible
  void clear();              // ends the task and clears its line
  // One line of text, above the bar if there is one.
  void note(std::string_view line);

 private:
  using Clock = std::chrono::steady_clock;
  void redraw();
  void draw(bool last);
  std::string bar_line(uint64_t done, double seconds) const;
  void write_all(std::string_view text) const;
  void wipe() const;

  const int descriptor_;
  const Plain plain_;
  const int fixed_columns_;  // -1: ask the terminal
  const bool terminal_;
  std::mutex mutex_;  // guards the members below, except the atomics
  bool active_ = false;
  bool drawn_ = false;
  std::string label_;
  uint64_t total_ = 0;
  uint64_t first_ = 0;
  int tenths_ = 0;
  Clock::time_point started_;
  std::atomic<uint64_t> done_ = 0;
  std::atomic<int64_t> next_draw_ns_ = 0;
};

}  // namespace quire::cli
