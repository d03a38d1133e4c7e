// SPDX-License-Identifier: Apache-2.0
// A real server on loopback, driven by clients that behave well, badly, or not at all.
#include "http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "base/log.h"
#include "base/test_folder.h"
#include "http/request_reader.h"
#include "http/test_client.h"
#include "http/test_host.h"

namespace quire::http {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// In a folder that is removed when the tests end.
std::string temp_path(const std::string& name) {
  static const TempFolder folder;
  return folder.path() / name;
}

TEST(HttpServer, AnswersManyRequestsOnOneConnectionAndPipelinedOnesInOrder) {
  Host host;
  Client client = host.client();
  EXPECT_EQ(client.ask(post("/echo/a%20b?c=%20d", "hello")).body, "POST /echo/a b c=%20d hello");
  EXPECT_EQ(client.ask(get("/echo")).body, "GET /echo  ");
  std::string many;
  for (int i = 0; i < 2000; ++i) many += post("/echo", std::to_string(i));
  std::thread sender([&] { client.send(many); });
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(client.read_answer().body, "POST /echo  " + std::to_string(i));
  sender.join();
  // A later answer holds up those behind it, and no more than a few are read ahead of it.
  client.send(get("/later") + get("/echo"));
  const api::ReplyPtr reply = host.take();
  EXPECT_EQ(host.server->num_in_flight(), 1);
  reply->send(200, "text/plain", "late");
  EXPECT_EQ(client.read_answer().body, "late");
  EXPECT_EQ(client.read_answer().body, "GET /echo  ");
  EXPECT_EQ(host.server->num_in_flight(), 0);
  EXPECT_EQ(host.server->num_connections(), 1);
}

TEST(HttpServer, ReadsChunkedBodiesHoweverTheyAreCut) {
  Host host;
  Client client = host.client();
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;ext=1\r\nhello\r\n1\r\n \r\n005\r\nworld\r\n0\r\nTrailer: x\r\n\r\n";
  for (const char byte : request) client.send({&byte, 1});
  EXPECT_EQ(client.read_answer().body, "POST /echo  hello world");
  EXPECT_EQ(client.ask(request).body, "POST /echo  hello world");
}

TEST(HttpServer, StreamsInChunksAndToTheEndOfTheConnectionForHttp10) {
  Host host;
  Client client = host.client();
  const Answer answer = client.ask(get("/stream"));
  EXPECT_EQ(answer.body, "onetwo");
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream");
  Client old = host.client();
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  const Answer plain = old.read_answer();
  EXPECT_EQ(plain.body, "onetwo");
  EXPECT_FALSE(plain.headers.contains("transfer-encoding"));
  EXPECT_EQ(plain.headers.at("connection"), "close");
  Client kept = host.client();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(kept.ask("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").headers.at("connection"), "keep-alive");
  }
}

TEST(HttpServer, AnswersHeadWithoutABody) {
  Host host;
  Client client = host.client();
  client.send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_answer(true).headers.at("content-length"), "11");
  client.send("HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_answer(true).status, 200);
  EXPECT_EQ(client.ask(get("/echo")).status, 200);
}

TEST(HttpServer, ContinuesWhenAClientAsksFirst) {
  Host host;
  Client client = host.client();
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 100);
  EXPECT_EQ(client.ask("ok").body, "POST /echo  ok");
  EXPECT_EQ(client.ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: cake\r\n\r\n").status, 417);
}

TEST(HttpServer, AnswersADroppedReplyWith500AndAbandonedStreamsByClosing) {
  Host host;
  Client client = host.client();
  const Answer answer = client.ask(get("/drop"));
  EXPECT_EQ(answer.status, 500);
  EXPECT_THAT(answer.body, StartsWith(R"({"error":{"message":)"));
  client.send(get("/later"));
  api::ReplyPtr reply = host.take();
  reply->begin(200, "text/plain");
  EXPECT_TRUE(reply->write("half"));
  EXPECT_EQ(client.read_head().status, 200);
  reply.reset();
  EXPECT_FALSE(client.read_chunks().has_value());
}

