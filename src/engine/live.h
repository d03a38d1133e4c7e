// SPDX-License-Identifier: Apache-2.0
// What the server's live view shows of an engine: its sequences, and its pages as a map.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/request.h"
#include "kv/offload_types.h"
#include "kv/page_map.h"

namespace quire::engine {

enum class LiveState : uint8_t { kWaiting, kPrefill, kDecode, kPreempted };
const char* name(LiveState state);

struct LiveSequence {
  RequestId id = 0;
  int32_t child = 0;
  std::string label;   // what its client calls it
  std::string caller;  // the name of its API key
  LiveState state = LiveState::kWaiting;
  int64_t prompt = 0, tokens = 0, computed = 0, cached = 0;  // tokens; `tokens` is the prompt and the answer so far
  int64_t preemptions = 0;
  int64_t pages = 0;
};

struct LiveView {
  kv::PageMap map;                      // PageCell::owner counts `sequences`, from 1
  std::vector<LiveSequence> sequences;  // those that run, then those that wait; at most kMaxSequences
  int64_t unlisted = 0;                 // how many more there are
  kv::TierMap tiers;                    // pages on disk and in the host's memory

  // Adds the view of another engine, whose pages are of the same kind: its cells and sequences follow, and the counts
  // are sums.
  void append(LiveView next);

  static constexpr int32_t kMaxCells = 4096;
  static constexpr size_t kMaxSequences = 128;
};

struct LivePage {
  kv::PageView view;
  std::vector<LiveSequence> holders;
};

}  // namespace quire::engine
