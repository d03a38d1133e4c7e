// SPDX-License-Identifier: Apache-2.0
// The engine of the parser: separates reasoning, content and calls. It reads byte by byte, so that its result cannot
// depend on how the text was cut into pieces.
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "markup/formats.h"
#include "markup/harmony.h"
#include "markup/markup.h"
#include "markup/reader.h"
#include "markup/scanner.h"

namespace quire::markup {
// What a marker in the content or in the reasoning means.
enum class Meaning : uint8_t { kRegion, kGuess, kReasoningStart, kReasoningEnd, kWrapper };
struct Marker {
  std::string_view text;
  Meaning meaning;
};

namespace {

constexpr size_t kMaxHeld = size_t{256} << 10;  // bytes of a region that may still turn out to be no call
constexpr size_t kMaxBlanks = 4096;             // blanks that may still turn out to be the end of the content

std::vector<std::string_view> texts_of(const std::vector<Marker>& markers) {
  std::vector<std::string_view> texts;
  for (const Marker& marker : markers) texts.push_back(marker.text);
  return texts;
}

}  // namespace

std::unique_ptr<CallReader> make_reader(const ToolFormat& format, std::string_view marker, CallSink& sink) {
  const bool in_call = !format.open.empty() && marker == format.open;
  switch (format.encoding) {
    case Encoding::kJson:
      return make_json_reader(format, sink);
    case Encoding::kKeyed:
      return make_keyed_reader(format, in_call, sink);
    case Encoding::kTagged:
    case Encoding::kNested:
      return make_tagged_reader(format, in_call, sink);
    case Encoding::kPython:
      return make_python_reader(format, marker.empty(), sink);
    case Encoding::kGemma:
      return make_gemma_reader(format, sink);
    case Encoding::kHarmony:
      break;
  }
  QUIRE_CHECK(false, "harmony has no regions");
  return nullptr;
}

struct Parser::State final : public CallSink, public TextSink {
  State(const Dialect& dialect, ParseOptions given) : options(std::move(given)), tools(dialect.tools) {
    reasoning = dialect.reasoning;
    const bool harmony_tools = tools != nullptr && tools->encoding == Encoding::kHarmony;
    if (harmony_tools || (reasoning != nullptr && reasoning->harmony)) harmony.emplace(*this, *this);
    // Without a marker every answer that begins with a brace would be taken for a call, so none is if none is allowed.
    const bool none = options.choice == ToolChoice::kNone;
    if (tools != nullptr && none && (options.tools.empty() || !tools->bare.empty())) tools = nullptr;
    if (harmony) return;
    if (reasoning != nullptr && reasoning->append_to_content) {
      content(std::string(reasoning->starts.front()));
      reasoning = nullptr;
    }
    set_markers();
    in_reasoning = reasoning != nullptr && options.starts_in_reasoning;
    header_possible = reasoning != nullptr && !reasoning->header.empty();
  }

  void set_markers() {
    if (tools != nullptr) {
      for (const std::string_view text : tools->begins) content_markers.push_back({text, Meaning::kRegion});
      if (!tools->open.empty()) content_markers.push_back({tools->open, Meaning::kRegion});
      guesses = options.choice != ToolChoice::kNone && !options.tools.empty() && !tools->guesses.empty();
      for (const std::string_view text : tools->guesses) {
        if (guesses) content_markers.push_back({text, Meaning::kGuess});
      }
    }
    if (reasoning != nullptr) {
      for (const std::string_view text : reasoning->starts) content_markers.push_back({text, Meaning::kReasoningStart});
      for (const std::string_view text : reasoning->ends) {
        content_markers.push_back({text, Meaning::kReasoningEnd});
        reasoning_markers.push_back({text, Meaning::kReasoningEnd});
      }
      for (const std::string_view text : reasoning->starts) {
        reasoning_markers.push_back({text, Meaning::kReasoningStart});
      }
      for (const std::string_view text : reasoning->wrappers) content_markers.push_back({text, Meaning::kWrapper});
      if (tools != nullptr && tools->ends_reasoning) {
        for (const std::string_view text : tools->begins) reasoning_markers.push_back({text, Meaning::kRegion});
        if (!tools->open.empty()) reasoning_markers.push_back({tools->open, Meaning::kRegion});
      }
    }
    content_scanner.set(texts_of(content_markers));
    reasoning_scanner.set(texts_of(reasoning_markers));
  }

