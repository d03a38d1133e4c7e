// SPDX-License-Identifier: Apache-2.0
// The scheduler of one threadgroup's fibers, and the functions that kernels call (kernels/compat/emulator_calls.h).
#include "backend/emulator/worker.h"

#include <cstring>
#include <numeric>
#include <string_view>

#include "base/check.h"
#include "kernels/compat/emulator_calls.h"

#ifdef QUIRE_ASAN
#include <sanitizer/asan_interface.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace quire::emulator {
namespace {

constexpr uint32_t kLanes = 32;
constexpr uint32_t kMaxThreads = 1024;
constexpr size_t kThreadgroupBytes = 128 << 10;  // kernels for all GPUs have 32 KB at most (compat/host.h)
constexpr size_t kCanaryBytes = 256;
constexpr unsigned char kPoison = 0xff;  // NaN in every float type
constexpr unsigned char kCanary = 0xa5;

std::string name_of(const Site& site) {
  std::string_view file = site.file;
  const size_t at = file.rfind("kernels/");
  if (at != std::string_view::npos) file.remove_prefix(at);
  return std::string(site.what) + " at " + std::string(file) + ":" + std::to_string(site.line);
}

bool same(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0) &&
         (a.what == b.what || std::strcmp(a.what, b.what) == 0);
}

// Rounds to nearest and keeps subnormals, whatever mode the thread had; restored at the end.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) {
    _mm_setcsr(0x1f80);
  }
  ~FloatMode() {
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  }
  ~FloatMode() {
    asm volatile("msr fpcr, %0" ::"r"(saved_));
  }

 private:
  uint64_t saved_;
#endif
};

enum class Step : uint8_t { kReady, kRunning, kInSimdgroup, kInThreadgroup, kDone };

struct Copy {
  void* to;
  const void* from;
};

struct Lane {
  Fiber fiber;
  StackPool::Stack stack = {nullptr, nullptr};
  Position at;
  Step step;
  uint32_t phase;  // which of the simdgroup's two sets of slots the last exchange used
  uint64_t trail;  // a hash of all sites that it has passed with converge()
  Site last;       // the last of these sites
  Site waiting;    // where it waits
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // for each committed group, the number of copies up to its end
};

// Two sets of slots, used alternately: a lane may write for the next operation while others still read the current one.
struct Simdgroup {
  uint32_t arrived;
  uint32_t first_lane;  // the first lane that arrived
  bool looked[2];
  alignas(64) unsigned char slots[2][kLanes][kSlotBytes];
  alignas(64) unsigned char result[2][kResultBytes];
};

// Ids of the threads that can run, taken from the front.
class RunQueue {
 public:
  void clear() { head_ = tail_ = 0; }
  bool empty() const { return head_ == tail_; }
  void push_back(uint32_t tid) { ids_[tail_++ % kSize] = static_cast<uint16_t>(tid); }
  void push_front(uint32_t tid) { ids_[--head_ % kSize] = static_cast<uint16_t>(tid); }
  uint32_t pop() { return ids_[head_++ % kSize]; }

 private:
  static constexpr uint32_t kSize = 2048;  // a power of two above kMaxThreads
  std::array<uint16_t, kSize> ids_;
  uint32_t head_ = 0, tail_ = 0;
};

}  // namespace

struct Worker::State {
  StackPool stacks;
  std::vector<Lane> lanes = std::vector<Lane>(kMaxThreads);
  std::vector<Simdgroup> simdgroups = std::vector<Simdgroup>(kMaxThreads / kLanes);
  std::vector<uint32_t> order;       // thread ids in the order in which they start and leave barriers
  std::vector<uint32_t> simd_order;  // the same, one simdgroup after another
  int ordered = -1;                  // the Job::order that both are for, if it is that of any threadgroup
  RunQueue queue;
  Fiber scheduler;
  const Job* job = nullptr;
  Lane* current = nullptr;
  uint32_t in_barrier = 0;
  uint32_t first_in_barrier = 0;
  uint32_t done = 0;
  std::string fault;
  std::unique_ptr<unsigned char[]> memory_block =
      std::make_unique<unsigned char[]>(kThreadgroupBytes + 2 * kCanaryBytes);
  unsigned char* memory = nullptr;

  State();
  void begin(uint64_t index);
  void order_lanes(uint64_t index);
  void arm_memory();
  void check_memory();
  void check_trails();
  [[noreturn]] void leave();
  void describe_stuck();
  void stuck();
  void run_next();
  void release_simdgroup(uint32_t simdgroup);
  void release_threadgroup();
  void meet(const Site& site);
  void barrier(const Site& site);
  void finish();
  std::string thread_name(const Lane& lane) const;
};

