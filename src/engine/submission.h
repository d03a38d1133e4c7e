// SPDX-License-Identifier: Apache-2.0
// Submission: what one client sent at once, the unit that the scheduler is fair to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "engine/request.h"

namespace quire::engine {

// The owner of an API key (or nobody, where there are no keys). Made by the scheduler, touched on its thread alone.
struct Caller {
  int64_t live = 0;               // sequences and pending requests that refer to it
  int64_t running = 0;            // its sequences that hold a seat
  uint64_t last_tag[2] = {0, 0};  // its last place in the light and in the heavy queue: see Scheduler
  int64_t light_cost = 0;         // of what its light sequences want of the step that is being made
  int64_t light_cost_given = 0;   // and of what they have got so far
};

// All sequences of one API request: prompts times n. Whoever submits makes it, with `caller` and `sequences` set; the
// rest belongs to the scheduler's thread.
struct Submission {
  explicit Submission(int64_t sequences_in = 1, std::string caller_in = "")
      : sequences(sequences_in), caller(std::move(caller_in)) {}

  const int64_t sequences;
  const std::string caller;  // the name of the API key; "": none

  int64_t running = 0;    // sequences that hold a seat
  uint64_t last_tag = 0;  // its last place in the heavy queue: see Scheduler
  int64_t served = 0;     // cost of its shares, on the clock that heavy submissions share

  bool bulk() const { return sequences > 1; }
};

// A request whose sequences are made one at a time, each when its turn to be admitted has come, so that a waiting
// request costs the same memory for any n. Owned by the engine.
struct PendingRequest {
  RequestId id = 0;
  std::shared_ptr<const Request> request;
  std::shared_ptr<Submission> submission;
  uint64_t seed = 0;
  uint64_t arrival = 0;  // of the first child; the others' follow it
  int32_t next_child = 0;

  // The scheduler's own.
  bool waiting = false;      // in a queue
  bool heavy = false;        // which one
  uint64_t tag = 0;          // its place there
  Caller* caller = nullptr;  // while it waits

  int64_t left() const { return request->params.n - next_child; }
};

}  // namespace quire::engine
