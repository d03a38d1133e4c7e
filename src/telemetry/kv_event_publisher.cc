// SPDX-License-Identifier: Apache-2.0
// The publisher's thread, its replay, and the form of the messages.
#include "telemetry/kv_event_publisher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>

#include "base/log.h"
#include "telemetry/msgpack.h"

namespace quire::telemetry {
namespace {

using kv::CacheEvent;

// vLLM's name for the memory that the model reads pages from, whatever the device; its CPU backend says so, too.
constexpr const char* kMedium = "GPU";
constexpr int64_t kReplayMargin = 1000;  // messages beyond one replay of everything that may wait for one client

int to_hwm(int64_t value) {
  return static_cast<int>(std::min<int64_t>(value, INT_MAX));
}

std::string sequence_bytes(uint64_t sequence) {
  std::string out;
  for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(sequence >> shift);
  return out;
}

uint64_t read_sequence(std::string_view bytes) {
  uint64_t out = 0;
  for (const char byte : bytes) out = (out << 8) | static_cast<unsigned char>(byte);
  return out;
}

// As vLLM does: what can only be an own address is listened on, anything else is connected to.
bool is_own_address(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

// The address from which this machine would send to others; nothing is sent.
std::string own_ip() {
  std::string out = "127.0.0.1";
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  if (fd < 0) return out;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1, which is for documents
  socklen_t size = sizeof address;
  char text[INET_ADDRSTRLEN];
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
      ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text) != nullptr) {
    out = text;
  }
  ::close(fd);
  return out;
}

std::string without_wildcard(std::string endpoint) {
  constexpr std::string_view kWildcards[] = {"tcp://0.0.0.0:", "tcp://*:", "tcp://[::]:"};
  for (const std::string_view wildcard : kWildcards) {
    if (endpoint.starts_with(wildcard)) return "tcp://" + own_ip() + ":" + endpoint.substr(wildcard.size());
  }
  return endpoint;
}

void write_hashes(MsgpackWriter& w, const CacheEvent& event) {
  w.text("block_hashes");
  w.array(event.hashes.size());
  for (const uint64_t hash : event.hashes) w.number(hash);
}

void write_stored(MsgpackWriter& w, const CacheEvent& event, const EventGroup& group) {
  const bool has_adapter = event.origin.adapter_id != 0;
  w.map(group.window > 0 ? 12 : 11);
  w.text("type");
  w.text("BlockStored");
  write_hashes(w, event);
  w.text("parent_block_hash");
  event.parent ? w.number(*event.parent) : w.nil();
  w.text("token_ids");
  w.array(event.tokens.size());
  for (const int32_t token : event.tokens) w.number(token);
  w.text("block_size");
  w.number(group.block_size);
  w.text("lora_id");
  has_adapter ? w.number(event.origin.adapter_id) : w.nil();
  w.text("medium");
  w.text(kMedium);
  w.text("lora_name");
  has_adapter ? w.text(event.origin.adapter_name) : w.nil();
  w.text("extra_keys");  // of each block: the adapter, and in the first block of a sequence the salt
  w.array(event.hashes.size());
  for (size_t i = 0; i < event.hashes.size(); ++i) {
    const bool has_salt = i == 0 && !event.origin.salt.empty();
    if (!has_adapter && !has_salt) {
      w.nil();
      continue;
    }
    w.array((has_adapter ? 1 : 0) + (has_salt ? 1 : 0));
    if (has_adapter) w.text(event.origin.adapter_name);
    if (has_salt) w.text(event.origin.salt);
  }
  w.text("group_idx");
  w.number(event.group);
  w.text("kv_cache_spec_kind");
  w.text(group.kind);
  if (group.window > 0) {
    w.text("kv_cache_spec_sliding_window");
    w.number(group.window);
  }
}

void write_removed(MsgpackWriter& w, const CacheEvent& event) {
  w.map(4);
  w.text("type");
  w.text("BlockRemoved");
  write_hashes(w, event);
  w.text("medium");
  w.text(kMedium);
  w.text("group_idx");
  w.number(event.group);
}

}  // namespace

EventGroups event_groups(const kv::CacheLayout& layout) {
  EventGroups out;
  for (const kv::CacheLayout::Group& group : layout.groups) {
    const char* kind = group.kind == kv::CacheKind::kWindow  ? "sliding_window"
                       : group.kind == kv::CacheKind::kState ? "mamba"
                                                             : "full_attention";
    out.push_back({group.block_size, kind, group.kind == kv::CacheKind::kWindow ? group.window : 0});
  }
  for (const kv::CacheLayout::Layer& layer : layout.layers) {
    if (layer.group < 0 || !layer.shape.v_in_k) continue;
    EventGroup& group = out[static_cast<size_t>(layer.group)];
    if (group.kind == "full_attention") group.kind = "mla_attention";
  }
  return out;
}

std::string encode_events(const std::vector<CacheEvent>& events, const EventGroups& groups, double unix_seconds,
                          int64_t rank) {
  MsgpackWriter w;
  w.array(3);
  w.number(unix_seconds);
  w.array(events.size());
  for (const CacheEvent& event : events) {
    switch (event.kind) {
      case CacheEvent::Kind::kStored:
        write_stored(w, event, groups[static_cast<size_t>(event.group)]);
        break;
      case CacheEvent::Kind::kRemoved:
        write_removed(w, event);
        break;
      case CacheEvent::Kind::kCleared:
        w.map(1);
        w.text("type");
        w.text("AllBlocksCleared");
        break;
    }
  }
  w.number(rank);
  return w.take();
}