TEST(HttpServer, RefusesWhatIsNotHttpAndCloses) {
  Host host;
  const std::string cases[] = {
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
      "hello\r\n\r\n",
      "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET / HTTP/3.0\r\nHost: x\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "GET / HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
      "GET / HTTP/1.1\nHost: x\n\n",
      "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nA\x01: b\r\n\r\n",
      "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /%0d%0aSet-Cookie:x HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET no-slash HTTP/1.1\r\nHost: x\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(30'000, 'e'),
  };
  for (const std::string& bytes : cases) {
    Client client = host.client();
    const Answer answer = client.ask(bytes);
    EXPECT_EQ(answer.status, 400) << bytes.substr(0, 80);
    EXPECT_THAT(answer.body, HasSubstr(R"("param":null,"code":400}})"));
    EXPECT_EQ(answer.headers.at("connection"), "close");
    EXPECT_TRUE(client.at_end());
  }
  EXPECT_EQ(host.handled, 0);
  EXPECT_TRUE(eventually([&] { return host.server->num_connections() == 0; }));
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) {
    Client client = host.client();
    std::string bytes(random() % 2000, ' ');
    for (char& c : bytes) c = static_cast<char>(random());
    client.send(bytes);
    if (i % 2 == 0) client.shutdown_send();
    if (i % 3 == 0) client.abort();
  }
  EXPECT_TRUE(eventually([&] { return host.server->num_connections() == 0; }));
}

TEST(HttpServer, KeepsItsLimitsOnHeadsAndBodies) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 4096;
  options.max_headers = 10;
  options.allowed_origins = {"*"};
  Host host(options);
  const std::string chunked = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(host.client().ask(post("/echo", std::string(1000, 'x'))).status, 200);
  EXPECT_EQ(host.client().ask(post("/echo", std::string(1001, 'x'))).status, 413);
  EXPECT_EQ(host.client().ask(post("/echo", std::string(3 << 20, 'x'))).status, 413);
  EXPECT_EQ(host.client()
                .ask(post("/echo", std::string(3 << 20, 'x'), "Origin: a\r\n"))
                .headers.count("access-control-allow-origin"),
            1u);
  EXPECT_EQ(host.client().ask(chunked + "1f4\r\n" + std::string(500, 'x') + "\r\n1f5\r\n").status, 413);
  EXPECT_EQ(host.client().ask(get("/echo", "A: " + std::string(5000, 'x') + "\r\n")).status, 431);
  EXPECT_EQ(host.client().ask(get("/" + std::string(5000, 'x'))).status, 431);
  std::string headers;
  for (int i = 0; i < 10; ++i) headers += "A" + std::to_string(i) + ": b\r\n";
  EXPECT_EQ(host.client().ask(get("/echo", headers)).status, 431);
  // The sum counts, not each part.
  EXPECT_EQ(host.client().ask(get("/echo?" + std::string(3000, 'x'), "B: " + std::string(2000, 'y') + "\r\n")).status,
            431);
  EXPECT_EQ(host.handled, 1);
}

