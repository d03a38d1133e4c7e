// SPDX-License-Identifier: Apache-2.0
// The tokenizer and the detokenizer on small vocabularies whose results can be worked out by hand.
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/test_folder.h"
#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/gguf_pre.h"

namespace quire::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

TokenizerPtr load(std::string_view json) {
  auto tokenizer = load_tokenizer_json(json);
  EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message);
  return tokenizer.ok() ? tokenizer.value() : nullptr;
}

std::string error_of(std::string_view json) {
  const auto tokenizer = load_tokenizer_json(json, "some/tokenizer.json");
  EXPECT_FALSE(tokenizer.ok());
  return tokenizer.ok() ? "" : tokenizer.error().message;
}

// A Llama-2-like tokenizer of a few pieces and all byte tokens.
std::string llama_json() {
  std::string vocab = R"("<unk>":0,"<s>":1,"</s>":2)";
  for (int b = 0; b < 256; ++b) {
    char entry[32];
    std::snprintf(entry, sizeof entry, ",\"<0x%02X>\":%d", b, 3 + b);
    vocab += entry;
  }
  vocab += R"(,"▁":259,"a":260,"b":261,"ab":262,"▁a":263,"▁ab":264)";
  return R"({"added_tokens":[{"id":1,"content":"<s>","special":true,"normalized":false},
      {"id":2,"content":"</s>","special":true,"normalized":false}],
    "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},
      {"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
    "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},
      {"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}},
    "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
      {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
    "model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":{)" +
         vocab + R"(},"merges":["a b","▁ a","▁ ab"]}})";
}

TEST(Tokenizer, MergesByRankAndFallsBackToBytes) {
  const TokenizerPtr t = load(llama_json());
  EXPECT_THAT(t->encode("ab"), ElementsAre(1, 264));
  EXPECT_THAT(t->encode("a b", {.add_special_tokens = false}), ElementsAre(263, 259, 261));
  EXPECT_THAT(t->encode("\xc3\xa4", {.add_special_tokens = false}), ElementsAre(259, 3 + 0xc3, 3 + 0xa4));
  EXPECT_EQ(t->decode(Ids{1, 264, 259, 261}), "ab b");
  EXPECT_EQ(t->decode(Ids{1, 264}, false), "<s> ab");
}

TEST(Tokenizer, ParsesSpecialTokensOnlyWhenAsked) {
  const TokenizerPtr t = load(llama_json());
  EXPECT_THAT(t->encode("a</s>", {.add_special_tokens = false}), ElementsAre(263, 2));
  const Ids plain = t->encode("a</s>", {.add_special_tokens = false, .parse_special = false});
  EXPECT_THAT(plain, ::testing::Not(::testing::Contains(2)));
  EXPECT_EQ(t->decode(plain), "a</s>");
}

// The bug: white space that the token before had taken became a token once more.
TEST(Tokenizer, ATokenOfWhiteSpaceInsideAnotherOnesIsNotFoundAgain) {
  const TokenizerPtr t = load(R"({"added_tokens":[
      {"id":2,"content":"hi","special":true,"normalized":false,"rstrip":true},
      {"id":3,"content":"  ","special":true,"normalized":false,"lstrip":true,"rstrip":true}],
    "model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}})");
  EXPECT_THAT(t->encode("hi    a"), ElementsAre(2, 0));
  EXPECT_THAT(t->encode("hia   b"), ElementsAre(2, 0, 3, 1));
}

// The bug: an empty list of decoders put spaces between tokens, as no decoder at all does.
TEST(Tokenizer, AnEmptyListOfDecodersPutsNothingBetweenTokens) {
  const auto decoded = [](const std::string& decoder) {
    return load(R"({"decoder":)" + decoder + R"(,"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}})")
        ->decode(Ids{0, 1});
  };
  EXPECT_EQ(decoded("null"), "a b");
  EXPECT_EQ(decoded(R"({"type":"Sequence","decoders":[]})"), "ab");
}

