// SPDX-License-Identifier: Apache-2.0
// Listens, accepts, distributes connections over the I/O threads, and stops without losing answers.
#include "http/server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "http/connection.h"
#include "http/tls.h"

namespace quire::http {

namespace asio = boost::asio;
using Generic = asio::generic::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<Generic, asio::io_context::executor_type>;

namespace {

constexpr int kBacklog = 4096;
constexpr auto kAcceptPause = std::chrono::milliseconds(200);
constexpr auto kLogEvery = std::chrono::seconds(5);
// How long the errors that end broken-off answers may take to reach their clients.
constexpr auto kLastWords = std::chrono::seconds(1);
constexpr auto kRefreshEvery = std::chrono::seconds(2);
// This many connections above max_connections are answered 503; the rest are closed without an answer.
constexpr int64_t kMaxRefused = 256;

void set_option(int socket, int level, int name, int value) {
  // A system that does not know an option works without it.
  (void)setsockopt(socket, level, name, &value, sizeof(value));
}

void tune_tcp(int socket, double write_timeout_s) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef __linux__
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // The unread bytes of a slow reader belong in our bounded buffer, not in megabytes of kernel memory.
  set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 128 << 10);
  if (write_timeout_s > 0) {
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::min(write_timeout_s * 1000, 1e9)));
  }
#else
  (void)write_timeout_s;
#endif
}

std::string describe(const asio::ip::tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(endpoint.port());
}

std::string describe_peer(const Generic::endpoint& endpoint) {
  asio::ip::tcp::endpoint tcp;
  const int family = endpoint.protocol().family();
  if ((family != AF_INET && family != AF_INET6) || endpoint.size() > tcp.capacity()) return "unix";
  std::memcpy(tcp.data(), endpoint.data(), endpoint.size());
  return describe(tcp);
}

// Raises the limit on open files to what max_connections needs, as far as the system allows.
void raise_descriptor_limit(size_t max_connections) {
  rlimit limit{};
  const rlim_t wanted = max_connections + kMaxRefused + 256;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < wanted) {
    log_warn("The system allows {} open files, fewer than --max-connections {} needs; raise it with ulimit -n.",
             limit.rlim_cur, max_connections);
  }
}

TlsFiles tls_files(const ServerOptions& options) {
  return {options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs, options.ssl_cert_reqs, options.ssl_ciphers};
}

Result<SharedTls> make_tls(const TlsFiles& files) {
  QUIRE_ASSIGN(TlsContext context, load_tls(files));
  return std::make_shared<asio::ssl::context>(context.release());
}

// Whether a unix socket can be made there, or taken over.
Status check_uds(const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return invalid_argument(
        {"--uds '", path, "' is too long for a unix socket: at most ", sizeof(sockaddr_un::sun_path) - 1, " bytes."});
  }
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return invalid_argument({"--uds '", path, "' exists and is not a socket."});
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return unavailable({"Cannot listen on --uds '", path, "': ", std::strerror(errno), "."});
  }
  return {};
}

Status check(const ServerOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    return invalid_argument({"--port ", options.port, " is not a port: give 0 to 65535."});
  }
  if (options.uds.empty() && options.host.empty()) {
    return invalid_argument("--host is empty: give an address, or 0.0.0.0 for every interface.");
  }
  if (!options.uds.empty()) QUIRE_TRY(check_uds(options.uds));
  if (!options.root_path.empty() && options.root_path.front() != '/') {
    return invalid_argument({"--root-path '", options.root_path, "' must begin with a slash, as in /llm."});
  }
  if (options.ssl_certfile.empty() && (!options.ssl_keyfile.empty() || options.ssl_cert_reqs != 0)) {
    return invalid_argument("TLS needs --ssl-certfile beside --ssl-keyfile and --ssl-cert-reqs.");
  }
  if (options.io_threads < 1 || options.io_threads > 256) {
    return invalid_argument("The number of I/O threads must be 1 to 256.");
  }
  if (options.max_header_bytes < 1024 || options.max_header_bytes > (size_t{16} << 20)) {
    return invalid_argument("The limit on a request's head must be 1 KiB to 16 MiB.");
  }
  if (options.max_connections < 1) return invalid_argument("The limit on connections must be at least 1.");
  for (const std::string& key : options.api_keys) {
    if (key.empty()) return invalid_argument("--api-key is empty: give a key, or leave the flag out.");
  }
  return {};
}

}  // namespace

ServerState::ServerState(const ServerOptions& server_options, api::Handler api_handler)
    : options(server_options),
      handler(std::move(api_handler)),
      limits{options.max_body_bytes, options.max_header_bytes, options.max_headers, options.root_path},
      keys(options.api_keys, options.named_keys, options.needs_key),
      cors({options.allowed_origins, options.allowed_methods, options.allowed_headers, options.allow_credentials}),
      in_flight(std::make_shared<std::atomic<int64_t>>(0)),
      held_body_bytes(std::make_shared<std::atomic<int64_t>>(0)) {}

