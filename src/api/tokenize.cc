// SPDX-License-Identifier: Apache-2.0
// /tokenize and /detokenize.
#include "api/json_writer.h"
#include "api/request_fields.h"

namespace quire::api {
namespace {

ApiResult<std::vector<int32_t>> tokens_of(const Service& service, const Body& body) {
  const bool chat = body.has("messages");
  if (chat == body.has("prompt")) return bad_request("give either prompt or messages.", "prompt");
  if (chat) {
    auto input = read_chat(body);
    if (!input.ok()) return input.error();
    return chat_tokens(service, std::move(*input));
  }
  auto ids =
      service.model().tokens_of(llm::TextPrompt{body.string("prompt"), body.boolean("add_special_tokens", true)});
  if (!ids.ok()) return to_api_error(ids.error());
  return std::move(*ids);
}

ApiResult<std::string> tokenize(const Service& service, const HttpRequest& request) {
  auto body = Body::parse(request.body, tokenize_schema());
  if (!body.ok()) return body.error();
  if (auto known = service.check_model(*body); !known.ok()) return known.error();
  auto ids = tokens_of(service, *body);
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
