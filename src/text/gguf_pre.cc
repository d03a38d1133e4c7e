// SPDX-License-Identifier: Apache-2.0
// The table of GGUF pre-tokenizers. Each row is what the models with that name have in their own tokenizer.json.
#include "text/gguf_pre.h"

#include <algorithm>
#include <array>
#include <string>

namespace quire::text {

namespace {

// Steps that are not regular expressions.
constexpr const char* kGpt2 = "gpt2";
constexpr const char* kDigits = "digits";         // each digit is a piece
constexpr const char* kDigitRuns = "digit-runs";  // each run of digits is a piece
constexpr const char* kPunctuationRuns = "punctuation-runs";

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kKimi =
    R"([\p{Han}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepseek3 =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
constexpr const char* kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kExaoneMoe =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|)"
    R"(\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kBloom = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";
// The letters of scripts with upper and lower case, as in the file of DeepSeek LLM, by code point.
constexpr const char* kDeepseekLetters =
    R"(\s?[A-Za-z)"
    R"(\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF})"
    R"(\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1})"
    R"(\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5})"
    R"(\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77})"
    R"(\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D})"
    R"(\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE})"
    R"(\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC})"
    R"(\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E})"
    R"(\x{2183}-\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}-\x{2CF3})"
    R"(\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E})"
    R"(\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A})"
    R"(\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})"
    R"(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr const char* kDeepseekCjk = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr const char* kYoutuScripts =
    R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|)"
    R"([\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr const char* kYoutu =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

enum Flags : unsigned { kNone = 0, kIgnoreMerges = 1, kAddBos = 2, kAddSep = 4, kNfc = 8 };

struct Row {
  const char* names;  // separated by spaces
  unsigned flags;
  std::array<const char*, 6> steps;
};

const Row kRows[] = {
    {"default", kNone, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, kDigitRuns, "[0-9][0-9][0-9]"}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2", kIgnoreMerges | kAddBos, {kLlama3}},
    {"dbrx smaug-bpe glm4 chatglm-bpe", kNone, {kLlama3}},
    {"gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4 jais trillion "
     "granite-docling",
     kNone,
     {kGpt2}},
    {"jina-v1-en jina-v2-code roberta-bpe", kAddSep, {kGpt2}},
    {"mpt olmo", kNfc, {kGpt2}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b", kNone, {kDigits, kGpt2}},
    {"qwen2 deepseek-r1-qwen kormo megrez", kNfc, {kQwen2}},
    {"qwen35", kNone, {kQwen35}},
    {"stablelm2 hunyuan solar-open grok-2", kNone, {kQwen2}},
    {"falcon", kNone, {kPunctuationRuns, kGpt2, "[0-9][0-9][0-9]"}},
    {"deepseek-llm",
     kNone,
     {"[\r\n]", kDeepseekLetters, R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
      R"(\s+$)", kDeepseekCjk, kDigits}},
    {"deepseek-coder", kNone, {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekCjk, kDigits}},
    {"deepseek-v3 hunyuan-dense",
     kNone,
     {R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)", kDeepseek3}},
    {"youtu", kIgnoreMerges, {kYoutuScripts, kYoutu}},
    {"poro-chat bloom gpt3-finnish", kNone, {kBloom}},
    {"viking", kNone, {kBloom, kDigits}},
    {"tekken", kIgnoreMerges | kAddBos, {kTekken}},
    {"gpt-4o llama4 minimax-m2", kNone, {kO200k}},
    {"kimi-k2", kNone, {kKimi}},
    {"superbpe", kNone, {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"}},
    {"bailingmoe bailingmoe2 llada-moe", kNone, {kBailing}},
    {"seed-coder", kNone, {kSeedCoder}},
    {"exaone-moe", kNone, {kExaoneMoe}},
    {"chameleon",
     kAddBos,
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", R"(([\t\n]|    |  ))", kDigits,
      R"([\p{P}!-/:-@\[-`{-~])", kGpt2}},
};

bool names_contain(std::string_view names, std::string_view name) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return false;
  const std::string padded = " " + std::string(names) + " ";
  return padded.find(" " + std::string(name) + " ") != std::string::npos;
}

Result<PreTokenizerPtr> make_step(const char* step) {
  if (step == kGpt2) return make_split(kGpt2Pattern, SplitBehavior::kIsolated);
  if (step == kDigits) return make_digits(true);
  if (step == kDigitRuns) return make_digits(false);
  if (step == kPunctuationRuns) return make_punctuation(SplitBehavior::kContiguous);
  return make_split(step, SplitBehavior::kIsolated);
}

}  // namespace

Result<GgufPre> make_gguf_pre(std::string_view name) {
  const auto* row =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return names_contain(r.names, name); });
  if (row == std::end(kRows)) {
    return unsupported(
        {"tokenizer.ggml.pre is \"", name,
         "\", a pre-tokenizer that quire does not support; use the model's Hugging Face folder, or a newer quire"});
  }
  GgufPre pre;
  for (const char* step : row->steps) {
    if (step == nullptr) break;
    QUIRE_ASSIGN(PreTokenizerPtr made, make_step(step));
    pre.steps.push_back(std::move(made));
  }
  pre.ignore_merges = (row->flags & kIgnoreMerges) != 0;
  pre.add_bos = (row->flags & kAddBos) != 0;
  pre.add_sep = (row->flags & kAddSep) != 0;
  pre.nfc = (row->flags & kNfc) != 0;
  return pre;
}

std::vector<std::string_view> gguf_pre_names() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) {
    std::string_view rest = row.names;
    while (!rest.empty()) {
      const size_t space = rest.find(' ');
      names.push_back(rest.substr(0, space));
      rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
    }
  }
  return names;
}

}  // namespace quire::text
