// SPDX-License-Identifier: Apache-2.0
// What the tests of this folder share: a reply that keeps its answer, and a small model with dummy weights.
#pragma once

#include <filesystem>
#include <future>
#include <string>
#include <utility>

#include "api/handler.h"
#include "base/json.h"
#include "llm/options.h"

namespace quire::api {

struct SentAnswer {
  int status = 0;
  std::string content_type, body;
  Headers headers;
  json::Value json() const { return json::parse(body).value(); }
  std::string message() const { return json().find("error")->find("message")->as_string(); }
};

// Keeps the whole answer that is sent.
class PromisedReply final : public Reply {
 public:
  void send(int status, std::string_view content_type, std::string body, Headers extra) override {
    if (before_send) before_send();
    promise.set_value({status, std::string(content_type), std::move(body), std::move(extra)});
  }
  void begin(int, std::string_view, Headers) override {}
  bool write(std::string) override { return true; }
  void end() override {}
  void on_gone(std::function<void()>) override {}
  void on_stop(std::function<void()>) override {}
  void note(std::string_view, std::string_view) override {}

  std::promise<SentAnswer> promise;
  std::function<void()> before_send;  // called when the answer is about to leave
};

// A model of two layers without a tokenizer, with room for 64 tokens per sequence.
inline llm::Options small_model() {
  llm::Options options;
  options.model = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/goldens/llama/config.json";
  options.load_format = "dummy";
  options.max_model_len = "64";
  options.num_gpu_blocks_override = 16;
  options.threads = 1;
  return options;
}

}  // namespace quire::api