  // --- One byte ---

  void feed(std::string_view text) {
    for (const char c : text) {
      step(c);
      // A region gave bytes back, which may begin another one.
      queue = std::exchange(again, {});
      for (size_t at = 0; at < queue.size();) {
        step(queue[at++]);
        if (again.empty()) continue;
        queue.replace(0, at, std::exchange(again, {}));
        at = 0;
      }
    }
  }

  void step(char c) {
    if (harmony) {
      harmony->read(c);
    } else if (reader != nullptr) {
      step_call(c);
    } else if (in_reasoning) {
      step_reasoning(c);
    } else {
      step_content(c);
    }
  }

  void step_content(char c) {
    std::string text;
    const int index = content_scanner.add(c, text);
    for (size_t i = 0; i < text.size(); ++i) {
      const bool line_begins = !blanks.empty() && blanks.back() == '\n';
      const bool guess = guesses && text[i] == '{' && (bare_possible || line_begins);
      const bool bare = bare_possible && tools != nullptr && tools->bare.find(text[i]) != std::string_view::npos;
      if (bare || guess) {
        again = text.substr(i) + content_scanner.take_held();
        if (index != MarkerScanner::kNone) again += content_markers[static_cast<size_t>(index)].text;
        begin_region({}, guess);
        return;
      }
      content(text.substr(i, 1));
    }
    if (index == MarkerScanner::kNone) return;
    const Marker& marker = content_markers[static_cast<size_t>(index)];
    if (marker.text == (reasoning != nullptr ? reasoning->header_end : "")) header.clear();
    end_header();
    switch (marker.meaning) {
      case Meaning::kRegion:
        begin_region(marker.text);
        return;
      case Meaning::kGuess:
        begin_region(marker.text, true);
        return;
      case Meaning::kReasoningStart:
        if (reasoning->anywhere || (!content_started && next_call == 0 && !reasoning_over)) {
          blanks.clear();
          in_reasoning = true;
          reasoning_started = false;
          return;
        }
        break;
      case Meaning::kReasoningEnd:
        if (reasoning->anywhere || !content_started) {
          begin_content();
          return;
        }
        break;
      case Meaning::kWrapper:
        blanks.clear();
        wrapped = true;
        if (!content_started) begin_content();
        header_possible = !reasoning->header.empty() && !marker.text.ends_with(reasoning->header_end);
        return;
    }
    content(marker.text);
  }

  void step_reasoning(char c) {
    std::string text;
    const int index = reasoning_scanner.add(c, text);
    reason(text);
    if (index == MarkerScanner::kNone) return;
    const Marker& marker = reasoning_markers[static_cast<size_t>(index)];
    if (marker.meaning == Meaning::kReasoningStart) {
      if (reasoning_started) reason(marker.text);
      return;
    }
    end_reasoning();
    if (marker.meaning == Meaning::kRegion) begin_region(marker.text);
  }

  void step_call(char c) {
    if (!reader->begun()) raw.push_back(c);
    const ReadStatus status = reader->read(c);
    const bool too_long = status == ReadStatus::kMore && !reader->begun() && raw.size() > kMaxHeld;
    if (status == ReadStatus::kMore && !too_long) return;
    const std::string unread = too_long ? std::string() : reader->unread();
    const bool failed = status == ReadStatus::kFailed || too_long;
    reader.reset();
    if (failed) {
      QUIRE_CHECK(unread.size() <= raw.size(), "a reader gives back more than it read");
      content(std::string_view(raw).substr(0, raw.size() - unread.size()));
    } else if (!content_started) {
      begin_content();
      bare_possible = false;
    }
    raw.clear();
    again = unread;
  }

