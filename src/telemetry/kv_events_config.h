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
  std::string topic;
  int64_t buffer_steps = 10'000;     // batches that are kept for replay
  int64_t hwm = 100'000;             // messages that may wait for each subscriber
  int64_t max_queue_size = 100'000;  // batches that may wait for the publisher's thread
};

// "" is no events.
Result<KvEventsConfig> parse_kv_events_config(std::string_view json);

}  // namespace quire::telemetry
