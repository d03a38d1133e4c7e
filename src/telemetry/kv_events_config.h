// SPDX-License-Identifier: Apache-2.0
// Reads --kv-events-config, a JSON object in vLLM's words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::telemetry {

struct KvEventsConfig {
  bool enabled = false;                   // events are wanted, and the publisher is not "null"
  std::string endpoint = "tcp://*:5557";  // listens if it has a * or ::, or begins with ipc://; else connects
  std::string replay_endpoint;            // "": no replay
  std::string topic;                      // with several models, the beginning of each model's
  int64_t rank = 0;                       // of the engine whose events they are
  int64_t buffer_steps = 10'000;          // batches that are kept for replay
  int64_t hwm = 100'000;                  // messages that may wait for each subscriber
  int64_t max_queue_size = 100'000;       // batches that may wait for the publisher's thread
};

// The same for another engine of the server, at its own endpoints: vLLM adds the rank to the port of tcp:// and a
// suffix to the names of others. An Error if a port is out of range.
Result<KvEventsConfig> config_of_engine(const KvEventsConfig& config, int64_t rank);

// The topic of one of several models: its name, behind the topic of the flag and an @ where that has one.
std::string topic_of_model(const KvEventsConfig& config, const std::string& model);

// "" is no events.
Result<KvEventsConfig> parse_kv_events_config(std::string_view json);

}  // namespace quire::telemetry
