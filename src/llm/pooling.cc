// SPDX-License-Identifier: Apache-2.0
// Pooling: from texts or pairs of texts to prompts, and from pooled hidden states to embeddings and scores.
#include <algorithm>
#include <map>

#include "llm/llm.h"

namespace quire::llm {

const char* name(PoolTask task) {
  constexpr const char* kNames[] = {"embed", "classify", "token_embed", "token_classify"};
  return kNames[static_cast<size_t>(task)];
}

Status Llm::check_task(PoolTask task) const {
  if (!pools()) {
    return unsupported("this model was loaded to generate text; load it with --runner pooling to make embeddings");
  }
  const model::PoolerConfig& config = pooler().config();
  const bool classes = task == PoolTask::kClassify || task == PoolTask::kTokenClassify;
  if (classes == config.classifies) return {};
  return unsupported("this model does not have the task " + std::string(llm::name(task)) + "; its tasks are " +
                     (config.classifies ? "classify and token_classify" : "embed and token_embed"));
}

Result<PoolPrompt> Llm::pair_tokens(const std::string& first, const std::string& second,
                                    const PairLimits& limits) const {
  if (tokenizer_ == nullptr) {
    return unsupported("this model has no tokenizer, so it takes token ids only; give one with --tokenizer");
  }
  std::vector<int32_t> a = tokenizer_->encode(first, {.add_special_tokens = false});
  std::vector<int32_t> b = tokenizer_->encode(second, {.add_special_tokens = false});
  const auto cut = [](std::vector<int32_t>& ids, int64_t most) {
    if (most > 0 && static_cast<int64_t>(ids.size()) > most) ids.resize(static_cast<size_t>(most));
  };
  cut(a, limits.first);
  cut(b, limits.second);
  if (limits.total > 0) {
    const auto added = static_cast<int64_t>(tokenizer_->join_pair({}, {}).ids.size());
    int64_t over = added + static_cast<int64_t>(a.size() + b.size()) - limits.total;
    for (; over > 0 && !(a.empty() && b.empty()); --over) (a.size() > b.size() ? a : b).pop_back();
  }
  text::PairEncoding joined = tokenizer_->join_pair(a, b);
  return PoolPrompt{std::move(joined.ids), joined.second_segment};
}

Result<engine::Request> Llm::prepare_pooling(PoolPrompt prompt, PoolTask task, int64_t priority,
                                             std::string cache_salt) const {
  QUIRE_TRY(check_task(task));
  engine::Request request;
  request.pool = pooler().config().rows;
  if (task == PoolTask::kTokenEmbed || task == PoolTask::kTokenClassify) request.pool = model::PoolRows::kAll;
  const auto rows = request.pool == model::PoolRows::kAll ? static_cast<int64_t>(prompt.tokens.size()) : 1;
  request.pooled_floats = rows * engine_->model().config().hidden;
  request.prompt = std::move(prompt.tokens);
  request.second_segment = prompt.second_segment;
  if (engine_->model().config().encoder.token_types < 2) request.second_segment = -1;
  request.priority = priority;
  request.cache_salt = std::move(cache_salt);
  QUIRE_TRY(engine_->check(std::as_const(request)));
  return request;
}

std::vector<std::vector<float>> Llm::finish_pooling(PoolTask task, std::span<const float> pooled,
                                                    std::span<const int32_t> tokens,
                                                    const PoolSettings& settings) const {
  const model::Pooler& pooler = this->pooler();
  const model::PoolerConfig& config = pooler.config();
  const auto width = static_cast<size_t>(engine_->model().config().hidden);
  const bool classes = task == PoolTask::kClassify || task == PoolTask::kTokenClassify;
  const bool per_token = task == PoolTask::kTokenEmbed || task == PoolTask::kTokenClassify;
  std::vector<std::vector<float>> out;
  for (size_t row = 0; row < pooled.size() / width; ++row) {
    if (per_token && config.step_tag_id && row < tokens.size() && tokens[row] != *config.step_tag_id) continue;
    const std::span<const float> hidden = pooled.subspan(row * width, width);
    if (!classes) {
      out.push_back(pooler.embed(hidden, settings.dimensions, settings.activate.value_or(config.normalise)));
      continue;
    }
    std::vector<float> scores = pooler.classify(hidden, settings.activate.value_or(true));
    if (per_token && !config.returned_token_ids.empty()) {
      std::vector<float> kept;
      for (const int64_t id : config.returned_token_ids) {
        if (id < static_cast<int64_t>(scores.size())) kept.push_back(scores[static_cast<size_t>(id)]);
      }
      scores = std::move(kept);
    }
    out.push_back(std::move(scores));
  }
  return out;
}

std::vector<Result<std::vector<std::vector<float>>>> Llm::pool(std::vector<PoolPrompt> prompts, PoolTask task,
                                                               const PoolSettings& settings) {
  std::vector<Result<std::vector<std::vector<float>>>> results;
  std::map<engine::RequestId, size_t> places;
  for (PoolPrompt& prompt : prompts) {
    const std::vector<int32_t> tokens = prompt.tokens;
    auto request = prepare_pooling(std::move(prompt), task);
    prompt.tokens = tokens;
    if (!request.ok()) {
      results.emplace_back(request.error());
      continue;
    }
    places[submit(std::move(*request))] = results.size();
    results.emplace_back(std::vector<std::vector<float>>());
  }
  while (has_work()) {
    for (Delta& delta : step()) {
      const auto place = places.find(delta.id);
      if (place == places.end()) continue;
      auto& slot = results[place->second];
      if (delta.error) {
        slot = *delta.error;
      } else {
        slot = finish_pooling(task, delta.pooled, prompts[place->second].tokens, settings);
      }
    }
  }
  return results;
}

}  // namespace quire::llm
