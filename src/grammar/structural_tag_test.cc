// SPDX-License-Identifier: Apache-2.0
// Tests of structural tags: every format, special tokens inside markers, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/dialect_test_tools.h"

namespace quire::grammar {
namespace {

const std::string kEnd =
                      "\x01"
                      "0",
                  kCall =
                      "\x01"
                      "1",
                  kCallX =
                      "\x01"
                      "2",
                  kThink =
                      "\x01"
                      "3",
                  kNoThink =
                      "\x01"
                      "4";

void check(const std::string& format, const std::vector<std::string>& yes, const std::vector<std::string>& no) {
  SCOPED_TRACE(format);
  check_spec(tag_spec(R"({"type": "structural_tag", "format": )" + format + "}"), yes, no);
}

TEST(StructuralTag, PlainFormatsAndCombinations) {
  check(R"({"type": "const_string", "value": "abc"})", {"abc"}, {"ab"});
  check(R"({"type": "const_string", "value": ""})", {""}, {"a"});
  check(R"({"type": "regex", "pattern": "[0-9]{2}"})", {"12"}, {"1"});
  check(R"({"type": "grammar", "grammar": "root ::= \"a\" root | \"b\""})", {"aab"}, {"a"});
  check(R"({"type": "grammar", "grammar": "start: \"a\" start | \"b\""})", {"aab"}, {"a"});
  check(R"({"type": "json_schema", "json_schema": {"type": "integer"}})", {"12"}, {"x"});
  check(R"({"type": "json_schema", "json_schema": true})", {"[1, {}]"}, {"x"});
  check(R"({"type": "sequence", "elements": [{"type": "const_string", "value": "a"},
           {"type": "or", "elements": [{"type": "const_string", "value": "b"},
                                       {"type": "const_string", "value": "c"}]}]})",
        {"ab", "ac"}, {"a", "abc"});
  check(R"({"type": "optional", "content": {"type": "const_string", "value": "a"}})", {"", "a"}, {"aa"});
  check(R"({"type": "plus", "content": {"type": "const_string", "value": "a"}})", {"a", "aa"}, {""});
  check(R"({"type": "star", "content": {"type": "const_string", "value": "a"}})", {"", "aa"}, {"b"});
  check(R"({"type": "repeat", "min": 1, "max": 2, "content": {"type": "const_string", "value": "a"}})", {"a", "aa"},
        {"", "aaa"});
  check(R"({"type": "repeat", "min": 2, "max": -1, "content": {"type": "const_string", "value": "a"}})", {"aa", "aaaa"},
        {"a"});
}

TEST(StructuralTag, FreeText) {
  check(R"({"type": "any_text"})", {"", "a\n😀"}, {kEnd});
  check(R"({"type": "any_text", "excludes": ["<a>", "</"]})", {"<a", "x < /"}, {"x<a>", "</"});
  check(R"({"type": "any_text", "max_chars": 2})", {"", "äö"}, {"abc"});
}

TEST(StructuralTag, AnUnboundedPartStopsAtTheEndOfItsTag) {
  check(R"({"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"})",
        {"<a></a>", "<a>x</b></a>"}, {"<a>x</a></a>", "<a>x", "x</a>"});
  check(R"({"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": ["</a>", "</b>"]})",
        {"<a>x</a>", "<a>x</b>"}, {"<a>x</a></b>"});
  check(R"({"type": "tag", "begin": "<a>", "content": {"type": "sequence", "elements": [
           {"type": "const_string", "value": "x"}, {"type": "any_text"}]}, "end": "</a>"})",
        {"<a>xyz</a>"}, {"<a>y</a>", "<a>x</a></a>"});
  check(R"({"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": ""})", {"", "abc"}, {});
}

