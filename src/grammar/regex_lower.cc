// SPDX-License-Identifier: Apache-2.0
// Resolves the anchors and look-aheads of a RegexTree: the result is an expression that matches whole texts.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "grammar/regex_tree.h"

namespace quire::grammar {

namespace {

using Kind = RegexTree::Kind;
using Node = RegexTree::Node;

constexpr int64_t kMaxSteps = 1'000'000;
constexpr int64_t kMaxWork = 5'000'000;  // of the store, about a tenth of a second
// Parts with an anchor or a look-ahead: the rests that they are joined to grow, so each costs more than the last.
constexpr int64_t kMaxConditions = 2'000;
constexpr int64_t kMaxUnrolled = 64;  // repetitions of a part with an anchor or a look-ahead

// What may follow a part of the pattern, up to the end of the text. It depends on whether the part matched the empty
// string, since then the place where the part began is still where the text begins, if it was before.
struct Rest {
  Regex same;   // the part matched the empty string
  Regex moved;  // it matched more than that
};

// An anchor or a look-ahead is a condition on the text around it. So parts that have one are translated together with
// everything that follows them: `with_rest` answers "this part, then that rest", where a look-ahead is an intersection
// with the rest and $ leaves only the empty rest. Parts without them are translated once, on their own.
class Lowering {
 public:
  Lowering(RegexStore& store, const RegexTree& tree)
      : store_(store), tree_(tree), plain_(tree.nodes.size()), sets_(tree.sets.size()), work_before_(store.work()) {}

  Result<Regex> lower(bool search) {
    const auto root = static_cast<uint32_t>(tree_.nodes.size() - 1);
    const Regex after = search ? store_.any_text() : store_.empty();
    Regex out = with_rest(root, true, {after, after});
    if (search) {
      const Regex later = with_rest(root, false, {after, after});
      out = store_.either(out, store_.concat(store_.repeat(store_.any_char(), 1), later));
    }
    if (error_) return *std::move(error_);
    if (out_of_fuel()) return invalid_argument("The pattern is too large or too complex.");
    return out;
  }

 private:
  bool out_of_fuel() const {
    return steps_ > kMaxSteps || conditions_ > kMaxConditions || store_.work() - work_before_ > kMaxWork ||
           store_.full();
  }
  bool spend() {
    ++steps_;
    return !out_of_fuel();
  }

  // The part on its own. Anchors in it match nothing, as inside a longer text.
  Regex plain(uint32_t index) {
    if (plain_[index]) return *plain_[index];
    if (!spend()) return store_.nothing();
    const Node& node = tree_.nodes[index];
    Regex out = store_.nothing();
    switch (node.kind) {
      case Kind::kEmpty:
        out = store_.empty();
        break;
      case Kind::kChars:
        out = chars(node.set);
        break;
      case Kind::kSequence:
        out = plain_sequence(node.parts);
        break;
      case Kind::kChoice: {
        std::vector<Regex> options;
        for (const uint32_t part : node.parts) options.push_back(plain(part));
        out = store_.either(options);
        break;
      }
      case Kind::kRepeat:
        out = store_.repeat(plain(node.parts[0]), node.min, node.max);
        break;
      case Kind::kStart:
      case Kind::kEnd:
      case Kind::kAhead:
      case Kind::kNotAhead:
        break;
    }
    plain_[index] = out;
    return out;
  }

  Regex chars(uint32_t set) {
    if (sets_[set]) return *sets_[set];
    std::vector<CodePointRange> ranges;
    ranges.reserve(tree_.sets[set].size());
    for (const auto& [first, last] : tree_.sets[set]) ranges.push_back({first, last});
    sets_[set] = store_.chars(ranges);
    return *sets_[set];
  }

  // Single characters in a row become one literal.
  Regex plain_sequence(const std::vector<uint32_t>& parts) {
    std::vector<Regex> out;
    std::string literal;
    const auto flush = [&] {
      if (!literal.empty()) out.push_back(store_.literal(literal));
      literal.clear();
    };
    for (const uint32_t part : parts) {
      const Node& node = tree_.nodes[part];
      if (const std::optional<uint32_t> c = single_char(node)) {
        utf8::append(literal, *c);
        continue;
      }
      flush();
      out.push_back(plain(part));
    }
    flush();
    return store_.concat(out);
  }

  std::optional<uint32_t> single_char(const Node& node) const {
    if (node.kind != Kind::kChars || tree_.sets[node.set].size() != 1) return std::nullopt;
    const auto [first, last] = tree_.sets[node.set][0];
    if (first != last || (first >= 0xd800 && first <= 0xdfff)) return std::nullopt;
    return first;
  }

