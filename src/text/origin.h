// SPDX-License-Identifier: Apache-2.0
// The origin of each byte of a prompt: the template and the server, or a request. Control tokens are recognised only in
// text of the template and the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

// In the order of trust: of several origins, the largest applies.
enum class Origin : uint8_t {
  kTemplate,   // the chat template's own text, the tokenizer's tokens, the server's settings
  kModel,      // messages of the assistant and of the system
  kUntrusted,  // everything else in a request: users' messages, tool results, tools, documents, names
};

// The bytes [begin, end) of a text that are not from the template.
struct OriginRange {
  size_t begin = 0, end = 0;
  Origin origin = Origin::kUntrusted;
  bool operator==(const OriginRange&) const = default;
};

// The origin of each byte of one text. Most texts have one origin, which needs no memory; others have a sorted list of
// ranges that do not overlap and, if adjacent, differ in origin. What is between them is from the template.
class Origins {
 public:
  Origins() = default;
  Origins(Origin whole) : whole_(whole) {}  // NOLINT: a text of one origin

  bool all_template() const { return whole_ == Origin::kTemplate && ranges_.empty(); }
  bool uniform() const { return ranges_.empty(); }
  // The least trusted origin in the text.
  Origin least_trusted() const;
  // Appends the origins of the bytes [begin, end) of another text. `size` is the size of this text so far.
  void append(size_t size, const Origins& from, size_t begin, size_t end);
  // Removes all bytes from `size` on.
  void truncate(size_t size);
  // The ranges of a text of `size` bytes.
  std::vector<OriginRange> ranges(size_t size) const;
  size_t heap_bytes() const { return ranges_.capacity() * sizeof(OriginRange); }

 private:
  void push(size_t begin, size_t end, Origin origin);

  Origin whole_ = Origin::kTemplate;  // of all bytes, if ranges_ is empty
  std::vector<OriginRange> ranges_;
};

// A text built from pieces, with their origins.
struct MarkedText {
  std::string text;
  Origins origins;

  MarkedText() = default;
  explicit MarkedText(std::string all, Origins from = {}) : text(std::move(all)), origins(std::move(from)) {}

  size_t size() const { return text.size(); }
  // Adds text of one origin.
  void add(std::string_view piece, Origin origin = Origin::kTemplate);
  void add(char c) { add(std::string_view(&c, 1)); }
  void add(const MarkedText& other) { add(other.text, other.origins, other.text); }
  // Adds a part of `whole`, whose origins are `from`.
  void add(std::string_view part, const Origins& from, std::string_view whole);
};

}  // namespace quire::text
