// SPDX-License-Identifier: Apache-2.0
// Live: the live view of the server's models, as server-sent events to everyone who watches.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api/handler.h"
#include "engine/live.h"

namespace quire::api {

class Host;
class Service;

// One thread looks at the models that somebody watches, and answers questions about single pages. It starts with the
// first watcher or question, and sleeps while there are none. A look runs on the model's engine thread, between two
// steps, and is shared by all who watch the model; JSON is made on this thread. Looks are ten a second at most and take
// at most kMaxShare of the engine's time: after a slow one the next comes later. A model is not loaded or kept loaded
// for being watched. Any thread may call the public methods.
class Live {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Live(Host& host) : host_(host) {}
  ~Live() { stop(); }
  Live(const Live&) = delete;
  Live& operator=(const Live&) = delete;

  // Streams a model's state to the reply until the client leaves or the server stops.
  void watch(size_t model, ReplyPtr reply);
  // Answers with what a page of the pool or of the tiers holds. `caller` sees the tokens of its own requests only, if
  // the server has named keys.
  void look_up(size_t model, int32_t page, bool tier, std::string caller, ReplyPtr reply);
  // Ends all streams and the thread; later watchers get an empty stream.
  void stop();

  // How long to wait after a look that took this long.
  static Clock::duration pause_after(Clock::duration look);
  static constexpr size_t kMaxWatchers = 64;
  static constexpr double kMaxShare = 0.005;

 private:
  struct Watcher {
    size_t model = 0;
    ReplyPtr reply;
    std::shared_ptr<std::atomic<bool>> gone;
    bool fresh = true;  // has not been sent anything
  };
  struct Question {
    size_t model = 0;
    int32_t page = 0;
    bool tier = false;  // page is the id of a page in a tier
    std::string caller;
    ReplyPtr reply;
  };
  // A model that is watched. Belongs to the thread.
  struct Watched {
    std::vector<Watcher> watchers;
    std::string last;        // the last event without its times
    Clock::duration took{};  // by the last look
    Clock::time_point due{}, sent{};
  };

  void run();
  bool start_thread();  // with the lock held; false if the view has been stopped
  void tick(size_t model, Watched& watched);
  std::string state_of(size_t model, Clock::duration& took);
  void answer(const Question& question);
  void answer_tier(const Question& question, Service& service);

  Host& host_;
  const Clock::time_point started_ = Clock::now();
  std::mutex mutex_;  // guards the next five
  std::condition_variable changed_;
  std::vector<Watcher> new_watchers_;
  std::vector<Question> questions_;
  bool stopping_ = false;
  std::thread thread_;
  std::atomic<size_t> num_watchers_ = 0;
  std::map<size_t, Watched> watched_;  // the thread's
};

}  // namespace quire::api
