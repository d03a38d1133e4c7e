// SPDX-License-Identifier: Apache-2.0
// Chat templates: which one is chosen, the shape of messages, and the end of a continued prompt.
#include "text/jinja/chat_template.h"

#include <gtest/gtest.h>

namespace quire::text {
namespace {

constexpr const char* kPlain =
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kParts =
    "{% for m in messages %}{% for c in m['content'] %}[{{ c.type }}:{{ c.text }}]{% endfor %}{% endfor %}";

ChatRequest request(const std::string& messages) {
  ChatRequest out;
  out.messages = json::parse(messages).value();
  out.bos_token = "<s>";
  out.eos_token = "</s>";
  return out;
}

std::string render(const ChatTemplate& chat, const ChatRequest& req, std::string_view name = {}) {
  auto result = chat.render(req, name);
  return result.ok() ? result->text : "ERROR: " + result.error().message;
}

TEST(ChatTemplate, RendersAConversation) {
  const auto chat = ChatTemplate::parse(kPlain);
  ASSERT_TRUE(chat.ok());
  ChatRequest req = request(R"([{"role": "user", "content": " hi "}])");
  EXPECT_EQ(render(*chat, req), "<s><user>hi</user><assistant>");
  req.add_generation_prompt = false;
  EXPECT_EQ(render(*chat, req), "<s><user>hi</user>");
}

TEST(ChatTemplate, PassesTokensAndKeywords) {
  const auto chat = ChatTemplate::parse(
      "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ enable_thinking }}{{ tools is none }}{{ documents is none }}");
  ChatRequest req = request("[]");
  req.special_tokens = {{"pad_token", "<pad>"}};
  req.kwargs = json::parse(R"({"enable_thinking": false, "eos_token": "<own>"})").value();
  EXPECT_EQ(render(*chat, req), "<s><own><pad>FalseTrueTrue");
}

TEST(ChatTemplate, ChoosesAmongNamedTemplates) {
  const auto config = json::parse(R"([{"name": "default", "template": "D{{ tools }}"},
                                      {"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R"}])");
  const auto chat = ChatTemplate::parse_config(*config);
  ASSERT_TRUE(chat.ok());
  ChatRequest req = request("[]");
  EXPECT_EQ(render(*chat, req), "DNone");
  EXPECT_EQ(render(*chat, req, "rag"), "R");
  req.tools = json::Value(json::Array{});
  EXPECT_EQ(render(*chat, req), "T");
  EXPECT_EQ(render(*chat, req, "none"),
            "ERROR: The model has no chat template called \"none\"; it has: default, tool_use, rag.");
  EXPECT_EQ(chat->names(), (std::vector<std::string>{"default", "tool_use", "rag"}));
  EXPECT_EQ(chat->source("tool_use"), "T");
}

TEST(ChatTemplate, ConfigsThatAreNoTemplatesAreErrors) {
  EXPECT_FALSE(ChatTemplate::parse_config(json::Value(5)).ok());
  EXPECT_FALSE(ChatTemplate::parse_config(json::Value(json::Array{})).ok());
  EXPECT_FALSE(ChatTemplate::parse_config(*json::parse(R"([{"name": "x"}])")).ok());
  const auto broken =
      ChatTemplate::parse_config(*json::parse(R"([{"name": "a", "template": ""}, {"name": "b", "template": "{{"}])"));
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().message.find("In the template \"b\": "), 0u);
}

TEST(ChatTemplate, FindsOutTheShapeOfContents) {
  auto format = [](const std::string& source) { return *ChatTemplate::parse(source)->content_format(false); };
  EXPECT_EQ(format(kPlain), ContentFormat::kString);
  EXPECT_EQ(format(kParts), ContentFormat::kOpenAi);
  EXPECT_EQ(format("{% set rest = messages[1:] %}{% for x in rest %}{% if x.content is string %}a{% else %}"
                   "{% for p in x.content|reverse %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"),
            ContentFormat::kOpenAi);
  EXPECT_EQ(format("{% for x in other %}{% for p in x.content %}{% endfor %}{% endfor %}"), ContentFormat::kString);
  EXPECT_EQ(format("{% for x in messages %}{% for p in x.tool_calls %}{% endfor %}{% endfor %}"),
            ContentFormat::kString);
}

TEST(ChatTemplate, GivesContentsTheShapeThatTheTemplateWants) {
  const std::string mixed =
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
          {"role": "user", "content": "c"}])";
  EXPECT_EQ(render(*ChatTemplate::parse(kPlain), request(mixed)), "<s><user>a\nb</user><user>c</user><assistant>");
  EXPECT_EQ(render(*ChatTemplate::parse(kParts), request(mixed)), "[text:a][text:b][:]");
  ChatRequest lists = request(mixed);
  lists.content_format = ContentFormat::kOpenAi;
  EXPECT_EQ(render(*ChatTemplate::parse(kParts), lists), "[text:a][text:b][text:c]");
  ChatRequest as_is = request(mixed);
  as_is.content_format = ContentFormat::kAsIs;
  EXPECT_EQ(render(*ChatTemplate::parse(kPlain), as_is).find("<s><user>[{'type': 'text'"), 0u);
  const auto image = request(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])");
  for (const char* source : {kPlain, kParts}) {
    EXPECT_EQ(render(*ChatTemplate::parse(source), image),
              "ERROR: messages[0].content has a part of type \"image_url\"; only parts with text are taken.");
  }
  const auto odd = request(R"([{"role": "user", "content": ["a", {"text": "b"}, {"type": "input_text", "text": "c"},
                                                            {"type": "refusal", "refusal": "d"}]}])");
  EXPECT_EQ(render(*ChatTemplate::parse(kPlain), odd), "<s><user>a\nb\nc\nd</user><assistant>");
  EXPECT_EQ(render(*ChatTemplate::parse(kParts), odd), "[text:a][text:b][text:c][text:d]");
  for (const auto& [content, error] : std::vector<std::pair<std::string, std::string>>{
           {R"([{"type": "text"}])", "messages[0].content[0].text must be a string."},
           {R"(["a", 5])", "messages[0].content[1] must be a string or an object with type and text, not an integer."},
           {"{}", "messages[0].content must be a string or a list of parts, not an object."},
           {"5", "messages[0].content must be a string or a list of parts, not an integer."}}) {
    for (const char* source : {kPlain, kParts}) {
      const auto wrong = request(R"([{"role": "user", "content": )" + content + "}]");
      EXPECT_EQ(render(*ChatTemplate::parse(source), wrong), "ERROR: " + error);
    }
  }
}