TEST(StructuralTag, MarkersWithSpecialTokens) {
  check(R"({"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"})",
        {kThink + "hm" + kNoThink}, {"<think>hm</think>", kThink + "hm</think>", kThink + kEnd + kNoThink});
  check(R"({"type": "tag", "begin": "a<|call|>b", "content": {"type": "any_text"}, "end": "\n<|end|>"})",
        {"a" + kCall + "bx\n\n" + kEnd}, {"a<|call|>b\n" + kEnd, "a" + kCall + "bx" + kEnd});
  // The longest token is taken.
  check(R"({"type": "const_string", "value": "<|call|>xy"})", {kCallX + "y"}, {kCall + "xy"});
  check(R"({"type": "tag", "begin": {"type": "token", "token": "<|call|>"}, "content": {"type": "any_tokens"},
           "end": {"type": "token", "token": 256}})",
        {kCall + kEnd, kCall + "ab" + kThink + kEnd}, {kCall + "a", kCall + kEnd + kEnd});
}

const char* kTags = R"([{"begin": "<f=a>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</f>"},
                        {"type": "tag", "begin": "<f=b>", "content": {"type": "regex", "pattern": "[a-z]+"}, "end": "</f>"}])";

TEST(StructuralTag, TriggeredTags) {
  const std::string head = R"({"type": "triggered_tags", "triggers": ["<f="], "tags": )" + std::string(kTags);
  check(head + "}", {"", "text", "a <f=a>1</f> b <f=b>x</f>", "<f", "<<f=a>1</f>"},
        {"<f=", "<f=c>1</f>", "<f=a>x</f>", "<f=a>1", kEnd});
  check(head + R"(, "stop_after_first": true})", {"", "hm <f=a>1</f>"}, {"<f=a>1</f> ", "<f=a>1</f><f=a>1</f>"});
  check(head + R"(, "at_least_one": true})", {"<f=a>1</f>", "<f=a>1</f> and <f=b>x</f>!"}, {"", "a<f=a>1</f>"});
  check(head + R"(, "at_least_one": true, "stop_after_first": true})", {"<f=a>1</f>"}, {"", "<f=a>1</f>x"});
  check(head + R"(, "excludes": ["bad"]})", {"ba<f=a>1</f>d"}, {"bad", "bad<f=a>1</f>", "<f=a>1</f>bad"});
}

TEST(StructuralTag, TheFirstCompleteTriggerCounts) {
  // "aab" can only be read from its first "aa" on.
  check(R"({"type": "triggered_tags", "triggers": ["aa"], "tags": [
           {"begin": "aab", "content": {"type": "const_string", "value": "1"}, "end": ""}]})",
        {"aab1", "xaab1"}, {"aaab1"});
  check(R"({"type": "triggered_tags", "triggers": ["<", "<f"], "tags": [
           {"begin": "<f>", "content": {"type": "const_string", "value": "1"}, "end": ""}]})",
        {"x<f>1y"}, {"<", "<g"});
}

TEST(StructuralTag, TriggersThatAreTokens) {
  const std::string tags =
      R"([{"begin": "<|call|>f", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "<|end|>"}])";
  for (const char* trigger : {"<|call|>", "<|ca", "<|call|>f"}) {
    check(R"({"type": "triggered_tags", "triggers": [")" + std::string(trigger) + R"("], "tags": )" + tags + "}",
          {"", "a", "a" + kCall + "f1" + kEnd + "b" + kCall + "f2" + kEnd},
          {kCall, kCall + "g", "<|call|>f1" + kEnd, kThink});
  }
  check(R"({"type": "token_triggered_tags", "trigger_tokens": ["<|call|>"], "exclude_tokens": [97, "<think>"], "tags": [
           {"type": "tag", "begin": {"type": "token", "token": 257}, "content": {"type": "regex", "pattern": "[0-9]+"},
            "end": {"type": "token", "token": "<|end|>"}}]})",
        {"", "b", "b" + kCall + "1" + kEnd + kNoThink}, {"a", kThink, kCall + "x" + kEnd, kCall + "1"});
  check(R"({"type": "token_dispatch", "rules": [["<|call|>", {"type": "const_string", "value": "x"}]], "loop": false})",
        {"b", "b" + kCall + "x"}, {kCall + "y", kCall + "xb"});
}

