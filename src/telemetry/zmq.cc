// SPDX-License-Identifier: Apache-2.0
// Loads libzmq and calls it.
#include "telemetry/zmq.h"

#include <algorithm>

#include "base/env.h"

namespace quire::telemetry {
namespace {

// From zmq.h; they are part of its binary interface.
constexpr int kRcvMore = 13, kLinger = 17, kMaxMessageSize = 22, kSendHwm = 23, kLastEndpoint = 32, kIpv6 = 42;
constexpr int kDontWait = 1, kSendMore = 2;

constexpr int kLingerMs = 200;              // how long the last messages may take when a socket is closed
constexpr int64_t kMaxPartBytes = 1 << 10;  // of what clients send; longer parts end their connection
constexpr size_t kKeptPartBytes = 256;
constexpr size_t kKeptParts = 8;

#ifdef __APPLE__
constexpr const char* kLibrary = "libzmq.5.dylib";
#else
constexpr const char* kLibrary = "libzmq.so.5";
#endif

template <typename Function>
bool find(const SharedLibrary& library, const char* name, Function*& out) {
  out = reinterpret_cast<Function*>(library.symbol(name));
  return out != nullptr;
}

}  // namespace

Result<std::shared_ptr<const Zmq>> Zmq::load() {
  const std::string path = env("QUIRE_LIBZMQ").value_or(kLibrary);
  SharedLibrary library(path);
  if (!library) {
    return unavailable({"KV events need ZeroMQ's library, but ", path,
                        " cannot be loaded: install the package libzmq5 (Homebrew: zeromq)"});
  }
  const std::shared_ptr<Zmq> out(new Zmq(std::move(library)));
  const SharedLibrary& from = out->library_;
  Api& api = out->api_;
  const bool complete = find(from, "zmq_ctx_new", api.ctx_new) && find(from, "zmq_ctx_term", api.ctx_term) &&
                        find(from, "zmq_socket", api.socket) && find(from, "zmq_close", api.close) &&
                        find(from, "zmq_setsockopt", api.setsockopt) && find(from, "zmq_getsockopt", api.getsockopt) &&
                        find(from, "zmq_bind", api.bind) && find(from, "zmq_connect", api.connect) &&
                        find(from, "zmq_send", api.send) && find(from, "zmq_recv", api.recv) &&
                        find(from, "zmq_poll", api.poll) && find(from, "zmq_errno", api.last_errno) &&
                        find(from, "zmq_strerror", api.strerror);
  if (!complete) return unavailable({path, " is not ZeroMQ's library of version 4: install the package libzmq5"});
  out->context_ = api.ctx_new();
  QUIRE_CHECK(out->context_ != nullptr, "ZeroMQ has no context");
  return std::shared_ptr<const Zmq>(out);
}

Zmq::~Zmq() {
  if (context_ != nullptr) api_.ctx_term(context_);
}

ZmqSocket::ZmqSocket(std::shared_ptr<const Zmq> zmq, Type type, int hwm) : zmq_(std::move(zmq)) {
  const Zmq::Api& api = zmq_->api();
  handle_ = api.socket(zmq_->context(), static_cast<int>(type));
  QUIRE_CHECK(handle_ != nullptr, "ZeroMQ has no more sockets");
  api.setsockopt(handle_, kSendHwm, &hwm, sizeof hwm);
  api.setsockopt(handle_, kLinger, &kLingerMs, sizeof kLingerMs);
  api.setsockopt(handle_, kMaxMessageSize, &kMaxPartBytes, sizeof kMaxPartBytes);
}

ZmqSocket::~ZmqSocket() {
  zmq_->api().close(handle_);
}

// With IPv6 on, * would mean :: and fail on a machine without IPv6.
void ZmqSocket::allow_ipv6(const std::string& endpoint) {
  const int on = endpoint.find('[') != std::string::npos || endpoint.find("::") != std::string::npos ? 1 : 0;
  zmq_->api().setsockopt(handle_, kIpv6, &on, sizeof on);
}

Status ZmqSocket::bind(const std::string& endpoint) {
  allow_ipv6(endpoint);
  if (zmq_->api().bind(handle_, endpoint.c_str()) == 0) return {};
  return invalid_argument({"cannot listen on '", endpoint, "': ", zmq_->error()});
}

Status ZmqSocket::connect(const std::string& endpoint) {
  allow_ipv6(endpoint);
  if (zmq_->api().connect(handle_, endpoint.c_str()) == 0) return {};
  return invalid_argument({"cannot connect to '", endpoint, "': ", zmq_->error()});
}

std::string ZmqSocket::endpoint() const {
  char text[512] = "";
  size_t size = sizeof text;
  zmq_->api().getsockopt(handle_, kLastEndpoint, text, &size);
  return text;
}

bool ZmqSocket::send(std::span<const std::string_view> parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const int flags = kDontWait | (i + 1 < parts.size() ? kSendMore : 0);
    if (zmq_->api().send(handle_, parts[i].data(), parts[i].size(), flags) < 0) return false;
  }
  return true;
}

std::vector<std::string> ZmqSocket::receive() {
  std::vector<std::string> parts;
  int more = 1;
  while (more != 0) {
    char buffer[kKeptPartBytes];
    const int size = zmq_->api().recv(handle_, buffer, sizeof buffer, kDontWait);
    if (size < 0) return {};
    if (parts.size() < kKeptParts)
      parts.emplace_back(buffer, std::min<size_t>(static_cast<size_t>(size), sizeof buffer));
    size_t length = sizeof more;
    if (zmq_->api().getsockopt(handle_, kRcvMore, &more, &length) != 0) return {};
  }
  return parts;
}

}  // namespace quire::telemetry
