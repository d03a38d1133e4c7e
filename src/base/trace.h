// SPDX-License-Identifier: Apache-2.0
// Spans of time by thread, written as a Chrome trace (chrome://tracing, ui.perfetto.dev).
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

// Whether spans are recorded: one relaxed load, which is all that a span costs when they are not.
inline bool on() {
  return internal::g_on.load(std::memory_order_relaxed);
}

// Begins to record and opens the file, so that a wrong path is known before the work is done; the same file again
// changes nothing, another one is an error until finish(). Each
// thread keeps its last `events_per_thread` spans in memory of its own; older ones are lost, and counted. The file is
// written by finish(), which is also called when the process exits.
Status start(const std::filesystem::path& file, size_t events_per_thread = size_t{1} << 16);
// Stops recording and writes the file; threads may still be inside spans, which are then left out. Nothing when there
// is nothing to write.
Status finish();

// The calling thread's name in the trace; "thread N" otherwise.
void name_thread(std::string name);

// From here to the end of its scope, on this thread. Spans of a thread nest as scopes do. The name is made only when
// spans are recorded, and cut to kMaxName characters.
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
  int64_t begin_ns_ = -1;  // not recorded
  char name_[kMaxName + 1];
};

// An op: a span whose name is also that of the work that other threads do for it meanwhile. From one thread at a time.
class OpSpan : public Span {
 public:
  __attribute__((format(printf, 2, 3))) explicit OpSpan(const char* format, ...);
  ~OpSpan() {
    if (begin_ns_ >= 0) internal::g_work.store(nullptr, std::memory_order_release);
  }
};

// A thread's share of an op, which may not end before this does. A worker's is named after the op; the thread that
// called the op has its span around it already, and what its share leaves of that is waiting.
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
