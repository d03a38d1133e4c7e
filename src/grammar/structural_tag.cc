// SPDX-License-Identifier: Apache-2.0
// The reader of structural tags: formats that combine free text, marked parts, JSON and special tokens.
#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "grammar/compile.h"

namespace quire::grammar {

namespace {

constexpr int kMaxFormatDepth = 80;
constexpr int64_t kMaxTagNumber = 0x7fffffff;

// A marker in pieces: bytes, or a special token.
struct Piece {
  std::string text;
  std::optional<int32_t> token;
};

std::vector<Piece> pieces_of(std::string_view text, const SpecialTokens& special) {
  std::vector<Piece> out;
  for (size_t pos = 0; pos < text.size();) {
    if (const auto match = special.find_longest_at(text, pos)) {
      out.push_back({std::string(text.substr(pos, match->size)), match->id});
      pos += match->size;
      continue;
    }
    if (out.empty() || out.back().token) out.push_back({});
    out.back().text += text[pos++];
  }
  return out;
}

bool has_token(std::string_view text, const SpecialTokens& special) {
  return std::ranges::any_of(pieces_of(text, special), [](const Piece& piece) { return piece.token.has_value(); });
}

Symbol single_token(Grammar& grammar, int32_t id) {
  return grammar.token({.ranges = {{id, id}}, .inverted = false});
}

class TagReader {
 public:
  TagReader(Grammar& grammar, const JsonOptions& options, const SpecialTokens& special)
      : grammar_(grammar), store_(grammar.regexes()), options_(options), special_(special) {}

  Result<Symbol> read(const json::Value& tag) {
    if (!tag.is_object()) return wrong("", "it must be an object");
    if (tag.find("structures") != nullptr) return older(tag);
    const json::Value* type = tag.find("type");
    const bool wrapped = tag.find("format") != nullptr;
    if (wrapped && type != nullptr && (!type->is_string() || type->as_string() != "structural_tag")) {
      return wrong("", "\"type\" must be \"structural_tag\" beside \"format\"");
    }
    if (!wrapped) return format(tag, "", {}, 0);
    QUIRE_TRY(check_fields(tag, "", {"format"}));
    return format(*tag.find("format"), "/format", {}, 0);
  }

 private:
  // The end of the nearest tag around a format: unbounded parts stop there.
  struct Ends {
    std::vector<std::string> texts;
    std::vector<int32_t> tokens;
  };
  // One way to go on after free text: a trigger, then the rest.
  struct Branch {
    std::string trigger;
    Symbol rest;
  };

  static Failure wrong(const std::string& path, const std::string& what) {
    return invalid_argument({"The structural tag is wrong", (path.empty() ? "" : " at " + path), ": ", what, "."});
  }

  // Refuses fields that this type does not have: nothing that changes the meaning is ignored.
  static Status check_fields(const json::Value& object, const std::string& path,
                             std::initializer_list<std::string_view> names) {
    for (const auto& [name, value] : object.as_object()) {
      if (name != "type" && std::ranges::find(names, name) == names.end()) {
        return wrong(path, "the field \"" + name + "\" is not supported here");
      }
    }
    return {};
  }

  static Result<std::string> text_field(const json::Value& object, const std::string& path, std::string_view name) {
    const json::Value* value = object.find(name);
    if (value == nullptr || !value->is_string()) return wrong(path, "\"" + std::string(name) + "\" must be a string");
    return value->as_string();
  }
  static Result<bool> bool_field(const json::Value& object, const std::string& path, std::string_view name,
                                 bool fallback) {
    const json::Value* value = object.find(name);
    if (value == nullptr || value->is_null()) return fallback;
    if (!value->is_bool()) return wrong(path, "\"" + std::string(name) + "\" must be true or false");
    return value->as_bool();
  }
  static Result<std::optional<int64_t>> count_field(const json::Value& object, const std::string& path,
                                                    std::string_view name) {
    const json::Value* value = object.find(name);
    if (value == nullptr || value->is_null()) return std::optional<int64_t>();
    if (!value->is_int() || value->as_int() < 0 || value->as_int() > kMaxTagNumber) {
      return wrong(path, "\"" + std::string(name) + "\" must be a count from 0 to 2147483647");
    }
    return std::optional(value->as_int());
  }
  static Result<const json::Value*> list_field(const json::Value& object, const std::string& path,
                                               std::string_view name) {
    const json::Value* value = object.find(name);
    if (value == nullptr || !value->is_array()) return wrong(path, "\"" + std::string(name) + "\" must be a list");
    return value;
  }
  // A list of strings that are not empty; nothing if the field is not there.
  static Result<std::vector<std::string>> texts_field(const json::Value& object, const std::string& path,
                                                      std::string_view name) {
    const json::Value* value = object.find(name);
    std::vector<std::string> out;
    if (value == nullptr || value->is_null()) return out;
    if (!value->is_array()) return wrong(path, "\"" + std::string(name) + "\" must be a list of strings");
    for (const json::Value& text : value->as_array()) {
      if (!text.is_string() || text.as_string().empty()) {
        return wrong(path, "\"" + std::string(name) + "\" must be a list of strings that are not empty");
      }
      out.push_back(text.as_string());
    }
    return out;
  }

