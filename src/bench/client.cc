// SPDX-License-Identifier: Apache-2.0
// The threads, connections and clock of the client, on Asio; Beast's parser reads HTTP directly from the receive
// buffer.
#include "bench/client.h"

#include <sys/resource.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <chrono>
#include <deque>
#include <future>
#include <set>
#include <thread>

namespace quire::bench {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using ErrorCodeT = boost::system::error_code;

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// One request and the handler of its response. Used only on its worker's thread.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void on_start(Clock::time_point now) = 0;
  virtual void on_status(int status, std::string_view reason) = 0;
  virtual void on_body(std::string_view bytes, Clock::time_point now) = 0;
  // The response is complete, or never will be: then `error` says why, or the client was stopped.
  virtual void on_end(std::string error, bool stopped) = 0;
  std::string request;  // header and body, ready to send
};
using ExchangePtr = std::shared_ptr<Exchange>;

// Passes status and body on as they arrive; stores nothing of its own.
class ResponseParser final : public http::basic_parser<false> {
 public:
  ResponseParser(Exchange& exchange, Clock::time_point& now) : exchange_(exchange), now_(now) {
    body_limit(UINT64_MAX);  // in Boost 1.74, boost::none rejects every Content-Length
    header_limit(64 << 10);
    eager(true);
  }

 private:
  using Text = boost::beast::string_view;
  void on_request_impl(http::verb, Text, Text, int, ErrorCodeT&) override {}
  void on_response_impl(int code, Text reason, int, ErrorCodeT&) override {
    exchange_.on_status(code, {reason.data(), reason.size()});
  }
  void on_field_impl(http::field, Text, Text, ErrorCodeT&) override {}
  void on_header_impl(ErrorCodeT&) override {}
  void on_body_init_impl(boost::optional<std::uint64_t> const&, ErrorCodeT&) override {}
  std::size_t on_body_impl(Text body, ErrorCodeT&) override {
    exchange_.on_body({body.data(), body.size()}, now_);
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, Text, ErrorCodeT&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, Text body, ErrorCodeT&) override {
    exchange_.on_body({body.data(), body.size()}, now_);
    return body.size();
  }
  void on_finish_impl(ErrorCodeT&) override {}

  Exchange& exchange_;
  Clock::time_point& now_;
};

struct Worker;

// One socket, plain or TLS, and its exchange. Owned by its pending operations and, between exchanges, by the worker's
// list of idle connections. Used only on its worker's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(Worker& worker);
  ~Connection();
  void begin(ExchangePtr exchange);
  void close();

 private:
  static constexpr size_t kBuffer = 8 << 10;
  template <typename F>
  void with_stream(F&& f) {
    tls_ ? f(*tls_) : f(socket_);
  }
  void connect();
  void handshake();
  void write();
  void read();
  void received(size_t bytes);
  void ended(const ErrorCodeT& error);
  void finish(std::string error, bool reusable);
  void failed(const char* doing, const ErrorCodeT& error);

  Worker& worker_;
  tcp::socket socket_;
  std::unique_ptr<asio::ssl::stream<tcp::socket&>> tls_;
  ExchangePtr exchange_;
  std::optional<ResponseParser> parser_;
  std::vector<char> buffer_;
  size_t filled_ = 0;
  Clock::time_point now_;
  bool connected_ = false;
  bool reused_ = false;
  bool answered_ = false;  // a byte was received
};

// What all workers share; read-only while they run.
struct Shared {
  ClientOptions options;
  std::vector<tcp::endpoint> endpoints;
  std::optional<asio::ssl::context> tls;
};

// One thread with its own event loop and its own connections.
struct Worker {
  explicit Worker(const Shared& s) : shared(s), context(1), guard(asio::make_work_guard(context)) {}
  void start(ExchangePtr exchange) {
    std::shared_ptr<Connection> connection;
    if (idle.empty()) {
      connection = std::make_shared<Connection>(*this);
    } else {
      connection = std::move(idle.back());
      idle.pop_back();
    }
    connection->begin(std::move(exchange));
  }
  void close_all() {
    stopping = true;
    idle.clear();
    const std::set<Connection*> open(all);
    for (Connection* connection : open) connection->close();
  }

  const Shared& shared;
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> guard;
  std::vector<std::shared_ptr<Connection>> idle;
  std::set<Connection*> all;
  int64_t opened = 0;
  int64_t messages = 0;
  bool stopping = false;
  std::thread thread;
};

