// SPDX-License-Identifier: Apache-2.0
// What a handler sees of HTTP: a request, and the reply to it. src/http creates both; nothing here knows sockets.
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
  std::string method;  // "GET"; a HEAD arrives as GET, and http leaves out the body of its answer
  std::string path;    // decoded, without the query and without --root-path
  std::string query;   // the part after '?', still encoded
  Headers headers;
  std::string body;
  std::string peer;    // "127.0.0.1:52814", for logs
  std::string id;      // the X-Request-Id header, or 32 random hex digits
  std::string caller;  // the name of its API key; "": none
  // Counts the body among the bytes that the server holds, for as long as the request lives.
  std::shared_ptr<const void> body_hold;

  // Set while a worker handles the request; becomes true when nobody waits for the answer any more.
  const std::atomic<bool>* cancelled = nullptr;

  // The first header of that name, ignoring case; null if there is none.
  const std::string* header(std::string_view name) const;
  // The value of a name in the query, decoded; "" if there is none.
  std::string query_value(std::string_view name) const;
  // Whether its client expects errors in Anthropic's shape: on /v1/messages, and on /v1/models if the request has
  // Anthropic's version header.
  bool from_anthropic_client() const;
};

// The answer to one request. Either send() once, or begin(), write() any number of times and end(). A Reply that is
// destroyed unfinished closes the connection. All calls are harmless after the client went away. Any thread may call;
// calls neither block nor throw.
class Reply {
 public:
  virtual ~Reply() = default;

  virtual void send(int status, std::string_view content_type, std::string body, Headers extra = {}) = 0;

  // Starts a streamed answer (chunked; on HTTP/1.0 the end of the connection is the end of the answer).
  virtual void begin(int status, std::string_view content_type, Headers extra = {}) = 0;
  // Queues a piece. Returns false if the client is gone, or reads so slowly that its buffer is full. Then the
  // connection is being closed, the gone callback has been or will be called, and further writes are useless.
  virtual bool write(std::string piece) = 0;
  virtual void end() = 0;

  // The callback is called once, on an I/O thread, if the client goes away (or is disconnected, or the server stops)
  // before the answer is complete; if it is gone already, at once, from this call. Never after end() or send().
  virtual void on_gone(std::function<void()> callback) = 0;

  // The callback is called once, on an I/O thread, when the server stops and no longer waits for this answer: the
  // handler then ends it with an error in the answer's own form. If that moment has passed, it is called at once, from
  // this call. Never after end() or send(). An answer that has not begun and has no such callback becomes a 503, and
  // its gone callback is called.
  virtual void on_stop(std::function<void()> callback) = 0;

  // Adds "key=value" to the access log line of this request.
  virtual void note(std::string_view key, std::string_view value) = 0;
};
using ReplyPtr = std::shared_ptr<Reply>;

// Called on an I/O thread for each request, in the order in which a connection sent them. It must be quick: long work
// goes to another thread. The reply may come later, from any thread.
using Handler = std::function<void(HttpRequest, ReplyPtr)>;

}  // namespace quire::api