void ServerState::connection_ended() {
  const std::lock_guard lock(mutex_);
  if (--connections == 0) quiet_.notify_all();
}

bool ServerState::wait_quiet(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return quiet_.wait_until(lock, until, [this] { return connections == 0; });
}

Worker::Worker(ServerState& state) : state_(state), guard_(asio::make_work_guard(io_)), sweep_timer_(io_) {
  // Often enough that no timeout is late by more than a quarter of itself.
  double tick = 2;
  const ServerOptions& options = state_.options;
  for (const double timeout :
       {options.header_timeout_s, options.body_timeout_s, options.keep_alive_timeout_s, options.write_timeout_s}) {
    if (timeout > 0) tick = std::min(tick, timeout);
  }
  tick_ = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(tick / 4, 0.01)));
}

Worker::~Worker() {
  finish();
}

void Worker::start() {
  arm_sweep();
  thread_ = std::thread([this] { io_.run(); });
}

void Worker::finish() {
  asio::post(io_, [this] {
    finishing_ = true;  // cancel() alone misses a timer that has just expired
    sweep_timer_.cancel();
  });
  guard_.reset();
  if (thread_.joinable()) thread_.join();
}

void Worker::arm_sweep() {
  sweep_timer_.expires_after(tick_);
  sweep_timer_.async_wait([this](const SystemError& error) {
    if (error || finishing_) return;
    const Clock::time_point now = Clock::now();
    // Backwards: a connection that drops is replaced by the last one, which has been swept already.
    for (size_t i = connections_.size(); i-- > 0;) {
      const auto connection = connections_[i];
      connection->sweep(now);
    }
    arm_sweep();
  });
}

void Worker::schedule(std::shared_ptr<Connection> connection) {
  const std::lock_guard lock(mutex_);
  dirty_.push_back(std::move(connection));
  if (dirty_.size() == 1) asio::post(io_, [this] { drain(); });
}

void Worker::drain() {
  std::vector<std::shared_ptr<Connection>> dirty;
  {
    const std::lock_guard lock(mutex_);
    dirty.swap(dirty_);
  }
  for (const auto& connection : dirty) connection->pump();
}

void Worker::add(std::shared_ptr<Connection> connection) {
  connection->index = connections_.size();
  connections_.push_back(std::move(connection));
}

void Worker::remove(Connection& connection) {
  const size_t index = connection.index;
  QUIRE_CHECK(index < connections_.size() && connections_[index].get() == &connection);
  connections_[index] = std::move(connections_.back());
  connections_[index]->index = index;
  connections_.pop_back();
  state_.connection_ended();
}

void Worker::stop_idle() {
  for (size_t i = connections_.size(); i-- > 0;) connections_[i]->begin_stop();
}

void Worker::break_off() {
  for (size_t i = connections_.size(); i-- > 0;) {
    const auto connection = connections_[i];
    connection->break_off();
  }
}

void Worker::drop_all() {
  while (!connections_.empty()) connections_.back()->drop();
}

struct Server::Impl {
  Impl(const ServerOptions& options, api::Handler handler)
      : state(std::make_unique<ServerState>(options, std::move(handler))) {
    for (int i = 0; i < options.io_threads; ++i) workers.push_back(std::make_unique<Worker>(*state));
    pause_timer.emplace(workers[0]->io());
    refresh_timer.emplace(workers[0]->io());
  }

  Status listen();
  Status listen_tcp();
  Status listen_uds();
  void accept(size_t index);
  void on_accept(size_t index, Worker& worker, const SystemError& error, Socket socket);
  void take_in(Worker& worker, Socket socket);
  void take_in_the_last(Acceptor& acceptor);
  void pause_accepting(size_t index, const SystemError& error);
  void arm_refresh();
  bool may_log();  // at most one line in a while, however often it happens

  std::unique_ptr<ServerState> state;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Acceptor> acceptors;
  std::optional<asio::steady_timer> pause_timer;
  std::optional<asio::steady_timer> refresh_timer;
  SharedTls tls;  // worker 0's thread, once running
  uint64_t tls_seen = 0;
  size_t next_worker = 0;
  Clock::time_point last_log;
  uint16_t port = 0;
  std::string url;
  std::mutex stop_mutex;
  bool running = false;
  bool stopped = false;
};

