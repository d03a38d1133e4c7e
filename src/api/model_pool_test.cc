// SPDX-License-Identifier: Apache-2.0
// The pool with models that only count: states, least recently used, waiting, failures, cancelling and stopping.
#include "api/model_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <random>

namespace quire::api {
namespace {

using Lease = ModelPool::Lease;

// Loads fake models, whose loads can be held back and can fail. Checks that loads and unloads alternate.
class Fakes {
 public:
  explicit Fakes(size_t models) : live(models), loads(models), least(models, 10), error(models) {}

  PoolLoader loader() {
    return {[this](size_t model, const std::atomic<bool>&) -> Result<int64_t> {
              const std::lock_guard lock(mutex);
              if (broken == model) return corrupt("the file is damaged");
              return least[model];
            },
            [this](size_t model, int64_t memory, const std::atomic<bool>& cancelled) -> Result<PoolLoader::Loaded> {
              std::unique_lock lock(mutex);
              offered = memory;
              loading = true;
              changed.notify_all();
              while (held && !cancelled) changed.wait_for(lock, std::chrono::milliseconds(1));
              loading = false;
              if (cancelled) return Error{ErrorCode::kCancelled, "cancelled"};
              if (error[model]) return *error[model];
              if (needs > memory && memory > 0) return exhausted("too little memory");
              ++loads[model];
              return PoolLoader::Loaded{std::make_unique<Fake>(*this, model), least[model]};
            }};
  }
  // Until hold(false), a load does not end.
  void hold(bool on) {
    const std::lock_guard lock(mutex);
    held = on;
    changed.notify_all();
  }
  void wait_for_load() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return loading; });
  }
  size_t num_loads(size_t model) {
    const std::lock_guard lock(mutex);
    return loads[model];
  }

  struct Fake final : Resident {
    Fake(Fakes& owner, size_t number) : fakes(owner), model(number) {
      EXPECT_EQ(fakes.live[model]++, 0);
      ++fakes.all_live;
    }
    ~Fake() override {
      EXPECT_EQ(--fakes.live[model], 0);
      --fakes.all_live;
    }
    Fakes& fakes;
    const size_t model;
  };

  std::mutex mutex;
  std::condition_variable changed;
  bool held = false, loading = false;
  std::vector<std::atomic<int>> live;
  std::atomic<int> all_live = 0;  // their sum at one moment, which reading them one after the other does not give
  std::vector<size_t> loads;
  std::vector<int64_t> least;
  std::vector<std::optional<Error>> error;
  std::optional<size_t> broken;
  int64_t needs = 0, offered = 0;
};

// A request that asks the pool for a model.
struct Ask {
  Ask(ModelPool& pool, size_t model) : ticket(pool.reserve()) {
    auto promise = std::make_shared<std::promise<ApiResult<Lease>>>();
    answer = promise->get_future();
    pool.acquire(ticket, model, [promise](ApiResult<Lease> lease) { promise->set_value(std::move(lease)); });
  }
  bool waits() { return answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready; }

  ModelPool::Ticket ticket;
  std::future<ApiResult<Lease>> answer;
};

PoolOptions two_models() {
  PoolOptions options;
  options.max_loaded = 2;
  options.keep_alive_s = -1;
  return options;
}

ModelPool make_pool(Fakes& fakes, const PoolOptions& options = two_models()) {
  return ModelPool({"a", "b", "c"}, options, fakes.loader());
}

// Waits until the model is in that state; a test that never gets there runs into its time limit.
void await(const ModelPool& pool, size_t model, ModelState state) {
  while (pool.info(model).state != state) std::this_thread::yield();
}

