// SPDX-License-Identifier: Apache-2.0
// A test tool: tries constraints on texts with the vocabulary of a real tokenizer, so that Python tests and benchmarks
// can compare with other engines.
//
// usage: quire_grammar_check FILE < requests.jsonl
// FILE is a tokenizer.json or a folder with a tokenizer. Each line of standard input is one request:
//   {"spec": {"json": schema} | {"regex": "..."} | {"choice": [...]} | {"grammar": "..."} | {"structural_tag": {...}}
//            with the options "any_whitespace", "additional_properties", "any_order", "whitespace_pattern",
//    "instances": ["text", ...], "walk": "none" | "greedy" | "tokenizer"}
// and gives one line of answer:
//   {"ok": bool, "error": "...", "accepted": [bool per instance], "compile_us": number, "first_mask_us": number,
//    "mask_us": [number per mask], "wrong": ["what a mask or a token got wrong", ...], "bytes": memory of the grammar}
// An instance is tried byte by byte. With "walk" it is also divided into tokens, by the longest token that fits or by
// the tokenizer; each mask is computed and timed, and must allow the next token exactly if the bytes are accepted.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "grammar/compile.h"
#include "grammar/matcher.h"
#include "grammar/special_tokens.h"
#include "text/tokenizer.h"

namespace quire::grammar {
namespace {

// Time of this thread, so that other programs on the machine do not count.
double microseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

class Checker {
 public:
  explicit Checker(text::TokenizerPtr tokenizer) : tokenizer_(std::move(tokenizer)) {
    std::vector<Vocabulary::Token> tokens;
    std::vector<std::pair<std::string, int32_t>> special;
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      tokens.push_back({tokenizer_->token_bytes(id), tokenizer_->is_special(id)});
      if (!tokens.back().special && !tokens.back().bytes.empty()) by_bytes_.emplace(tokens.back().bytes, id);
      if (tokens.back().special) special.emplace_back(tokens.back().bytes, id);
      longest_ = std::max(longest_, tokens.back().bytes.size());
    }
    special_ = SpecialTokens(std::move(special));
    eos_ = tokenizer_->special_ids().eos.value_or(tokenizer_->vocab_size() - 1);
    vocabulary_ = Vocabulary::make(std::move(tokens), tokenizer_->vocab_size());
    mask_.resize(vocabulary_->mask_words());
  }

  json::Value answer(const json::Value& request) {
    json::Value result{json::Object{}};
    masks_.clear();
    wrong_.clear();
    Status status = run(request, result);
    result.set("ok", status.ok());
    if (!status.ok()) result.set("error", status.error().message);
    result.set("mask_us", std::move(masks_));
    result.set("wrong", std::move(wrong_));
    return result;
  }

 private:
  static Result<Spec> spec_of(const json::Value& json) {
    Spec spec;
    if (const json::Value* flag = json.find("any_whitespace")) spec.any_whitespace = flag->as_bool();
    if (const json::Value* flag = json.find("additional_properties")) spec.additional_properties = flag->as_bool();
    if (const json::Value* flag = json.find("any_order")) spec.any_order = flag->as_bool();
    if (const json::Value* text = json.find("whitespace_pattern")) spec.whitespace_pattern = text->as_string();
    if (const json::Value* schema = json.find("json")) {
      spec.kind = Spec::Kind::kJson;
      spec.json = *schema;
    } else if (const json::Value* tag = json.find("structural_tag")) {
      spec.kind = Spec::Kind::kStructuralTag;
      spec.json = *tag;
    } else if (const json::Value* regex = json.find("regex")) {
      spec.kind = Spec::Kind::kRegex;
      spec.text = regex->as_string();
    } else if (const json::Value* grammar = json.find("grammar")) {
      spec.kind = Spec::Kind::kGrammar;
      spec.text = grammar->as_string();
    } else if (const json::Value* choice = json.find("choice")) {
      spec.kind = Spec::Kind::kChoice;
      for (const json::Value& text : choice->as_array()) spec.choice.push_back(text.as_string());
    } else {
      return invalid_argument("The request has no spec of a known kind.");
    }
    return spec;
  }