// Gemma 4's template takes lists of parts from users and prints those of a system message as they are; GLM's, Kimi's
// and Ministral's do so with results of tools.
TEST(ChatTemplate, JoinsListsOfTheRolesWhoseListsAreNotTaken) {
  const auto chat = ChatTemplate::parse(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' and m.content is not string %}"
      "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  const std::string parts = R"([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])";
  const auto mixed =
      request(R"([{"role": "system", "content": )" + parts + R"(}, {"role": "user", "content": )" + parts +
              R"(}, {"role": "assistant", "content": "c"}, {"role": "tool", "content": )" + parts + "}]");
  EXPECT_EQ(render(*chat, mixed), "<system>a\nb<user>[a][b]<assistant>c<tool>a\nb");
}

TEST(ChatTemplate, ParsesToolCallArguments) {
  const auto chat = ChatTemplate::parse(
      "{% for m in messages %}{% for t in m.tool_calls or [] %}{{ t.function.arguments.city }}{{ "
      "t.function.arguments|tojson }}"
      "{% endfor %}{% endfor %}");
  const std::string call =
      R"([{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": )";
  EXPECT_EQ(render(*chat, request(call + R"("{\"city\": \"Paris\"}"}}]}])")), "Paris{\"city\": \"Paris\"}");
  EXPECT_EQ(render(*chat, request(call + R"({"city": "Rome"}}}]}])")), "Rome{\"city\": \"Rome\"}");
  EXPECT_NE(render(*chat, request(call + R"("{oops"}}]}])"))
                .find("messages[0].tool_calls has arguments that are not valid JSON"),
            std::string::npos);
}