Status Server::Impl::listen_tcp() {
  const ServerOptions& options = state->options;
  asio::ip::tcp::resolver resolver(workers[0]->io());
  SystemError error;
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       asio::ip::tcp::resolver::passive | asio::ip::tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return invalid_argument({"--host '", options.host, "' cannot be resolved: ", error.message(), "."});
  }
  std::vector<asio::ip::tcp::endpoint> endpoints;
  for (const auto& entry : found) {
    if (std::find(endpoints.begin(), endpoints.end(), entry.endpoint()) == endpoints.end()) {
      endpoints.push_back(entry.endpoint());
    }
  }
  // A name may stand for several addresses ("localhost"); it is enough if one of them exists on this machine.
  std::string trouble;
  for (asio::ip::tcp::endpoint endpoint : endpoints) {
    if (port != 0) endpoint.port(port);
    Acceptor acceptor(workers[0]->io());
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error && endpoint.address().is_v6()) {
      acceptor.set_option(asio::ip::v6_only(endpoints.size() > 1), error);
    }
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(kBacklog, error);
    if (error == asio::error::address_in_use) {
      return unavailable({"Port ", endpoint.port(), " on ", endpoint.address().to_string(),
                          " is in use by another program: stop it, or choose another --port."});
    }
    if (error) {
      trouble = "Cannot listen on " + describe(endpoint) + ": " + error.message() + ".";
      continue;
    }
    if (port == 0) {
      sockaddr_storage address{};
      socklen_t size = sizeof(address);
      getsockname(acceptor.native_handle(), reinterpret_cast<sockaddr*>(&address), &size);
      port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                                 : reinterpret_cast<sockaddr_in&>(address).sin_port);
    }
    acceptors.push_back(std::move(acceptor));
  }
  if (acceptors.empty()) return unavailable(trouble);
  const bool literal_v6 = options.host.find(':') != std::string::npos;
  url = std::string(tls ? "https://" : "http://") + (literal_v6 ? "[" + options.host + "]" : options.host) + ":" +
        std::to_string(port);
  return {};
}

Status Server::Impl::listen_uds() {
  const std::string& path = state->options.uds;
  const asio::local::stream_protocol::endpoint endpoint(path);
  SystemError error;
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    asio::local::stream_protocol::socket other(workers[0]->io());
    other.connect(endpoint, error);
    if (!error) return unavailable({"--uds '", path, "' is in use by another program."});
    unlink(path.c_str());  // left behind by a server that crashed
  }
  Acceptor acceptor(workers[0]->io());
  error = {};
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error) return unavailable({"Cannot listen on --uds '", path, "': ", error.message(), "."});
  acceptors.push_back(std::move(acceptor));
  url = "unix:" + path;
  return {};
}

Status Server::Impl::listen() {
  QUIRE_TRY(check(state->options));
  if (!state->options.ssl_certfile.empty()) {
    tls_seen = tls_fingerprint(tls_files(state->options));
    QUIRE_ASSIGN(tls, make_tls(tls_files(state->options)));
  }
  QUIRE_TRY(state->options.uds.empty() ? listen_tcp() : listen_uds());
  std::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit(state->options.max_connections);
  return {};
}

bool Server::Impl::may_log() {
  const Clock::time_point now = Clock::now();
  if (last_log != Clock::time_point{} && now - last_log < kLogEvery) return false;
  last_log = now;
  return true;
}

void Server::Impl::accept(size_t index) {
  Worker& worker = *workers[next_worker++ % workers.size()];
  acceptors[index].async_accept(worker.io().get_executor(),
                                [this, index, &worker](const SystemError& error, Socket socket) {
                                  on_accept(index, worker, error, std::move(socket));
                                });
}

void Server::Impl::on_accept(size_t index, Worker& worker, const SystemError& error, Socket socket) {
  if (!acceptors[index].is_open()) return;
  if (!error) {
    take_in(worker, std::move(socket));
  } else if (error != asio::error::connection_aborted && error != asio::error::interrupted) {
    return pause_accepting(index, error);
  }
  accept(index);
}

// Out of descriptors or memory: trying again at once would only waste CPU time.
void Server::Impl::pause_accepting(size_t index, const SystemError& error) {
  if (may_log()) log_warn("Cannot accept a connection, pausing: {}.", error.message());
  pause_timer->expires_after(kAcceptPause);
  pause_timer->async_wait([this, index](const SystemError&) {
    if (acceptors[index].is_open()) accept(index);
  });
}

