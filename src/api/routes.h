// SPDX-License-Identifier: Apache-2.0
// The route table: every endpoint of the server is one row and one function. The server finds a request's endpoint in
// it, http asks it which paths need an API key, and the documents of the API are made from it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "api/handler.h"
#include "api/schema.h"

namespace quire::api {

class Host;
class Service;

// Answers a request through its reply, now or later: one about a model, or one about the server.
using Endpoint = void(Service& service, const HttpRequest& request, const ReplyPtr& reply);
using HostEndpoint = void(Host& host, const HttpRequest& request, const ReplyPtr& reply);

// What a row says beyond method, path, endpoint and summary; its members are given by name.
struct RouteOptions {
  const Schema& (*schema)() = nullptr;                 // the table of the JSON body; null: the route takes no body
  std::string_view content_type = "application/json";  // of the answer
  bool needs_key = true;                               // if the server has keys
  bool any_method = false;                             // answers every method; `method` is the documented one
  bool is_prefix = false;                              // answers every path that begins with `path`
  bool generates = false;                              // needs a model that generates text
  bool pools = false;                                  // needs a model that makes embeddings or scores
  bool slow = false;                                   // runs on a worker, though it takes no body
};

// One row. An endpoint with a body, or a slow one, runs on a worker thread. The others run on an I/O thread and must
// return at once.
struct Route {
  std::string_view method;      // "GET" (which answers HEAD as well) or "POST"
  std::string_view path;        // "{name}" stands for one or more characters, slashes among them
  Endpoint* endpoint;           // null if the route is about the server
  HostEndpoint* host_endpoint;  // null if it is about a model
  std::string_view summary;
  RouteOptions options;
};

// The rows, in the order of the documents. Any thread.
std::span<const Route> routes();
// The row that answers; null: none does. An empty method stands for any.
const Route* find_route(std::string_view method, std::string_view path);
// "GET, HEAD": the methods other than this one that the path takes; "" if there are none.
std::string other_methods(std::string_view method, std::string_view path);
// A path of the table that a client may have meant by one that is not in it, or "": another case, needless slashes, a
// missing or doubled /v1, a slip of the keyboard.
std::string similar_path(std::string_view path);
// The path as its row has it ("/v1/models/{name}"), or "none": the label of the http_* metrics.
std::string_view route_label(std::string_view path);
// Whether the path needs an API key, if the server has keys. A path without a row does.
bool needs_key(std::string_view path);

// The endpoints; each is in the file that is named for it.
Endpoint serve_chat;                                                           // chat.cc
Endpoint serve_completions;                                                    // completions.cc
Endpoint serve_invocations;                                                    // invocations.cc
Endpoint serve_responses, serve_input_tokens;                                  // responses.cc
Endpoint serve_messages, serve_count_tokens;                                   // messages.cc
Endpoint serve_tokenizer_info;                                                 // models.cc
Endpoint serve_tokenize, serve_detokenize;                                     // tokenize.cc
Endpoint serve_load_lora_adapter;                                              // adapters.cc
HostEndpoint serve_unload_lora_adapter;                                        // adapters.cc
Endpoint serve_embeddings, serve_cohere_embed;                                 // embeddings.cc
Endpoint serve_score, serve_rerank;                                            // scores.cc
Endpoint serve_classify, serve_pooling;                                        // pooling.cc
HostEndpoint serve_response_by_id;                                             // responses.cc
HostEndpoint serve_models, serve_model, serve_ps;                              // models.cc
HostEndpoint serve_health, serve_version, serve_load, serve_kv_event_sources;  // status.cc
HostEndpoint serve_metrics, serve_reset_prefix_cache;                          // status.cc
HostEndpoint serve_openapi, serve_docs;                                        // status.cc
HostEndpoint serve_page, serve_page_script, serve_page_style;                  // page.cc
HostEndpoint serve_live, serve_live_page;                                      // live.cc

}  // namespace quire::api