TEST(StructuralTag, DispatchAndSeparators) {
  check(R"({"type": "dispatch", "rules": [["<a>", {"type": "const_string", "value": "1"}],
           ["<b>", {"type": "const_string", "value": "2"}]], "excludes": ["!"]})",
        {"", "x<a>1y<b>2", "<a"}, {"<a>2", "!", "<a>1!"});
  check(R"({"type": "dispatch", "rules": [["<a>", {"type": "const_string", "value": "1"}]], "loop": false})",
        {"x", "x<a>1"}, {"<a>1x"});
  const std::string head = R"({"type": "tags_with_separator", "separator": ", ", "tags": )" + std::string(kTags);
  check(head + "}", {"", "<f=a>1</f>", "<f=a>1</f>, <f=b>x</f>"}, {"<f=a>1</f>,", "x", "<f=a>1</f><f=a>1</f>"});
  check(head + R"(, "at_least_one": true, "stop_after_first": true})", {"<f=a>1</f>"}, {"", "<f=a>1</f>, <f=a>1</f>"});
}

TEST(StructuralTag, SingleTokens) {
  check(R"({"type": "token", "token": "<|end|>"})", {kEnd}, {kCall, "<|end|>"});
  check(R"({"type": "exclude_token", "exclude_tokens": [256, "<|call|>"]})", {"a", kThink}, {kEnd, kCall, ""});
  check(R"({"type": "any_tokens", "exclude_tokens": ["<|end|>"], "max_tokens": 2})", {"", "ab", "a" + kCall},
        {"abc", kEnd});
}

TEST(StructuralTag, OlderFormAndBareFormat) {
  check_spec(
      tag_spec(
          R"({"structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f"]})"),
      {"a<f>1</f>b"}, {"<f>x</f>", "<f"});
  check_spec(tag_spec(R"({"type": "structural_tag", "structures": [{"begin": "<f>", "schema": {"type": "integer"},
             "end": "</f>"}], "triggers": ["<f"]})"),
             {"a<f>1</f>b"}, {"<f>x</f>", "<f"});
  check_spec(tag_spec(R"({"type": "const_string", "value": "x"})"), {"x"}, {"y"});
}