Connection::Connection(Worker& worker) : worker_(worker), socket_(worker.context) {
  worker_.all.insert(this);
}

Connection::~Connection() {
  worker_.all.erase(this);
}

void Connection::close() {
  ErrorCodeT ignored;
  socket_.close(ignored);  // makes pending operations fail
}

void Connection::begin(ExchangePtr exchange) {
  exchange_ = std::move(exchange);
  exchange_->on_start(Clock::now());
  parser_.emplace(*exchange_, now_);
  filled_ = 0;
  answered_ = false;
  reused_ = connected_;
  connected_ ? write() : connect();
}

void Connection::connect() {
  ++worker_.opened;
  asio::async_connect(socket_, worker_.shared.endpoints,
                      [self = shared_from_this()](const ErrorCodeT& error, const tcp::endpoint&) {
                        if (error) return self->failed("connecting", error);
                        ErrorCodeT ignored;
                        self->socket_.set_option(tcp::no_delay(true), ignored);
                        self->worker_.shared.tls ? self->handshake() : self->write();
                      });
}

void Connection::handshake() {
  const Shared& shared = worker_.shared;
  // The context is only read from here on, but Asio takes it without const.
  tls_ = std::make_unique<asio::ssl::stream<tcp::socket&>>(socket_, const_cast<asio::ssl::context&>(*shared.tls));
  ErrorCodeT ignored;
  if (asio::ip::make_address(shared.options.url.host, ignored); ignored) {
    SSL_set_tlsext_host_name(tls_->native_handle(), shared.options.url.host.c_str());
  }
  if (!shared.options.insecure) tls_->set_verify_callback(asio::ssl::host_name_verification(shared.options.url.host));
  tls_->async_handshake(asio::ssl::stream_base::client, [self = shared_from_this()](const ErrorCodeT& error) {
    if (error) return self->failed("the TLS handshake", error);
    self->write();
  });
}

void Connection::write() {
  connected_ = true;
  with_stream([&](auto& stream) {
    asio::async_write(stream, asio::buffer(exchange_->request),
                      [self = shared_from_this()](const ErrorCodeT& error, size_t) {
                        // A server may respond and close before it has read everything: its response says more than
                        // this.
                        if (error && error != asio::error::broken_pipe && error != asio::error::connection_reset) {
                          return self->failed("sending", error);
                        }
                        self->read();
                      });
  });
}

void Connection::read() {
  if (buffer_.empty()) buffer_.resize(kBuffer);
  if (filled_ == buffer_.size()) buffer_.resize(buffer_.size() * 2);  // the header does not fit; Beast limits its size
  with_stream([&](auto& stream) {
    stream.async_read_some(asio::buffer(buffer_.data() + filled_, buffer_.size() - filled_),
                           [self = shared_from_this()](const ErrorCodeT& error, size_t bytes) {
                             if (error) return self->ended(error);
                             self->received(bytes);
                           });
  });
}

void Connection::received(size_t bytes) {
  now_ = Clock::now();
  answered_ = true;
  filled_ += bytes;
  size_t used = 0;
  ErrorCodeT error;
  while (used < filled_ && !parser_->is_done()) {
    const size_t taken = parser_->put(asio::const_buffer(buffer_.data() + used, filled_ - used), error);
    used += taken;
    if (error == http::error::need_more) {
      error = {};
      break;
    }
    if (error) return finish("the response is not HTTP: " + error.message(), false);
    if (taken == 0) break;
  }
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(used), buffer_.begin() + static_cast<std::ptrdiff_t>(filled_),
            buffer_.begin());
  filled_ -= used;
  if (parser_->is_done()) return finish("", parser_->keep_alive() && filled_ == 0);
  read();
}

// The connection ended, which is fine at the end of a response.
void Connection::ended(const ErrorCodeT& error) {
  const bool end = error == asio::error::eof || error == asio::ssl::error::stream_truncated;
  if (!end) return failed("reading the response", error);
  ErrorCodeT incomplete;
  if (parser_->got_some()) parser_->put_eof(incomplete);
  if (parser_->is_done() && !incomplete) return finish("", false);
  failed("reading the response", error);
}

