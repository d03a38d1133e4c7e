// SPDX-License-Identifier: Apache-2.0
// The decoders of tokenizer.json.
#include "text/token_decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/byte_level.h"
#include "text/section.h"
#include "text/unicode.h"

namespace quire::text {

namespace {

// A decoder that converts each token independently of the others.
template <typename Stage>
class EachToken final : public StageState {
 public:
  explicit EachToken(const Stage& stage) : stage_(stage) {}
  void push(std::string_view token, bool) override { next_->push(stage_.middle(std::string(token)), false); }
  void finish() override { next_->finish(); }

 private:
  const Stage& stage_;
};

class ReplaceStage final : public DecodeStage {
 public:
  ReplaceStage(Pattern pattern, std::string with) : pattern_(std::move(pattern)), with_(std::move(with)) {}
  std::unique_ptr<StageState> start() const override { return std::make_unique<EachToken<ReplaceStage>>(*this); }
  std::string middle(std::string token) const override { return pattern_.replaced(token, with_); }

 private:
  Pattern pattern_;
  std::string with_;
};

// The byte of a token like <0x0A>.
std::optional<unsigned char> byte_of(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<unsigned char>(value);
}

// A run of byte tokens is decoded as a whole, at its end: if it is not UTF-8, each byte becomes U+FFFD.
class ByteFallbackState final : public StageState {
 public:
  void push(std::string_view token, bool) override {
    if (const auto byte = byte_of(token)) {
      run_ += static_cast<char>(*byte);
      return;
    }
    end_run();
    next_->push(token, false);
  }
  void finish() override {
    end_run();
    next_->finish();
  }

 private:
  void end_run() {
    if (run_.empty()) return;
    if (utf8::is_valid(run_)) {
      next_->push(run_, false);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) next_->push("\xef\xbf\xbd", false);
    }
    run_.clear();
  }
  std::string run_;
};

class ByteFallbackStage final : public DecodeStage {
 public:
  std::unique_ptr<StageState> start() const override { return std::make_unique<ByteFallbackState>(); }
  std::string middle(std::string token) const override {
    const auto byte = byte_of(token);
    return byte ? std::string(1, static_cast<char>(*byte)) : token;
  }
};

class FuseState final : public StageState {
 public:
  void push(std::string_view token, bool) override {
    next_->push(token, begun_);
    begun_ = true;
  }
  void finish() override { next_->finish(); }

 private:
  bool begun_ = false;
};

class FuseStage final : public DecodeStage {
 public:
  std::unique_ptr<StageState> start() const override { return std::make_unique<FuseState>(); }
  bool gives_parts(bool) const override { return true; }
  bool takes_parts() const override { return true; }
};

// Joins the parts of a fused token for a decoder that needs the whole token.
class GatherState final : public StageState {
 public:
  void push(std::string_view token, bool) override { all_ += token; }
  void finish() override {
    next_->push(all_, false);
    next_->finish();
  }

 private:
  std::string all_;
};

class GatherStage final : public DecodeStage {
 public:
  std::unique_ptr<StageState> start() const override { return std::make_unique<GatherState>(); }
  bool takes_parts() const override { return true; }
};

class StripState final : public StageState {
 public:
  StripState(std::string_view content, size_t start, size_t stop) : content_(content), start_(start), stop_(stop) {}
  void push(std::string_view token, bool continues) override {
    if (!continues) {
      held_ = 0;  // the end of the last token is dropped
      to_strip_ = start_;
      handed_on_ = false;
    }
    while (to_strip_ > 0 && !token.empty()) {
      if (token.substr(0, content_.size()) == content_) {
        token.remove_prefix(content_.size());
        --to_strip_;
      } else {
        to_strip_ = 0;
      }
    }
    if (stop_ == 0) {
      hand_on(token);
      return;
    }
    // Keep at most `stop` copies of the content from the end; the rest is final.
    std::string text;
    for (size_t i = 0; i < held_; ++i) text += content_;
    text += token;
    held_ = 0;
    size_t end = text.size();
    while (held_ < stop_ && end >= content_.size() &&
           std::string_view(text).substr(end - content_.size(), content_.size()) == content_) {
      end -= content_.size();
      ++held_;
    }
    hand_on(std::string_view(text).substr(0, end));
  }
  void finish() override { next_->finish(); }

