// SPDX-License-Identifier: Apache-2.0
// /invocations, the only route that SageMaker calls: the members of the body say which endpoint is meant.
#include <string_view>

#include "api/routes.h"
#include "api/schema.h"
#include "api/service.h"

namespace quire::api {
namespace {

// The endpoint of a model that makes embeddings, scores or classes. Null if no member tells.
Endpoint* pooling_endpoint(const llm::Llm& model, const json::Value& body) {
  const auto has = [&](const char* name) { return body.find(name) != nullptr; };
  if (has("query")) return serve_rerank;
  if (has("queries") || has("data_1") || has("text_1")) return serve_score;
  if (has("task")) return serve_pooling;
  if (!has("input") && !has("messages")) return nullptr;
  if (model.check_task(llm::PoolTask::kEmbed).ok()) return serve_embeddings;
  return model.check_task(llm::PoolTask::kClassify).ok() ? serve_classify : serve_pooling;
}

Endpoint* endpoint_of(const llm::Llm& model, std::string_view text) {
  const auto parsed = json::parse(text, body_limits());
  const json::Value nothing;
  const json::Value& body = parsed.ok() ? *parsed : nothing;
  if (model.generates()) {
    if (body.find("messages") != nullptr) return serve_chat;
    if (body.find("prompt") != nullptr) return serve_completions;
  }
  Endpoint* pooling = model.pools() ? pooling_endpoint(model, body) : nullptr;
  if (pooling != nullptr) return pooling;
  return model.generates() ? serve_completions : serve_embeddings;  // whose error says what is missing
}

}  // namespace

void serve_invocations(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  endpoint_of(service.model(), request.body)(service, request, reply);
}

}  // namespace quire::api
