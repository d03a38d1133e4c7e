// SPDX-License-Identifier: Apache-2.0
// Where the bytes of a prompt came from: the template and the server, or a request. Control tokens are only recognised
// in the former.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

// In the order of trust: of several origins, the largest counts.
enum class Origin : uint8_t {
  kTemplate,   // the chat template's own text, the tokenizer's tokens, the server's settings
  kModel,      // what the assistant said and what the system prompt says
  kUntrusted,  // everything else in a request: users' messages, tool results, tools, documents, names
};

// The bytes [begin, end) of a text that did not come from the template.
struct OriginRange {
  size_t begin = 0, end = 0;
  Origin origin = Origin::kUntrusted;
  bool operator==(const OriginRange&) const = default;
};

// The origin of each byte of one text. Most texts have one origin, which costs no memory; the others have a sorted list
// of ranges that neither overlap nor touch with the same origin, and what lies between them is the template's.
class Origins {
 public:
  Origins() = default;
  Origins(Origin whole) : whole_(whole) {}  // NOLINT: a text of one origin

  bool all_template() const { return whole_ == Origin::kTemplate && ranges_.empty(); }
  bool uniform() const { return ranges_.empty(); }
  // The least trusted origin in the text.
  Origin least_trusted() const;
  // Appends the origins of bytes [begin, end) of a text to the origins of a text of `size` bytes.
  void append(size_t size, const Origins& from, size_t begin, size_t end);
  // Forgets all bytes from `size` on.
  void cut(size_t size);
  // The ranges of a text of `size` bytes, for use outside.
  std::vector<OriginRange> ranges(size_t size) const;
  size_t heap_bytes() const { return ranges_.capacity() * sizeof(OriginRange); }

 private:
  void push(size_t begin, size_t end, Origin origin);

  Origin whole_ = Origin::kTemplate;  // of every byte, while ranges_ is empty
  std::vector<OriginRange> ranges_;
};

// A text that is built up from pieces, with their origins.
struct MarkedText {
  std::string text;
  Origins origins;

  MarkedText() = default;
  explicit MarkedText(std::string all, Origins from = {}) : text(std::move(all)), origins(std::move(from)) {}

  size_t size() const { return text.size(); }
  // Text of one origin.
  void add(std::string_view piece, Origin origin = Origin::kTemplate);
  void add(char c) { add(std::string_view(&c, 1)); }
  void add(const MarkedText& other) { add(other.text, other.origins, other.text); }
  // A part of `whole`, whose origins are given.
  void add(std::string_view part, const Origins& from, std::string_view whole);
};

}  // namespace quire::text
