// SPDX-License-Identifier: Apache-2.0
// Reads the messages, channels and recipients of GPT-OSS.
#include "markup/harmony.h"

#include <utility>

namespace quire::markup {
namespace {

constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kConstrain = "<|constrain|>";
constexpr int kMessageMarker = 0;
constexpr int kChannelMarker = 4;
constexpr int kConstrainMarker = 5;
constexpr int kStartMarker = 6;
constexpr std::string_view kMarkers[] = {kMessage, "<|end|>", "<|return|>", "<|call|>", kChannel, kConstrain, kStart};

// The word after `key` in a header, up to a blank or the next marker.
std::string_view word_after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

bool is_builtin(std::string_view recipient) {
  return recipient == "python" || recipient.starts_with("browser.") || recipient.starts_with("container.") ||
         recipient == "browser" || recipient == "container" || recipient == "assistant" || recipient == "user";
}

}  // namespace

HarmonyReader::HarmonyReader(CallSink& calls, TextSink& texts)
    : calls_(calls), texts_(texts), scanner_({std::begin(kMarkers), std::end(kMarkers)}) {}

bool HarmonyReader::in_reasoning() const {
  return body_ == Body::kReasoning || body_ == Body::kCall || (body_ == Body::kHeader && !any_message_);
}

void HarmonyReader::read(char c) {
  std::string text;
  const int marker = scanner_.add(c, text);
  if (!text.empty()) {
    if (body_ == Body::kHeader) {
      header_ += text;
      // No header is so long: the model writes without channels.
      if (header_.size() > kMaxHeader) {
        body_ = Body::kContent;
        body_text(std::exchange(header_, {}));
      }
    } else {
      body_text(text);
    }
  }
  if (marker == MarkerScanner::kNone) return;
  if (marker == kMessageMarker) {
    if (body_ == Body::kHeader) {
      begin_body();
    } else {
      body_text(kMessage);
    }
  } else if (marker == kChannelMarker || marker == kConstrainMarker) {
    if (body_ != Body::kHeader) end_body();
    header_ += kMarkers[marker];
  } else {
    if (body_ != Body::kHeader) end_body();
    header_ = marker == kStartMarker ? std::string(kStart) : std::string();
  }
}

void HarmonyReader::begin_body() {
  const std::string header = std::exchange(header_, {});
  const std::string_view channel = word_after(header, kChannel);
  std::string_view recipient = word_after(header, "to=");
  any_message_ = true;
  body_has_text_ = false;
  json_.reset();
  json_done_ = false;
  const bool function = recipient.starts_with("functions.");
  if (function) recipient.remove_prefix(10);
  if (!recipient.empty() && (function || !is_builtin(recipient) || texts_.has_tool(recipient))) {
    body_ = Body::kCall;
    calls_.begin(recipient, {});
  } else if (channel == "analysis" || !recipient.empty()) {
    body_ = Body::kReasoning;
  } else {
    body_ = Body::kContent;
  }
}

void HarmonyReader::body_text(std::string_view text) {
  if (body_ == Body::kCall) {
    std::string out;
    for (const char c : text) {
      if (json_done_ || (!body_has_text_ && is_blank(c))) continue;
      const bool first = !std::exchange(body_has_text_, true);
      if (first && c != '{') json_done_ = true;  // Not an object: there are no arguments.
      if (!json_done_) json_done_ = json_.read(c, out) != JsonForwarder::Status::kMore;
    }
    calls_.arguments(out);
    return;
  }
  bool& before = body_ == Body::kReasoning ? reasoning_before_ : content_before_;
  // Several messages of a kind are joined by a newline.
  std::string out = !std::exchange(body_has_text_, true) && std::exchange(before, true) ? "\n" : "";
  out += text;
  if (body_ == Body::kReasoning) {
    texts_.reasoning_text(out);
  } else {
    texts_.content_text(out);
  }
}

void HarmonyReader::end_body() {
  if (body_ == Body::kCall) {
    if (!json_.wrote()) calls_.arguments("{}");
    calls_.end();
  }
  body_ = Body::kHeader;
}

void HarmonyReader::finish() {
  const std::string held = scanner_.take_held();
  if (body_ == Body::kHeader) {
    // A header without a message is an answer without channels, unless it is only the role.
    header_ += held;
    if (!any_message_ && header_.find(kChannel) == std::string::npos && !header_.empty()) {
      body_ = Body::kContent;
      body_text(std::exchange(header_, {}));
    }
    return;
  }
  if (!held.empty() && body_ != Body::kCall) body_text(held);
  end_body();
}

}  // namespace quire::markup
