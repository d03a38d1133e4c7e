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
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const Socket probe(AF_UNIX, 0);
  if (probe.get() < 0) return {};
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return unavailable({"--uds '", path, "' is in use by another program: stop it, or choose another path"});
}

// `here` becomes true if the address is one of this machine.
Status check_tcp(const addrinfo& where, const http::ServerOptions& options, bool only_one, bool& here) {
  const Socket probe(where.ai_family, where.ai_protocol);
  if (probe.get() < 0) return {};  // a kind of address that this machine does not have
  const int on = 1;
  ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (where.ai_family == AF_INET6) {
    const int v6_only = only_one ? 0 : 1;
    ::setsockopt(probe.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
  }
  const int bound = ::bind(probe.get(), where.ai_addr, where.ai_addrlen);
  here = here || bound == 0 || errno != EADDRNOTAVAIL;
  if (bound == 0) return {};
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
  return {};
}

}  // namespace

Status check_address(const http::ServerOptions& options) {
  QUIRE_TRY(http::check_options(options));
  if (!options.uds.empty()) return check_unix(options.uds);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int unknown = ::getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
  if (unknown != 0) {
    return invalid_argument({"--host '", options.host, "' cannot be resolved: ", ::gai_strerror(unknown)});
  }
  Status status;
  bool here = false;
  for (const addrinfo* at = found; at != nullptr && status.ok(); at = at->ai_next) {
    status = check_tcp(*at, options, found->ai_next == nullptr, here);
  }
  ::freeaddrinfo(found);
  // A name may stand for several addresses ("localhost"); it is enough if one of them exists on this machine.
  if (status.ok() && !here) {
    return unavailable({"--host '", options.host,
                        "' is no address of this machine: give one that it has, or 0.0.0.0 for every interface"});
  }
  return status;
}

}  // namespace quire::cli