namespace {
thread_local Worker::State* worker = nullptr;  // the worker that runs on this thread

void fiber_entry() {
  enter_fiber();
  Worker::State& w = *worker;
  w.job->kernel->entry(w.job->params, w.job->buffers, w.memory);
  w.finish();
}
}  // namespace

Worker::State::State() {
  const uintptr_t start = reinterpret_cast<uintptr_t>(memory_block.get());
  memory = memory_block.get() + ((start + kCanaryBytes - 1) / kCanaryBytes * kCanaryBytes - start);
}

std::string Worker::State::thread_name(const Lane& lane) const {
  return "thread " + std::to_string(lane.at.tid) + " (simdgroup " + std::to_string(lane.at.sg) + ", lane " +
         std::to_string(lane.at.lane) + ")";
}

// Abandons the group for the reason in `fault`: control returns to run_group(), and none of its fibers is resumed. The
// caller must own nothing, because objects on its stack are never destroyed.
void Worker::State::leave() {
  switch_fiber(current->fiber, scheduler, true);
  QUIRE_CHECK(false, "an abandoned fiber was resumed");
  __builtin_unreachable();
}

// No fiber can run: one of them waits for a thread that has ended or waits elsewhere.
void Worker::State::describe_stuck() {
  const Lane *waits = nullptr, *elsewhere = nullptr;
  for (uint32_t i = 0; i < job->threads; i++) {
    const Lane& lane = lanes[i];
    if (lane.step == Step::kDone) continue;
    if (waits == nullptr) {
      waits = &lane;
    } else if (elsewhere == nullptr && !same(lane.waiting, waits->waiting)) {
      elsewhere = &lane;
    }
  }
  std::string why = "divergent threads: " + thread_name(*waits) + " waits in " + name_of(waits->waiting);
  if (elsewhere != nullptr) {
    why += ", " + thread_name(*elsewhere) + " in " + name_of(elsewhere->waiting);
  } else {
    uint32_t ended = 0;
    while (ended + 1 < job->threads && lanes[ended].step != Step::kDone) ended++;
    why += ", " + thread_name(lanes[ended]) + " has ended";
  }
  fault = why;
}

void Worker::State::stuck() {
  describe_stuck();
  leave();
}

void Worker::State::run_next() {
  if (queue.empty()) stuck();
  Lane& from = *current;
  Lane& to = lanes[queue.pop()];
  to.step = Step::kRunning;
  current = &to;
  if (&from != &to) switch_fiber(from.fiber, to.fiber);
}

// The end of a fiber.
void Worker::State::finish() {
  current->step = Step::kDone;
  if (++done == job->threads) {
    switch_fiber(current->fiber, scheduler, true);
  } else {
    if (queue.empty()) stuck();
    Lane& from = *current;
    Lane& to = lanes[queue.pop()];
    to.step = Step::kRunning;
    current = &to;
    switch_fiber(from.fiber, to.fiber, true);
  }
  QUIRE_CHECK(false, "an ended fiber was resumed");
}

void Worker::State::release_simdgroup(uint32_t simdgroup) {
  const uint32_t first = simdgroup * kLanes;
  const bool ahead = job->order % 2 != 0;
  const uint32_t* lanes_in_order = &simd_order[first];
  for (uint32_t i = 0; i < kLanes; i++) {
    const uint32_t tid = lanes_in_order[ahead ? kLanes - 1 - i : i];
    if (lanes[tid].step != Step::kInSimdgroup) continue;
    lanes[tid].step = Step::kReady;
    if (ahead) {
      queue.push_front(tid);
    } else {
      queue.push_back(tid);
    }
  }
}

void Worker::State::release_threadgroup() {
  for (uint32_t tid : order) {
    if (lanes[tid].step != Step::kInThreadgroup) continue;
    lanes[tid].step = Step::kReady;
    queue.push_back(tid);
  }
}