  // A token by id or text; also written as {"type": "token", "token": ...}.
  Result<int32_t> token(const json::Value& value, const std::string& path) const {
    const json::Value* id = value.is_object() ? value.find("token") : &value;
    if (value.is_object()) QUIRE_TRY(check_fields(value, path, {"token"}));
    if (id != nullptr && id->is_int() && id->as_int() >= 0 && id->as_int() <= kMaxTagNumber) {
      return static_cast<int32_t>(id->as_int());
    }
    if (id == nullptr || !id->is_string()) return wrong(path, "a token is written as its id or as its text");
    const std::optional<int32_t> found = special_.find(id->as_string());
    if (!found) return wrong(path, "the model has no special token \"" + id->as_string() + "\"");
    return *found;
  }
  Result<std::vector<int32_t>> tokens_field(const json::Value& object, const std::string& path,
                                            std::string_view name) const {
    std::vector<int32_t> out;
    const json::Value* value = object.find(name);
    if (value == nullptr || value->is_null()) return out;
    if (!value->is_array()) return wrong(path, "\"" + std::string(name) + "\" must be a list of tokens");
    for (const json::Value& each : value->as_array()) {
      QUIRE_ASSIGN(const int32_t id, token(each, path));
      out.push_back(id);
    }
    return out;
  }

  Result<Symbol> format(const json::Value& value, const std::string& path, const Ends& ends, int depth) {
    if (depth > kMaxFormatDepth) return wrong(utf8::beginning(path, 200), "it is nested too deeply");
    QUIRE_TRY(grammar_.status());
    if (!value.is_object()) return wrong(path, "a format must be an object");
    const json::Value* type = value.find("type");
    if (type == nullptr || !type->is_string()) return wrong(path, "a format needs a \"type\"");
    using Reader = Result<Symbol> (TagReader::*)(const json::Value&, const std::string&, const Ends&, int);
    static const std::map<std::string_view, Reader> kReaders = {
        {"const_string", &TagReader::const_string},
        {"json_schema", &TagReader::json_schema},
        {"qwen_xml_parameter", &TagReader::json_schema},
        {"grammar", &TagReader::grammar},
        {"regex", &TagReader::regex},
        {"any_text", &TagReader::any_text},
        {"sequence", &TagReader::elements},
        {"or", &TagReader::elements},
        {"optional", &TagReader::repeated},
        {"plus", &TagReader::repeated},
        {"star", &TagReader::repeated},
        {"repeat", &TagReader::repeated},
        {"tag", &TagReader::tag},
        {"triggered_tags", &TagReader::triggered_tags},
        {"tags_with_separator", &TagReader::tags_with_separator},
        {"dispatch", &TagReader::dispatch},
        {"token", &TagReader::one_token},
        {"exclude_token", &TagReader::exclude_token},
        {"any_tokens", &TagReader::any_tokens},
        {"token_triggered_tags", &TagReader::token_triggered_tags},
        {"token_dispatch", &TagReader::token_dispatch},
    };
    const auto reader = kReaders.find(type->as_string());
    if (reader == kReaders.end()) return wrong(path, "the format \"" + type->as_string() + "\" is not known");
    return (this->*reader->second)(value, path, ends, depth + 1);
  }

