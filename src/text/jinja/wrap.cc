// SPDX-License-Identifier: Apache-2.0
// Word wrapping by the rules of textwrap: where a line may break, and how chunks fill lines.
#include "text/jinja/wrap.h"

#include <algorithm>

#include "text/jinja/text.h"

namespace quire::text::jinja {
namespace {

using Text = std::u32string;
using View = std::u32string_view;

bool is_blank(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ';
}
bool is_word(char32_t c) {
  return c == '_' || is_alnum(c);
}
bool is_letter(char32_t c) {
  return is_word(c) && !is_decimal(c);
}
bool is_word_punctuation(char32_t c) {
  return is_word(c) || (c < 0x80 && std::string_view("!\"'&.,?").find(static_cast<char>(c)) != std::string_view::npos);
}

// Splits a line into the chunks between which it may break.
class Chunker {
 public:
  Chunker(View text, bool hyphens) : text_(text), hyphens_(hyphens) {}

  std::vector<View> run() const {
    std::vector<View> out;
    for (size_t i = 0; i < text_.size();) {
      const size_t end = chunk_end(i);
      out.push_back(text_.substr(i, end - i));
      i = end;
    }
    return out;
  }

 private:
  bool letter(size_t i) const { return i < text_.size() && is_letter(text_[i]); }
  bool hyphen(size_t i) const { return i < text_.size() && text_[i] == '-'; }

  // The end of an em-dash ("--" or more, before a word) that starts at i, or i.
  size_t dash_end(size_t i) const {
    size_t end = i;
    while (hyphen(end)) ++end;
    return end >= i + 2 && end < text_.size() && is_word(text_[end]) ? end : i;
  }

  // Whether a word may break after the hyphen at i.
  bool breaks_after(size_t i) const {
    if (!hyphen(i)) return false;
    const bool two_letters = i >= 2 && is_letter(text_[i - 1]) && is_letter(text_[i - 2]);
    const bool one_letter =
        i >= 3 && is_letter(text_[i - 3]) && text_[i - 2] == '-' && is_word_punctuation(text_[i - 1]);
    if (!two_letters && !one_letter) return false;
    return letter(i + 1) && (letter(i + 2) || (hyphen(i + 2) && letter(i + 3)));
  }

  size_t chunk_end(size_t i) const {
    size_t end = i;
    while (end < text_.size() && is_blank(text_[end])) ++end;
    if (end > i) return end;
    if (hyphens_ && i > 0 && is_word_punctuation(text_[i - 1]) && dash_end(i) > i) return dash_end(i);
    for (end = i + 1; end < text_.size() && !is_blank(text_[end]); ++end) {
      if (!hyphens_) continue;
      if (breaks_after(end)) return end + 1;
      if (is_word_punctuation(text_[end - 1]) && dash_end(end) > end) return end;
    }
    return end;
  }

  View text_;
  bool hyphens_;
};

bool is_blank_chunk(View chunk) {
  return std::all_of(chunk.begin(), chunk.end(), is_space);
}

// How much of a chunk that is longer than a line fits on this one.
size_t long_word_part(View chunk, size_t room, bool hyphens) {
  if (hyphens && chunk.size() > room) {
    const View head = chunk.substr(0, room);
    const size_t at = head.rfind(U'-');
    if (at != View::npos && at > 0 && head.find_first_not_of(U'-') < at) return at + 1;
  }
  return std::min(room, chunk.size());
}

}  // namespace

std::vector<std::string> wrap_line(std::string_view line, int64_t width, bool break_long_words, bool break_on_hyphens) {
  Text text;
  each_code_point(line, [&](char32_t c, std::string_view) { text.push_back(c); });
  std::vector<View> chunks = Chunker(text, break_on_hyphens).run();
  std::reverse(chunks.begin(), chunks.end());
  const auto limit = static_cast<size_t>(width);
  std::vector<std::string> lines;
  while (!chunks.empty()) {
    std::vector<View> current;
    size_t used = 0;
    if (!lines.empty() && is_blank_chunk(chunks.back())) chunks.pop_back();
    while (!chunks.empty() && used + chunks.back().size() <= limit) {
      used += chunks.back().size();
      current.push_back(chunks.back());
      chunks.pop_back();
    }
    if (!chunks.empty() && chunks.back().size() > limit) {
      if (break_long_words) {
        const size_t cut = long_word_part(chunks.back(), limit - used, break_on_hyphens);
        current.push_back(chunks.back().substr(0, cut));
        chunks.back().remove_prefix(cut);
      } else if (current.empty()) {
        current.push_back(chunks.back());
        chunks.pop_back();
      }
    }
    if (!current.empty() && is_blank_chunk(current.back())) current.pop_back();
    if (current.empty()) continue;
    std::string out;
    for (const View chunk : current) {
      for (const char32_t c : chunk) utf8::append(out, c);
    }
    lines.push_back(std::move(out));
  }
  return lines;
}

}  // namespace quire::text::jinja
