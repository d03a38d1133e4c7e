// SPDX-License-Identifier: Apache-2.0
// The benchmark's workloads: prompts, output lengths and arrival times, by the rules of vLLM's datasets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/python_random.h"
#include "llm/text_side.h"

namespace quire::bench {

struct Sample {
  std::variant<std::string, std::vector<int32_t>> prompt;
  int64_t prompt_len = 0;  // counted by our tokenizer; 0: not known
  int64_t output_len = 0;
  double arrival = 0;  // of a trace, in seconds after its first request
};

// The flags of a dataset, named like the flags.
struct DatasetOptions {
  std::string name = "random";
  std::string path;
  int64_t num_prompts = 1000;
  int64_t seed = 0;
  bool no_oversample = false;
  bool disable_shuffle = false;
  bool skip_chat_template = false;
  bool chat_endpoint = false;  // the server applies its chat template, so prompts are text
  // The special tokens of the tokenizer's config; nothing: all tokens that are marked as special.
  std::optional<std::vector<std::string>> special_tokens;
  json::Value chat_template_kwargs;  // an object, or null

  int64_t random_input_len = 1024;
  int64_t random_output_len = 128;
  int64_t random_prefix_len = 0;
  double random_range_ratio_input = 0;
  double random_range_ratio_output = 0;
  std::optional<int64_t> sharegpt_output_len;
  int64_t custom_output_len = 256;  // -1: each row's output_tokens
  int64_t prefix_repetition_prefix_len = 256;
  int64_t prefix_repetition_suffix_len = 256;
  int64_t prefix_repetition_num_prefixes = 10;
  int64_t prefix_repetition_output_len = 128;
  int64_t sonnet_input_len = 550;
  int64_t sonnet_output_len = 150;
  int64_t sonnet_prefix_len = 200;

  std::optional<int64_t> timed_trace_chunk_hash_size;  // nothing: inferred from the lengths
  std::optional<double> timed_trace_sec_multiplier;    // nothing: inferred from the kind of file
  std::string timed_trace_label_timestamp = "timestamp";
  std::string timed_trace_label_input_length = "input_length";
  std::string timed_trace_label_output_length = "output_length";
  std::string timed_trace_label_hash_ids = "hash_ids";
  int64_t timed_trace_max_input_len = 0;  // longer prompts are truncated; 0: no limit
  int64_t timed_trace_max_output_len = 0;
};

// The two global generators of a Python program, from which datasets, adapters and arrivals draw.
struct Generators {
  explicit Generators(int64_t seed) : random(seed), numpy(seed) {}
  PythonRandom random;
  NumpyLegacy numpy;
};

struct Samples {
  std::vector<Sample> list;
  std::vector<std::string> notes;  // one line each, for standard error
};

// Reads and samples. All need a tokenizer except sharegpt (with an output length) and custom (without a template).
Result<Samples> make_samples(const DatasetOptions& options, const llm::TextSide& side, Generators& generators);

// The ids that random prompts consist of: the vocabulary without special tokens, ascending.
std::vector<int32_t> plain_ids(const DatasetOptions& options, const text::Tokenizer& tokenizer);
// tokenizer.vocab_size of Hugging Face, without the tokens that were added after the vocabulary.
int64_t base_vocab_size(const text::Tokenizer& tokenizer);

// Internal to this folder: the synthetic datasets (datasets_random.cc).
Result<Samples> random_samples(const DatasetOptions& options, const text::Tokenizer& tokenizer);
Result<Samples> prefix_repetition_samples(const DatasetOptions& options, const text::Tokenizer& tokenizer,
                                          Generators& generators);
Result<Samples> trace_samples(const DatasetOptions& options, const text::Tokenizer& tokenizer);
// Rows of comma-separated values under the names of the first line; no quoting.
struct Csv {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> rows;
  int column(std::initializer_list<const char*> any_of) const;  // -1: none of them
};
Result<Csv> read_csv(const std::string& path);

}  // namespace quire::bench