void Connection::failed(const char* doing, const ErrorCodeT& error) {
  if (reused_ && !answered_ && !worker_.stopping) {  // the server had closed it: retry once on a new connection
    auto again = std::make_shared<Connection>(worker_);
    ExchangePtr exchange = std::move(exchange_);
    parser_.reset();
    close();
    class Resumed final : public Exchange {  // keeps the start time of the first attempt
     public:
      explicit Resumed(ExchangePtr inner) : inner_(std::move(inner)) { request = std::move(inner_->request); }
      void on_start(Clock::time_point) override {}
      void on_status(int status, std::string_view reason) override { inner_->on_status(status, reason); }
      void on_body(std::string_view bytes, Clock::time_point now) override { inner_->on_body(bytes, now); }
      void on_end(std::string text, bool stopped) override { inner_->on_end(std::move(text), stopped); }

     private:
      ExchangePtr inner_;
    };
    return again->begin(std::make_shared<Resumed>(std::move(exchange)));
  }
  const bool gone = error == asio::error::eof || error == asio::ssl::error::stream_truncated;
  finish(gone ? std::string("the server closed the connection before the response was complete")
              : std::string(doing) + " failed: " + error.message(),
         false);
}

void Connection::finish(std::string error, bool reusable) {
  ExchangePtr exchange = std::move(exchange_);
  parser_.reset();
  reusable = reusable && !worker_.stopping;
  if (reusable) {
    worker_.idle.push_back(shared_from_this());
  } else {
    close();
  }
  exchange->on_end(std::move(error), worker_.stopping);
}

// Collects a whole response, for the small requests around a run.
class FetchExchange final : public Exchange {
 public:
  static constexpr size_t kMaxBody = size_t{64} << 20;
  std::promise<Result<HttpReply>> done;

  void on_start(Clock::time_point) override {}
  void on_status(int status, std::string_view reason) override {
    reply_.status = status;
    reply_.reason = reason;
  }
  void on_body(std::string_view bytes, Clock::time_point) override {
    if (reply_.body.size() + bytes.size() <= kMaxBody) reply_.body += bytes;
  }
  void on_end(std::string error, bool stopped) override {
    if (stopped) error = "it timed out";
    error.empty() ? done.set_value(std::move(reply_)) : done.set_value(unavailable(std::move(error)));
  }

 private:
  HttpReply reply_;
};

// A streamed response, timed message by message as vLLM's client defines it.
class StreamExchange final : public Exchange {
 public:
  StreamExchange(Outcome& outcome, StreamApi api, Clock::time_point origin, int64_t& messages,
                 std::function<void()> on_done)
      : outcome_(outcome), api_(api), origin_(origin), messages_(messages), on_done_(std::move(on_done)) {}

  void on_start(Clock::time_point now) override {
    start_ = last_ = now;
    outcome_.sent = true;
    outcome_.start = seconds(now - origin_);
  }
  void on_status(int status, std::string_view reason) override {
    status_ = status;
    if (status != 200) failure_ = "HTTP " + std::to_string(status) + " " + std::string(reason);
  }
  void on_body(std::string_view bytes, Clock::time_point now) override {
    if (status_ != 200) {
      constexpr size_t kShown = 4096;
      body_ += bytes.substr(0, kShown - std::min(kShown, body_.size()));
      return;
    }
    if (api_ == StreamApi::kWhole) {
      body_ += bytes.substr(0, SseParser::kMaxEvent - std::min(SseParser::kMaxEvent, body_.size()));
      last_ = now;
      return;
    }
    events_.feed(bytes, [&](std::string_view data) { message(data, now); });
  }
  void on_end(std::string error, bool stopped) override {
    if (api_ == StreamApi::kWhole && status_ == 200 && error.empty()) whole_answer();
    events_.finish([&](std::string_view data) { message(data, last_); });
    settle(std::move(error));
    if (stopped && !outcome_.success) outcome_.sent = false;
    on_done_();
  }