  Result<Symbol> const_string(const json::Value& value, const std::string& path, const Ends&, int) {
    QUIRE_TRY(check_fields(value, path, {"value"}));
    QUIRE_ASSIGN(const std::string text, text_field(value, path, "value"));
    return add_marked_literal(grammar_, text, special_);
  }

  Result<Symbol> json_schema(const json::Value& value, const std::string& path, const Ends&, int) {
    QUIRE_TRY(check_fields(value, path, {"json_schema", "style", "any_order", "excludes"}));
    const json::Value* schema = value.find("json_schema");
    if (schema == nullptr || !(schema->is_object() || schema->is_bool())) {
      return wrong(path, "\"json_schema\" must be a JSON Schema");
    }
    QUIRE_ASSIGN(const std::vector<std::string> excludes, texts_field(value, path, "excludes"));
    if (!excludes.empty()) return wrong(path, "\"excludes\" is not supported for JSON");
    JsonOptions options = options_;
    if (value.find("type")->as_string() == "qwen_xml_parameter") options.style = "qwen_xml";
    if (value.find("style") != nullptr) {
      QUIRE_ASSIGN(options.style, text_field(value, path, "style"));
    }
    QUIRE_ASSIGN(options.any_order, bool_field(value, path, "any_order", options.any_order));
    return add_json_schema(grammar_, *schema, options);
  }

  Result<Symbol> grammar(const json::Value& value, const std::string& path, const Ends&, int) {
    QUIRE_TRY(check_fields(value, path, {"grammar"}));
    QUIRE_ASSIGN(const std::string text, text_field(value, path, "grammar"));
    return add_grammar_text(grammar_, text, special_);
  }

  Result<Symbol> regex(const json::Value& value, const std::string& path, const Ends&, int) {
    QUIRE_TRY(check_fields(value, path, {"pattern"}));
    QUIRE_ASSIGN(const std::string pattern, text_field(value, path, "pattern"));
    QUIRE_ASSIGN(const Regex regex, parse_regex(store_, pattern));
    return grammar_.terminal(regex);
  }

  // Text in which neither the excluded strings nor the ends of the tag around it occur.
  Regex free_text(const Ends& ends, std::vector<std::string> excludes) {
    excludes.insert(excludes.end(), ends.texts.begin(), ends.texts.end());
    return excludes.empty() ? store_.any_text() : store_.text_without(excludes);
  }

  Result<Symbol> any_text(const json::Value& value, const std::string& path, const Ends& ends, int) {
    QUIRE_TRY(check_fields(value, path, {"excludes", "max_chars", "max_tokens"}));
    QUIRE_ASSIGN(const std::vector<std::string> excludes, texts_field(value, path, "excludes"));
    QUIRE_ASSIGN(const std::optional<int64_t> max_chars, count_field(value, path, "max_chars"));
    QUIRE_ASSIGN(const std::optional<int64_t> max_tokens, count_field(value, path, "max_tokens"));
    if (max_tokens) return wrong(path, "\"max_tokens\" of any_text is not supported; use \"max_chars\"");
    Regex text = free_text(ends, excludes);
    if (max_chars) text = store_.both(text, store_.repeat(store_.any_char(), 0, *max_chars));
    return grammar_.terminal(text);
  }

  Result<Symbol> elements(const json::Value& value, const std::string& path, const Ends& ends, int depth) {
    QUIRE_TRY(check_fields(value, path, {"elements"}));
    QUIRE_ASSIGN(const json::Value* list, list_field(value, path, "elements"));
    if (list->as_array().empty()) return wrong(path, "\"elements\" must not be empty");
    std::vector<Symbol> parts;
    for (size_t i = 0; i < list->as_array().size(); ++i) {
      QUIRE_ASSIGN(const Symbol part,
                   format(list->as_array()[i], path + "/elements/" + std::to_string(i), ends, depth));
      parts.push_back(part);
    }
    const bool sequence = value.find("type")->as_string() == "sequence";
    return sequence ? grammar_.sequence(parts) : grammar_.choice(parts);
  }

