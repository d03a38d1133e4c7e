// SPDX-License-Identifier: Apache-2.0
// Gathers between ranks that each have a device: the emulator's, through the host's memory or by copies.
#include "backend/gpu/exchange.h"

#include <cmath>
#include <thread>

#include "backend/gpu/test_device.h"
#include "ops/rank_ops.h"

namespace quire::gpu {
namespace {

// So little that most gathers take several calls.
constexpr size_t kStaging = 2048;

// Runs `rank` on a thread with a device for each of `size` ranks; with `copied`, through make_copied_group().
template <typename Rank>
void on_ranks(int size, bool copied, const Rank& rank) {
  std::vector<std::unique_ptr<distributed::Group>> groups = distributed::make_thread_group(size);
  std::vector<std::jthread> threads;
  for (const std::unique_ptr<distributed::Group>& group : groups) {
    threads.emplace_back([&rank, &group, copied] {
      TestDevice device(group->rank());
      auto exchange = GpuExchange::make(
          device.ops(),
          copied || !on_emulator() ? make_copied_group(device.device(), *group) : make_shared_memory_group(*group),
          kStaging);
      rank(device, **exchange, group->rank());
      device.ops().synchronise();
      group->barrier();
      device.clear();
    });
  }
}

// The value of an element, which every type holds exactly.
float value(int64_t row, int64_t column) {
  return static_cast<float>((row * 31 + column * 7) % 251);
}
HostMatrix columns_of(int64_t rows, int64_t first, int64_t cols, DType type, int64_t gap) {
  HostMatrix out(rows, cols, type, 1, 2.0f, gap);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) out.at(r, c) = value(r, first + c);
  }
  return out;
}

TEST(GpuExchange, PutsColumnsSideBySide) {
  struct Shape {
    int64_t rows, cols, all;  // cols: of a rank
    int64_t gap;
  };
  const Shape shapes[] = {{1, 64, 192, 0}, {1, 5, 15, 0},  {7, 32, 96, 0},
                          {7, 32, 96, 8},  {9, 11, 31, 3}, {40, 16, 48, 16}};
  for (const bool copied : {false, true}) {
    on_ranks(3, copied, [&](TestDevice& device, Exchange& exchange, int rank) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        for (const Shape& s : shapes) {
          for (const int root : {distributed::Group::kEvery, 1}) {
            const Tensor mine = device.put(columns_of(s.rows, rank * s.cols, s.cols, type, s.gap));
            const Tensor all = device.room(s.rows, s.all, type);
            exchange.gather_columns(mine, all, root);
            if (root >= 0 && root != rank) continue;
            const std::vector<float> got = floats_of(device.rows_of(all), type);
            for (size_t i = 0; i < got.size(); ++i) {
              const auto at = static_cast<int64_t>(i);
              ASSERT_EQ(got[i], value(at / s.all, at % s.all)) << s.rows << "x" << s.cols << ", element " << i;
            }
          }
        }
      }
    });
  }
}

TEST(GpuExchange, TakesEachRowFromItsOwner) {
  constexpr int64_t kWidth = 5;
  const std::vector<int32_t> ids = {0, 14, 7, 5, 4, 9, 10, 11, 3, 13, 12, 6, 2};
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t cols : {32, 19}) {
      on_ranks(3, false, [&](TestDevice& device, Exchange& exchange, int rank) {
        const auto rows = static_cast<int64_t>(ids.size());
        const int32_t* on_device = device.put(ids);
        const std::span<const int32_t> all_ids(on_device, ids.size());
        auto* own = const_cast<int32_t*>(device.put(std::vector<int32_t>(ids.size(), -7)));
        device.ops().own_ids({all_ids, kWidth, rank, -1, own});
        HostMatrix x(rows, cols, type, 1, 2.0f, 0);
        for (int64_t r = 0; r < rows; ++r) {
          const bool mine = ids[static_cast<size_t>(r)] / kWidth == rank;
          for (int64_t c = 0; c < cols; ++c) x.at(r, c) = mine ? value(r, c) : -1;
        }
        const Tensor rows_of_all = device.put(x);
        exchange.gather_rows(rows_of_all, all_ids, kWidth);
        const std::vector<float> got = floats_of(device.rows_of(rows_of_all), type);
        const std::vector<uint8_t> bytes = device.get(own, ids.size() * 4);
        for (size_t r = 0; r < ids.size(); ++r) {
          int32_t id = 0;
          std::memcpy(&id, bytes.data() + 4 * r, 4);
          ASSERT_EQ(id, ids[r] / kWidth == rank ? ids[r] - rank * kWidth : -1);
          for (int64_t c = 0; c < cols; ++c) {
            ASSERT_EQ(got[r * static_cast<size_t>(cols) + static_cast<size_t>(c)], value(static_cast<int64_t>(r), c));
          }
        }
      });
    }
  }
}

// Each rank gets its columns of every row, from the row's owner, also where the bits are those of a negative zero.
TEST(GpuExchange, DividesRowsOfOwnersByColumns) {
  constexpr int64_t kWidth = 5;
  const std::vector<int32_t> ids = {0, 14, 7, 5, 4, 9, 10, 11, 3, 13, 12, 6, 2};
  for (const bool copied : {false, true}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const int64_t cols : {96, 15}) {
        on_ranks(3, copied, [&](TestDevice& device, Exchange& exchange, int rank) {
          const auto rows = static_cast<int64_t>(ids.size());
          HostMatrix x(rows, cols, type, 1, 2.0f, 0);
          for (int64_t r = 0; r < rows; ++r) {
            const bool mine = ids[static_cast<size_t>(r)] / kWidth == rank;
            for (int64_t c = 0; c < cols; ++c) x.at(r, c) = !mine ? -1 : c == 1 ? -0.0f : value(r, c);
          }
          const Tensor all = device.put(x), some = device.room(rows, cols / 3, type, 0);
          exchange.scatter_rows(all, {device.put(ids), ids.size()}, kWidth, some);
          const std::vector<float> got = floats_of(device.rows_of(some), type);
          for (size_t i = 0; i < got.size(); ++i) {
            const int64_t row = static_cast<int64_t>(i) / (cols / 3);
            const int64_t column = static_cast<int64_t>(i) % (cols / 3) + rank * (cols / 3);
            const float want = column == 1 ? -0.0f : value(row, column);
            ASSERT_EQ(got[i], want) << row << ", " << column;
            ASSERT_EQ(std::signbit(got[i]), std::signbit(want)) << row << ", " << column;
          }
        });
      }
    }
  }
}

TEST(GpuExchange, MovesRowsFromRankToRank) {
  for (const bool copied : {false, true}) {
    on_ranks(2, copied, [](TestDevice& device, Exchange& exchange, int rank) {
      const Tensor rows = device.put(columns_of(3, rank * 100, 20, DType::kF32, 0));
      const Tensor others = device.room(3, 20, DType::kF32, 0);
      exchange.send(rows, 1 - rank);
      exchange.receive(others, 1 - rank);
      exchange.broadcast(rows.data, 3 * 20 * 4, 1);
      const std::vector<float> got = floats_of(device.rows_of(others), DType::kF32);
      const std::vector<float> root = floats_of(device.rows_of(rows), DType::kF32);
      for (size_t i = 0; i < got.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        ASSERT_EQ(got[i], value(at / 20, (1 - rank) * 100 + at % 20));
        ASSERT_EQ(root[i], value(at / 20, 100 + at % 20));
      }
    });
  }
}

}  // namespace
}  // namespace quire::gpu