 private:
  void message(std::string_view data, Clock::time_point now) {
    if (!read_chunk(data, api_, chunk_)) return;
    if (chunk_.prompt_tokens >= 0) outcome_.prompt_len = chunk_.prompt_tokens;
    if (chunk_.output_tokens > 0) outcome_.output_tokens = chunk_.output_tokens;
    if (chunk_.has_error && failure_.empty())
      failure_ = chunk_.error.empty() ? "the stream carried an error" : chunk_.error;
    if (!chunk_.has_choices) return;
    ++messages_;
    if (first_) {
      first_ = false;
      outcome_.ttft = seconds(now - start_);
    } else {
      outcome_.itl.push_back(seconds(now - last_));
    }
    last_ = now;
    outcome_.text += chunk_.text;
  }
  // The time of an answer that comes at once is that of its last byte.
  void whole_answer() {
    if (!read_chunk(body_, StreamApi::kCompletions, chunk_)) {
      failure_ = "the answer is not a JSON object";
      return;
    }
    if (chunk_.prompt_tokens >= 0) outcome_.prompt_len = chunk_.prompt_tokens;
    if (chunk_.has_error) failure_ = chunk_.error;
    if (chunk_.has_error) return;
    first_ = false;
    ++messages_;
    outcome_.ttft = seconds(last_ - start_);
  }
  void settle(std::string error) {
    outcome_.latency = first_ ? 0 : seconds(last_ - start_);
    if (status_ != 0 && status_ != 200) {
      StreamChunk reply;  // an error body, {"error": {"message"}} or {"message"}
      if (read_chunk(body_, StreamApi::kCompletions, reply) && !reply.error.empty()) body_ = reply.error;
      outcome_.error = failure_ + (body_.empty() ? "" : ": " + body_);
    } else if (!error.empty()) {
      outcome_.error = std::move(error);
    } else if (first_) {
      outcome_.error = failure_.empty() ? "the stream ended without a message with choices" : failure_;
    } else {
      outcome_.success = true;
    }
    if (outcome_.success) outcome_.itl.shrink_to_fit();
  }

  Outcome& outcome_;
  const StreamApi api_;
  const Clock::time_point origin_;
  int64_t& messages_;
  std::function<void()> on_done_;
  SseParser events_;
  StreamChunk chunk_;
  Clock::time_point start_, last_;
  int status_ = 0;
  bool first_ = true;
  std::string failure_, body_;
};

std::string request_text(const Url& url, std::string_view method, const std::string& path, const HeaderList& headers,
                         const std::string& body) {
  std::string out(method);
  const bool v6 = url.host.find(':') != std::string::npos;
  const bool usual = url.port == (url.tls ? "443" : "80");
  out += " " + url.path + path + " HTTP/1.1\r\nHost: " + (v6 ? "[" + url.host + "]" : url.host);
  if (!usual) out += ":" + url.port;
  out += "\r\nAccept: */*\r\nUser-Agent: quire-bench\r\n";
  for (const auto& [name, value] : headers) out += name + ": " + value + "\r\n";
  if (!body.empty()) {
    out += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  return out + "\r\n" + body;
}

}  // namespace

class LoadClient::Impl {
 public:
  explicit Impl(const ClientOptions& options) { shared_.options = options; }
  ~Impl() {
    for (auto& worker : workers_) {
      asio::post(worker->context, [w = worker.get()] {
        w->close_all();
        w->guard.reset();
      });
    }
    for (auto& worker : workers_) worker->thread.join();
  }

  Status open() {
    const Url& url = shared_.options.url;
    asio::io_context context;
    tcp::resolver resolver(context);
    ErrorCodeT error;
    const auto found = resolver.resolve(url.host, url.port, error);
    if (error) return unavailable({"the host of ", url.text(), " cannot be resolved: ", error.message()});
    for (const auto& entry : found) shared_.endpoints.push_back(entry.endpoint());
    if (url.tls) {
      shared_.tls.emplace(asio::ssl::context::tls_client);
      shared_.tls->set_default_verify_paths(error);
      shared_.tls->set_verify_mode(shared_.options.insecure ? asio::ssl::verify_none : asio::ssl::verify_peer, error);
      if (error) return unavailable({"TLS cannot be set up: ", error.message()});
    }
    int threads = shared_.options.threads;
    if (threads <= 0) threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 4);
    for (int i = 0; i < threads; ++i) {
      workers_.push_back(std::make_unique<Worker>(shared_));
      workers_.back()->thread = std::thread([w = workers_.back().get()] { w->context.run(); });
    }
    return {};
  }

  Result<HttpReply> fetch(std::string_view method, const std::string& path, const std::string& body,
                          const HeaderList& headers, double timeout_s) {
    auto exchange = std::make_shared<FetchExchange>();
    exchange->request = request_text(shared_.options.url, method, path, headers, body);
    auto done = exchange->done.get_future();
    Worker& worker = *workers_[0];
    asio::post(worker.context, [&worker, exchange] {
      worker.stopping = false;
      worker.start(exchange);
    });
    if (done.wait_for(std::chrono::duration<double>(timeout_s)) != std::future_status::ready) {
      asio::post(worker.context, [&worker] { worker.close_all(); });
    }
    return done.get();
  }

  LoadResult run(const Load& load);
  int threads() const { return static_cast<int>(workers_.size()); }

 private:
  class RunState;
  Shared shared_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// One run. Its state is used only on the first worker's thread, which handles the arrivals and completions of requests.
