// SPDX-License-Identifier: Apache-2.0
// Writes the arguments of a call as JSON while their raw values are still coming.
#include "markup/value_writer.h"

#include <utility>

namespace quire::markup {
namespace {

constexpr std::string_view kCdata = "<![CDATA[";

}  // namespace

void ArgumentsWriter::begin(CallSink& sink, const Schema& parameters, const TaggedCalls& format) {
  *this = {};
  sink_ = &sink;
  parameters_ = parameters;
  format_ = &format;
}

void ArgumentsWriter::key(std::string_view name) {
  std::string out = members_++ == 0 ? "{" : ", ";
  append_json_string(out, name);
  out += ": ";
  sink_->arguments(out);
}

void ArgumentsWriter::member(std::string_view name, std::string_view json) {
  release_wrapper();
  key(name);
  sink_->arguments(json);
}

void ArgumentsWriter::begin_value(std::string_view name, As as) {
  release_wrapper();
  in_value_ = true;
  key_ = name;
  as_ = as;
  value_.clear();
  first_ = true;
  newline_ = false;
  const Schema schema = parameters_.property(name);
  const Types types = schema.types();
  const bool is_string = as == As::kString || (as == As::kTyped && (types.none() || types.only_string()));
  // A sole "arguments" that the tool does not know may be the whole of the arguments.
  const bool wrapper =
      format_->unwrap && members_ == 0 && schema.node == nullptr && (name == "arguments" || name == "input");
  streams_ = is_string && !wrapper && !format_->cdata;
  if (streams_) {
    key(name);
    sink_->arguments("\"");
  }
}

void ArgumentsWriter::text(char c) {
  if (!streams_) {
    value_.push_back(c);
    return;
  }
  std::string out;
  append_escaped(out, c);
  sink_->arguments(out);
}

void ArgumentsWriter::add(std::string_view bytes) {
  for (const char c : bytes) {
    const bool first = std::exchange(first_, false);
    if (!format_->trim_newlines) {
      text(c);
      continue;
    }
    if (first && c == '\n') continue;
    if (std::exchange(newline_, false)) text('\n');
    if (c == '\n') {
      newline_ = true;
    } else {
      text(c);
    }
  }
}

bool ArgumentsWriter::in_cdata() const {
  return format_->cdata && value_.starts_with(kCdata) && !value_.ends_with("]]>");
}

std::string ArgumentsWriter::converted() const {
  std::string_view value = value_;
  if (format_->cdata && value.starts_with(kCdata) && value.ends_with("]]>")) {
    value = value.substr(kCdata.size(), value.size() - kCdata.size() - 3);
  }
  switch (as_) {
    case As::kString: {
      std::string out;
      append_json_string(out, value);
      return out;
    }
    case As::kJson:
      return json_or_string(value);
    case As::kTyped:
      break;
  }
  return convert_text(value, parameters_.property(key_));
}

void ArgumentsWriter::end_value() {
  if (!in_value_) return;
  in_value_ = false;
  newline_ = false;
  if (streams_) {
    sink_->arguments("\"");
    return;
  }
  const bool wrapper = format_->unwrap && members_ == 0 && (key_ == "arguments" || key_ == "input") &&
                       parameters_.property(key_).node == nullptr;
  if (wrapper) {
    wrapper_held_ = true;
    wrapper_key_ = key_;
    wrapper_value_ = value_;
    wrapper_as_ = as_;
    return;
  }
  key(key_);
  sink_->arguments(converted());
}

// Another parameter follows: the one that was held back is an ordinary one.
void ArgumentsWriter::release_wrapper() {
  if (!std::exchange(wrapper_held_, false)) return;
  key_ = wrapper_key_;
  value_ = wrapper_value_;
  as_ = wrapper_as_;
  key(key_);
  sink_->arguments(converted());
}

void ArgumentsWriter::end() {
  if (in_value_ && streams_) end_value();
  in_value_ = false;
  if (wrapper_held_) {
    const auto parsed = json::parse(wrapper_value_);
    if (parsed.ok() && parsed->is_object()) {
      wrapper_held_ = false;
      sink_->arguments(dumps(coerce(*parsed, parameters_)));
      return;
    }
    release_wrapper();
  }
  sink_->arguments(members_ == 0 ? "{}" : "}");
}

}  // namespace quire::markup
