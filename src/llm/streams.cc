// SPDX-License-Identifier: Apache-2.0
// Detokenising, and ending a text where a stop string stands.
#include "llm/streams.h"

namespace quire::llm {

void Streams::open(engine::RequestId id, const engine::Request& request) {
  const sampling::SamplingParams& params = request.params;
  for (int32_t child = 0; child < params.n; ++child) {
    Stream stream;
    if (tokenizer_ != nullptr) stream.detokenizer.emplace(tokenizer_, params.skip_special_tokens);
    stream.stops = StopStrings(params.stop, params.include_stop_str_in_output);
    stream.min_tokens = params.min_tokens;
    stream.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    stream.include_stop = params.include_stop_str_in_output;
    streams_.emplace(std::pair(id, child), std::move(stream));
  }
}

void Streams::close(engine::RequestId id) {
  for (auto it = streams_.lower_bound({id, 0}); it != streams_.end() && it->first.first == id;) it = streams_.erase(it);
}

Delta Streams::read(engine::Output output, Stream& stream) const {
  Delta delta;
  delta.id = output.id;
  delta.child = output.child;
  delta.finish = output.finish;
  delta.prompt_logprobs = std::move(output.prompt_logprobs);
  delta.error = std::move(output.error);
  delta.cached_tokens = output.cached_tokens;
  delta.prompt_tokens = stream.prompt_tokens;
  if (output.stop_token) delta.stop_reason = *output.stop_token;

  for (size_t i = 0; i < output.tokens.size() && !stream.stops.stopped(); ++i) {
    const int32_t token = output.tokens[i];
    const bool ends_here = output.finish == engine::FinishReason::kStop && i + 1 == output.tokens.size();
    delta.tokens.push_back(token);
    if (i < output.logprobs.size()) delta.logprobs.push_back(std::move(output.logprobs[i]));
    ++stream.num_tokens;
    if (!stream.detokenizer) continue;
    if (ends_here && !stream.include_stop) continue;  // the token that ended it has no text of its own
    delta.text += stream.stops.push(stream.detokenizer->push(token), stream.num_tokens > stream.min_tokens);
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
  return delta;
}

std::optional<Delta> Streams::translate(engine::Output output, bool& stopped_above) {
  stopped_above = false;
  const auto it = streams_.find({output.id, output.child});
  if (it == streams_.end()) return std::nullopt;
  const bool ended = output.finish != engine::FinishReason::kNone;
  Delta delta = read(std::move(output), it->second);
  if (delta.finish != engine::FinishReason::kNone) {
    stopped_above = !ended;
    streams_.erase(it);
  }
  return delta;
}

}  // namespace quire::llm