constexpr const char* kHistory =
    R"([{"role": "user", "content": "q"},
        {"role": "assistant", "content": "TEXT", "reasoning": "WHY",
         "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "r"}, {"role": "assistant", "content": "done"}])";

// The templates of GPT-OSS and LFM2.5 read the member thinking of a message, that of Ministral 3 a part of the content.
// The reasoning of earlier answers was not shown to these models.
TEST(ChatTemplate, PutsReasoningWhereTheTemplateLooksForIt) {
  const std::string rest = "{% for c in m.tool_calls or [] %}CALL{% endfor %}|{% endfor %}";
  const auto member = ChatTemplate::parse(
      "{% for m in messages %}{% if m.thinking %}({{ m.thinking }}){% endif %}{{ m.content }}" + rest);
  EXPECT_EQ(render(*member, request(kHistory)), "q|(WHY)TEXTCALL|r|done|");
  const auto either = ChatTemplate::parse(
      "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('both') }}{% endif "
      "%}"
      "{% if m.thinking %}({{ m.thinking }}){% endif %}{{ m.content }}" +
      rest);
  EXPECT_EQ(render(*either, request(kHistory)), "q|(WHY\nTEXT)CALL|r|done|");
  const auto part = ChatTemplate::parse(
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
      "{% if p.type == 'thinking' %}({{ p.thinking }}){% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}" +
      rest);
  EXPECT_EQ(render(*part, request(kHistory)), "q|(WHY)TEXTCALL|r|done|");
  const auto named =
      ChatTemplate::parse("{% for m in messages %}{{ m.reasoning }}{{ m.thinking }}{{ m.content }}" + rest);
  EXPECT_EQ(render(*named, request(kHistory)), "q|WHYTEXTCALL|r|done|");
  const auto parts = request(
      R"([{"role": "assistant", "content": [{"type": "thinking", "thinking": "WHY"}, {"type": "text", "text": "TEXT"}]}])");
  EXPECT_EQ(render(*part, parts), "(WHY)TEXT|");
  EXPECT_EQ(render(*named, parts), "WHYTEXT|");
  EXPECT_EQ(render(*member, parts), "(WHY)TEXT|");
}

// Llama 3's templates refuse an answer with two calls, and those of GPT-OSS and GigaChat 3 show only the first one: a
// conversation with two calls at once ended with an error, or the model did not see what it had called.
TEST(ChatTemplate, ShowsCallsOneByOneWhereTheTemplateTakesOne) {
  const std::string history =
      R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "TEXT", "tool_calls": [
            {"id": "a", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "function": {"name": "g", "arguments": "{}"}}]},
          {"role": "tool", "tool_call_id": "b", "content": "rb"}, {"role": "tool", "tool_call_id": "a", "content": "ra"},
          {"role": "tool", "tool_call_id": "c", "content": "rc"}, {"role": "user", "content": "end"}])";
  const std::string rest = "{{ m.content }}{% for c in m.tool_calls or [] %}";
  const std::string call = "CALL {{ c.function.name }} {{ c.function.arguments }}";
  const auto refusing = ChatTemplate::parse(
      "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif "
      "%}" +
      rest + call + "{% endfor %}|{% endfor %}");
  EXPECT_EQ(render(*refusing, request(history)), "q|TEXTCALL f {}|ra|CALL g {}|rb|rc|end|");
  const auto dropping = ChatTemplate::parse("{% for m in messages %}" + rest + "{% if loop.first %}" + call +
                                            "{% endif %}{% endfor %}|{% endfor %}");
  EXPECT_EQ(render(*dropping, request(history)), "q|TEXTCALL f {}|ra|CALL g {}|rb|rc|end|");
  const auto taking = ChatTemplate::parse("{% for m in messages %}" + rest + call + "{% endfor %}|{% endfor %}");
  EXPECT_EQ(render(*taking, request(history)), "q|TEXTCALL f {}CALL g {}|rb|ra|rc|end|");
}

