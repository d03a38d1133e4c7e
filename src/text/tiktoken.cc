// SPDX-License-Identifier: Apache-2.0
// Reads rank files: tiktoken's (a token in base64 and its rank per line) and Mistral's tekken.json.
#include "text/tiktoken.h"

#include <array>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/gguf_pre.h"

namespace quire::text {

namespace {

constexpr int64_t kMaxRanks = int64_t{1} << 21;  // the largest vocabularies have 2^18
constexpr size_t kMaxTokenBytes = 512;           // the longest tokens of real files have 128

// Tokens by rank.
class Ranks {
 public:
  Status add(std::string_view base64, int64_t rank, const std::string& where) {
    std::string token;
    if (!decode_base64(base64, token)) return corrupt({where, " has a token that is not base64"});
    if (token.size() > kMaxTokenBytes) return corrupt({where, " has a token of more than 512 bytes"});
    if (rank < 0 || rank >= kMaxRanks) return corrupt({where, " has a rank that is not between 0 and 2^21"});
    // Some files end with an empty token, which no text produces.
    if (token.empty()) return {};
    std::string piece;
    append_byte_level(piece, token);
    if (pieces_.find(piece) >= 0) return corrupt({where, " repeats the token of another line"});
    if (pieces_.has_id(static_cast<int32_t>(rank))) return corrupt({where, " repeats the rank of another line"});
    pieces_.insert(piece, static_cast<int32_t>(rank));
    ++size_;
    return {};
  }
  int64_t size() const { return size_; }
  const PieceMap& pieces() const { return pieces_; }

 private:
  PieceMap pieces_;
  int64_t size_ = 0;
};

// The parts for tokens with these ranks, whose ids are `offset` larger. tiktoken merges the pair whose merged token has
// the lowest rank, so every split of a token into two others is a merge of that rank; a piece that is itself a token
// stays whole.
Result<std::unique_ptr<TokenizerParts>> make_parts(const Ranks& ranks, int32_t offset) {
  std::string byte;
  for (int i = 0; i < 256; ++i) {
    byte.clear();
    append_byte_level(byte, std::string(1, static_cast<char>(i)));
    if (ranks.pieces().find(byte) < 0) return corrupt({"there is no token for the byte ", i});
  }
  const int32_t end = ranks.pieces().id_end() + offset;
  PieceMap pieces;
  std::vector<float> scores(static_cast<size_t>(end), 0.0f);
  std::vector<bool> mergeable(static_cast<size_t>(end), false);
  for (int32_t rank = 0; rank < ranks.pieces().id_end(); ++rank) {
    if (!ranks.pieces().has_id(rank)) continue;
    const int32_t id = rank + offset;
    pieces.insert(ranks.pieces().piece(rank), id);
    scores[static_cast<size_t>(id)] = -static_cast<float>(rank);  // exact below 2^24
    mergeable[static_cast<size_t>(id)] = true;
  }
  auto parts = std::make_unique<TokenizerParts>();
  QUIRE_ASSIGN(MergeMap merges, merges_from_scores(pieces, scores, mergeable));
  BpeOptions options;
  options.ignore_merges = true;
  options.byte_level_input = true;
  parts->model = make_bpe(std::move(pieces), std::move(merges), std::move(options));
  parts->pre_tokenizer.byte_level = true;
  std::vector<std::unique_ptr<const DecodeStage>> stages;
  stages.push_back(decode_byte_level());
  parts->decoder.emplace(std::move(stages));
  return parts;
}

void add_special(TokenizerParts& parts, std::string content, int32_t id) {
  AddedToken token;
  token.content = std::move(content);
  token.normalized = false;
  token.special = true;
  parts.added.add_with_id(std::move(token), id);
}

// --- tiktoken ---

using SpecialNames = std::vector<std::string> (*)();

std::vector<std::string> llama3_specials() {
  std::vector<std::string> names = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|finetune_right_pad_id|>",
                                    "<|reserved_special_token_2|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eom_id|>",
                                    "<|eot_id|>",
                                    "<|python_tag|>"};
  for (int i = 3; names.size() < 256; ++i) names.push_back("<|reserved_special_token_" + std::to_string(i) + "|>");
  return names;
}

std::vector<std::string> qwen_specials() {
  std::vector<std::string> names = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int i = 0; i < 205; ++i) names.push_back("<|extra_" + std::to_string(i) + "|>");
  return names;
}

