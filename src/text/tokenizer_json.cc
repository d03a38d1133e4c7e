// SPDX-License-Identifier: Apache-2.0
// Reads Hugging Face's tokenizer.json.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/json.h"
#include "text/parts.h"

namespace quire::text {

namespace {

constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

Result<PieceMap> read_vocab(const json::Value& model) {
  const json::Value* vocab = model.find("vocab");
  if (vocab == nullptr || !vocab->is_object())
    return corrupt("model.vocab must be an object with the id of each token");
  PieceMap out;
  size_t bytes = 0;
  for (const auto& [piece, id] : vocab->as_object()) bytes += piece.size();
  out.reserve(vocab->as_object().size(), bytes);
  for (const auto& [piece, id] : vocab->as_object()) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > kMaxId) {
      return corrupt({"model.vocab gives \"", piece, "\" an id that is not between 0 and ", kMaxId});
    }
    out.insert(piece, static_cast<int32_t>(id.as_int()));
  }
  return out;
}

// "a b" or ["a", "b"].
bool merge_sides(const json::Value& item, std::string_view& left, std::string_view& right) {
  if (item.is_string()) {
    const std::string_view text = item.as_string();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return false;
    left = text.substr(0, space);
    right = text.substr(space + 1);
    return true;
  }
  if (!item.is_array() || item.as_array().size() != 2) return false;
  if (!item.as_array()[0].is_string() || !item.as_array()[1].is_string()) return false;
  left = item.as_array()[0].as_string();
  right = item.as_array()[1].as_string();
  return true;
}

Result<MergeMap> read_merges(const json::Value& model, const PieceMap& vocab, size_t prefix_size) {
  const json::Value* merges = model.find("merges");
  if (merges == nullptr || !merges->is_array()) return corrupt("model.merges must be a list");
  MergeMap out;
  out.reserve(merges->as_array().size());
  std::string joined;
  uint32_t rank = 0;
  for (const json::Value& item : merges->as_array()) {
    std::string_view left;
    std::string_view right;
    const auto where = [&] { return "model.merges[" + std::to_string(rank) + "]"; };
    if (!merge_sides(item, left, right)) return corrupt({where(), " must be two tokens"});
    if (right.size() < prefix_size) return corrupt({where(), " joins a token without the continuing prefix"});
    joined.assign(left);
    joined.append(right.substr(prefix_size));
    const int32_t a = vocab.find(left);
    const int32_t b = vocab.find(right);
    const int32_t c = vocab.find(joined);
    if (a < 0 || b < 0 || c < 0) {
      const std::string missing = a < 0 ? std::string(left) : b < 0 ? std::string(right) : joined;
      return corrupt({where(), " needs the token \"", missing, "\", which model.vocab does not have"});
    }
    out.insert(a, b, {rank, c});
    ++rank;
  }
  return out;
}

std::optional<std::string> optional_string(const json::Value& object, std::string_view field) {
  const json::Value* value = object.find(field);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return value->as_string();
}

Result<std::unique_ptr<Model>> read_bpe(const json::Value& section, bool byte_level) {
  BpeOptions options;
  options.unk_token = optional_string(section, "unk_token");
  options.continuing_subword_prefix = optional_string(section, "continuing_subword_prefix");
  options.end_of_word_suffix = optional_string(section, "end_of_word_suffix");
  QUIRE_ASSIGN(options.fuse_unk, json::get_bool_or(section, "fuse_unk", false));
  QUIRE_ASSIGN(options.byte_fallback, json::get_bool_or(section, "byte_fallback", false));
  QUIRE_ASSIGN(options.ignore_merges, json::get_bool_or(section, "ignore_merges", false));
  options.byte_level_input = byte_level;
  QUIRE_ASSIGN(PieceMap vocab, read_vocab(section));
  const size_t prefix = options.continuing_subword_prefix.value_or("").size();
  QUIRE_ASSIGN(MergeMap merges, read_merges(section, vocab, prefix));
  return make_bpe(std::move(vocab), std::move(merges), std::move(options));
}

// A score as Hugging Face's tokenizers reads it. Its JSON reader converts the digits to a double and then scales by a
// power of ten. Because of these two roundings, the last bit may differ from the nearest double, and it decides between
// splits of a text with equal scores. The digits are the shortest that give the double, which is what files have.
double twice_rounded(double value) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific);
  if (error != std::errc() || !std::isfinite(value)) return value;
  uint64_t digits = 0;
  int scale = 0;
  bool fraction = false;
  const char* p = text;
  for (; p < end && *p != 'e'; ++p) {
    if (*p == '.') fraction = true;
    if (*p < '0' || *p > '9') continue;
    digits = digits * 10 + static_cast<uint64_t>(*p - '0');
    scale -= fraction ? 1 : 0;
  }
  int exponent = 0;
  if (p < end) std::from_chars(p + (p[1] == '+' ? 2 : 1), end, exponent);
  scale += exponent;
  if (scale < -300 || scale > 300) return value;
  double power = 1;
  const std::string power_text = "1e" + std::to_string(std::abs(scale));
  std::from_chars(power_text.data(), power_text.data() + power_text.size(), power);
  const double magnitude = scale < 0 ? static_cast<double>(digits) / power : static_cast<double>(digits) * power;
  return std::signbit(value) ? -magnitude : magnitude;
}

