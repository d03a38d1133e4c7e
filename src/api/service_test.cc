// SPDX-License-Identifier: Apache-2.0
// The service over a small model with dummy weights and no tokenizer: routing, errors, keys and roles.
#include "api/host.h"

#include <gtest/gtest.h>

#include <thread>

#include "api/conversation.h"
#include "api/roles.h"
#include "api/testing.h"
#include "llm/receipt_check.h"

namespace quire::api {
namespace {

class ServiceTest : public ::testing::Test {
 protected:
  void start(ServiceOptions options = {}, llm::AsyncOptions async = {}) {
    auto loaded = llm::Llm::load(small_model());
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    metrics::ServerMetricsOptions series;
    series.max_model_len = 64;
    metrics_ = std::make_unique<metrics::ServerMetrics>(std::move(series));
    async.metrics = metrics_.get();
    async.log_stats_every_s = 0;
    options.served_names = {"org/tiny"};
    options.version = "1.2.3";
    host_ = std::make_unique<Host>(
        std::make_unique<llm::ParallelLlm>(std::make_unique<llm::AsyncLlm>(std::move(*loaded), async)), *metrics_,
        options);
  }

  SentAnswer ask(const char* method, const char* path, std::string body = "", const std::string& caller = "",
                 std::shared_ptr<PromisedReply> reply = std::make_shared<PromisedReply>()) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = std::move(body);
    request.caller = caller;
    request.headers = {{"Content-Type", content_type_}};
    auto answer = reply->promise.get_future();
    host_->handle(std::move(request), reply);
    return answer.get();
  }

