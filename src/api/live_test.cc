// SPDX-License-Identifier: Apache-2.0
// The live view over small models with dummy weights: its events, questions about pages, its bounds and its end.
#include "api/live.h"

#include <gtest/gtest.h>

#include <deque>
#include <future>

#include "api/host.h"
#include "api/testing.h"
#include "base/json.h"

namespace quire::api {
namespace {

// Keeps what is written. wait(n) returns the n-th event once it is there.
class StreamReply final : public Reply {
 public:
  void send(int status, std::string_view, std::string body, Headers) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
    pieces_.push_back(std::move(body));
    changed_.notify_all();
  }
  void begin(int status, std::string_view, Headers) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
  }
  bool write(std::string piece) override {
    const std::lock_guard lock(mutex_);
    if (!piece.starts_with(":")) pieces_.push_back(std::move(piece));
    changed_.notify_all();
    return true;
  }
  void end() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void on_gone(std::function<void()> callback) override { gone = std::move(callback); }
  void on_stop(std::function<void()>) override {}
  void note(std::string_view, std::string_view) override {}

  std::string piece(size_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pieces_.size() > index; });
    return pieces_[index];
  }
  json::Value event(size_t index) {
    return json::parse(piece(index).substr(std::string_view("data: ").size())).value();
  }
  void wait_for_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });
  }
  int status() {
    const std::lock_guard lock(mutex_);
    return status_;
  }

  std::function<void()> gone;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> pieces_;
  int status_ = 0;
  bool ended_ = false;
};

class LiveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    metrics::ServerMetricsOptions series;
    series.model_name = "tiny";
    series.max_model_len = 64;
    metrics_ = std::make_unique<metrics::ServerMetrics>(series);
    auto llm = llm::Llm::load(small_model());
    ASSERT_TRUE(llm.ok());
    llm::AsyncOptions async;
    async.log_stats_every_s = 0;
    ServiceOptions service;
    service.served_names = {"tiny"};
    host_ = std::make_unique<Host>(
        std::make_unique<llm::ParallelLlm>(std::make_unique<llm::AsyncLlm>(std::move(*llm), async)), *metrics_,
        service);
  }

  std::shared_ptr<StreamReply> ask(const std::string& path, const std::string& query = "", std::string body = "") {
    HttpRequest request;
    request.method = body.empty() ? "GET" : "POST";
    request.path = path;
    request.query = query;
    request.body = std::move(body);
    auto reply = std::make_shared<StreamReply>();
    host_->handle(std::move(request), reply);
    return reply;
  }

  std::unique_ptr<metrics::ServerMetrics> metrics_;
  std::unique_ptr<Host> host_;
};

TEST(LivePause, KeepsLooksToTenASecondAndToTheirShareOfTheTime) {
  using std::chrono::milliseconds;
  EXPECT_EQ(Live::pause_after(milliseconds(0)), milliseconds(100));
  EXPECT_EQ(Live::pause_after(std::chrono::microseconds(400)), milliseconds(100));
  EXPECT_EQ(Live::pause_after(milliseconds(5)), milliseconds(1000));
}

TEST_F(LiveTest, SendsTheStateAtOnceAndAgainWhenItHasChanged) {
  const auto watcher = ask("/live");
  const json::Value first = watcher->event(0);
  EXPECT_EQ(first.find("model")->as_string(), "tiny");
  EXPECT_EQ(first.find("state")->as_string(), "ready");
  EXPECT_EQ(first.find("pages")->find("total")->as_int(), 15);
  EXPECT_EQ(first.find("pages")->find("free")->as_int(), 15);
  const std::string body = R"({"prompt": [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22],
                               "max_tokens": 2, "ignore_eos": true})";
  const auto answer = ask("/v1/completions", "", body);
  answer->piece(0);
  ASSERT_EQ(answer->status(), 200);
  // The states in between may be seen or not; the last one has no request and one cached page.
  for (size_t i = 1;; ++i) {
    const json::Value event = watcher->event(i);
    if (event.find("generated")->as_int() < 2 || event.find("running")->as_int() > 0) continue;
    EXPECT_EQ(event.find("pages")->find("free")->as_int(), 14);
    EXPECT_EQ(event.find("pages")->find("groups")->as_array()[0].find("cached")->as_int(), 1);
    EXPECT_TRUE(event.find("requests")->as_array().empty());
    break;
  }
  const auto page = ask("/live/page", "id=1");
  const json::Value held = json::parse(page->piece(0)).value();
  EXPECT_EQ(held.find("state")->as_string(), "cached");
  ASSERT_EQ(held.find("tokens")->as_array().size(), 16u);
  EXPECT_EQ(held.find("tokens")->as_array()[0].find("id")->as_int(), 5);
}

TEST_F(LiveTest, RefusesPagesAndModelsThatDoNotExist) {
  for (const char* query : {"", "id=", "id=x", "id=1x", "id=99999999999"}) {
    const auto reply = ask("/live/page", query);
    reply->piece(0);
    EXPECT_EQ(reply->status(), 400) << query;
  }
  for (const char* query : {"id=0", "id=-1", "id=16"}) {
    const auto reply = ask("/live/page", query);
    reply->piece(0);
    EXPECT_EQ(reply->status(), 404) << query;
  }
  EXPECT_EQ(ask("/live", "model=other")->status(), 404);
}

TEST_F(LiveTest, ServesABoundedNumberOfWatchers) {
  std::vector<std::shared_ptr<StreamReply>> watchers;
  for (size_t i = 0; i < Live::kMaxWatchers; ++i) watchers.push_back(ask("/live"));
  for (const auto& watcher : watchers) EXPECT_EQ(watcher->event(0).find("state")->as_string(), "ready");
  EXPECT_EQ(ask("/live")->status(), 503);
  watchers[0]->gone();
  while (ask("/live")->status() == 503) std::this_thread::yield();
}

TEST_F(LiveTest, EndsItsStreamsWhenTheServerStops) {
  const auto watcher = ask("/live");
  watcher->piece(0);
  host_->live().stop();
  watcher->wait_for_end();
  ask("/live")->wait_for_end();
  const auto late = ask("/live/page", "id=1");
  late->piece(0);
  EXPECT_EQ(late->status(), 503);
}

}  // namespace
}  // namespace quire::api