// A Strip that no Fuse precedes joined all tokens for the decoder after it.
TEST(Tokenizer, AStripKeepsTokensApart) {
  const TokenizerPtr t = load(R"({"decoder":{"type":"Sequence","decoders":[
      {"type":"Strip","content":"_","start":1,"stop":0},{"type":"WordPiece","prefix":"##","cleanup":false}]},
      "model":{"type":"BPE","vocab":{"_a":0,"##b":1,"_c":2},"merges":[]}})");
  EXPECT_EQ(t->decode(Ids{0, 1, 2}), "ab c");
}

TEST(Tokenizer, TurnsIllFormedBytesIntoReplacementCharacters) {
  const TokenizerPtr t = load(llama_json());
  EXPECT_EQ(t->encode("a\xff\xe4\xb8z"), t->encode("a\xef\xbf\xbd\xef\xbf\xbdz"));
}

TEST(Tokenizer, TellsPiecesIdsAndRoles) {
  const TokenizerPtr t = load(llama_json());
  EXPECT_EQ(t->vocab_size(), 265);
  EXPECT_EQ(t->piece(264), "▁ab");
  EXPECT_EQ(t->piece(9999), std::nullopt);
  EXPECT_EQ(t->piece(-1), std::nullopt);
  EXPECT_EQ(t->id_of("</s>"), 2);
  EXPECT_EQ(t->id_of("nope"), std::nullopt);
  EXPECT_EQ(t->token_bytes(264), " ab");
  EXPECT_EQ(t->token_bytes(3 + 0xff), "\xff");
  EXPECT_EQ(t->token_bytes(2), "</s>");
  EXPECT_TRUE(t->is_special(1));
  EXPECT_FALSE(t->is_special(264));
  EXPECT_TRUE(t->is_added(2));
  EXPECT_THAT(t->added_ids(), ElementsAre(1, 2));
  EXPECT_EQ(t->model_type(), "BPE");
  EXPECT_EQ(t->special_ids().unk, 0);
}

TEST(Tokenizer, MergesALongWordAsItMergesAShortOne) {
  // The heap for long words and the scan for short ones must agree: cut a long one where no merge can reach.
  const TokenizerPtr t = load(llama_json());
  std::string text;
  Ids expected;
  for (int i = 0; i < 500; ++i) {
    text += i % 3 == 0 ? "abz" : "baz";
    if (i > 0) expected.push_back(i % 3 == 0 ? 262 : 261);
    if (i == 0) expected.push_back(264);
    if (i % 3 != 0) expected.push_back(260);
    expected.push_back(3 + 'z');
  }
  EXPECT_EQ(t->encode(text, {.add_special_tokens = false}), expected);
}

TEST(Tokenizer, EncodesAMegabyteWithoutSpaces) {
  const TokenizerPtr t = load(llama_json());
  const Ids ids = t->encode(std::string(1'000'000, 'a') + std::string(1'000'000, ' '), {.add_special_tokens = false});
  EXPECT_EQ(ids.size(), 2'000'000u);
}

TEST(Tokenizer, GivesTheSameIdsFromManyThreads) {
  const TokenizerPtr t = load(llama_json());
  const Ids expected = t->encode("ab ab a b ba ab");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 200; ++n) wrong[i] += t->encode("ab ab a b ba ab") == expected ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(Tokenizer, KeepsTheWordsOfTwoTokenizersApart) {
  const TokenizerPtr t = load(llama_json());
  std::string other = llama_json();
  other.replace(other.find("\"a b\","), 6, "");
  other.replace(other.find(",\"▁ ab\""), std::string(",\"▁ ab\"").size(), "");
  const TokenizerPtr u = load(other);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(t->encode("ab", {.add_special_tokens = false}), ElementsAre(264));
    EXPECT_THAT(u->encode("ab", {.add_special_tokens = false}), ElementsAre(263, 261));
  }
}

TEST(Tokenizer, BreaksUnigramTiesAsTheReferenceDoes) {
  // Ten dashes: the one short piece may stand in four places at the same cost; rounding decides (see twice_rounded).
  const TokenizerPtr t = load(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["▁",-2.0122928619384766],
      ["-",-5.129043102264404],["---",-12.130167007446289]]}})");
  EXPECT_THAT(t->encode("▁----------"), ElementsAre(1, 3, 3, 2, 3));
}

