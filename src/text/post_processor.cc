// SPDX-License-Identifier: Apache-2.0
// The post-processors of tokenizer.json, reduced to the tokens that they add before and after one text.
#include "text/parts.h"
#include "text/section.h"

namespace quire::text {

namespace {

Result<std::vector<int32_t>> special_token_ids(const json::Value& section, const std::string& name) {
  const json::Value* table = section.find("special_tokens");
  const json::Value* entry = table == nullptr ? nullptr : table->find(name);
  const json::Value* ids = entry == nullptr ? nullptr : entry->find("ids");
  if (ids == nullptr || !ids->is_array()) {
    return corrupt({"post_processor.special_tokens has no ids for \"", name, "\""});
  }
  std::vector<int32_t> out;
  for (const json::Value& id : ids->as_array()) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > 0x7fffffff) {
      return corrupt({"post_processor.special_tokens has an id for \"", name, "\" that is not a token id"});
    }
    out.push_back(static_cast<int32_t>(id.as_int()));
  }
  return out;
}

// The template for two texts; a file may lack it. One that does not have both texts once, in order, is left out.
Status read_pair(const json::Value& section, PostProcessor& out) {
  const json::Value* pair = section.find("pair");
  if (pair == nullptr || !pair->is_array()) return {};
  std::vector<PairPart> parts;
  int seen = 0;
  for (const json::Value& item : pair->as_array()) {
    const json::Value* text = item.find("Sequence");
    const json::Value* token = item.find("SpecialToken");
    if (text == nullptr && token == nullptr) {
      return corrupt("post_processor.pair has an item that is neither Sequence nor SpecialToken");
    }
    PairPart part;
    const json::Value& value = text != nullptr ? *text : *token;
    QUIRE_ASSIGN(const std::string name, json::get_string(value, "id"));
    QUIRE_ASSIGN(const int64_t type, json::get_int_or(value, "type_id", 0, 0, 1 << 20));
    part.type = static_cast<int32_t>(type);
    if (text != nullptr) {
      part.text = name == "A" ? 1 : 2;
      if (part.text != ++seen) return {};
    } else {
      QUIRE_ASSIGN(part.special, special_token_ids(section, name));
    }
    parts.push_back(std::move(part));
  }
  if (seen == 2) out.pair = std::move(parts);
  return {};
}

Result<PostProcessor> read_template(const json::Value& section) {
  const json::Value* single = section.find("single");
  if (single == nullptr || !single->is_array()) return corrupt("post_processor.single must be a list");
  PostProcessor out;
  out.keeps_text = false;
  for (const json::Value& item : single->as_array()) {
    if (item.find("Sequence") != nullptr) {
      if (out.keeps_text) return unsupported("post_processor.single repeats the text, which quire does not support");
      out.keeps_text = true;
    } else if (const json::Value* token = item.find("SpecialToken"); token != nullptr) {
      QUIRE_ASSIGN(const std::string name, json::get_string(*token, "id"));
      QUIRE_ASSIGN(const std::vector<int32_t> ids, special_token_ids(section, name));
      auto& side = out.keeps_text ? out.after : out.before;
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      return corrupt("post_processor.single has an item that is neither Sequence nor SpecialToken");
    }
  }
  QUIRE_TRY(read_pair(section, out));
  return out;
}

// ["[CLS]", 101]
Result<int32_t> token_pair(const json::Value& section, const char* field) {
  const json::Value* pair = section.find(field);
  if (pair == nullptr || !pair->is_array() || pair->as_array().size() != 2 || !pair->as_array()[1].is_int()) {
    return corrupt({"post_processor.", field, " must be [token, id]"});
  }
  const int64_t id = pair->as_array()[1].as_int();
  if (id < 0 || id > 0x7fffffff) return corrupt({"post_processor.", field, " has no token id"});
  return static_cast<int32_t>(id);
}

Result<PostProcessor> read_post_processor(const json::Value* section, int depth) {
  PostProcessor out;
  if (section == nullptr || section->is_null()) return out;
  if (!section->is_object()) return corrupt("post_processor must be an object or null");
  if (depth > kMaxNesting) return corrupt("post_processor has sequences nested too deeply");
  QUIRE_ASSIGN(const std::string type, json::get_string(*section, "type"));
  if (type == "ByteLevel") return out;
  if (type == "TemplateProcessing") return read_template(*section);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    QUIRE_ASSIGN(const int32_t cls, token_pair(*section, "cls"));
    QUIRE_ASSIGN(const int32_t sep, token_pair(*section, "sep"));
    out.before = {cls};
    out.after = {sep};
    const bool roberta = type == "RobertaProcessing";  // two separators, and no token types
    out.pair = {{0, {cls}},
                {1},
                {0, roberta ? std::vector<int32_t>{sep, sep} : std::vector<int32_t>{sep}},
                {2, {}, roberta ? 0 : 1},
                {0, {sep}, roberta ? 0 : 1}};
    return out;
  }
  if (type == "Sequence") {
    const json::Value* list = section->find("processors");
    if (list == nullptr || !list->is_array()) return corrupt("post_processor.processors must be a list");
    for (const json::Value& item : list->as_array()) {  // each wraps the result of the previous ones
      QUIRE_ASSIGN(PostProcessor outer, read_post_processor(&item, depth + 1));
      if (outer.keeps_text) {
        outer.before.insert(outer.before.end(), out.before.begin(), out.before.end());
        outer.after.insert(outer.after.begin(), out.after.begin(), out.after.end());
        outer.keeps_text = out.keeps_text;
        if (outer.pair.empty()) outer.pair = std::move(out.pair);
      }
      out = std::move(outer);
    }
    return out;
  }
  return unsupported({"post_processor has the type \"", type, "\", which quire does not support"});
}

}  // namespace

Result<PostProcessor> make_post_processor(const json::Value* section) {
  return read_post_processor(section, 0);
}

}  // namespace quire::text
