// SPDX-License-Identifier: Apache-2.0
// A model's chat template: converts a conversation to the text of the prompt, as transformers and vLLM do.
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

// The shape of message contents that a template needs.
enum class ContentFormat {
  kAuto,    // contents are not changed, except that lists are joined if the template cannot handle them
  kString,  // one string: text parts are joined by newlines
  kOpenAi,  // a list of parts: {"type": "text", "text": ...}, also for a plain string
  kAsIs,    // messages are not changed
};

// Where a template looks for the reasoning of earlier answers.
enum class ReasoningPlace {
  kReasoning,  // in the members reasoning and reasoning_content, or nowhere
  kThinking,   // in the member thinking
  kPart,       // in a part of the content: {"type": "thinking", "thinking": ...}
};

// What rendering some small conversations shows about a template.
struct TemplateTraits {
  ContentFormat format = ContentFormat::kString;  // kOpenAi: it handles lists of parts
  bool shows_strings = true;                      // a plain string appears in the prompt
  std::vector<std::string> string_roles = {};     // with kOpenAi: roles of which it does not handle lists
  ReasoningPlace reasoning = ReasoningPlace::kReasoning;
  bool thinking_or_text = false;  // an answer that calls a tool may have either the member thinking or content
  bool one_call = false;          // only one call of a message is shown, or more of them are refused
  bool shows_system = true;
  bool loses_developer = false;  // a message of the role developer is left out or refused, one of system is shown
  bool one_system = false;       // of several system messages in front only the first is shown, or they are refused
};
TemplateTraits find_traits(const jinja::Template& parsed);
// Renders a conversation within small limits.
Result<std::string> probe(const jinja::Template& parsed, json::Array messages, json::Value tools);
// Sets the members of `traits` about earlier answers.
void find_reasoning(const jinja::Template& parsed, bool takes_lists, TemplateTraits& traits);
void find_calls(const jinja::Template& parsed, TemplateTraits& traits);
void find_instructions(const jinja::Template& parsed, TemplateTraits& traits);
void find_string_roles(const jinja::Template& parsed, TemplateTraits& traits);

// One conversation to render. Plain data; `messages` and the other values are JSON as the API received it.
struct ChatRequest {
  json::Value messages;   // an array of objects
  json::Value tools;      // an array, or null for none
  json::Value documents;  // an array, or null for none
  bool add_generation_prompt = true;
  // The prompt ends inside the last message, which the model continues. Not with add_generation_prompt.
  bool continue_final_message = false;
  json::Value kwargs;          // an object of variables (chat_template_kwargs), or null; overrides those below
  json::Value default_kwargs;  // the same from the server's settings; the request overrides them
  std::string bos_token;
  std::string eos_token;
  // Others, with their names in tokenizer_config.json: {"unk_token", "<unk>"}, {"pad_token", ...}.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  ContentFormat content_format = ContentFormat::kAuto;
  std::optional<std::tm> now;                    // for strftime_now; default: the machine's local time
  const std::atomic<bool>* cancelled = nullptr;  // set to true when nobody waits: rendering then fails soon
};

// A rendered conversation.
struct ChatPrompt {
  std::string text;
  std::vector<OriginRange> origins;  // of the bytes that are not from the template, in order
};

// One or several named templates of a model. Immutable after parse(): any thread may render at any time.
class ChatTemplate {
 public:
  // A single template.
  static Result<ChatTemplate> parse(std::string_view source);
  // From "chat_template" of tokenizer_config.json: a string, or an array of {"name", "template"} objects.
  static Result<ChatTemplate> parse_config(const json::Value& chat_template);
  // Named templates, such as chat_template.jinja and additional_chat_templates/*.jinja.
  static Result<ChatTemplate> parse_named(const std::vector<std::pair<std::string, std::string>>& named);

  // Renders with the template that transformers would use: the one called `name` if given; else "tool_use" if there are
  // tools and such a template; else "default". A template that raises (raise_exception) is an invalid-argument error
  // whose message starts with jinja::kRaisedPrefix.
  Result<ChatPrompt> render(const ChatRequest& request, std::string_view name = {}) const;

  // The shape of contents for that template: kString, or kOpenAi if it handles lists.
  Result<ContentFormat> content_format(bool has_tools, std::string_view name = {}) const;
  std::vector<std::string> names() const;
  const std::string& source(std::string_view name = "default") const;  // empty if there is none of that name
  // Whether a plain string as content appears in the prompt. The templates of some vision models only use lists.
  bool shows_plain_text() const;
  // Whether it shows a system message; some templates refuse them.
  bool shows_system() const;

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

// How the contents of messages are converted for the template.
struct ContentRules {
  bool join_lists = false;  // lists of text parts become one string; a part that is not text is an error
  std::vector<std::string> joined_roles = {};  // the same for messages of these roles
  bool list_strings = false;                   // a plain string becomes a list of one text part
  bool fill_null = false;                      // null or missing content becomes empty
  // Parts {"type": "thinking", "thinking": ...} stay as they are; else those of an answer become its reasoning.
  bool keep_thinking = false;
};
ContentRules content_rules(ContentFormat wanted, const TemplateTraits& traits);
// The messages with their contents in that shape, and with JSON text as tool call arguments turned into objects.
Result<json::Value> normalize_messages(const json::Value& messages, const ContentRules& rules);
// Puts the reasoning of the answers in a conversation where the template looks for it.
void place_reasoning(json::Value& messages, const TemplateTraits& traits, const ContentRules& rules);
// Gives the messages of system and developer roles and an order that the template shows.
void place_instructions(json::Value& messages, const TemplateTraits& traits);
// Makes an answer with several calls that many answers, each followed by its result.
void part_calls(json::Value& messages);
bool is_thinking_part(const json::Value& part);
// Makes the thinking parts of an answer its reasoning.
void name_thinking_parts(json::Value& message);

}  // namespace quire::text
