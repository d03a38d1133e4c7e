// SPDX-License-Identifier: Apache-2.0
// The connections of a RankWatch and the thread that looks at them.
#include "distributed/rank_watch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include <fmt/format.h>

namespace quire::distributed {
namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 250ms;          // between two signs of life
constexpr auto kLeaveGrace = 1s;       // how much later than the first rank the last one may leave
constexpr auto kLastWords = 200ms;     // until the others have read which rank was lost
constexpr size_t kMostStrangers = 64;  // connections that have not said yet who they are

#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif

void prepare_socket(int fd) {
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
#ifdef SO_NOSIGPIPE
  ::setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
}

int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000));
}

// This machine's addresses: those that other hosts reach, then those of this host alone.
std::vector<std::string> own_addresses() {
  std::vector<std::string> outer, inner;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {"127.0.0.1"};
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN] = "";
    const int family = entry->ifa_addr->sa_family;
    if (family == AF_INET) {
      ::inet_ntop(family, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof text);
    } else if (family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      ::inet_ntop(family, &address, text, sizeof text);
    } else {
      continue;
    }
    ((entry->ifa_flags & IFF_LOOPBACK) != 0 ? inner : outer).emplace_back(text);
  }
  ::freeifaddrs(list);
  outer.resize(std::min(outer.size(), WatchAddress::kMost - std::min(inner.size(), WatchAddress::kMost)));
  outer.insert(outer.end(), inner.begin(), inner.end());
  return outer;
}

// A socket that is connecting to the address; -1 if there is no way there.
int begin_connect(const char* address, uint16_t port) {
  sockaddr_storage to{};
  socklen_t size = 0;
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(&to); ::inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    size = sizeof *v4;
  } else if (auto* v6 = reinterpret_cast<sockaddr_in6*>(&to); ::inet_pton(AF_INET6, address, &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    size = sizeof *v6;
  } else {
    return -1;
  }
  const int fd = ::socket(to.ss_family, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  prepare_socket(fd);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), size) == 0 || errno == EINPROGRESS) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

// Every message has this size, so that no length is ever read from a connection.
struct RankWatch::Message {
  enum class Kind : uint32_t { kHello = 1, kWelcome, kAlive, kLeft, kAllLeft, kLost };

  char token[16] = {};  // of hello and welcome
  Kind kind = Message::Kind::kAlive;
  int32_t rank = -1;
  Loss why = Loss::kEnded;
  uint8_t unused[7] = {};
  metrics::RankTotals report = {};  // with kAlive

  enum class Read { kNone, kOne, kClosed };
  // The next message, once all of it is there.
  Read read(int fd) {
    ssize_t got = 0;
    do {
      got = ::recv(fd, this, sizeof *this, MSG_PEEK);
    } while (got < 0 && errno == EINTR);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) return Read::kClosed;
    if (got != sizeof *this) return Read::kNone;
    return ::recv(fd, this, sizeof *this, 0) == sizeof *this ? Read::kOne : Read::kClosed;
  }
  // A message that finds no room is left out: the peer has read nothing for long, and is about to be lost.
  bool write(int fd) const {
    const ssize_t sent = ::send(fd, this, sizeof *this, kNoSignal);
    if (sent > 0 && sent != sizeof *this) ::shutdown(fd, SHUT_RDWR);  // the next one could not be understood
    return sent == sizeof *this;
  }
};

RankWatch::RankWatch(int rank, int size)
    : rank_(rank), size_(size), left_(static_cast<size_t>(size), false), reports_(static_cast<size_t>(size)) {
  QUIRE_CHECK(::pipe(wake_) == 0);
  for (const int end : wake_) ::fcntl(end, F_SETFD, FD_CLOEXEC);
}

RankWatch::~RankWatch() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    [[maybe_unused]] const ssize_t written = ::write(wake_[1], "", 1);
    thread_.join();
  }
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0) ::close(peer.fd);
  }
  for (const int fd : {listener_, wake_[0], wake_[1]}) {
    if (fd >= 0) ::close(fd);
  }
}

