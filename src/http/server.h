// SPDX-License-Identifier: Apache-2.0
// The HTTP/1.1 server: sockets, TLS, keys, CORS and limits in front of one api::Handler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/handler.h"
#include "base/result.h"
#include "http/gate.h"

namespace quire::http {

// One answer that was completed or broken off, for metrics.
struct AccessRecord {
  std::string_view method;  // as sent; empty if the request could not be read
  std::string_view path;    // decoded, without --root-path; empty if the request could not be read
  int status = 0;           // 499 if the client went away before an answer was begun
  double seconds = 0;       // from the request's first byte to the end of the answer
  double first_byte_seconds = 0;
  int64_t request_bytes = 0;   // the body
  int64_t response_bytes = 0;  // head and body
};

struct ServerOptions {
  // Where to listen: host and port, or a unix socket alone.
  std::string host = "127.0.0.1";  // a name or an address; "0.0.0.0" or "::" for every interface
  int port = 8000;                 // 0 picks a free one
  std::string uds;

  // TLS, when ssl_certfile is set.
  std::string ssl_certfile;         // PEM, the server's certificate first, then its chain
  std::string ssl_keyfile;          // PEM; empty: the key is in ssl_certfile
  std::string ssl_ca_certs;         // PEM, the authorities that may sign clients' certificates
  int ssl_cert_reqs = 0;            // as Python's ssl: 0 none, 1 optional, 2 required
  std::string ssl_ciphers;          // OpenSSL's list for TLS 1.2; empty: OpenSSL's default
  bool enable_ssl_refresh = false;  // read the files again when they change; open connections keep their context

  // Who may send requests. Without keys everybody may.
  std::vector<std::string> api_keys;
  std::vector<NamedKey> named_keys;          // further keys, with the names of their owners (HttpRequest::caller)
  NeedsKey needs_key;                        // which paths need a key; unset: all
  std::vector<std::string> allowed_origins;  // empty: no CORS at all
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;
  std::string root_path;  // a proxy's prefix, removed from the paths that have it

  // Limits.
  size_t max_body_bytes = size_t{32} << 20;         // more: 413
  size_t max_held_body_bytes = size_t{128} << 20;   // of all requests that are being read or wait; more: 503
  size_t max_header_bytes = size_t{64} << 10;       // more: 431
  size_t max_headers = 256;                         // more: 431
  size_t max_write_buffer_bytes = size_t{4} << 20;  // of a streamed answer, unread by the client; more: disconnected
  size_t max_connections = 16384;                   // more: 503 and closed

  // Timeouts in seconds; 0: none.
  double header_timeout_s = 30;     // for the whole head (and for the TLS handshake); then 408
  double body_timeout_s = 30;       // between two parts of the body; then 408
  double keep_alive_timeout_s = 5;  // between two requests
  double write_timeout_s = 60;      // for a client that reads nothing
  double shutdown_timeout_s = 0;    // that stop() waits for pending answers

  int io_threads = 2;
  bool enable_request_id_headers = false;  // answers carry X-Request-Id
  bool access_log = true;
  std::vector<std::string> access_log_excluded_paths;  // exact paths that are not logged
  std::function<void(const AccessRecord&)> on_access;  // on an I/O thread, for every answer; must be quick
};

// What is wrong with the options, certificates among them, as far as it can be told without listening.
Status check_options(const ServerOptions& options);

// A listening server. listen() binds and reports what is wrong with the options. run() starts the I/O threads, which
// call the handler, and returns. stop() may be called more than once, from any thread that is not an I/O thread.
// REQUIRES: the handler and what it uses live until stop() (or the destructor, which stops) has returned. Replies may
// live longer.
class Server {
 public:
  static Result<std::unique_ptr<Server>> listen(const ServerOptions& options, api::Handler handler);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;    // 0 for a unix socket
  std::string url() const;  // "http://127.0.0.1:8000", or "unix:" and the path

  void run();
  // Stops accepting, closes idle connections, refuses requests that are still arriving, and waits shutdown_timeout_s
  // for pending answers. Then it ends the others with an error (their stop callbacks are called), and a second later
  // closes the connections that are left (gone callbacks). Returns when no connection and no I/O thread is left.
  void stop();

  int64_t num_connections() const;
  int64_t num_in_flight() const;  // requests that the handler has and whose answers are not complete

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::http