// A point that all 32 lanes must reach together: at the same site, with the same trail.
void Worker::State::meet(const Site& site) {
  Lane& me = *current;
  Simdgroup& group = simdgroups[me.at.sg];
  me.waiting = site;
  if (group.arrived == 0) {
    group.first_lane = me.at.tid;
  } else {
    const Lane& first = lanes[group.first_lane];
    if (!same(first.waiting, site)) {
      fault = "divergent simdgroup: " + thread_name(first) + " is in " + name_of(first.waiting) + ", " +
              thread_name(me) + " in " + name_of(site);
      leave();
    }
    if (first.trail != me.trail) {
      fault = "divergent simdgroup before " + name_of(site) + ": " + thread_name(first) + " came from " +
              name_of(first.last) + ", " + thread_name(me) + " from " + name_of(me.last);
      leave();
    }
  }
  if (++group.arrived == kLanes) {
    group.arrived = 0;
    group.looked[me.phase] = false;
    release_simdgroup(me.at.sg);
    return;
  }
  me.step = Step::kInSimdgroup;
  run_next();
}

void Worker::State::barrier(const Site& site) {
  Lane& me = *current;
  me.waiting = site;
  if (in_barrier == 0) {
    first_in_barrier = me.at.tid;
  } else if (const Lane& first = lanes[first_in_barrier]; !same(first.waiting, site)) {
    fault = "divergent barrier: " + thread_name(first) + " is in " + name_of(first.waiting) + ", " + thread_name(me) +
            " in " + name_of(site);
    leave();
  }
  me.step = Step::kInThreadgroup;
  if (++in_barrier == job->threads) {
    in_barrier = 0;
    release_threadgroup();
  }
  run_next();
}

void Worker::State::order_lanes(uint64_t index) {
  const uint32_t n = job->threads;
  if (job->order == ordered && order.size() == n) return;
  ordered = job->order <= 1 ? job->order : -1;
  order.resize(n);
  simd_order.resize(n);
  std::iota(order.begin(), order.end(), 0u);
  if (job->order == 1) {
    for (uint32_t i = 0; i < n; i++) order[i] = n - 1 - i;
  } else if (job->order > 1) {
    uint64_t seed = (static_cast<uint64_t>(job->order) << 32) + index;
    for (uint32_t i = n - 1; i > 0; i--) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i], order[(seed >> 33) % (i + 1)]);
    }
  }
  std::array<uint32_t, kMaxThreads / kLanes> count{};
  for (uint32_t tid : order) simd_order[tid / kLanes * kLanes + count[tid / kLanes]++] = tid;
}

void Worker::State::begin(uint64_t index) {
  const uint64_t x = job->grid[0], y = job->grid[1];
  const uint32_t tgx = static_cast<uint32_t>(index % x), tgy = static_cast<uint32_t>(index / x % y),
                 tgz = static_cast<uint32_t>(index / x / y);
  queue.clear();
  in_barrier = done = 0;
  scheduler = {};
  fault.clear();
  for (uint32_t i = 0; i < job->threads / kLanes; i++) {
    simdgroups[i].arrived = 0;
    simdgroups[i].looked[0] = simdgroups[i].looked[1] = false;
  }
  for (uint32_t i = 0; i < job->threads; i++) {
    Lane& lane = lanes[i];
    lane.at = {tgx, tgy, tgz, i, i / kLanes, i % kLanes};
    lane.step = Step::kReady;
    lane.phase = 0;
    lane.trail = 0;
    lane.last = {"the start", "", 0};
    lane.copies.clear();
    lane.groups.clear();
    if (lane.stack.top == nullptr) lane.stack = stacks.stack(i);
    make_fiber(lane.fiber, lane.stack.bottom, lane.stack.top, fiber_entry);
  }
}

// Threadgroup memory is filled with poison, since no kernel may rely on its contents, and ends where the kernel's
// struct ends.
void Worker::State::arm_memory() {
  const size_t bytes = job->kernel->threadgroup_bytes;
#ifdef QUIRE_ASAN
  __asan_unpoison_memory_region(memory, kThreadgroupBytes + kCanaryBytes);
#endif
  std::memset(memory, kPoison, bytes);
  std::memset(memory + bytes, kCanary, kCanaryBytes);
#ifdef QUIRE_ASAN
  __asan_poison_memory_region(memory + bytes, kThreadgroupBytes + kCanaryBytes - bytes);
#endif
}

void Worker::State::check_memory() {
  const size_t bytes = job->kernel->threadgroup_bytes;
#ifdef QUIRE_ASAN
  __asan_unpoison_memory_region(memory, kThreadgroupBytes + kCanaryBytes);
#endif
  for (size_t i = 0; i < kCanaryBytes; i++) {
    if (memory[bytes + i] == kCanary) continue;
    fault = "wrote past the end of its threadgroup memory (byte " + std::to_string(bytes + i) + " of " +
            std::to_string(bytes) + ")";
    return;
  }
}