Result<std::unique_ptr<RankWatch>> RankWatch::listen(int size, WatchAddress& address) {
  std::unique_ptr<RankWatch> out(new RankWatch(0, size));
  // One socket for both families, or for IPv4 alone on a machine without the other.
  int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  const int off = 0;
  if (fd < 0 || ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0 ||
      ::bind(fd, reinterpret_cast<const sockaddr*>(&any6), sizeof any6) != 0) {
    if (fd >= 0) ::close(fd);
    fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0) {
      ::close(fd);
      fd = -1;
    }
  }
  if (fd < 0 || ::listen(fd, std::max(size, 128)) != 0) {
    if (fd >= 0) ::close(fd);
    return unavailable(fmt::format("rank 0 cannot listen for the other ranks: {}", std::strerror(errno)));
  }
  prepare_socket(fd);
  out->listener_ = fd;
  sockaddr_in6 bound{};
  socklen_t bound_size = sizeof bound;
  QUIRE_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bound_size) == 0);
  address = {};
  address.port = ntohs(bound.sin6_port);  // at the same place in both families
  std::random_device random;
  for (char& byte : address.token) byte = static_cast<char>(random());
  std::memcpy(out->token_, address.token, sizeof out->token_);
  for (const std::string& text : own_addresses()) {
    if (address.count == WatchAddress::kMost) break;
    std::strncpy(address.addresses[address.count++], text.c_str(), sizeof address.addresses[0] - 1);
  }
  return out;
}

Result<std::unique_ptr<RankWatch>> RankWatch::connect(int rank, int size, const WatchAddress& address,
                                                      std::chrono::duration<double> limit) {
  std::unique_ptr<RankWatch> out(new RankWatch(rank, size));
  std::memcpy(out->token_, address.token, sizeof out->token_);
  Message hello{.kind = Message::Kind::kHello, .rank = rank};
  std::memcpy(hello.token, address.token, sizeof hello.token);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
  std::string tried;
  std::vector<pollfd> waiting;
  for (size_t i = 0; i < std::min<size_t>(address.count, WatchAddress::kMost); ++i) {
    tried += (tried.empty() ? "" : ", ") + std::string(address.addresses[i]);
    const int fd = begin_connect(address.addresses[i], address.port);
    if (fd >= 0) waiting.push_back({fd, POLLOUT, 0});
  }
  int found = -1;
  while (found < 0 && !waiting.empty() && Clock::now() < deadline) {
    ::poll(waiting.data(), waiting.size(), milliseconds_until(deadline));
    for (pollfd& entry : waiting) {
      if (entry.revents == 0 || found >= 0) continue;
      bool failed = false;
      if (entry.events == POLLOUT) {  // connected, or refused
        failed = !hello.write(entry.fd);
        entry.events = POLLIN;
      } else {
        Message answer;
        const Message::Read read = answer.read(entry.fd);
        failed = read == Message::Read::kClosed;
        if (read == Message::Read::kOne) {
          failed =
              answer.kind != Message::Kind::kWelcome || std::memcmp(answer.token, hello.token, sizeof hello.token) != 0;
          if (!failed) found = entry.fd;
        }
      }
      if (failed) {
        ::close(entry.fd);
        entry.fd = -1;  // which poll() ignores
      }
    }
    std::erase_if(waiting, [](const pollfd& entry) { return entry.fd < 0; });
  }
  for (const pollfd& entry : waiting) {
    if (entry.fd != found) ::close(entry.fd);
  }
  if (found < 0) {
    return unavailable(
        fmt::format("rank {} cannot reach rank 0 on port {} of {}: let the hosts connect to each other on every port, "
                    "as Open MPI needs it, too",
                    rank, address.port, tried.empty() ? "any address" : tried));
  }
  out->peers_.push_back({0, found, Clock::now()});
  return out;
}