  // `part`, then the rest. `at_start`: the text begins at the place where the part begins. If it does not, nothing can
  // bring that back, and rest.same is the same as rest.moved.
  Regex with_rest(uint32_t index, bool at_start, const Rest& rest) {
    if (!spend() || error_) return store_.nothing();
    const Node& node = tree_.nodes[index];
    if (!node.has_anchor && !node.has_ahead) return plain_with_rest(plain(index), rest);
    ++conditions_;
    switch (node.kind) {
      case Kind::kStart:
        return at_start ? rest.same : store_.nothing();
      case Kind::kEnd:
        return store_.nullable(rest.same) ? store_.empty() : store_.nothing();
      case Kind::kAhead:
        return store_.both(ahead(node, at_start), rest.same);
      case Kind::kNotAhead:
        return store_.both(store_.complement(ahead(node, at_start)), rest.same);
      case Kind::kChoice: {
        std::vector<Regex> options;
        for (const uint32_t part : node.parts) options.push_back(with_rest(part, at_start, rest));
        return store_.either(options);
      }
      case Kind::kSequence:
        return sequence_with_rest(node.parts, at_start, rest);
      case Kind::kRepeat:
        return repeat_with_rest(node, at_start, rest);
      case Kind::kEmpty:
      case Kind::kChars:
        break;
    }
    return store_.nothing();
  }

  Regex plain_with_rest(Regex part, const Rest& rest) {
    if (rest.same == rest.moved || !store_.nullable(part)) return store_.concat(part, rest.moved);
    const Regex more = store_.both(part, store_.complement(store_.empty()));
    return store_.either(rest.same, store_.concat(more, rest.moved));
  }

  // The texts that begin with a match of the look-ahead.
  Regex ahead(const Node& node, bool at_start) {
    const Regex all = store_.any_text();
    return with_rest(node.parts[0], at_start, {all, all});
  }

  // From right to left, so that each part knows its rest: once for a part that may begin where the text does, once for
  // one that does not.
  Regex sequence_with_rest(const std::vector<uint32_t>& parts, bool at_start, Rest rest) {
    for (size_t i = parts.size(); i-- > 0;) {
      const Regex moved = with_rest(parts[i], false, {rest.moved, rest.moved});
      const Regex same = at_start ? with_rest(parts[i], true, rest) : moved;
      rest = {same, moved};
    }
    return rest.same;
  }

  Regex repeat_with_rest(const Node& node, bool at_start, const Rest& rest) {
    const uint32_t part = node.parts[0];
    const bool bounded = node.max.has_value();
    const int64_t unrolled = bounded ? *node.max : node.min;
    if (unrolled > kMaxUnrolled || (!bounded && tree_.nodes[part].has_ahead)) {
      refuse(node, tree_.nodes[part].has_ahead ? "a repeated look-ahead" : "an anchor that is repeated many times");
      return store_.nothing();
    }
    // same: when the repetitions so far matched nothing and the text begins here; moved: otherwise.
    Rest out = rest;
    if (!bounded) {
      out.moved = star_later(part, rest.moved);
      // At the start an empty repetition adds nothing, so the first one that counts is not empty.
      out.same = at_start ? store_.either(rest.same, with_rest(part, true, {rest.same, out.moved})) : out.moved;
    }
    for (int64_t i = unrolled; i-- > 0;) {
      const bool optional = bounded && i >= node.min;
      const Regex moved = with_rest(part, false, {out.moved, out.moved});
      const Regex same = at_start ? with_rest(part, true, out) : moved;
      out.moved = optional ? store_.either(rest.moved, moved) : moved;
      out.same = !at_start ? out.moved : optional ? store_.either(rest.same, same) : same;
    }
    return at_start ? out.same : out.moved;
  }

  // `part` any number of times at a place where the text does not begin: only the last repetition can meet $.
  Regex star_later(uint32_t part, Regex rest) {
    const Regex last = with_rest(part, false, {rest, rest});
    return store_.concat(store_.repeat(plain(part), 0), store_.either(rest, last));
  }

  void refuse(const Node& node, const std::string& construct) {
    if (error_) return;
    error_ = invalid_argument({"The pattern has ", construct, " at offset ", node.offset, ", which is not supported."});
  }

  RegexStore& store_;
  const RegexTree& tree_;
  std::vector<std::optional<Regex>> plain_;  // by node
  std::vector<std::optional<Regex>> sets_;
  std::optional<Error> error_;
  int64_t steps_ = 0;
  int64_t conditions_ = 0;
  int64_t work_before_ = 0;
};

}  // namespace

Result<Regex> lower_regex_tree(RegexStore& store, const RegexTree& tree, const RegexSyntax& syntax) {
  return Lowering(store, tree).lower(syntax.search);
}

}  // namespace quire::grammar