TEST(ModelPool, LoadsOnDemandAndKeepsTheModel) {
  Fakes fakes(3);
  auto pool = make_pool(fakes);
  EXPECT_EQ(pool.info(0).state, ModelState::kUnloaded);
  EXPECT_FALSE(pool.look(0).has_value());
  {
    auto lease = Ask(pool, 0).answer.get();
    ASSERT_TRUE(lease.ok());
    EXPECT_EQ(dynamic_cast<Fakes::Fake&>(lease->resident()).model, 0u);
    EXPECT_EQ(pool.info(0).leases, 1u);
  }
  Ask again(pool, 0);
  EXPECT_FALSE(again.waits()) << "a loaded model answers at once";
  EXPECT_EQ(fakes.num_loads(0), 1u);
  EXPECT_TRUE(pool.look(0).has_value());
}

TEST(ModelPool, UnloadsTheIdleModelThatWasUsedLeastRecently) {
  Fakes fakes(3);
  auto pool = make_pool(fakes);
  (void)Ask(pool, 0).answer.get();
  (void)Ask(pool, 1).answer.get();
  (void)Ask(pool, 0).answer.get();
  EXPECT_TRUE(pool.look(1).has_value()) << "looking is not use";
  (void)Ask(pool, 2).answer.get();
  EXPECT_EQ(pool.info(0).state, ModelState::kReady);
  EXPECT_EQ(pool.info(1).state, ModelState::kUnloaded);
  EXPECT_EQ(pool.info(2).state, ModelState::kReady);
}

TEST(ModelPool, NeverUnloadsAModelThatIsUsed) {
  Fakes fakes(3);
  auto pool = make_pool(fakes);
  auto a = std::make_optional(Ask(pool, 0).answer.get());
  auto b = std::make_optional(Ask(pool, 1).answer.get());
  Ask c(pool, 2);
  while (!pool.info(0).draining) std::this_thread::yield();  // a is to make room: it was used least recently
  Ask more(pool, 0);
  EXPECT_TRUE(more.waits() && c.waits());
  EXPECT_EQ(fakes.live[0], 1);
  a.reset();
  EXPECT_TRUE(c.answer.get().ok());
  EXPECT_EQ(fakes.live[1], 1) << "b is still used";
  EXPECT_TRUE(more.answer.get().ok()) << "then c is idle and makes room for a";
  EXPECT_EQ(fakes.num_loads(0), 2u);
}

TEST(ModelPool, TakesRequestsAgainIfNobodyNeedsTheRoom) {
  Fakes fakes(3);
  auto pool = make_pool(fakes);
  auto a = Ask(pool, 0).answer.get();
  auto b = Ask(pool, 1).answer.get();
  Ask c(pool, 2);
  while (!pool.info(0).draining) std::this_thread::yield();
  Ask more(pool, 0);
  EXPECT_TRUE(more.waits());
  pool.cancel(c.ticket);
  EXPECT_TRUE(more.answer.get().ok());
  EXPECT_EQ(fakes.num_loads(0), 1u) << "it was not unloaded";
}

TEST(ModelPool, UnloadsIdleModelsAfterTheirTime) {
  Fakes fakes(3);
  PoolOptions options = two_models();
  options.keep_alive_s = 0;
  auto pool = make_pool(fakes, options);
  {
    const auto lease = Ask(pool, 0).answer.get();
    EXPECT_EQ(pool.info(0).state, ModelState::kReady);
  }
  await(pool, 0, ModelState::kUnloaded);
  EXPECT_EQ(fakes.live[0], 0);
}

TEST(ModelPool, GivesAFailureToItsOwnRequestsOnly) {
  Fakes fakes(3);
  fakes.error[0] = corrupt("the file is damaged");
  PoolOptions options = two_models();
  options.retry_s = 1e6;
  auto pool = make_pool(fakes, options);
  EXPECT_TRUE(Ask(pool, 1).answer.get().ok());
  const auto failed = Ask(pool, 0).answer.get();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().status, 500);
  EXPECT_EQ(failed.error().message, "The model `a` could not be loaded: the file is damaged");
  EXPECT_EQ(pool.info(0).state, ModelState::kFailed);
  EXPECT_EQ(pool.info(0).error, "the file is damaged");
  Ask at_once(pool, 0);
  EXPECT_FALSE(at_once.waits()) << "it is not tried again and again";
  EXPECT_TRUE(Ask(pool, 1).answer.get().ok());
  EXPECT_EQ(fakes.num_loads(1), 1u);
}

