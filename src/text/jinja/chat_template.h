// SPDX-License-Identifier: Apache-2.0
// A model's chat template: turns a conversation into the prompt's text, as transformers and vLLM do.
#pragma once

#include <atomic>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/jinja/template.h"

namespace quire::text {

// In which shape a template wants a message's content.
enum class ContentFormat {
  kAuto,    // contents stay as they are, except that lists are joined for a template that cannot take them
  kString,  // one string: text parts are joined by newlines
  kOpenAi,  // a list of parts: {"type": "text", "text": ...}, also for a plain string
  kAsIs,    // messages are passed on untouched
};

// What is found out about a template by rendering two small conversations with it.
struct TemplateTraits {
  ContentFormat format = ContentFormat::kString;  // kOpenAi: it takes lists of parts
  bool shows_strings = true;                      // a plain string appears in the prompt
};
TemplateTraits find_traits(const jinja::Template& parsed);

// One conversation to render. Plain data; `messages` and the others are JSON as the API received it.
struct ChatRequest {
  json::Value messages;   // an array of objects
  json::Value tools;      // an array, or null for none
  json::Value documents;  // an array, or null for none
  bool add_generation_prompt = true;
  // The prompt ends inside the last message, which the model continues; excludes add_generation_prompt.
  bool continue_final_message = false;
  json::Value kwargs;  // an object of further variables (chat_template_kwargs), or null; wins over the ones below
  json::Value default_kwargs;  // the same from the server's settings; the request's own win
  std::string bos_token;
  std::string eos_token;
  // Others by the names of tokenizer_config.json: {"unk_token", "<unk>"}, {"pad_token", ...}.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  ContentFormat content_format = ContentFormat::kAuto;
  std::optional<std::tm> now;                    // for strftime_now; absent: the machine's local time
  const std::atomic<bool>* cancelled = nullptr;  // turns true when nobody waits for the result: render() fails soon
};

// A rendered conversation.
struct ChatPrompt {
  std::string text;
  std::vector<OriginRange> origins;  // of the bytes that did not come from the template, in order
};

// One or several named templates of a model. Immutable after parse(): any thread may render, at the same time.
class ChatTemplate {
 public:
  // A single template.
  static Result<ChatTemplate> parse(std::string_view source);
  // What tokenizer_config.json has under "chat_template": a string, or an array of {"name", "template"} objects.
  static Result<ChatTemplate> parse_config(const json::Value& chat_template);
  // Named templates, for example from chat_template.jinja and additional_chat_templates/*.jinja.
  static Result<ChatTemplate> parse_named(const std::vector<std::pair<std::string, std::string>>& named);

  // Renders by the template that transformers would take: the one called `name` if given; else "tool_use" when there
  // are tools and one of that name; else "default". A template that raises (raise_exception) gives an
  // invalid-argument error whose message starts with jinja::kRaisedPrefix.
  Result<ChatPrompt> render(const ChatRequest& request, std::string_view name = {}) const;

  // The shape in which the template of that choice takes contents: kString, or kOpenAi when it can take lists.
  Result<ContentFormat> content_format(bool has_tools, std::string_view name = {}) const;
  std::vector<std::string> names() const;
  const std::string& source(std::string_view name = "default") const;  // empty when there is none of that name
  // Whether a plain string as content appears in the prompt. Templates of some vision models only look at lists.
  bool shows_plain_text() const;

 private:
  struct Named {
    std::string name;
    std::string source;
    jinja::Template parsed;
    TemplateTraits traits;
  };
  Result<MarkedText> render_with(const Named& chosen, const ChatRequest& request, json::Value messages) const;
  Result<const Named*> choose(bool has_tools, std::string_view name) const;
  std::vector<Named> templates_;
};

// How contents of messages are treated on their way to the template.
struct ContentRules {
  bool join_lists = false;    // lists of text parts become one string; a part that is no text is an error
  bool list_strings = false;  // a plain string becomes a list of one text part
  bool fill_null = false;     // a content that is null or missing becomes an empty one
};
ContentRules content_rules(ContentFormat wanted, const TemplateTraits& traits);
// The messages with their contents in that shape, and with tool-call arguments that arrive as JSON text turned into
// objects (templates expect objects).
Result<json::Value> normalize_messages(const json::Value& messages, const ContentRules& rules);

}  // namespace quire::text