  Status run(const json::Value& request, json::Value& result) {
    const json::Value* json = request.find("spec");
    if (json == nullptr) return invalid_argument("The request has no spec.");
    QUIRE_ASSIGN(Spec spec, spec_of(*json));
    const double begin = microseconds();
    QUIRE_ASSIGN(Grammar grammar, translate(spec, special_));
    QUIRE_ASSIGN(std::shared_ptr<const CompiledGrammar> compiled,
                 CompiledGrammar::make(std::move(grammar), vocabulary_));
    result.set("compile_us", microseconds() - begin);
    Matcher first(compiled);
    QUIRE_TRY(first.fill_mask(mask_, std::span(&eos_, 1)));
    result.set("first_mask_us", microseconds() - begin);
    // Bytes are tried with a grammar of their own, so that the masks which are timed find nothing prepared by them.
    QUIRE_ASSIGN(Grammar same, translate(spec, special_));
    QUIRE_ASSIGN(std::shared_ptr<const CompiledGrammar> by_bytes, CompiledGrammar::make(std::move(same), vocabulary_));
    json::Array accepted;
    const json::Value* walk = request.find("walk");
    if (const json::Value* instances = request.find("instances")) {
      for (const json::Value& instance : instances->as_array()) {
        const std::string& text = instance.as_string();
        Matcher matcher(by_bytes);
        bool ok = matcher.accept_bytes(text) && matcher.may_end();
        accepted.emplace_back(ok);
        if (walk != nullptr && walk->as_string() != "none") {
          QUIRE_TRY(walk_tokens(compiled, by_bytes, text, ok, walk->as_string() == "greedy"));
        }
      }
    }
    result.set("accepted", std::move(accepted));
    result.set("bytes", static_cast<int64_t>(compiled->bytes()));
    return {};
  }

  std::vector<int32_t> tokens_of(const std::string& text, bool greedy) const {
    if (!greedy) return tokenizer_->encode(text, {.add_special_tokens = false, .parse_special = false});
    std::vector<int32_t> tokens;
    for (size_t at = 0; at < text.size();) {
      size_t length = std::min(longest_, text.size() - at);
      while (length > 0 && !by_bytes_.contains(text.substr(at, length))) --length;
      if (length == 0) break;
      tokens.push_back(by_bytes_.at(text.substr(at, length)));
      at += length;
    }
    return tokens;
  }

  bool allowed(int32_t token) const { return (mask_[static_cast<size_t>(token) / 32] >> (token % 32)) & 1; }

  Status walk_tokens(const std::shared_ptr<const CompiledGrammar>& compiled,
                     const std::shared_ptr<const CompiledGrammar>& by_bytes, const std::string& text, bool accepted,
                     bool greedy) {
    Matcher matcher(compiled), bytes(by_bytes);
    std::span<const int32_t> ends(&eos_, 1);
    size_t at = 0;
    for (int32_t token : tokens_of(text, greedy)) {
      const double begin = microseconds();
      QUIRE_TRY(matcher.fill_mask(mask_, ends));
      masks_.emplace_back(microseconds() - begin);
      const std::string& piece = vocabulary_->token(token).bytes;
      const bool fits = bytes.accept_bytes(piece);
      if (allowed(token) != fits) {
        wrong_.emplace_back("the mask at byte " + std::to_string(at) + " is wrong for token " + std::to_string(token));
      }
      if (allowed(eos_) != matcher.may_end()) wrong_.emplace_back("wrong end at byte " + std::to_string(at));
      if (!allowed(token)) {
        if (accepted) wrong_.emplace_back("the mask at byte " + std::to_string(at) + " refuses an accepted text");
        return {};
      }
      QUIRE_TRY(matcher.accept(token, ends));
      at += piece.size();
    }
    const double begin = microseconds();
    QUIRE_TRY(matcher.fill_mask(mask_, ends));
    masks_.emplace_back(microseconds() - begin);
    if (at == text.size() && allowed(eos_) != accepted) wrong_.emplace_back("wrong end of the text");
    return {};
  }

  text::TokenizerPtr tokenizer_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  SpecialTokens special_;
  std::unordered_map<std::string, int32_t> by_bytes_;
  size_t longest_ = 0;
  int32_t eos_ = 0;
  std::vector<uint32_t> mask_;
  json::Array masks_, wrong_;
};

int run(const std::string& path) {
  Result<text::TokenizerPtr> tokenizer = [&]() -> Result<text::TokenizerPtr> {
    if (std::filesystem::is_directory(path)) return text::load_tokenizer(path);
    QUIRE_ASSIGN(std::string bytes, read_file(path));
    return text::load_tokenizer_json(bytes, path);
  }();
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  Checker checker(*tokenizer);
  for (std::string line; std::getline(std::cin, line);) {
    Result<json::Value> request = json::parse(line);
    if (!request.ok()) {
      std::fprintf(stderr, "%s\n", request.error().message.c_str());
      return 1;
    }
    std::cout << json::dump(checker.answer(*request)) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace quire::grammar

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: quire_grammar_check TOKENIZER < requests.jsonl\n");
    return 2;
  }
  return quire::grammar::run(argv[1]);
}