// A client was told the path of the file.
TEST(ModelPool, SaysWhatFailedWithoutTheFoldersOfTheServer) {
  Fakes fakes(3);
  fakes.error[0] =
      corrupt("'/srv/my models/a/b.gguf': it is damaged; /srv/c.json, too: see http://x/y, '/srv/a/' and 1/2");
  auto pool = make_pool(fakes, two_models());
  const char* shown = "'b.gguf': it is damaged; c.json, too: see http://x/y, 'a' and 1/2";
  EXPECT_EQ(Ask(pool, 0).answer.get().error().message, std::string("The model `a` could not be loaded: ") + shown);
  EXPECT_EQ(pool.info(0).error, shown);
}

TEST(ModelPool, TriesAFailedModelAgainLater) {
  Fakes fakes(3);
  fakes.error[0] = unavailable("the hub did not answer");
  PoolOptions options = two_models();
  options.retry_s = 0;
  auto pool = make_pool(fakes, options);
  EXPECT_EQ(Ask(pool, 0).answer.get().error().status, 503);
  {
    const std::lock_guard lock(fakes.mutex);
    fakes.error[0].reset();
  }
  EXPECT_TRUE(Ask(pool, 0).answer.get().ok());
}

TEST(ModelPool, UnloadsNothingForAModelThatCannotBeOpened) {
  Fakes fakes(3);
  fakes.broken = 2;
  auto pool = make_pool(fakes);
  (void)Ask(pool, 0).answer.get();
  (void)Ask(pool, 1).answer.get();
  EXPECT_FALSE(Ask(pool, 2).answer.get().ok());
  EXPECT_EQ(fakes.live[0] + fakes.live[1], 2);
}

TEST(ModelPool, SharesTheMemory) {
  Fakes fakes(3);
  fakes.least = {30, 80, 200};
  PoolOptions options = two_models();
  options.memory_bytes = 100;
  auto pool = make_pool(fakes, options);
  (void)Ask(pool, 0).answer.get();
  EXPECT_EQ(fakes.offered, 50) << "half, because two models may be loaded";
  (void)Ask(pool, 1).answer.get();
  EXPECT_EQ(fakes.offered, 80) << "what it needs at least";
  EXPECT_EQ(pool.info(0).state, ModelState::kUnloaded) << "80 and 30 do not fit into 100";
  const auto never = Ask(pool, 2).answer.get();
  EXPECT_EQ(never.error().status, 503);
  EXPECT_NE(never.error().message.find("needs at least 200 B"), std::string::npos) << never.error().message;
  EXPECT_EQ(pool.info(1).state, ModelState::kReady);
}

TEST(ModelPool, OffersMoreMemoryBeforeItGivesUp) {
  Fakes fakes(3);
  fakes.needs = 90;
  PoolOptions options = two_models();
  options.memory_bytes = 100;
  auto pool = make_pool(fakes, options);
  EXPECT_TRUE(Ask(pool, 0).answer.get().ok());
  EXPECT_EQ(fakes.offered, 100);
  fakes.needs = 1000;
  EXPECT_EQ(Ask(pool, 1).answer.get().error().status, 503);
}

TEST(ModelPool, BoundsTheQueue) {
  Fakes fakes(3);
  PoolOptions options = two_models();
  options.max_waiting = 2;
  auto pool = make_pool(fakes, options);
  fakes.hold(true);
  Ask first(pool, 0), second(pool, 0);
  fakes.wait_for_load();
  EXPECT_EQ(pool.info(0).state, ModelState::kLoading);
  const auto third = Ask(pool, 0).answer.get();
  EXPECT_EQ(third.error().status, 503);
  EXPECT_EQ(third.error().retry_after_s, 1);
  EXPECT_NE(third.error().message.find("2 requests wait for the model `a`, which is loading"), std::string::npos);
  Ask other(pool, 1);
  EXPECT_TRUE(other.waits()) << "every model has a queue of its own";
  fakes.hold(false);
  EXPECT_TRUE(first.answer.get().ok());
  EXPECT_TRUE(second.answer.get().ok());
}

