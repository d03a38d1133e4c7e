// SPDX-License-Identifier: Apache-2.0
// The engine by itself: what templates print, their errors, and their limits. tests/jinja/test_jinja.py compares it
// with Jinja2; this file has the rules that one may want to look up.
#include "text/jinja/template.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace quire::text::jinja {
namespace {

json::Value context(const std::string& text) {
  return json::parse(text).value();
}

const json::Value& standard() {
  static const json::Value value = context(R"({
    "n": 7, "f": 2.5, "s": "Hello", "uni": "héllo 你好 😀", "nil": null, "yes": true,
    "xs": [3, 1, 2], "d": {"b": 2, "a": 1}, "users": [{"name": "Bo", "age": 30}, {"name": "al", "age": 25}],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}]}, {"v": 3, "c": []}]})");
  return value;
}

Result<std::string> try_render(const std::string& source, const RenderOptions& options = {}) {
  QUIRE_ASSIGN(const Template parsed, Template::parse(source));
  return parsed.render(standard(), options);
}

std::string render(const std::string& source, const RenderOptions& options = {}) {
  auto result = try_render(source, options);
  return result.ok() ? *result : "ERROR: " + result.error().message;
}

std::string error_of(const std::string& source, const RenderOptions& options = {}) {
  auto result = try_render(source, options);
  return result.ok() ? "no error, but: " + *result : result.error().message;
}

using Cases = std::vector<std::pair<std::string, std::string>>;

void expect_all(const Cases& cases) {
  for (const auto& [source, expected] : cases) EXPECT_EQ(render(source), expected) << source;
}

// --- Values and operators ---

TEST(Jinja, PrintsValuesAsPythonDoes) {
  expect_all({
      {"{{ [1, 2.0, 'a', none, true, (1,), {'k': \"it's\"}] }}", "[1, 2.0, 'a', None, True, (1,), {'k': \"it's\"}]"},
      {"{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ -0.0 }}",
       "1e+16 1000000000000000.0 0.0001 1e-05 0.30000000000000004 -0.0"},
      {"{{ ['\\n\\x00é\\u2028'] }}", "['\\n\\x00é\\u2028']"},
      {"{{ nil }}{{ yes }}{{ nope }}", "NoneTrue"},
  });
}

TEST(Jinja, ComputesAsPythonDoes) {
  expect_all({
      {"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 3 ** 2 }} {{ 7 / 2 }} {{ -7.5 % 2 }}", "-4 2 -2 64 3.5 0.5"},
      {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' in 'cat' }} {{ 9 not in xs }} {{ 1 == 1.0 == true }}",
       "True False True True True"},
      {"{{ 'ab' * 2 ~ 1 }} {{ '%s-%05.1f' % ('x', 2.25) }} {{ [1] + [2] }}", "abab1 x-002.2 [1, 2]"},
      {"{{ 'y' if nope }}|{{ nope or 'd' }}|{{ not nil and n }}", "|d|7"},
  });
  EXPECT_NE(error_of("{{ 9223372036854775807 + 1 }}").find("64 bits"), std::string::npos);
  EXPECT_NE(error_of("{{ 1 // 0 }}").find("by zero"), std::string::npos);
  EXPECT_NE(error_of("{{ 'a' + 1 }}").find("can only concatenate str"), std::string::npos);
}

