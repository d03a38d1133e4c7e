// SPDX-License-Identifier: Apache-2.0
// RegexStore against a slow matcher of its own, and its simplifications and questions.
#include "grammar/regex.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace quire::grammar {
namespace {

TEST(ByteSet, HasWhatItWasMadeOf) {
  ByteSet set = ByteSet::range('a', 'c') | ByteSet::of("x\xFF");
  for (int byte = 0; byte < 256; ++byte) {
    bool expected = (byte >= 'a' && byte <= 'c') || byte == 'x' || byte == 0xFF;
    EXPECT_EQ(set.has(static_cast<uint8_t>(byte)), expected);
    EXPECT_EQ((~set).has(static_cast<uint8_t>(byte)), !expected);
  }
  EXPECT_TRUE((set & ~set).empty());
  EXPECT_EQ(set | ~set, ByteSet::all());
}

TEST(RegexStore, SimplifiesEqualExpressionsToOne) {
  RegexStore store;
  Regex a = store.literal("a"), b = store.literal("b"), c = store.literal("c");
  EXPECT_EQ(store.either(a, b), store.either(b, a));
  EXPECT_EQ(store.either(a, store.nothing()), a);
  EXPECT_EQ(store.concat(a, store.empty()), a);
  EXPECT_EQ(store.concat(a, store.nothing()), store.nothing());
  EXPECT_EQ(store.concat(store.concat(a, b), c), store.concat(a, store.concat(b, c)));
  EXPECT_EQ(store.concat(store.concat(a, b), c), store.literal("abc"));
  EXPECT_EQ(store.complement(store.complement(a)), a);
  EXPECT_EQ(store.both(a, a), a);
  EXPECT_EQ(store.both(a, b), store.nothing());
  EXPECT_EQ(store.either(store.literal("ab"), store.literal("ac")), store.concat(a, store.either(b, c)));
  Regex star = store.repeat(a, 0);
  EXPECT_EQ(store.repeat(star, 0), star);
  EXPECT_EQ(store.concat(star, star), star);
  EXPECT_EQ(store.derivative(star, 'a'), star);
  EXPECT_EQ(store.repeat(a, 2, 1), store.nothing());
  EXPECT_EQ(store.repeat(a, 0, 0), store.empty());
}

TEST(RegexStore, CountsRepetitions) {
  RegexStore store;
  Regex some = store.repeat(store.either(store.literal("ab"), store.literal("c")), 2, 3);
  EXPECT_FALSE(store.matches(some, "c"));
  EXPECT_TRUE(store.matches(some, "cab"));
  EXPECT_TRUE(store.matches(some, "abcc"));
  EXPECT_FALSE(store.matches(some, "cccc"));
  Regex many = store.repeat(store.literal("a"), 1'000'000, int64_t{1} << 40);
  EXPECT_FALSE(store.matches(many, std::string(1000, 'a')));
  EXPECT_FALSE(store.full());
}

TEST(RegexStore, FindsMultiplesOfRoundAndOtherDivisors) {
  for (const uint32_t divisor :
       {1u, 2u, 5u, 7u, 8u, 10u, 12u, 40u, 75u, 96u, 100u, 250u, 999u, 1024u, 3600u, 10'000u}) {
    RegexStore store;
    const Regex multiples = store.digits_multiple_of(divisor);
    for (uint32_t n = 0; n < 25'000; ++n) {
      ASSERT_EQ(store.matches(multiples, std::to_string(n)), n % divisor == 0) << n << " by " << divisor;
    }
  }
}

std::string utf8(uint32_t code) {
  std::string out;
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
  return out;
}

TEST(RegexStore, CharsAreExactlyTheirCodePoints) {
  RegexStore store;
  std::vector<CodePointRange> ranges = {{0x41, 0x5A}, {0x7E, 0x801}, {0xD700, 0xE100}, {0xFFF0, 0x10345}};
  Regex in = store.chars(ranges), out = store.chars_except(ranges);
  for (uint32_t code = 0; code <= 0x10FFFF; code += code < 0x11000 ? 1 : 997) {
    bool inside = false;
    for (const CodePointRange& range : ranges) inside = inside || (code >= range.first && code <= range.last);
    bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    ASSERT_EQ(store.matches(in, utf8(code)), inside && !surrogate) << code;
    ASSERT_EQ(store.matches(out, utf8(code)), !inside && !surrogate) << code;
  }
  EXPECT_FALSE(store.matches(store.any_char(), "\xC0\x80"));
  EXPECT_FALSE(store.matches(store.any_char(), "\xF4\x90\x80\x80"));
  EXPECT_FALSE(store.matches(store.any_text(), "a\xE2\x82"));
  EXPECT_TRUE(store.matches(store.any_text(), "a\xE2\x82\xAC"));
  EXPECT_TRUE(store.matches(store.anything(), "a\xE2\x82"));
  EXPECT_EQ(store.either(store.chars(ranges), store.chars_except(ranges)), store.any_char());
}

TEST(RegexStore, TextWithoutStringsHasNoneOfThem) {
  RegexStore store;
  std::vector<std::string> strings = {"</end>", "aab"};
  Regex text = store.text_without(strings);
  EXPECT_TRUE(store.matches(text, ""));
  EXPECT_TRUE(store.matches(text, "aaaa </en </end  \xC3\xA9"));
  EXPECT_FALSE(store.matches(text, "aaaab"));
  EXPECT_FALSE(store.matches(text, "x</end>y"));
  EXPECT_FALSE(store.matches(text, "\xC3"));
  EXPECT_EQ(store.is_nothing(text), false);
}

TEST(RegexStore, ManyLiteralsBecomeATrie) {
  RegexStore store;
  std::vector<Regex> literals;
  for (int i = 0; i < 20'000; ++i) literals.push_back(store.literal("value-" + std::to_string(i * 7)));
  Regex any = store.either(literals);
  int64_t before = store.work();
  EXPECT_TRUE(store.matches(any, "value-139993"));
  EXPECT_FALSE(store.matches(any, "value-139994"));
  EXPECT_FALSE(store.matches(any, "value-13999"));
  EXPECT_LT(store.work() - before, 2000);
  EXPECT_TRUE(store.plain(any));
}

TEST(RegexStore, StopsAtItsLimitsInsteadOfGrowing) {
  RegexStore store(2000);
  for (int i = 0; i < 1000; ++i) store.literal("literal " + std::to_string(i * 31));
  EXPECT_TRUE(store.full());
  EXPECT_LE(store.size(), 2000u);
  RegexStore deep;
  Regex nested = deep.literal("a");
  for (int i = 0; i < 100'000; ++i) {
    nested = deep.complement(deep.both(deep.concat(deep.literal("b"), nested), deep.any_text()));
  }
  deep.derivative(nested, 'b');
  EXPECT_EQ(deep.is_nothing(nested, 1000).has_value(), true);  // nullable: answered without a derivative
  Regex optional = deep.empty();
  for (int i = 0; i < 3000; ++i) {
    optional =
        deep.optional(deep.concat(deep.bytes(ByteSet::range('a', static_cast<uint8_t>('b' + i % 20))), optional));
  }
  EXPECT_TRUE(deep.matches(optional, "aaaa"));
}

// A random expression together with a function that says whether a text matches, in the plainest way.
struct RandomCase {
  Regex regex;
  std::function<bool(const std::string&)> matches;
};

class RandomRegexes {
 public:
  explicit RandomRegexes(uint32_t seed) : random_(seed) {}
  RegexStore store;

  RandomCase make(int depth) {
    switch (depth == 0 ? random_() % 2 : random_() % 9) {
      case 0: {
        std::string text;
        for (uint32_t i = random_() % 3; i > 0; --i) text += static_cast<char>('a' + random_() % 3);
        return {store.literal(text), [text](const std::string& s) { return s == text; }};
      }
      case 1: {
        ByteSet set = random_() % 2 ? ByteSet::of("ab") : ByteSet::of("bc");
        return {store.bytes(set), [set](const std::string& s) { return s.size() == 1 && set.has(s[0]); }};
      }
      case 2:
      case 3: {
        RandomCase a = make(depth - 1), b = make(depth - 1);
        return {store.concat(a.regex, b.regex), concat(a, b)};
      }
      case 4: {
        RandomCase a = make(depth - 1), b = make(depth - 1);
        return {store.either(a.regex, b.regex), [a, b](const std::string& s) { return a.matches(s) || b.matches(s); }};
      }
      case 5: {
        RandomCase a = make(depth - 1), b = make(depth - 1);
        return {store.both(a.regex, b.regex), [a, b](const std::string& s) { return a.matches(s) && b.matches(s); }};
      }
      case 6: {
        RandomCase a = make(depth - 1);
        return {store.complement(a.regex), [a](const std::string& s) { return !a.matches(s); }};
      }
      default: {
        RandomCase a = make(depth - 1);
        int min = random_() % 3, max = min + random_() % 3;
        bool bounded = random_() % 2;
        Regex regex = bounded ? store.repeat(a.regex, min, max) : store.repeat(a.regex, min);
        return {regex, repeat(a, min, bounded ? max : 8)};
      }
    }
  }

 private:
  static std::function<bool(const std::string&)> concat(const RandomCase& a, const RandomCase& b) {
    return [a, b](const std::string& s) {
      for (size_t i = 0; i <= s.size(); ++i) {
        if (a.matches(s.substr(0, i)) && b.matches(s.substr(i))) return true;
      }
      return false;
    };
  }
  // Texts have at most 4 bytes, so 8 repetitions are as good as any number.
  static std::function<bool(const std::string&)> repeat(const RandomCase& a, int min, int max) {
    return [a, min, max](const std::string& s) {
      std::set<size_t> ends = {0};
      bool found = false;
      for (int count = 0; count <= max && !found; ++count) {
        if (count >= min && ends.contains(s.size())) found = true;
        std::set<size_t> next;
        for (size_t begin : ends) {
          for (size_t end = begin; end <= s.size(); ++end) {
            if (a.matches(s.substr(begin, end - begin))) next.insert(end);
          }
        }
        ends = next;
      }
      return found;
    };
  }
  std::mt19937 random_;
};

std::vector<std::string> short_texts() {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 4; ++i) {
    for (char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  return texts;
}

TEST(RegexStore, RandomExpressionsMatchAsTheSlowMatcher) {
  std::vector<std::string> texts = short_texts();
  for (uint32_t seed = 0; seed < 400; ++seed) {
    RandomRegexes random(seed);
    RandomCase one = random.make(3);
    bool any = false;
    for (const std::string& text : texts) {
      bool expected = one.matches(text);
      any = any || expected;
      ASSERT_EQ(random.store.matches(one.regex, text), expected) << "seed " << seed << " text " << text;
    }
    std::optional<bool> nothing = random.store.is_nothing(one.regex, 100'000);
    ASSERT_TRUE(nothing.has_value());
    ASSERT_FALSE(any && *nothing) << seed;
    RandomCase other = random.make(2);
    std::optional<bool> contained = random.store.contained(one.regex, other.regex, 100'000);
    ASSERT_TRUE(contained.has_value());
    for (const std::string& text : texts) {
      ASSERT_FALSE(*contained && one.matches(text) && !other.matches(text)) << seed;
    }
    RegexStore::ByteClasses classes = random.store.classes(one.regex);
    EXPECT_EQ(classes.of['x'], classes.of['y']);
    for (char c : {'a', 'b', 'c'}) {
      for (char d : {'a', 'b', 'c'}) {
        if (classes.of[c] == classes.of[d]) {
          ASSERT_EQ(random.store.derivative(one.regex, c), random.store.derivative(one.regex, d));
        }
      }
    }
  }
}

TEST(RegexStore, AnswersContainment) {
  RegexStore store;
  Regex digits = store.repeat(store.bytes(ByteSet::range('0', '9')), 1);
  Regex word = store.repeat(store.bytes(ByteSet::range('0', '9') | ByteSet::range('a', 'z')), 0);
  EXPECT_EQ(store.contained(digits, word), true);
  EXPECT_EQ(store.contained(word, digits), false);
  Regex both = store.both(store.concat(digits, store.literal("a")), store.concat(store.literal("b"), word));
  EXPECT_EQ(store.is_nothing(both), true);
  Regex long_one = store.both(store.repeat(word, 1), store.repeat(store.bytes(ByteSet::all()), 5000, 5000));
  EXPECT_EQ(store.is_nothing(long_one, 100), std::nullopt);
  EXPECT_EQ(store.is_nothing(long_one), false);
}

}  // namespace
}  // namespace quire::grammar
