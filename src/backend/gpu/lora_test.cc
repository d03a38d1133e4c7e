// SPDX-License-Identifier: Apache-2.0
// lora on a GPU, against doubles; and the same bits in any mixture of adapters.
#include "backend/gpu/test_device.h"
#include "backend/testing/lora_cases.h"

namespace quire::gpu {
namespace {

using cases::LoraCase;
using cases::LoraMixture;

// The rows [first, first + out.rows) of the mixture, with the adapters added to `out`.
std::vector<uint8_t> run(TestDevice& device, const LoraCase& c, const HostMatrix& x, const LoraMixture& mixture,
                         const HostMatrix& out, int64_t first = 0) {
  LoraRows rows = mixture.list(first);
  rows.rows = {device.put(mixture.rows), mixture.rows.size()};
  rows.slots = {device.put(mixture.slots), mixture.slots.size()};
  rows.runs = {device.put(mixture.runs), mixture.runs.size()};
  const LoraMemory memory{device.put(c.memory), c.slot_bytes, c.dtype};
  const Tensor in = device.put(x).some_rows(first, out.rows), to = device.put(out);
  const Tensor t = device.room(out.rows, device.ops().lora_spans(c.k) * c.most_rank, DType::kF32);
  device.ops().lora({in, {}, memory, rows, LoraCase::kSite, t, to, c.most_rank});
  return device.rows_of(to, false);
}

TEST(GpuLora, IsCloseToDoublesAndHasTheSameBitsInAnyMixture) {
  for (const DType type : kTypes) {
    for (const DType out_type : {type, DType::kF32}) {
      const int64_t k = out_type == type ? 77 : 600;  // one span of x, and several
      const LoraCase c(k, 300, type);
      const HostMatrix x(30, k, type, 5), before(30, 300, out_type, 6);
      const LoraMixture mixture(30, 7);
      const std::vector<uint8_t> whole = run(test_device(), c, x, mixture, before);
      EXPECT_EQ(run(test_device(1), c, x, mixture, before), whole) << "another order of lanes";
      const std::vector<float> got = floats_of(whole, out_type);
      const auto row_bytes = static_cast<ptrdiff_t>(whole.size()) / 30;
      for (int64_t r = 0; r < 30; ++r) {
        const int32_t slot = mixture.slots_by_row[static_cast<size_t>(r)];
        std::vector<double> want(300), size(300, 0.0);
        for (int64_t n = 0; n < 300; ++n) want[static_cast<size_t>(n)] = double{before.at(r, n)};
        c.add(slot, x.part(r, 0, k).data(), want.data(), size.data());
        for (size_t n = 0; n < 300; ++n) {
          expect_close(got[static_cast<size_t>(r) * 300 + n], want[n], out_type, size[n] + std::fabs(want[n]), 120,
                       std::string(name(type)) + " row " + std::to_string(r));
        }
        std::vector<int32_t> only(30, -1);
        only[static_cast<size_t>(r)] = slot;
        const std::vector<uint8_t> alone = run(test_device(), c, x, LoraMixture(only), before);
        EXPECT_TRUE(std::equal(alone.begin() + r * row_bytes, alone.begin() + (r + 1) * row_bytes,
                               whole.begin() + r * row_bytes))
            << "row " << r << " alone";
      }
      HostMatrix some(11, 300, out_type, 6);
      std::copy_n(before.values.begin() + 13 * before.stride, 11 * before.stride, some.values.begin());
      const std::vector<uint8_t> part = run(test_device(), c, x, mixture, some, 13);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 13 * row_bytes)) << "a part of the rows";
      test_device().clear();
      test_device(1).clear();
    }
  }
}

TEST(GpuLora, LooksUpRowsByToken) {
  for (const DType type : kTypes) {
    const LoraCase c(50, 90, type);
    const std::vector<int32_t> tokens = {0, 49, 7, 7, 12};
    HostMatrix one_hot(5, 50, type, 3);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t i = 0; i < 50; ++i) one_hot.at(r, i) = i == tokens[static_cast<size_t>(r)] ? 1.0f : 0.0f;
    }
    const HostMatrix before(5, 90, DType::kF32, 6);
    const LoraMixture mixture(std::vector<int32_t>{2, 0, 1, -1, 1});
    TestDevice& device = test_device();
    const std::vector<uint8_t> want = run(device, c, one_hot, mixture, before);
    LoraRows rows = mixture.list();
    rows.rows = {device.put(mixture.rows), 5};
    rows.slots = {device.put(mixture.slots), 5};
    rows.runs = {device.put(mixture.runs), mixture.runs.size()};
    const LoraMemory memory{device.put(c.memory), c.slot_bytes, c.dtype};
    const Tensor out = device.put(before), t = device.room(5, c.most_rank, DType::kF32);
    const Tensor vocabulary{nullptr, type, 0, 50, 50};
    device.ops().lora({vocabulary, {device.put(tokens), 5}, memory, rows, LoraCase::kSite, t, out, c.most_rank});
    EXPECT_EQ(device.rows_of(out, false), want) << name(type);
    device.clear();
  }
}

}  // namespace
}  // namespace quire::gpu
