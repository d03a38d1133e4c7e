// SPDX-License-Identifier: Apache-2.0
// Records spans of time per thread and writes them as a Chrome trace (chrome://tracing, ui.perfetto.dev).
#pragma once

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace quire::trace {

namespace internal {
extern std::atomic<bool> g_on;
extern std::atomic<const char*> g_work;
}  // namespace internal

// Whether spans are recorded. When they are not, this relaxed load is all that a span costs.
inline bool on() {
  return internal::g_on.load(std::memory_order_relaxed);
}

// Starts recording and opens the file, so that a wrong path fails before the work is done. Starting with the same file
// again does nothing; another file is an error until finish(). Each thread keeps its last `events_per_thread` spans in
// its own memory; older ones are dropped and counted.
// finish() writes the file; it also runs when the process exits.
Status start(const std::filesystem::path& file, size_t events_per_thread = size_t{1} << 16);
// Stops recording and writes the file, if a recording was started. Spans that threads have not left yet are not in the
// file.
Status finish();

// The calling thread's name in the trace; "thread N" otherwise.
void name_thread(std::string name);

// From its construction to the end of its scope, on this thread. Spans of a thread nest like scopes. The name is
// formatted only when spans are recorded, and truncated to kMaxName characters.
class Span {
 public:
  static constexpr size_t kMaxName = 79;
  __attribute__((format(printf, 2, 3))) explicit Span(const char* format, ...);
  ~Span() {
    if (begin_ns_ >= 0) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 protected:
  Span() = default;
  void begin(const char* format, va_list arguments);
  void end();
  int64_t begin_ns_ = -1;  // -1: not recorded
  char name_[kMaxName + 1];
};

// An op: a span that also names the work that other threads do for the op. One thread at a time may have one.
class OpSpan : public Span {
 public:
  __attribute__((format(printf, 2, 3))) explicit OpSpan(const char* format, ...);
  ~OpSpan() {
    if (begin_ns_ >= 0) internal::g_work.store(nullptr, std::memory_order_release);
  }
};

// One thread's share of an op; it REQUIRES that the op's OpSpan outlives it. A worker's span is named after the op. The
// thread that called the op is inside the OpSpan already; the time of that span outside its own share is waiting.
class WorkSpan : public Span {
 public:
  enum class Of { kCaller, kWorker };
  explicit WorkSpan(Of of) : Span("%s", of == Of::kCaller ? "own share" : work_name()) {}

 private:
  static const char* work_name() {
    const char* name = internal::g_work.load(std::memory_order_acquire);
    return name != nullptr ? name : "work";
  }
};

}  // namespace quire::trace
