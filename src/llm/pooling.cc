// SPDX-License-Identifier: Apache-2.0
// Pooling: from texts or pairs of texts to prompts, and from pooled hidden states to embeddings and scores.
#include <algorithm>
#include <map>

#include "base/utf8.h"
#include "llm/llm.h"
#include "text/unicode.h"

namespace quire::llm {

namespace {

constexpr const char* kTaskNames[] = {"embed", "classify", "token_embed", "token_classify", "embed&token_classify"};

bool makes_classes(PoolTask task) {
  return task == PoolTask::kClassify || task == PoolTask::kTokenClassify;
}
bool reads_all_rows(PoolTask task) {
  return task == PoolTask::kTokenEmbed || task == PoolTask::kTokenClassify || task == PoolTask::kEmbedTokenClassify;
}

Failure no_tokenizer() {
  return unsupported("this model has no tokenizer, so it takes token ids only; give one with --tokenizer");
}

// Qwen3-Reranker's prompt around a query and a document, in which control tokens are plain text.
TextPrompt judge_prompt(const std::string& instruction, const std::string& query, const std::string& document) {
  TextPrompt out{"", false};
  const auto add = [&](const std::string& text, bool untrusted) {
    const size_t begin = out.text.size();
    out.text += text;
    if (untrusted) out.origins.push_back({begin, out.text.size(), text::Origin::kUntrusted});
  };
  add("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
      "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: ",
      false);
  add(instruction.empty() ? "Given a web search query, retrieve relevant passages that answer the query" : instruction,
      true);
  add("\n<Query>: ", false);
  add(query, true);
  add("\n<Document>: ", false);
  add(document, true);
  add("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", false);
  return out;
}

std::string lower_case(std::string_view text) {
  std::string valid, out;
  utf8::append_valid(valid, text);
  for (const char* p = valid.data(); p < valid.data() + valid.size();)
    text::append_lower(out, text::next_code_point(p));
  return out;
}

// The row of a sequence that its embedding is made of, as the engine takes it where no other rows are wanted.
std::vector<float> pool_rows(std::span<const float> rows, size_t width, model::PoolRows kind) {
  if (kind == model::PoolRows::kFirst) return {rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(width)};
  if (kind == model::PoolRows::kLast) return {rows.end() - static_cast<std::ptrdiff_t>(width), rows.end()};
  std::vector<float> out;
  model::gather(kind, 0, rows, width, out);
  model::finish_gathering(kind, static_cast<int64_t>(rows.size() / width), out);
  return out;
}

}  // namespace

void cut_tokens(std::vector<int32_t>& ids, int64_t most, bool keep_end) {
  const auto kept = static_cast<std::ptrdiff_t>(std::max<int64_t>(most, 0));
  if (std::ssize(ids) <= kept) return;
  if (keep_end) ids.erase(ids.begin(), ids.end() - kept);
  ids.resize(static_cast<size_t>(kept));
}

const char* name(PoolTask task) {
  return kTaskNames[static_cast<size_t>(task)];
}

std::optional<PoolTask> find_task(std::string_view name) {
  for (size_t i = 0; i < std::size(kTaskNames); ++i) {
    if (name == kTaskNames[i]) return static_cast<PoolTask>(i);
  }
  return std::nullopt;
}

std::vector<PoolTask> Llm::tasks() const {
  if (!pools()) return {};
  const model::PoolerConfig& config = pooler().config();
  std::vector<PoolTask> out = {PoolTask::kEmbed, PoolTask::kTokenEmbed};
  if (config.classifies) out = {PoolTask::kClassify, PoolTask::kTokenClassify};
  if (config.token_heads) {
    out = {PoolTask::kEmbedTokenClassify, PoolTask::kEmbed, PoolTask::kTokenEmbed, PoolTask::kTokenClassify};
  }
  const std::optional<PoolTask> usual = find_task(config.task);
  const auto place = std::find(out.begin(), out.end(), usual.value_or(out.front()));
  if (place != out.end()) std::rotate(out.begin(), place, place + 1);
  return out;
}

Status Llm::check_task(PoolTask task) const {
  if (!pools()) {
    return unsupported("this model was loaded to generate text; load it with --runner pooling to make embeddings");
  }
  const std::vector<PoolTask> known = tasks();
  if (std::ranges::find(known, task) != known.end()) return {};
  std::string list;
  for (size_t i = 0; i < known.size(); ++i) {
    list += i == 0 ? "" : i + 1 == known.size() ? " and " : ", ";
    list += llm::name(known[i]);
  }
  return unsupported({"this model does not have the task ", std::string(llm::name(task)), "; its tasks are ", list});
}

Result<ScoreKind> Llm::score_kind() const {
  if (!pools()) return check_task(PoolTask::kEmbed).error();
  const model::PoolerConfig& config = pooler().config();
  if (config.classifies && config.labels != 1) {
    return invalid_argument({"this model has ", config.labels,
                             " classes, but a score needs a model with one; ask for its classes (classify)"});
  }
  if (config.classifies) return ScoreKind::kCross;
  return config.task == "token_embed" ? ScoreKind::kLate : ScoreKind::kCosine;
}

Result<std::vector<int32_t>> Llm::text_tokens(std::string_view text, bool special, const Truncation& truncation) const {
  if (tokenizer_ == nullptr) return no_tokenizer();
  std::string lower;
  if (pools() && pooler().config().lower_case) text = lower = lower_case(text);
  if (!truncation.most) return tokenizer_->encode(text, {.add_special_tokens = special});
  std::vector<int32_t> ids = tokenizer_->encode(text, {.add_special_tokens = false});
  const int64_t added = special ? std::ssize(tokenizer_->wrap({})) : 0;
  cut_tokens(ids, *truncation.most - added, truncation.keep_end);
  return special ? tokenizer_->wrap(ids) : ids;
}

Result<PoolPrompt> Llm::pair_tokens(const std::string& first, const std::string& second, const PairLimits& limits,
                                    const std::string& instruction) const {
  if (tokenizer_ == nullptr) return no_tokenizer();
  if (!pooler().config().tokens.empty()) {
    QUIRE_ASSIGN(std::vector<int32_t> ids, tokens_of(judge_prompt(instruction, first, second)));
    return PoolPrompt{std::move(ids)};
  }
  QUIRE_ASSIGN(std::vector<int32_t> a, text_tokens(first, false, {}));
  QUIRE_ASSIGN(std::vector<int32_t> b, text_tokens(second, false, {}));
  if (limits.first > 0) cut_tokens(a, limits.first);
  if (limits.second > 0) cut_tokens(b, limits.second);
  if (limits.total > 0) {
    const auto added = static_cast<int64_t>(tokenizer_->join_pair({}, {}).ids.size());
    int64_t over = added + static_cast<int64_t>(a.size() + b.size()) - limits.total;
    for (; over > 0 && !(a.empty() && b.empty()); --over) (a.size() > b.size() ? a : b).pop_back();
  }
  text::PairEncoding joined = tokenizer_->join_pair(a, b);
  return PoolPrompt{std::move(joined.ids), joined.second_segment};
}

Result<engine::Request> Llm::prepare_pooling(PoolPrompt prompt, PoolTask task, int64_t priority, std::string cache_salt,
                                             model::AdapterPtr adapter) const {
  QUIRE_TRY(check_task(task));
  engine::Request request;
  request.pool = pooler().config().rows;
  if (reads_all_rows(task)) request.pool = model::PoolRows::kAll;
  const auto rows = request.pool == model::PoolRows::kAll ? static_cast<int64_t>(prompt.tokens.size()) : 1;
  request.pooled_floats = rows * engine().model().config().hidden;
  request.prompt = std::move(prompt.tokens);
  request.second_segment = prompt.second_segment;
  if (engine().model().config().encoder.token_types < 2) request.second_segment = -1;
  request.priority = priority;
  request.cache_salt = std::move(cache_salt);
  request.adapter = std::move(adapter);
  QUIRE_TRY(engine().check(std::as_const(request)));
  return request;
}

std::vector<std::vector<float>> Llm::finish_pooling(PoolTask task, std::span<const float> pooled,
                                                    std::span<const int32_t> tokens,
                                                    const PoolSettings& settings) const {
  const model::Pooler& pooler = this->pooler();
  const model::PoolerConfig& config = pooler.config();
  const auto width = static_cast<size_t>(engine().model().config().hidden);
  if (pooled.empty()) return {};
  if (config.token_heads && reads_all_rows(task)) return finish_token_heads(task, pooled, tokens, settings);
  const bool classes = makes_classes(task);
  const bool per_token = reads_all_rows(task);
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

// BGE-M3's heads: a vector or a weight per token. The weights are one list, behind the embedding if both are wanted.
std::vector<std::vector<float>> Llm::finish_token_heads(PoolTask task, std::span<const float> pooled,
                                                        std::span<const int32_t> tokens,
                                                        const PoolSettings& settings) const {
  const model::Pooler& pooler = this->pooler();
  const model::PoolerConfig& config = pooler.config();
  const auto width = static_cast<size_t>(engine().model().config().hidden);
  const size_t rows = pooled.size() / width;
  const size_t begin = tokens.front() == config.token_heads->bos ? 1 : 0;
  std::vector<std::vector<float>> out;
  if (task == PoolTask::kTokenEmbed) {
    for (size_t row = begin; row < rows; ++row) {
      out.push_back(pooler.token_vector(pooled.subspan(row * width, width), settings.dimensions,
                                        settings.activate.value_or(config.normalise)));
    }
    return out;
  }
  out.emplace_back();
  if (task == PoolTask::kEmbedTokenClassify) {
    out[0] = pooler.embed(pool_rows(pooled, width, config.rows), settings.dimensions,
                          settings.activate.value_or(config.normalise));
  }
  const size_t end = rows - (tokens.back() == config.token_heads->eos && rows > begin ? 1 : 0);
  for (size_t row = begin; row < end; ++row) {
    out[0].push_back(pooler.token_weight(pooled.subspan(row * width, width), settings.activate.value_or(true)));
  }
  return out;
}

bool Llm::pools_to_rows(PoolTask task) const {
  return task == PoolTask::kTokenEmbed || (task == PoolTask::kTokenClassify && !pooler().config().token_heads);
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