// Ranges and round() used to compute products that 64 bits cannot hold, and the errors said that an int is not an int.
TEST(Jinja, ComputesWithTheLargestIntegersAndNamesLargerOnes) {
  expect_all({
      {"{{ range(-9223372036854775807 - 1, 9223372036854775807, 4611686018427387904)|list }}",
       "[-9223372036854775808, -4611686018427387904, 0, 4611686018427387904]"},
      {"{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904)[3] }}", "4611686018427387905"},
      {"{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904)[3:]|list }}", "[4611686018427387905]"},
      {"{{ -9223372036854775807 // -1 }} {{ (-9223372036854775807 - 1) % -1 }}", "9223372036854775807 0"},
      {"{{ 9223372036854775804|round(-1, 'common') }} {{ -9223372036854775804|round(-1) }}",
       "9223372036854775800 -9223372036854775800"},
      {"{{ 15|round(-1) }} {{ 25|round(-1) }} {{ -15|round(-1) }} {{ -25|round(-1) }} {{ -26|round(-1) }}",
       "20 20 -20 -20 -30"},
  });
  for (const char* wide : {"{{ range(-9223372036854775807 - 1, 9223372036854775807, 9223372036854775807)[0::2]|list }}",
                           "{{ (-9223372036854775807 - 1)|round(-1) }}", "{{ 9223372036854775807|round(-1) }}",
                           "{{ -(-9223372036854775807 - 1) }}", "{{ (-9223372036854775807 - 1) // -1 }}",
                           "{{ (-9223372036854775807 - 1)|abs }}", "{{ 2 ** 63 }}", "{{ 9223372036854775808 }}",
                           "{{ '9223372036854775808'|int }}", "{{ 1e19|int }}"}) {
    EXPECT_NE(error_of(wide).find("64 bits"), std::string::npos) << wide << ": " << error_of(wide);
  }
  EXPECT_NE(error_of("{{ '%*d' % (-9223372036854775807 - 1, 1) }}").find("width is too large"), std::string::npos);
  const json::Value values = context(R"({"large": 18446744073709551616})");
  const auto with_large = [&](const char* source) { return Template::parse(source)->render(values); };
  EXPECT_EQ(*with_large("{{ large }} {{ large|tojson }} {{ large is number }} {{ large == large }}"),
            "18446744073709551616 18446744073709551616 True True");
  for (const char* source : {"{{ large + 1 }}", "{{ 1 * large }}", "{{ -large }}", "{{ large < 3 }}", "{{ large|abs }}",
                             "{{ large|round }}", "{{ '%d' % large }}", "{{ range(large) }}"}) {
    const auto result = with_large(source);
    ASSERT_FALSE(result.ok()) << source;
    EXPECT_NE(result.error().message.find("64 bits"), std::string::npos) << source << ": " << result.error().message;
  }
}

TEST(Jinja, CountsTextInCodePoints) {
  expect_all({
      {"{{ uni|length }} {{ uni[1] }} {{ uni[-1] }} {{ uni[6:8] }} {{ uni[::-1] }}", "10 é 😀 你好 😀 好你 olléh"},
      {"{{ uni.find('好') }} {{ 'ß'.upper() }} {{ 'ΑΣ'.lower() }}", "7 SS ας"},
  });
}

TEST(Jinja, LooksUpAttributesBeforeItemsAndItemsBeforeAttributes) {
  expect_all({
      {"{{ {'get': 1}['get'] }} {{ {'get': 1}.get is callable }}", "1 True"},
      {"{{ d.a }}{{ d['b'] }}{{ d.zz }}{{ xs.0 }}{{ xs[9] }}{{ s.nope }}", "123"},
  });
  EXPECT_NE(error_of("{{ d.zz.y }}").find("'dict object' has no attribute 'zz'"), std::string::npos);
  EXPECT_NE(error_of("{{ nope.x }}").find("'nope' is undefined"), std::string::npos);
}

TEST(Jinja, RefusesWhatTheSandboxRefuses) {
  EXPECT_NE(error_of("{{ xs.append(1) }}").find("access to attribute 'append' of 'list' object is unsafe"),
            std::string::npos);
  EXPECT_NE(error_of("{{ s.__class__() }}").find("unsafe"), std::string::npos);
  EXPECT_NE(error_of("{{ range(100001) }}").find("larger than 100000"), std::string::npos);
  RenderOptions open;
  open.immutable = false;
  EXPECT_EQ(render("{% do xs.append(4) %}{% set ys = xs %}{% do ys.sort() %}{{ xs }}", open), "[1, 2, 3, 4]");
  EXPECT_EQ(render("{% set a = [] %}{% do a.append(a) %}{{ a }}", open), "[[...]]");
}

