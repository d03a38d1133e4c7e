// SPDX-License-Identifier: Apache-2.0
// StepRecorder: decode steps that were recorded once and are run again.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/device.h"

namespace quire::gpu {

// The launches of one step, of one shape and with its arrays in one staging area. A step of few launches keeps them as
// a list, because each of them may then start while the one before ends; a graph starts and ends as a whole.
struct RecordedStep {
  struct Launch {
    const Kernel* kernel = nullptr;
    std::vector<std::byte> params;
    std::vector<void*> buffers;
    Grid grid;
    uint32_t threads = 0, dynamic_memory = 0;
  };
  struct Program {  // the ops of one joined launch (hopper/decode_step.h)
    std::unique_ptr<Memory> memory;
    std::vector<std::byte> code;  // until it is uploaded
  };
  std::vector<Program> programs;
  std::unique_ptr<Graph> graph;  // or, where the launches are few:
  std::vector<Launch> launches;
  bool others = false;  // work of other libraries was recorded too, which only a graph can repeat
  Tensor logits;        // whose largest value per row the last program finds as well
  int64_t seen = 0;     // how many steps of this shape there were

  bool recorded() const { return graph != nullptr || !launches.empty(); }
  // Whether joined launches are all that the step has.
  bool joined() const { return !programs.empty() && launches.size() == programs.size(); }
};

// Owned by the backend and used from its thread.
class StepRecorder {
 public:
  explicit StepRecorder(Device& device) : device_(device) {}

  // From now on nothing is recorded: something in the steps waits for the host.
  void turn_off() { off_ = true; }
  // Whether steps of this shape are worth recording, and the device can.
  bool takes(const GraphKey& shape) const;
  // Whether steps of such sequences may be recorded: decode steps, and those with drafts of few sequences. Their
  // launches follow from the GraphKey alone, whatever the contexts are and whichever sequence has the most tokens.
  static bool may_take(int64_t tokens, int64_t seqs, int64_t most_each);
  // The step of that shape whose arrays are in that staging area, new if there is none. Where there are too many, the
  // one that was seen least is dropped.
  RecordedStep& step(const GraphKey& shape, int area);
  // Drops the steps of a staging area whose addresses have changed.
  void forget_area(int area);
  void forget_all();

  bool recording() const { return current_ != nullptr; }
  RecordedStep& current() { return *current_; }  // REQUIRES: recording()
  void begin(RecordedStep& step);
  // Called for each launch, and for each work of another library; remembers them while a step is recorded.
  void note(const Launch& launch);
  void note_other();
  // Ends the recording; the step is ready to run. REQUIRES: recording()
  RecordedStep& finish();
  void run(const RecordedStep& step);

 private:
  Device& device_;
  using Steps = std::map<std::pair<GraphKey, int>, RecordedStep>;
  // Steps beside those of several ranks are kept apart: they must not drop one that the other ranks still have.
  Steps& steps_of(int area) { return area < 2 ? steps_ : steps_beside_; }
  Steps steps_, steps_beside_;
  RecordedStep* current_ = nullptr;  // that is being recorded
  bool off_ = false;
};

}  // namespace quire::gpu