// Qwen's, DeepSeek's, GLM's and other templates leave out messages of the role developer without a word; several show
// or take only the first system message.
TEST(ChatTemplate, LosesNoInstructions) {
  const std::string both = R"([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"},
                               {"role": "user", "content": "q"}, {"role": "developer", "content": "c"}])";
  const auto shows = ChatTemplate::parse("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
  EXPECT_EQ(render(*shows, request(both)), "<system>a<developer>b<user>q<developer>c");
  const auto leaves_out = ChatTemplate::parse(
      "{% for m in messages %}{% if m.role in ['system', 'user'] %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor "
      "%}");
  EXPECT_EQ(render(*leaves_out, request(both)), "<system>a<system>b<user>q<system>c");
  const auto first = ChatTemplate::parse(
      "{% for m in messages %}{% if loop.first or m.role == 'user' %}<{{ m.role }}>{{ m.content }}{% endif %}"
      "{% endfor %}");
  EXPECT_EQ(render(*first, request(both)), "<system>a\n\nb<user>q");
  const auto refuses = ChatTemplate::parse(
      "{% for m in messages %}{% if m.role == 'system' and not loop.first or m.role == 'developer' %}"
      "{{ raise_exception('only one') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}");
  const auto head = request(R"([{"role": "developer", "content": "a"}, {"role": "system", "content": "b"},
                                {"role": "user", "content": "q"}])");
  EXPECT_EQ(render(*refuses, head), "<system>a\n\nb<user>q");
  const auto none = ChatTemplate::parse(
      "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}"
      "{% endfor %}");
  EXPECT_EQ(render(*none, head), "ERROR: " + std::string(jinja::kRaisedPrefix) + "no system");
}

TEST(ChatTemplate, PrintsLongIntegersOfArgumentsAsTheyWereSent) {
  const auto chat = ChatTemplate::parse(
      "{% for m in messages %}{% set a = m.tool_calls[0].function.arguments %}{{ a|tojson }} {{ a }} {{ a.id }} {{ "
      "a.id is number }} "
      "{{ a.id is integer }} {{ a.id is string }} {{ a.id == a.same }} {{ a.id == 1 }} {{ a.id|int }} {{ a.id|float > "
      "1e19 }} "
      "{{ a.id is mapping }}{% endfor %}");
  const auto call = request(
      R"([{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments":
          "{\"id\": 18446744073709551615, \"same\": 18446744073709551615}"}}]}])");
  EXPECT_EQ(
      render(*chat, call),
      "{\"id\": 18446744073709551615, \"same\": 18446744073709551615} "
      "{'id': 18446744073709551615, 'same': 18446744073709551615} 18446744073709551615 True True False True False "
      "18446744073709551615 True False");
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  const auto chat = ChatTemplate::parse(kPlain);
  ChatRequest req = request(R"([{"role": "user", "content": "go"}, {"role": "assistant", "content": "Once upon "}])");
  req.continue_final_message = true;
  EXPECT_NE(render(*chat, req).find("cannot both be true"), std::string::npos);
  req.add_generation_prompt = false;
  EXPECT_EQ(render(*chat, req), "<s><user>go</user><assistant>Once upon");
  const auto keeps = ChatTemplate::parse("{% for m in messages %}{{ m.content }}|{% endfor %}");
  EXPECT_EQ(render(*keeps, req), "go|Once upon ");
  const auto changes = ChatTemplate::parse("{% for m in messages %}{{ m.content|upper }}{% endfor %}");
  EXPECT_NE(render(*changes, req).find("is not in the rendered prompt"), std::string::npos);
  req.messages = json::Value(json::Array{});
  EXPECT_NE(render(*chat, req).find("no text to continue"), std::string::npos);
}

TEST(ChatTemplate, PassesOnWhatTheTemplateRefuses) {
  const auto chat = ChatTemplate::parse("{{ raise_exception('no system role') }}");
  const auto result = chat->render(request("[]"));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, std::string(jinja::kRaisedPrefix) + "no system role");
  EXPECT_FALSE(chat->render(ChatRequest{}).ok());
}

}  // namespace
}  // namespace quire::text