TEST(HttpServer, ThrowsOutThoseWhoTakeTooLongToAsk) {
  ServerOptions options;
  options.header_timeout_s = 0.15;
  options.body_timeout_s = 0.15;
  options.keep_alive_timeout_s = 0.15;
  Host host(options);
  Client silent = host.client();
  Client slow_head = host.client();
  slow_head.send("GET /echo HT");
  Client slow_body = host.client();
  slow_body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  Client idle = host.client();
  EXPECT_EQ(idle.ask(get("/echo")).status, 200);
  EXPECT_EQ(slow_head.read_answer().status, 408);
  EXPECT_EQ(slow_body.read_answer().status, 408);
  EXPECT_TRUE(silent.at_end());
  EXPECT_TRUE(idle.at_end());
  // A byte now and then does not help: the whole head must be there in time.
  Client loris = host.client();
  loris.send("GET /echo HTTP/1.1\r\n");
  bool sent = true;
  for (int i = 0; i < 3000 && sent; ++i) {
    sent = loris.send("X-A: b\r\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(sent);
  EXPECT_EQ(host.handled, 1);
  // An answer that takes long is not the client's fault.
  Client patient = host.client();
  patient.send(get("/later"));
  const api::ReplyPtr reply = host.take();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  reply->send(200, "text/plain", "at last");
  EXPECT_EQ(patient.read_answer().body, "at last");
}

TEST(HttpServer, GivesUpOnAReaderWhoseBufferIsFull) {
  ServerOptions options;
  options.max_write_buffer_bytes = 1 << 20;
  Host host(options);
  Client client(host.port(), 16 << 10);
  client.send(get("/later"));
  const api::ReplyPtr reply = host.take();
  reply->begin(200, "text/event-stream");
  size_t accepted = 0;
  while (accepted < (size_t{64} << 20) && reply->write(std::string(1000, 'x'))) accepted += 1000;
  EXPECT_GE(accepted, size_t{1} << 19);
  EXPECT_LT(accepted, size_t{16} << 20);
  EXPECT_TRUE(eventually([&] { return host.gone == 1; }));
  EXPECT_FALSE(reply->write("more"));
  EXPECT_TRUE(eventually([&] { return host.server->num_connections() == 0; }));
  EXPECT_EQ(host.server->num_in_flight(), 0);
}

TEST(HttpServer, GivesUpOnAReaderWhoTakesNothing) {
  ServerOptions options;
  options.max_write_buffer_bytes = size_t{64} << 20;
  options.write_timeout_s = 0.2;
  Host host(options);
  Client client(host.port(), 16 << 10);
  client.send(get("/later"));
  const api::ReplyPtr reply = host.take();
  reply->begin(200, "text/event-stream");
  EXPECT_TRUE(reply->write(std::string(16 << 20, 'x')));
  EXPECT_TRUE(eventually([&] { return host.gone == 1; }));
  // A whole answer that nobody reads goes the same way.
  Client lazy(host.port(), 16 << 10);
  lazy.send(get("/big"));
  EXPECT_TRUE(eventually([&] { return host.server->num_connections() == 0; }));
}

TEST(HttpServer, DeliversALargeAnswerToAReaderWhoTakesItsTime) {
  Host host;
  Client client(host.port(), 16 << 10);
  client.send(get("/big") + get("/echo"));
  EXPECT_EQ(client.read_answer().body, std::string(8 << 20, 'x'));
  EXPECT_EQ(client.read_answer().body, "GET /echo  ");
}

TEST(HttpServer, NoticesAClientThatVanishes) {
  Host host;
  int expected = 0;
  for (const bool reset : {false, true}) {
    for (const bool begun : {false, true}) {
      Client client = host.client();
      client.send(get("/later"));
      const api::ReplyPtr reply = host.take();
      if (begun) {
        reply->begin(200, "text/event-stream");
        reply->write("data");
        client.read_until("data");
      }
      if (reset) {
        client.abort();
      } else {
        client.close();
      }
      ++expected;
      // Nothing is written: the server finds out by itself.
      EXPECT_TRUE(eventually([&] { return host.gone == expected; })) << reset << begun;
      EXPECT_FALSE(reply->write("x"));
      reply->send(200, "text/plain", "nobody");
      reply->end();
      int late = 0;
      reply->on_gone([&] { ++late; });
      EXPECT_EQ(late, 1);
    }
  }
  EXPECT_TRUE(eventually([&] { return host.server->num_connections() == 0; }));
  EXPECT_EQ(host.server->num_in_flight(), 0);
  EXPECT_EQ(host.count(499), 2);
  EXPECT_EQ(host.count(200), 2);
}

TEST(HttpServer, NoticesAClientThatVanishesBehindManyPipelinedRequests) {
  Host host;
  Client client = host.client();
  std::string many = get("/later");
  for (int i = 0; i < 2000; ++i) many += get("/echo");  // more than is read ahead
  client.send(many);
  const api::ReplyPtr reply = host.take();
  client.close();
  EXPECT_TRUE(eventually([&] { return host.gone == 1; }));
  EXPECT_EQ(host.handled, 1);
}

TEST(HttpServer, AnswersAClientThatHasClosedItsSendingSide) {
  Host host;
  for (const bool begun : {false, true}) {
    Client client = host.client();
    client.send(get("/later") + get("/echo"));
    const api::ReplyPtr reply = host.take();
    if (begun) {
      reply->begin(200, "text/plain");
      EXPECT_EQ(client.read_head().status, 200);
    }
    client.shutdown_send();
    if (!begun) {
      EXPECT_EQ(client.read_head().status, 100);  // the server's question whether anybody is there
      reply->begin(200, "text/plain");
      EXPECT_EQ(client.read_head().status, 200);
    }
    EXPECT_TRUE(reply->write("first"));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(reply->write("second"));
    reply->end();
    EXPECT_EQ(client.read_chunks(), "firstsecond");
    EXPECT_EQ(client.read_answer().body, "GET /echo  ");
    EXPECT_TRUE(client.at_end());
  }
  EXPECT_EQ(host.gone, 0);
}

TEST(HttpServer, HoldsManyIdleConnectionsAndRefusesThoseAboveTheLimit) {
  ServerOptions options;
  options.max_connections = 320;
  options.keep_alive_timeout_s = 0;
  options.header_timeout_s = 0;
  Host host(options);
  std::vector<Client> idle;
  for (int i = 0; i < 319; ++i) idle.push_back(host.client());
  ASSERT_TRUE(eventually([&] { return host.server->num_connections() == 319; }));
  {
    Client last = host.client();
    EXPECT_EQ(last.ask(get("/echo")).status, 200);
    Client refused = host.client();
    refused.send(get("/echo"));
    EXPECT_EQ(refused.read_answer().status, 503);
    EXPECT_TRUE(refused.at_end());
  }
  EXPECT_EQ(idle[100].ask(get("/echo")).status, 200);
  idle.clear();
  EXPECT_TRUE(eventually([&] { return host.server->num_connections() == 0; }));
}

TEST(HttpServer, WaitsWhenDescriptorsRunOut) {
  Host host;
  std::vector<Client> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back(Client::Unconnected{});
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int free_descriptor = dup(0);
  close(free_descriptor);
  const rlimit none{static_cast<rlim_t>(free_descriptor), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  for (Client& client : clients) client.connect(host.port());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(host.server->num_connections(), 0);
  setrlimit(RLIMIT_NOFILE, &before);
  for (Client& client : clients) EXPECT_EQ(client.ask(get("/echo")).status, 200);
}

TEST(HttpServer, AsksForAKeyWhereOneIsNeeded) {
  ServerOptions options;
  options.api_keys = {"first", "second"};
  options.needs_key = [](std::string_view path) { return path != "/health" && path != "/"; };
  options.root_path = "/proxy";
  Host host(options);
  Client client = host.client();
  const Answer refused = client.ask(get("/v1/models"));
  EXPECT_EQ(refused.status, 401);
  for (const char* part : {"Authorization: Bearer KEY", "x-api-key: KEY", "\"code\":401"}) {
    EXPECT_THAT(refused.body, HasSubstr(part));
  }
  EXPECT_THAT(client.ask(get("/v1/models", "x-api-key: no\r\n")).body, HasSubstr("is not one of this server's"));
  for (const char* request : {"/v1/messages", "/v1/messages/count_tokens"}) {
    EXPECT_THAT(client.ask(get(request)).body, StartsWith(R"({"type":"error","error":{"type":"authentication_error")"));
  }
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  const auto status = [&](std::string_view path, std::string_view header) {
    return client.ask(get(path, std::string(header) + "\r\n")).status;
  };
  EXPECT_EQ(status("/v1/models", "Authorization: Bearer first"), 200);
  EXPECT_EQ(status("/v1/models", "authorization: bearer second"), 200);
  EXPECT_EQ(status("/v1/models", "x-api-key: second"), 200);
  for (const char* wrong : {"Authorization: Bearer third", "Authorization: Bearer", "Authorization: first",
                            "Authorization: Basic first", "Authorization: Bearer first second", "x-api-key: x"}) {
    EXPECT_EQ(status("/v1/models", wrong), 401) << wrong;
  }
  for (const char* path : {"/echo", "/healthy", "/%76%31/models", "/proxy/v1/x", "/proxyv1/x", "http://x/v1/models"}) {
    EXPECT_EQ(status(path, "A: b"), 401) << path;
  }
  for (const char* path : {"/health", "/", "/%68ealth"}) EXPECT_EQ(status(path, "A: b"), 200) << path;
  EXPECT_EQ(client.ask("OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
  EXPECT_EQ(status("/proxy/health", "A: b"), 200);
  EXPECT_EQ(client.ask(get("/proxy/echo", "x-api-key: first\r\n")).body, "GET /echo  ");
  // A stranger's body is not read into memory, and he sees why.
  Client stranger = host.client();
  EXPECT_EQ(stranger.ask(post("/v1/completions", std::string(4 << 20, 'x'))).status, 401);
}

TEST(HttpServer, AnswersBrowsersAsStarletteDoes) {
  ServerOptions options;
  options.allowed_origins = {"https://a.example"};
  options.allowed_methods = {"GET", "POST"};
  options.allowed_headers = {"X-Mine"};
  options.allow_credentials = true;
  Host host(options);
  Client client = host.client();
  const auto preflight = [](std::string_view origin, std::string_view method, std::string_view headers) {
    return "OPTIONS /v1/x HTTP/1.1\r\nHost: x\r\nOrigin: " + std::string(origin) +
           "\r\nAccess-Control-Request-Method: " + std::string(method) +
           "\r\nAccess-Control-Request-Headers: " + std::string(headers) + "\r\n\r\n";
  };
  Answer answer = client.ask(preflight("https://a.example", "POST", "x-mine, content-type"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "OK");
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(answer.headers.at("access-control-allow-methods"), "GET, POST");
  EXPECT_EQ(answer.headers.at("access-control-allow-headers"),
            "Accept, Accept-Language, Content-Language, Content-Type, X-Mine");
  EXPECT_EQ(answer.headers.at("access-control-allow-credentials"), "true");
  EXPECT_EQ(answer.headers.at("access-control-max-age"), "600");
  EXPECT_EQ(answer.headers.at("vary"), "Origin");
  answer = client.ask(preflight("https://b.example", "PUT", "x-other"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.body, "Disallowed CORS origin, method, headers");
  EXPECT_FALSE(answer.headers.contains("access-control-allow-origin"));
  answer = client.ask(get("/echo", "Origin: https://a.example\r\n"));
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(answer.headers.at("vary"), "Origin");
  EXPECT_FALSE(
      client.ask(get("/echo", "Origin: https://b.example\r\n")).headers.contains("access-control-allow-origin"));
  EXPECT_FALSE(client.ask(get("/echo")).headers.contains("vary"));

  options = {};
  options.allowed_origins = {"*"};
  options.enable_request_id_headers = true;
  Host open(options);
  Client other = open.client();
  answer = other.ask(preflight("https://a.example", "DELETE", "x-any"));
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(answer.headers.at("access-control-allow-headers"), "x-any");
  answer = other.ask(get("/echo", "Origin: https://a.example\r\nX-Request-Id: abc\r\n"));
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(answer.headers.at("x-request-id"), "abc");
  EXPECT_EQ(answer.headers.at("x-saw-id"), "yes");
  EXPECT_EQ(other.ask(get("/echo")).headers.at("x-request-id").size(), 32u);
  answer = other.ask(get("/echo", "Origin: https://a.example\r\nCookie: c=d\r\n"));
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://a.example");
  Host closed;
  EXPECT_FALSE(closed.client().ask(get("/echo", "Origin: x\r\n")).headers.contains("access-control-allow-origin"));
}

using ClientContext = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

ClientContext client_context() {
  return {SSL_CTX_new(TLS_client_method()), &SSL_CTX_free};
}

std::string peer_name(Client& client) {
  const std::unique_ptr<X509, decltype(&X509_free)> cert(SSL_get1_peer_certificate(client.ssl()), X509_free);
  char name[100] = "";
  if (cert) X509_NAME_get_text_by_NID(X509_get_subject_name(cert.get()), NID_commonName, name, sizeof(name));
  return name;
}

TEST(HttpServer, SpeaksTlsAndReadsNewCertificates) {
  ServerOptions options;
  options.ssl_certfile = temp_path("cert.pem");
  options.ssl_keyfile = temp_path("key.pem");
  options.enable_ssl_refresh = true;
  write_certificate(options.ssl_certfile, options.ssl_keyfile, "old");
  Host host(options);
  EXPECT_THAT(host.server->url(), StartsWith("https://127.0.0.1:"));
  const ClientContext context = client_context();
  Client client = host.client();
  ASSERT_TRUE(client.start_tls(context.get()));
  EXPECT_EQ(peer_name(client), "old");
  EXPECT_EQ(client.ask(post("/echo", std::string(200'000, 'x'))).body.size(), 12u + 200'000u);
  EXPECT_EQ(client.ask(get("/stream")).body, "onetwo");
  EXPECT_EQ(client.ask(get("/big")).body.size(), size_t{8} << 20);
  client.send(get("/later"));
  const api::ReplyPtr reply = host.take();
  client.close();
  EXPECT_TRUE(eventually([&] { return host.gone == 1; }));
  Client plain = host.client();
  plain.send(get("/echo"));
  EXPECT_EQ(plain.read_answer().status, 0);

  write_certificate(options.ssl_certfile, options.ssl_keyfile, "new");
  EXPECT_TRUE(eventually([&] {
    Client again = host.client();
    return again.start_tls(context.get()) && peer_name(again) == "new" && again.ask(get("/echo")).status == 200;
  }));
  Client closing = host.client();
  ASSERT_TRUE(closing.start_tls(context.get()));
  closing.send("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_EQ(closing.read_answer().body, "onetwo");
  EXPECT_EQ(SSL_get_shutdown(closing.ssl()) & SSL_RECEIVED_SHUTDOWN, SSL_RECEIVED_SHUTDOWN);
}

TEST(HttpServer, WantsACertificateFromTlsClientsWhenToldTo) {
  ServerOptions options;
  options.ssl_certfile = temp_path("cert2.pem");
  options.ssl_keyfile = temp_path("key2.pem");
  options.ssl_ca_certs = options.ssl_certfile;
  options.ssl_cert_reqs = 2;
  write_certificate(options.ssl_certfile, options.ssl_keyfile, "both");
  Host host(options);
  const ClientContext context = client_context();
  Client nobody = host.client();
  EXPECT_EQ(nobody.start_tls(context.get()) ? nobody.ask(get("/echo")).status : 0, 0);
  SSL_CTX_use_certificate_file(context.get(), options.ssl_certfile.c_str(), SSL_FILETYPE_PEM);
  SSL_CTX_use_PrivateKey_file(context.get(), options.ssl_keyfile.c_str(), SSL_FILETYPE_PEM);
  Client known = host.client();
  ASSERT_TRUE(known.start_tls(context.get()));
  EXPECT_EQ(known.ask(get("/echo")).status, 200);
}

TEST(HttpServer, SaysWhyItCannotListen) {
  const auto why = [](const ServerOptions& options) {
    const auto server = Server::listen(options, [](api::HttpRequest, api::ReplyPtr) {});
    return server.ok() ? "" : server.error().message;
  };
  Host host;
  ServerOptions options;
  options.port = host.port();
  EXPECT_THAT(why(options), HasSubstr("is in use by another program"));
  options = {};
  options.host = "no.such.host.invalid";
  EXPECT_THAT(why(options), HasSubstr("cannot be resolved"));
  options = {};
  options.port = 0;
  options.ssl_certfile = temp_path("missing.pem");
  EXPECT_THAT(why(options), HasSubstr("--ssl-certfile"));
  options.ssl_certfile = temp_path("cert3.pem");
  options.ssl_keyfile = temp_path("key3.pem");
  write_certificate(options.ssl_certfile, options.ssl_keyfile, "a");
  write_certificate(temp_path("cert4.pem"), temp_path("key4.pem"), "b");
  options.ssl_keyfile = temp_path("key4.pem");
  EXPECT_THAT(why(options), HasSubstr("is not the key of"));
  std::ofstream(options.ssl_keyfile) << "garbage";
  EXPECT_THAT(why(options), HasSubstr("is not a PEM key"));
  options = {};
  options.uds = temp_path("no") + "/such/folder";
  EXPECT_THAT(why(options), HasSubstr("--uds"));
}

TEST(HttpServer, ListensOnAUnixSocket) {
  ServerOptions options;
  options.uds = temp_path("socket");
  for (int i = 0; i < 2; ++i) {
    Host host(options);
    EXPECT_EQ(Client(options.uds).ask(get("/echo")).body, "GET /echo  ");
    Client client(options.uds);
    client.send(get("/later"));
    const api::ReplyPtr reply = host.take();
    client.close();
    EXPECT_TRUE(eventually([&] { return host.gone == 1; }));
    EXPECT_FALSE(Server::listen(options, [](api::HttpRequest, api::ReplyPtr) {}).ok());
    if (i == 1) continue;
    host.server->stop();
    EXPECT_FALSE(std::filesystem::exists(options.uds));
    // A socket file that a dead server left behind is no obstacle.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, options.uds.c_str(), sizeof(address.sun_path) - 1);
    const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_EQ(bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    close(dead);
  }
}

// Streams from two threads to clients of which half leave at a random moment: each request ends once, by end() or by
// the gone callback, and who stayed read every byte.
TEST(HttpServer, CarriesManyStreamsWhileClientsComeAndGo) {
  constexpr int kClients = 6;
  constexpr int kRounds = 25;
  constexpr int kPieces = 60;
  ServerOptions options;
  options.io_threads = 3;
  Host host(options);
  struct Stream {
    api::ReplyPtr reply;
    std::shared_ptr<std::atomic<bool>> gone;
    int pieces = 0;
  };
  std::mutex mutex;
  std::deque<Stream> streams;
  std::atomic<bool> stop{false};
  std::atomic<int> ended{0};
  std::atomic<int> gone{0};
  host.special = [&](api::HttpRequest, api::ReplyPtr reply) {
    auto flag = std::make_shared<std::atomic<bool>>(false);
    reply->on_gone([&gone, flag] {
      *flag = true;
      ++gone;
    });
    reply->begin(200, "text/event-stream");
    const std::lock_guard lock(mutex);
    streams.push_back({std::move(reply), flag});
  };
  const auto work = [&] {
    while (!stop) {
      std::optional<Stream> stream;
      {
        const std::lock_guard lock(mutex);
        if (!streams.empty()) {
          stream = std::move(streams.front());
          streams.pop_front();
        }
      }
      if (!stream) {
        std::this_thread::yield();
        continue;
      }
      if (stream->pieces == kPieces) {
        stream->reply->end();
        if (!*stream->gone) ++ended;
        continue;
      }
      if (!stream->reply->write("data: " + std::to_string(stream->pieces++) + "\n\n")) continue;
      const std::lock_guard lock(mutex);
      streams.push_back(std::move(*stream));
    }
  };
  std::thread first(work);
  std::thread second(work);
  std::string expected;
  for (int i = 0; i < kPieces; ++i) expected += "data: " + std::to_string(i) + "\n\n";
  std::atomic<int> whole{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(static_cast<unsigned>(c));
      std::optional<Client> client;
      for (int round = 0; round < kRounds; ++round) {
        if (!client) client.emplace(host.port());
        client->send(get("/special"));
        if (random() % 2 == 0) {
          EXPECT_EQ(client->read_answer().body, expected);
          ++whole;
          continue;
        }
        client->read_exactly(random() % 1000);
        if (random() % 2 == 0) client->abort();
        client.reset();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(eventually([&] { return host.server->num_in_flight() == 0 && host.server->num_connections() == 0; }));
  EXPECT_TRUE(eventually([&] { return ended + gone >= kClients * kRounds; }));
  stop = true;
  first.join();
  second.join();
  EXPECT_GE(ended, whole);
  EXPECT_GE(gone, 1);
}

TEST(RequestReader, TakesTargetsApart) {
  const auto path = [](std::string_view text, std::string_view root = "") {
    const auto target = parse_target(text, root);
    return target ? target->path + "|" + target->query : "bad";
  };
  EXPECT_EQ(path("/a?b?c"), "/a|b?c");
  EXPECT_EQ(path("http://host:80/a?b"), "/a|b");
  EXPECT_EQ(path("http://host"), "/|");
  EXPECT_EQ(path("http://host?x"), "/|x");
  EXPECT_EQ(path("*"), "*|");
  EXPECT_EQ(path("/%E2%82%AC"), "/\xE2\x82\xAC|");
  EXPECT_EQ(path("/api/x", "/api/"), "/x|");
  EXPECT_EQ(path("/api", "/api"), "/|");
  EXPECT_EQ(path("/apix", "/api"), "/apix|");
  for (const char* bad : {"", "a", "/%", "/%1", "/%g0", "/%7f", "/%C0%80"}) EXPECT_EQ(path(bad), "bad") << bad;
}

}  // namespace
}  // namespace quire::http
