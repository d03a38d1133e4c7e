// SPDX-License-Identifier: Apache-2.0
// A host with several small models with dummy weights: which model answers, what is refused, and what /ps says.
#include "api/host.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "api/testing.h"

namespace quire::api {
namespace {

class HostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> names = {"org/one", "two", "bad"};
    std::vector<HostedModel> models;
    for (const std::string& name : names) {
      metrics::ServerMetricsOptions series;
      series.model_name = name;
      series.max_model_len = 64;
      series.of_several = true;
      metrics_.push_back(metrics_.empty() ? std::make_unique<metrics::ServerMetrics>(series)
                                          : std::make_unique<metrics::ServerMetrics>(series, *metrics_[0]));
      models.push_back({{name}, {"alias", name + ".gguf"}, name, metrics_.back().get()});
    }
    HostLoader loader;
    loader.least_memory = [](size_t, const std::atomic<bool>&) -> Result<int64_t> { return 1; };
    loader.load = [this, names](size_t model, int64_t, const std::atomic<bool>&) -> Result<LoadedModel> {
      if (model == 2) return corrupt("the file is damaged");
      llm::Options options = small_model();
      options.seed = static_cast<int64_t>(model);
      QUIRE_ASSIGN(auto llm, llm::Llm::load(options));
      llm::AsyncOptions async;
      async.metrics = metrics_[model].get();
      async.log_stats_every_s = 0;
      LoadedModel out;
      out.llm = std::make_unique<llm::ParallelLlm>(std::make_unique<llm::AsyncLlm>(std::move(llm), async));
      out.options.served_names = {names[model]};
      out.options.aliases = {names[model] + ".gguf"};
      out.cache_config = {{"block_size", "16"}};
      return out;
    };
    PoolOptions pool;
    pool.max_loaded = 1;
    host_ = std::make_unique<Host>(std::move(models), ServiceOptions{}, pool, std::move(loader));
  }

  SentAnswer ask(const char* method, const std::string& path, std::string body = "") {
    HttpRequest request;
    request.method = method;
    request.path = path.substr(0, path.find('?'));
    if (path.size() > request.path.size()) request.query = path.substr(request.path.size() + 1);
    request.body = std::move(body);
    const auto reply = std::make_shared<PromisedReply>();
    auto answer = reply->promise.get_future();
    host_->handle(std::move(request), reply);
    return answer.get();
  }
  SentAnswer complete(const std::string& fields) {
    return ask("POST", "/v1/completions",
               R"({"prompt": [5, 6, 7], "max_tokens": 2, "temperature": 0, )" + fields + "}");
  }

  std::vector<std::unique_ptr<metrics::ServerMetrics>> metrics_;
  std::unique_ptr<Host> host_;
};

TEST_F(HostTest, AnswersWithTheModelThatTheRequestNames) {
  for (const char* name : {"org/one", "two", "org/one"}) {
    const SentAnswer answer = complete("\"model\": \"" + std::string(name) + "\"");
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json().find("model")->as_string(), name);
  }
  EXPECT_EQ(complete(R"("model": "two.gguf")").json().find("model")->as_string(), "two");
  EXPECT_EQ(
      complete(R"("user": "\"model\": \"org/one\"", "m\u006fdel" : "t\u0077o")").json().find("model")->as_string(),
      "two");
  EXPECT_EQ(complete(R"("model": "org/one", "model": "two", "metadata": {"model": "org/one"})").status, 200);
  const std::string large = R"("model": "two", "user": ")" + std::string(1 << 17, 'x') + "\"";
  EXPECT_EQ(complete(large).status, 200) << "a large body is searched on a worker";
}

TEST_F(HostTest, RefusesWhatNamesNoModel) {
  const SentAnswer unknown = complete(R"("model": "three")");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.message(), "The model `three` does not exist; this server has: org/one, two, bad.");
  EXPECT_EQ(complete(R"("model": "alias")").status, 404) << "an alias of several models means none";
  for (const char* fields : {R"("model": "")", R"("model": null)", R"("user": "a")"}) {
    const SentAnswer missing = complete(fields);
    EXPECT_EQ(missing.status, 400) << fields;
    EXPECT_EQ(missing.message(), "model is missing: this server has several models; name one of org/one, two, bad.");
  }
  EXPECT_NE(complete(R"("model": 5)").message().find("model must be a string"), std::string::npos);
  EXPECT_NE(ask("POST", "/v1/completions", "{").message().find("JSON"), std::string::npos);
  EXPECT_EQ(ask("POST", "/v1/messages", R"({"model": "three"})").body.find(R"({"type":"error")"), 0u);
  EXPECT_EQ(ask("GET", "/tokenizer_info").status, 400);
  EXPECT_EQ(ask("GET", "/tokenizer_info?model=thr%65e").message().find("The model `three`"), 0u);
}

