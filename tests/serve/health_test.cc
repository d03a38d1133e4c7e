// SPDX-License-Identifier: Apache-2.0
// /health fails when the engine makes no progress, and recovers when it continues.
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "api/host.h"

namespace quire {
namespace {

// Keeps what is sent.
class Kept final : public api::Reply {
 public:
  void send(int status, std::string_view, std::string body, api::Headers) override {
    status_ = status;
    body_ = std::move(body);
  }
  void begin(int, std::string_view, api::Headers) override {}
  bool write(std::string) override { return true; }
  void end() override {}
  void on_gone(std::function<void()>) override {}
  void on_stop(std::function<void()>) override {}
  void note(std::string_view, std::string_view) override {}

  int status_ = 0;
  std::string body_;
};

TEST(Health, FailsWhileTheEngineMakesNoProgress) {
  llm::Options options;
  options.model = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/goldens/llama/config.json";
  options.load_format = "dummy";
  options.max_model_len = "192";
  options.num_gpu_blocks_override = 32;
  options.threads = 1;
  auto loaded = llm::Llm::load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  metrics::ServerMetricsOptions series;
  series.max_model_len = 192;
  metrics::ServerMetrics metrics(std::move(series));
  llm::AsyncOptions async;
  async.metrics = &metrics;
  async.log_stats_every_s = 0;
  auto owned = std::make_unique<llm::AsyncLlm>(std::move(*loaded), async);
  llm::AsyncLlm& llm = *owned;
  api::ServiceOptions service_options;
  service_options.served_names = {"tiny"};
  service_options.engine_stall_s = 0.2;
  api::Host host(std::make_unique<llm::ParallelLlm>(std::move(owned)), metrics, service_options);
  const auto health = [&] {
    const auto reply = std::make_shared<Kept>();
    api::HttpRequest request;
    request.method = "GET";
    request.path = "/health";
    host.handle(std::move(request), reply);
    return *reply;
  };
  const auto eventually = [&](int status) {
    for (int i = 0; i < 3000 && health().status_ != status; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return health().status_ == status;
  };

  EXPECT_EQ(health().status_, 200);
  EXPECT_FALSE(llm.stalled_seconds().has_value());
  llm::GenerateRequest generate;
  generate.prompt = llm::TokenPrompt{5, 6, 7};
  generate.params.max_tokens = 1;
  std::vector<engine::Request> requests;
  requests.push_back(llm.llm().prepare(std::move(generate)).value());
  std::promise<void> open;
  ASSERT_TRUE(llm.submit(std::move(requests), [&](const llm::Delta&) { open.get_future().wait(); }).ok());
  EXPECT_TRUE(eventually(503));
  EXPECT_NE(health().body_.find("The engine has been at one step for"), std::string::npos) << health().body_;
  open.set_value();
  EXPECT_TRUE(eventually(200));
}

}  // namespace
}  // namespace quire
