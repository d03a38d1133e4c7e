// SPDX-License-Identifier: Apache-2.0
// Compiles a parsed pattern with PCRE2 and runs it.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>

#include "text/regex_parse.h"
#include "text/unicode.h"

namespace quire::text {

namespace {

constexpr size_t kMaxClasses = 250;
// Far above what the pattern of a pre-tokenizer needs for one word; a hostile pattern stops within a second.
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kDepthLimit = 100'000;
constexpr size_t kJitStackMax = size_t{8} << 20;

// The working memory of one thread for matching; created on first use.
struct Matcher {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(64 * 1024, kJitStackMax, nullptr);
  std::string classes;
  std::vector<uint32_t> offsets;

  Matcher() {
    QUIRE_CHECK(data != nullptr && context != nullptr, "out of memory");
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_depth_limit(context, kDepthLimit);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Matcher() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;
};

Matcher& matcher() {
  thread_local Matcher scratch;
  return scratch;
}

}  // namespace

struct CompiledRegex {
  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  std::unique_ptr<pcre2_code, FreeCode> code;
  // Only in class mode: the class byte of every code point.
  std::optional<CodePointTable> class_of;
  std::array<char, 128> class_of_ascii{};
};

namespace {

void collect_sets(const RegexNode& node, std::vector<const CodeSet*>& sets) {
  if (node.kind == RegexNode::Kind::kSet) sets.push_back(&node.set);
  for (const RegexNode& child : node.children) collect_sets(child, sets);
}

// Groups of code points that no set of the pattern distinguishes, as runs of class numbers.
struct Classes {
  std::vector<uint32_t> starts, values;
  size_t count = 0;
  std::vector<uint32_t> member;  // one code point of each class
};

Classes partition(const std::vector<const CodeSet*>& sets) {
  // At each boundary the signature (the sets that contain the code point) changes; equal signatures share a class.
  std::vector<std::pair<uint32_t, size_t>> edges;  // position, and the set that begins or ends there
  for (size_t i = 0; i < sets.size(); ++i) {
    for (const auto& [first, last] : *sets[i]) {
      edges.emplace_back(first, i);
      edges.emplace_back(last + 1, i);
    }
  }
  std::sort(edges.begin(), edges.end());
  std::map<std::vector<bool>, uint32_t> known;
  std::vector<bool> inside(sets.size());
  Classes out;
  size_t e = 0;
  uint32_t position = 0;
  while (position < kCodePoints) {
    while (e < edges.size() && edges[e].first == position) {
      inside[edges[e].second].flip();
      ++e;
    }
    const auto [it, added] = known.try_emplace(inside, static_cast<uint32_t>(known.size()));
    if (added) out.member.push_back(position);
    out.starts.push_back(position);
    out.values.push_back(it->second);
    position = e < edges.size() ? edges[e].first : kCodePoints;
  }
  out.count = known.size();
  return out;
}

// Writes a tree as a PCRE2 pattern, with sets as classes of bytes or, without classes, of code points.
class Writer {
 public:
  explicit Writer(const Classes* classes) : classes_(classes) {}