TEST_F(HostTest, GivesALoadErrorToItsOwnRequests) {
  EXPECT_EQ(complete(R"("model": "two")").status, 200);
  const SentAnswer bad = complete(R"("model": "bad")");
  EXPECT_EQ(bad.status, 500);
  EXPECT_EQ(bad.message(), "The model `bad` could not be loaded: the file is damaged");
  EXPECT_EQ(complete(R"("model": "two")").status, 200);
  EXPECT_EQ(ask("GET", "/health").status, 200);
}

TEST_F(HostTest, ListsItsModelsAndTheirStates) {
  const json::Value before = ask("GET", "/v1/models").json();
  ASSERT_EQ(before.find("data")->as_array().size(), 3u);
  EXPECT_TRUE(before.find("data")->as_array()[0].find("max_model_len")->is_null()) << "not known before it is loaded";
  ASSERT_EQ(complete(R"("model": "org/one")").status, 200);
  EXPECT_EQ(ask("GET", "/v1/models/org/one").json().find("max_model_len")->as_int(), 64);
  (void)complete(R"("model": "bad")");
  while (host_->pool().info(0).leases > 0) std::this_thread::yield();
  const json::Value ps = ask("GET", "/ps").json();
  const json::Array& models = ps.find("models")->as_array();
  EXPECT_EQ(ps.find("max_loaded_models")->as_int(), 1);
  EXPECT_EQ(models[0].find("name")->as_string(), "org/one");
  EXPECT_EQ(models[1].find("state")->as_string(), "unloaded");
  EXPECT_EQ(models[2].find("state")->as_string(), "failed");
  EXPECT_EQ(models[2].find("error")->as_string(), "the file is damaged");
}

TEST_F(HostTest, CountsEachModelByItsName) {
  for (const char* name : {"org/one", "two", "bad"}) (void)complete("\"model\": \"" + std::string(name) + "\"");
  while (host_->shared().load != 0) std::this_thread::yield();  // the output thread still has the generation
  const std::string text = ask("GET", "/metrics").body;
  for (const char* line :
       {"quire:model_loads_total{model_name=\"org/one\"} 1.0\n", "quire:model_loads_total{model_name=\"two\"} 1.0\n",
        "quire:model_load_failures_total{model_name=\"bad\"} 1.0\n",
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"org/one\"} 2.0\n",
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"two\"} 2.0\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
  const std::string head = "# TYPE vllm:generation_tokens_total counter";
  EXPECT_EQ(text.find(head), text.rfind(head)) << "the series of a name stay together";
}

// Requests of several threads take turns with a pool that has room for one model; each gets the tokens of its own
// model.
TEST_F(HostTest, AnswersConcurrentRequests) {
  const std::string names[] = {"org/one", "two"};
  const auto tokens = [&](const std::string& name, size_t prompt) {
    const SentAnswer answer = ask("POST", "/v1/completions",
                                  R"({"return_token_ids": true, "max_tokens": 5, "temperature": 0, "model": ")" + name +
                                      R"(", "prompt": [5, )" + std::to_string(prompt + 3) + "]}");
    if (answer.status != 200) return answer.body;
    return json::dump(*answer.json().find("choices")->as_array()[0].find("token_ids"));
  };
  std::map<std::pair<std::string, size_t>, std::string> alone;
  for (const std::string& name : names) {
    for (size_t prompt = 0; prompt < 4; ++prompt) alone[{name, prompt}] = tokens(name, prompt);
  }
  EXPECT_NE((alone[{"two", 0}]), (alone[{"org/one", 0}])) << "the models must differ";
  std::vector<std::thread> clients;
  for (size_t client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (size_t i = 0; i < 20; ++i) {
        const std::string& name = names[(client * 7 + i * 3 + i / 4) % 2];
        const size_t prompt = (client + i) % 4;
        EXPECT_EQ(tokens(name, prompt), (alone.at({name, prompt})));
        EXPECT_EQ(ask("GET", i % 3 == 0 ? "/health" : i % 3 == 1 ? "/ps" : "/metrics").status, 200);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(host_->pool().info(0).loads, 1);
}

}  // namespace
}  // namespace quire::api
