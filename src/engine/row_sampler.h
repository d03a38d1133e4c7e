// SPDX-License-Identifier: Apache-2.0
// RowSampler: a step's rows of logits become tokens and logprobs, on the host or in the backend's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "backend/backend.h"
#include "engine/step.h"
#include "model/model.h"

namespace quire::engine {

// Rows of drafts are sampled like all others, but only those that count (Step::counts) are read: the others get no
// token. Owned by the engine, used on its thread. For each step, enqueue() is called once and then read() once, between
// the step's forward pass and the forward pass of the next step but one.
class RowSampler {
 public:
  // Sees each row of logits before it is sampled: request id, child, position of the row's token, logits.
  using LogitsTap = std::function<void(RequestId, int32_t, int64_t, std::span<const float>)>;

  virtual ~RowSampler() = default;

  // Whether sampled tokens stay in the backend's memory, so that the next step can start before read().
  virtual bool can_run_ahead() const = 0;
  // Queues the head and the sampling of step.rows, as far as the backend does them by itself.
  virtual void enqueue(Step& step) = 0;
  // Waits for the results: sets the token of each row to be sampled, and adds logprobs and errors to step.outputs.
  virtual void read(Step& step) = 0;

  void set_tap(LogitsTap tap) { tap_ = std::move(tap); }
  bool has_tap() const { return tap_ != nullptr; }

 protected:
  LogitsTap tap_;
};

// The sampler for this backend: in its memory if it can sample, else on the host. At most max_logit_rows rows are
// passed through the head at once.
std::unique_ptr<RowSampler> make_row_sampler(Backend& backend, model::Model& model, int64_t max_logit_rows);

// Ends a sequence with an error; the others go on.
void fail(const Error& error, Output& output);

// Whether the host reads the logits of such a request even if the backend samples. No step runs ahead of one that the
// host reads logits of.
bool needs_host_logits(const sampling::SamplingParams& params);

}  // namespace quire::engine
