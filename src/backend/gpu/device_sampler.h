// SPDX-License-Identifier: Apache-2.0
// DeviceSampler: samples tokens on the device; the results are read back while the next step runs.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/gpu/launcher.h"
#include "backend/gpu/scratch.h"
#include "kernels/params/sampling.h"
#include "ops/sampling.h"

namespace quire::gpu {

// The largest logit of each row as a joined step has found it: one SamplePartial per row and threadgroup.
struct KnownLargest {
  void* partials = nullptr;  // null: not known
  int threadgroups = 0;
};

// Results have two areas that are used in turn, so that one is filled while the host reads the other. The functions are
// those of Backend (backend/backend.h). Owned by the backend and used from its thread.
class DeviceSampler {
 public:
  DeviceSampler(Device& device, Launcher& launcher) : device_(device), launcher_(launcher), saved_(device) {}

  Status prepare(int64_t rows, int64_t rows_of_a_call, int64_t vocab);
  size_t device_bytes() const;  // REQUIRES: prepare()
  void sample(const SampleArgs& args, const KnownLargest& largest);
  uint64_t finish(int64_t rows);
  SampledRows sampled(uint64_t finished);

  // Token ids of the next step that the last one has sampled. They wait until the step's arrays are on the device.
  void set_pending_tokens(const TakeSampledArgs& args);
  const std::optional<TakeSampledArgs>& pending_tokens() const { return pending_tokens_; }
  // The same for wanted rows, which depend on these tokens.
  void set_pending_rows(const SkipAcceptedArgs& args);
  bool has_pending_rows() const { return pending_rows_.has_value(); }
  // Fills in what waits, by launches of their own.
  void fill_pending();
  // For a launch that fills them in beside other work: they wait no longer.
  TakeSampledArgs take_pending_tokens();
  // What the last finished step has sampled, on the device.
  const void* last_results() const { return areas_[1 - next_].results->address(); }

 private:
  struct Area {
    std::unique_ptr<Memory> results, top;            // on the device
    std::unique_ptr<Memory> host_results, host_top;  // read back
    std::unique_ptr<Memory> host_digests;            // SampleDigestSums [rows, kSampleDigestParts], written by kernels
    std::unique_ptr<Memory> host_inputs, inputs;     // settings, edits and masks of the rows
    size_t inputs_used = 0;                          // bytes
    size_t inputs_known = 0;                         // bytes from the beginning that are equal on host and device
    uint64_t mark = 0;                               // the work that reads and fills it
    bool open = false;                               // between the first sample() and finish()
    bool has_top = false;                            // some row wants the likeliest tokens
    std::vector<bool> digested;                      // by row: its sums are wanted; empty if no row's are
    int digest_parts = 0;                            // that have sums
    int64_t digest_columns = 0;                      // of the digested rows
    std::vector<uint64_t> digests;                   // what sampled() returns
    int64_t rows = 0;                                // finished
  };
  struct Inputs {  // a piece of an area's input memory, on both sides
    std::byte* host = nullptr;
    std::byte* device = nullptr;
  };
  // Where the rows of one call are on the device.
  struct RowInputs {
    const void *settings, *edits, *masks;
  };
  Area& open_area();
  Inputs allocate_inputs(Area& area, size_t bytes);
  RowInputs upload_inputs(Area& area, const SampleArgs& args);
  void launch_digest(Area& area, const SampleArgs& args, const RowInputs& in);
  static void add_digests(Area& area);
  void launch_top_k_top_p(const SampleParams& p, const Tensor& logits, const RowInputs& in, void* partials, Grid rows,
                          Grid chunks);

  Device& device_;
  Launcher& launcher_;
  Area areas_[2];
  int next_ = 0;                   // the area that the next sample() fills; the other one was finished last
  std::vector<std::byte> packed_;  // the inputs of one sample(), before they go to the area
  std::unique_ptr<Memory> partials_, bins_, logprobs_;
  std::unique_ptr<Memory> values_, candidates_, searches_, thresholds_;  // of the search for top-k, top-p and min-p
  Scratch saved_;                                                        // logits before edits
  int64_t rows_ = 0, rows_of_a_call_ = 0, chunks_ = 0;
  std::optional<TakeSampledArgs> pending_tokens_;
  std::optional<SkipAcceptedArgs> pending_rows_;
};

}  // namespace quire::gpu