  void begin_region(std::string_view marker, bool guess = false) {
    raw = marker;
    region_has_marker = !marker.empty() && !guess;
    bare_possible = false;
    ++regions;
    reader = guess ? make_json_reader(*tools, *this, true) : make_reader(*tools, marker, *this);
  }

  // --- Texts ---

  void begin_content() {
    blanks.clear();
    trim_leading = true;
    bare_possible = true;
  }

  // Holds back what may be a header, and returns whether it did.
  bool hold_header(char c) {
    header.push_back(c);
    const std::string_view begin = reasoning->header;
    if (header.size() <= begin.size() ? begin.starts_with(header) : !is_blank(c) && header.size() < kMaxHeader) {
      return true;
    }
    header.pop_back();
    end_header();
    return false;
  }

  // No header follows; what was held back for one is content.
  void end_header() {
    header_possible = false;
    content(std::exchange(header, {}));
  }

  // Blanks are held back: those at the end of the content, before a call, are dropped.
  void content(std::string_view text) {
    if (drop_content) return;
    for (const char c : text) {
      if (header_possible && hold_header(c)) continue;
      if (is_blank(c)) {
        if (trim_leading && !content_started) continue;
        blanks.push_back(c);
        if (blanks.size() < kMaxBlanks) continue;
        emit(Event::Kind::kContent, std::exchange(blanks, {}));
      } else {
        if (!blanks.empty()) emit(Event::Kind::kContent, std::exchange(blanks, {}));
        emit(Event::Kind::kContent, {&c, 1});
      }
      content_started = true;
      bare_possible = false;
    }
  }

  void reason(std::string_view text) {
    for (const char c : text) {
      if (is_blank(c)) {
        if (!reasoning_started) continue;
        blanks.push_back(c);
        if (blanks.size() >= kMaxBlanks) emit(Event::Kind::kReasoning, std::exchange(blanks, {}));
        continue;
      }
      if (!blanks.empty()) emit(Event::Kind::kReasoning, std::exchange(blanks, {}));
      emit(Event::Kind::kReasoning, {&c, 1});
      reasoning_started = true;
    }
  }

  void end_reasoning() {
    if (reasoning->keep_blanks && !blanks.empty()) emit(Event::Kind::kReasoning, blanks);
    in_reasoning = false;
    reasoning_over = true;
    begin_content();
  }

  void reasoning_text(std::string_view text) override { emit(Event::Kind::kReasoning, text); }
  void content_text(std::string_view text) override { emit(Event::Kind::kContent, text); }

  // --- Calls ---

  const Tool* find_tool(std::string_view name) const {
    for (const Tool& tool : options.tools) {
      if (tool.name == name) return &tool;
    }
    return nullptr;
  }
  bool has_tool(std::string_view name) const override { return find_tool(name) != nullptr; }

  Schema parameters(std::string_view name) const override {
    const Tool* tool = find_tool(name);
    if (tool == nullptr || !tool->parameters.is_object()) return {};
    return {&tool->parameters, &tool->parameters};
  }

  void begin(std::string_view name, std::string_view id) override {
    blanks.clear();
    call_dropped = options.choice == ToolChoice::kNone || (!options.parallel && next_call > 0) ||
                   (tools != nullptr && tools->check_names && !options.tools.empty() && !has_tool(name)) ||
                   (tools != nullptr && tools->one_region && regions > 1 && next_call > 0);
    if (call_dropped) return;
    if (tools != nullptr && !tools->keep_tail && !harmony) drop_content = true;
    Event event;
    event.kind = Event::Kind::kCallBegin;
    event.call = next_call++;
    event.name = name;
    event.id = id;
    events.push_back(std::move(event));
  }

  void arguments(std::string_view text) override {
    if (!call_dropped && !text.empty()) emit(Event::Kind::kArguments, text);
  }

