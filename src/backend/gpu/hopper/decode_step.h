// SPDX-License-Identifier: Apache-2.0
// JoinedStep: the ops of a recorded decode step of few sequences as one launch (kernels/cuda/decode_step.cuh, sm_90a).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/device_sampler.h"
#include "backend/gpu/launcher.h"
#include "backend/gpu/scratch.h"
#include "backend/gpu/staging.h"
#include "backend/gpu/step_recorder.h"
#include "kernels/params/decode_step.h"

namespace quire::gpu {

// While a step is recorded, ops that the kernel knows wait here as long as each takes the output of the one before it.
// What waits becomes one launch when another op is launched or the step ends; if it is too little, or does not fit, it
// becomes the launches that the ops have by themselves. Both give the same bits. Owned by the backend and used from its
// thread; on a device without Hopper's kernels nothing is ever joined.
class JoinedStep {
 public:
  JoinedStep(Backend& ops, Device& device, Launcher& launcher, StepRecorder& recorder, bool hopper);

  // Steps of so many sequences are joined; by default four, or what QUIRE_CUDA_JOIN says.
  void set_most_rows(int rows) { most_rows_ = rows; }
  // After so many launches of joined steps their flags begin anew. They have room for 2^24.
  void set_most_runs(uint64_t runs) { most_runs_ = runs; }

  // Whether the head's product is joined in steps of so many rows.
  bool joins_head(int64_t rows) const;
  // Memory for steps of these sizes.
  Status reserve(const WorkspaceLimits& sizes);
  size_t device_bytes() const { return exchange_.bytes() + scores_.bytes() + partials_.bytes(); }

  // Each takes the op if it can wait, and returns false if the caller must launch it.
  bool join_embedding(const EmbeddingArgs& args);
  bool join_linear(const LinearArgs& args, DType type);
  bool join_add(const AddNormArgs& args);
  bool join_qkv(const QkvToCacheArgs& args);
  bool join_attention(const AttentionArgs& args, bool one_token_each);
  // Launches what waits.
  void finish();

  // Called before each run of a recorded step, with the number of its joined launches, and after it.
  void before_run(size_t programs);
  void after_run(const RecordedStep& step);
  // Called when anything else is launched: the largest logits are known no longer.
  void forget_logits() { logits_ = {}; }
  // What the last launch has found of these rows, if it was a joined step and all that they want is the largest logit.
  KnownLargest largest_logits(const SampleArgs& args) const;
  // Copies a step's arrays and fills in its pending tokens in one launch. Only before a joined step: other kernels read
  // the arrays before they wait for the launch before them, because a copy has put the arrays in place before the first
  // kernel of the step began. False: the caller uploads them.
  bool stage_with_tokens(Staging& staging, DeviceSampler& sampler);

 private:
  struct Part {
    StepOp op;
    Tensor out;
    std::function<void()> alone;  // launches the op by itself
  };
  bool joins(DType type, int64_t rows) const;
  bool follows(const LinearArgs& args, DType type) const;
  bool follows_add(const LinearArgs& args) const;
  StepLinearOp linear_op(const LinearArgs& args);
  void keep_stream(StepLinearOp& op);
  void begin_parts(const LinearArgs& args, DType type);
  void embed_first();
  bool launch();
  bool allocate_flags();
  void* upload_program(int slots, int chunk);

  Backend& ops_;
  Device& device_;
  Launcher& launcher_;
  StepRecorder& recorder_;
  bool hopper_;
  int most_rows_;

  std::vector<Part> parts_;
  std::optional<QkvToCacheArgs> qkv_;       // waits for its attention
  std::optional<EmbeddingArgs> embedding_;  // of the step's tokens: the input of the first part
  bool embedded_ = false;                   // a part writes where the embedding would
  std::optional<AddNormArgs> add_;          // of the last part's output; waits for the product that normalises the sum
  bool finishing_ = false;
  // What the parts have in common:
  DType type_ = DType::kBF16;
  int rows_ = 0, most_k_ = 0, head_dim_ = 0, window_ = 0;
  Tensor stream_;          // the residual stream, if the first part normalises it
  bool streamed_ = false;  // a part adds to it
  bool added_ = false;     // an epilogue does
  bool general_ = false;   // only the general form of the kernel has all parts
  int64_t heads_ = 0, kv_heads_ = 0, positions_ = 0;
  i64 entries_ = 0;                                              // of an exchange buffer
  const void *contexts_ = nullptr, *token_positions_ = nullptr;  // arrays of the step

  Scratch exchange_, scores_, partials_;
  std::unique_ptr<Memory> epochs_;
  std::unique_ptr<Memory> largest_;  // the largest logit of each row and threadgroup
  Tensor logits_;                    // that largest_ belongs to, while nothing else was launched since
  uint64_t runs_ = 0;                // of programs since flags began to count
  uint64_t most_runs_ = uint64_t{1} << 22;
};

}  // namespace quire::gpu