Result<std::unique_ptr<Model>> read_unigram(const json::Value& section) {
  const json::Value* list = section.find("vocab");
  if (list == nullptr || !list->is_array()) return corrupt("model.vocab must be a list of [token, score]");
  PieceMap vocab;
  std::vector<double> scores;
  for (const json::Value& item : list->as_array()) {
    if (!item.is_array() || item.as_array().size() != 2 || !item.as_array()[0].is_string() ||
        !item.as_array()[1].is_number()) {
      return corrupt({"model.vocab[", scores.size(), "] must be [token, score]"});
    }
    vocab.insert(item.as_array()[0].as_string(), static_cast<int32_t>(scores.size()));
    scores.push_back(twice_rounded(item.as_array()[1].as_double()));
  }
  std::optional<int32_t> unk;
  const json::Value* unk_id = section.find("unk_id");
  if (unk_id != nullptr && !unk_id->is_null()) {
    QUIRE_ASSIGN(const int64_t id,
                 json::get_int(section, "unk_id", 0, std::max<int64_t>(0, static_cast<int64_t>(scores.size()) - 1)));
    unk = static_cast<int32_t>(id);
  }
  QUIRE_ASSIGN(const bool byte_fallback, json::get_bool_or(section, "byte_fallback", false));
  return make_unigram(std::move(vocab), std::move(scores), unk, byte_fallback);
}

Result<std::unique_ptr<Model>> read_word_piece(const json::Value& section) {
  QUIRE_ASSIGN(std::string unk, json::get_string_or(section, "unk_token", "[UNK]"));
  QUIRE_ASSIGN(std::string prefix, json::get_string_or(section, "continuing_subword_prefix", "##"));
  QUIRE_ASSIGN(const int64_t chars, json::get_int_or(section, "max_input_chars_per_word", 100, 0, int64_t{1} << 40));
  QUIRE_ASSIGN(PieceMap vocab, read_vocab(section));
  return make_word_piece(std::move(vocab), std::move(unk), std::move(prefix), static_cast<size_t>(chars));
}

// Old files have no type; each kind has its own fields.
std::string guess_type(const json::Value& section) {
  if (section.find("merges") != nullptr) return "BPE";
  const json::Value* vocab = section.find("vocab");
  if (vocab != nullptr && vocab->is_array()) return "Unigram";
  if (section.find("continuing_subword_prefix") != nullptr || section.find("max_input_chars_per_word") != nullptr) {
    return "WordPiece";
  }
  return "WordLevel";
}

Result<std::unique_ptr<Model>> read_model(const json::Value& section, const std::string& type, bool byte_level) {
  if (type == "BPE") return read_bpe(section, byte_level);
  if (type == "Unigram") return read_unigram(section);
  if (type == "WordPiece") return read_word_piece(section);
  if (type == "WordLevel") {
    QUIRE_ASSIGN(std::string unk, json::get_string_or(section, "unk_token", "<unk>"));
    QUIRE_ASSIGN(PieceMap vocab, read_vocab(section));
    return make_word_level(std::move(vocab), std::move(unk));
  }
  return unsupported({"model has the type \"", type, "\", which quire does not support"});
}

Status read_added(const json::Value& root, TokenizerParts& parts) {
  const json::Value* list = root.find("added_tokens");
  if (list == nullptr || list->is_null()) return {};
  if (!list->is_array()) return corrupt("added_tokens must be a list");
  for (const json::Value& item : list->as_array()) {
    AddedToken token;
    QUIRE_ASSIGN(token.content, json::get_string(item, "content"));
    QUIRE_ASSIGN(token.single_word, json::get_bool_or(item, "single_word", false));
    QUIRE_ASSIGN(token.lstrip, json::get_bool_or(item, "lstrip", false));
    QUIRE_ASSIGN(token.rstrip, json::get_bool_or(item, "rstrip", false));
    QUIRE_ASSIGN(token.special, json::get_bool_or(item, "special", false));
    QUIRE_ASSIGN(token.normalized, json::get_bool_or(item, "normalized", !token.special));
    parts.added.add(std::move(token), parts.model->vocab());
  }
  return {};
}

Result<std::unique_ptr<TokenizerParts>> read_parts(const json::Value& root) {
  if (!root.is_object()) return corrupt("the file must be a JSON object");
  const json::Value* model = root.find("model");
  if (model == nullptr || !model->is_object()) return corrupt("model must be an object");
  QUIRE_ASSIGN(const std::string type, json::get_string_or(*model, "type", guess_type(*model)));
  auto parts = std::make_unique<TokenizerParts>();
  QUIRE_ASSIGN(parts->normalizer, make_normalizer(root.find("normalizer")));
  QUIRE_ASSIGN(parts->pre_tokenizer, make_pre_tokenizer(root.find("pre_tokenizer"), type == "BPE"));
  QUIRE_ASSIGN(parts->model, read_model(*model, type, parts->pre_tokenizer.byte_level));
  QUIRE_ASSIGN(parts->post, make_post_processor(root.find("post_processor")));
  QUIRE_ASSIGN(parts->decoder, DecodeChain::from_json(root.find("decoder")));
  QUIRE_TRY(read_added(root, *parts));
  parts->added.finish(parts->normalizer.get());
  parts->special.unk = parts->model->unk_id();
  return parts;
}

}  // namespace

Result<std::unique_ptr<TokenizerParts>> read_tokenizer_json(std::string_view text, std::string_view name) {
  auto root = json::parse(text);
  if (!root.ok()) return corrupt({name, ": ", root.error().message});
  auto parts = read_parts(root.value());
  if (!parts.ok()) return Error{parts.error().code, std::string(name) + ": " + parts.error().message};
  return parts;
}

Result<TokenizerPtr> load_tokenizer_json(std::string_view json, std::string_view name) {
  QUIRE_ASSIGN(auto parts, read_tokenizer_json(json, name));
  return TokenizerPtr(std::make_shared<const Tokenizer>(std::move(parts)));
}

}  // namespace quire::text