// --- Statements ---

TEST(Jinja, LoopsKnowWhereTheyAre) {
  expect_all({
      {"{% for x in xs %}{{ loop.index }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor "
       "%}",
       "13TrueFalse3;22FalseFalse3;31FalseTrue3;"},
      {"{% for x in xs if x > 1 %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{% else %}none{% endfor %}",
       "<3>23<2>"},
      {"{% for t in tree recursive %}{{ t.v }}:{{ loop.depth }}[{{ loop(t.c) }}]{% endfor %}", "1:1[2:2[]]3:1[]"},
      {"{% for k, v in d|items %}{{ k }}{{ v }}{{ loop.cycle('-', '+') }}{% endfor %}", "b2-a1+"},
      {"{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}!{% endfor %}", "32"},
      {"{% for x in xs %}{% break %}{% else %}else{% endfor %}", "else"},
  });
}

TEST(Jinja, LoopsAndMacrosHaveTheirOwnScopeAndConditionsHaveNot) {
  expect_all({
      {"{% set x = 0 %}{% for i in xs %}{% set x = x + i %}{{ x }};{% endfor %}{{ x }}", "3;1;2;0"},
      {"{% set ns = namespace(x=0) %}{% for i in xs %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "6"},
      {"{% if yes %}{% set x = 1 %}{% endif %}{{ x }}", "1"},
      {"{% macro m() %}{{ z }}{% endmacro %}{% set z = 5 %}{{ m() }}", "5"},
      // Jinja2 binds names statically: the later assignment makes x a variable of the template from the start.
      {"{% for i in [1] %}[{{ n }}]{% endfor %}{% set n = 5 %}{{ n }}", "[]5"},
  });
}

TEST(Jinja, MacrosTakeArgumentsAsPythonFunctionsDo) {
  expect_all({
      {"{% macro m(a, b=a, c='x') %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}",
       "11x;12x;113;"},
      {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}", "(1, 2){'k': 3}"},
      {"{% macro m() %}<{{ caller(5) }}>{% endmacro %}{% call(x) m() %}{{ x + n }}{% endcall %}", "<12>"},
  });
  EXPECT_NE(error_of("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}").find("takes not more than 1"), std::string::npos);
  EXPECT_NE(error_of("{% macro m(a) %}{% endmacro %}{{ m(b=2) }}").find("no keyword argument 'b'"), std::string::npos);
}

TEST(Jinja, HandlesWhiteSpaceAsTransformersSetsItUp) {
  expect_all({
      {"a\n  {% if yes %}  \n  b\n  {% endif %}\nc\n", "a\n  \n  b\nc"},
      {"a {%- if yes -%} b {%- endif -%} c", "abc"},
      {"x\n  {%+ if yes %}\ny{% endif %}", "x\n  y"},
      {"{# note #}\na {#- b -#} c", "ac"},
      {"{% raw %}{{ x }}{% endraw %}|\r\n", "{{ x }}|"},
  });
}

TEST(Jinja, BlocksCaptureAndFilter) {
  expect_all({
      {"{% set x | upper | trim %} a{{ n }} {% endset %}[{{ x }}]", "[A7]"},
      {"{% filter replace('a', 'b') %}a{{ s }}a{% endfilter %}", "bHellob"},
      {"{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "17"},
      {"{% generation %}g{% endgeneration %}", "g"},
  });
}

TEST(Jinja, WritesJsonAsTransformersDoes) {
  expect_all({
      {"{{ {'é': ['<b>', 1.0, none]}|tojson }}", "{\"é\": [\"<b>\", 1.0, null]}"},
      {"{{ d|tojson(indent=2) }}", "{\n  \"b\": 2,\n  \"a\": 1\n}"},
      {"{{ d|tojson(sort_keys=true, separators=(',', ':')) }}", "{\"a\":1,\"b\":2}"},
      {"{{ 'é😀'|tojson(ensure_ascii=true) }}", "\"\\u00e9\\ud83d\\ude00\""},
  });
  EXPECT_NE(error_of("{{ xs|map('string')|tojson }}").find("generator is not JSON serializable"), std::string::npos);
}

TEST(Jinja, FiltersThatGiveGeneratorsAreLazyAndUsedUpOnce) {
  expect_all({
      {"{% set g = xs|map('string') %}{{ g|list }}{{ g|list }}", "['3', '1', '2'][]"},
      {"{% if xs|select('gt', 100) %}a generator is true{% endif %}", "a generator is true"},
      {"{% set never = xs|map('nosuch') %}ok", "ok"},
      {"{{ users|sort(attribute='age')|map(attribute='name')|join(', ') }}", "al, Bo"},
  });
}

TEST(Jinja, UsesTheGivenClock) {
  RenderOptions options;
  options.now = std::tm{};
  options.now->tm_year = 126;
  options.now->tm_mon = 0;
  options.now->tm_mday = 2;
  options.now->tm_hour = 3;
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y, %A %H:%M') }}", options), "02 Jan 2026, Friday 03:00");
}

// --- Errors ---

TEST(Jinja, ErrorsNameTheLine) {
  EXPECT_EQ(error_of("a\n{{ 1 }}\n{{ nope.x }}"), "The chat template fails at line 3: 'nope' is undefined");
  EXPECT_NE(error_of("a\n\n{% if %}{% endif %}").find("at line 3: Expected an expression"), std::string::npos);
  EXPECT_NE(error_of("{% for x in xs %}\n").find("expected 'endfor', 'else'"), std::string::npos);
  EXPECT_NE(error_of("\n{{ x|nosuch }}").find("at line 2: No filter named 'nosuch'"), std::string::npos);
}

TEST(Jinja, AnErrorAfterAMacroNamesTheCallersLine) {
  EXPECT_NE(error_of("{% macro m() %}\n\n\n{{ 1 }}{% endmacro %}\n{{ m() ~ nope.x }}").find("at line 5"),
            std::string::npos);
}

TEST(Jinja, RaisedErrorsAreRecognisable) {
  const auto result = try_render("{{ raise_exception('only users') }}");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().message, std::string(kRaisedPrefix) + "only users");
}

TEST(Jinja, TagsThatNeedOtherTemplatesAreUnsupported) {
  for (const char* source :
       {"{% include 'a' %}", "{% import 'a' as b %}", "{% extends 'a' %}", "{% from 'a' import b %}"}) {
    const auto result = Template::parse(source);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(result.error().message.find("other templates"), std::string::npos);
  }
}

// --- Limits ---

RenderOptions small_limits() {
  RenderOptions options;
  options.limits.max_steps = 100'000;
  options.limits.max_output_bytes = 10'000;
  options.limits.max_memory_bytes = 1 << 20;
  return options;
}

TEST(JinjaLimits, StopATemplateThatRunsTooLong) {
  const std::string source = "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}";
  const auto result = try_render(source, small_limits());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kExhausted);
  EXPECT_NE(result.error().message.find("limit of steps"), std::string::npos);
}