  Result<Symbol> repeated(const json::Value& value, const std::string& path, const Ends& ends, int depth) {
    const std::string& type = value.find("type")->as_string();
    if (type != "repeat") QUIRE_TRY(check_fields(value, path, {"content"}));
    QUIRE_TRY(check_fields(value, path, {"content", "min", "max"}));
    int64_t min = type == "plus" ? 1 : 0;
    std::optional<int64_t> max;
    if (type == "optional") max = 1;
    if (type == "repeat") {
      QUIRE_ASSIGN(const std::optional<int64_t> least, count_field(value, path, "min"));
      if (!least) return wrong(path, "\"min\" is missing");
      min = *least;
      const json::Value* most = value.find("max");
      if (most == nullptr || !most->is_int()) return wrong(path, "\"max\" must be a count, or -1 for no bound");
      if (most->as_int() != -1) {
        QUIRE_ASSIGN(max, count_field(value, path, "max"));
        if (*max < min) return wrong(path, "\"max\" is less than \"min\"");
      }
    }
    const json::Value* content = value.find("content");
    if (content == nullptr) return wrong(path, "\"content\" is missing");
    QUIRE_ASSIGN(const Symbol symbol, format(*content, path + "/content", ends, depth));
    return grammar_.repeat(symbol, min, max);
  }

  // The ends of a tag: a string, a list of strings, or a token.
  Result<Symbol> tag_end(const json::Value& value, const std::string& path, Ends& ends) {
    const json::Value* end = value.find("end");
    if (end == nullptr) return wrong(path, "\"end\" is missing");
    if (end->is_object()) {
      QUIRE_ASSIGN(const int32_t id, token(*end, path + "/end"));
      ends.tokens.push_back(id);
      return single_token(grammar_, id);
    }
    std::vector<Symbol> options;
    const json::Array one = {*end};
    for (const json::Value& text : end->is_array() ? end->as_array() : one) {
      if (!text.is_string()) return wrong(path, "\"end\" must be a string, a list of strings or a token");
      const std::string& marker = text.as_string();
      const std::vector<Piece> pieces = pieces_of(marker, special_);
      if (!marker.empty() && !has_token(marker, special_)) ends.texts.push_back(marker);
      if (!pieces.empty() && pieces[0].token) ends.tokens.push_back(*pieces[0].token);
      options.push_back(add_marked_literal(grammar_, marker, special_));
    }
    if (options.empty()) return wrong(path, "\"end\" must not be an empty list");
    return grammar_.choice(options);
  }

  // What follows the begin of a tag.
  Result<Symbol> tag_rest(const json::Value& value, const std::string& path, int depth) {
    QUIRE_TRY(check_fields(value, path, {"begin", "content", "end"}));
    Ends ends;
    QUIRE_ASSIGN(const Symbol end, tag_end(value, path, ends));
    const json::Value* content = value.find("content");
    if (content == nullptr) return wrong(path, "\"content\" is missing");
    QUIRE_ASSIGN(const Symbol inside, format(*content, path + "/content", ends, depth));
    return grammar_.sequence({inside, end});
  }

  Result<Symbol> tag(const json::Value& value, const std::string& path, const Ends&, int depth) {
    QUIRE_ASSIGN(const Symbol rest, tag_rest(value, path, depth));
    const json::Value* begin = value.find("begin");
    if (begin != nullptr && begin->is_object()) {
      QUIRE_ASSIGN(const int32_t id, token(*begin, path + "/begin"));
      return grammar_.sequence({single_token(grammar_, id), rest});
    }
    QUIRE_ASSIGN(const std::string text, text_field(value, path, "begin"));
    return grammar_.sequence({add_marked_literal(grammar_, text, special_), rest});
  }

  Result<std::vector<Symbol>> all_tags(const json::Value& list, const std::string& path, const Ends& ends, int depth) {
    std::vector<Symbol> out;
    for (size_t i = 0; i < list.as_array().size(); ++i) {
      const std::string tag_path = path + "/tags/" + std::to_string(i);
      QUIRE_TRY(check_is_tag(list.as_array()[i], tag_path));
      QUIRE_ASSIGN(const Symbol symbol, tag(list.as_array()[i], tag_path, ends, depth));
      out.push_back(symbol);
    }
    if (out.empty()) return wrong(path, "\"tags\" must not be empty");
    return out;
  }