TEST(Tokenizer, NamesFileFieldAndFault) {
  EXPECT_THAT(error_of("{"), HasSubstr("some/tokenizer.json"));
  EXPECT_THAT(error_of("[]"), HasSubstr("object"));
  EXPECT_THAT(error_of(R"({"model":{"type":"Magic","vocab":{}}})"), HasSubstr("Magic"));
  EXPECT_THAT(error_of(R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})"), HasSubstr("model.vocab"));
  EXPECT_THAT(error_of(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})"), HasSubstr("model.merges[0]"));
  EXPECT_THAT(error_of(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}})"), HasSubstr("model.merges[0]"));
  EXPECT_THAT(error_of(R"({"normalizer":{"type":"Wavy"},"model":{"type":"WordLevel","vocab":{"a":0}}})"),
              HasSubstr("Wavy"));
  EXPECT_THAT(error_of(R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"},
                          "model":{"type":"WordLevel","vocab":{"a":0}}})"),
              HasSubstr("pre_tokenizer.pattern"));
  EXPECT_THAT(error_of(R"({"decoder":{"type":"Wavy"},"model":{"type":"WordLevel","vocab":{"a":0}}})"),
              HasSubstr("decoder"));
  EXPECT_THAT(error_of(R"({"added_tokens":[{"id":0}],"model":{"type":"WordLevel","vocab":{"a":0}}})"),
              HasSubstr("content"));
}

// Each replacement doubles the text.
TEST(Tokenizer, RefusesReplacementsThatMakeATextHuge) {
  const auto with = [](int count, const std::string& step) {
    std::string steps;
    for (int i = 0; i < count; ++i) steps += (i > 0 ? "," : "") + step;
    return R"({"normalizer":{"type":"Sequence","normalizers":[)" + steps +
           R"(]},"decoder":{"type":"Sequence","decoders":[)" + steps +
           R"(]},"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}})";
  };
  const std::string doubled = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  EXPECT_THAT(error_of(with(20, doubled)), HasSubstr("4096 times"));
  EXPECT_THAT(error_of(with(20, R"({"type":"Replace","pattern":{"Regex":"x*"},"content":"a"})")),
              HasSubstr("4096 times"));
  EXPECT_NE(load(with(12, doubled)), nullptr);
  EXPECT_NE(load(with(40, R"({"type":"Replace","pattern":{"Regex":"[ab]"},"content":"a"})")), nullptr);
}

TEST(Tokenizer, RefusesHugePiecesOfScoredVocabularies) {
  const auto with = [](size_t bytes) {
    GgufVocab vocab;
    vocab.model = "llama";
    vocab.tokens = {"<unk>", "a", std::string(bytes, 'a')};
    vocab.scores = {0, -1, -2};
    vocab.token_types = {2, 1, 1};
    return load_gguf_vocab(std::move(vocab));
  };
  EXPECT_TRUE(with(1024).ok());
  const auto huge = with(4'000'000);
  ASSERT_FALSE(huge.ok());
  EXPECT_THAT(huge.error().message, HasSubstr("token 2 has 4000000 bytes"));
}

TEST(Detokenizer, HoldsHalfACharacterAndByteRuns) {
  const TokenizerPtr t = load(llama_json());
  Detokenizer d(t);
  EXPECT_EQ(d.push(264), "ab");
  EXPECT_EQ(d.push(3 + 0xe4), "");
  EXPECT_EQ(d.push(3 + 0xb8), "");
  EXPECT_EQ(d.push(3 + 0xad), "");  // whole now, but a byte may follow that spoils the run
  EXPECT_EQ(d.push(260), "中a");
  EXPECT_EQ(d.push(3 + 0xe4), "");
  EXPECT_EQ(d.flush(), "\xef\xbf\xbd");
  EXPECT_EQ(d.push(264), "ab");  // a new text: its leading space goes again
}

