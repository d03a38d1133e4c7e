// SPDX-License-Identifier: Apache-2.0
// Exchange: one answer on its way from the handler's thread to the connection's, with its bytes and its access record.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "api/handler.h"

namespace quire::http {

using Clock = std::chrono::steady_clock;

// Who takes an answer's bytes to the socket. wake() may be called from any thread, with the lock of the Exchange held.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void wake() = 0;
};

// What the request, the options and the gate say about the answer.
struct ReplyTerms {
  bool head_only = false;  // HEAD: the answer has its headers, but no body
  bool http10 = false;
  bool keep_alive = true;
  api::Headers headers;  // of every answer: CORS, the request's id
  size_t max_buffer = size_t{4} << 20;
  std::shared_ptr<std::atomic<int64_t>> in_flight;  // decremented when the answer is complete or broken off
};

// Shared by a handler (which uses it through a Reply) and a connection; one lock guards it. The handler's thread frames
// the bytes and the connection's thread takes them. When the answer is done or gone, the Exchange lets go of the
// connection, so a Reply that lives on costs nothing. Any thread.
class Exchange {
 public:
  Exchange(ReplyTerms terms, std::shared_ptr<Outlet> outlet);

  // The handler's side, as documented in api::Reply.
  void send(int status, std::string_view content_type, std::string body, const api::Headers& extra);
  void begin(int status, std::string_view content_type, const api::Headers& extra);
  bool write(std::string_view piece);
  void end();
  void on_gone(std::function<void()> callback);
  void on_stop(std::function<void()> callback);
  void note(std::string_view key, std::string_view value);
  void abandon();  // the Reply was destroyed

  // The connection's side, on its I/O thread.
  struct Progress {
    bool begun = false;       // the head is out
    bool complete = false;    // nothing more will come
    bool broken = false;      // close the connection: abandoned, or the reader is too slow
    bool keep_alive = false;  // after completion
  };
  // Moves the queued bytes to the end of `out`; `unsent` is the number of bytes that the connection already held.
  Progress take(std::deque<std::string>& out, size_t unsent);
  bool broken() const;
  bool complete() const;
  void gone();         // the connection is lost; calls the gone callback if the answer was not complete
  void close_after();  // this answer is the connection's last
  // The server stops: calls the handler's stop callback, which ends the answer. Without one, an answer that has not
  // begun becomes a 503 with this body.
  void break_off(std::string body);

  struct Summary {
    int status = 0;
    int64_t bytes = 0;
    bool gone = false;
    bool answered = false;  // the handler has sent a whole answer or written a first piece
    Clock::time_point first_byte;
    std::string notes;  // " key=value key=value"
  };
  Summary summary() const;

 private:
  enum class State { kOpen, kBegun, kBroken, kDone, kGone };
  std::string head(int status, std::string_view content_type, const api::Headers& extra, int64_t length) const;
  void queue(std::string_view bytes);
  void send_whole(int status, std::string_view content_type, std::string body, const api::Headers& extra);
  void finish(State state);  // kDone or kGone. REQUIRES: the caller holds the lock.
  bool unfinished() const { return state_ == State::kOpen || state_ == State::kBegun || state_ == State::kBroken; }

  mutable std::mutex mutex_;
  ReplyTerms terms_;
  std::shared_ptr<Outlet> outlet_;  // null once done or gone
  State state_ = State::kOpen;
  bool chunked_ = false;
  std::deque<std::string> pending_;
  size_t pending_bytes_ = 0;
  size_t unsent_ = 0;  // the bytes that the connection held at its last take()
  std::function<void()> gone_callback_;
  std::function<void()> stop_callback_;
  bool broken_off_ = false;
  Summary summary_;
};

// A Reply for a handler. If the last copy of the pointer is destroyed before the answer is complete, the exchange is
// abandoned.
api::ReplyPtr make_reply(std::shared_ptr<Exchange> exchange);

const char* reason_phrase(int status);
// The JSON of an error in OpenAI's shape, or in Anthropic's.
std::string error_body(int status, std::string_view message, bool anthropic = false);

}  // namespace quire::http
