// SPDX-License-Identifier: Apache-2.0
// The line of statistics names the device that holds the pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "llm/async_llm.h"
#include "models/harness.h"

namespace quire::testing {
namespace {

using ::testing::HasSubstr;

// A log sink that keeps the first line of statistics.
class FirstLine final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Waits up to a minute for the line.
  std::string wait() {
    if (line_.get_future().wait_for(std::chrono::minutes(1)) != std::future_status::ready) return "no line";
    return text_;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text(message.payload.data(), message.payload.size());
    if (!text_.empty() || text.find("KV cache usage") == std::string::npos) return;
    text_ = text;
    line_.set_value();
  }
  void flush_() override {}

  std::promise<void> line_;
  std::string text_;
};

// Serves one request on the device and returns the logged line.
std::string line_of(const std::string& device) {
  llm::Options options = dummy_options("llama");
  options.device = device;
  options.max_model_len = "192";
  options.num_gpu_blocks_override = 32;
  auto loaded = llm::Llm::load(options);
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  if (!loaded.ok()) return {};
  const auto sink = std::make_shared<FirstLine>();
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  std::string line;
  {
    llm::AsyncOptions async;
    async.log_stats_every_s = 0.02;
    llm::AsyncLlm llm(std::move(*loaded), async);
    llm::GenerateRequest generate;
    generate.prompt = llm::TokenPrompt{5, 6, 7};
    generate.params.max_tokens = 3;
    generate.params.ignore_eos = true;
    std::vector<engine::Request> requests;
    requests.push_back(llm.llm().prepare(std::move(generate)).value());
    EXPECT_TRUE(llm.submit(std::move(requests), [](const llm::Delta&) {}).ok());
    line = sink->wait();
  }
  spdlog::set_default_logger(before);
  return line;
}

// The bug: a server on a GPU logged "CPU KV cache usage".
TEST(StatLine, NamesTheDeviceOfThePages) {
  EXPECT_THAT(line_of("cpu"), HasSubstr(", CPU KV cache usage: "));
  EXPECT_THAT(line_of("emulator"), HasSubstr(", GPU KV cache usage: "));
}

}  // namespace
}  // namespace quire::testing
