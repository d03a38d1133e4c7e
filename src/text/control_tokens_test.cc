// SPDX-License-Identifier: Apache-2.0
// Control tokens in the text of a request, and tokenizers made of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "text/byte_level.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"

namespace quire::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

// Byte-level: a token for each byte, then the added tokens from id 300 on. "normalized" tokens are searched for after a
// normalizer that puts a mark before a text and replaces spaces by it.
TokenizerPtr bytes_tokenizer(bool normalized = false) {
  json::Value vocab{json::Object{}};
  for (int byte = 0; byte < 256; ++byte) vocab.set(std::string(byte_char(static_cast<unsigned char>(byte))), byte);
  json::Value root = json::parse(R"({"model": {"type": "BPE", "merges": []}, "pre_tokenizer": {"type": "ByteLevel",
      "add_prefix_space": false, "use_regex": false}, "decoder": {"type": "ByteLevel"}})")
                         .value();
  json::Value model = *root.find("model");
  json::Array added;
  int id = 300;
  for (const auto& [content, special] : std::vector<std::pair<std::string, bool>>{
           {"<|end|>", true}, {"<|end|>!", true}, {"<think>", false}, {"<b>", false}, {"  ", false}}) {
    vocab.set(content, id);
    json::Value token{json::Object{}};
    token.set("id", id++);
    token.set("content", content);
    token.set("special", special);
    token.set("normalized", normalized);
    added.push_back(std::move(token));
  }
  model.set("vocab", std::move(vocab));
  root.set("model", std::move(model));
  root.set("added_tokens", std::move(added));
  if (normalized) {
    root.set("normalizer", json::parse(R"({"type": "Replace", "pattern": {"String": "~"}, "content": "<|>"})").value());
  }
  auto loaded = load_tokenizer_json(json::dump(root));
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  return loaded.value();
}

Ids added_in(const Tokenizer& tokenizer, std::string_view text, std::vector<OriginRange> origins) {
  const std::vector<int32_t> markers = tokenizer.control_markers("{{ '<think>' }}  ");
  const Ids ids = tokenizer.encode(text, {.origins = origins, .markers = markers});
  EXPECT_EQ(tokenizer.decode(ids, false), text);
  Ids added;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(added), [](int32_t id) { return id >= 300; });
  return added;
}

TEST(ControlTokens, AreNotRecognisedInTextOfARequest) {
  const TokenizerPtr t = bytes_tokenizer();
  EXPECT_THAT(t->control_markers("{{ '<think>' }}  "), ElementsAre(302));
  EXPECT_THAT(added_in(*t, "a<|end|>b", {}), ElementsAre(300));
  EXPECT_THAT(added_in(*t, "a<|end|>b", {{1, 8, Origin::kUntrusted}}), ElementsAre());
  EXPECT_THAT(added_in(*t, "a<|end|>b", {{1, 8, Origin::kModel}}), ElementsAre());
  EXPECT_THAT(added_in(*t, "<|end|><|end|><|end|>", {{7, 14, Origin::kUntrusted}}), ElementsAre(300, 300));
  // One byte of the request is enough, at either end.
  EXPECT_THAT(added_in(*t, "a<|end|>b", {{7, 9, Origin::kUntrusted}}), ElementsAre());
  EXPECT_THAT(added_in(*t, "a<|end|>b", {{0, 2, Origin::kUntrusted}}), ElementsAre());
  EXPECT_THAT(added_in(*t, "a<|end|>b", {{0, 1, Origin::kUntrusted}, {8, 9, Origin::kUntrusted}}), ElementsAre(300));
}

TEST(ControlTokens, OfTheTemplateAreFoundBesideTextOfARequest) {
  const TokenizerPtr t = bytes_tokenizer();
  // "<|end|>!" is longer, but its last byte is the request's.
  EXPECT_THAT(added_in(*t, "<|end|>!", {{7, 8, Origin::kUntrusted}}), ElementsAre(300));
  EXPECT_THAT(added_in(*t, "<|end|>!", {}), ElementsAre(301));
  EXPECT_THAT(added_in(*t, "<|en<|end|>", {{0, 4, Origin::kUntrusted}}), ElementsAre(300));
}

