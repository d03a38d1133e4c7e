// SPDX-License-Identifier: Apache-2.0
// HTML from the tables of the API.
#include "api/documents.h"

#include "api/schema.h"

namespace quire::api {
namespace {

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

constexpr const char* kStyle =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 "
    "1rem;color:#222;background:#fff}"
    "h1{margin-bottom:0}code,pre{font:14px ui-monospace,monospace;background:#f4f4f2;border-radius:4px}"
    "code{padding:.1em .3em}pre{padding:1em;overflow-x:auto}table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;vertical-align:top;padding:.3em .6em;border-bottom:1px solid #ddd}"
    "details{margin:.5em 0}summary{cursor:pointer}.m{color:#777}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}code,pre{background:#2a2a2a}"
    "td,th{border-color:#444}}";

}  // namespace

std::string docs_page(std::string_view version, std::string_view model) {
  std::string out = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>quire</title>";
  out +=
      "<meta name=\"viewport\" content=\"width=device-width\"><style>" + std::string(kStyle) + "</style></head><body>";
  out += "<h1>quire</h1><p class=\"m\">version " + escape(version) + ", serving <code>" + escape(model) + "</code></p>";
  out +=
      "<pre>curl http://HOST:PORT/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "  -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"max_tokens\": 64}'</pre>";
  out +=
      "<p>The names and shapes are vLLM's and OpenAI's; <a href=\"openapi.json\">openapi.json</a> describes them to "
      "programs. Fields that are not listed are accepted and ignored.</p>";
  for (const RouteDoc& route : route_docs()) {
    out += "<details><summary><code>" + std::string(route.method) + " " + escape(route.path) + "</code> " +
           escape(route.summary) + "</summary>";
    if (route.schema != nullptr) {
      out += "<table><tr><th>Field</th><th>Default</th><th></th></tr>";
      for (const Field& field : route.schema->fields) {
        out += "<tr><td><code>" + std::string(field.name) + "</code>" + (field.required ? " (required)" : "") +
               "</td><td>" + escape(field.fallback) + "</td><td>" + escape(field.doc) +
               (field.refused != nullptr ? " Refused for now." : "") + "</td></tr>";
      }
      out += "</table>";
    }
    out += "</details>";
  }
  return out + "</body></html>";
}

}  // namespace quire::api
