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

// One finished (or broken off) answer, for metrics.
struct AccessRecord {
  std::string_view method;  // as sent; empty when the request could not be read
  std::string_view path;    // decoded, without --root-path; empty when the request could not be read
  int status = 0;           // 499 when the client went away before an answer was begun
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
  std::string ssl_ca_certs;         // PEM, who may sign clients' certificates
  int ssl_cert_reqs = 0;            // as Python's ssl: 0 none, 1 optional, 2 required
  std::string ssl_ciphers;          // OpenSSL's list for TLS 1.2; empty: OpenSSL's default
  bool enable_ssl_refresh = false;  // read the files again when they change; open connections keep what they have

  // Who may ask. Keys guard everything but /health, /ping, /metrics, /version, /load and the API's description (/docs,
  // /openapi.json); without keys everything is open.
  std::vector<std::string> api_keys;
  std::vector<NamedKey> named_keys;          // the same, each with the name of its owner (HttpRequest::caller)
  std::vector<std::string> allowed_origins;  // empty: no CORS at all
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;
  std::string root_path;  // a proxy's prefix, taken off each path that has it

  // Limits.
  size_t max_body_bytes = size_t{32} << 20;         // more: 413
  size_t max_held_body_bytes = size_t{128} << 20;   // of all requests that are read or wait; more: 503
  size_t max_header_bytes = size_t{64} << 10;       // more: 431
  size_t max_headers = 256;                         // more: 431
  size_t max_write_buffer_bytes = size_t{4} << 20;  // a streamed answer that the client does not read; more: thrown out
  size_t max_connections = 16384;                   // more: 503 and closed

  // Seconds. 0 turns one off.
  double header_timeout_s = 30;     // the whole head must be there (and the TLS handshake); 408
  double body_timeout_s = 30;       // without a byte of the body; 408
  double keep_alive_timeout_s = 5;  // idle between two requests
  double write_timeout_s = 60;      // a reader that takes nothing
  double shutdown_timeout_s = 0;    // what stop() gives to answers under way

  int io_threads = 2;
  bool enable_request_id_headers = false;  // answers carry X-Request-Id
  bool access_log = true;
  std::vector<std::string> access_log_excluded_paths;  // exact paths that leave no line
  std::function<void(const AccessRecord&)> on_access;  // on an I/O thread, for every answer; must be quick
};

// A listening server. listen() binds and reports what is wrong with the options; run() starts the I/O threads, which
// call the handler, and returns; stop() may be called from any thread but an I/O thread, more than once. The handler
// and what it uses must live until stop() (or the destructor, which stops) has returned; Replies may live longer.
class Server {
 public:
  static Result<std::unique_ptr<Server>> listen(const ServerOptions& options, api::Handler handler);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;    // 0 for a unix socket
  std::string url() const;  // "http://127.0.0.1:8000", or "unix:" and the path

  void run();
  // Stops accepting, closes idle connections, refuses requests that are still arriving, lets answers under way finish
  // for shutdown_timeout_s, then ends the rest with an error (their stop callbacks are called), and a second later
  // closes what is left (gone callbacks). Returns when no connection and no I/O thread is left.
  void stop();

  int64_t num_connections() const;
  int64_t num_in_flight() const;  // requests handed to the handler whose answers are not complete

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::http
