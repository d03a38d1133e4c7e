// SPDX-License-Identifier: Apache-2.0
// The whole server in one process, for the sanitizers: a storm of good, impatient, slow and broken clients with too few
// pages. Every answer that arrives whole equals the one given alone, and nothing is left behind. With
// QUIRE_STORM_REQUESTS=625 it is a soak of 5,000 requests per case.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "api/json_writer.h"
#include "api/host.h"
#include "base/test_sanitized.h"
#include "http/server.h"

namespace quire {
namespace {

constexpr int kClients = 8;
// How many requests each client makes.
int requests_per_client(int usual) {
  const char* number = std::getenv("QUIRE_STORM_REQUESTS");
  return number != nullptr ? std::atoi(number) : usual;
}

llm::Options tiny(int64_t pages, bool prefix_caching) {
  llm::Options options;
  options.model = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/goldens/llama/config.json";
  options.load_format = "dummy";
  options.max_model_len = "192";
  options.num_gpu_blocks_override = pages;
  options.enable_prefix_caching = prefix_caching;
  options.max_num_seqs = 12;
  options.max_num_batched_tokens = 48;
  options.threads = 2;
  return options;
}

struct Ask {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;
  int64_t seed = 0;
  std::string body(bool stream) const {
    api::JsonWriter w;
    w.open_object().key("prompt").open_array();
    for (const int32_t id : prompt) w.integer(id);
    w.close_array().member_int("max_tokens", max_tokens).member_int("seed", seed).key("temperature").number(1);
    w.member_int("logprobs", 2).member_bool("return_token_ids", true).member_bool("ignore_eos", true);
    w.member_bool("stream", stream).close_object();
    return w.take();
  }
};

Ask draw(std::mt19937_64& rng) {
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng() % n); };
  Ask ask;
  const int64_t shared = below(60);  // three families of prompts with a common beginning
  const int64_t family = below(3);
  for (int64_t i = 0; i < shared; ++i) ask.prompt.push_back(static_cast<int32_t>(3 + (i * 7 + family * 31) % 200));
  for (int64_t i = 0; i <= below(20); ++i) ask.prompt.push_back(static_cast<int32_t>(3 + below(200)));
  ask.max_tokens = 1 + below(60);
  ask.seed = below(1u << 30);
  return ask;
}