  void write(const RegexNode& node) {
    switch (node.kind) {
      case RegexNode::Kind::kSet:
        write_set(node.set);
        break;
      case RegexNode::Kind::kSequence:
        for (const RegexNode& child : node.children) write(child);
        break;
      case RegexNode::Kind::kAlternation:
        for (size_t i = 0; i < node.children.size(); ++i) {
          if (i > 0) out_ += '|';
          write(node.children[i]);
        }
        break;
      case RegexNode::Kind::kGroup:
        out_ += node.text;
        write(node.children[0]);
        out_ += ')';
        break;
      case RegexNode::Kind::kRepeat: {
        const bool bare =
            node.children[0].kind == RegexNode::Kind::kSet || node.children[0].kind == RegexNode::Kind::kGroup;
        if (!bare) out_ += "(?:";
        write(node.children[0]);
        if (!bare) out_ += ')';
        out_ += node.text;
        break;
      }
      case RegexNode::Kind::kAssertion:
        out_ += node.text;
        break;
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void write_set(const CodeSet& set) {
    if (classes_ == nullptr) {
      write_ranges(set);
      return;
    }
    CodeSet bytes;
    for (uint32_t k = 0; k < classes_->count; ++k) {
      if (!contains(set, classes_->member[k])) continue;
      if (!bytes.empty() && bytes.back().second + 1 == k) {
        bytes.back().second = k;
      } else {
        bytes.emplace_back(k, k);
      }
    }
    write_ranges(bytes);
  }
  void write_ranges(const CodeSet& set) {
    if (set.empty()) {
      out_ += "(?!)";
      return;
    }
    char buffer[32];
    out_ += '[';
    for (const auto& [first, last] : set) {
      std::snprintf(buffer, sizeof buffer, "\\x{%x}", first);
      out_ += buffer;
      if (last == first) continue;
      std::snprintf(buffer, sizeof buffer, "-\\x{%x}", last);
      out_ += buffer;
    }
    out_ += ']';
  }

  const Classes* classes_;
  std::string out_;
};

}  // namespace

Regex::Regex(std::unique_ptr<const CompiledRegex> compiled) : compiled_(std::move(compiled)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern, Mode mode) {
  QUIRE_ASSIGN(const ParsedRegex parsed, parse_regex(pattern));
  std::vector<const CodeSet*> sets;
  collect_sets(parsed.root, sets);
  if (sets.size() > 2000) return unsupported("the regular expression has more than 2000 characters and classes");
  auto compiled = std::make_unique<CompiledRegex>();
  const Classes classes = partition(sets);
  const bool by_class = mode == Mode::kAuto && !parsed.has_back_reference && classes.count <= kMaxClasses;
  Writer writer(by_class ? &classes : nullptr);
  writer.write(parsed.root);
  const std::string written = writer.take();
  const uint32_t options = PCRE2_DOTALL | PCRE2_NEVER_BACKSLASH_C | (by_class ? 0 : PCRE2_UTF);
  int code = 0;
  PCRE2_SIZE where = 0;
  compiled->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(written.data()), written.size(), options, &code, &where, nullptr));
  if (compiled->code == nullptr) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(code, message, sizeof message);
    return unsupported({"the regular expression does not compile: ", reinterpret_cast<const char*>(message)});
  }
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // without a JIT, the interpreter finds the same matches
  if (by_class) {
    compiled->class_of.emplace(classes.starts.data(), classes.values.data(), classes.starts.size());
    for (uint32_t c = 0; c < 128; ++c) compiled->class_of_ascii[c] = static_cast<char>((*compiled->class_of)[c]);
  }
  return Regex(std::move(compiled));
}

namespace {

// Finds one match at or after `from`, in units of the subject; false if there is none or a limit was exceeded.
bool match_once(const CompiledRegex& regex, std::string_view subject, size_t from, Matcher& scratch, size_t& begin,
                size_t& end) {
  const int rc = pcre2_match(regex.code.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), from,
                             PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
  if (rc < 0) return false;
  const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(scratch.data);
  begin = ovector[0];
  end = ovector[1];
  return end >= begin;
}

// Converts the text to class bytes; `offsets` gets the place of each character unless all are ASCII.
void classify(const CompiledRegex& regex, std::string_view text, Matcher& scratch) {
  scratch.offsets.clear();
  scratch.classes.resize(text.size());
  char* out = scratch.classes.data();
  const char* begin = text.data();
  const char* p = begin;
  const char* end = p + text.size();
  while (p < end && static_cast<unsigned char>(*p) < 0x80)
    *out++ = regex.class_of_ascii[static_cast<unsigned char>(*p++)];
  if (p == end) return;
  scratch.offsets.resize(text.size() + 1);
  uint32_t* where = scratch.offsets.data();
  for (uint32_t i = 0; i < static_cast<uint32_t>(p - begin); ++i) *where++ = i;
  while (p < end) {
    *where++ = static_cast<uint32_t>(p - begin);
    if (static_cast<unsigned char>(*p) < 0x80) {
      *out++ = regex.class_of_ascii[static_cast<unsigned char>(*p++)];
    } else {
      *out++ = static_cast<char>((*regex.class_of)[next_code_point(p)]);
    }
  }
  *where++ = static_cast<uint32_t>(text.size());
  scratch.classes.resize(static_cast<size_t>(out - scratch.classes.data()));
  scratch.offsets.resize(static_cast<size_t>(where - scratch.offsets.data()));
}

}  // namespace

void Regex::find_all(std::string_view text, std::vector<Span>& out) const {
  Matcher& scratch = matcher();
  const bool by_class = compiled_->class_of.has_value();
  if (by_class) classify(*compiled_, text, scratch);
  const std::string_view subject = by_class ? std::string_view(scratch.classes) : text;
  const bool mapped = by_class && !scratch.offsets.empty();
  size_t from = 0;
  size_t last_end = 0;
  bool any = false;
  while (from <= subject.size()) {
    size_t begin = 0;
    size_t end = 0;
    if (!match_once(*compiled_, subject, from, scratch, begin, end)) return;
    const bool empty = begin == end;
    if (!(empty && any && end == last_end)) {
      out.emplace_back(mapped ? scratch.offsets[begin] : begin, mapped ? scratch.offsets[end] : end);
      last_end = end;
      any = true;
    }
    if (!empty) {
      from = end;
    } else {  // skip one character
      from = end + (by_class || end >= subject.size() ? 1 : char_size(subject[end]));
    }
  }
}

}  // namespace quire::text
