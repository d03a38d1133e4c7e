// SPDX-License-Identifier: Apache-2.0
// Receipts as JSON. The digest is made from the value as read, not from its text, so that the order of members and
// white space do not count.
#include "llm/receipt.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

#include "base/digest.h"
#include "sampling/param_table.h"

namespace quire::llm {
namespace {

using json::Value;
using sampling::ParamInfo;
using sampling::SamplingParams;

Failure wrong(const std::string& member, const char* wanted) {
  return corrupt({"the receipt's ", member, " is missing or is not ", wanted});
}

// The settings that choose among answers and not among tokens, or that only add to the reply.
bool is_left_out(const ParamInfo& info) {
  const std::string_view name = info.name;
  return name == "n" || name == "logprobs" || name == "prompt_logprobs";
}

template <typename List>
Value list_json(const List& list) {
  json::Array out;
  for (const auto& item : list) out.emplace_back(item);
  return out;
}
Value ids_json(const std::vector<int32_t>& ids) {
  json::Array out;
  out.reserve(ids.size());
  for (const int32_t id : ids) out.emplace_back(int64_t{id});
  return out;
}

Status read(const Value& value, const std::string& name, std::vector<int32_t>& to) {
  if (!value.is_array()) return wrong(name, "a list of token ids");
  to.reserve(value.as_array().size());
  for (const Value& item : value.as_array()) {
    if (!item.is_int() || item.as_int() < 0 || item.as_int() > std::numeric_limits<int32_t>::max()) {
      return wrong(name, "a list of token ids");
    }
    to.push_back(static_cast<int32_t>(item.as_int()));
  }
  return {};
}
Status read(const Value& value, const std::string& name, std::vector<std::string>& to) {
  if (!value.is_array()) return wrong(name, "a list of strings");
  for (const Value& item : value.as_array()) {
    if (!item.is_string()) return wrong(name, "a list of strings");
    to.push_back(item.as_string());
  }
  return {};
}
template <typename T>
Status read(const Value& value, const std::string& name, SharedList<T>& to) {
  std::vector<T> items;
  QUIRE_TRY(read(value, name, items));
  to = std::move(items);
  return {};
}
Status read(const Value& value, const std::string& name, std::string& to) {
  if (!value.is_string()) return wrong(name, "a string");
  to = value.as_string();
  return {};
}
Status read(const Value& value, const std::string& name, bool& to) {
  if (!value.is_bool()) return wrong(name, "true or false");
  to = value.as_bool();
  return {};
}
Status read(const Value& value, const std::string& name, int64_t& to) {
  if (!value.is_int()) return wrong(name, "an integer");
  to = value.as_int();
  return {};
}
Status read(const Value& value, const std::string& name, double& to) {
  if (!value.is_number()) return wrong(name, "a number");
  to = value.as_double();
  return {};
}
// A list of [token id, bias].
Status read(const Value& value, const std::string& name, sampling::LogitBias& to) {
  constexpr const char* kWanted = "a list of token ids with their biases";
  if (!value.is_array()) return wrong(name, kWanted);
  std::vector<std::pair<int32_t, float>> entries;
  for (const Value& item : value.as_array()) {
    if (!item.is_array() || item.as_array().size() != 2 || !item.as_array()[1].is_number()) return wrong(name, kWanted);
    std::vector<int32_t> id;
    QUIRE_TRY(read(json::Array{item.as_array()[0]}, name, id));
    entries.emplace_back(id[0], static_cast<float>(item.as_array()[1].as_double()));
  }
  to = std::move(entries);
  return {};
}
template <typename T>
Status read(const Value& value, const std::string& name, std::optional<T>& to) {
  if (value.is_null()) return {};
  return read(value, name, to.emplace());
}
template <typename T>
Status read_member(const Value& object, const std::string& name, T& to) {
  const Value* value = object.find(name);
  return value == nullptr ? Status(corrupt({"the receipt's ", name, " is missing"})) : read(*value, name, to);
}

template <typename T>
Value param_json(const T& value) {
  return Value(value);
}
Value param_json(const sampling::LogitBias& biases) {
  json::Array out;
  for (const auto& [token, bias] : biases) {
    out.emplace_back(json::Array{int64_t{token}, static_cast<double>(bias)});
  }
  return out;
}
Value param_json(const sampling::TokenIds& ids) {
  return ids_json(ids);
}
Value param_json(const sampling::Strings& texts) {
  return list_json(texts.get());
}
template <typename T>
Value param_json(const std::optional<T>& value) {
  return value ? Value(param_json(*value)) : Value();
}

// Seeds are strings: they have 64 bits, of which a JavaScript client would round the last ones away.
Value params_json(const SamplingParams& params) {
  Value out{json::Object{}};
  for (const ParamInfo& info : sampling::param_table()) {
    if (is_left_out(info)) continue;
    if (info.member == ParamInfo::Member(&SamplingParams::seed)) {
      out.set(info.name, std::to_string(params.seed.value_or(0)));
    } else {
      std::visit([&](auto member) { out.set(info.name, param_json(params.*member)); }, info.member);
    }
  }
  out.set("eos_token_ids", ids_json(params.eos_token_ids));
  return out;
}

Status read_params(const Value& value, SamplingParams& params) {
  if (!value.is_object()) return wrong("sampling", "an object");
  for (const ParamInfo& info : sampling::param_table()) {
    if (is_left_out(info)) continue;
    if (info.member == ParamInfo::Member(&SamplingParams::seed)) {
      std::string text;
      QUIRE_TRY(read_member(value, info.name, text));
      int64_t seed = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
      if (error != std::errc() || end != text.data() + text.size()) return wrong("seed", "an integer in a string");
      params.seed = seed;
      continue;
    }
    QUIRE_TRY(std::visit([&](auto member) { return read_member(value, info.name, params.*member); }, info.member));
  }
  return read_member(value, "eos_token_ids", params.eos_token_ids);
}

constexpr const char* kKinds[] = {"json", "regex", "choice", "grammar", "structural_tag"};  // of grammar::Spec

// A schema or tag is a text: the order of its members counts, and programs that keep replies as JSON (Postgres' jsonb,
// JavaScript) sort members and write 1.0 as 1. `as_text` is false for receipts that have it as a value.
Value constraint_json(const ConstraintSpec& spec, bool as_text) {
  const ReasoningRules& rules = spec.reasoning;
  if (!spec.grammar && !(rules.starts_inside && rules.token_budget)) return nullptr;
  Value out{json::Object{}};
  out.set("field", spec.field);
  if (spec.grammar) {
    const grammar::Spec& g = *spec.grammar;
    out.set("kind", kKinds[static_cast<size_t>(g.kind)]);
    out.set("json", as_text && !g.json.is_null() ? Value(json::dump(g.json)) : g.json);
    out.set("text", g.text);
    out.set("choice", list_json(g.choice));
    out.set("any_whitespace", g.any_whitespace);
    out.set("additional_properties", g.additional_properties);
    out.set("any_order", g.any_order);
    out.set("whitespace_pattern", param_json(g.whitespace_pattern));
  }
  if (rules.starts_inside) {
    Value reasoning{json::Object{}};
    reasoning.set("ends", list_json(rules.ends));
    reasoning.set("implicit_ends", list_json(rules.implicit_ends));
    reasoning.set("token_budget", param_json(rules.token_budget));
    reasoning.set("forced_end", rules.forced_end);
    out.set("reasoning", std::move(reasoning));
  }
  return out;
}

Status read_constraint(const Value& value, ConstraintSpec& spec) {
  if (value.is_null()) return {};
  if (!value.is_object()) return wrong("constraint", "an object or null");
  QUIRE_TRY(read_member(value, "field", spec.field));
  if (value.find("kind") != nullptr) {
    grammar::Spec& g = spec.grammar.emplace();
    std::string kind;
    QUIRE_TRY(read_member(value, "kind", kind));
    const auto* known = std::find(std::begin(kKinds), std::end(kKinds), kind);
    if (known == std::end(kKinds)) return wrong("constraint.kind", "a kind of constraint");
    g.kind = static_cast<grammar::Spec::Kind>(known - std::begin(kKinds));
    if (const Value* schema = value.find("json")) g.json = *schema;
    if (g.json.is_string()) {
      auto parsed = json::parse(g.json.as_string());
      if (!parsed.ok()) return wrong("constraint.json", "the text of JSON");
      g.json = std::move(*parsed);
    }
    QUIRE_TRY(read_member(value, "text", g.text));
    QUIRE_TRY(read_member(value, "choice", g.choice));
    QUIRE_TRY(read_member(value, "any_whitespace", g.any_whitespace));
    QUIRE_TRY(read_member(value, "additional_properties", g.additional_properties));
    QUIRE_TRY(read_member(value, "any_order", g.any_order));
    QUIRE_TRY(read_member(value, "whitespace_pattern", g.whitespace_pattern));
  }
  if (const Value* reasoning = value.find("reasoning")) {
    ReasoningRules& rules = spec.reasoning;
    rules.starts_inside = true;
    QUIRE_TRY(read_member(*reasoning, "ends", rules.ends));
    QUIRE_TRY(read_member(*reasoning, "implicit_ends", rules.implicit_ends));
    QUIRE_TRY(read_member(*reasoning, "token_budget", rules.token_budget));
    QUIRE_TRY(read_member(*reasoning, "forced_end", rules.forced_end));
  }
  return {};
}

Status read_rows(const Value& value, std::vector<uint64_t>& rows) {
  std::string text;
  QUIRE_TRY(read_member(value, "logits", text));
  if (text.size() % 16 != 0) return wrong("logits", "16 hexadecimal digits for each token");
  for (size_t i = 0; i < text.size(); i += 16) {
    uint64_t row = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 16, row, 16);
    if (error != std::errc() || end != text.data() + i + 16) {
      return wrong("logits", "16 hexadecimal digits for each token");
    }
    rows.push_back(row);
  }
  return {};
}

// Everything but the digest.
Value contents(const Receipt& receipt, bool schema_as_text = true) {
  const Origin& origin = receipt.origin;
  Value out{json::Object{}};
  out.set("version", static_cast<int64_t>(receipt.version));
  out.set("quire", origin.quire);
  out.set("model", origin.model);
  out.set("weights", origin.weights);
  out.set("backend", origin.backend);
  out.set("isa", origin.isa);
  out.set("dtype", origin.dtype);
  out.set("kv_cache_dtype", origin.kv_cache_dtype);
  out.set("max_model_len", origin.max_model_len);
  if (!origin.adapter.empty()) out.set("adapter", origin.adapter);
  out.set("sampling", params_json(receipt.params));
  out.set("constraint", constraint_json(receipt.constraint, schema_as_text));
  out.set("kept_special", ids_json(receipt.kept_special));
  out.set("prompt_token_ids", ids_json(receipt.prompt));
  out.set("token_ids", ids_json(receipt.tokens));
  out.set("finish_reason", receipt.finish);
  std::string rows;
  rows.reserve(16 * receipt.rows.size());
  for (const uint64_t row : receipt.rows) rows += hex_digits(row);
  out.set("logits", std::move(rows));
  return out;
}

// These levels have the same bits (docs/determinism.md).
bool is_plain_isa(const std::string& isa) {
  return isa == "portable" || isa == "avx2" || isa == "avx512";
}

}  // namespace