 private:
  void hand_on(std::string_view text) {
    next_->push(text, handed_on_);
    handed_on_ = true;
  }
  std::string_view content_;
  size_t start_, stop_;
  size_t to_strip_ = 0;
  size_t held_ = 0;
  bool handed_on_ = false;
};

class StripStage final : public DecodeStage {
 public:
  StripStage(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  std::unique_ptr<StageState> start() const override { return std::make_unique<StripState>(content_, start_, stop_); }
  bool gives_parts(bool given) const override { return given; }
  bool takes_parts() const override { return true; }

 private:
  std::string content_;
  size_t start_, stop_;
};

// Removes the spaces that English text does not have before punctuation and contractions.
std::string cleaned_up(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) {
    size_t at = 0;
    while ((at = text.find(from, at)) != std::string::npos) {
      text.replace(at, from.size(), to);
      at += to.size();
    }
  }
  return text;
}

class WordPieceStage final : public DecodeStage {
 public:
  WordPieceStage(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  std::unique_ptr<StageState> start() const override;
  std::string decoded(std::string token, bool first) const {
    if (!first) {
      if (token.compare(0, prefix_.size(), prefix_) == 0) {
        token.erase(0, prefix_.size());
      } else {
        token.insert(0, " ");
      }
    }
    return cleanup_ ? cleaned_up(std::move(token)) : token;
  }
  std::string middle(std::string token) const override { return decoded(std::move(token), false); }

 private:
  std::string prefix_;
  bool cleanup_;
};

class WordPieceState final : public StageState {
 public:
  explicit WordPieceState(const WordPieceStage& stage) : stage_(stage) {}
  void push(std::string_view token, bool) override {
    next_->push(stage_.decoded(std::string(token), first_), false);
    first_ = false;
  }
  void finish() override { next_->finish(); }

 private:
  const WordPieceStage& stage_;
  bool first_ = true;
};

std::unique_ptr<StageState> WordPieceStage::start() const {
  return std::make_unique<WordPieceState>(*this);
}

class MetaspaceStage final : public DecodeStage {
 public:
  MetaspaceStage(std::string mark, bool drop_first) : mark_(std::move(mark)), drop_first_(drop_first) {}
  std::unique_ptr<StageState> start() const override;
  std::string decoded(std::string_view token, bool first) const {
    return mark_.replaced(token, first && drop_first_ ? "" : " ");
  }
  std::string middle(std::string token) const override { return decoded(token, false); }

 private:
  Pattern mark_;
  bool drop_first_;
};

class MetaspaceState final : public StageState {
 public:
  explicit MetaspaceState(const MetaspaceStage& stage) : stage_(stage) {}
  void push(std::string_view token, bool) override {
    next_->push(stage_.decoded(token, first_), false);
    first_ = false;
  }
  void finish() override { next_->finish(); }

 private:
  const MetaspaceStage& stage_;
  bool first_ = true;
};

std::unique_ptr<StageState> MetaspaceStage::start() const {
  return std::make_unique<MetaspaceState>(*this);
}

// A suffix at the end of a word becomes a space, except in the last token. So each token waits for the next one.
class SuffixStage final : public DecodeStage {
 public:
  explicit SuffixStage(std::string suffix) : suffix_(std::move(suffix)) {}
  std::unique_ptr<StageState> start() const override;
  std::string decoded(std::string_view token, bool last) const { return suffix_.replaced(token, last ? "" : " "); }
  std::string middle(std::string token) const override { return decoded(token, false); }

 private:
  Pattern suffix_;
};

class SuffixState final : public StageState {
 public:
  explicit SuffixState(const SuffixStage& stage) : stage_(stage) {}
  void push(std::string_view token, bool) override {
    if (held_) next_->push(stage_.decoded(*held_, false), false);
    held_ = token;
  }
  void finish() override {
    if (held_) next_->push(stage_.decoded(*held_, true), false);
    next_->finish();
  }

 private:
  const SuffixStage& stage_;
  std::optional<std::string> held_;
};

std::unique_ptr<StageState> SuffixStage::start() const {
  return std::make_unique<SuffixState>(*this);
}

class CtcStage final : public DecodeStage {
 public:
  CtcStage(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  std::unique_ptr<StageState> start() const override;
  std::string middle(std::string token) const override {
    token = pad_.replaced(token, "");
    return cleanup_ ? delimiter_.replaced(cleaned_up(std::move(token)), " ") : token;
  }

 private:
  Pattern pad_, delimiter_;
  bool cleanup_;
};

class CtcState final : public StageState {
 public:
  explicit CtcState(const CtcStage& stage) : stage_(stage) {}
  void push(std::string_view token, bool) override {
    if (last_ && *last_ == token) return;
    last_ = token;
    const std::string text = stage_.middle(std::string(token));
    if (!text.empty()) next_->push(text, false);
  }
  void finish() override { next_->finish(); }

