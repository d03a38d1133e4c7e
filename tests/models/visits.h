// SPDX-License-Identifier: Apache-2.0
// Random traffic for an engine, and what each client of it receives.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace quire::testing {

// A request, the step at which it arrives, and after how many tokens its client goes away (0: never).
struct Visit {
  engine::Request request;
  int64_t step = 0;
  size_t leaves_after = 0;
};

// Listed tokens in order: their logprobs; ids and ranks in turn.
struct SeenLogprobs {
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;
};

// What a request's client received, per child.
struct Seen {
  std::vector<int32_t> tokens;
  SeenLogprobs answer, prompt;
  std::vector<uint64_t> digests;  // of the rows of logits, where the request asked for them
  engine::FinishReason finish = engine::FinishReason::kNone;
  std::optional<int32_t> stop_token;
};

using AllSeen = std::map<std::pair<size_t, int32_t>, Seen>;  // by request and child

// Requests with settings of all kinds, ends, constraints and clients that leave.
std::vector<Visit> random_visits(std::mt19937& rng, int count);

// The same for engines with drafts: nobody leaves, because a client may receive more tokens at once; some have
// priorities, prompt logprobs, min_p, or no seed. REQUIRES: the engines have the same seed.
std::vector<Visit> random_stays(std::mt19937& rng, int count);

// Runs them to the end; `added` learns the id of each request.
AllSeen run_visits(engine::Engine& engine, const std::vector<Visit>& visits,
                   const std::function<void(engine::RequestId, size_t)>& added = {});

void expect_equal(const AllSeen& a, const AllSeen& b, const std::string& what);

}  // namespace quire::testing
