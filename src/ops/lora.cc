// SPDX-License-Identifier: Apache-2.0
// The argument checks of lora.
#include "ops/lora.h"

#include <cstring>

namespace quire {
namespace {

LoraSite site_of(const LoraMemory& memory, int32_t slot, int64_t site) {
  LoraSite out;
  std::memcpy(&out, memory.data + slot * memory.slot_bytes + site * static_cast<int64_t>(sizeof out), sizeof out);
  return out;
}

// Calls visit(site) for the adapter of each row that is among the M rows of the call.
template <typename Visitor>
void check_rows(const LoraMemory& memory, const LoraRows& rows, int64_t site, const Visitor& visit) {
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    const bool adapted = i < static_cast<size_t>(rows.num_adapted);
    QUIRE_CHECK(rows.rows[i] >= 0 && (rows.slots[i] >= 0) == adapted);
    if (adapted && (i == 0 || rows.slots[i] != rows.slots[i - 1])) visit(site_of(memory, rows.slots[i], site));
  }
}

}  // namespace

std::vector<LoraRun> list_lora_runs(std::span<const int32_t> slots, int64_t num_slots) {
  std::vector<LoraRun> runs;
  for (size_t i = 0; i < slots.size() && slots[i] >= 0; ++i) {
    const bool other = runs.empty() || runs.back().slot != slots[i] || runs.back().count == kLoraRunRows;
    if (other) runs.push_back({slots[i], static_cast<int32_t>(i), 0});
    ++runs.back().count;
  }
  const int64_t room = num_lora_runs(std::ssize(slots), num_slots);
  QUIRE_CHECK(std::ssize(runs) <= room, "the list has more slots than the memory");
  runs.resize(static_cast<size_t>(room));
  return runs;
}

void check(const LoraArgs& args) {
  const LoraMemory& memory = args.memory;
  QUIRE_CHECK(memory.data != nullptr && memory.slot_bytes > 0 && memory.slot_bytes % 64 == 0 && args.site >= 0);
  QUIRE_CHECK(memory.dtype == DType::kF32 || memory.dtype == DType::kF16 || memory.dtype == DType::kBF16);
  const LoraRows& rows = args.rows;
  QUIRE_CHECK(rows.rows.size() == rows.slots.size() && rows.first >= 0 && rows.num_adapted >= 0 &&
              rows.num_adapted <= std::ssize(rows.rows) && rows.first + args.out.rows <= std::ssize(rows.rows));
  QUIRE_CHECK(args.t.rows == args.out.rows && args.t.dtype == DType::kF32 && args.x.cols > 0);
  QUIRE_CHECK(args.rank > 0 && args.rank % kLoraAlign == 0 && args.rank <= args.t.cols);
  check_shape(args.out, args.out.rows, args.out.cols);
  if (args.tokens.empty()) {
    check_shape(args.x, args.out.rows, args.x.cols);
  } else {
    QUIRE_CHECK(std::ssize(args.tokens) == args.out.rows);
  }
}

void check_indices(const LoraArgs& args) {
  for (const int32_t token : args.tokens) QUIRE_CHECK(token >= 0 && token < args.x.cols);
  check_rows(args.memory, args.rows, args.site,
             [&](const LoraSite& site) { QUIRE_CHECK(lora_padded(site.rank) <= args.rank && site.num_slices >= 0); });
}

}  // namespace quire
