// SPDX-License-Identifier: Apache-2.0
// The route table: which row answers, which paths need a key, and that the rows make sense.
#include "api/routes.h"

#include <gtest/gtest.h>

#include <set>

namespace quire::api {
namespace {

TEST(Routes, AreWrittenOnceEach) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const Route& route : routes()) {
    EXPECT_TRUE(seen.emplace(route.method, route.path).second) << route.path << " twice";
    EXPECT_TRUE(route.method == "GET" || route.method == "POST") << route.path;
    EXPECT_TRUE(route.options.schema == nullptr || route.method == "POST") << route.path;
    EXPECT_NE(route.endpoint == nullptr, route.host_endpoint == nullptr) << route.path;
    EXPECT_TRUE(route.path.starts_with('/') && route.summary.ends_with('.')) << route.path;
  }
}

TEST(Routes, AreFoundByMethodAndPath) {
  EXPECT_EQ(find_route("POST", "/v1/chat/completions")->endpoint, &serve_chat);
  EXPECT_EQ(find_route("GET", "/v1/chat/completions"), nullptr);
  EXPECT_EQ(find_route("", "/v1/chat/completions")->endpoint, &serve_chat);
  EXPECT_EQ(find_route("POST", "/v1/chat/completions/"), nullptr);
  EXPECT_EQ(find_route("GET", "/nothing"), nullptr);
  EXPECT_EQ(find_route("POST", "/ping")->host_endpoint, &serve_health);
  EXPECT_EQ(find_route("GET", "/")->host_endpoint, &serve_page);
  EXPECT_EQ(find_route("GET", "/v1/models/org/name")->host_endpoint, &serve_model);
  EXPECT_EQ(find_route("GET", "/v1/models/"), nullptr);
}

TEST(Routes, AreSuggestedForPathsThatAreNearlyRight) {
  const std::pair<const char*, const char*> cases[] = {{"/v1/v1/chat/completions", "/v1/chat/completions"},
                                                       {"/chat/completions", "/v1/chat/completions"},
                                                       {"/v1/models/", "/v1/models"},
                                                       {"//v1/models", "/v1/models"},
                                                       {"/V1/Models", "/v1/models"},
                                                       {"/v1/chat/completion", "/v1/chat/completions"},
                                                       {"/completions", "/v1/completions"},
                                                       {"/v1/files/abc", ""},
                                                       {"/v1/v1/v1", ""},
                                                       {"//", "/"},
                                                       {"", ""}};
  for (const auto& [path, meant] : cases) EXPECT_EQ(similar_path(path), meant) << path;
}

TEST(Routes, TakeEveryMethodWhereTheRowSaysSo) {
  for (const char* method : {"GET", "POST", "DELETE"}) {
    EXPECT_EQ(find_route(method, "/v1/responses/resp_1")->host_endpoint, &serve_response_by_id) << method;
    EXPECT_EQ(find_route(method, "/v1/responses/resp_1/cancel")->host_endpoint, &serve_response_by_id) << method;
  }
  EXPECT_EQ(find_route("DELETE", "/v1/responses"), nullptr);
}

TEST(Routes, NameTheOtherMethods) {
  EXPECT_EQ(other_methods("GET", "/v1/completions"), "POST");
  EXPECT_EQ(other_methods("POST", "/v1/models/x"), "GET, HEAD");
  EXPECT_EQ(other_methods("PUT", "/ping"), "GET, HEAD, POST");
  EXPECT_EQ(other_methods("GET", "/docs"), "") << "an endpoint that is turned off answers 404";
  EXPECT_EQ(other_methods("GET", "/nothing"), "");
}

TEST(Routes, LabelMetrics) {
  const std::pair<const char*, const char*> cases[] = {
      {"/v1/models", "/v1/models"},
      {"/v1/models/a/b", "/v1/models/{name}"},
      {"/v1/responses/x", "/v1/responses/{id}"},
      {"/v1/responses/x/cancel", "/v1/responses/{id}/cancel"},
      {"/metrics/", "/metrics"},
      {"/etc/passwd", "none"},
      {"", "none"},
  };
  for (const auto& [path, label] : cases) EXPECT_EQ(route_label(path), label) << path;
}

// Only what probes, scrapers and readers of the documentation ask for, which costs next to nothing, needs no key.
TEST(Routes, NeedAKeyUnlessTheirRowSaysOtherwise) {
  for (const char* path :
       {"/health", "/ping", "/metrics", "/metrics/", "/version", "/load", "/docs", "/openapi.json", "/"}) {
    EXPECT_FALSE(needs_key(path)) << path;
  }
  for (const char* path :
       {"/v1/models", "/v1/models/x", "/ps", "/v1/chat/completions", "/v1/responses/x", "/invocations",
        "/reset_prefix_cache", "/tokenize", "/detokenize", "/tokenizer_info", "/healthy", "/none"}) {
    EXPECT_TRUE(needs_key(path)) << path;
  }
}

}  // namespace
}  // namespace quire::api
