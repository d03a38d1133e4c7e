// SPDX-License-Identifier: Apache-2.0
// Connection: one client's socket. Worker: an I/O thread with many connections.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "http/exchange.h"
#include "http/gate.h"
#include "http/request_reader.h"
#include "http/server.h"

namespace quire::http {

using SystemError = boost::system::error_code;
// TCP and unix sockets alike, without the cost of a type-erased executor.
using Socket =
    boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, boost::asio::io_context::executor_type>;
using SharedTls = std::shared_ptr<boost::asio::ssl::context>;

// What all threads of a server share; constant except for the counters.
struct ServerState {
  ServerState(const ServerOptions& server_options, api::Handler api_handler);

  const ServerOptions options;
  const api::Handler handler;
  const ReadLimits limits;
  const KeyRing keys;
  const Cors cors;
  const std::shared_ptr<std::atomic<int64_t>> in_flight;
  const std::shared_ptr<std::atomic<int64_t>> held_body_bytes;
  std::atomic<bool> stopping{false};

  // Counts connections; wait_quiet() waits until there are none, and returns whether that happened in time.
  std::atomic<int64_t> connections{0};
  void connection_ended();
  bool wait_quiet(Clock::time_point until);

 private:
  std::mutex mutex_;
  std::condition_variable quiet_;
};

// Counts the bytes of one request's body among those that the server holds. It lives as long as the body does, so it
// may outlive the server. One thread at a time.
class BodyHold {
 public:
  explicit BodyHold(std::shared_ptr<std::atomic<int64_t>> total) : total_(std::move(total)) {}
  ~BodyHold() { *total_ -= bytes_; }
  BodyHold(const BodyHold&) = delete;
  BodyHold& operator=(const BodyHold&) = delete;
  void add(int64_t bytes) {
    bytes_ += bytes;
    *total_ += bytes;
  }
  int64_t bytes() const { return bytes_; }
  int64_t total() const { return *total_; }

 private:
  const std::shared_ptr<std::atomic<int64_t>> total_;
  int64_t bytes_ = 0;
};

class Connection;

// One I/O thread. It owns its connections, which stay with it. schedule() may be called from any thread; it gathers the
// connections that have something to write, so that the tokens of one step for a thousand streams wake the thread once.
// All other functions are called on the thread itself.
class Worker {
 public:
  explicit Worker(ServerState& state);
  ~Worker();

  ServerState& state() { return state_; }
  boost::asio::io_context& io() { return io_; }
  void start();
  void finish();  // lets the thread end after its last operation, and waits for it
  void schedule(std::shared_ptr<Connection> connection);

  void add(std::shared_ptr<Connection> connection);
  void remove(Connection& connection);
  void stop_idle();
  void break_off();
  void drop_all();

 private:
  void drain();
  void arm_sweep();

  ServerState& state_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_;
  boost::asio::steady_timer sweep_timer_;
  Clock::duration tick_;
  bool finishing_ = false;
  std::thread thread_;
  std::vector<std::shared_ptr<Connection>> connections_;

  std::mutex mutex_;                                // guards dirty_
  std::vector<std::shared_ptr<Connection>> dirty_;  // those that have something to write
};

// The bytes that have been read and not yet parsed.
class InBuffer {
 public:
  std::string_view view() const { return {data_.get() + begin_, end_ - begin_}; }
  size_t size() const { return end_ - begin_; }
  size_t capacity() const { return capacity_; }
  void consume(size_t count) { begin_ += count; }
  void commit(size_t count) { end_ += count; }
  // Room for `count` bytes after the last one. The held bytes may move. REQUIRES: no read is under way.
  char* prepare(size_t count);