 private:
  const CtcStage& stage_;
  std::optional<std::string> last_;
};

std::unique_ptr<StageState> CtcStage::start() const {
  return std::make_unique<CtcState>(*this);
}

// Converts bytes to text: passes whole characters on, keeps an incomplete one, replaces invalid bytes by U+FFFD.
class ByteLevelState final : public StageState {
 public:
  void push(std::string_view token, bool) override {
    if (!append_from_byte_level(bytes_, token)) bytes_ += token;
    const size_t open = utf8::incomplete_suffix(bytes_);
    hand_on(bytes_.size() - open);
  }
  void finish() override {
    hand_on(bytes_.size());
    next_->finish();
  }

 private:
  void hand_on(size_t size) {
    std::string text;
    utf8::append_valid(text, std::string_view(bytes_).substr(0, size));
    bytes_.erase(0, size);
    next_->push(text, begun_);
    begun_ = true;
  }
  std::string bytes_;
  bool begun_ = false;
};

class ByteLevelStage final : public DecodeStage {
 public:
  std::unique_ptr<StageState> start() const override { return std::make_unique<ByteLevelState>(); }
  std::string middle(std::string token) const override {
    std::string bytes;
    return append_from_byte_level(bytes, token) ? bytes : token;
  }
  bool gives_parts(bool) const override { return true; }
};

// Without a decoder, tokens are joined with spaces.
class JoinState final : public StageState {
 public:
  void push(std::string_view token, bool) override {
    if (begun_) next_->push(" ", false);
    begun_ = true;
    next_->push(token, false);
  }
  void finish() override { next_->finish(); }

 private:
  bool begun_ = false;
};

class JoinStage final : public DecodeStage {
 public:
  std::unique_ptr<StageState> start() const override { return std::make_unique<JoinState>(); }
  std::string middle(std::string token) const override { return " " + token; }
};

class Sink final : public StageState {
 public:
  explicit Sink(std::string& out) : out_(out) {}
  void push(std::string_view token, bool) override { out_ += token; }

