// SPDX-License-Identifier: Apache-2.0
// /tokenize and /detokenize.
#include <algorithm>

#include "api/json_writer.h"
#include "api/request_fields.h"
#include "api/roles.h"

namespace quire::api {
namespace {

// More ids than this are not turned to text in one request, unless the model's context holds more: a token may stand
// for a hundred bytes and more, and the text is made in one piece.
constexpr int64_t kMaxDetokenised = 65536;

ApiResult<std::vector<int32_t>> tokens_of(const Service& service, const HttpRequest& request, const Body& body) {
  const bool chat = body.has("messages");
  if (chat == body.has("prompt")) return bad_request("give either prompt or messages.", "prompt");
  if (chat) {
    auto input = read_chat(body);
    if (!input.ok()) return input.error();
    if (auto roles = check_roles(service, *input); !roles.ok()) return roles.error();
    input->cancelled = request.cancelled;
    return chat_tokens(service, std::move(*input));
  }
  std::string text = body.string("prompt");
  if (auto length = check_text_length(service, text.size()); !length.ok()) return length.error();
  auto ids = service.model().tokens_of(llm::TextPrompt{std::move(text), body.boolean("add_special_tokens", true)});
  if (!ids.ok()) return to_api_error(ids.error());
  return std::move(*ids);
}

ApiResult<std::string> tokenize(const Service& service, const HttpRequest& request) {
  auto body = Body::parse(request.body, tokenize_schema());
  if (!body.ok()) return body.error();
  if (auto known = service.check_model(*body); !known.ok()) return known.error();
  auto ids = tokens_of(service, request, *body);
  if (!ids.ok()) return ids.error();
  JsonWriter w;
  w.open_object().member_int("count", static_cast<int64_t>(ids->size()));
  w.member_int("max_model_len", service.model().max_model_len()).key("tokens");
  write_ids(w, *ids);
  w.key("token_strs");
  if (body->boolean("return_token_strs", false)) {
    w.open_array();
    for (const int32_t id : *ids) w.string(service.model().tokenizer()->piece(id).value_or(""));
    w.close_array();
  } else {
    w.null();
  }
  w.close_object();
  return w.take();
}

ApiResult<std::string> detokenize(const Service& service, const HttpRequest& request) {
  auto body = Body::parse(request.body, detokenize_schema());
  if (!body.ok()) return body.error();
  if (auto known = service.check_model(*body); !known.ok()) return known.error();
  const auto& tokenizer = service.model().tokenizer();
  if (tokenizer == nullptr) return bad_request("this model has no tokenizer; give one with --tokenizer.");
  const auto most = static_cast<size_t>(std::max(service.model().max_model_len(), kMaxDetokenised));
  if (const size_t size = body->get("tokens")->as_array().size(); size > most) {
    return bad_request(
        "tokens has " + std::to_string(size) + " ids; at most " + std::to_string(most) + " are taken in one request.",
        "tokens");
  }
  const std::vector<int32_t> ids = body->ints("tokens");
  for (const int32_t id : ids) {
    if (id >= service.model().engine().model().config().vocab_size) {
      return bad_request("tokens has the id " + std::to_string(id) + ", which is out of the vocabulary.", "tokens");
    }
  }
  JsonWriter w;
  w.open_object().member("prompt", tokenizer->decode(ids, false)).close_object();
  return w.take();
}

void answer(const ReplyPtr& reply, ApiResult<std::string> result) {
  if (!result.ok()) return send_error(*reply, result.error());
  send_json(*reply, 200, std::move(*result));
}

}  // namespace

void serve_tokenize(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  answer(reply, tokenize(service, request));
}

void serve_detokenize(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  answer(reply, detokenize(service, request));
}

}  // namespace quire::api