TEST(Detokenizer, HoldsWhatTheEndOfTheTextWouldStrip) {
  const TokenizerPtr t = load(R"({"model":{"type":"WordLevel","vocab":{"a":0,"xx":1,"x":2},"unk_token":"a"},
      "decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":"x","start":1,"stop":2}]}})");
  EXPECT_EQ(t->decode(Ids{2, 2, 0, 1, 2}), "xax");
  EXPECT_EQ(t->decode(Ids{}), "");
  Detokenizer d(t);
  EXPECT_EQ(d.push(2), "");
  EXPECT_EQ(d.push(2), "");
  EXPECT_EQ(d.push(0), "xa");
  EXPECT_EQ(d.push(1), "");
  EXPECT_EQ(d.push(2), "x");
  EXPECT_EQ(d.flush(), "");
}

// spaces_between_special_tokens was read and did nothing.
TEST(Detokenizer, LeavesOutSpacesBetweenSpecialTokensWhenAskedTo) {
  const TokenizerPtr t = load(R"({"added_tokens":[{"id":2,"content":"<x>","special":true},
      {"id":3,"content":"<y>","special":false}],
      "model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}})");  // no decoder: a space between tokens
  const auto text = [&](const Ids& ids, bool skip, bool spaces) {
    Detokenizer d(t, skip, spaces);
    std::string out;
    for (const int32_t id : ids) out += d.push(id);
    return out + d.flush();
  };
  const Ids ids = {0, 2, 3, 2, 1, 2};
  EXPECT_EQ(text(ids, false, true), "a <x> <y> <x> b <x>");
  EXPECT_EQ(text(ids, false, false), "a <x><y><x> b <x>");
  EXPECT_EQ(text(ids, true, false), "a <y> b");
  EXPECT_EQ(text(ids, true, true), "a <y> b");
}

// For every tokenizer in tests/text/tokenizers, the streamed text equals decode() and always has whole characters, and
// encode never crashes on random bytes.
TEST(Detokenizer, JoinsToWhatDecodeGives) {
  const std::filesystem::path folder = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/text/tokenizers";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string text = read_file(entry.path()).value();
    const TokenizerPtr t = load(text);
    ASSERT_NE(t, nullptr) << entry.path();
    ++files;
    std::mt19937 rng(4);
    for (int round = 0; round < 200; ++round) {
      Ids ids;
      for (int i = 0; i < 20; ++i)
        ids.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(t->vocab_size() + 2)));
      std::string bytes;
      for (int i = 0; i < 30; ++i) bytes += static_cast<char>(rng() % 3 == 0 ? rng() % 256 : ' ' + rng() % 90);
      const Ids encoded = t->encode(bytes);
      if (round % 2 == 0) ids = encoded;
      for (const bool skip : {true, false}) {
        Detokenizer d(t, skip);
        std::string joined;
        for (const int32_t id : ids) {
          const std::string part = d.push(id);
          EXPECT_TRUE(utf8::is_valid(part)) << entry.path();
          joined += part;
        }
        joined += d.flush();
        ASSERT_EQ(joined, t->decode(ids, skip)) << entry.path();
      }
    }
  }
  EXPECT_GT(files, 15);
}

GgufVocab small_gguf() {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "gpt-2";
  vocab.tokens = {"a", "b", "Ġ", "ab", "Ġab", "<|end|>", "<tool>"};
  vocab.token_types = {1, 1, 1, 1, 1, 3, 4};
  vocab.merges = {"a b", "Ġ ab", "x y"};
  vocab.special.eos = 5;
  return vocab;
}

TEST(GgufVocab, ReadsByteLevelBpe) {
  const auto t = load_gguf_vocab(small_gguf());
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT((*t)->encode("ab ab<|end|><tool>"), ElementsAre(3, 4, 5, 6));
  EXPECT_EQ((*t)->decode(Ids{3, 4, 5}), "ab ab");
  EXPECT_EQ((*t)->special_ids().eos, 5);
}

