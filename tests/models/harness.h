// SPDX-License-Identifier: Apache-2.0
// What the model tests share: engines on dummy weights, and runs that record every logit.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "llm/load.h"

namespace quire::testing {

// The record of one sequence: its output tokens, and the logits of each row that was read, by position.
struct Trace {
  std::vector<int32_t> tokens;
  std::map<int64_t, std::vector<float>> logits;
};

inline std::filesystem::path goldens_folder() {
  return std::filesystem::path(QUIRE_SOURCE_DIR) / "tests" / "goldens";
}

// The device of the tests: cpu, or the one that QUIRE_TEST_DEVICE names.
std::string test_device();

// A small engine with `options`; fails the test with the error message.
std::unique_ptr<engine::Engine> make_engine(const llm::Options& options);
// Whether its pages are enough for one request of the full length.
bool fits(const llm::Options& options);
llm::Options dummy_options(const std::string& golden_case);
// The device for ranks of a GPU: the emulator, or with QUIRE_TEST_DEVICE=cuda the GPUs that QUIRE_TEST_GPUS names
// ("0,1,2,3"), over NCCL. Without that variable all ranks have the first GPU, and exchange bytes through the host's
// memory, since NCCL takes a GPU for one rank alone.
std::string device_of_gpu_ranks();

// Runs the requests together to the end. `order` (if given) is the order in which they are submitted, with `stagger`
// steps between one submission and the next.
std::vector<Trace> run(engine::Engine& engine, const std::vector<engine::Request>& requests,
                       const std::vector<size_t>& order = {}, int stagger = 0);

engine::Request greedy_request(std::vector<int32_t> prompt, int64_t max_tokens);

// Compares everything by memcmp; empty if equal, otherwise the first difference.
std::string difference(const Trace& a, const Trace& b);

// The spans of a Chrome trace of what `work` does, by the time at which they begin; in microseconds.
struct SpanTimes {
  std::string name;
  double begin = 0, end = 0;
};
std::vector<SpanTimes> spans_of(const std::function<void()>& work);

// The ISA levels of this machine, for engines forced to each; on a device other than the CPU, one without a name.
std::vector<std::string> isa_names();

}  // namespace quire::testing