std::string Origin::difference(const Origin& here) const {
  const auto say = [](const char* what, const std::string& then, const std::string& now, const std::string& flag) {
    return std::string("it was made with ") + what + " " + then + ", and this is " + now + "; pass " + flag;
  };
  if (backend != here.backend) return say("the device", backend, here.backend, "--device " + backend);
  if (isa != here.isa && !(is_plain_isa(isa) && is_plain_isa(here.isa))) {
    if (backend == "cpu") return say("the ISA level", isa, here.isa, "--cpu-isa " + isa);
    return "it was made on " + isa + ", and this is " + here.isa + ", which has other bits; check it on such a machine";
  }
  if (dtype != here.dtype) return say("the type", dtype, here.dtype, "--dtype " + dtype);
  if (kv_cache_dtype != here.kv_cache_dtype) {
    return say("the KV cache type", kv_cache_dtype, here.kv_cache_dtype, "--kv-cache-dtype " + kv_cache_dtype);
  }
  if (max_model_len != here.max_model_len) {
    const std::string length = std::to_string(max_model_len);
    return say("the length", length, std::to_string(here.max_model_len), "--max-model-len " + length);
  }
  return "";
}

json::Value Receipt::to_json() const {
  Value out = contents(*this);
  out.set("digest", digest_of(json::dump(out)).hex());
  return out;
}