  static Status check_is_tag(const json::Value& value, const std::string& path) {
    const json::Value* type = value.is_object() ? value.find("type") : nullptr;
    const bool untyped = value.is_object() && type == nullptr;
    if (untyped || (type != nullptr && type->is_string() && type->as_string() == "tag")) return {};
    return wrong(path, "it must be a format of type \"tag\"");
  }

  Result<Symbol> tags_with_separator(const json::Value& value, const std::string& path, const Ends& ends, int depth) {
    QUIRE_TRY(check_fields(value, path, {"tags", "separator", "at_least_one", "stop_after_first"}));
    QUIRE_ASSIGN(const json::Value* list, list_field(value, path, "tags"));
    QUIRE_ASSIGN(const std::vector<Symbol> tags, all_tags(*list, path, ends, depth));
    QUIRE_ASSIGN(const std::string separator, text_field(value, path, "separator"));
    QUIRE_ASSIGN(const bool at_least_one, bool_field(value, path, "at_least_one", false));
    QUIRE_ASSIGN(const bool stop_after_first, bool_field(value, path, "stop_after_first", false));
    const Symbol any = grammar_.choice(tags);
    Symbol out = any;
    if (!stop_after_first) {
      out = grammar_.rule("tags");
      grammar_.add_production(out, {any});
      grammar_.add_production(out, {out, add_marked_literal(grammar_, separator, special_), any});
    }
    return at_least_one ? out : grammar_.optional(out);
  }

  // Texts in which no trigger is complete before the end, and in which `forbidden` does not occur at all.
  Regex ends_with_first_trigger(const std::vector<std::string>& triggers, const std::vector<std::string>& forbidden) {
    std::vector<Regex> any_trigger, any_forbidden;
    for (const std::string& text : triggers) any_trigger.push_back(store_.literal(text));
    for (const std::string& text : forbidden) any_forbidden.push_back(store_.literal(text));
    const Regex all = store_.anything();
    const std::vector<Regex> earlier = {all, store_.either(any_trigger), store_.bytes(ByteSet::all()), all};
    const Regex first = store_.complement(store_.concat(earlier));
    if (forbidden.empty()) return first;
    const std::vector<Regex> inside = {all, store_.either(any_forbidden), all};
    return store_.both(first, store_.complement(store_.concat(inside)));
  }

  struct Loop {
    std::vector<std::string> triggers;  // also those that no branch has
    std::vector<std::string> excludes;
    bool loop = true;
    bool at_least_one = false;  // begins with a branch, without free text before it
  };

  // Free text, then a branch, and so on.
  Symbol free_text_with(const std::vector<Branch>& branches, const Loop& loop, const Ends& ends) {
    std::vector<std::string> forbidden = loop.excludes;
    forbidden.insert(forbidden.end(), ends.texts.begin(), ends.texts.end());
    std::vector<std::string> triggers;
    for (const std::string& trigger : loop.triggers) {
      if (!has_token(trigger, special_)) triggers.push_back(trigger);
    }
    std::vector<std::string> all = forbidden;
    all.insert(all.end(), triggers.begin(), triggers.end());
    const Symbol free = grammar_.terminal(all.empty() ? store_.any_text() : store_.text_without(all));
    const Regex first = ends_with_first_trigger(triggers, forbidden);
    // The branches of one trigger share its terminal.
    std::map<std::string, std::vector<Symbol>> by_trigger;
    for (const Branch& branch : branches) by_trigger[branch.trigger].push_back(branch.rest);
    std::vector<Symbol> after_text, at_once;
    for (const auto& [trigger, rests] : by_trigger) {
      const Symbol rest = grammar_.choice(rests);
      const Symbol marker = add_marked_literal(grammar_, trigger, special_);
      at_once.push_back(grammar_.sequence({marker, rest}));
      if (has_token(trigger, special_)) {
        after_text.push_back(grammar_.sequence({free, marker, rest}));
      } else {
        const Regex text = store_.concat(store_.any_text(), store_.literal(trigger));
        const Symbol found = grammar_.terminal(store_.both(text, first));
        after_text.push_back(grammar_.sequence({found, rest}));
      }
    }
    return looped(grammar_.choice(after_text), grammar_.choice(at_once), free, loop);
  }

