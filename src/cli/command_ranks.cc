// SPDX-License-Identifier: Apache-2.0
// Rank 0 of a command decides; the others learn which model to load, or that there is nothing to do.
#include "cli/command_ranks.h"

#include <cstring>

#include "cli/command.h"
#include "cli/serve_ranks.h"

namespace quire::cli {
namespace {

// The beginning of what rank 0 tells; the name of the model follows.
struct Start {
  int32_t starts = 0;
  int32_t exit_code = 0;
  uint64_t model_size = 0;
};
constexpr uint64_t kMostName = 1 << 20;

int follow_first(llm::Options& options) {
  distributed::Group& group = *options.processes.group;
  Start start;
  group.broadcast(std::as_writable_bytes(std::span(&start, 1)), 0);
  if (start.starts == 0) return start.exit_code;
  QUIRE_CHECK(start.model_size <= kMostName);
  std::string model(start.model_size, '\0');
  group.broadcast(std::as_writable_bytes(std::span(model)), 0);
  options.model = model;
  return follow_rank_0(options, [&options] { return resolve_model_argument(options); });
}

}  // namespace

void FirstRank::tell(int exit_code, const std::string& model) {
  if (group_ == nullptr || std::exchange(told_, true)) return;
  Start start{exit_code < 0 ? 1 : 0, exit_code, model.size()};
  group_->broadcast(std::as_writable_bytes(std::span(&start, 1)), 0);
  if (start.starts == 0) return;
  std::string name = model;
  group_->broadcast(std::as_writable_bytes(std::span(name)), 0);
}

void FirstRank::start_others(const std::string& model) {
  QUIRE_CHECK(model.size() <= kMostName);
  tell(-1, model);
}

int FirstRank::end(int exit_code) {
  tell(exit_code, "");
  return exit_code;
}

int on_all_ranks(const RankFlags& flags, llm::Options& options, const std::function<int(FirstRank&)>& command) {
  const auto ranks = join_ranks(flags, options);
  if (!ranks.ok()) return report(ranks.error());
  if (*ranks != nullptr && (*ranks)->rank() > 0) return follow_first(options);
  FirstRank first(ranks->get());
  return first.end(command(first));
}

}  // namespace quire::cli