KvEventPublisher::KvEventPublisher(const KvEventsConfig& config, const std::shared_ptr<const Zmq>& zmq)
    : config_(config), zmq_(zmq), publish_(zmq, ZmqSocket::Type::kPublish, to_hwm(config.hwm)) {}

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(const KvEventsConfig& config) {
  QUIRE_ASSIGN(const std::shared_ptr<const Zmq> zmq, Zmq::load());
  std::unique_ptr<KvEventPublisher> out(new KvEventPublisher(config, zmq));
  if (const Status opened = out->open(); !opened.ok()) {
    return Error{opened.error().code, "--kv-events-config: " + opened.error().message};
  }
  out->thread_ = std::thread([self = out.get()] { self->run(); });
  return out;
}

Status KvEventPublisher::open() {
  const bool own = is_own_address(config_.endpoint);
  QUIRE_TRY(own ? publish_.bind(config_.endpoint) : publish_.connect(config_.endpoint));
  endpoint_ = own ? publish_.endpoint() : config_.endpoint;
  std::string replay;
  if (!config_.replay_endpoint.empty()) {
    replay_ = std::make_unique<ZmqSocket>(zmq_, ZmqSocket::Type::kRouter, to_hwm(config_.buffer_steps + kReplayMargin));
    QUIRE_TRY(replay_->bind(config_.replay_endpoint));
    replay = ", replay at " + replay_->endpoint();
  }
  QUIRE_CHECK(::pipe(wake_) == 0, "no file descriptors are left for a pipe");
  for (const int end : wake_) {
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
    ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
  log_info("KV events: {} {}{}", own ? "published at" : "sent to", endpoint_, replay);
  return {};
}

std::string KvEventPublisher::public_endpoint() const {
  return without_wildcard(endpoint_);
}

std::string KvEventPublisher::public_replay_endpoint() const {
  return replay_ == nullptr ? std::string() : without_wildcard(replay_->endpoint());
}

KvEventPublisher::~KvEventPublisher() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    thread_.join();
  }
  for (const int end : wake_) {
    if (end >= 0) ::close(end);
  }
}

void KvEventPublisher::wake() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(wake_[1], &byte, 1);  // a full pipe wakes the thread as well
}

EventStream& KvEventPublisher::stream(const std::string& topic) {
  const std::lock_guard lock(mutex_);
  for (const auto& stream : streams_) {
    if (stream->topic() == topic) return *stream;
  }
  return *streams_.emplace_back(new EventStream(topic));
}

void KvEventPublisher::publish(EventStream& stream, std::shared_ptr<const EventGroups> groups,
                               std::vector<CacheEvent> events) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    const uint64_t sequence = stream.next_sequence_++;
    if (static_cast<int64_t>(queue_.size()) >= config_.max_queue_size) {
      ++num_dropped_;
      return;
    }
    was_empty = queue_.empty();
    queue_.push_back({&stream, std::move(groups), sequence, now, std::move(events)});
  }
  if (was_empty) wake();
}

void KvEventPublisher::run() {
  std::array<Zmq::PollItem, 2> items;
  items[0] = {nullptr, wake_[0], POLLIN, 0};
  for (;;) {
    if (replay_ != nullptr) items[1] = {replay_->handle(), -1, 1, 0};
    zmq_->api().poll(items.data(), replay_ != nullptr ? 2 : 1, -1);
    char bytes[64];
    while (::read(wake_[0], bytes, sizeof bytes) > 0) {
    }
    send_waiting();  // also what was queued before the end
    if (replay_ != nullptr) replay();
    const std::lock_guard lock(mutex_);
    if (stopping_ && queue_.empty()) return;
  }
}

void KvEventPublisher::send_waiting() {
  std::deque<Batch> batches;
  {
    const std::lock_guard lock(mutex_);
    batches.swap(queue_);
  }
  for (const Batch& batch : batches) {
    std::string payload = encode_events(batch.events, *batch.groups, batch.time, config_.rank);
    const std::string sequence = sequence_bytes(batch.sequence);
    publish_.send(std::array<std::string_view, 3>{batch.stream->topic(), sequence, payload});
    ++num_batches_;
    if (replay_ == nullptr) continue;
    kept_.push_back({batch.stream, batch.sequence, std::move(payload)});
    if (static_cast<int64_t>(kept_.size()) > config_.buffer_steps) kept_.pop_front();
  }
}

// Answers the requests that wait at the replay socket. Each is the client's identity, an empty part and a number.
void KvEventPublisher::replay() {
  for (;;) {
    const std::vector<std::string> request = replay_->receive();
    if (request.empty()) return;
    if (request.size() != 3 || request[2].size() > 8) {
      log_debug("KV events: a replay request of {} parts is ignored; it must be a number of 8 bytes", request.size());
      continue;
    }
    const std::string& client = request[0];
    const uint64_t first = read_sequence(request[2]);
    for (const Sent& sent : kept_) {
      if (sent.sequence < first) continue;
      const std::string sequence = sequence_bytes(sent.sequence);
      replay_->send(std::array<std::string_view, 5>{client, "", sent.stream->topic(), sequence, sent.payload});
    }
    replay_->send(std::array<std::string_view, 5>{client, "", "", sequence_bytes(~uint64_t{0}), ""});
  }
}

}  // namespace quire::telemetry
