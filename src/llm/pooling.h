// SPDX-License-Identifier: Apache-2.0
// The words of pooling: what a model makes of a prompt besides text, and how its prompts are made to fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace quire::llm {

// What a model that pools makes of a prompt. The last one is BGE-M3's: its embedding, then the weights of its tokens.
enum class PoolTask : uint8_t { kEmbed, kClassify, kTokenEmbed, kTokenClassify, kEmbedTokenClassify };
const char* name(PoolTask task);  // "embed", "token_classify"
std::optional<PoolTask> find_task(std::string_view name);

// A prompt for pooling: its tokens, and where the second of two texts begins (-1: there is one).
struct PoolPrompt {
  std::vector<int32_t> tokens;
  int64_t second_segment = -1;
};

// How a text is cut.
struct Truncation {
  std::optional<int64_t> most;  // tokens, with the special ones; none: longer texts are refused
  bool keep_end = false;
};
// Keeps the first or the last `most` tokens.
void cut_tokens(std::vector<int32_t>& ids, int64_t most, bool keep_end = false);
// How a pair of texts is made to fit.
struct PairLimits {
  int64_t first = 0, second = 0;  // tokens of each text; 0: all
  int64_t total = 0;              // of both with the special tokens, the longer text is cut; 0: no limit
};

// What becomes of Delta::pooled.
struct PoolSettings {
  std::optional<int64_t> dimensions;
  std::optional<bool> activate;  // none: as the model's files say
};

// Where the score of a query and a document comes from: one pass over both, the cosine of their embeddings, or the best
// matches of the vectors of their tokens.
enum class ScoreKind : uint8_t { kCross, kCosine, kLate };

}  // namespace quire::llm