// Rank 0: one connection from each of the others.
Status RankWatch::accept_all(Clock::time_point deadline) {
  std::vector<int> strangers;
  std::vector<int> by_rank(static_cast<size_t>(size_), -1);
  int missing = size_ - 1;
  while (missing > 0 && Clock::now() < deadline) {
    std::vector<pollfd> waiting = {{listener_, POLLIN, 0}};
    for (const int fd : strangers) waiting.push_back({fd, POLLIN, 0});
    ::poll(waiting.data(), waiting.size(), milliseconds_until(deadline));
    if (waiting[0].revents != 0) {
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd >= 0) {
        prepare_socket(fd);
        strangers.push_back(fd);
      }
      if (strangers.size() > kMostStrangers + static_cast<size_t>(size_)) {
        ::close(strangers.front());
        strangers.erase(strangers.begin());
        continue;
      }
    }
    for (size_t i = 1; i < waiting.size(); ++i) {
      Message hello;
      if (waiting[i].revents == 0) continue;
      const Message::Read read = hello.read(waiting[i].fd);
      if (read == Message::Read::kNone) continue;
      std::erase(strangers, waiting[i].fd);
      const bool known = read == Message::Read::kOne && hello.kind == Message::Kind::kHello &&
                         std::memcmp(hello.token, token_, sizeof token_) == 0 && hello.rank > 0 && hello.rank < size_ &&
                         by_rank[static_cast<size_t>(hello.rank)] < 0;
      Message welcome{.kind = Message::Kind::kWelcome, .rank = 0};
      std::memcpy(welcome.token, token_, sizeof token_);
      if (!known || !welcome.write(waiting[i].fd)) {
        ::close(waiting[i].fd);
        continue;
      }
      by_rank[static_cast<size_t>(hello.rank)] = waiting[i].fd;
      --missing;
    }
  }
  for (const int fd : strangers) ::close(fd);
  int absent = -1;
  for (int r = 1; r < size_; ++r) {
    const int fd = by_rank[static_cast<size_t>(r)];
    if (fd < 0) absent = absent < 0 ? r : absent;
    if (fd >= 0) peers_.push_back({r, fd, Clock::now()});
  }
  if (absent >= 0) return unavailable(fmt::format("rank {} did not connect to rank 0 in time", absent));
  return {};
}

Status RankWatch::start(std::chrono::duration<double> limit, std::chrono::duration<double> silence, OnLost on_lost) {
  if (rank_ == 0) QUIRE_TRY(accept_all(Clock::now() + std::chrono::duration_cast<Clock::duration>(limit)));
  if (listener_ >= 0) ::close(listener_);
  listener_ = -1;
  silence_ = std::chrono::duration_cast<Clock::duration>(silence);
  on_lost_ = std::move(on_lost);
  thread_ = std::thread([this] { run(); });
  return {};
}

void RankWatch::run() {
  auto next_beat = Clock::now();
  auto before = next_beat;
  for (;;) {
    std::vector<pollfd> waiting = {{wake_[0], POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const Peer& peer : peers_) waiting.push_back({peer.fd, POLLIN, 0});  // -1 is ignored
    }
    ::poll(waiting.data(), waiting.size(), milliseconds_until(next_beat));
    std::unique_lock lock(mutex_);
    if (stop_) return;
    const auto now = Clock::now();
    std::optional<Lost> lost;
    for (size_t i = 0; i < peers_.size(); ++i) {
      // After a pause of this process the silence of the others was its own.
      if (now - before > 4 * kBeat) peers_[i].heard = now;
      if (waiting[i + 1].revents == 0 || peers_[i].fd < 0) continue;
      const std::optional<Lost> here = read_peer(peers_[i]);
      if (!lost) lost = here;
    }
    before = now;
    if (now >= next_beat) {
      Message alive{.kind = Message::Kind::kAlive, .rank = rank_};
      if (report_ && rank_ > 0) alive.report = report_();
      to_peers(alive);
      next_beat = now + kBeat;
    }
    if (!lost) lost = judge(now);
    if (!lost) continue;
    last_words(*lost);
    lock.unlock();
    on_lost_(lost->rank, lost->why);
    return;
  }
}

std::optional<RankWatch::Lost> RankWatch::read_peer(Peer& peer) {
  for (;;) {
    Message message;
    switch (message.read(peer.fd)) {
      case Message::Read::kNone:
        return {};
      case Message::Read::kClosed:
        return on_closed(peer);
      case Message::Read::kOne:
        peer.heard = Clock::now();
        if (const auto lost = on_message(message)) return lost;
    }
  }
}

std::optional<RankWatch::Lost> RankWatch::on_message(const Message& message) {
  if (message.rank < 0 || message.rank >= size_) return {};
  switch (message.kind) {
    case Message::Kind::kLeft:
      if (rank_ == 0) to_peers(message, message.rank);
      mark_left(message.rank);
      return {};
    case Message::Kind::kAllLeft:
      all_left_ = true;
      changed_.notify_all();
      return {};
    case Message::Kind::kLost:
      return gone(message.rank, message.why);
    case Message::Kind::kAlive:
      reports_[static_cast<size_t>(message.rank)] = message.report;
      return {};
    default:
      return {};
  }
}