  std::string content_type_ = "Application/JSON; charset=utf-8";
  std::unique_ptr<metrics::ServerMetrics> metrics_;
  std::unique_ptr<Host> host_;
};

TEST_F(ServiceTest, AnswersEachRequestByItsRow) {
  start();
  EXPECT_EQ(ask("GET", "/version").body, R"({"version":"1.2.3"})");
  EXPECT_EQ(ask("GET", "/load").body, R"({"server_load":0})");
  EXPECT_EQ(ask("POST", "/ping").status, 200);
  EXPECT_EQ(ask("GET", "/v1/models/org/tiny").status, 200);
  EXPECT_EQ(ask("GET", "/v1/models/other").status, 404);
  EXPECT_EQ(ask("GET", "/metrics").status, 200);
  EXPECT_EQ(ask("GET", "/").content_type, "text/plain; charset=utf-8");
  const SentAnswer completion = ask("POST", "/v1/completions", R"({"prompt": [5, 6, 7], "max_tokens": 2, "seed": 1})");
  EXPECT_EQ(completion.status, 200) << completion.body;
  EXPECT_NE(completion.body.find(R"("completion_tokens":2)"), std::string::npos) << completion.body;
  while (host_->shared().load != 0) std::this_thread::yield();  // the output thread still has the generation
}

TEST_F(ServiceTest, RefusesUnknownPathsMethodsAndMediaTypes) {
  start();
  EXPECT_EQ(ask("GET", "/nothing").status, 404);
  const SentAnswer method = ask("GET", "/v1/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers, (Headers{{"Allow", "POST"}}));
  EXPECT_EQ(ask("DELETE", "/v1/responses/resp_1").status, 404) << "answers are not kept, whatever the method";
  EXPECT_EQ(ask("GET", "/v1/messages").body.find(R"({"type":"error")"), 0u) << "in Anthropic's shape";
  EXPECT_EQ(ask("POST", "/reset_prefix_cache").status, 403);
  content_type_ = "text/plain";
  const SentAnswer media = ask("POST", "/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(media.status, 400);
  EXPECT_NE(media.body.find("application/json"), std::string::npos);
}

TEST_F(ServiceTest, DoesNotServeDocumentsThatAreTurnedOff) {
  ServiceOptions options;
  options.disable_docs = true;
  start(options);
  for (const char* path : {"/docs", "/openapi.json"}) EXPECT_EQ(ask("GET", path).status, 404) << path;
  EXPECT_EQ(ask("GET", "/").body.find("/v1/"), std::string::npos);
}

TEST_F(ServiceTest, DoesNotServeThePageIfItIsTurnedOff) {
  ServiceOptions options;
  options.disable_docs = true;
  options.page = false;
  start(options);
  for (const char* path : {"/", "/page.js", "/live"}) EXPECT_EQ(ask("GET", path).status, 404) << path;
}

TEST_F(ServiceTest, NamesTheFieldOfErrorsFromBelow) {
  start();
  const SentAnswer bias = ask("POST", "/v1/completions", R"({"prompt": [5], "logit_bias": {"99999999": 1}})");
  EXPECT_EQ(bias.status, 400);
  EXPECT_NE(bias.body.find(R"("param":"logit_bias")"), std::string::npos) << bias.body;
  const SentAnswer n = ask("POST", "/v1/completions", R"({"prompt": [5], "n": 2, "temperature": 0})");
  EXPECT_NE(n.body.find(R"("param":"n")"), std::string::npos) << n.body;
}

// A request that the full queue refused had still paid its key's request and prompt tokens.
TEST_F(ServiceTest, ChargesNothingForARequestThatTheQueueRefused) {
  ServiceOptions options;
  options.keys = {{"ada", "sk-1", {.requests_per_minute = 1, .tokens_per_minute = 4}}};
  llm::AsyncOptions async;
  async.max_num_queued_tokens = 0;  // every request is one too many
  start(options, async);
  for (int i = 0; i < 3; ++i) {
    const SentAnswer answer = ask("POST", "/v1/completions", R"({"prompt": [5, 6, 7], "max_tokens": 1})", "ada");
    EXPECT_EQ(answer.status, 503) << answer.body;
  }
}

// A caller who sent the next request as soon as the answer was there sometimes met an account without its charge.
TEST_F(ServiceTest, ChargesAnAnswerBeforeItLeaves) {
  ServiceOptions options;
  options.keys = {{"ada", "sk-1", {.tokens_per_minute = 4}}};
  start(options);
  const auto reply = std::make_shared<PromisedReply>();
  bool refused = false;
  reply->before_send = [&] {
    const auto lease = host_->pool().look(0);
    auto& service = static_cast<Service&>(lease->resident());
    const auto next = service.keys().begin("ada", 1, 1, KeyLedger::Clock::now(), nullptr);
    refused = !next.ok() && next.error().status == 429;
  };
  const SentAnswer answer =
      ask("POST", "/v1/completions", R"({"prompt": [5], "max_tokens": 8, "ignore_eos": true})", "ada", reply);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_TRUE(refused);
}

TEST_F(ServiceTest, TakesRolesThatTheTemplateNames) {
  start();
  ChatInput input;
  input.messages = json::Array{json::Object{{"role", "user"}}, json::Object{{"role", "ipython"}}};
  const auto lease = host_->pool().look(0);
  auto& service = static_cast<Service&>(lease->resident());
  const auto refused = check_roles(service, input);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().param, "messages[1].role");
  input.chat_template = "{% if role == 'ipython' %}{% endif %}";
  EXPECT_TRUE(check_roles(service, input).ok());
}

// Receipts of every version are verified, however new the program is.
TEST(Receipts, OfAllVersionsAreVerified) {
  auto loaded = llm::Llm::load(small_model());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  llm::Llm& model = **loaded;
  std::vector<llm::ReadReceipt> receipts;
  for (const auto version : {sampling::RowDigests::kFirst, sampling::RowDigests::kSecond}) {
    sampling::SamplingParams params;
    params.seed = 5;
    params.max_tokens = 4;
    params.ignore_eos = true;
    params.row_digests = version;
    const auto checked = model.check(params);
    ASSERT_TRUE(checked.ok()) << checked.error().message;
    llm::Receipt receipt;
    receipt.version = version;
    receipt.origin = model.origin();
    receipt.params = params;
    receipt.prompt = {3, 4, 5};
    receipt.finish = "length";
    auto request = model.prepare(receipt.prompt, *checked, 0, "", nullptr, nullptr);
    ASSERT_TRUE(request.ok()) << request.error().message;
    receipt.params.eos_token_ids = request->params.eos_token_ids;
    model.submit(std::move(*request), {});
    while (receipt.tokens.size() < 4) {
      for (const llm::Delta& delta : model.step()) {
        ASSERT_FALSE(delta.error) << delta.error->message;
        receipt.tokens.insert(receipt.tokens.end(), delta.tokens.begin(), delta.tokens.end());
        receipt.rows.insert(receipt.rows.end(), delta.row_digests.begin(), delta.row_digests.end());
      }
    }
    for (const bool changed : {false, true}) {
      if (changed) receipt.rows[2] ^= 1;
      const auto read = llm::read_receipt(*json::parse(json::dump(receipt.to_json())));
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(read->receipt.version, version);
      receipts.push_back(*read);
    }
  }
  EXPECT_NE(receipts[0].receipt.rows, receipts[2].receipt.rows);
  std::vector<std::string> verdicts(receipts.size());
  llm::check_receipts(model, receipts, 3, [&](size_t i, const llm::Verdict& verdict) { verdicts[i] = verdict.text; });
  for (size_t i = 0; i < verdicts.size(); ++i) {
    EXPECT_EQ(verdicts[i], i % 2 == 0 ? "same bits: 4 tokens" : "differs at token 2 of 4: its logits have other bits");
  }
}

TEST(Conversation, ReadsTextOutOfParts) {
  const auto read = [](const char* message) {
    return text_content(json::parse(message).value(), "content", {"input_text", "text"}, "input[0]");
  };
  EXPECT_EQ(json::dump(read(R"({"content": "a"})").value()), R"("a")");
  EXPECT_EQ(json::dump(read(R"({"content": [{"type": "text", "text": "a"}]})").value()), R"("a")");
  EXPECT_EQ(
      json::dump(read(R"({"content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]})").value()),
      R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])");
  const std::pair<const char*, const char*> wrong[] = {
      {R"({})", "input[0].content"},
      {R"({"content": 1})", "input[0].content"},
      {R"({"content": ["a"]})", "input[0].content[0]"},
      {R"({"content": [{"type": "image"}]})", "input[0].content[0].type"},
      {R"({"content": [{"type": "text", "text": 1}]})", "input[0].content[0].text"},
  };
  for (const auto& [message, param] : wrong) {
    const auto content = read(message);
    ASSERT_FALSE(content.ok()) << message;
    EXPECT_EQ(content.error().param, param);
    EXPECT_EQ(content.error().message.find(param), 0u) << content.error().message;
  }
}

}  // namespace
}  // namespace quire::api
