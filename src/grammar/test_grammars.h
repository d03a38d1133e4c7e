// SPDX-License-Identifier: Apache-2.0
// Grammars and vocabularies that several tests of this folder use.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/matcher.h"

namespace quire::grammar {

// All of JSON (RFC 8259) with white space between tokens.
inline Grammar json_grammar() {
  Grammar grammar;
  RegexStore& r = grammar.regexes();
  std::vector<CodePointRange> not_plain = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  Regex digit = r.bytes(ByteSet::range('0', '9'));
  Regex hex = r.bytes(ByteSet::range('0', '9') | ByteSet::range('a', 'f') | ByteSet::range('A', 'F'));
  Regex escape = r.concat(r.literal("\\"),
                          r.either(r.bytes(ByteSet::of("\"\\/bfnrt")), r.concat(r.literal("u"), r.repeat(hex, 4, 4))));
  Regex text = r.repeat(r.either(r.chars_except(not_plain), escape), 0);
  Regex quote = r.literal("\"");
  Symbol string = grammar.terminal(r.concat(quote, r.concat(text, quote)));
  Regex integer = r.either(r.literal("0"), r.concat(r.bytes(ByteSet::range('1', '9')), r.repeat(digit, 0)));
  Regex fraction = r.optional(r.concat(r.literal("."), r.repeat(digit, 1)));
  Regex exponent = r.optional(
      r.concat(r.bytes(ByteSet::of("eE")), r.concat(r.optional(r.bytes(ByteSet::of("+-"))), r.repeat(digit, 1))));
  Symbol number =
      grammar.terminal(r.concat(r.optional(r.literal("-")), r.concat(integer, r.concat(fraction, exponent))));
  Symbol space = grammar.terminal(r.repeat(r.bytes(ByteSet::of(" \t\r\n")), 0));
  Symbol comma = grammar.literal(","), colon = grammar.literal(":");
  Symbol value = grammar.rule("value");
  Symbol member = grammar.sequence({string, space, colon, space, value, space});
  Symbol members = grammar.rule("members");
  grammar.add_production(members, {member});
  grammar.add_production(members, {members, comma, space, member});
  Symbol elements = grammar.rule("elements");
  grammar.add_production(elements, {value, space});
  grammar.add_production(elements, {elements, comma, space, value, space});
  Symbol object = grammar.sequence({grammar.literal("{"), space, grammar.optional(members), grammar.literal("}")});
  Symbol array = grammar.sequence({grammar.literal("["), space, grammar.optional(elements), grammar.literal("]")});
  Symbol word = grammar.choice({grammar.literal("true"), grammar.literal("false"), grammar.literal("null")});
  for (Symbol option : {object, array, string, number, word}) grammar.add_production(value, {option});
  grammar.set_start(value);
  return grammar;
}

// One token for each byte, these tokens after them, and special tokens at the end.
inline std::shared_ptr<const Vocabulary> byte_vocabulary(const std::vector<std::string>& tokens,
                                                         const std::vector<std::string>& special = {}) {
  std::vector<Vocabulary::Token> all;
  for (int byte = 0; byte < 256; ++byte) all.push_back({std::string(1, static_cast<char>(byte))});
  for (const std::string& token : tokens) all.push_back({token});
  for (const std::string& token : special) all.push_back({token, true});
  auto size = static_cast<int64_t>(all.size());
  return Vocabulary::make(std::move(all), size + 5);
}

// `part`, so many times.
inline std::string many(const std::string& part, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += part;
  return out;
}

}  // namespace quire::grammar