std::optional<RankWatch::Lost> RankWatch::on_closed(Peer& peer) {
  ::close(peer.fd);
  peer.fd = -1;
  const bool left = left_[static_cast<size_t>(peer.rank)];
  // A rank that left may end as soon as all have; rank 0 ends when it has said so.
  if (all_left_ || (rank_ == 0 && left)) return {};
  return gone(peer.rank, left ? Loss::kLeft : Loss::kEnded);
}

std::optional<RankWatch::Lost> RankWatch::judge(Clock::time_point now) {
  if (all_left_) return {};
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0 && now - peer.heard > silence_) return gone(peer.rank, Loss::kSilent);
  }
  if (left_[static_cast<size_t>(rank_)] || first_left_ == Clock::time_point{} || now - first_left_ < kLeaveGrace)
    return {};
  const auto first = std::find(left_.begin(), left_.end(), true);
  return gone(static_cast<int>(first - left_.begin()), Loss::kLeft);
}

// A rank that is leaving needs no other any more; it only learns that not all of them left in order.
std::optional<RankWatch::Lost> RankWatch::gone(int rank, Loss why) {
  if (!left_[static_cast<size_t>(rank_)]) return Lost{rank, why};
  broken_ = true;
  changed_.notify_all();
  return {};
}

void RankWatch::mark_left(int rank) {
  if (first_left_ == Clock::time_point{}) first_left_ = Clock::now();
  left_[static_cast<size_t>(rank)] = true;
  if (rank_ != 0 || std::find(left_.begin(), left_.end(), false) != left_.end()) return;
  to_peers({.kind = Message::Kind::kAllLeft, .rank = 0});
  all_left_ = true;
  changed_.notify_all();
}

void RankWatch::to_peers(const Message& message, int except) {
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0 && peer.rank != except) message.write(peer.fd);
  }
}

// Lets the others read which rank was lost, before this process ends: a connection that is closed with bytes unread
// would take the last message with it.
void RankWatch::last_words(const Lost& lost) {
  to_peers({.kind = Message::Kind::kLost, .rank = lost.rank, .why = lost.why}, lost.rank);
  const auto deadline = Clock::now() + kLastWords;
  std::vector<pollfd> waiting;
  for (const Peer& peer : peers_) {
    if (peer.fd < 0 || peer.rank == lost.rank) continue;
    ::shutdown(peer.fd, SHUT_WR);
    waiting.push_back({peer.fd, POLLIN, 0});
  }
  while (!waiting.empty() && Clock::now() < deadline) {
    ::poll(waiting.data(), waiting.size(), milliseconds_until(deadline));
    std::erase_if(waiting, [](const pollfd& entry) {
      Message ignored;
      return entry.revents != 0 && ignored.read(entry.fd) == Message::Read::kClosed;
    });
  }
}

void RankWatch::tell_lost(int rank, Loss why) {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  last_words({rank, why});
}

void RankWatch::set_report(std::function<metrics::RankTotals()> report) {
  const std::lock_guard lock(mutex_);
  report_ = std::move(report);
}

std::vector<metrics::RankTotals> RankWatch::reports() const {
  const std::lock_guard lock(mutex_);
  std::vector<metrics::RankTotals> out = reports_;
  if (report_) out[static_cast<size_t>(rank_)] = report_();
  return out;
}

std::optional<RankWatch::Quiet> RankWatch::quiet() const {
  const std::lock_guard lock(mutex_);
  std::optional<Quiet> out;
  for (const Peer& peer : peers_) {
    const double seconds = std::chrono::duration<double>(Clock::now() - peer.heard).count();
    if (peer.fd >= 0 && (!out || seconds > out->seconds)) out = Quiet{peer.rank, seconds};
  }
  return out;
}

bool RankWatch::leave() {
  std::unique_lock lock(mutex_);
  left_[static_cast<size_t>(rank_)] = true;
  to_peers({.kind = Message::Kind::kLeft, .rank = rank_});
  mark_left(rank_);
  changed_.wait(lock, [this] { return all_left_ || broken_; });
  return !broken_;
}

std::string describe(Loss why, double seconds) {
  switch (why) {
    case Loss::kEnded:
      return "ended";
    case Loss::kSilent:
      return fmt::format("has not answered for {:g} s (it is stopped, or its host or network is down)", seconds);
    case Loss::kLeft:
      return "left the group";
    case Loss::kStalled:
      return fmt::format("did not do its part within {:g} s", seconds);
    case Loss::kDeviceStalled:
      return fmt::format("has a GPU that did not finish a step within {:g} s", seconds);
  }
  return "was lost";
}

}  // namespace quire::distributed