void Server::Impl::take_in(Worker& worker, Socket socket) {
  const auto max = static_cast<int64_t>(state->options.max_connections);
  const int64_t before = state->connections.load();
  const bool full = before >= max;
  if (full && may_log()) log_warn("All {} connections are taken; refusing more.", max);
  if (full && (tls || before >= max + kMaxRefused)) return;  // the socket closes itself
  SystemError ignored;
  const Generic::endpoint peer = socket.remote_endpoint(ignored);
  if (state->options.uds.empty()) tune_tcp(socket.native_handle(), state->options.write_timeout_s);
  ++state->connections;
  auto connection = tls ? make_tls_connection(worker, std::move(socket), describe_peer(peer), tls)
                        : make_connection(worker, std::move(socket), describe_peer(peer));
  asio::post(worker.io(), [connection = std::move(connection), full] {
    if (full) {
      connection->refuse();
    } else {
      connection->start();
    }
  });
}

// Clients that wait to be accepted when the server stops get its answer, too: closing the listener would reset their
// connections.
void Server::Impl::take_in_the_last(Acceptor& acceptor) {
  SystemError error;
  if (acceptor.is_open()) acceptor.non_blocking(true, error);
  for (int i = 0; acceptor.is_open() && !error && i < kBacklog; ++i) {
    Worker& worker = *workers[next_worker++ % workers.size()];
    Socket socket = acceptor.accept(worker.io().get_executor(), error);
    if (!error) take_in(worker, std::move(socket));
  }
}

void Server::Impl::arm_refresh() {
  if (!tls || !state->options.enable_ssl_refresh) return;
  refresh_timer->expires_after(kRefreshEvery);
  refresh_timer->async_wait([this](const SystemError& error) {
    if (error || state->stopping) return;
    const uint64_t seen = tls_fingerprint(tls_files(state->options));
    if (seen != tls_seen) {
      tls_seen = seen;
      auto fresh = make_tls(tls_files(state->options));
      if (fresh.ok()) {
        tls = std::move(fresh).value();
        log_info("The TLS certificate was read again.");
      } else {
        log_warn("The old TLS certificate stays in use: {}", fresh.error().message);
      }
    }
    arm_refresh();
  });
}

Status check_options(const ServerOptions& options) {
  QUIRE_TRY(check(options));
  if (!options.ssl_certfile.empty()) QUIRE_TRY(load_tls(tls_files(options)));
  return {};
}

Result<std::unique_ptr<Server>> Server::listen(const ServerOptions& options, api::Handler handler) {
  QUIRE_TRY(check(options));
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  QUIRE_TRY(impl->listen());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() {
  stop();
}
uint16_t Server::port() const {
  return impl_->port;
}
std::string Server::url() const {
  return impl_->url;
}
int64_t Server::num_connections() const {
  return impl_->state->connections.load();
}
int64_t Server::num_in_flight() const {
  return impl_->state->in_flight->load();
}

void Server::run() {
  const std::lock_guard lock(impl_->stop_mutex);
  QUIRE_CHECK(!impl_->running && !impl_->stopped, "run() is called once");
  impl_->running = true;
  for (size_t i = 0; i < impl_->acceptors.size(); ++i) impl_->accept(i);
  impl_->arm_refresh();
  for (const auto& worker : impl_->workers) worker->start();
}

void Server::stop() {
  const std::lock_guard lock(impl_->stop_mutex);
  if (impl_->stopped) return;
  impl_->stopped = true;
  Impl& impl = *impl_;
  const auto close_acceptors = [&impl] {
    SystemError ignored;
    for (Acceptor& acceptor : impl.acceptors) {
      if (impl.running) impl.take_in_the_last(acceptor);
      acceptor.close(ignored);
    }
    impl.pause_timer->cancel();
    impl.refresh_timer->cancel();
  };
  impl.state->stopping = true;
  if (!impl.running) {
    close_acceptors();
  } else {
    ++impl.state->connections;  // counts for those that are still to be taken in
    asio::post(impl.workers[0]->io(), [&impl, close_acceptors] {
      close_acceptors();
      impl.state->connection_ended();
    });
    for (const auto& worker : impl.workers) asio::post(worker->io(), [&worker] { worker->stop_idle(); });
    const double grace = std::max(impl.state->options.shutdown_timeout_s, 0.0);
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(grace));
    if (!impl.state->wait_quiet(until) && *impl.state->in_flight > 0) {
      log_info("Breaking off {} answers after {} s.", impl.state->in_flight->load(), grace);
      for (const auto& worker : impl.workers) asio::post(worker->io(), [&worker] { worker->break_off(); });
      impl.state->wait_quiet(Clock::now() + kLastWords);
    }
    // Repeatedly: a connection that was accepted at the last moment may not have reached its thread yet.
    do {
      for (const auto& worker : impl.workers) asio::post(worker->io(), [&worker] { worker->drop_all(); });
    } while (!impl.state->wait_quiet(Clock::now() + std::chrono::milliseconds(50)));
    for (const auto& worker : impl.workers) worker->finish();
  }
  if (!impl.state->options.uds.empty()) unlink(impl.state->options.uds.c_str());
}

}  // namespace quire::http