TEST(JinjaLimits, StopATemplateThatNobodyWaitsFor) {
  std::atomic<bool> cancelled{true};
  RenderOptions options;
  options.cancelled = &cancelled;
  const std::string source = "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}";
  const auto result = try_render(source, options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
  cancelled = false;
  EXPECT_TRUE(try_render(source, options).ok());
}

// Fifty million steps of replacing in long strings took most of a minute.
TEST(JinjaLimits, StopATemplateWhoseStepsAreLong) {
  const auto result = try_render(
      "{% set x = 'aB' * 1000000 %}{% for a in range(1000) %}{% for b in range(1000) %}{% set y = x.replace('a', 'c') "
      "%}"
      "{% endfor %}{% endfor %}");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kExhausted);
  EXPECT_NE(result.error().message.find("CPU time"), std::string::npos) << result.error().message;
}

TEST(JinjaLimits, StopATemplateThatPrintsTooMuch) {
  EXPECT_NE(error_of("{% for a in range(500) %}{{ 'x' * 100 }}{% endfor %}", small_limits()).find("output is larger"),
            std::string::npos);
}

TEST(JinjaLimits, StopATemplateThatHoldsTooMuch) {
  for (const char* source :
       {"{% set x = 'x' * 10000000 %}", "{% set x = [1] * 1000000 %}",
        "{% set ns = namespace(s='x' * 1000) %}{% for i in range(30) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ '%1000000d' % 1 }}{{ '{:999999}'.format(1) }}", "{{ 'a'.center(100000000) }}",
        "{% set x = ('a' * 1000).replace('a', 'b' * 10000) %}", "{{ ('a' * 1000)|list|join('b' * 10000) }}"}) {
    const auto result = try_render(source, small_limits());
    ASSERT_FALSE(result.ok()) << source;
    EXPECT_EQ(result.error().code, ErrorCode::kExhausted) << source << result.error().message;
  }
}