Result<ReadReceipt> read_receipt(const json::Value& value) {
  if (!value.is_object()) return corrupt({"the receipt is ", std::string(json::describe(value.kind()))});
  int64_t version = 0;
  QUIRE_TRY(read_member(value, "version", version));
  constexpr auto kNewest = static_cast<int64_t>(sampling::kNewestDigests);
  if (version < 1 || version > kNewest) {
    return unsupported({"the receipt has version ", version, ", and this program reads versions 1 to ", kNewest});
  }
  ReadReceipt out;
  Receipt& receipt = out.receipt;
  receipt.version = static_cast<sampling::RowDigests>(version);
  Origin& origin = receipt.origin;
  std::string digest;
  const std::pair<const char*, std::string*> texts[] = {{"quire", &origin.quire},
                                                        {"model", &origin.model},
                                                        {"weights", &origin.weights},
                                                        {"backend", &origin.backend},
                                                        {"isa", &origin.isa},
                                                        {"dtype", &origin.dtype},
                                                        {"kv_cache_dtype", &origin.kv_cache_dtype},
                                                        {"finish_reason", &receipt.finish},
                                                        {"digest", &digest}};
  for (const auto& [name, to] : texts) QUIRE_TRY(read_member(value, name, *to));
  QUIRE_TRY(read_member(value, "max_model_len", origin.max_model_len));
  if (value.find("adapter") != nullptr) QUIRE_TRY(read_member(value, "adapter", origin.adapter));
  QUIRE_TRY(read_member(value, "kept_special", receipt.kept_special));
  QUIRE_TRY(read_member(value, "prompt_token_ids", receipt.prompt));
  QUIRE_TRY(read_member(value, "token_ids", receipt.tokens));
  QUIRE_TRY(read_rows(value, receipt.rows));
  if (receipt.tokens.empty() || receipt.tokens.size() != receipt.rows.size()) {
    return corrupt({"the receipt has ", receipt.tokens.size(), " token_ids and the logits of ", receipt.rows.size(),
                    "; both must be the same and at least 1"});
  }
  const Value* sampling = value.find("sampling");
  QUIRE_TRY(read_params(sampling == nullptr ? Value() : *sampling, receipt.params));
  const Value* constraint = value.find("constraint");
  QUIRE_TRY(read_constraint(constraint == nullptr ? Value() : *constraint, receipt.constraint));
  const Value* schema = constraint == nullptr ? nullptr : constraint->find("json");
  const bool as_text = schema == nullptr || schema->is_string();
  out.intact = digest == digest_of(json::dump(contents(receipt, as_text))).hex();
  return out;
}

}  // namespace quire::llm