  Symbol looped(Symbol after_text, Symbol at_once, Symbol free, const Loop& loop) {
    if (!loop.loop) return loop.at_least_one ? at_once : grammar_.choice({after_text, free});
    const Symbol more = grammar_.sequence({grammar_.repeat(after_text, 0), free});
    return loop.at_least_one ? grammar_.sequence({at_once, more}) : more;
  }

  Status read_flags(const json::Value& value, const std::string& path, Loop& loop) {
    QUIRE_ASSIGN(loop.at_least_one, bool_field(value, path, "at_least_one", false));
    QUIRE_ASSIGN(const bool stop_after_first, bool_field(value, path, "stop_after_first", false));
    loop.loop = !stop_after_first;
    return {};
  }

  Result<Symbol> triggered_tags(const json::Value& value, const std::string& path, const Ends& ends, int depth) {
    QUIRE_TRY(check_fields(value, path, {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}));
    Loop loop;
    QUIRE_TRY(read_flags(value, path, loop));
    QUIRE_ASSIGN(loop.excludes, texts_field(value, path, "excludes"));
    QUIRE_ASSIGN(const std::vector<std::string> triggers, texts_field(value, path, "triggers"));
    if (triggers.empty()) return wrong(path, "\"triggers\" must have at least one string");
    QUIRE_ASSIGN(const json::Value* tags, list_field(value, path, "tags"));
    if (tags->as_array().empty()) return wrong(path, "\"tags\" must not be empty");
    std::vector<Branch> branches;
    loop.triggers = triggers;
    for (size_t i = 0; i < tags->as_array().size(); ++i) {
      const std::string tag_path = path + "/tags/" + std::to_string(i);
      const json::Value& each = tags->as_array()[i];
      QUIRE_TRY(check_is_tag(each, tag_path));
      QUIRE_ASSIGN(const std::string begin, text_field(each, tag_path, "begin"));
      QUIRE_ASSIGN(const Symbol rest, tag_rest(each, tag_path, depth));
      QUIRE_ASSIGN(Branch branch, branch_of(begin, triggers, rest, tag_path));
      loop.triggers.push_back(branch.trigger);
      branches.push_back(std::move(branch));
    }
    std::ranges::sort(loop.triggers);
    loop.triggers.erase(std::unique(loop.triggers.begin(), loop.triggers.end()), loop.triggers.end());
    return free_text_with(branches, loop, ends);
  }

  // Cuts the begin of a tag after its trigger. The shortest trigger is complete first. If it ends inside the text of a
  // special token, it is the whole token that triggers.
  Result<Branch> branch_of(const std::string& begin, const std::vector<std::string>& triggers, Symbol rest,
                           const std::string& path) {
    size_t size = 0;
    for (const std::string& trigger : triggers) {
      if (begin.starts_with(trigger) && (size == 0 || trigger.size() < size)) size = trigger.size();
    }
    if (size == 0) return wrong(path, "no trigger is the beginning of \"" + begin + "\"");
    size_t end = 0;
    for (const Piece& piece : pieces_of(begin, special_)) {
      if (!piece.token && end + piece.text.size() >= size) {
        end = size;
      } else {
        end += piece.text.size();
      }
      if (end >= size) break;
    }
    const Symbol after = add_marked_literal(grammar_, std::string_view(begin).substr(end), special_);
    return Branch{begin.substr(0, end), grammar_.sequence({after, rest})};
  }

  Result<Symbol> dispatch(const json::Value& value, const std::string& path, const Ends& ends, int depth) {
    QUIRE_TRY(check_fields(value, path, {"rules", "loop", "excludes"}));
    Loop loop;
    QUIRE_ASSIGN(loop.loop, bool_field(value, path, "loop", true));
    QUIRE_ASSIGN(loop.excludes, texts_field(value, path, "excludes"));
    QUIRE_ASSIGN(const json::Value* rules, list_field(value, path, "rules"));
    std::vector<Branch> branches;
    for (size_t i = 0; i < rules->as_array().size(); ++i) {
      const std::string rule_path = path + "/rules/" + std::to_string(i);
      QUIRE_ASSIGN(const json::Value* pattern, rule_pattern(rules->as_array()[i], rule_path));
      if (!pattern->is_string() || pattern->as_string().empty()) {
        return wrong(rule_path, "the pattern must be a string that is not empty");
      }
      QUIRE_ASSIGN(const Symbol rest, format(rules->as_array()[i].as_array()[1], rule_path + "/1", {}, depth));
      branches.push_back({pattern->as_string(), rest});
      loop.triggers.push_back(pattern->as_string());
    }
    if (branches.empty()) return wrong(path, "\"rules\" must not be empty");
    return free_text_with(branches, loop, ends);
  }