TEST(GgufVocab, RefusesWhatItDoesNotKnow) {
  GgufVocab vocab = small_gguf();
  vocab.pre = "from-the-future";
  EXPECT_THAT(load_gguf_vocab(vocab, "x.gguf").error().message,
              HasSubstr("x.gguf: tokenizer.ggml.pre is \"from-the-future\""));
  vocab = small_gguf();
  vocab.model = "plamo9";
  EXPECT_THAT(load_gguf_vocab(vocab).error().message, HasSubstr("plamo9"));
  vocab = small_gguf();
  vocab.token_types.pop_back();
  EXPECT_THAT(load_gguf_vocab(vocab).error().message, HasSubstr("token_type"));
  vocab = small_gguf();
  vocab.special.bos = 99;
  EXPECT_FALSE(load_gguf_vocab(vocab).ok());
}

TEST(GgufVocab, CompilesEveryPreTokenizerItNames) {
  EXPECT_GT(gguf_pre_names().size(), 50u);
  for (const std::string_view name : gguf_pre_names()) {
    const auto pre = make_gguf_pre(name);
    EXPECT_TRUE(pre.ok()) << name << ": " << (pre.ok() ? "" : pre.error().message);
  }
}

// A hand-made SentencePiece model: fields as their protocol buffer writes them.
void put(std::string& out, int field, std::string_view bytes) {
  out += static_cast<char>(field << 3 | 2);
  out += static_cast<char>(bytes.size());
  out += bytes;
}

std::string sentencepiece_model() {
  std::string model;
  const auto piece = [&](std::string_view text, float score, int type) {
    std::string message;
    put(message, 1, text);
    message += static_cast<char>(2 << 3 | 5);
    message.append(reinterpret_cast<const char*>(&score), 4);
    message += static_cast<char>(3 << 3);
    message += static_cast<char>(type);
    put(model, 1, message);
  };
  piece("<unk>", 0, 2);
  piece("<s>", 0, 3);
  piece("</s>", 0, 3);
  piece("▁", -3, 1);
  piece("a", -4, 1);
  piece("b", -5, 1);
  piece("ab", -1, 1);
  piece("▁a", -2, 1);
  put(model, 2, std::string("\x18\x02", 2));          // trainer_spec.model_type = BPE
  put(model, 3, std::string("\x18\x01\x20\x00", 4));  // add_dummy_prefix, no remove_extra_whitespaces
  return model;
}

TEST(SentencePiece, ReadsABpeModelAndMergesByScore) {
  const auto t = load_sentencepiece_model(sentencepiece_model());
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT((*t)->encode("ab a"), ElementsAre(1, 3, 6, 7));
  EXPECT_EQ((*t)->decode((*t)->encode("ab a")), "ab a");
  EXPECT_TRUE((*t)->adds_bos());
  EXPECT_FALSE((*t)->adds_eos());
}

TEST(SentencePiece, SurvivesEveryCutAndEveryChangedByte) {
  const std::string model = sentencepiece_model();
  for (size_t size = 0; size < model.size(); ++size) (void)load_sentencepiece_model(model.substr(0, size));
  for (size_t i = 0; i < model.size(); ++i) {
    for (const char c : {'\0', '\x7f', '\xff', '\x80'}) {
      std::string damaged = model;
      damaged[i] = c;
      const auto t = load_sentencepiece_model(damaged);
      if (t.ok()) (void)(*t)->encode("ab a");
    }
  }
}

// A WordPiece tokenizer of four letters with this post-processor.
TokenizerPtr letters(const std::string& post_processor) {
  const auto t = load_tokenizer_json(
      R"({"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"BertPreTokenizer"},"decoder":{"type":"WordPiece",
      "prefix":"##","cleanup":true},"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##",
      "max_input_chars_per_word":100,"vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"a":3,"b":4,"c":5,"d":6}},"post_processor":)" +
      post_processor + "}");
  return t.ok() ? *t : nullptr;
}

