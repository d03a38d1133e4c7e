// SPDX-License-Identifier: Apache-2.0
// What a handler sees of HTTP: a request, and the reply to it. src/http makes both; nothing here knows a socket.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::api {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // as sent: "GET"; a HEAD comes as GET, and its answer goes without the body
  std::string path;    // decoded, without the query and without --root-path
  std::string query;   // what stood behind '?', still encoded
  Headers headers;
  std::string body;
  std::string peer;    // "127.0.0.1:52814", for logs
  std::string id;      // the X-Request-Id header, or 32 random hex digits
  std::string caller;  // the name of the API key that it came with; "": none
  // Counts the body among those that the server holds, for as long as the request lives.
  std::shared_ptr<const void> body_hold;

  // Set while a worker handles the request: turns true when nobody waits for the answer any more.
  const std::atomic<bool>* cancelled = nullptr;

  // The first header of that name, without regard to case; null when there is none.
  const std::string* header(std::string_view name) const;
  // Whether its client reads errors in Anthropic's shape: /v1/messages, and the routes of both forms when they are
  // asked with Anthropic's version header.
  bool from_anthropic_client() const;
};

// The answer to one request. Any thread may call; calls do not block and do not throw. Either send() once, or begin(),
// write() any number of times and end(). A Reply that is dropped unfinished closes the connection. Nothing that is
// called after the client went away does harm.
class Reply {
 public:
  virtual ~Reply() = default;

  virtual void send(int status, std::string_view content_type, std::string body, Headers extra = {}) = 0;

  // Starts a streamed answer (chunked; on HTTP/1.0 the end of the connection is the end of the answer).
  virtual void begin(int status, std::string_view content_type, Headers extra = {}) = 0;
  // Queues a piece. False: the client is gone, or reads so slowly that its buffer is full; then the connection is being
  // closed, the gone callback has been or will be called, and there is no use in writing on.
  virtual bool write(std::string piece) = 0;
  virtual void end() = 0;

  // Called once, on an I/O thread, if the client goes away (or is thrown out, or the server stops) before the answer is
  // complete; at once, from this call, if it is gone already. Never called after end() or send().
  virtual void on_gone(std::function<void()> callback) = 0;

  // Called once, on an I/O thread, when the server stops and will not wait longer for this answer: the handler ends it
  // now, with an error in the answer's own form. At once, from this call, if that moment has passed. An answer that has
  // not begun and has no such callback is a 503, and its gone callback is called. Never called after end() or send().
  virtual void on_stop(std::function<void()> callback) = 0;

  // Adds "key=value" to this request's access line.
  virtual void note(std::string_view key, std::string_view value) = 0;
};
using ReplyPtr = std::shared_ptr<Reply>;

// Called on an I/O thread for each request, in the order in which a connection sent them; must be quick (hand long work
// to another thread). The reply may come later, from any thread.
using Handler = std::function<void(HttpRequest, ReplyPtr)>;

}  // namespace quire::api