  void end() override {
    if (call_dropped) return;
    Event event;
    event.kind = Event::Kind::kCallEnd;
    event.call = next_call - 1;
    events.push_back(std::move(event));
  }

  // --- Events ---

  void emit(Event::Kind kind, std::string_view text) {
    if (text.empty()) return;
    if (events.empty() || events.back().kind != kind) {
      Event event;
      event.kind = kind;
      if (kind == Event::Kind::kArguments) event.call = next_call - 1;
      events.push_back(std::move(event));
    }
    events.back().text += text;
  }

  // Hands over the events; a character that is not complete stays behind, unless the answer is over.
  void hand_over(bool last, std::vector<Event>& out) {
    std::string rest;
    Event::Kind kind = Event::Kind::kContent;
    int32_t call = 0;
    if (!last && !events.empty() && !events.back().text.empty()) {
      std::string& text = events.back().text;
      const size_t incomplete = utf8::incomplete_suffix(text);
      rest = text.substr(text.size() - incomplete);
      text.resize(text.size() - incomplete);
      kind = events.back().kind;
      call = events.back().call;
      if (text.empty()) events.pop_back();
    }
    for (Event& event : events) out.push_back(std::move(event));
    events.clear();
    if (rest.empty()) return;
    Event event;
    event.kind = kind;
    event.call = call;
    event.text = std::move(rest);
    events.push_back(std::move(event));
  }

  void finish(bool truncated) {
    if (harmony) {
      harmony->finish();
    } else if (reader != nullptr) {
      if (reader->begun()) {
        reader->finish();
      } else if (!truncated || !region_has_marker) {
        content(raw);
      }
      reader.reset();
    } else if (in_reasoning) {
      reason(reasoning_scanner.take_held());
      if (!reasoning->keep_blanks) blanks.clear();
      emit(Event::Kind::kReasoning, std::exchange(blanks, {}));
    } else {
      content(content_scanner.take_held());
      if (truncated) header.clear();
      end_header();
    }
    if (next_call == 0 && !wrapped) emit(Event::Kind::kContent, blanks);
    blanks.clear();
  }

  ParseOptions options;
  const ToolFormat* tools;
  const ReasoningFormat* reasoning;
  std::optional<HarmonyReader> harmony;

  std::vector<Marker> content_markers, reasoning_markers;
  MarkerScanner content_scanner, reasoning_scanner;
  std::unique_ptr<CallReader> reader;  // of the region that the text is in
  std::string raw;                     // the region so far, while it may still be content
  bool region_has_marker = false;
  int64_t regions = 0;
  std::string queue, again;  // bytes to read; bytes to read once more

  bool in_reasoning = false;
  bool reasoning_started = false;  // some reasoning was emitted
  bool reasoning_over = false;
  bool content_started = false;  // some content was emitted
  bool trim_leading = false;     // blanks at the beginning of the content are dropped
  bool guesses = false;          // texts that are no markers may begin calls, too
  bool bare_possible = true;     // a call without a marker may begin here
  bool wrapped = false;          // a marker around the content was removed
  bool header_possible = false;  // a header of a message may begin here
  std::string header;            // what may be one, held back
  bool drop_content = false;     // text after a call is dropped
  bool call_dropped = false;     // the open call is not emitted
  std::string blanks;            // held back
  int32_t next_call = 0;
  std::vector<Event> events;
};

Parser::Parser(const Dialect& dialect, ParseOptions options)
    : state_(std::make_unique<State>(dialect, std::move(options))) {}
Parser::~Parser() = default;

void Parser::feed(std::string_view text, std::vector<Event>& events) {
  state_->feed(text);
  state_->hand_over(false, events);
}

void Parser::finish(bool truncated, std::vector<Event>& events) {
  state_->finish(truncated);
  state_->hand_over(true, events);
}

bool Parser::in_reasoning() const {
  return state_->harmony ? state_->harmony->in_reasoning() : state_->in_reasoning;
}

}  // namespace quire::markup