TEST(ModelPool, RefusesWhoHasWaitedTooLongEvenDuringALoad) {
  Fakes fakes(3);
  PoolOptions options = two_models();
  options.max_wait_s = 0.01;
  auto pool = make_pool(fakes, options);
  fakes.hold(true);
  const auto late = Ask(pool, 0).answer.get();
  EXPECT_EQ(late.error().status, 503);
  EXPECT_NE(late.error().message.find("still loading"), std::string::npos) << late.error().message;
}

TEST(ModelPool, DropsCancelledRequests) {
  Fakes fakes(3);
  auto pool = make_pool(fakes);
  fakes.hold(true);
  Ask first(pool, 0);
  fakes.wait_for_load();
  {
    Ask leaves(pool, 1);
    EXPECT_EQ(pool.info(1).waiting, 1u);
    pool.cancel(leaves.ticket);
    EXPECT_EQ(pool.info(1).waiting, 0u);
    EXPECT_THROW((void)leaves.answer.get(), std::future_error) << "its callback is gone";
  }
  const ModelPool::Ticket early = pool.reserve();
  pool.cancel(early);
  pool.acquire(early, 1, [](const ApiResult<Lease>&) { FAIL() << "it was cancelled before it asked"; });
  fakes.hold(false);
  EXPECT_TRUE(first.answer.get().ok());
  pool.cancel(first.ticket);  // too late, and harmless
  EXPECT_EQ(fakes.num_loads(1), 0u);
}

TEST(ModelPool, StopsDuringALoad) {
  Fakes fakes(3);
  auto pool = std::make_unique<ModelPool>(std::vector<std::string>{"a", "b", "c"}, two_models(), fakes.loader());
  (void)Ask(*pool, 1).answer.get();
  fakes.hold(true);
  Ask loading(*pool, 0), queued(*pool, 2);
  fakes.wait_for_load();
  pool->stop();
  EXPECT_EQ(loading.answer.get().error().status, 503);
  EXPECT_EQ(queued.answer.get().error().status, 503);
  EXPECT_EQ(Ask(*pool, 1).answer.get().error().status, 503);
  pool.reset();
  EXPECT_EQ(fakes.live[1], 0);
}

TEST(ModelPool, AdoptsALoadedModel) {
  Fakes fakes(3);
  auto pool = make_pool(fakes);
  pool.adopt(0, {std::make_unique<Fakes::Fake>(fakes, 0), 5});
  EXPECT_TRUE(Ask(pool, 0).answer.get().ok());
  EXPECT_EQ(fakes.num_loads(0), 0u);
}

// Every request gets its own model, whatever the others do, and two models at most are loaded.
TEST(ModelPool, ServesRandomTraffic) {
  Fakes fakes(3);
  PoolOptions options = two_models();
  options.keep_alive_s = 0.001;
  auto pool = make_pool(fakes, options);
  std::vector<std::thread> clients;
  std::atomic<int> served = 0;
  for (unsigned seed = 0; seed < 4; ++seed) {
    clients.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 200; ++i) {
        const size_t model = random() % 3;
        Ask ask(pool, model);
        if (random() % 8 == 0) {
          pool.cancel(ask.ticket);
          continue;
        }
        const auto lease = ask.answer.get();
        ASSERT_TRUE(lease.ok()) << lease.error().message;
        EXPECT_EQ(dynamic_cast<Fakes::Fake&>(const_cast<ApiResult<Lease>&>(lease)->resident()).model, model);
        EXPECT_LE(fakes.all_live, 2);
        ++served;
        if (random() % 4 == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(served, 600);
}

}  // namespace
}  // namespace quire::api
