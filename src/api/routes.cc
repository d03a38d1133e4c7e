// SPDX-License-Identifier: Apache-2.0
// The rows of the route table, and looking one up.
#include "api/routes.h"

#include <cctype>
#include <string>
#include <vector>

#include "base/suggest.h"

namespace quire::api {
namespace {

constexpr Route get(std::string_view path, Endpoint* endpoint, std::string_view summary, RouteOptions options = {}) {
  return {"GET", path, endpoint, nullptr, summary, options};
}
constexpr Route get(std::string_view path, HostEndpoint* endpoint, std::string_view summary,
                    RouteOptions options = {}) {
  return {"GET", path, nullptr, endpoint, summary, options};
}
constexpr Route post(std::string_view path, Endpoint* endpoint, std::string_view summary, RouteOptions options = {}) {
  return {"POST", path, endpoint, nullptr, summary, options};
}
constexpr Route post(std::string_view path, HostEndpoint* endpoint, std::string_view summary,
                     RouteOptions options = {}) {
  return {"POST", path, nullptr, endpoint, summary, options};
}

constexpr Route kRoutes[] = {
    post("/v1/chat/completions", serve_chat, "Answers a conversation.", {.schema = chat_schema, .generates = true}),
    post("/v1/completions", serve_completions, "Continues a text.", {.schema = completion_schema, .generates = true}),
    post("/v1/responses", serve_responses, "Answers a conversation, in OpenAI's newer form.",
         {.schema = responses_schema, .generates = true}),
    post("/v1/responses/input_tokens", serve_input_tokens, "Counts the tokens of such a conversation.",
         {.schema = input_tokens_schema}),
    get("/v1/responses/{id}", serve_response_by_id, "Always a 404: answers are not kept.", {.any_method = true}),
    post("/v1/responses/{id}/cancel", serve_response_by_id,
         "Always a 404: answers are not kept; close the connection instead.", {.any_method = true}),
    post("/v1/messages", serve_messages, "Answers a conversation, in Anthropic's form.",
         {.schema = messages_schema, .generates = true}),
    post("/v1/messages/count_tokens", serve_count_tokens, "Counts a conversation's tokens.",
         {.schema = count_tokens_schema}),
    post("/v1/embeddings", serve_embeddings, "Embeddings of texts.", {.schema = embeddings_schema, .pools = true}),
    post("/v2/embed", serve_cohere_embed, "Embeddings of texts, in Cohere's form.",
         {.schema = cohere_embed_schema, .pools = true}),
    post("/score", serve_score, "How well documents answer queries.", {.schema = score_schema, .pools = true}),
    post("/v1/score", serve_score, "The same.", {.schema = score_schema, .pools = true}),
    post("/rerank", serve_rerank, "Sorts documents by how well they answer a query.",
         {.schema = rerank_schema, .pools = true}),
    post("/v1/rerank", serve_rerank, "The same.", {.schema = rerank_schema, .pools = true}),
    post("/v2/rerank", serve_rerank, "The same.", {.schema = rerank_schema, .pools = true}),
    post("/classify", serve_classify, "Classes of texts.", {.schema = classify_schema, .pools = true}),
    post("/pooling", serve_pooling, "Vectors or scores of texts or of their tokens, by task.",
         {.schema = pooling_schema, .pools = true}),
    get("/v1/models", serve_models, "The served names, for OpenAI's and Anthropic's clients."),
    get("/v1/models/{name}", serve_model, "One of them; its name may have slashes."),
    post("/v1/load_lora_adapter", serve_load_lora_adapter,
         "Loads a LoRA adapter under a name that requests use as their model; only with "
         "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.",
         {.schema = load_lora_adapter_schema, .content_type = "text/plain"}),
    post("/v1/unload_lora_adapter", serve_unload_lora_adapter,
         "Forgets an adapter; requests that run with it end as usual.",
         {.schema = unload_lora_adapter_schema, .content_type = "text/plain", .slow = true}),
    get("/ps", serve_ps, "Which models are loaded, with their requests, pages and memory."),
    post("/tokenize", serve_tokenize, "Token ids of a text or a conversation.", {.schema = tokenize_schema}),
    post("/detokenize", serve_detokenize, "Text of token ids.", {.schema = detokenize_schema}),
    get("/tokenizer_info", serve_tokenizer_info,
        "The tokenizer's settings; only with --enable-tokenizer-info-endpoint."),
    get("/health", serve_health,
        "200 while the server works; 503 and a sentence when workers or the engine make no progress.",
        {.content_type = "text/plain", .needs_key = false}),
    get("/ping", serve_health, "The same.", {.content_type = "text/plain", .needs_key = false}),
    post("/ping", serve_health, "The same.", {.content_type = "text/plain", .needs_key = false}),
    get("/version", serve_version, "The version.", {.needs_key = false}),
    get("/load", serve_load, "The requests that are being answered.", {.needs_key = false}),
    get("/kv_event_sources", serve_kv_event_sources, "Where KV events are published (--kv-events-config)."),
    get("/metrics", serve_metrics, "Prometheus metrics.",
        {.content_type = "text/plain", .needs_key = false, .is_prefix = true}),
    post("/reset_prefix_cache", serve_reset_prefix_cache,
         "Forgets the prefix cache, if no request runs; needs a key or --enable-reset-prefix-cache.", {.slow = true}),
    post("/invocations", serve_invocations,
         "SageMaker's name for chat (with messages), completions (with prompt) and, of models for pooling, "
         "embeddings or classes (with input or messages), scores (with queries), rerank (with query) and pooling "
         "(with task).",
         {.schema = completion_schema}),
    get("/openapi.json", serve_openapi, "This API as an OpenAPI document.", {.needs_key = false}),
    get("/docs", serve_docs, "This API as a page.", {.content_type = "text/html", .needs_key = false}),
    get("/live", serve_live,
        "The requests and the KV pages of a model (?model=NAME; else the first) as server-sent events, at most ten a "
        "second.",
        {.content_type = "text/event-stream"}),
    get("/live/page", serve_live_page,
        "What one KV page holds, and for whom (?id=PAGE, or ?tier=PAGE of those on disk; ?model=NAME)."),
    get("/", serve_page, "A page to chat with the model and to watch the server; text for other programs.",
        {.content_type = "text/html", .needs_key = false}),
    get("/page.js", serve_page_script, "Its script.", {.content_type = "text/javascript", .needs_key = false}),
    get("/page.css", serve_page_style, "Its style.", {.content_type = "text/css", .needs_key = false}),
};

bool matches(const Route& route, std::string_view path) {
  const std::string_view pattern = route.path;
  if (route.options.is_prefix) return path.starts_with(pattern);
  const size_t open = pattern.find('{');
  if (open == std::string_view::npos) return path == pattern;
  const std::string_view tail = pattern.substr(pattern.find('}') + 1);
  return path.size() > open + tail.size() && path.starts_with(pattern.substr(0, open)) && path.ends_with(tail);
}

}  // namespace

std::span<const Route> routes() {
  return kRoutes;
}

const Route* find_route(std::string_view method, std::string_view path) {
  const Route* best = nullptr;  // the longest: "/v1/responses/{id}/cancel" rather than "/v1/responses/{id}"
  for (const Route& route : kRoutes) {
    if (!method.empty() && method != route.method && !route.options.any_method) continue;
    if (matches(route, path) && (best == nullptr || route.path.size() > best->path.size())) best = &route;
  }
  return best;
}

std::string other_methods(std::string_view method, std::string_view path) {
  std::string allowed;
  for (const Route& route : kRoutes) {
    if (method == route.method || !matches(route, path)) continue;
    allowed += allowed.empty() ? "" : ", ";
    allowed += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  return allowed;
}

std::string similar_path(std::string_view path) {
  std::string tidy;
  for (const char c : path.substr(0, 200)) {
    if (c == '/' && tidy.ends_with('/')) continue;
    tidy += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (tidy.size() > 1 && tidy.ends_with('/')) tidy.pop_back();
  while (tidy.starts_with("/v1/v1/")) tidy.erase(0, 3);
  for (const std::string& meant : {tidy, "/v1" + tidy}) {
    if (meant != path && find_route("", meant) != nullptr) return meant;
  }
  std::vector<std::string> known;
  for (const Route& route : kRoutes) known.emplace_back(route.path);
  return closest_word(tidy, known, false).value_or("");
}

std::string_view route_label(std::string_view path) {
  const Route* route = find_route("", path);
  return route == nullptr ? "none" : route->path;
}

bool needs_key(std::string_view path) {
  const Route* route = find_route("", path);
  return route == nullptr || route->options.needs_key;
}

}  // namespace quire::api
