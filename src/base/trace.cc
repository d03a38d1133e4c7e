// SPDX-License-Identifier: Apache-2.0
// The recorder: a ring of spans for each thread, and the JSON file that they are written to.
#include "base/trace.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "base/json.h"

namespace quire::trace {

namespace internal {
std::atomic<bool> g_on = false;
std::atomic<const char*> g_work = nullptr;
}  // namespace internal

namespace {

struct Event {
  int64_t begin_ns;
  int64_t duration_ns;
  char name[Span::kMaxName + 1];
};

// The spans of one thread. That thread adds them; finish() reads them, which is the only time the lock is contended.
class Ring {
 public:
  Ring(size_t size, int number, std::string name)
      : events_(new Event[size]), size_(size), number_(number), name_(std::move(name)) {}

  void add(int64_t begin_ns, int64_t duration_ns, const char* name) {
    const std::lock_guard lock(mutex_);
    Event& event = events_[count_++ % size_];
    event.begin_ns = begin_ns;
    event.duration_ns = duration_ns;
    std::snprintf(event.name, sizeof event.name, "%s", name);
  }
  void write(std::FILE* file, int64_t origin_ns) {
    const std::lock_guard lock(mutex_);
    const int pid = static_cast<int>(::getpid());
    std::string quoted;
    json::append_quoted(quoted, name_);
    std::fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":%s}}", pid,
                 number_, quoted.c_str());
    for (size_t i = count_ > size_ ? count_ - size_ : 0; i < count_; ++i) {
      const Event& event = events_[i % size_];
      quoted.clear();
      json::append_quoted(quoted, event.name);
      std::fprintf(file, ",\n{\"ph\":\"X\",\"name\":%s,\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f}", quoted.c_str(),
                   pid, number_, static_cast<double>(event.begin_ns - origin_ns) * 1e-3,
                   static_cast<double>(event.duration_ns) * 1e-3);
    }
  }
  size_t lost() {
    const std::lock_guard lock(mutex_);
    return count_ > size_ ? count_ - size_ : 0;
  }

 private:
  std::mutex mutex_;
  const std::unique_ptr<Event[]> events_;  // not initialised: pages are committed as spans are added
  const size_t size_;
  const int number_;
  const std::string name_;
  size_t count_ = 0;  // spans ever added
};

// Never destroyed, since threads may outlive main(). Rings outlive their threads.
struct Recorder {
  std::mutex mutex;
  std::FILE* file = nullptr;
  std::filesystem::path path;
  size_t events_per_thread = 0;
  int64_t origin_ns = 0;
  std::atomic<uint64_t> recording = 0;  // number of the recording that the rings belong to
  std::vector<std::shared_ptr<Ring>> rings;
};
Recorder& recorder() {
  static Recorder* const one = new Recorder;
  return *one;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct ThisThread {
  std::string name;
  std::shared_ptr<Ring> ring;
  uint64_t recording = 0;
};
ThisThread& this_thread() {
  thread_local ThisThread one;
  return one;
}

Ring& this_ring() {
  ThisThread& thread = this_thread();
  Recorder& r = recorder();
  if (thread.ring == nullptr || thread.recording != r.recording.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(r.mutex);
    const int number = static_cast<int>(r.rings.size()) + 1;
    const std::string name = thread.name.empty() ? "thread " + std::to_string(number) : thread.name;
    thread.ring = std::make_shared<Ring>(r.events_per_thread, number, name);
    thread.recording = r.recording;
    r.rings.push_back(thread.ring);
  }
  return *thread.ring;
}

void finish_at_exit() {
  const Status status = finish();
  if (!status.ok()) std::fprintf(stderr, "quire: %s\n", status.error().message.c_str());
}

}  // namespace

Status start(const std::filesystem::path& file, size_t events_per_thread) {
  Recorder& r = recorder();
  const std::lock_guard lock(r.mutex);
  QUIRE_CHECK(events_per_thread > 0);
  if (r.file != nullptr && r.path == file) return {};
  if (r.file != nullptr) return invalid_argument({"a trace is being written to '", r.path.string(), "' already"});
  r.file = std::fopen(file.c_str(), "w");
  if (r.file == nullptr) {
    return invalid_argument({"--profile: '", file.string(), "' cannot be written: ", std::strerror(errno)});
  }
  r.path = file;
  r.events_per_thread = events_per_thread;
  r.rings.clear();
  ++r.recording;
  r.origin_ns = now_ns();
  static const int registered = std::atexit(finish_at_exit);
  (void)registered;
  internal::g_on.store(true);
  return {};
}

Status finish() {
  internal::g_on.store(false);
  Recorder& r = recorder();
  const std::lock_guard lock(r.mutex);
  if (r.file == nullptr) return {};
  std::fprintf(r.file,
               "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
               "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"quire\"}}",
               static_cast<int>(::getpid()));
  size_t lost = 0;
  for (const auto& ring : r.rings) {
    lost += ring->lost();
    ring->write(r.file, r.origin_ns);
  }
  std::fprintf(r.file, "\n],\"otherData\":{\"lost_spans\":%zu}}\n", lost);
  const bool failed = std::ferror(r.file) != 0;
  const bool closed = std::fclose(r.file) == 0;
  r.file = nullptr;
  r.rings.clear();
  if (failed || !closed) return {Error{ErrorCode::kUnavailable, "the trace '" + r.path.string() + "' is not complete"}};
  return {};
}

void name_thread(std::string name) {
  this_thread().name = std::move(name);
}

Span::Span(const char* format, ...) {
  if (!on()) return;
  va_list arguments;
  va_start(arguments, format);
  begin(format, arguments);
  va_end(arguments);
}

OpSpan::OpSpan(const char* format, ...) {
  if (!on()) return;
  va_list arguments;
  va_start(arguments, format);
  begin(format, arguments);
  va_end(arguments);
  internal::g_work.store(name_, std::memory_order_release);
}

void Span::begin(const char* format, va_list arguments) {
  std::vsnprintf(name_, sizeof name_, format, arguments);
  begin_ns_ = now_ns();
}

void Span::end() {
  const int64_t duration = now_ns() - begin_ns_;
  if (on()) this_ring().add(begin_ns_, duration, name_);
}

}  // namespace quire::trace