// A blocking connection with a timeout, so that a hang becomes a failure.
class Client {
 public:
  explicit Client(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{120, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void send(const std::string& text) const { (void)!::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  void post(const std::string& body) const {
    send(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: "
        "application/json\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  std::string read_some() const {
    char buffer[4096];
    const ssize_t size = ::recv(socket_, buffer, sizeof buffer, 0);
    return size > 0 ? std::string(buffer, static_cast<size_t>(size)) : std::string();
  }
  std::string read_all() const {
    std::string all;
    for (std::string part = read_some(); !part.empty(); part = read_some()) all += part;
    return all;
  }

 private:
  int socket_;
  bool connected_ = false;
};

// Tokens and logprobs of a whole answer, or of the joined events of a stream.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

void take(const json::Value& event, Answer& answer) {
  const json::Value& choice = event.find("choices")->as_array()[0];
  for (const json::Value& id : choice.find("token_ids")->as_array()) {
    answer.tokens.push_back(static_cast<int32_t>(id.as_int()));
  }
  for (const json::Value& value : choice.find("logprobs")->find("token_logprobs")->as_array()) {
    answer.logprobs.push_back(static_cast<float>(value.as_double()));
  }
}

std::string unchunk(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = std::stoul(text.substr(at), nullptr, 16);
    at = text.find("\r\n", at) + 2;
    out += text.substr(at, size);
    at += size + 2;
    if (size == 0) break;
  }
  return out;
}

Answer read_answer(const Client& client, bool stream) {
  const std::string all = client.read_all();
  const size_t head = all.find("\r\n\r\n");
  EXPECT_EQ(all.rfind("HTTP/1.1 200", 0), 0u) << all.substr(0, 400);
  if (head == std::string::npos) return {};
  Answer answer;
  if (!stream) {
    auto parsed = json::parse(all.substr(head + 4));
    EXPECT_TRUE(parsed.ok()) << all;
    if (parsed.ok()) take(*parsed, answer);
    return answer;
  }
  const std::string events = unchunk(all.substr(head + 4));
  for (size_t at = 0; (at = events.find("data: {", at)) != std::string::npos;) {
    const size_t end = events.find("\n\n", at);
    auto parsed = json::parse(events.substr(at + 6, end - at - 6));
    EXPECT_TRUE(parsed.ok());
    if (parsed.ok()) take(*parsed, answer);
    at = end;
  }
  EXPECT_NE(events.find("data: [DONE]"), std::string::npos);
  return answer;
}

Answer alone(llm::Llm& llm, const Ask& ask) {
  llm::GenerateRequest request;
  request.prompt = ask.prompt;
  request.params = llm.default_params();
  request.params.max_tokens = ask.max_tokens;
  request.params.seed = ask.seed;
  request.params.temperature = 1;
  request.params.ignore_eos = true;
  request.params.logprobs = 2;
  std::vector<llm::GenerateRequest> one;
  one.push_back(std::move(request));
  const auto results = llm.generate(std::move(one));
  Answer answer;
  answer.tokens = results[0]->completions[0].tokens;
  for (const auto& row : results[0]->completions[0].logprobs) answer.logprobs.push_back(row[0].logprob);
  return answer;
}

int open_files() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// One client: mostly good requests, some of them broken off, and some garbage.
void live(uint16_t port, int number, int requests, std::vector<std::pair<Ask, Answer>>& answers) {
  std::mt19937_64 rng(static_cast<uint64_t>(number) * 977 + 5);
  for (int i = 0; i < requests; ++i) {
    const Ask ask = draw(rng);
    const uint64_t kind = rng() % 10;
    const Client client(port);
    ASSERT_TRUE(client.connected());
    if (kind < 6) {
      client.post(ask.body(kind < 3));
      answers.emplace_back(ask, read_answer(client, kind < 3));
    } else if (kind == 6) {  // disconnects in the middle of a stream
      client.post(ask.body(true));
      client.read_some();
    } else if (kind == 7) {  // disconnects before the answer
      client.post(ask.body(false));
    } else if (kind == 8) {
      client.send(std::string("\x16\x03\x01 no HTTP at all\r\n\r\n"));
      client.read_all();
    } else {  // a truncated body
      client.send(
          "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"pro");
    }
  }
}

struct Weather {
  const char* name;
  int64_t engines = 1;
  int requests = kSanitized ? 20 : 60;  // of each client
  std::string speculative_config = "";
};
class Storm : public testing::TestWithParam<Weather> {};

TEST_P(Storm, AnswersAreThoseGivenAlone) {
  const auto& [name, engines, usual, speculation] = GetParam();
  const int requests = requests_per_client(usual);
  llm::Options several = tiny(20, true);
  several.engines = engines;
  several.speculative_config = speculation;
  auto loaded = llm::Llm::load(several);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  metrics::ServerMetricsOptions series;
  series.model_name = "tiny";
  series.max_model_len = 192;
  metrics::ServerMetrics metrics(series);
  series.engine = 1;
  metrics::ServerMetrics second(series, metrics);
  std::vector<llm::AsyncOptions> async(static_cast<size_t>(several.engines));
  async.back().metrics = &second;
  async.front().metrics = &metrics;
  auto owned = std::make_unique<llm::ParallelLlm>(std::move(*loaded), async);
  llm::ParallelLlm& llm = *owned;
  api::ServiceOptions options;
  options.served_names = {"tiny"};
  options.version = "0";
  api::Host host(std::move(owned), metrics, options);
  http::ServerOptions listen;
  listen.port = 0;
  listen.access_log = false;
  listen.header_timeout_s = 5;
  listen.body_timeout_s = 5;
  auto server = http::Server::listen(listen, host.handler());
  ASSERT_TRUE(server.ok()) << server.error().message;
  (*server)->run();
  const int files_before = open_files();

  std::vector<std::vector<std::pair<Ask, Answer>>> answers(kClients);
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] { live((*server)->port(), i, requests, answers[static_cast<size_t>(i)]); });
  }
  for (std::thread& client : clients) client.join();

  // Clients that went away leave nothing behind. The last holder of an answer releases it a moment after the connection
  // has ended, so each count is waited for.
  const auto quiet = [&] {
    const engine::EngineStats stats = llm.stats();
    return stats.running == 0 && stats.waiting == 0 && stats.kv_usage == 0 && (*server)->num_connections() == 0 &&
           host.shared().load == 0 && open_files() == files_before;
  };
  for (int i = 0; i < 6000 && !quiet(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(quiet()) << "running " << llm.stats().running << ", pages in use " << llm.stats().kv_usage
                       << ", connections " << (*server)->num_connections() << ", load " << host.shared().load << ", files "
                       << open_files() << " after " << files_before;
  if (!several.speculative_config.empty()) {
    EXPECT_GT(llm.stats().speculation.draft_tokens, 0);
  }
  if (several.engines == 1) {  // two engines have twice the pages
    EXPECT_GT(llm.stats().preemptions, 0) << "the pool was not small enough to test anything";
  }

  auto quiet_llm = llm::Llm::load(tiny(40, false));
  ASSERT_TRUE(quiet_llm.ok());
  size_t compared = 0;
  for (const auto& one : answers) {
    for (const auto& [ask, answer] : one) {
      EXPECT_EQ(answer, alone(**quiet_llm, ask)) << ask.body(false);
      ++compared;
    }
  }
  EXPECT_GT(compared, static_cast<size_t>(kClients * requests / 3));

  // Stopping under load: remaining clients are disconnected, and stop() returns.
  const Client last((*server)->port());
  Ask ask;
  ask.prompt = {5, 6, 7};
  ask.max_tokens = 180;
  last.post(ask.body(true));
  last.read_some();
  (*server)->stop();
}

INSTANTIATE_TEST_SUITE_P(
    Engines, Storm,
    testing::Values(Weather{"One"}, Weather{"Two", 2},
                    Weather{"Lookup", 1, 20, R"({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1,
                                                 "prompt_lookup_max": 3})"},
                    Weather{"Suffix", 1, 20, R"({"method": "suffix", "suffix_decoding_max_spec_factor": 2})"},
                    Weather{"DraftModel", 1, 20,
                            R"({"num_speculative_tokens": 3, "model": ")" + tiny(0, true).model.string() + "\"}"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace quire
