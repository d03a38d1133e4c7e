// SPDX-License-Identifier: Apache-2.0
// Submission: all sequences of one API request, and Caller: the owner of its API key. The scheduler is fair to both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "engine/request.h"

namespace quire::engine {

// The owner of an API key; without keys, all requests have the same caller. Made and used by the scheduler only.
struct Caller {
  int64_t references = 0;         // sequences and pending requests that point to it
  int64_t running = 0;            // its running sequences
  uint64_t last_tag[2] = {0, 0};  // in the light and in the heavy queue, see Scheduler
  int64_t light_cost = 0;         // of what its light sequences want in the step being scheduled
  int64_t light_cost_given = 0;   // of what they were given so far
};

// All sequences of one API request: prompts times n. Whoever submits the request makes it; the members that are not
// const belong to the scheduler.
struct Submission {
  explicit Submission(int64_t sequences_in = 1, std::string caller_in = "", std::string label_in = "")
      : sequences(sequences_in), caller(std::move(caller_in)), label(std::move(label_in)) {}

  const int64_t sequences;
  const std::string caller;  // the name of the API key; "": no key
  const std::string label;   // what its client calls it ("chatcmpl-..."), for the live view; "": nothing

  int64_t running = 0;    // its running sequences
  uint64_t last_tag = 0;  // in the heavy queue, see Scheduler
  int64_t served = 0;     // cost of its shares so far; starts at Scheduler::heavy_clock_

  bool bulk() const { return sequences > 1; }
};

// A request whose sequences are made one at a time, when they are admitted, so that a waiting request takes the same
// memory for any n. Owned by the engine.
struct PendingRequest {
  RequestId id = 0;
  std::shared_ptr<const Request> request;
  std::shared_ptr<Submission> submission;
  uint64_t seed = 0;
  uint64_t arrival = 0;  // of the first child; child i has arrival + i
  int32_t next_child = 0;

  // Used by the scheduler only.
  bool waiting = false;      // in a queue
  bool heavy = false;        // in the heavy one
  uint64_t tag = 0;          // its order in the queue
  Caller* caller = nullptr;  // while it waits

  int64_t left() const { return request->params.n - next_child; }
};

}  // namespace quire::engine