TEST(ControlTokens, MarkersOfTheTemplateCountInWhatTheModelSaid) {
  const TokenizerPtr t = bytes_tokenizer();
  EXPECT_THAT(added_in(*t, "<think><b>  ", {{0, 12, Origin::kUntrusted}}), ElementsAre(303, 304));
  EXPECT_THAT(added_in(*t, "<think><b>  ", {{0, 12, Origin::kModel}}), ElementsAre(302, 303, 304));
}

TEST(ControlTokens, AreNotRecognisedAfterNormalizing) {
  const TokenizerPtr t = bytes_tokenizer(true);
  const std::string text = "~~<|end|>~<|end|>~";
  const auto count = [&](std::vector<OriginRange> origins) {
    const Ids ids = t->encode(text, {.origins = origins});
    return std::count(ids.begin(), ids.end(), 300);
  };
  EXPECT_EQ(count({}), 2);
  EXPECT_EQ(count({{0, text.size(), Origin::kUntrusted}}), 0);
  EXPECT_EQ(count({{0, 9, Origin::kUntrusted}}), 1);
  EXPECT_EQ(count({{9, 18, Origin::kUntrusted}}), 1);
  EXPECT_EQ(count({{0, 2, Origin::kUntrusted}, {9, 10, Origin::kUntrusted}, {17, 18, Origin::kUntrusted}}), 2);
}

TEST(ControlTokens, InTheVocabularyOfAUnigramAreCutApart) {
  const auto t = load_tokenizer_json(R"({"added_tokens": [{"id": 1, "content": "</s>", "special": true,
      "normalized": false}], "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["</s>", 0], ["<", -5],
      ["/", -5], ["s", -5], [">", -5], ["a", -5]]}, "decoder": {"type": "Fuse"}})");
  ASSERT_TRUE(t.ok()) << t.error().message;
  const std::vector<OriginRange> origins = {{0, 10, Origin::kUntrusted}};
  EXPECT_THAT((*t)->encode("a</s>a</s>", {.origins = origins}), ElementsAre(6, 2, 3, 4, 5, 6, 2, 3, 4, 5));
}

// --- Ranks ---