// A rank file has neither the split pattern nor the control tokens that follow its ranks. They are known for these
// families, which are recognised by tokenizer_class in tokenizer_config.json or by the number of ranks.
struct Family {
  int64_t ranks;
  std::string_view tokenizer_class;  // "": not needed
  std::string_view pre;              // the name of the pattern in the table of GGUF pre-tokenizers
  SpecialNames specials;             // null: they must be in tokenizer_config.json
  std::string_view bos, eos;
};
constexpr Family kFamilies[] = {
    {128000, "", "llama-bpe", llama3_specials, "<|begin_of_text|>", "<|end_of_text|>"},
    {151643, "QWenTokenizer", "qwen2", qwen_specials, "", "<|endoftext|>"},
    {163584, "TikTokenTokenizer", "kimi-k2", nullptr, "", ""},
    {199998, "", "gpt-4o", nullptr, "", ""},
    {200000, "", "gpt-4o", nullptr, "", ""},
    {248044, "", "qwen35", nullptr, "", ""},
};

bool lists_tokens(const json::Value& config) {
  const json::Value* listed = config.find("added_tokens_decoder");
  return listed != nullptr && listed->is_object() && !listed->as_object().empty();
}

Result<const Family*> find_family(const Ranks& ranks, const json::Value& config) {
  const json::Value* given = config.find("tokenizer_class");
  const std::string name = given != nullptr && given->is_string() ? given->as_string() : std::string();
  const Family* found = nullptr;
  for (const Family& family : kFamilies) {
    const bool named = !family.tokenizer_class.empty() && family.tokenizer_class == name;
    if (named || (found == nullptr && family.ranks == ranks.size())) found = &family;
  }
  if (found == nullptr) {
    return unsupported({"this is a tiktoken file of ", ranks.size(),
                        " ranks, which has no split pattern; quire knows only those of Llama 3 and 4, Qwen, "
                        "Kimi K2 and o200k, so convert the file to a tokenizer.json"});
  }
  if (found->specials == nullptr && !lists_tokens(config)) {
    return unsupported(
        "this is a tiktoken file, whose control tokens are in added_tokens_decoder of tokenizer_config.json; put "
        "that file beside it");
  }
  return found;
}

Result<Ranks> read_ranks(std::string_view text) {
  Ranks ranks;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = "line " + std::to_string(number);
    const size_t space = line.find(' ');
    int64_t rank = -1;
    const char* last = line.data() + line.size();
    if (space == std::string_view::npos) return corrupt({where, " is not a token and its rank"});
    const auto [stop, error] = std::from_chars(line.data() + space + 1, last, rank);
    if (error != std::errc() || stop != last) return corrupt({where, " is not a token and its rank"});
    QUIRE_TRY(ranks.add(line.substr(0, space), rank, where));
  }
  return ranks;
}

Result<std::unique_ptr<TokenizerParts>> read_rank_file(std::string_view text, const json::Value& config) {
  QUIRE_ASSIGN(const Ranks ranks, read_ranks(text));
  QUIRE_ASSIGN(const Family* family, find_family(ranks, config));
  QUIRE_ASSIGN(auto parts, make_parts(ranks, 0));
  QUIRE_ASSIGN(GgufPre pre, make_gguf_pre(family->pre));
  parts->pre_tokenizer.steps = std::move(pre.steps);
  if (family->specials == qwen_specials) parts->normalizer = make_nfc();
  if (family->specials != nullptr && !lists_tokens(config)) {
    int32_t id = ranks.pieces().id_end();
    for (std::string& name : family->specials()) add_special(*parts, std::move(name), id++);
  }
  parts->added.finish(parts->normalizer.get());
  if (!family->bos.empty() && parts->added.id_of(family->bos) >= 0) {
    parts->special.bos = parts->added.id_of(family->bos);
    parts->post.before = {*parts->special.bos};
  }
  if (!family->eos.empty() && parts->added.id_of(family->eos) >= 0) {
    parts->special.eos = parts->added.id_of(family->eos);
  }
  return parts;
}

// --- tekken.json ---

// The control tokens of files that have none, in the order of their ids.
constexpr std::array<const char*, 20> kTekkenSpecials = {"<unk>",
                                                         "<s>",
                                                         "</s>",
                                                         "[INST]",
                                                         "[/INST]",
                                                         "[AVAILABLE_TOOLS]",
                                                         "[/AVAILABLE_TOOLS]",
                                                         "[TOOL_RESULTS]",
                                                         "[/TOOL_RESULTS]",
                                                         "[TOOL_CALLS]",
                                                         "[IMG]",
                                                         "<pad>",
                                                         "[IMG_BREAK]",
                                                         "[IMG_END]",
                                                         "[PREFIX]",
                                                         "[MIDDLE]",
                                                         "[SUFFIX]",
                                                         "[SYSTEM_PROMPT]",
                                                         "[/SYSTEM_PROMPT]",
                                                         "[TOOL_CONTENT]"};