TEST(StructuralTag, ErrorsNameThePlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"([])", "The structural tag is wrong: it must be an object."},
      {R"({"format": 5})", "The structural tag is wrong at /format: a format must be an object."},
      {R"({"type": "x", "format": {}})",
       "The structural tag is wrong: \"type\" must be \"structural_tag\" beside \"format\"."},
      {R"({"format": {}})", "The structural tag is wrong at /format: a format needs a \"type\"."},
      {R"({"format": {"type": "nope"}})", "The structural tag is wrong at /format: the format \"nope\" is not known."},
      {R"({"type": "const_string"})", "The structural tag is wrong: \"value\" must be a string."},
      {R"({"type": "const_string", "value": "a", "x": 1})",
       "The structural tag is wrong: the field \"x\" is not supported here."},
      {R"({"type": "sequence", "elements": [{"type": "token", "token": "<|no|>"}]})",
       "The structural tag is wrong at /elements/0: the model has no special token \"<|no|>\"."},
      {R"({"type": "sequence", "elements": []})", "The structural tag is wrong: \"elements\" must not be empty."},
      {R"({"type": "sequence"})", "The structural tag is wrong: \"elements\" must be a list."},
      {R"({"type": "any_text", "max_tokens": 5})",
       "The structural tag is wrong: \"max_tokens\" of any_text is not supported; use \"max_chars\"."},
      {R"({"type": "any_text", "excludes": [""]})",
       "The structural tag is wrong: \"excludes\" must be a list of strings that are not empty."},
      {R"({"type": "any_text", "max_chars": -1})",
       "The structural tag is wrong: \"max_chars\" must be a count from 0 to 2147483647."},
      {R"({"type": "repeat", "min": 2, "max": 1, "content": {"type": "any_text"}})",
       "The structural tag is wrong: \"max\" is less than \"min\"."},
      {R"({"type": "repeat", "min": 2, "content": {"type": "any_text"}})",
       "The structural tag is wrong: \"max\" must be a count, or -1 for no bound."},
      {R"({"type": "repeat", "max": 2, "content": {"type": "any_text"}})",
       "The structural tag is wrong: \"min\" is missing."},
      {R"({"type": "star"})", "The structural tag is wrong: \"content\" is missing."},
      {R"({"type": "tag", "begin": "a", "content": {"type": "any_text"}})",
       "The structural tag is wrong: \"end\" is missing."},
      {R"({"type": "tag", "begin": "a", "content": {"type": "any_text"}, "end": 5})",
       "The structural tag is wrong: \"end\" must be a string, a list of strings or a token."},
      {R"({"type": "tag", "begin": "a", "content": {"type": "any_text"}, "end": []})",
       "The structural tag is wrong: \"end\" must not be an empty list."},
      {R"({"type": "tag", "content": {"type": "any_text"}, "end": ""})",
       "The structural tag is wrong: \"begin\" must be a string."},
      {R"({"type": "tag", "begin": "a", "end": ""})", "The structural tag is wrong: \"content\" is missing."},
      {R"({"type": "triggered_tags", "triggers": [], "tags": []})",
       "The structural tag is wrong: \"triggers\" must have at least one string."},
      {R"({"type": "triggered_tags", "triggers": ["x"], "tags": []})",
       "The structural tag is wrong: \"tags\" must not be empty."},
      {R"({"type": "triggered_tags", "triggers": ["x"], "tags": [{"begin": "a", "content": {"type": "any_text"}, "end": ""}]})",
       "The structural tag is wrong at /tags/0: no trigger is the beginning of \"a\"."},
      {R"({"type": "triggered_tags", "triggers": ["x"], "tags": [{"type": "any_text"}]})",
       "The structural tag is wrong at /tags/0: it must be a format of type \"tag\"."},
      {R"({"type": "dispatch", "rules": [["a"]]})",
       "The structural tag is wrong at /rules/0: a rule is written [pattern, format]."},
      {R"({"type": "dispatch", "rules": []})", "The structural tag is wrong: \"rules\" must not be empty."},
      {R"({"type": "dispatch", "rules": [["", {"type": "any_text"}]]})",
       "The structural tag is wrong at /rules/0: the pattern must be a string that is not empty."},
      {R"({"type": "dispatch", "rules": [], "loop": 1})",
       "The structural tag is wrong: \"loop\" must be true or false."},
      {R"({"type": "token", "token": -1})",
       "The structural tag is wrong: a token is written as its id or as its text."},
      {R"({"type": "json_schema"})", "The structural tag is wrong: \"json_schema\" must be a JSON Schema."},
      {R"({"type": "json_schema", "json_schema": {}, "excludes": ["a"]})",
       "The structural tag is wrong: \"excludes\" is not supported for JSON."},
      {R"({"type": "token_triggered_tags", "trigger_tokens": [1], "tags": [{"begin": 2, "content": {"type": "any_text"}, "end": ""}]})",
       "The structural tag is wrong at /tags/0: \"begin\" is not one of the \"trigger_tokens\"."},
      {R"({"structures": [5]})",
       "The structural tag is wrong at /structures/0: it must be an object with \"begin\", \"schema\" and \"end\"."},
      {R"({"structures": [{"begin": "a", "end": "b"}]})",
       "The structural tag is wrong at /structures/0: \"schema\" is missing."},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(spec_error(tag_spec(text)), message) << text;
}

TEST(StructuralTag, HostileTagsAreBounded) {
  std::string deep, triggers = "\"x0\"", tags;
  for (int i = 0; i < 60; ++i) deep += R"({"type": "star", "content": )";
  deep += R"({"type": "any_text"})" + std::string(60, '}');
  for (int i = 0; i < 500; ++i) {
    const std::string name = "\"x" + std::to_string(i);
    triggers += ", " + name + "\"";
    tags += (i > 0 ? ", " : "") + std::string(R"({"begin": )") + name +
            R"(>", "content": {"type": "any_text"}, "end": "</a>"})";
  }
  const std::vector<std::string> texts = {
      deep, R"({"type": "triggered_tags", "triggers": [)" + triggers + R"(], "tags": [)" + tags + "]}",
      R"({"type": "repeat", "min": 2000000000, "max": -1, "content": )" + deep + "}"};
  for (const std::string& text : texts) (void)compile_spec(tag_spec(text));
}

}  // namespace
}  // namespace quire::grammar
