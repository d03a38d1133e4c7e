// SPDX-License-Identifier: Apache-2.0
// KvEventPublisher: sends what enters and leaves the prefix cache to subscribers, as vLLM's servers do.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kv/cache_events.h"
#include "kv/cache_layout.h"
#include "telemetry/kv_events_config.h"
#include "telemetry/zmq.h"

namespace quire::telemetry {

// What subscribers are told of a cache group.
struct EventGroup {
  int64_t block_size = 0;
  std::string kind;    // vLLM's name: full_attention, mla_attention, sliding_window or mamba
  int64_t window = 0;  // of sliding_window
};
using EventGroups = std::vector<EventGroup>;
EventGroups event_groups(const kv::CacheLayout& layout);

// The events of one step in MessagePack, as vLLM's KVEventBatch: an array of the time, the events and the rank. Each
// event is a map with its type.
std::string encode_events(const std::vector<kv::CacheEvent>& events, const EventGroups& groups, double unix_seconds,
                          int64_t rank = 0);

// The batches under one topic, which have sequence numbers of their own. The publisher's.
class EventStream {
 public:
  const std::string& topic() const { return topic_; }

 private:
  friend class KvEventPublisher;
  explicit EventStream(std::string topic) : topic_(std::move(topic)) {}
  const std::string topic_;
  uint64_t next_sequence_ = 0;  // guarded by the publisher's mutex
};

// Owns a thread with a PUB socket and, for replay, a ROUTER socket. A message has three parts: the topic, the sequence
// number of the batch (8 bytes, big endian) and the batch. Who missed some sends the first number that it lacks to the
// replay socket, and gets the batches from there on that are still kept, then one with the number -1.
// With several models there is a topic for each; a replay has the batches of all topics from that number on.
// publish() never blocks. If the thread cannot keep up and the queue is full, a batch is dropped; its sequence number
// is missing, too, so that subscribers notice.
class KvEventPublisher {
 public:
  // Fails if there is no libzmq, or if an endpoint cannot be used.
  static Result<std::unique_ptr<KvEventPublisher>> start(const KvEventsConfig& config);
  ~KvEventPublisher();

  // The stream of a topic, which lives as long as the publisher. Any thread.
  EventStream& stream(const std::string& topic);
  // Any thread, but the order of calls is the order of the batches. `groups`: those of the engine that the events are
  // from.
  void publish(EventStream& stream, std::shared_ptr<const EventGroups> groups, std::vector<kv::CacheEvent> events);

  std::string endpoint() const { return endpoint_; }
  // The endpoints as other machines may connect to them: with this machine's address instead of a wildcard. Empty: no
  // replay.
  std::string public_endpoint() const;
  std::string public_replay_endpoint() const;
  int64_t num_batches() const { return num_batches_; }
  int64_t num_dropped() const { return num_dropped_; }

 private:
  struct Batch {
    const EventStream* stream = nullptr;
    std::shared_ptr<const EventGroups> groups;
    uint64_t sequence = 0;
    double time = 0;
    std::vector<kv::CacheEvent> events;
  };
  struct Sent {
    const EventStream* stream = nullptr;
    uint64_t sequence = 0;
    std::string payload;
  };
  KvEventPublisher(const KvEventsConfig& config, const std::shared_ptr<const Zmq>& zmq);
  Status open();
  void wake();
  void run();
  void send_waiting();
  void replay();

  const KvEventsConfig config_;
  const std::shared_ptr<const Zmq> zmq_;
  ZmqSocket publish_;
  std::unique_ptr<ZmqSocket> replay_;  // null: no replay
  std::string endpoint_;
  int wake_[2] = {-1, -1};  // a pipe: one end is polled together with the replay socket
  std::atomic<int64_t> num_batches_{0}, num_dropped_{0};

  std::mutex mutex_;  // guards the members below
  std::deque<Batch> queue_;
  std::vector<std::unique_ptr<EventStream>> streams_;
  bool stopping_ = false;

  std::deque<Sent> kept_;  // for replay; the thread's own
  std::thread thread_;
};

}  // namespace quire::telemetry
