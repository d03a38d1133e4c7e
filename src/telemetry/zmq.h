// SPDX-License-Identifier: Apache-2.0
// The few parts of ZeroMQ that publishing needs, from the system's libzmq, which is loaded when they are used.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/shared_library.h"

namespace quire::telemetry {

// A loaded libzmq with one context, which all sockets share. Immutable; any thread may use it.
class Zmq {
 public:
  struct PollItem {  // zmq_pollitem_t
    void* socket = nullptr;
    int fd = -1;  // used if there is no socket
    short events = 0;
    short happened = 0;
  };
  struct Api {
    void* (*ctx_new)();
    int (*ctx_term)(void*);
    void* (*socket)(void*, int);
    int (*close)(void*);
    int (*setsockopt)(void*, int, const void*, size_t);
    int (*getsockopt)(void*, int, void*, size_t*);
    int (*bind)(void*, const char*);
    int (*connect)(void*, const char*);
    int (*send)(void*, const void*, size_t, int);
    int (*recv)(void*, void*, size_t, int);
    int (*poll)(PollItem*, int, long);
    int (*last_errno)();
    const char* (*strerror)(int);
  };

  // Loads libzmq.so.5 (or what QUIRE_LIBZMQ names).
  static Result<std::shared_ptr<const Zmq>> load();
  ~Zmq();
  Zmq(const Zmq&) = delete;

  const Api& api() const { return api_; }
  void* context() const { return context_; }
  std::string error() const { return api_.strerror(api_.last_errno()); }  // of the last call of this thread

 private:
  explicit Zmq(SharedLibrary library) : library_(std::move(library)) {}

  SharedLibrary library_;
  Api api_ = {};
  void* context_ = nullptr;
};

// One socket. It may be handed to another thread, but only one thread at a time may use it.
class ZmqSocket {
 public:
  enum class Type : int { kPublish = 1, kRouter = 6 };
  // `hwm` is the number of messages that may wait for each peer; more are dropped.
  ZmqSocket(std::shared_ptr<const Zmq> zmq, Type type, int hwm);
  ~ZmqSocket();
  ZmqSocket(const ZmqSocket&) = delete;

  Status bind(const std::string& endpoint);
  Status connect(const std::string& endpoint);
  // Where it is bound or connected: "tcp://0.0.0.0:5557".
  std::string endpoint() const;
  // Sends the parts as one message, or drops it. Never blocks.
  bool send(std::span<const std::string_view> parts);
  // The next message, if one is there. Parts are cut to 256 bytes.
  std::vector<std::string> receive();
  void* handle() const { return handle_; }

 private:
  void allow_ipv6(const std::string& endpoint);

  std::shared_ptr<const Zmq> zmq_;
  void* handle_ = nullptr;
};

}  // namespace quire::telemetry