void Worker::State::check_trails() {
  for (uint32_t i = 0; i < job->threads; i++) {
    const Lane &lane = lanes[i], &first = lanes[i / kLanes * kLanes];
    if (lane.trail == first.trail) continue;
    fault = "divergent simdgroup at the end: " + thread_name(first) + " came from " + name_of(first.last) + ", " +
            thread_name(lane) + " from " + name_of(lane.last);
    return;
  }
}

Worker::Worker() : state_(std::make_unique<State>()) {}
Worker::~Worker() = default;

std::string Worker::run_group(const Job& job, uint64_t index) {
  State& s = *state_;
  QUIRE_CHECK(job.threads % kLanes == 0 && job.threads > 0 && job.threads <= kMaxThreads, job.kernel->name);
  QUIRE_CHECK(job.kernel->threadgroup_bytes <= kThreadgroupBytes, job.kernel->name);
  const FloatMode mode;
  s.job = &job;
  s.begin(index);
  s.order_lanes(index);
  s.arm_memory();
  for (uint32_t tid : s.order) s.queue.push_back(tid);
  s.current = &s.lanes[s.queue.pop()];
  s.current->step = Step::kRunning;
  worker = &s;
  switch_fiber(s.scheduler, s.current->fiber);
  worker = nullptr;
  if (s.fault.empty()) s.check_trails();
  if (s.fault.empty()) s.check_memory();
  if (s.fault.empty()) return {};
  s.stacks.clean();
  const Position& c = s.lanes[0].at;
  return std::string("kernel ") + job.kernel->name + ", threadgroup (" + std::to_string(c.tgx) + ", " +
         std::to_string(c.tgy) + ", " + std::to_string(c.tgz) + "): " + s.fault;
}

// The functions that kernels call.

Position position() {
  return worker->current->at;
}

void threadgroup_barrier(Site site) {
  worker->barrier(site);
}

void simdgroup_barrier(Site site) {
  worker->meet(site);
}

void converge(Site site) {
  Lane& lane = *worker->current;
  lane.trail = (lane.trail ^ (static_cast<uint64_t>(site.line) * 31 + reinterpret_cast<uintptr_t>(site.what))) *
               0x9e3779b97f4a7c15u;
  lane.last = site;
}

void tile_load(const void* p, size_t row_bytes, uint32_t lane, Site site) {
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0 || row_bytes % 16 != 0) {
    worker->fault = name_of(site) + ": a tile's rows must start on 16-byte boundaries";
    worker->leave();
  }
  if (lane != worker->current->at.lane) {
    worker->fault = name_of(site) + ": the lane argument is not the number of the calling lane";
    worker->leave();
  }
  converge(site);
}

Exchanged exchange(const void* value, size_t bytes, Site site) {
  Worker::State& w = *worker;
  Lane& lane = *w.current;
  Simdgroup& group = w.simdgroups[lane.at.sg];
  lane.phase ^= 1;
  const uint32_t phase = lane.phase;
  unsigned char* slot = group.slots[phase][lane.at.lane];
  if (bytes == 4) {  // nearly always, and without a call
    std::memcpy(slot, value, 4);
  } else {
    std::memcpy(slot, value, bytes);
  }
  w.meet(site);
  const bool first = !group.looked[phase];
  group.looked[phase] = true;
  return {&group.slots[phase][0][0], lane.at.lane, first, group.result[phase]};
}

void copy_begin(void* to, const void* from, Site site) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    worker->fault = name_of(site) + ": both addresses must be multiples of 16";
    worker->leave();
  }
  worker->current->copies.push_back({to, from});
}

void copy_commit() {
  Lane& lane = *worker->current;
  lane.groups.push_back(lane.copies.size());
}

void copy_wait(int still_under_way) {
  Lane& lane = *worker->current;
  if (lane.groups.size() <= static_cast<size_t>(still_under_way)) return;
  const size_t landing = lane.groups.size() - static_cast<size_t>(still_under_way);
  const size_t copies = lane.groups[landing - 1];
  for (size_t i = 0; i < copies; i++) std::memcpy(lane.copies[i].to, lane.copies[i].from, 16);
  lane.copies.erase(lane.copies.begin(), lane.copies.begin() + static_cast<std::ptrdiff_t>(copies));
  lane.groups.erase(lane.groups.begin(), lane.groups.begin() + static_cast<std::ptrdiff_t>(landing));
  for (size_t& end : lane.groups) end -= copies;
}

}  // namespace quire::emulator