// Each request runs on the worker that its number maps to.
class LoadClient::Impl::RunState : public std::enable_shared_from_this<LoadClient::Impl::RunState> {
 public:
  RunState(Impl& impl, const Load& load)
      : impl_(impl),
        load_(load),
        home_(impl.workers_[0]->context),
        arrival_timer_(home_),
        poll_timer_(home_),
        probe_timer_(home_) {
    result_.outcomes.resize(load.count);
    ready_.resize(load.count);
  }
  std::future<LoadResult> begin() {
    auto future = promise_.get_future();
    asio::post(home_, [self = shared_from_this()] {
      self->origin_ = Clock::now();
      self->arrivals();
      self->poll();
      self->probe();
      self->check_end();
    });
    return future;
  }

 private:
  void arrivals() {
    if (result_.stopped) return;
    const double now = seconds(Clock::now() - origin_);
    while (next_ < load_.count && (load_.arrivals.empty() || load_.arrivals[next_] <= now)) {
      ready_[next_] = Clock::now();
      waiting_.push_back(next_++);
    }
    launch();
    if (next_ == load_.count) return;
    arrival_timer_.expires_at(
        origin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(load_.arrivals[next_])));
    arrival_timer_.async_wait([self = shared_from_this()](const ErrorCodeT& error) {
      if (!error) self->arrivals();
    });
  }
  void launch() {
    while (!waiting_.empty() && (load_.max_concurrency == 0 || running_ < load_.max_concurrency)) {
      const size_t index = waiting_.front();
      waiting_.pop_front();
      ++running_;
      Outcome& outcome = result_.outcomes[index];
      outcome.queue_time = seconds(Clock::now() - ready_[index]);
      send(index, index, outcome, [self = shared_from_this()] { self->ended(); });
    }
  }
  // Builds the request on its worker, so that bodies are made in parallel and only when they are needed.
  void send(size_t sample, size_t number, Outcome& outcome, std::function<void()> on_end) {
    Worker& worker = *impl_.workers_[number % impl_.workers_.size()];
    asio::dispatch(worker.context, [self = shared_from_this(), &worker, sample, &outcome, on_end] {
      auto exchange =
          std::make_shared<StreamExchange>(outcome, self->load_.api, self->origin_, worker.messages,
                                           [self, on_end] { asio::post(self->home_, [self, on_end] { on_end(); }); });
      exchange->request = request_text(self->impl_.shared_.options.url, "POST", self->load_.path,
                                       self->load_.headers(sample), self->load_.body(sample));
      if (worker.stopping) return exchange->on_end("", true);
      worker.start(std::move(exchange));
    });
  }
  void ended() {
    --running_;
    ++done_;
    result_.duration = seconds(Clock::now() - origin_);
    if (!result_.stopped) launch();
    check_end();
  }
  void poll() {
    if (load_.progress) load_.progress(done_, load_.count);
    if (!result_.stopped && load_.stopped && load_.stopped()) stop();
    poll_timer_.expires_after(std::chrono::milliseconds(100));
    poll_timer_.async_wait([self = shared_from_this()](const ErrorCodeT& error) {
      if (!error) self->poll();
    });
  }
  void probe() {
    if (load_.probe_rate <= 0 || load_.count == 0) return;
    probe_timer_.expires_after(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1.0 / load_.probe_rate)));
    probe_timer_.async_wait([self = shared_from_this()](const ErrorCodeT& error) {
      if (error) return;
      self->probes_.emplace_back();
      ++self->probes_running_;
      self->send(0, self->probes_.size(), self->probes_.back(), [self] {
        --self->probes_running_;
        self->check_end();
      });
      self->probe();
    });
  }
  void stop() {
    result_.stopped = true;
    result_.duration = seconds(Clock::now() - origin_);
    waiting_.clear();
    arrival_timer_.cancel();
    probe_timer_.cancel();
    for (auto& worker : impl_.workers_) asio::post(worker->context, [w = worker.get()] { w->close_all(); });
    check_end();
  }
  void check_end() {
    const bool all = done_ == load_.count || (result_.stopped && running_ == 0);
    if (!all || over_) return;
    probe_timer_.cancel();
    if (probes_running_ > 0) return;
    over_ = true;
    poll_timer_.cancel();
    if (load_.progress) load_.progress(done_, load_.count);
    result_.probes.assign(std::make_move_iterator(probes_.begin()), std::make_move_iterator(probes_.end()));
    promise_.set_value(std::move(result_));
  }

  Impl& impl_;
  const Load& load_;
  asio::io_context& home_;
  asio::steady_timer arrival_timer_, poll_timer_, probe_timer_;
  std::promise<LoadResult> promise_;
  LoadResult result_;
  std::vector<Clock::time_point> ready_;
  std::deque<size_t> waiting_;
  std::deque<Outcome> probes_;
  Clock::time_point origin_;
  size_t next_ = 0, done_ = 0;
  int64_t running_ = 0, probes_running_ = 0;
  bool over_ = false;
};

