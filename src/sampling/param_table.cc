// SPDX-License-Identifier: Apache-2.0
// The rows of the table, in the order of the API's documentation.
#include "sampling/param_table.h"

#include <cstdio>

namespace quire::sampling {
namespace {

using P = SamplingParams;

constexpr double kInt64Bound = 0x1p63;
constexpr const char* kLogprobs = "-1 (all) or at least 0";

constexpr ParamInfo row(const char* name, ParamInfo::Member member, int sources, const char* doc,
                        const ParamRules& rules = {}) {
  return {name, member, sources, doc, rules};
}

constexpr ParamInfo kTable[] = {
    row("temperature", &P::temperature, kInFile | kHasFlag,
        "0 is greedy. Values between 0 and 0.01 are raised to 0.01.",
        {.min = 0, .max = 2, .flag_doc = "0 is greedy; higher is more varied", .device = &SampleSettings::temperature}),
    row("top_p", &P::top_p, kInFile | kHasFlag, "Keep the likeliest tokens with this total probability.",
        {.min = 0, .max = 1, .above_min = true, .device = &SampleSettings::top_p}),
    row("top_k", &P::top_k, kInFile | kHasFlag, "Keep the k likeliest tokens; 0 or -1: all.",
        {.min = -1, .range = "-1 or 0 (off), or at least 1"}),
    row("min_p", &P::min_p, kInFile | kHasFlag, "Drop tokens below this fraction of the highest probability.",
        {.min = 0, .max = 1}),
    // Bounded, so that no logit of a sound model leaves the range of a float.
    row("repetition_penalty", &P::repetition_penalty, kInFile | kHasFlag,
        "Above 1: tokens of the prompt and the output become less likely.",
        {.min = 0.001, .max = 1000, .device = &SampleSettings::repetition}),
    row("presence_penalty", &P::presence_penalty, kInFile | kHasFlag,
        "Subtracted from the logits of tokens that are in the output.",
        {.min = -2, .max = 2, .default_text = "0", .device = &SampleSettings::presence}),
    row("frequency_penalty", &P::frequency_penalty, kInFile | kHasFlag,
        "Subtracted once for each time that the token is in the output.",
        {.min = -2, .max = 2, .default_text = "0", .device = &SampleSettings::frequency}),
    row("logit_bias", &P::logit_bias, 0, "Token id to bias, clamped to -100 to 100."),
    row("allowed_token_ids", &P::allowed_token_ids, 0, "Only these tokens may be sampled."),
    row("bad_words", &P::bad_words, 0, "Words that must not appear in the output."),
    row("seed", &P::seed, 0, "The same seed gives the same output; -1: no seed. Output i of n uses seed + i.",
        {.min = -kInt64Bound, .max = kInt64Bound, .default_text = "random"}),
    row("n", &P::n, kHasFlag, "Number of outputs for the prompt; more than 1 needs a temperature above 0.",
        {.min = 1, .max = kMaxSequences, .flag_doc = "Number of outputs for the prompt; output i uses seed + i"}),
    row("stop", &P::stop, kHasFlag, "Up to 128 texts that end the output.",
        {.flag_doc = "Text that ends the output; may be repeated"}),
    row("stop_token_ids", &P::stop_token_ids, kHasFlag, "Token ids that end the output."),
    row("include_stop_str_in_output", &P::include_stop_str_in_output, kHasFlag, "Include the stop string in the text."),
    row("ignore_eos", &P::ignore_eos, kHasFlag, "Continue after the end-of-text token."),
    row("max_tokens", &P::max_tokens, kHasFlag, nullptr,
        {.min = 1, .flag_doc = "Maximum number of tokens to generate"}),
    row("min_tokens", &P::min_tokens, kHasFlag, "Minimum number of tokens to generate.", {.min = 0}),
    row("skip_special_tokens", &P::skip_special_tokens, kHasFlag, "Omit special tokens from the text."),
    row("spaces_between_special_tokens", &P::spaces_between_special_tokens, 0,
        "With skip_special_tokens false: whether the spaces that some tokenizers put between special tokens are kept."),
    row("logprobs", &P::logprobs, kHasFlag, nullptr,
        {.min = -1,
         .range = kLogprobs,
         .flag_doc = "With --json: log probabilities of the N likeliest tokens at each position"}),
    row("prompt_logprobs", &P::prompt_logprobs, kHasFlag,
        "Log probabilities of the N likeliest tokens at each position of the prompt; -1: all. Not with stream. The "
        "whole "
        "prompt is computed for them, also where the prefix cache has it.",
        {.min = -1, .range = kLogprobs, .flag_doc = "With --json: the same for the prompt"}),
};

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}
std::string number(int64_t value) {
  return std::to_string(value);
}

std::string range_text(const ParamInfo& info) {
  const ParamRules& rules = info.rules;
  if (rules.range != nullptr) return rules.range;
  if (rules.max == std::numeric_limits<double>::infinity()) return "at least " + number(rules.min);
  if (std::holds_alternative<int64_t P::*>(info.member)) {
    return "between " + number(rules.min) + " and " + number(rules.max);
  }
  return (rules.above_min ? "in (" : "in [") + number(rules.min) + ", " + number(rules.max) + "]";
}

template <typename T>
Status check_value(const ParamInfo& info, T value) {
  const auto x = static_cast<double>(value);
  const ParamRules& rules = info.rules;
  // NaN is out of every range.
  if ((rules.above_min ? x > rules.min : x >= rules.min) && x <= rules.max) return {};
  return invalid_field(info.name, {"must be ", range_text(info), ", got ", number(value), "."});
}

std::string describe_default(const ParamInfo& info) {
  if (info.rules.default_text != nullptr) return info.rules.default_text;
  std::string text;
  if (const auto* real = std::get_if<double P::*>(&info.member)) text = number(P{}.**real);
  if (const auto* integer = std::get_if<int64_t P::*>(&info.member)) text = number(P{}.**integer);
  if (const auto* flag = std::get_if<bool P::*>(&info.member)) text = P{}.**flag ? "true" : "false";
  return (info.sources & kInFile) != 0 ? "the model's, else " + text : text;
}

}  // namespace

std::span<const ParamInfo> param_table() {
  return kTable;
}

Status check_range(const ParamInfo& info, const SamplingParams& params) {
  if (const auto* real = std::get_if<double P::*>(&info.member)) return check_value(info, params.**real);
  if (const auto* integer = std::get_if<int64_t P::*>(&info.member)) return check_value(info, params.**integer);
  const auto* optional = std::get_if<std::optional<int64_t> P::*>(&info.member);
  return optional != nullptr && params.**optional ? check_value(info, *(params.**optional)) : Status{};
}

const char* default_text(const ParamInfo& info) {
  static const auto texts = [] {
    std::vector<std::string> out;
    for (const ParamInfo& row : kTable) out.push_back(describe_default(row));
    return out;
  }();
  return texts[static_cast<size_t>(&info - kTable)].c_str();
}

}  // namespace quire::sampling
