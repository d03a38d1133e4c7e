// SPDX-License-Identifier: Apache-2.0
// lora on the CPU: rows in blocks of one adapter, and blocks or panels of blocks over threads.
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/lora_plan.h"

namespace quire::cpu {
namespace {

constexpr int64_t kExpandPanels = 32;  // of a piece of work

// The blocks of the rows that are among the first `num_rows` behind rows.first; those of adapters without this site are
// left out.
void plan_blocks(const LoraMemory& memory, const LoraRows& rows, int64_t site, int64_t num_rows,
                 std::vector<LoraBlock>& out) {
  out.clear();
  int32_t slot = -1;
  LoraSite found;
  for (int64_t i = 0; i < rows.num_adapted; ++i) {
    const int64_t row = rows.rows[static_cast<size_t>(i)] - rows.first;
    if (row < 0 || row >= num_rows) continue;
    const int32_t now = rows.slots[static_cast<size_t>(i)];
    const std::byte* at = memory.data + now * memory.slot_bytes;
    const bool other = now != slot;
    if (other) {
      slot = now;
      std::memcpy(&found, at + site * static_cast<int64_t>(sizeof found), sizeof found);
    }
    if (found.rank == 0) continue;
    if (other || out.back().count == kLoraRows) out.push_back({at, found});
    LoraBlock& block = out.back();
    block.rows[block.count++] = row;
  }
}

LoraSlice slice_of(const LoraBlock& block, int32_t index, int64_t columns) {
  LoraSlice slice;
  std::memcpy(&slice, block.slot + block.site.slices + index * static_cast<int64_t>(sizeof slice), sizeof slice);
  QUIRE_CHECK(slice.column + slice.n <= columns && slice.first + slice.rank <= block.site.rank);
  return slice;
}

// Begins to read the first matrix of a block that is next, and its tables: the kernels read ahead only within a matrix.
void read_beginning(const LoraBlock& block) {
  constexpr int64_t kBytes = 2048, kLine = 64;
  for (int64_t i = 0; i < kBytes; i += kLine) __builtin_prefetch(block.slot + block.site.a + i, 0, 2);
  __builtin_prefetch(block.slot + block.site.scales);
  __builtin_prefetch(block.slot + block.site.slices);
}

}  // namespace

void CpuBackend::lora(const LoraArgs& args) {
  check(args);
  check_indices(args);
  check_f32(args.out);
  if (args.tokens.empty()) check_f32(args.x);
  plan_blocks(args.memory, args.rows, args.site, args.out.rows, lora_blocks_);
  run_lora(args);
}

void CpuBackend::run_lora(const LoraArgs& args) {
  if (lora_blocks_.empty()) return;
  if (std::ssize(lora_blocks_) >= pool_.threads()) {
    run_lora_blocks(args);
  } else {
    run_lora_panels(args);
  }
}

// A thread computes both products of a block, whose matrices follow each other in memory.
void CpuBackend::run_lora_blocks(const LoraArgs& args) {
  const auto blocks = std::ssize(lora_blocks_);
  pool_.for_each_piece(blocks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const LoraBlock& block = lora_blocks_[static_cast<size_t>(i)];
      if (const int64_t next = i + pool_.threads(); next < blocks)
        read_beginning(lora_blocks_[static_cast<size_t>(next)]);
      kernels_.lora_shrink(args, block, 0, ceil_div<int64_t>(block.site.rank, kLoraAlign));
      for (int32_t s = 0; s < block.site.num_slices; ++s) {
        const LoraSlice slice = slice_of(block, s, args.out.cols);
        kernels_.lora_expand(args, block, slice, 0, ceil_div<int64_t>(slice.n, kLoraAlign));
      }
    }
  });
}

// With few blocks, threads share the panels of one product, then those of the other.
void CpuBackend::run_lora_panels(const LoraArgs& args) {
  int64_t panels = 0;
  for (const LoraBlock& block : lora_blocks_) panels += ceil_div<int64_t>(block.site.rank, kLoraAlign);
  pool_.for_each_piece(panels, 1, [&](int64_t begin, int64_t end, int) {
    int64_t first = 0;
    for (const LoraBlock& block : lora_blocks_) {
      const int64_t count = ceil_div<int64_t>(block.site.rank, kLoraAlign);
      const int64_t from = std::max(begin - first, int64_t{0}), to = std::min(end - first, count);
      if (from < to) kernels_.lora_shrink(args, block, from, to);
      first += count;
    }
  });
  lora_pieces_.clear();
  for (const LoraBlock& block : lora_blocks_) {
    for (int32_t s = 0; s < block.site.num_slices; ++s) {
      const LoraSlice slice = slice_of(block, s, args.out.cols);
      const int64_t all = ceil_div<int64_t>(slice.n, kLoraAlign);
      for (int64_t p = 0; p < all; p += kExpandPanels) {
        lora_pieces_.push_back({&block, slice, p, std::min(p + kExpandPanels, all)});
      }
    }
  }
  pool_.for_each_piece(std::ssize(lora_pieces_), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const LoraPiece& piece = lora_pieces_[static_cast<size_t>(i)];
      kernels_.lora_expand(args, *piece.block, piece.slice, piece.begin, piece.end);
    }
  });
}

}  // namespace quire::cpu