LoadResult LoadClient::Impl::run(const Load& load) {
  // The workers' counters are read and reset on their own threads, before and after the run.
  const auto sum = [this](auto&& member) {
    int64_t total = 0;
    for (auto& worker : workers_) {
      std::promise<int64_t> done;
      asio::post(worker->context, [&] {
        total += std::exchange(member(*worker), 0);
        worker->stopping = false;
        done.set_value(0);
      });
      done.get_future().get();
    }
    return total;
  };
  const auto opened = [](Worker& w) -> int64_t& { return w.opened; };
  const auto messages = [](Worker& w) -> int64_t& { return w.messages; };
  sum(opened);
  sum(messages);
  LoadResult result = std::make_shared<RunState>(*this, load)->begin().get();
  result.connections = sum(opened);
  result.messages = sum(messages);
  return result;
}

LoadClient::LoadClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LoadClient::~LoadClient() = default;

Result<std::unique_ptr<LoadClient>> LoadClient::make(const ClientOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  QUIRE_TRY(impl->open());
  return std::unique_ptr<LoadClient>(new LoadClient(std::move(impl)));
}

Result<HttpReply> LoadClient::fetch(std::string_view method, const std::string& path, const std::string& body,
                                    const HeaderList& headers, double timeout_s) {
  return impl_->fetch(method, path, body, headers, timeout_s);
}

LoadResult LoadClient::run(const Load& load) {
  return impl_->run(load);
}

int LoadClient::threads() const {
  return impl_->threads();
}

std::string Url::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (tls ? "https://" : "http://") + (v6 ? "[" + host + "]" : host) + ":" + port + path;
}

Result<Url> parse_url(std::string_view text) {
  const auto wrong = [&] {
    return invalid_argument({"'", text, "' is not the URL of a server; write http://HOST:PORT or https://HOST"});
  };
  Url url;
  std::string_view rest = text;
  if (rest.substr(0, 8) == "https://") {
    url.tls = true;
    rest.remove_prefix(8);
  } else if (rest.substr(0, 7) == "http://") {
    rest.remove_prefix(7);
  } else if (rest.find("://") != std::string_view::npos) {
    return wrong();
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(slash);
  while (!url.path.empty() && url.path.back() == '/') url.path.pop_back();
  std::string_view place = rest.substr(0, slash);
  if (place.find_first_of(" \t\r\n@?#") != std::string_view::npos ||
      url.path.find_first_of(" \t\r\n") != std::string::npos) {
    return wrong();
  }
  if (!place.empty() && place[0] == '[') {
    const size_t end = place.find(']');
    if (end == std::string_view::npos) return wrong();
    url.host = place.substr(1, end - 1);
    place.remove_prefix(end + 1);
    if (!place.empty() && place[0] != ':') return wrong();
  } else {
    const size_t colon = std::min(place.find(':'), place.size());
    url.host = place.substr(0, colon);
    place.remove_prefix(colon);
  }
  url.port = place.empty() ? (url.tls ? "443" : "80") : std::string(place.substr(1));
  const bool digits = !url.port.empty() && url.port.find_first_not_of("0123456789") == std::string::npos;
  if (url.host.empty() || !digits || url.port.size() > 5 || std::stoi(url.port) > 65535) return wrong();
  return url;
}

int64_t raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace quire::bench
