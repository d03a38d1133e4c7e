// SPDX-License-Identifier: Apache-2.0
// The fake driver's stream: a list of work that runs when somebody waits for it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <vector>

namespace quire::fake {

using Work = std::function<void()>;

struct FakeStream {
  std::deque<Work> work;
  uint64_t queued = 0, done = 0;
  bool capturing = false;
  std::vector<Work> captured;

  static FakeStream* make() {
    auto* out = new FakeStream;
    alive().insert(out);
    return out;
  }
  static FakeStream* from(void* handle) {
    return alive().count(handle) > 0 ? static_cast<FakeStream*>(handle) : nullptr;
  }
  static void forget(void* handle) { alive().erase(handle); }

 private:
  static std::set<void*>& alive() {
    static std::set<void*> streams;
    return streams;
  }
};

// Adds work to a stream, or to the graph that it is capturing.
void queue(void* stream, Work work);

}  // namespace quire::fake
