// SPDX-License-Identifier: Apache-2.0
// A real server on loopback for the tests, with a handler that echoes, streams, or leaves the answer to the test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "http/server.h"
#include "http/test_client.h"

namespace quire::http {

// Waits for what another thread will do; the half minute is a net for broken code, not a measure.
inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 30'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// A server whose handler answers /echo at once and keeps the replies to /later for the test to answer.
class Host {
 public:
  explicit Host(ServerOptions options = {}) {
    options.port = 0;
    options.access_log = false;
    options.on_access = [this](const AccessRecord& record) {
      const std::lock_guard lock(mutex_);
      statuses_.push_back(record.status);
    };
    auto listening = Server::listen(options, [this](api::HttpRequest request, api::ReplyPtr reply) {
      handle(std::move(request), std::move(reply));
    });
    EXPECT_TRUE(listening.ok()) << (listening.ok() ? "" : listening.error().message);
    server = std::move(listening).value();
    server->run();
  }
  ~Host() { server->stop(); }

  uint16_t port() const { return server->port(); }
  Client client() const { return Client(port()); }

  // The oldest reply to /later that has not been taken yet, with its request.
  api::ReplyPtr take() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::seconds(30), [this] { return !waiting_.empty(); })) return nullptr;
    api::ReplyPtr reply = std::move(waiting_.front());
    waiting_.pop_front();
    return reply;
  }
  int count(int status) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count(statuses_.begin(), statuses_.end(), status));
  }

  std::unique_ptr<Server> server;
  std::atomic<int> gone{0};
  std::atomic<int> handled{0};
  std::function<void(api::HttpRequest, api::ReplyPtr)> special;  // for /special; set before it is asked

 private:
  void handle(api::HttpRequest request, api::ReplyPtr reply) {
    ++handled;
    if (request.path == "/special") return special(std::move(request), std::move(reply));
    if (request.path == "/drop") return;
    if (request.path == "/big") return reply->send(200, "text/plain", std::string(8 << 20, 'x'));
    if (request.path == "/stream") {
      reply->begin(200, "text/event-stream");
      reply->write("one");
      reply->write("two");
      return reply->end();
    }
    if (request.path.ends_with("/later")) {
      reply->on_gone([this] { ++gone; });
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(reply));
      arrived_.notify_all();
      return;
    }
    const std::string* id = request.header("x-request-id");
    reply->send(200, "text/plain", request.method + " " + request.path + " " + request.query + " " + request.body,
                {{"X-Saw-Id", id != nullptr && *id == request.id ? "yes" : "no"}});
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<api::ReplyPtr> waiting_;
  std::vector<int> statuses_;
};

inline std::string get(std::string_view path, std::string_view headers = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + std::string(headers) + "\r\n";
}
inline std::string post(std::string_view path, std::string_view body, std::string_view headers = "") {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + std::string(headers) + "\r\n" + std::string(body);
}

}  // namespace quire::http
