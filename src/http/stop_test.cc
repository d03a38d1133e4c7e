// SPDX-License-Identifier: Apache-2.0
// The server's end: what finishes, what is refused, and what is broken off with a word about why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "http/test_host.h"

namespace quire::http {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(HttpServer, FinishesAnswersBeforeItStopsButNotForever) {
  for (const double grace : {20.0, 0.0}) {
    ServerOptions options;
    options.shutdown_timeout_s = grace;
    Host host(options);
    Client idle = host.client();
    EXPECT_EQ(idle.ask(get("/echo")).status, 200);
    std::vector<Client> clients;
    std::vector<api::ReplyPtr> replies;
    for (int i = 0; i < 20; ++i) {
      clients.push_back(host.client());
      clients.back().send(get("/later"));
      replies.push_back(host.take());
      if (i % 2 == 0) replies.back()->begin(200, "text/plain");
    }
    std::thread stopping([&] { host.server->stop(); });
    EXPECT_TRUE(idle.at_end());
    for (int i = 0; i < 20; ++i) {
      if (grace > 0) {
        if (i % 2 == 1) replies[i]->begin(200, "text/plain");
        EXPECT_TRUE(replies[i]->write("done"));
        replies[i]->end();
      }
      const Answer answer = clients[i].read_answer();
      if (grace > 0) {
        EXPECT_EQ(answer.body, "done");
      } else if (i % 2 == 1) {  // what has not begun can still be told why
        EXPECT_EQ(answer.status, 503);
        EXPECT_THAT(answer.body, HasSubstr("stopping"));
      } else {
        EXPECT_EQ(answer.status, 0) << "a stream without a stop callback is cut";
      }
      clients[i].close();
    }
    stopping.join();
    EXPECT_EQ(host.gone, grace > 0 ? 0 : 20);
    EXPECT_EQ(host.server->num_connections(), 0);
    EXPECT_EQ(host.server->num_in_flight(), 0);
    EXPECT_FALSE(host.client().connected());
    for (const api::ReplyPtr& reply : replies) EXPECT_FALSE(reply->write("late"));
  }
}

// A body that never ends held the server for the whole of its shutdown timeout.
TEST(HttpServer, RefusesRequestsThatAreStillArrivingWhenItStops) {
  ServerOptions options;
  options.shutdown_timeout_s = 3600;
  Host host(options);
  Client head = host.client(), body = host.client(), messages = host.client();
  head.send("POST /echo HTTP/1.1\r\nHost: x\r\n");
  body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf");
  messages.send("POST /v1/messages HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n");
  EXPECT_TRUE(messages.read_until("100 Continue\r\n\r\n"));
  EXPECT_TRUE(eventually([&] { return host.server->num_connections() == 3; }));
  Client last = host.client();  // its answer says that the bytes before it were read
  EXPECT_EQ(last.ask(get("/echo")).status, 200);
  host.server->stop();
  const Answer refused = body.read_answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_THAT(refused.body, HasSubstr("stopping"));
  EXPECT_THAT(messages.read_answer().body, StartsWith(R"({"type":"error","error":{"type":"overloaded_error")"));
  EXPECT_TRUE(head.at_end());
  EXPECT_EQ(host.handled, 1);
}

// Closing a socket with unread bytes resets the connection: clients saw no answer at all.
TEST(HttpServer, AnswersRequestsThatItHasNotReadWhenItStops) {
  ServerOptions options;
  options.io_threads = 1;
  Host host(options);
  std::promise<void> release;
  host.special = [&](const api::HttpRequest&, const api::ReplyPtr& reply) {
    release.get_future().wait();  // holds the only I/O thread
    reply->send(200, "text/plain", "");
  };
  std::vector<Client> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(host.client());
    EXPECT_EQ(clients.back().ask(get("/echo")).status, 200);
  }
  Client blocking = host.client();
  blocking.send(get("/special"));
  EXPECT_TRUE(eventually([&] { return host.handled == 9; }));
  for (Client& client : clients) client.send(get("/echo"));
  std::thread stopping([&] { host.server->stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that the stop is queued before the reads
  release.set_value();
  for (Client& client : clients) {
    EXPECT_THAT(client.read_answer().status, AnyOf(200, 503));
    client.close();
  }
  stopping.join();
}

// The bug: connections that were still to be accepted were reset without a word.
TEST(HttpServer, AnswersClientsThatWaitToBeAcceptedWhenItStops) {
  ServerOptions options;
  options.io_threads = 1;
  Host host(options);
  std::promise<void> release;
  host.special = [&](const api::HttpRequest&, const api::ReplyPtr& reply) {
    release.get_future().wait();  // holds the only I/O thread
    reply->send(200, "text/plain", "");
  };
  Client blocking = host.client();
  blocking.send(get("/special"));
  EXPECT_TRUE(eventually([&] { return host.handled == 1; }));
  std::vector<Client> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(host.client());
    clients.back().send(get("/echo"));
  }
  std::thread stopping([&] { host.server->stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that the stop is queued
  release.set_value();
  for (Client& client : clients) {
    EXPECT_THAT(client.read_answer().status, AnyOf(200, 503));
    client.close();
  }
  stopping.join();
  EXPECT_EQ(host.server->num_connections(), 0);
}

TEST(HttpServer, LetsHandlersEndTheirStreamsWhenItWaitsNoLonger) {
  Host host;
  std::mutex mutex;
  std::vector<api::ReplyPtr> kept;
  host.special = [&](const api::HttpRequest&, const api::ReplyPtr& reply) {
    reply->on_gone([&] { ++host.gone; });
    reply->begin(200, "text/event-stream");
    reply->write("token ");
    reply->on_stop([weak = std::weak_ptr(reply)] {
      const auto alive = weak.lock();
      alive->write("error");
      alive->end();
    });
    const std::lock_guard lock(mutex);
    kept.push_back(reply);
  };
  std::vector<Client> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(host.client());
    clients.back().send(get("/special"));
  }
  EXPECT_TRUE(eventually([&] { return host.handled == 5; }));
  std::thread stopping([&] { host.server->stop(); });
  for (Client& client : clients) {
    EXPECT_EQ(client.read_answer().body, "token error");
    client.close();
  }
  stopping.join();
  EXPECT_EQ(host.gone, 0);
  bool called = false;
  kept[0]->on_stop([&] { called = true; });
  EXPECT_TRUE(called) << "one that comes too late is called at once";
}

}  // namespace
}  // namespace quire::http
