// SPDX-License-Identifier: Apache-2.0
// The phases of a connection: read, parse, answer, linger, close.
#include "http/connection.h"

#include <openssl/rand.h>
#include <poll.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <cstring>
#include <exception>
#include <type_traits>
#include <utility>

#include "base/json.h"
#include "base/log.h"

namespace quire::http {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;

namespace {

constexpr size_t kIdleRead = size_t{4} << 10;
constexpr size_t kBodyRead = size_t{64} << 10;
constexpr size_t kReadAhead = size_t{16} << 10;  // the most that is read ahead while an answer is pending
constexpr size_t kMaxGather = 32;
constexpr Clock::duration kLingerQuiet = std::chrono::seconds(2);
constexpr Clock::duration kLingerTotal = std::chrono::seconds(10);

std::string random_id() {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) std::memset(bytes, 0, sizeof(bytes));
  std::string out;
  for (const unsigned char byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

// The client's own id if it can stand in a header and a log line, else a random one.
std::string request_id(const api::HttpRequest& request) {
  const std::string* given = request.header("X-Request-Id");
  if (given == nullptr || given->empty() || given->size() > 256) return random_id();
  const bool plain = std::all_of(given->begin(), given->end(), [](char c) { return c > ' ' && c < 0x7f; });
  return plain ? *given : random_id();
}

constexpr const char* kStopping = "The server is stopping; send the request again, to another server or later.";
constexpr const char* kNoKey =
    "This server wants an API key: send the header \"Authorization: Bearer KEY\" or \"x-api-key: KEY\".";
constexpr const char* kWrongKey =
    "The API key is not one of this server's; check the header \"Authorization: Bearer KEY\" or \"x-api-key: KEY\".";

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// The stream operations over a plain socket or TLS.
template <typename Stream>
class StreamConnection final : public Connection {
  static constexpr bool kTls = !std::is_same_v<Stream, Socket>;

 public:
  StreamConnection(Worker& worker, Socket socket, std::string peer) requires(!kTls)
      : Connection(worker, std::move(peer)), stream_(std::move(socket)) {}
  StreamConnection(Worker& worker, Socket socket, std::string peer, SharedTls tls) requires(kTls)
      : Connection(worker, std::move(peer)), tls_(std::move(tls)), stream_(std::move(socket), *tls_) {}

 private:
  auto self() { return std::static_pointer_cast<StreamConnection>(shared_from_this()); }

  Socket& socket() {
    if constexpr (kTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  void start_handshake() override {
    if constexpr (kTls) {
      stream_.async_handshake(ssl::stream_base::server,
                              [self = self()](const SystemError& error) { self->on_handshake(error); });
    }
  }

  void start_read(char* data, size_t size) override {
    stream_.async_read_some(asio::buffer(data, size),
                            [self = self()](const SystemError& error, size_t count) { self->on_read(error, count); });
  }

  void start_write(const std::vector<asio::const_buffer>& buffers) override {
    const auto done = [self = self()](const SystemError& error, size_t count) { self->on_write(error, count); };
    if constexpr (kTls) {
      stream_.async_write_some(buffers.front(), done);  // TLS takes one buffer at a time anyway
    } else {
      stream_.async_write_some(buffers, done);
    }
  }

  void start_wait_error() override {
    socket().async_wait(Socket::wait_error, [self = self()](const SystemError& error) { self->on_wait_error(error); });
  }

  void start_shutdown() override {
    if constexpr (kTls) {
      stream_.async_shutdown([self = self()](const SystemError&) {
        SystemError ignored;
        self->socket().shutdown(Socket::shutdown_send, ignored);
      });
    } else {
      SystemError ignored;
      stream_.shutdown(Socket::shutdown_send, ignored);
    }
  }

  void close_socket(bool reset) override {
    SystemError ignored;
    if (reset) socket().set_option(asio::socket_base::linger(true, 0), ignored);
    socket().close(ignored);
  }

  int descriptor() override { return socket().native_handle(); }
  bool encrypted() const override { return kTls; }

  SharedTls tls_;
  Stream stream_;
};

}  // namespace

std::shared_ptr<Connection> make_connection(Worker& worker, Socket socket, std::string peer) {
  return std::make_shared<StreamConnection<Socket>>(worker, std::move(socket), std::move(peer));
}

std::shared_ptr<Connection> make_tls_connection(Worker& worker, Socket socket, std::string peer, SharedTls tls) {
  return std::make_shared<StreamConnection<ssl::stream<Socket>>>(worker, std::move(socket), std::move(peer),
                                                                 std::move(tls));
}

char* InBuffer::prepare(size_t count) {
  const size_t held = size();
  if (end_ + count > capacity_) {
    if (held + count > capacity_) {
      std::unique_ptr<char[]> larger(new char[held + count]);
      std::copy_n(data_.get() + begin_, held, larger.get());
      data_ = std::move(larger);
      capacity_ = held + count;
    } else {
      std::memmove(data_.get(), data_.get() + begin_, held);
    }
    begin_ = 0;
    end_ = held;
  }
  return data_.get() + end_;
}

Connection::Connection(Worker& worker, std::string peer)
    : worker_(worker), state_(worker.state()), peer_(std::move(peer)), reader_(state_.limits) {}

Clock::time_point Connection::after(double seconds) const {
  if (seconds <= 0) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void Connection::start() {
  worker_.add(shared_from_this());
  if (state_.stopping) return begin_stop();
  read_deadline_ = after(state_.options.header_timeout_s);
  if (encrypted()) {
    phase_ = Phase::kHandshake;
    start_handshake();
  } else {
    arm_read();
  }
}

void Connection::refuse() {
  worker_.add(shared_from_this());
  request_start_ = Clock::now();
  answer(503, "application/json", error_body(503, "The server has too many connections; try again later."),
         {{"Retry-After", "1"}}, false);
}

void Connection::on_handshake(const SystemError& error) {
  if (phase_ == Phase::kClosed) return;
  if (error) {
    log_debug("{}: TLS handshake failed: {}", peer_, error.message());
    return drop();
  }
  phase_ = Phase::kIdle;
  arm_read();
}

void Connection::arm_read() {
  if (reading_ || eof_ || phase_ == Phase::kClosed || phase_ == Phase::kHandshake) return;
  if (phase_ == Phase::kAnswer && in_.size() >= kReadAhead) return;  // sweep() looks for a hang-up meanwhile
  reading_ = true;
  const size_t room = phase_ == Phase::kBody || phase_ == Phase::kLinger ? kBodyRead : kIdleRead;
  if (in_.size() == 0 && in_.capacity() > room) in_ = InBuffer();  // an idle connection keeps only a small buffer
  start_read(in_.prepare(room), room);
}

void Connection::on_read(const SystemError& error, size_t size) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) {
    if (error == asio::error::eof || error == ssl::error::stream_truncated) return on_eof();
    return drop();
  }
  in_.commit(size);
  if (phase_ == Phase::kLinger) {
    in_.consume(in_.size());
    read_deadline_ = std::min(Clock::now() + kLingerQuiet, linger_end_);
  } else if (phase_ != Phase::kAnswer) {
    parse();
  }
  arm_read();
}

void Connection::parse() {
  while (phase_ == Phase::kIdle || phase_ == Phase::kHead || phase_ == Phase::kBody) {
    size_t consumed = 0;
    const RequestReader::Event event = reader_.feed(in_.view(), consumed);
    in_.consume(consumed);
    if (phase_ == Phase::kBody && !hold_body(consumed)) return;
    if (phase_ == Phase::kIdle && reader_.started()) {
      phase_ = Phase::kHead;
      request_start_ = Clock::now();
      read_deadline_ = after(state_.options.header_timeout_s);
    }
    switch (event) {
      case RequestReader::Event::kNeedMore:
        if (phase_ == Phase::kBody) read_deadline_ = after(state_.options.body_timeout_s);
        return;
      case RequestReader::Event::kHead:
        phase_ = Phase::kBody;
        on_head();
        break;
      case RequestReader::Event::kDone:
        dispatch();
        break;
      case RequestReader::Event::kBad:
        on_bad();
        break;
    }
  }
}

// Keeps the parts of the request that the answer and the access log need.
void Connection::remember_request() {
  const api::HttpRequest& request = reader_.request();
  method_ = reader_.method();
  path_ = request.path;
  http10_ = reader_.http10();
  head_only_ = reader_.head_only();
  anthropic_ = request.from_anthropic_client();
  id_ = request_id(request);
  answer_headers_ = state_.cors.answer_headers(request);
  if (state_.options.enable_request_id_headers) answer_headers_.emplace_back("X-Request-Id", id_);
}

// Decides everything that can be decided before the body is read.
void Connection::on_head() {
  remember_request();
  const api::HttpRequest& request = reader_.request();
  const bool keep_alive = reader_.keep_alive() && reader_.complete();
  if (const auto preflight = state_.cors.preflight(request)) {
    answer_headers_.clear();  // a preflight has its own
    if (state_.options.enable_request_id_headers) answer_headers_.emplace_back("X-Request-Id", id_);
    return answer(preflight->status, "text/plain; charset=utf-8", preflight->body, preflight->headers, keep_alive);
  }
  const std::optional<std::string> caller = state_.keys.caller(request);
  if (!caller) {
    const bool sent = request.header("Authorization") != nullptr || request.header("x-api-key") != nullptr;
    return answer(401, "application/json", error_body(401, sent ? kWrongKey : kNoKey, anthropic_),
                  {{"WWW-Authenticate", "Bearer"}}, keep_alive);
  }
  reader_.request().caller = *caller;
  if (reader_.expects_continue() && !reader_.complete() && in_.size() == 0) {
    out_.emplace_back("HTTP/1.1 100 Continue\r\n\r\n");
    pump();
  }
}

// For a head that could not be read: nothing of the previous request may be left.
void Connection::forget_request() {
  method_.clear();
  path_.clear();
  http10_ = head_only_ = anthropic_ = false;
  answer_headers_.clear();
}

// Counts bytes of the body. If the server holds too many, answers 503 and returns false. A small body always fits.
bool Connection::hold_body(size_t bytes) {
  constexpr int64_t kSmallBody = int64_t{64} << 10;
  if (body_hold_ == nullptr) body_hold_ = std::make_shared<BodyHold>(state_.held_body_bytes);
  body_hold_->add(static_cast<int64_t>(bytes));
  const auto most = static_cast<int64_t>(state_.options.max_held_body_bytes);
  if (body_hold_->bytes() <= kSmallBody || body_hold_->total() <= most) return true;
  body_hold_.reset();
  answer(503, "application/json",
         error_body(503, "The server holds as many bytes of requests' bodies as it may; try again later.", anthropic_),
         {{"Retry-After", "1"}}, false);
  return false;
}

void Connection::on_bad() {
  if (phase_ == Phase::kHead) {
    if (reader_.method().empty()) {
      forget_request();
    } else {
      remember_request();
    }
  }
  answer(reader_.bad_status(), "application/json", error_body(reader_.bad_status(), reader_.bad_message(), anthropic_),
         {}, false);
}

ReplyTerms Connection::terms(bool keep_alive) const {
  ReplyTerms terms;
  terms.head_only = head_only_;
  terms.http10 = http10_;
  terms.keep_alive = keep_alive && !state_.stopping;
  terms.headers = answer_headers_;
  terms.max_buffer = state_.options.max_write_buffer_bytes;
  return terms;
}

// Answers without the handler.
void Connection::answer(int status, std::string_view content_type, std::string body, const api::Headers& extra,
                        bool keep_alive) {
  phase_ = Phase::kAnswer;
  read_deadline_ = Clock::time_point::max();
  request_bytes_ = 0;
  body_hold_.reset();
  current_ = std::make_shared<Exchange>(terms(keep_alive), shared_from_this());
  current_->send(status, content_type, std::move(body), extra);
  reader_ = RequestReader(state_.limits);
}

void Connection::dispatch() {
  api::HttpRequest request = std::move(reader_.request());
  request.peer = peer_;
  request.id = id_;
  request.body_hold = std::move(body_hold_);
  request_bytes_ = static_cast<int64_t>(request.body.size());
  phase_ = Phase::kAnswer;
  read_deadline_ = Clock::time_point::max();
  ReplyTerms reply_terms = terms(reader_.keep_alive());
  reply_terms.in_flight = state_.in_flight;
  reader_ = RequestReader(state_.limits);
  current_ = std::make_shared<Exchange>(std::move(reply_terms), shared_from_this());
  try {
    state_.handler(std::move(request), make_reply(current_));
  } catch (const std::exception& error) {
    log_error("{} {}: the handler threw: {}", method_, path_, error.what());  // the dropped Reply answers 500
  }
}

void Connection::on_eof() {
  eof_ = true;
  if (phase_ != Phase::kAnswer) return drop();
  if (current_->complete()) return;  // pump() writes the rest and closes
  if (encrypted() || http10_ || head_only_) return drop();
  probe();
}

void Connection::probe() {
  const Exchange::Progress progress = current_->take(out_, unsent());
  if (!progress.complete && !progress.broken) out_.emplace_back(progress.begun ? "0" : "HTTP/1.1 100 Continue\r\n\r\n");
  start_wait_error();
  pump();
}

void Connection::on_wait_error(const SystemError& error) {
  if (!error && phase_ != Phase::kClosed) drop();
}

void Connection::wake() {
  if (!scheduled_.exchange(true)) worker_.schedule(shared_from_this());
}

size_t Connection::unsent() const {
  size_t sum = 0;
  for (const std::string& segment : out_) sum += segment.size();
  return sum - out_offset_;
}

void Connection::pump() {
  scheduled_ = false;  // before take(): what is queued after it wakes us again
  if (phase_ == Phase::kClosed) return;
  if (writing_) {
    if (current_ && current_->broken()) drop();
    return;
  }
  Exchange::Progress progress;
  if (current_) progress = current_->take(out_, unsent());
  if (progress.broken) return drop();
  if (!out_.empty()) return write();
  if (progress.complete) finish_answer(progress.keep_alive);
}

void Connection::write() {
  buffers_.clear();
  size_t offset = out_offset_;
  for (const std::string& segment : out_) {
    buffers_.emplace_back(segment.data() + offset, segment.size() - offset);
    offset = 0;
    if (buffers_.size() == kMaxGather) break;
  }
  writing_ = true;
  write_deadline_ = after(state_.options.write_timeout_s);
  start_write(buffers_);
}

void Connection::on_write(const SystemError& error, size_t size) {
  writing_ = false;
  write_deadline_ = Clock::time_point::max();
  if (phase_ == Phase::kClosed) return;
  if (error) return drop();
  out_offset_ += size;
  while (!out_.empty() && out_offset_ >= out_.front().size()) {
    out_offset_ -= out_.front().size();
    out_.pop_front();
  }
  pump();
}

void Connection::finish_answer(bool keep_alive) {
  log_access();
  current_.reset();
  if (!keep_alive || state_.stopping) return begin_close();
  phase_ = Phase::kIdle;
  read_deadline_ = after(state_.options.keep_alive_timeout_s);
  parse();
  if (eof_ && phase_ != Phase::kAnswer) return drop();
  arm_read();
}

// The last answer has been sent. The client may still be sending (a body that was refused). Closing a socket with
// unread bytes resets the connection, and the client would lose the answer, so its bytes are read and discarded for a
// while.
void Connection::begin_close() {
  if (eof_) return drop();
  phase_ = Phase::kLinger;
  const Clock::time_point now = Clock::now();
  linger_end_ = now + (state_.stopping || late_ ? kLingerQuiet / 4 : kLingerTotal);
  read_deadline_ = std::min(now + kLingerQuiet, linger_end_);
  in_.consume(in_.size());
  start_shutdown();
  arm_read();
}

void Connection::begin_stop(bool waited) {
  switch (phase_) {
    case Phase::kHandshake:
      return drop();
    case Phase::kIdle:
    case Phase::kHead:
      // Closing a socket with unread bytes resets the connection, and the client would not learn why. It is sent an
      // answer instead.
      if (!has_unread_bytes()) {
        if (waited) return drop();
        // What has just been read may still be in the queue of the thread.
        return asio::post(worker_.io(), [self = shared_from_this()] { self->begin_stop(true); });
      }
      if (phase_ == Phase::kIdle) request_start_ = Clock::now();
      forget_request();
      return answer(503, "application/json", error_body(503, kStopping), {}, false);
    case Phase::kBody:  // nothing was begun for it, and the rest of it may never come
      return answer(503, "application/json", error_body(503, kStopping, anthropic_), {}, false);
    case Phase::kLinger:
      linger_end_ = std::min(linger_end_, Clock::now() + kLingerQuiet / 4);
      read_deadline_ = std::min(read_deadline_, linger_end_);
      return;
    case Phase::kClosed:
      return;
    case Phase::kAnswer:
      current_->close_after();
      return;
  }
}

bool Connection::has_unread_bytes() {
  pollfd entry{descriptor(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
}

void Connection::break_off() {
  if (phase_ == Phase::kAnswer) current_->break_off(error_body(503, kStopping, anthropic_));
}

void Connection::drop() {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();
  const bool reset = writing_ || !out_.empty();  // unsent bytes must not stay in the kernel
  phase_ = Phase::kClosed;
  if (current_) {
    current_->gone();
    log_access();
    current_.reset();
  }
  close_socket(reset);
  worker_.remove(*this);
}

void Connection::sweep(Clock::time_point now) {
  if (now >= write_deadline_) {
    if (current_) current_->note("write_timeout", "1");
    return drop();
  }
  if (now >= read_deadline_) {
    late_ = phase_ == Phase::kHead || phase_ == Phase::kBody;
    if (!late_) return drop();
    const char* what =
        phase_ == Phase::kHead ? "The request's head did not arrive in time." : "The request's body stopped arriving.";
    if (phase_ == Phase::kHead) forget_request();
    return answer(408, "application/json", error_body(408, what, anthropic_), {}, false);
  }
  if (phase_ == Phase::kAnswer && !reading_ && !eof_) look_for_hangup();
}

// If a client has sent more than we read ahead, no read is pending that would notice that it leaves.
void Connection::look_for_hangup() {
#ifdef POLLRDHUP
  constexpr short kLeft = POLLRDHUP;
#else
  constexpr short kLeft = POLLHUP;
#endif
  pollfd entry{descriptor(), kLeft, 0};
  if (poll(&entry, 1, 0) != 1) return;
  if ((entry.revents & (POLLERR | POLLHUP)) != 0) return drop();
  if ((entry.revents & kLeft) != 0) on_eof();
}

void Connection::log_access() {
  const Exchange::Summary summary = current_->summary();
  const Clock::duration total = Clock::now() - request_start_;
  const Clock::duration first = summary.answered ? summary.first_byte - request_start_ : total;
  const int status = summary.status != 0 ? summary.status : 499;
  if (state_.options.on_access) {
    AccessRecord record;
    record.method = method_;
    record.path = path_;
    record.status = status;
    record.seconds = milliseconds(total) / 1000;
    record.first_byte_seconds = milliseconds(first) / 1000;
    record.request_bytes = request_bytes_;
    record.response_bytes = summary.bytes;
    state_.options.on_access(record);
  }
  const auto& excluded = state_.options.access_log_excluded_paths;
  if (!state_.options.access_log || std::find(excluded.begin(), excluded.end(), path_) != excluded.end()) return;
  const auto or_dash = [](const std::string& text) {
    if (text.find_first_of(" \"=") == std::string::npos) return text.empty() ? std::string("-") : text;
    std::string quoted;
    json::append_quoted(quoted, text);
    return quoted;
  };
  log_info("access peer={} method={} path={} status={} bytes={} ms={:.1f} first_ms={:.1f}{}{}", peer_, or_dash(method_),
           or_dash(path_), status, summary.bytes, milliseconds(total), milliseconds(first),
           summary.gone ? " gone=1" : "", summary.notes);
}

}  // namespace quire::http