 private:
  std::string& out_;
};

using Stages = std::vector<std::unique_ptr<const DecodeStage>>;

Status read_decoder(const json::Value& section, Stages& stages, int depth, Growth& growth) {
  if (!section.is_object()) return corrupt("decoder must be an object or null");
  if (depth > kMaxNesting) return corrupt("decoder has sequences nested too deeply");
  QUIRE_ASSIGN(const std::string type, json::get_string(section, "type"));
  if (type == "Sequence") {
    const json::Value* list = section.find("decoders");
    if (list == nullptr || !list->is_array()) return corrupt("decoder.decoders must be a list");
    for (const json::Value& item : list->as_array()) QUIRE_TRY(read_decoder(item, stages, depth + 1, growth));
    return {};
  }
  if (type == "ByteLevel") return stages.push_back(decode_byte_level()), Status();
  if (type == "ByteFallback") return stages.push_back(decode_byte_fallback()), Status();
  if (type == "Fuse") return stages.push_back(decode_fuse()), Status();
  if (type == "Replace") {
    QUIRE_ASSIGN(Pattern pattern, Pattern::from_json(section.find("pattern"), "decoder.pattern"));
    QUIRE_ASSIGN(std::string with, json::get_string(section, "content"));
    QUIRE_TRY(growth.replace(pattern, with, "decoder"));
    return stages.push_back(decode_replace(std::move(pattern), std::move(with))), Status();
  }
  if (type == "Strip") {
    QUIRE_ASSIGN(std::string content, json::get_string_or(section, "content", " "));
    QUIRE_ASSIGN(const int64_t start, json::get_int_or(section, "start", 0, 0, 1 << 20));
    QUIRE_ASSIGN(const int64_t stop, json::get_int_or(section, "stop", 0, 0, 1 << 20));
    if (content.empty()) return corrupt("decoder.content must be one character");
    return stages.push_back(decode_strip(std::move(content), static_cast<size_t>(start), static_cast<size_t>(stop))),
           Status();
  }
  if (type == "WordPiece") {
    QUIRE_ASSIGN(std::string prefix, json::get_string_or(section, "prefix", "##"));
    QUIRE_ASSIGN(const bool cleanup, json::get_bool_or(section, "cleanup", true));
    return stages.push_back(decode_word_piece(std::move(prefix), cleanup)), Status();
  }
  if (type == "Metaspace") {
    QUIRE_ASSIGN(std::string mark, json::get_string_or(section, "replacement", "\xe2\x96\x81"));
    QUIRE_ASSIGN(const std::string scheme, json::get_string_or(section, "prepend_scheme", "always"));
    QUIRE_ASSIGN(const bool prefix, json::get_bool_or(section, "add_prefix_space", true));
    const bool drop = scheme == "first" || (scheme == "always" && prefix);
    return stages.push_back(decode_metaspace(std::move(mark), drop)), Status();
  }
  if (type == "BPEDecoder") {
    QUIRE_ASSIGN(std::string suffix, json::get_string_or(section, "suffix", "</w>"));
    return stages.push_back(std::make_unique<SuffixStage>(std::move(suffix))), Status();
  }
  if (type == "CTC") {
    QUIRE_ASSIGN(std::string pad, json::get_string_or(section, "pad_token", "<pad>"));
    QUIRE_ASSIGN(std::string delimiter, json::get_string_or(section, "word_delimiter_token", "|"));
    QUIRE_ASSIGN(const bool cleanup, json::get_bool_or(section, "cleanup", true));
    return stages.push_back(std::make_unique<CtcStage>(std::move(pad), std::move(delimiter), cleanup)), Status();
  }
  return unsupported({"decoder has the type \"", type, "\", which quire does not support"});
}

}  // namespace

std::unique_ptr<const DecodeStage> decode_byte_level() {
  return std::make_unique<ByteLevelStage>();
}
std::unique_ptr<const DecodeStage> decode_byte_fallback() {
  return std::make_unique<ByteFallbackStage>();
}
std::unique_ptr<const DecodeStage> decode_fuse() {
  return std::make_unique<FuseStage>();
}
std::unique_ptr<const DecodeStage> decode_replace(Pattern pattern, std::string with) {
  return std::make_unique<ReplaceStage>(std::move(pattern), std::move(with));
}
std::unique_ptr<const DecodeStage> decode_strip(std::string content, size_t start, size_t stop) {
  return std::make_unique<StripStage>(std::move(content), start, stop);
}
std::unique_ptr<const DecodeStage> decode_word_piece(std::string prefix, bool cleanup) {
  return std::make_unique<WordPieceStage>(std::move(prefix), cleanup);
}
std::unique_ptr<const DecodeStage> decode_metaspace(std::string mark, bool drop_first) {
  return std::make_unique<MetaspaceStage>(std::move(mark), drop_first);
}

DecodeChain::DecodeChain(std::vector<std::unique_ptr<const DecodeStage>> stages) {
  if (stages.empty()) stages.push_back(std::make_unique<JoinStage>());
  bool parts = false;
  for (auto& stage : stages) {
    if (parts && !stage->takes_parts()) {
      stages_.push_back(std::make_unique<GatherStage>());
      parts = false;
    }
    parts = stage->gives_parts(parts);
    stages_.push_back(std::move(stage));
  }
}

Result<DecodeChain> DecodeChain::from_json(const json::Value* section) {
  std::vector<std::unique_ptr<const DecodeStage>> stages;
  Growth growth;
  if (section != nullptr && !section->is_null()) {
    QUIRE_TRY(read_decoder(*section, stages, 0, growth));
    if (stages.empty()) stages.push_back(decode_fuse());  // only no decoder at all puts spaces between tokens
  }
  return DecodeChain(std::move(stages));
}

std::string DecodeChain::middle(std::string_view token) const {
  std::string text(token);
  for (const auto& stage : stages_) text = stage->middle(std::move(text));
  return text;
}

DecodeState::DecodeState(const DecodeChain& chain) {
  for (const auto& stage : chain.stages()) stages_.push_back(stage->start());
  stages_.push_back(std::make_unique<Sink>(text_));
  for (size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->set_next(stages_[i + 1].get());
}

DecodeState::~DecodeState() = default;

void DecodeState::push(std::string_view token) {
  stages_.front()->push(token, false);
}

void DecodeState::finish() {
  stages_.front()->finish();
}

}  // namespace quire::text
