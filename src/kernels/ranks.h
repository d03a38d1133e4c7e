// SPDX-License-Identifier: Apache-2.0
// What ranks do before and after they exchange rows: join_blocks, owned_rows, own_blocks and own_ids. All but the last
// copy units of 2, 4 or 16 bytes, whatever the type.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/params/ranks.h"

// Blocks of columns, one from each rank, side by side: out[row][block * cols + c] = in[block][row][c].
template <typename Unit>
struct JoinBlocks {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const JoinBlocksParams& p, TGROUP Smem& sm, DEVICE Unit* out,
                     DEVICE const Unit* in) {
    const uint index = c.tgx * (uint)kElementThreads + c.tid;
    const int column = (int)(index % (uint)p.cols);
    const uint rest = index / (uint)p.cols;
    const int block = (int)(rest % (uint)p.blocks), row = (int)(rest / (uint)p.blocks);
    const int to = block * p.cols + column;
    if (row >= p.rows || to >= p.out_cols) return;
    out[row * p.out_stride + to] = in[block * p.in_block + row * p.in_stride + column];
  }
};
KERNEL(join_blocks_2, JoinBlocks<ushort>, JoinBlocksParams, ushort, const ushort)
KERNEL(join_blocks_4, JoinBlocks<uint>, JoinBlocksParams, uint, const uint)
KERNEL(join_blocks_16, JoinBlocks<uint4>, JoinBlocksParams, uint4, const uint4)

// Each row from the rank that owns its id: out[row] = in[ids[row] / width][row].
template <typename Unit>
struct OwnedRows {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const OwnedRowsParams& p, TGROUP Smem& sm, DEVICE Unit* out, DEVICE const Unit* in,
                     DEVICE const int* ids) {
    if ((int)c.tgx >= p.rows) return;
    DEVICE Unit* to = out + (i64)c.tgx * p.out_stride;
    DEVICE const Unit* from = in + (i64)(ids[c.tgx] / p.width) * p.in_block + (i64)c.tgx * p.in_stride;
    for (int i = (int)c.tid; i < p.cols; i += kThreads) to[i] = from[i];
  }
};
KERNEL(owned_rows_2, OwnedRows<ushort>, OwnedRowsParams, ushort, const ushort, const int)
KERNEL(owned_rows_4, OwnedRows<uint>, OwnedRowsParams, uint, const uint, const int)
KERNEL(owned_rows_16, OwnedRows<uint4>, OwnedRowsParams, uint4, const uint4, const int)

// A block of columns for each rank, one block after the other, with zeros in the rows that another rank owns:
// out[block][row][c] = in[row][block * cols + c], or 0.
template <typename Unit>
struct OwnBlocks {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const OwnBlocksParams& p, TGROUP Smem& sm, DEVICE Unit* out, DEVICE const Unit* in,
                     DEVICE const int* ids) {
    const uint index = c.tgx * (uint)kElementThreads + c.tid;
    const int column = (int)(index % (uint)p.cols);
    const uint rest = index / (uint)p.cols;
    const int row = (int)(rest % (uint)p.rows), block = (int)(rest / (uint)p.rows);
    if (block >= p.blocks) return;
    Unit value = Unit();
    if (ids[row] / p.width == p.rank) value = in[row * p.in_stride + block * p.cols + column];
    out[index] = value;
  }
};
KERNEL(own_blocks_2, OwnBlocks<ushort>, OwnBlocksParams, ushort, const ushort, const int)
KERNEL(own_blocks_4, OwnBlocks<uint>, OwnBlocksParams, uint, const uint, const int)
KERNEL(own_blocks_16, OwnBlocks<uint4>, OwnBlocksParams, uint4, const uint4, const int)

// The contract is in ops/rank_ops.h.
struct OwnIds {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const OwnIdsParams& p, TGROUP Smem& sm, DEVICE int* out, DEVICE const int* ids) {
    const int i = (int)(c.tgx * (uint)kElementThreads + c.tid);
    if (i >= p.count) return;
    const int owner = ids[i] / p.width;
    out[i] = owner == p.rank ? ids[i] - owner * p.width : p.other;
  }
};
KERNEL(own_ids, OwnIds, OwnIdsParams, int, const int)
