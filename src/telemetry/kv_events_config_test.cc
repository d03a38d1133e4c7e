// SPDX-License-Identifier: Apache-2.0
// --kv-events-config: vLLM's fields and defaults, and errors that name what is wrong.
#include "telemetry/kv_events_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::telemetry {
namespace {

using ::testing::HasSubstr;

TEST(KvEventsConfig, HasVllmsDefaults) {
  EXPECT_FALSE(parse_kv_events_config("")->enabled);
  EXPECT_FALSE(parse_kv_events_config("{}")->enabled);
  EXPECT_FALSE(parse_kv_events_config(R"({"publisher": "zmq"})")->enabled);
  EXPECT_FALSE(parse_kv_events_config(R"({"enable_kv_cache_events": true, "publisher": "null"})")->enabled);
  const KvEventsConfig config = *parse_kv_events_config(R"({"enable_kv_cache_events": true, "publisher": null})");
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.endpoint, "tcp://*:5557");
  EXPECT_EQ(config.replay_endpoint, "");
  EXPECT_EQ(config.buffer_steps, 10'000);
  EXPECT_EQ(config.hwm, 100'000);
  EXPECT_EQ(config.max_queue_size, 100'000);
}

TEST(KvEventsConfig, ReadsEveryField) {
  const KvEventsConfig config = *parse_kv_events_config(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://router:1", "replay_endpoint":
          "tcp://*:2", "buffer_steps": 3, "hwm": 0, "max_queue_size": 5, "topic": "kv@pod"})");
  EXPECT_EQ(config.endpoint, "tcp://router:1");
  EXPECT_EQ(config.replay_endpoint, "tcp://*:2");
  EXPECT_EQ(config.buffer_steps, 3);
  EXPECT_EQ(config.hwm, 0);
  EXPECT_EQ(config.max_queue_size, 5);
  EXPECT_EQ(config.topic, "kv@pod");
}

TEST(KvEventsConfig, ErrorsSayWhatIsWrong) {
  const auto error = [](const char* text) {
    const auto config = parse_kv_events_config(text);
    return config.ok() ? std::string() : config.error().message;
  };
  EXPECT_THAT(error("yes"), HasSubstr("--kv-events-config must be a JSON object"));
  EXPECT_THAT(error(R"({"enable_kv_cache_event": true})"), HasSubstr("enable_kv_cache_events"));
  EXPECT_THAT(error(R"({"enable_kv_cache_events": 1})"), HasSubstr("must be true or false"));
  EXPECT_THAT(error(R"({"publisher": "kafka"})"), HasSubstr("must be \"zmq\" or \"null\""));
  EXPECT_THAT(error(R"({"buffer_steps": 0})"), HasSubstr("buffer_steps"));
  EXPECT_THAT(error(R"({"hwm": "many"})"), HasSubstr("hwm"));
  EXPECT_THAT(error(R"({"endpoint": 5557})"), HasSubstr("endpoint"));
}

TEST(KvEventsConfig, EachEngineHasItsOwnEndpoints) {
  KvEventsConfig config;
  config.endpoint = "tcp://*:5557";
  config.replay_endpoint = "ipc:///run/replay";
  EXPECT_EQ(config_of_engine(config, 0)->endpoint, "tcp://*:5557");
  const auto second = config_of_engine(config, 2);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->endpoint, "tcp://*:5559");
  EXPECT_EQ(second->replay_endpoint, "ipc:///run/replay_dp2");
  EXPECT_EQ(second->rank, 2);
  config.endpoint = "tcp://*:0";  // any free port
  config.replay_endpoint = "";
  EXPECT_EQ(config_of_engine(config, 1)->endpoint, "tcp://*:0");
  EXPECT_EQ(config_of_engine(config, 1)->replay_endpoint, "");
  config.endpoint = "tcp://*:65535";
  EXPECT_THAT(config_of_engine(config, 1).error().message, HasSubstr("the last one is 65535"));
}

}  // namespace
}  // namespace quire::telemetry