  static Result<const json::Value*> rule_pattern(const json::Value& rule, const std::string& path) {
    if (!rule.is_array() || rule.as_array().size() != 2) return wrong(path, "a rule is written [pattern, format]");
    return &rule.as_array()[0];
  }

  Result<Symbol> one_token(const json::Value& value, const std::string& path, const Ends&, int) {
    QUIRE_ASSIGN(const int32_t id, token(value, path));
    return single_token(grammar_, id);
  }

  Symbol any_token_but(std::vector<int32_t> ids, const Ends& ends) {
    ids.insert(ids.end(), ends.tokens.begin(), ends.tokens.end());
    std::ranges::sort(ids);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    TokenSet set{.ranges = {}, .inverted = true};
    for (const int32_t id : ids) set.ranges.emplace_back(id, id);
    return grammar_.token(std::move(set));
  }

  Result<Symbol> exclude_token(const json::Value& value, const std::string& path, const Ends& ends, int) {
    QUIRE_TRY(check_fields(value, path, {"exclude_tokens"}));
    QUIRE_ASSIGN(const std::vector<int32_t> excluded, tokens_field(value, path, "exclude_tokens"));
    return any_token_but(excluded, ends);
  }

  Result<Symbol> any_tokens(const json::Value& value, const std::string& path, const Ends& ends, int) {
    QUIRE_TRY(check_fields(value, path, {"exclude_tokens", "max_tokens"}));
    QUIRE_ASSIGN(const std::vector<int32_t> excluded, tokens_field(value, path, "exclude_tokens"));
    QUIRE_ASSIGN(const std::optional<int64_t> max_tokens, count_field(value, path, "max_tokens"));
    return grammar_.repeat(any_token_but(excluded, ends), 0, max_tokens);
  }

  // Tokens, then a branch that begins with its trigger token, and so on.
  Symbol tokens_with(const std::map<int32_t, std::vector<Symbol>>& branches, std::vector<int32_t> excluded,
                     const Loop& loop, const Ends& ends) {
    std::vector<Symbol> at_once;
    for (const auto& [id, rests] : branches) {
      at_once.push_back(grammar_.sequence({single_token(grammar_, id), grammar_.choice(rests)}));
      excluded.push_back(id);
    }
    const Symbol free = grammar_.repeat(any_token_but(std::move(excluded), ends), 0);
    const Symbol branch = grammar_.choice(at_once);
    return looped(grammar_.sequence({free, branch}), branch, free, loop);
  }

  Result<Symbol> token_triggered_tags(const json::Value& value, const std::string& path, const Ends& ends, int depth) {
    QUIRE_TRY(
        check_fields(value, path, {"trigger_tokens", "tags", "exclude_tokens", "at_least_one", "stop_after_first"}));
    Loop loop;
    QUIRE_TRY(read_flags(value, path, loop));
    QUIRE_ASSIGN(std::vector<int32_t> excluded, tokens_field(value, path, "exclude_tokens"));
    QUIRE_ASSIGN(const std::vector<int32_t> triggers, tokens_field(value, path, "trigger_tokens"));
    QUIRE_ASSIGN(const json::Value* tags, list_field(value, path, "tags"));
    if (tags->as_array().empty()) return wrong(path, "\"tags\" must not be empty");
    excluded.insert(excluded.end(), triggers.begin(), triggers.end());
    std::map<int32_t, std::vector<Symbol>> branches;
    for (size_t i = 0; i < tags->as_array().size(); ++i) {
      const std::string tag_path = path + "/tags/" + std::to_string(i);
      const json::Value& each = tags->as_array()[i];
      QUIRE_TRY(check_is_tag(each, tag_path));
      const json::Value* begin = each.find("begin");
      if (begin == nullptr) return wrong(tag_path, "\"begin\" is missing");
      QUIRE_ASSIGN(const int32_t id, token(*begin, tag_path + "/begin"));
      if (std::ranges::find(triggers, id) == triggers.end()) {
        return wrong(tag_path, "\"begin\" is not one of the \"trigger_tokens\"");
      }
      QUIRE_ASSIGN(const Symbol rest, tag_rest(each, tag_path, depth));
      branches[id].push_back(rest);
    }
    return tokens_with(branches, std::move(excluded), loop, ends);
  }