Result<std::vector<std::string>> tekken_specials(const json::Value& root, int64_t count) {
  std::vector<std::string> names(static_cast<size_t>(count));
  const json::Value* list = root.find("special_tokens");
  if (list == nullptr || list->is_null()) {
    for (size_t i = 0; i < kTekkenSpecials.size() && i < names.size(); ++i) names[i] = kTekkenSpecials[i];
  } else {
    if (!list->is_array()) return corrupt("special_tokens must be a list");
    for (const json::Value& item : list->as_array()) {
      QUIRE_ASSIGN(const int64_t rank, json::get_int(item, "rank", 0, count - 1));
      QUIRE_ASSIGN(names[static_cast<size_t>(rank)], json::get_string(item, "token_str"));
    }
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) names[i] = "<SPECIAL_" + std::to_string(i) + ">";
  }
  return names;
}

Result<std::unique_ptr<TokenizerParts>> read_tekken_root(const json::Value& root) {
  const json::Value* config = root.find("config");
  const json::Value* vocab = root.find("vocab");
  if (config == nullptr || !config->is_object()) return corrupt("config must be an object");
  if (vocab == nullptr || !vocab->is_array()) return corrupt("vocab must be a list");
  QUIRE_ASSIGN(const std::string pattern, json::get_string(*config, "pattern"));
  QUIRE_ASSIGN(const int64_t specials, json::get_int(*config, "default_num_special_tokens", 1, 1 << 20));
  QUIRE_ASSIGN(const int64_t size, json::get_int(*config, "default_vocab_size", specials, kMaxRanks));
  // The file may have more tokens than the model.
  const auto used = static_cast<size_t>(size - specials);
  if (vocab->as_array().size() < used) {
    return corrupt({"vocab has ", vocab->as_array().size(), " tokens, but config requires ", used});
  }
  Ranks ranks;
  for (size_t i = 0; i < used; ++i) {
    const json::Value& item = vocab->as_array()[i];
    const std::string where = "vocab[" + std::to_string(i) + "]";
    const json::Value* rank = item.find("rank");
    if (rank == nullptr || !rank->is_int() || rank->as_int() != static_cast<int64_t>(i)) {
      return corrupt({where, ".rank must be ", i});
    }
    QUIRE_ASSIGN(const std::string token, json::get_string(item, "token_bytes"));
    QUIRE_TRY(ranks.add(token, rank->as_int(), where));
  }
  QUIRE_ASSIGN(auto parts, make_parts(ranks, static_cast<int32_t>(specials)));
  QUIRE_ASSIGN(PreTokenizerPtr split, make_split(pattern, SplitBehavior::kIsolated));
  parts->pre_tokenizer.steps.push_back(std::move(split));
  QUIRE_ASSIGN(const std::vector<std::string> names, tekken_specials(root, specials));
  for (size_t i = 0; i < names.size(); ++i) add_special(*parts, names[i], static_cast<int32_t>(i));
  parts->added.finish(nullptr);
  const auto role = [&](const char* name) {
    const int32_t id = parts->added.id_of(name);
    return id < 0 ? std::nullopt : std::optional<int32_t>(id);
  };
  parts->special.unk = role("<unk>");
  parts->special.bos = role("<s>");
  parts->special.eos = role("</s>");
  parts->special.pad = role("<pad>");
  if (parts->special.bos) parts->post.before = {*parts->special.bos};
  return parts;
}

Result<std::unique_ptr<TokenizerParts>> named(Result<std::unique_ptr<TokenizerParts>> parts, std::string_view name) {
  if (!parts.ok()) return Error{parts.error().code, std::string(name) + ": " + parts.error().message};
  return parts;
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min(bytes.find('\n'), bytes.size()));
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space > 4 * kMaxTokenBytes) return false;
  std::string token;
  if (!decode_base64(line.substr(0, space), token)) return false;
  std::string_view rank = line.substr(space + 1);
  if (!rank.empty() && rank.back() == '\r') rank.remove_suffix(1);
  return !rank.empty() && rank.size() < 10 && rank.find_first_not_of("0123456789") == std::string_view::npos;
}

Result<std::unique_ptr<TokenizerParts>> read_tiktoken(std::string_view text, const json::Value& config,
                                                      std::string_view name) {
  return named(read_rank_file(text, config), name);
}

Result<std::unique_ptr<TokenizerParts>> read_tekken(std::string_view text, std::string_view name) {
  auto root = json::parse(text);
  if (!root.ok()) return corrupt({name, ": ", root.error().message});
  return named(read_tekken_root(*root), name);
}

Result<TokenizerPtr> load_tiktoken(std::string_view text, const json::Value& config, std::string_view name) {
  QUIRE_ASSIGN(auto parts, read_tiktoken(text, config, name));
  return TokenizerPtr(std::make_shared<const Tokenizer>(std::move(parts)));
}

Result<TokenizerPtr> load_tekken(std::string_view json, std::string_view name) {
  QUIRE_ASSIGN(auto parts, read_tekken(json, name));
  return TokenizerPtr(std::make_shared<const Tokenizer>(std::move(parts)));
}

}  // namespace quire::text