 private:
  std::unique_ptr<char[]> data_;
  size_t capacity_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
};

// Reads requests one after the other, passes each to the handler and writes its answer. While an answer is pending it
// keeps reading (a little), to notice that the client leaves. All functions run on the thread of its Worker, except
// wake(), which may be called from any thread. The worker and the pending operations keep it alive; drop() is the only
// way it ends: it tells the exchange, closes the socket and leaves the worker.
//
// A client that closes its sending side looks like one that has left, until something is sent to it: then the kernel of
// a client that has left answers with a reset. So at the end of input an unanswered HTTP/1.1 request is sent a few
// bytes that mean nothing ("100 Continue"; inside a chunked body a leading zero of the next chunk's size). A client
// that has left is then noticed within a round trip, and one that only stopped sending gets its answer. HTTP/1.0 and
// TLS have no such bytes (or no such clients): there the end of input closes the connection.
class Connection : public Outlet, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Worker& worker, std::string peer);

  void start();
  void refuse();  // answers 503 without reading a request, and closes
  void wake() override;
  void pump();  // writes what is queued; when an answer has been sent, goes on to the next request
  void sweep(Clock::time_point now);
  void begin_stop(bool waited = false);
  void break_off();  // ends a pending answer with an error that says why
  void drop();

  size_t index = 0;  // its place among its worker's connections

 protected:
  // The operations of the stream. Each completes by calling its on_ function below, never from within the start_ call.
  virtual void start_handshake() = 0;
  virtual void start_read(char* data, size_t size) = 0;
  virtual void start_write(const std::vector<boost::asio::const_buffer>& buffers) = 0;
  virtual void start_wait_error() = 0;
  virtual void start_shutdown() = 0;  // closes the sending side; calls nothing when done
  virtual void close_socket(bool reset) = 0;
  virtual int descriptor() = 0;
  virtual bool encrypted() const = 0;

  void on_handshake(const SystemError& error);
  void on_read(const SystemError& error, size_t size);
  void on_write(const SystemError& error, size_t size);
  void on_wait_error(const SystemError& error);

 private:
  enum class Phase { kHandshake, kIdle, kHead, kBody, kAnswer, kLinger, kClosed };

  void arm_read();
  void parse();
  void on_head();
  void on_bad();
  bool hold_body(size_t bytes);
  void dispatch();
  void answer(int status, std::string_view content_type, std::string body, const api::Headers& extra, bool keep_alive);
  void remember_request();
  void forget_request();
  ReplyTerms terms(bool keep_alive) const;
  void on_eof();
  void probe();
  void write();
  size_t unsent() const;
  void finish_answer(bool keep_alive);
  void begin_close();
  void log_access();
  bool has_unread_bytes();
  void look_for_hangup();
  Clock::time_point after(double seconds) const;

  Worker& worker_;
  ServerState& state_;
  const std::string peer_;
  Phase phase_ = Phase::kIdle;
  std::atomic<bool> scheduled_{false};
  Clock::time_point read_deadline_ = Clock::time_point::max();
  Clock::time_point write_deadline_ = Clock::time_point::max();
  Clock::time_point linger_end_;

  InBuffer in_;
  bool reading_ = false;
  bool eof_ = false;
  bool late_ = false;  // has been answered 408
  RequestReader reader_;
  std::shared_ptr<BodyHold> body_hold_;  // null unless a body is being read

  std::deque<std::string> out_;
  size_t out_offset_ = 0;  // of the first segment
  bool writing_ = false;
  std::vector<boost::asio::const_buffer> buffers_;

  // The request that is being answered.
  std::shared_ptr<Exchange> current_;
  std::string method_;
  std::string path_;
  std::string id_;
  bool http10_ = false;
  bool head_only_ = false;
  bool anthropic_ = false;  // the client expects errors in Anthropic's shape
  int64_t request_bytes_ = 0;
  Clock::time_point request_start_;
  api::Headers answer_headers_;
};

std::shared_ptr<Connection> make_connection(Worker& worker, Socket socket, std::string peer);
std::shared_ptr<Connection> make_tls_connection(Worker& worker, Socket socket, std::string peer, SharedTls tls);

}  // namespace quire::http
