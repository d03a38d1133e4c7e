// SPDX-License-Identifier: Apache-2.0
// Binds the server's address on trial.
#include "cli/port_check.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace quire::cli {
namespace {

// A socket that is closed at the end of its scope.
class Socket {
 public:
  Socket(int family, int protocol) : descriptor_(::socket(family, SOCK_STREAM, protocol)) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

Status check_unix(const std::string& path) {
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path) return {};  // the server reports this
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const Socket probe(AF_UNIX, 0);
  if (probe.get() < 0) return {};
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return unavailable({"--uds '", path, "' is in use by another program: stop it, or choose another path"});
}

Status check_tcp(const addrinfo& where, const http::ServerOptions& options, bool only_one) {
  const Socket probe(where.ai_family, where.ai_protocol);
  if (probe.get() < 0) return {};
  const int on = 1;
  ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (where.ai_family == AF_INET6) {
    const int v6_only = only_one ? 0 : 1;
    ::setsockopt(probe.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
  }
  if (::bind(probe.get(), where.ai_addr, where.ai_addrlen) == 0) return {};
  const std::string port = std::to_string(options.port);
  if (errno == EADDRINUSE) {
    return unavailable(
        {"port ", port, " on ", options.host,
         " is in use by another program: stop it, choose another --port, or let --port 0 pick a free one"});
  }
  if (errno == EACCES) {
    return unavailable({"port ", port, " on ", options.host,
                        " needs privileges that this user does not have: choose a --port of 1024 or above"});
  }
  return {};  // not an address of this machine: the server checks all of them together
}

}  // namespace

Status check_address(const http::ServerOptions& options) {
  if (!options.uds.empty()) return check_unix(options.uds);
  if (options.port == 0) return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found) != 0) return {};
  Status status;
  for (const addrinfo* at = found; at != nullptr && status.ok(); at = at->ai_next) {
    status = check_tcp(*at, options, found->ai_next == nullptr);
  }
  ::freeaddrinfo(found);
  return status;
}

}  // namespace quire::cli
