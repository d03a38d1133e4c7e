// SPDX-License-Identifier: Apache-2.0
// The exchange of backends whose memory is the host's.
#include "backend/exchange.h"

#include <vector>

#include "backend/backend.h"

namespace quire {
namespace {

distributed::Rows rows_of(const Tensor& t) {
  return {static_cast<std::byte*>(t.data), t.rows, row_bytes(t.dtype, t.cols), row_bytes(t.dtype, t.stride)};
}
std::span<std::byte> bytes_of(const Tensor& t) {
  QUIRE_CHECK(t.stride == t.cols || t.rows <= 1);
  return {static_cast<std::byte*>(t.data), static_cast<size_t>(t.rows * row_bytes(t.dtype, t.cols))};
}

class HostExchange final : public Exchange {
 public:
  explicit HostExchange(distributed::Group& group) : group_(group) {}

  void gather_columns(const Tensor& mine, const Tensor& all, int root) override {
    group_.gather_columns(rows_of(mine), rows_of(all), root);
  }
  void gather_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width) override {
    owner_.resize(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) owner_[i] = static_cast<int32_t>(ids[i] / width);
    group_.gather_rows(rows_of(x), owner_);
  }
  void broadcast(void* data, size_t bytes, int root) override {
    group_.broadcast({static_cast<std::byte*>(data), bytes}, root);
  }
  void send(const Tensor& x, int to) override { group_.send(bytes_of(x), to); }
  void receive(const Tensor& x, int from) override { group_.receive(bytes_of(x), from); }

 private:
  distributed::Group& group_;
  std::vector<int32_t> owner_;
};

}  // namespace

Result<std::unique_ptr<Exchange>> Backend::join(distributed::Group& group, bool /*gathers*/) {
  QUIRE_CHECK(host_memory(), "a device has an exchange of its own");
  return std::unique_ptr<Exchange>(std::make_unique<HostExchange>(group));
}

}  // namespace quire
