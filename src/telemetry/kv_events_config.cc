// SPDX-License-Identifier: Apache-2.0
// The fields of --kv-events-config.
#include "telemetry/kv_events_config.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/json.h"
#include "base/suggest.h"

namespace quire::telemetry {
namespace {

constexpr int64_t kMost = 100'000'000;

Result<KvEventsConfig> read(const json::Value& config) {
  static const std::vector<std::string> kFields = {"enable_kv_cache_events", "publisher",    "endpoint",
                                                   "replay_endpoint",        "buffer_steps", "hwm",
                                                   "max_queue_size",         "topic"};
  for (const auto& [name, value] : config.as_object()) {
    if (std::ranges::find(kFields, name) == kFields.end()) {
      return invalid_argument({"there is no field '", name, "'", did_you_mean(name, kFields)});
    }
  }
  KvEventsConfig out;
  if (const json::Value* enable = config.find("enable_kv_cache_events"); enable != nullptr) {
    if (!enable->is_bool()) return invalid_argument("enable_kv_cache_events must be true or false");
    out.enabled = enable->as_bool();
  }
  const auto text = [&](const char* name, std::string& value) -> Status {
    const json::Value* given = config.find(name);
    if (given == nullptr || given->is_null()) return {};
    QUIRE_ASSIGN(value, json::get_string(config, name));
    return {};
  };
  const auto number = [&](const char* name, int64_t least, int64_t& value) -> Status {
    if (config.find(name) == nullptr) return {};
    QUIRE_ASSIGN(value, json::get_int(config, name, least, kMost));
    return {};
  };
  std::string publisher = "zmq";
  QUIRE_TRY(text("publisher", publisher));
  if (publisher != "zmq" && publisher != "null") {
    return invalid_argument({"publisher is '", publisher, "', but it must be \"zmq\" or \"null\""});
  }
  out.enabled = out.enabled && publisher == "zmq";
  QUIRE_TRY(text("endpoint", out.endpoint));
  QUIRE_TRY(text("replay_endpoint", out.replay_endpoint));
  QUIRE_TRY(text("topic", out.topic));
  QUIRE_TRY(number("buffer_steps", 1, out.buffer_steps));
  QUIRE_TRY(number("hwm", 0, out.hwm));
  QUIRE_TRY(number("max_queue_size", 1, out.max_queue_size));
  return out;
}

}  // namespace

namespace {

Result<std::string> endpoint_of_engine(const std::string& endpoint, int64_t rank) {
  if (rank == 0 || endpoint.empty()) return endpoint;
  if (!endpoint.starts_with("tcp://")) return endpoint + "_dp" + std::to_string(rank);
  const size_t colon = endpoint.rfind(':');
  const std::string text = endpoint.substr(colon + 1);
  int64_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool number = error == std::errc() && end == text.data() + text.size();
  if (!number || port == 0) return endpoint;  // any free port
  constexpr int64_t kLastPort = 65535;
  if (port + rank > kLastPort) {
    return invalid_argument({"--kv-events-config: engine ", rank, " would publish at port ", port + rank,
                             ", but the last one is ", kLastPort, ": '", endpoint, "' needs a lower port"});
  }
  return endpoint.substr(0, colon + 1) + std::to_string(port + rank);
}

}  // namespace

Result<KvEventsConfig> config_of_engine(const KvEventsConfig& config, int64_t rank) {
  KvEventsConfig out = config;
  out.rank = rank;
  QUIRE_ASSIGN(out.endpoint, endpoint_of_engine(config.endpoint, rank));
  QUIRE_ASSIGN(out.replay_endpoint, endpoint_of_engine(config.replay_endpoint, rank));
  return out;
}

std::string topic_of_model(const KvEventsConfig& config, const std::string& model) {
  return config.topic.empty() ? model : config.topic + "@" + model;
}

Result<KvEventsConfig> parse_kv_events_config(std::string_view text) {
  if (text.empty()) return KvEventsConfig{};
  const auto config = json::parse(text);
  if (!config.ok() || !config->is_object()) {
    return invalid_argument(
        "--kv-events-config must be a JSON object such as {\"enable_kv_cache_events\": true, \"endpoint\": "
        "\"tcp://*:5557\"}");
  }
  auto out = read(*config);
  if (!out.ok()) return Error{out.error().code, "--kv-events-config: " + out.error().message};
  return out;
}

}  // namespace quire::telemetry
