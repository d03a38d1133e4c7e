// SPDX-License-Identifier: Apache-2.0
// The page at /, with its script and its style; and for other programs than browsers, a text that says what is here.
#include "api/host.h"
#include "api/page_texts.h"

namespace quire::api {
namespace {

// Nothing but its own two files runs, and it talks to this server only. The icon is in the page itself.
Headers page_headers() {
  return {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
       "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cache-Control", "no-cache"},
      {"Vary", "Accept"}};
}

void send_file(Host& host, const HttpRequest& request, Reply& reply, std::string_view type, std::string_view text) {
  if (!host.options().page) return refuse_route(request, reply);
  reply.send(200, type, std::string(text), page_headers());
}

// The models and, unless the documents are turned off, the routes, one per line.
std::string overview(const Host& host) {
  std::string out = "quire " + host.options().version + " serves";
  for (const HostedModel& model : host.models()) out += (&model == &host.models()[0] ? " " : ", ") + model.names[0];
  out += ". A browser shows a page here.\n";
  if (host.options().disable_docs) return out;
  out += "/docs describes the API:\n\n";
  for (const Route& route : routes()) {
    if (route.path == "/" || route.path.starts_with("/page.")) continue;
    out.append(route.method).append(route.method.size() < 4 ? "  " : " ").append(route.path);
    out.append(route.path.size() < 28 ? 28 - route.path.size() : 1, ' ').append(route.summary).append("\n");
  }
  return out;
}

}  // namespace

void serve_page(Host& host, const HttpRequest& request, const ReplyPtr& reply) {
  if (!host.options().page) return serve_docs(host, request, reply);
  const std::string* accept = request.header("Accept");
  if (accept == nullptr || accept->find("text/html") == std::string::npos) {
    return reply->send(200, "text/plain; charset=utf-8", overview(host), {{"Vary", "Accept"}});
  }
  send_file(host, request, *reply, "text/html; charset=utf-8", kHtml);
}

void serve_page_script(Host& host, const HttpRequest& request, const ReplyPtr& reply) {
  send_file(host, request, *reply, "text/javascript; charset=utf-8", kJs);
}

void serve_page_style(Host& host, const HttpRequest& request, const ReplyPtr& reply) {
  send_file(host, request, *reply, "text/css; charset=utf-8", kCss);
}

}  // namespace quire::api
