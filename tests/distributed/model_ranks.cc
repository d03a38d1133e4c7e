// SPDX-License-Identifier: Apache-2.0
// quire_model_ranks: models on the processes of mpirun, compared with one rank by memcmp. Usage: mpirun -n N
// quire_model_ranks TENSOR PIPELINE GOLDEN..., where N is TENSOR * PIPELINE.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/log.h"
#include "distributed/mpi_group.h"
#include "llm/ranks.h"
#include "models/harness.h"

namespace quire::testing {
namespace {

// Prompts that are cut, in the middle of each other's decode steps.
std::vector<engine::Request> some_requests() {
  std::mt19937 rng(5);
  std::vector<engine::Request> requests;
  for (const size_t length : {1, 37, 12}) {
    std::vector<int32_t> prompt(length);
    for (int32_t& token : prompt) token = static_cast<int32_t>(rng() % 500);
    requests.push_back(greedy_request(std::move(prompt), 5));
  }
  return requests;
}

llm::Options options_of(const std::string& golden) {
  llm::Options options = dummy_options(golden);
  options.device = "cpu";
  options.threads = 1;
  options.max_num_batched_tokens = 24;
  options.num_gpu_blocks_override = 200;
  options.max_model_len = "128";
  return options;
}

// Rank 0: the model on one rank, and on all of them. Returns what differs.
std::string compare(const llm::Options& several) {
  llm::Options alone = several;
  alone.tensor_parallel_size = alone.pipeline_parallel_size = 1;
  alone.processes = {};
  const auto one = make_engine(alone), all = make_engine(several);
  if (one == nullptr || all == nullptr) return "it cannot be loaded";
  const auto requests = some_requests();
  const std::vector<Trace> truth = run(*one, requests), traces = run(*all, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (const std::string what = difference(truth[i], traces[i]); !what.empty()) return what;
  }
  return traces[0].logits.empty() ? "there are no logits" : "";
}

}  // namespace

int run_models(int argc, char** argv) {
  init_logging("warning");
  const auto group = distributed::make_mpi_group({.timeout_seconds = 60});
  if (!group.ok()) {
    std::fprintf(stderr, "quire_model_ranks: %s\n", group.error().message.c_str());
    return 1;
  }
  int failures = 0;
  for (int i = 3; i < argc; ++i) {
    llm::Options options = options_of(argv[i]);
    options.tensor_parallel_size = std::atoi(argv[1]);
    options.pipeline_parallel_size = std::atoi(argv[2]);
    options.processes.group = group->get();
    options.processes.own_cpus = true;
    if ((*group)->rank() == 0) {
      const std::string what = compare(options);
      std::printf("%s: %s\n", argv[i], what.empty() ? "same bits" : what.c_str());
      failures += what.empty() ? 0 : 1;
    } else if (const Status status = llm::run_follower(options, **group); !status.ok()) {
      std::printf("%s: %s\n", argv[i], status.error().message.c_str());
      ++failures;
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace quire::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return quire::testing::run_models(argc, argv);
}
