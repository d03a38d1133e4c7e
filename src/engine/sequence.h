// SPDX-License-Identifier: Apache-2.0
// Sequence: one stream of tokens inside the engine (a request has n of them).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/proposer.h"
#include "engine/request.h"
#include "engine/submission.h"
#include "kv/block_table.h"

namespace quire::engine {

// The state of one sequence. Owned by the engine, used on its thread only. tokens = prompt + output so far; the first
// num_computed of them have their K and V in pages. A preempted sequence keeps its tokens and restarts at num_computed
// 0.
//
// While a step is in flight (engine/step.h), the token that it samples is not known yet, but the next step may compute
// it all the same: num_to_compute() counts it.
//
// With speculation, a step computes drafts after the last token. They are no part of `tokens` until the step has
// sampled the same tokens; then num_computed counts those that were accepted.
struct Sequence {
  // Without a submission, the sequence is a submission of its own.
  Sequence(RequestId id_in, int32_t child_in, const Request& request, uint64_t seed_in, uint64_t arrival_in,
           std::shared_ptr<Submission> submission_in = nullptr)
      : id(id_in),
        child(child_in),
        submission(submission_in != nullptr ? std::move(submission_in) : std::make_shared<Submission>()),
        params(request.params),
        priority(request.priority),
        arrival(arrival_in),
        seed(seed_in),
        tokens(request.prompt),
        prompt_size(static_cast<int64_t>(request.prompt.size())),
        history(request.prompt),
        constraint_source(request.constraint),
        adapter(request.adapter),
        pool(request.pool),
        second_segment(request.second_segment),
        table(request.cache_key(), request.stored_cache_key()) {
    if (adapter != nullptr) table.set_origin({request.cache_salt, request.adapter_name, adapter->id});
  }

  RequestId id;
  int32_t child;
  std::shared_ptr<Submission> submission;
  sampling::SamplingParams params;
  int64_t priority;
  uint64_t arrival;  // the order in which sequences were added
  uint64_t seed;

  std::vector<int32_t> tokens;
  int64_t prompt_size;
  int64_t num_computed = 0;
  int64_t cached_tokens = 0;        // at the first admission, for usage
  int64_t restored_tokens = 0;      // of cached_tokens: they came from a tier
  bool restored_from_disk = false;  // at least some of them
  bool admitted_before = false;
  int64_t num_preemptions = 0;
  std::chrono::steady_clock::time_point scheduled;  // when it was first admitted
  int64_t prompt_logprobs_sent = 0;  // prompt positions whose logprobs were returned; kept when preempted
  sampling::History history;
  // What restricts its tokens; null if nothing does. The constraint is made when its first mask is filled, and it keeps
  // its state when the sequence is preempted.
  ConstraintPtr constraint_source;
  std::unique_ptr<Constraint> constraint;
  int64_t num_accepted = 0;   // output tokens that the constraint has seen
  model::AdapterPtr adapter;  // null: none
  model::PoolRows pool;       // as in Request
  int64_t second_segment;
  std::vector<float> pooled;  // of the positions so far: the sum for a mean, else the rows that are kept
  kv::BlockTable table;

  int32_t row_in_flight = -1;   // row of the step in flight that samples its next token; -1: none
  uint64_t step_in_flight = 0;  // the number of that step
  bool ends_in_flight = false;  // that token reaches the longest length

  std::unique_ptr<Proposer> proposer;  // made with the first drafts
  DraftPace pace;
  DraftPace forced_pace;        // of drafts that the constraint forces
  std::vector<int32_t> drafts;  // of the step being computed, see Share::drafts
  bool drafts_forced = false;   // they are from the constraint
  int32_t draft_row = -1;       // row of the drafter's last pass that samples the last of them; -1: it is known
  int64_t num_drafted = 0;      // positions of which a draft model has its K and V in the pages (ModelDrafter)

  // Used by the scheduler only.
  bool waiting = false;        // in a queue
  bool heavy = false;          // in the heavy one
  uint64_t tag = 0;            // its order in the queue
  Caller* caller = nullptr;    // while it waits or runs
  uint64_t preempted_in = 0;   // the step that preempted it last
  int64_t allowance = 0;       // tokens that it may have in the step being scheduled
  bool restore_tried = false;  // the tiers were asked for its pages since it began to wait

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_output() const { return num_tokens() - prompt_size; }
  // Whether logprobs of prompt tokens are still to be returned. Child 0 returns them for all n.
  bool owes_prompt_logprobs() const {
    return params.prompt_logprobs && child == 0 && prompt_logprobs_sent + 1 < prompt_size;
  }
  bool pools() const { return pool != model::PoolRows::kNone; }
  // Whether cached pages may stand for the beginning of the prompt: not if its hidden states are needed.
  bool may_read_prefix() const { return !owes_prompt_logprobs() && (!pools() || pool == model::PoolRows::kLast); }
  bool in_flight() const { return row_in_flight >= 0; }
  int64_t num_to_compute() const { return num_tokens() + (in_flight() && !ends_in_flight ? 1 : 0); }
};

}  // namespace quire::engine