std::string base64(std::string_view bytes) {
  static constexpr std::string_view kSymbols = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += k <= bytes.size() - i ? kSymbols[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::vector<std::string> ranks() {
  std::vector<std::string> tokens;
  for (int i = 0; i < 256; ++i) tokens.emplace_back(1, static_cast<char>(i));
  // "bc" joins before "ab"; "wxyz" has no cut into two tokens, so only the whole piece gives it.
  for (const char* token : {"bc", "ab", "abc", "wxyz", "\xc3\xa9"}) tokens.emplace_back(token);
  return tokens;
}

std::string tiktoken_file() {
  std::string out;
  const auto tokens = ranks();
  for (size_t i = 0; i < tokens.size(); ++i) out += base64(tokens[i]) + " " + std::to_string(i) + "\n";
  return out;
}

TEST(Tiktoken, MergesByRankAndKeepsWholePieces) {
  const auto config = json::parse(R"({"tokenizer_class": "QWenTokenizer"})").value();
  const auto t = load_tiktoken(tiktoken_file(), config, "qwen.tiktoken");
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT((*t)->encode("abc"), ElementsAre(258));
  EXPECT_THAT((*t)->encode("abcab"), ElementsAre(258, 257));
  EXPECT_THAT((*t)->encode("wxyz"), ElementsAre(259));
  EXPECT_THAT((*t)->encode("wxyzw"), ElementsAre('w', 'x', 'y', 'z', 'w'));
  EXPECT_THAT((*t)->encode("e\xcc\x81"), ElementsAre(260));  // NFC, as Qwen's own code does
  EXPECT_THAT((*t)->encode("<|im_end|>"), ElementsAre(263));
  EXPECT_EQ((*t)->decode(Ids{258, 263, 260}, false), "abc<|im_end|>\xc3\xa9");
  EXPECT_TRUE((*t)->is_special(263));
}

TEST(Tiktoken, RefusesWhatItCannotKnow) {
  const auto error = [](std::string_view text, const char* config = "{}") {
    const auto t = load_tiktoken(text, json::parse(config).value(), "x/tiktoken.model");
    EXPECT_FALSE(t.ok());
    return t.ok() ? "" : t.error().message;
  };
  EXPECT_THAT(error(tiktoken_file()), HasSubstr("x/tiktoken.model: this is a tiktoken file of 261 ranks, which has no "
                                                "split pattern"));
  EXPECT_THAT(error(tiktoken_file(), R"({"tokenizer_class": "TikTokenTokenizer"})"), HasSubstr("added_tokens_decoder"));
  EXPECT_THAT(error("YQ== 0\nYQ== 1\n"), HasSubstr("line 2 repeats the token of another line"));
  EXPECT_THAT(error("YQ== 0\nYg== 0\n"), HasSubstr("line 2 repeats the rank of another line"));
  EXPECT_THAT(error("YQ== 0\nYg=! 1\n"), HasSubstr("line 2 has a token that is not base64"));
  EXPECT_THAT(error("YQ== 0\nYg==\n"), HasSubstr("line 2 is not a token and its rank"));
  EXPECT_THAT(error("YQ== 0\n", R"({"tokenizer_class": "QWenTokenizer"})"), HasSubstr("no token for the byte 0"));
}

std::string tekken_file(const char* more = "") {
  json::Array vocab;
  const auto tokens = ranks();
  for (size_t i = 0; i < tokens.size(); ++i) {
    json::Value entry{json::Object{}};
    entry.set("rank", static_cast<int64_t>(i));
    entry.set("token_bytes", base64(tokens[i]));
    vocab.push_back(std::move(entry));
  }
  return R"({"config": {"pattern": "[a-z]+|[^a-z]", "default_vocab_size": 364, "default_num_special_tokens": 104}, )" +
         std::string(more) + "\"vocab\": " + json::dump(json::Value(std::move(vocab))) + "}";
}

TEST(Tekken, PutsSpecialTokensBeforeTheRanks) {
  const auto t = load_tekken(tekken_file(), "tekken.json");
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT((*t)->encode("abc[INST]"), ElementsAre(1, 104 + 258, 3));
  // The vocabulary is truncated to the size in the config.
  EXPECT_EQ((*t)->vocab_size(), 364);
  EXPECT_THAT((*t)->encode("\xc3\xa9", {.add_special_tokens = false}), ElementsAre(104 + 0xc3, 104 + 0xa9));
  EXPECT_EQ((*t)->piece(50), "<SPECIAL_50>");
  EXPECT_EQ((*t)->special_ids().eos, 2);
  const auto own = load_tekken(
      tekken_file(R"("special_tokens": [{"rank": 7, "token_str": "[X]", "is_control": true}],)"), "tekken.json");
  ASSERT_TRUE(own.ok()) << own.error().message;
  EXPECT_THAT((*own)->encode("[X]"), ElementsAre(7));
}

TEST(Tekken, BrokenFilesAreClearErrors) {
  const auto error = [](std::string_view text) { return load_tekken(text, "t/tekken.json").error().message; };
  EXPECT_THAT(error("{"), HasSubstr("t/tekken.json: "));
  EXPECT_THAT(error("{}"), HasSubstr("config must be an object"));
  EXPECT_THAT(error(R"({"config": {}, "vocab": []})"), HasSubstr("pattern"));
  EXPECT_THAT(
      error(R"({"config": {"pattern": "a", "default_vocab_size": 9, "default_num_special_tokens": 3}, "vocab": []})"),
      HasSubstr("vocab has 0 tokens, but config requires 6"));
}

}  // namespace
}  // namespace quire::text
