// SPDX-License-Identifier: Apache-2.0
// Detokenises outputs and ends a text at a stop string.
#include "llm/streams.h"

namespace quire::llm {

void Streams::open(engine::RequestId id, engine::RequestPtr request, SharedList<int32_t> kept_special) {
  Open& open = open_[id];
  open.request = std::move(request);
  open.kept_special = std::move(kept_special);
}

Streams::Stream Streams::begin(const engine::Request& request, const SharedList<int32_t>& kept_special) const {
  const sampling::SamplingParams& params = request.params;
  Stream stream;
  if (tokenizer_ != nullptr) {
    stream.detokenizer.emplace(tokenizer_, params.skip_special_tokens, params.spaces_between_special_tokens,
                               kept_special);
  }
  stream.stops = StopStrings(params.stop, params.include_stop_str_in_output);
  stream.min_tokens = params.min_tokens;
  stream.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  stream.include_stop = params.include_stop_str_in_output;
  return stream;
}

void Streams::close(engine::RequestId id) {
  open_.erase(id);
}

Delta Streams::read(engine::Output output, Stream& stream) const {
  Delta delta;
  delta.id = output.id;
  delta.child = output.child;
  delta.finish = output.finish;
  delta.prompt_logprobs = std::move(output.prompt_logprobs);
  delta.error = std::move(output.error);
  delta.cached_tokens = output.cached_tokens;
  delta.seed = output.seed;
  delta.prompt_tokens = stream.prompt_tokens;
  delta.pooled = std::move(output.pooled);
  if (output.stop_token) delta.stop_reason = *output.stop_token;

  for (size_t i = 0; i < output.tokens.size() && !stream.stops.stopped(); ++i) {
    const int32_t token = output.tokens[i];
    const bool ends_here = output.finish == engine::FinishReason::kStop && i + 1 == output.tokens.size();
    delta.tokens.push_back(token);
    if (i < output.logprobs.size()) delta.logprobs.push_back(std::move(output.logprobs[i]));
    if (i < output.row_digests.size()) delta.row_digests.push_back(output.row_digests[i]);
    ++stream.num_tokens;
    // The token that ended the answer adds no text.
    if (stream.detokenizer && (!ends_here || stream.include_stop)) {
      delta.text += stream.stops.push(stream.detokenizer->push(token), stream.num_tokens > stream.min_tokens);
    }
    if (output.tokens.size() > 1) delta.text_ends.push_back(delta.text.size());
  }
  if (delta.finish != engine::FinishReason::kNone && stream.detokenizer && !stream.stops.stopped()) {
    delta.text += stream.stops.push(stream.detokenizer->flush(), stream.num_tokens > stream.min_tokens);
  }
  if (stream.stops.stopped()) {
    delta.finish = engine::FinishReason::kStop;
    delta.stop_reason = stream.stops.matched();
  } else if (delta.finish != engine::FinishReason::kNone) {
    delta.text += stream.stops.flush();
  }
  if (!delta.text_ends.empty()) delta.text_ends.back() = delta.text.size();
  return delta;
}

std::optional<Delta> Streams::translate(engine::Output output, bool& stopped_above) {
  stopped_above = false;
  const auto it = open_.find(output.id);
  if (it == open_.end() || it->second.stopped.contains(output.child)) return std::nullopt;
  Open& open = it->second;
  auto child = open.children.find(output.child);
  if (child == open.children.end())
    child = open.children.emplace(output.child, begin(*open.request, open.kept_special)).first;
  const bool ended = output.finish != engine::FinishReason::kNone;
  Delta delta = read(std::move(output), child->second);
  if (delta.finish == engine::FinishReason::kNone) return delta;
  stopped_above = !ended;
  if (stopped_above) open.stopped.insert(delta.child);
  open.children.erase(child);
  if (++open.ended == open.request->params.n) open_.erase(it);
  return delta;
}

}  // namespace quire::llm
