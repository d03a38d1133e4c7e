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

// Shows how far a task of a known number of bytes is. On a terminal: one line, redrawn at most ten times a second, with
// rate and time left, cleared or completed at the end, so nothing is left half drawn. Elsewhere: nothing, or a line
// each 10%. All members may be called from any thread; add() costs an atomic addition when nothing is to be drawn.
class Progress {
 public:
  enum class Plain { kSilent, kLines };  // what to do when the output is no terminal

  explicit Progress(Plain plain = Plain::kSilent);
  // For tests: another descriptor, and whether to treat it as a terminal of that many columns (0: no terminal).
  Progress(int descriptor, Plain plain, int columns);
  ~Progress();  // clears a bar that was not finished
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Starts a task, ending one before; `total` 0 means unknown. `done` bytes were there already and count for no rate.
  void start(std::string_view label, uint64_t total, uint64_t done = 0);
  void add(uint64_t bytes);
  void set(uint64_t bytes);  // also backwards: a download that begins again
  void finish();             // completes the task: the last state stays on its own line
  void clear();              // ends the task and wipes its line
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
  std::mutex mutex_;  // guards all below but the atomics
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