  Result<Symbol> token_dispatch(const json::Value& value, const std::string& path, const Ends& ends, int depth) {
    QUIRE_TRY(check_fields(value, path, {"rules", "loop", "exclude_tokens"}));
    Loop loop;
    QUIRE_ASSIGN(loop.loop, bool_field(value, path, "loop", true));
    QUIRE_ASSIGN(std::vector<int32_t> excluded, tokens_field(value, path, "exclude_tokens"));
    QUIRE_ASSIGN(const json::Value* rules, list_field(value, path, "rules"));
    if (rules->as_array().empty()) return wrong(path, "\"rules\" must not be empty");
    std::map<int32_t, std::vector<Symbol>> branches;
    for (size_t i = 0; i < rules->as_array().size(); ++i) {
      const std::string rule_path = path + "/rules/" + std::to_string(i);
      QUIRE_ASSIGN(const json::Value* pattern, rule_pattern(rules->as_array()[i], rule_path));
      QUIRE_ASSIGN(const int32_t id, token(*pattern, rule_path));
      QUIRE_ASSIGN(const Symbol rest, format(rules->as_array()[i].as_array()[1], rule_path + "/1", {}, depth));
      branches[id].push_back(rest);
    }
    return tokens_with(branches, std::move(excluded), loop, ends);
  }

  // {"structures": [{"begin", "schema", "end"}], "triggers": [...]}
  Result<Symbol> older(const json::Value& tag) {
    QUIRE_TRY(check_fields(tag, "", {"structures", "triggers"}));
    QUIRE_ASSIGN(const json::Value* structures, list_field(tag, "", "structures"));
    json::Array tags;
    for (size_t i = 0; i < structures->as_array().size(); ++i) {
      const std::string path = "/structures/" + std::to_string(i);
      const json::Value& each = structures->as_array()[i];
      if (!each.is_object()) return wrong(path, "it must be an object with \"begin\", \"schema\" and \"end\"");
      QUIRE_TRY(check_fields(each, path, {"begin", "schema", "end"}));
      QUIRE_ASSIGN(const std::string begin, text_field(each, path, "begin"));
      QUIRE_ASSIGN(const std::string end, text_field(each, path, "end"));
      const json::Value* schema = each.find("schema");
      if (schema == nullptr) return wrong(path, "\"schema\" is missing");
      json::Value content{json::Object{{"type", "json_schema"}, {"json_schema", *schema}}};
      tags.push_back(json::Object{{"begin", begin}, {"content", std::move(content)}, {"end", end}});
    }
    const json::Value* triggers = tag.find("triggers");
    const json::Value newer{json::Object{{"type", "triggered_tags"},
                                         {"triggers", triggers != nullptr ? *triggers : json::Value()},
                                         {"tags", std::move(tags)}}};
    return format(newer, "", {}, 0);
  }

  Grammar& grammar_;
  RegexStore& store_;
  const JsonOptions& options_;
  const SpecialTokens& special_;
};

}  // namespace

Symbol add_marked_literal(Grammar& grammar, std::string_view text, const SpecialTokens& special) {
  std::vector<Symbol> parts;
  for (const Piece& piece : pieces_of(text, special)) {
    parts.push_back(piece.token ? single_token(grammar, *piece.token) : grammar.literal(piece.text));
  }
  return grammar.sequence(parts);
}

Result<Symbol> add_structural_tag(Grammar& grammar, const json::Value& tag, const JsonOptions& options,
                                  const SpecialTokens& special) {
  return TagReader(grammar, options, special).read(tag);
}

}  // namespace quire::grammar
