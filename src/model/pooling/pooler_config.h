// SPDX-License-Identifier: Apache-2.0
// PoolerConfig: what a model makes of its hidden states (embeddings, class scores), from the files beside its weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "model/config/decoder_config.h"
#include "weights/gguf_metadata.h"

namespace quire::model {

// Which hidden states of a sequence become its vector. kMeanSqrt: their sum over the root of their number;
// kWeightedMean: a mean in which position p counts p + 1 times; kMax: the largest of each column.
enum class PoolRows : uint8_t { kNone, kFirst, kLast, kMean, kAll, kMeanSqrt, kWeightedMean, kMax };
const char* name(PoolRows rows);  // "CLS", "LAST", "MEAN", "ALL", ...

// Whether the vector is made of all rows, one after the other, in one row of numbers.
bool gathers(PoolRows rows);
// Adds rows, from that position on, to `state`, which is empty at the start of a sequence. REQUIRES: gathers(kind).
void gather(PoolRows kind, int64_t position, std::span<const float> rows, size_t width, std::vector<float>& state);
// Turns the state after all positions into the vector.
void finish_gathering(PoolRows kind, int64_t positions, std::vector<float>& state);

// What follows a dense layer, or becomes of the scores of the classes.
enum class PoolActivation : uint8_t {
  kNone,
  kTanh,
  kGelu,
  kRelu,
  kSigmoid,
  kSoftmax,
  kSilu,
  kLeakyRelu,
  kElu,
  kSelu,
  kMish,
  kSoftplus,
  kSoftsign,
  kHardTanh,
  kRelu6,
  kLogSigmoid
};
// By the name that files of PyTorch modules have ("torch.nn.modules.activation.Tanh").
Result<PoolActivation> torch_activation(std::string_view name);

// A dense layer of sentence-transformers: its own folder beside the weights.
struct DenseModule {
  std::filesystem::path folder;
  int64_t in = 0, out = 0;
  bool bias = true;
  PoolActivation activation = PoolActivation::kTanh;
  bool of_normalised = false;  // a Normalize module comes before it
};

// BGE-M3's heads beside the embedding: a weight and a vector per token (sparse_linear, colbert_linear), in the
// checkpoint or in files of their own. The first and last token of a text have none, if they are these.
struct TokenHeads {
  std::filesystem::path folder;
  int64_t bos = -1, eos = -1;
};

struct PoolerConfig {
  bool embeds = false;      // the files are those of a model for embeddings
  bool classifies = false;  // it has scores for classes
  PoolRows rows = PoolRows::kLast;
  bool normalise = true;
  std::vector<DenseModule> dense;
  bool matryoshka = false;
  std::vector<int64_t> matryoshka_dimensions;  // empty with matryoshka: any
  int64_t dimensions = 0;                      // of an embedding if a request does not say; 0: all
  int64_t max_length = 0;                      // tokens, below the model's own length; 0: that
  bool lower_case = false;                     // texts are turned to lower case before they are encoded
  std::string task;  // the usual one, by --pooler-config; with token_embed, scores compare the vectors of tokens
  std::optional<TokenHeads> token_heads;
  // Prompts that go before texts, by name; whoever sends texts adds them.
  std::vector<std::pair<std::string, std::string>> prompts;
  std::string default_prompt;
  bool without_prompt = false;  // a mean or a maximum does not cover the tokens of a prompt

  // Classes.
  int64_t labels = 0;
  std::vector<std::string> label_names;  // [labels] or empty
  PoolActivation scores = PoolActivation::kSoftmax;
  std::vector<std::string> tokens;  // classes that are tokens of the LM head (Qwen3-Reranker: no, yes)
  std::vector<int32_t> token_ids;   // of them; whoever has the tokenizer fills this in
  double logit_mean = 0, logit_sigma = 1;

  // Only these positions, and these classes, of a result per token.
  std::optional<int64_t> step_tag_id;
  std::vector<int64_t> returned_token_ids;
};

// Reads config.json and the files of sentence-transformers (modules.json and what it names).
Result<PoolerConfig> read_hf_pooler(const json::Value& config, const std::filesystem::path& folder,
                                    const DecoderConfig& model);
Result<PoolerConfig> read_gguf_pooler(const weights::GgufMetadata& metadata, std::string_view architecture,
                                      const DecoderConfig& model);
// Applies --pooler-config, a JSON object; "" changes nothing.
Status apply_pooler_flag(const std::string& text, PoolerConfig& config);

}  // namespace quire::model
