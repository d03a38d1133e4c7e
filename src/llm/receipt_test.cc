// SPDX-License-Identifier: Apache-2.0
// Receipts as JSON: nothing is lost, every member counts, and wrong ones are refused with a sentence.
#include "llm/receipt.h"

#include <gtest/gtest.h>

#include "base/digest.h"
#include "sampling/param_table.h"

namespace quire::llm {
namespace {

Receipt sample() {
  Receipt receipt;
  receipt.origin = {"1.2", "tiny", "00ff", "cpu", "avx2", "auto", "float16", 2048, "5eed"};
  receipt.params.temperature = 0.7;
  receipt.params.top_k = 40;
  receipt.params.logit_bias = {{7, 0.1f}, {3, -100.0f}};
  receipt.params.allowed_token_ids = SharedList<int32_t>{1, 2};
  receipt.params.stop = {"\n\n", "grüße"};
  receipt.params.seed = -1;
  receipt.params.eos_token_ids = {2, 0};
  receipt.params.max_tokens = 3;
  grammar::Spec& spec = receipt.constraint.grammar.emplace();
  spec.json = *json::parse(R"({"type": "object", "properties": {"b": {}, "a": {"maximum": 1.5}}})");
  spec.whitespace_pattern = "[ ]?";
  receipt.constraint.field = "response_format";
  receipt.constraint.reasoning = {true, {"</think>"}, {"<tool_call>"}, 12, "done</think>"};
  receipt.kept_special = {5};
  receipt.prompt = {1, 2, 3};
  receipt.tokens = {4, 5};
  receipt.rows = {0, 0xFFFFFFFFFFFFFFFF};
  receipt.finish = "length";
  return receipt;
}

TEST(Receipt, SurvivesJson) {
  const json::Value value = sample().to_json();
  const auto read = read_receipt(*json::parse(json::dump(value, 2)));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(read->intact);
  EXPECT_EQ(json::dump(read->receipt.to_json()), json::dump(value));
  EXPECT_EQ(read->receipt.params.seed, -1);
  EXPECT_EQ(read->receipt.rows, sample().rows);
  EXPECT_EQ(read->receipt.constraint.reasoning.token_budget, 12);
}

TEST(Receipt, DoesNotDependOnTheOrderOfMembers) {
  json::Value value = sample().to_json();
  std::reverse(value.as_object().begin(), value.as_object().end());
  const auto read = read_receipt(value);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(read->intact);
}

// Members in the order of their names and numbers without a fraction as integers, as some programs keep JSON.
json::Value tidied(const json::Value& value) {
  if (value.kind() == json::Kind::kDouble &&
      value.as_double() == static_cast<double>(static_cast<int64_t>(value.as_double()))) {
    return static_cast<int64_t>(value.as_double());
  }
  json::Value out = value;
  if (out.is_array()) {
    for (json::Value& item : out.as_array()) item = tidied(item);
  } else if (out.is_object()) {
    for (json::Member& member : out.as_object()) member.second = tidied(member.second);
    std::ranges::sort(out.as_object(), {}, &json::Member::first);
  }
  return out;
}

// The bug: the schema of an answer was a value, and a program that sorts its members or writes 1.0 as 1 made a receipt
// that "was changed" of it.
TEST(Receipt, SurvivesProgramsThatSortMembersAndShortenNumbers) {
  Receipt receipt = sample();
  receipt.constraint.grammar->json = *json::parse(
      R"({"type": "object", "properties": {"b": {"minimum": 1.0}, "a": {"const": 18446744073709551615}}})");
  const json::Value value = receipt.to_json();
  const auto read = read_receipt(tidied(value));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(read->intact);
  EXPECT_EQ(json::dump(read->receipt.constraint.grammar->json), json::dump(receipt.constraint.grammar->json));
}

TEST(Receipt, ASchemaMayBeAValueAsInEarlierReceipts) {
  json::Value value = sample().to_json();
  json::Value constraint = *value.find("constraint");
  constraint.set("json", sample().constraint.grammar->json);
  value.set("constraint", constraint);
  std::erase_if(value.as_object(), [](const json::Member& member) { return member.first == "digest"; });
  value.set("digest", digest_of(json::dump(value)).hex());
  const auto read = read_receipt(value);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(read->intact);
  EXPECT_EQ(json::dump(read->receipt.to_json()), json::dump(sample().to_json()));
}

// A different value of the same type.
json::Value changed(const json::Value& value) {
  if (value.is_bool()) return !value.as_bool();
  if (value.is_int()) return value.as_int() + 1;
  if (value.is_number()) return value.as_double() + 0.001;
  if (value.is_string()) return value.as_string() + "0";
  if (value.is_null()) return json::Array{1};
  if (value.is_array() && value.as_array().empty()) return json::Array{1};
  json::Value copy = value;
  if (copy.is_array()) {
    copy.as_array().pop_back();
  } else {
    copy.as_object().pop_back();
  }
  return copy;
}

TEST(Receipt, EveryMemberCounts) {
  const json::Value whole = sample().to_json();
  const auto try_change = [](const json::Value& value, const std::string& name) {
    const auto read = read_receipt(value);
    EXPECT_FALSE(read.ok() && read->intact) << name;
  };
  for (const json::Member& member : whole.as_object()) {
    json::Value copy = whole;
    copy.set(member.first, changed(member.second));
    try_change(copy, member.first);
    for (const char* inner : {"sampling", "constraint"}) {
      if (member.first != inner) continue;
      for (const json::Member& one : member.second.as_object()) {
        json::Value object = member.second;
        object.set(one.first, changed(one.second));
        copy.set(member.first, object);
        try_change(copy, member.first + "." + one.first);
      }
    }
    json::Value without = whole;
    std::erase_if(without.as_object(), [&](const json::Member& m) { return m.first == member.first; });
    try_change(without, "without " + member.first);
  }
}

TEST(Receipt, HasAllSettingsThatChooseTokens) {
  const json::Value sampling = *sample().to_json().find("sampling");
  for (const sampling::ParamInfo& info : sampling::param_table()) {
    const std::string name = info.name;
    const bool only_in_replies = name == "n" || name == "logprobs" || name == "prompt_logprobs";
    EXPECT_EQ(sampling.find(name) == nullptr, only_in_replies) << name;
  }
}

TEST(Receipt, RefusesWrongMembers) {
  const auto message = [](const char* name, json::Value wrong) {
    json::Value value = sample().to_json();
    value.set(name, std::move(wrong));
    const auto read = read_receipt(value);
    return read.ok() ? "" : read.error().message;
  };
  EXPECT_EQ(message("version", 3), "the receipt has version 3, and this program reads versions 1 to 2");
  EXPECT_EQ(message("version", 0), "the receipt has version 0, and this program reads versions 1 to 2");
  EXPECT_EQ(message("logits", "12"), "the receipt's logits is missing or is not 16 hexadecimal digits for each token");
  EXPECT_EQ(message("token_ids", json::Array{-1}), "the receipt's token_ids is missing or is not a list of token ids");
  EXPECT_EQ(message("token_ids", json::Array{}),
            "the receipt has 0 token_ids and the logits of 2; both must be the same and at least 1");
  EXPECT_EQ(message("sampling", nullptr), "the receipt's sampling is missing or is not an object");
  EXPECT_EQ(message("constraint", 1), "the receipt's constraint is missing or is not an object or null");
  EXPECT_EQ(read_receipt(json::Array{}).error().message, "the receipt is an array");
}

TEST(Receipt, SaysThatAMemberIsMissing) {
  // The error about a member that a receipt lacks read "is missing or is not there".
  json::Value without{json::Object{}};
  const json::Value whole = sample().to_json();
  for (const auto& [name, value] : whole.as_object()) {
    if (name != "token_ids") without.set(name, value);
  }
  EXPECT_EQ(read_receipt(without).error().message, "the receipt's token_ids is missing");
}

TEST(Receipt, SaysWhatItNeeds) {
  const Origin made = sample().origin;
  Origin here = made;
  here.weights = "other";  // judged by the run
  here.isa = "avx512";     // has the same bits
  EXPECT_EQ(made.difference(here), "");
  here.isa = "amx";
  EXPECT_EQ(made.difference(here), "it was made with the ISA level avx2, and this is amx; pass --cpu-isa avx2");
  here = made;
  here.kv_cache_dtype = "bfloat16";
  EXPECT_EQ(made.difference(here),
            "it was made with the KV cache type float16, and this is bfloat16; pass --kv-cache-dtype float16");
}

}  // namespace
}  // namespace quire::llm
