// SPDX-License-Identifier: Apache-2.0
// /tokenize and /detokenize.
#include <algorithm>

#include "api/conversation.h"
#include "api/json_writer.h"
#include "api/roles.h"

namespace quire::api {
namespace {

// One request may have this many ids, or max_model_len if that is more: a token may be more than a hundred bytes, and
// the text is built as one string.
constexpr int64_t kMaxDetokenised = 65536;

ApiResult<std::vector<int32_t>> tokens_of(const Service& service, const HttpRequest& request, const Body& body) {
  const bool chat = body.has("messages");
  if (chat == body.has("prompt")) return bad_request("give either prompt or messages.", "prompt");
  if (chat) {
    QUIRE_ASSIGN(ChatInput input, read_chat(body));
    QUIRE_TRY(check_roles(service, input));
    QUIRE_ASSIGN(const ToolSet tools, read_chat_tools(body));
    show_tools(service, tools, input);
    input.cancelled = request.cancelled;
    QUIRE_ASSIGN(ChatTokens tokens, chat_tokens(service, std::move(input)));
    return std::move(tokens.ids);
  }
  std::string text = body.string("prompt");
  QUIRE_TRY(check_text_length(service, text.size()));
  QUIRE_ASSIGN(auto ids,
               service.model().tokens_of(llm::TextPrompt{std::move(text), body.boolean("add_special_tokens", true)}));
  return ids;
}

ApiResult<std::string> tokenize(const Service& service, const HttpRequest& request) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, tokenize_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(const std::vector<int32_t> ids, tokens_of(service, request, body));
  JsonWriter w;
  w.open_object().member_int("count", static_cast<int64_t>(ids.size()));
  w.member_int("max_model_len", service.model().max_model_len()).key("tokens");
  write_ids(w, ids);
  w.key("token_strs").value_or_null(body.boolean("return_token_strs", false), [&] {
    w.open_array();
    for (const int32_t id : ids) w.string(service.model().tokenizer()->piece(id).value_or(""));
    w.close_array();
  });
  return w.close_object().take();
}

ApiResult<std::string> detokenize(const Service& service, const HttpRequest& request) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, detokenize_schema()));
  QUIRE_TRY(service.check_model(body));
  const auto& tokenizer = service.model().tokenizer();
  if (tokenizer == nullptr) return bad_request("this model has no tokenizer; give one with --tokenizer.");
  const auto most = static_cast<size_t>(std::max(service.model().max_model_len(), kMaxDetokenised));
  if (const size_t size = body.get("tokens")->as_array().size(); size > most) {
    return bad_field("tokens", {"has ", size, " ids; at most ", most, " are taken in one request."});
  }
  const std::vector<int32_t> ids = body.ints("tokens");
  for (const int32_t id : ids) {
    if (id >= service.model().engine().model().config().vocab_size) {
      return bad_field("tokens", {"has the id ", id, ", which is out of the vocabulary."});
    }
  }
  JsonWriter w;
  w.open_object().member("prompt", tokenizer->decode(ids, false)).close_object();
  return w.take();
}

void answer(const ReplyPtr& reply, ApiResult<std::string> result) {
  if (!result.ok()) return send_error(*reply, result.error());
  send_json(*reply, std::move(*result));
}

}  // namespace

void serve_tokenize(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  answer(reply, tokenize(service, request));
}

void serve_detokenize(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  answer(reply, detokenize(service, request));
}

}  // namespace quire::api