TEST(JinjaLimits, StopRecursion) {
  EXPECT_NE(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("levels deep"), std::string::npos);
  EXPECT_NE(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}").find("levels deep"), std::string::npos);
  EXPECT_NE(error_of("{% set ns = namespace(g=xs) %}{% for i in range(5000) %}{% set ns.g = ns.g|map('string') %}"
                     "{% endfor %}{{ ns.g|list }}")
                .find("too deeply"),
            std::string::npos);
  EXPECT_NE(
      error_of("{% set ns = namespace(g=xs) %}{% for i in range(5000) %}{% set ns.g = [ns.g] %}{% endfor %}{{ ns.g }}")
          .find("too deeply"),
      std::string::npos);
}

TEST(JinjaLimits, StopNestingInTheSource) {
  auto repeat = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  for (const std::string& source :
       {"{{ " + repeat("(", 50000), "{{ " + repeat("[", 50000), "{{ " + repeat("not ", 50000),
        "{{ " + repeat("-", 50000), repeat("{% if 1 %}", 50000), repeat("{% for x in y %}", 50000),
        "{{ a" + repeat(".b", 50000) + " }}", "{{ a" + repeat("|e", 50000) + " }}",
        "{{ a" + repeat(" - 1", 50000) + " }}", "{{ a" + repeat(" if b else c", 50000) + " }}",
        "{{ a" + repeat(" and b", 50000) + " }}", "{{ a" + repeat("[0]", 50000) + " }}",
        "{{ a" + repeat("()", 50000) + " }}", "{% set " + repeat("(", 50000), "{{ " + repeat("{1:", 50000),
        "{{ a is " + repeat("b is ", 50000), "{{ a" + repeat(" ** 2", 50000) + " }}"}) {
    EXPECT_FALSE(Template::parse(source).ok()) << source.substr(0, 30);
  }
  // Long but flat templates are fine.
  EXPECT_TRUE(Template::parse("{{ a" + repeat(" + 'b'", 5000) + repeat(" ~ 1", 5000) + " }}").ok());
  EXPECT_TRUE(Template::parse(repeat("{% if a %}{% elif b %}{% endif %}", 5000)).ok());
  EXPECT_FALSE(Template::parse(std::string(2 << 20, 'x')).ok());
}

// --- Sharing ---

TEST(Jinja, RendersTheSameFromManyThreads) {
  const auto parsed = Template::parse(
      "{% macro m(x) %}{{ x|upper }}-{{ 'const'|length }}{% endmacro %}{% for u in users %}{{ m(u.name) }}{{ 'k' ~ "
      "loop.index }}"
      "{{ 'é'|upper }}{{ {'a': 'b'} }}{% endfor %}");
  ASSERT_TRUE(parsed.ok());
  const std::string expected = *parsed->render(standard());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) wrong[t] += *parsed->render(standard()) == expected ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace quire::text::jinja
