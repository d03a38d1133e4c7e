// SPDX-License-Identifier: Apache-2.0
// Recording and running steps.
#include "backend/gpu/step_recorder.h"

#include <algorithm>

#include "backend/gpu/device_failure.h"
#include "base/check.h"

namespace quire::gpu {
namespace {

constexpr size_t kMostSteps = 512;
// With more tokens a step's work takes longer than its launches, which run ahead of it; and shapes would rarely recur.
constexpr int64_t kMostTokens = 32;
// Of steps with drafts. There are more shapes the more sequences there are, and each is recorded by itself.
constexpr int64_t kMostDraftSeqs = 4, kMostDraftTokens = 9;
constexpr size_t kFewLaunches = 16;  // at most so many are kept as a list instead of a graph

}  // namespace

bool StepRecorder::takes(const GraphKey& shape) const {
  // The arrays of adapters have other sizes where sequences have other numbers of tokens.
  return device_.info().graphs && !off_ && may_take(shape.tokens, shape.seqs, shape.most_each) &&
         (shape.most_each == 1 || shape.adapters == 0);
}

bool StepRecorder::may_take(int64_t tokens, int64_t seqs, int64_t most_each) {
  if (tokens == 0 || tokens > kMostTokens) return false;
  return most_each == 1 || (seqs <= kMostDraftSeqs && most_each <= kMostDraftTokens);
}

RecordedStep& StepRecorder::step(const GraphKey& shape, int area) {
  Steps& steps = steps_of(area);
  if (steps.size() >= kMostSteps) {
    steps.erase(std::min_element(steps.begin(), steps.end(),
                                 [](const auto& a, const auto& b) { return a.second.seen < b.second.seen; }));
  }
  return steps[{shape, area}];
}

void StepRecorder::forget_area(int area) {
  QUIRE_CHECK(!recording());
  std::erase_if(steps_of(area), [&](const auto& step) { return step.first.second == area; });
}

void StepRecorder::forget_all() {
  QUIRE_CHECK(!recording());
  steps_.clear();
  steps_beside_.clear();
}

void StepRecorder::begin(RecordedStep& step) {
  current_ = &step;
  device_.begin_recording();
}

void StepRecorder::note(const Launch& launch) {
  if (!recording()) return;
  const auto* params = static_cast<const std::byte*>(launch.params);
  current_->launches.push_back({launch.kernel,
                                {params, params + launch.params_bytes},
                                {launch.buffers.begin(), launch.buffers.end()},
                                launch.grid,
                                launch.threads,
                                launch.dynamic_memory});
}

void StepRecorder::note_other() {
  if (recording()) current_->others = true;
}

RecordedStep& StepRecorder::finish() {
  RecordedStep& step = *std::exchange(current_, nullptr);
  auto graph = require(device_.end_recording());
  if (step.launches.size() > kFewLaunches || step.others) {
    step.graph = std::move(graph);
    step.launches.clear();
  }
  for (RecordedStep::Program& program : step.programs) {
    device_.upload(program.memory->address(), program.code.data(), program.code.size());
    program.code.clear();
  }
  return step;
}

void StepRecorder::run(const RecordedStep& step) {
  if (step.graph != nullptr) return device_.run(*step.graph);
  for (const RecordedStep::Launch& l : step.launches) {
    device_.launch({l.kernel, l.params.data(), l.params.size(), l.buffers, l.grid, l.threads, l.dynamic_memory});
  }
}

}  // namespace quire::gpu
