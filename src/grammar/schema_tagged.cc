// SPDX-License-Identifier: Apache-2.0
// SchemaEmitter: objects whose members are written between tags, as some models write the arguments of a tool call.
#include <algorithm>

#include "grammar/schema_emitter.h"

namespace quire::grammar::schema {

namespace {

// What stands around the name and the value of one parameter. Strings are raw text; all else is JSON.
struct Tags {
  std::string_view before_name, after_name, after_value, between;
};

Tags tags_of(Style style) {
  switch (style) {
    case Style::kQwenXml:
      return {"<parameter=", ">\n", "\n</parameter>", "\n"};
    case Style::kGlmXml:
      return {"<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "\n"};
    case Style::kMinimaxXml:
      return {"<parameter name=\"", "\">", "</parameter>", "\n"};
    default:
      return {"<｜DSML｜parameter name=\"", "\" string=\"", "</｜DSML｜parameter>", "\n"};
  }
}

}  // namespace

std::optional<Style> style_of(std::string_view name) {
  if (name == "json") return Style::kJson;
  if (name == "qwen_xml") return Style::kQwenXml;
  if (name == "glm_xml") return Style::kGlmXml;
  if (name == "minimax_xml") return Style::kMinimaxXml;
  if (name == "deepseek_xml") return Style::kDeepseekXml;
  return std::nullopt;
}

Result<Symbol> SchemaEmitter::tagged_object(ConjId id, Style style) {
  QUIRE_ASSIGN(const auto set, evaluator_.values(id));
  std::vector<Symbol> options;
  for (const ObjectShape& shape : set->objects) {
    QUIRE_ASSIGN(const Symbol symbol, object(shape, style));
    options.push_back(symbol);
  }
  if (options.empty()) return unsupported("arguments between tags are an object, which this schema does not allow");
  return grammar_.choice(options);
}

// The value between its tags, with the rest of the tag before it where that depends on the value.
Result<Symbol> SchemaEmitter::tagged_value(ConjId id, Style style) {
  QUIRE_ASSIGN(const auto set, evaluator_.values(id));
  const Tags tags = tags_of(style);
  const bool typed = style == Style::kDeepseekXml;
  std::vector<Symbol> raw, other;
  if (!evaluator_.strings().is_none(set->strings)) {
    const std::string end(tags.after_value);
    const Regex without = store_.text_without(std::span(&end, 1));
    const Regex text =
        StringSets::is_all(set->strings) ? without : store_.both(evaluator_.strings().regex(set->strings), without);
    raw.push_back(grammar_.terminal(text));
  }
  // The same values without strings, as JSON.
  ValueSet rest = *set;
  rest.strings = StringSets::none();
  if (rest.arrays.empty() && rest.objects.empty()) {
    QUIRE_TRY(scalars(rest, other));
  } else {
    QUIRE_ASSIGN(const Symbol symbol, value(evaluator_.without_strings(id)));
    other.push_back(symbol);
  }
  if (typed) {
    for (Symbol& symbol : raw) symbol = grammar_.sequence({grammar_.literal("true\">"), symbol});
    for (Symbol& symbol : other) symbol = grammar_.sequence({grammar_.literal("false\">"), symbol});
  }
  raw.insert(raw.end(), other.begin(), other.end());
  return grammar_.choice(raw);
}

Result<std::vector<Symbol>> SchemaEmitter::tagged_entry(const ObjectPlan& plan, const Entry& entry, ConjId id,
                                                        bool first) {
  const Tags tags = tags_of(plan.style);
  QUIRE_ASSIGN(const Symbol member, tagged_value(id, plan.style));
  std::vector<Symbol> out;
  if (!first) out.push_back(grammar_.literal(tags.between));
  out.push_back(grammar_.literal(tags.before_name));
  if (entry.names) {
    // A name that contains a mark of the tags would end early.
    const std::string marks[] = {"<", ">", "\"", "\n"};
    const Regex name = store_.both(evaluator_.strings().regex(*entry.names), store_.text_without(marks));
    out.push_back(grammar_.terminal(store_.both(name, store_.repeat(store_.any_char(), 1))));
  } else {
    out.push_back(grammar_.literal(entry.name));
  }
  out.push_back(grammar_.literal(tags.after_name));
  out.push_back(member);
  out.push_back(grammar_.literal(tags.after_value));
  return out;
}

}  // namespace quire::grammar::schema