TEST(Pairs, HaveTheSpecialTokensAndTypesOfTheFile) {
  const std::vector<int32_t> first = {3, 4}, second = {5};
  const TokenizerPtr bert = letters(R"({"type":"BertProcessing","sep":["[SEP]",2],"cls":["[CLS]",1]})");
  ASSERT_NE(bert, nullptr);
  EXPECT_THAT(bert->join_pair(first, second).ids, ElementsAre(1, 3, 4, 2, 5, 2));
  EXPECT_EQ(bert->join_pair(first, second).second_segment, 4);
  EXPECT_THAT(bert->wrap(first), ElementsAre(1, 3, 4, 2));
  const TokenizerPtr roberta = letters(R"({"type":"RobertaProcessing","sep":["[SEP]",2],"cls":["[CLS]",1]})");
  ASSERT_NE(roberta, nullptr);
  EXPECT_THAT(roberta->join_pair(first, second).ids, ElementsAre(1, 3, 4, 2, 2, 5, 2));
  EXPECT_EQ(roberta->join_pair(first, second).second_segment, -1);
  const TokenizerPtr plain = letters("null");
  ASSERT_NE(plain, nullptr);
  EXPECT_THAT(plain->join_pair(first, second).ids, ElementsAre(3, 4, 5));
}

TEST(Pairs, TemplatesWithoutBothTextsInOrderAreNotForPairs) {
  const std::string single = R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],"pair":)";
  const TokenizerPtr swapped = letters(
      single + R"([{"Sequence":{"id":"B","type_id":0}},{"Sequence":{"id":"A","type_id":1}}],"special_tokens":{}})");
  ASSERT_NE(swapped, nullptr);
  EXPECT_THAT(swapped->join_pair(std::vector<int32_t>{3}, std::vector<int32_t>{4}).ids, ElementsAre(3, 4));
  EXPECT_EQ(letters(single + R"([{"Poem":{}}],"special_tokens":{}})"), nullptr);
  EXPECT_EQ(letters(single + R"([{"SpecialToken":{"id":"[X]","type_id":0}}],"special_tokens":{}})"), nullptr);
}

class Folder : public ::testing::Test {
 protected:
  void write(const char* name, std::string_view text) { folder_.write(name, text); }
  const TempFolder folder_;
  const std::filesystem::path& path_ = folder_.path();
};

TEST_F(Folder, WithoutATokenizerIsAClearError) {
  const auto t = load_tokenizer(path_);
  ASSERT_FALSE(t.ok());
  EXPECT_THAT(t.error().message, HasSubstr("has no tokenizer.json, tokenizer.model, tekken.json or .tiktoken file"));
}

TEST_F(Folder, SaysWhatAnUnreadableFileSeemsToBe) {
  const auto error = [&](const std::string& bytes) {
    write("tokenizer.model", bytes);
    const auto t = load_tokenizer(path_);
    return t.ok() ? std::string() : t.error().message;
  };
  EXPECT_THAT(error("version https://git-lfs.github.com/spec/v1\noid x"),
              HasSubstr("tokenizer.model: the file is a Git LFS"));
  EXPECT_THAT(error("<!DOCTYPE html>"), HasSubstr("is a web page"));
  EXPECT_THAT(error("\x1f\x8b\x08"), HasSubstr("is compressed"));
  EXPECT_THAT(error(""), HasSubstr("is empty"));
  EXPECT_THAT(error("YQ== 0\nYg== 1\n"), HasSubstr("this is a tiktoken file of 2 ranks"));
  EXPECT_THAT(error("nonsense"), HasSubstr("neither a SentencePiece model nor a tiktoken file"));
}

TEST_F(Folder, TakesRolesAndFlagsFromTheConfig) {
  write("tokenizer.json", llama_json());
  write("tokenizer_config.json",
        R"({"bos_token":"<s>","eos_token":{"content":"</s>"},"add_bos_token":true,"add_eos_token":true,
      "tokenizer_class":"LlamaTokenizer","added_tokens_decoder":{"300":{"content":"<new>","special":true}}})");
  const auto t = load_tokenizer(path_);
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT((*t)->encode("ab<new>"), ElementsAre(1, 264, 300, 2));
  EXPECT_TRUE((*t)->adds_bos());
  EXPECT_TRUE((*t)->adds_eos());
  EXPECT_EQ((*t)->vocab_size(), 301);
}

TEST_F(Folder, FallsBackToTheSentencePieceModel) {
  write("tokenizer.model", sentencepiece_model());
  write("tokenizer_config.json", R"({"add_bos_token":false})");
  const auto t = load_tokenizer(path_);
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT((*t)->encode("a"), ElementsAre(7));
}

}  // namespace
}  // namespace quire::text
