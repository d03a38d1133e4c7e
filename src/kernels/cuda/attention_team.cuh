// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over pages by teams: four or eight warps share one (sequence, KV head, split) (sm_90a).
//
// Equal by memcmp to the portable attention and to attention_decode.cuh, whose rows, scratch and merge it uses;
// attention_common.cuh describes the arithmetic. A team works through its split in pairs of tiles: each warp computes
// the scores of its part of a tile, the warps exchange their maxima, then their weights, and each computes 16 or 32 of
// the head's columns of p V. So no chain is longer than necessary.
//
// One more warp looks for work and loads it: K and V of a tile are stages of a ring, which the copy engine fills. A
// threadgroup takes one (sequence, KV head, split) after the other, a unit of work. That warp requests the tiles of the
// next unit while the team still computes, so that memory does not pause between the two. Threadgroups get the numbers
// of their units from a counter in device memory, which is zero before and after.
//
// Grid: at most seqs * kv_heads * max_splits, and no more than run at once; hopper_team_threads(),
// hopper_team_memory(). D is 64, 128 or 256.
#pragma once

#include "kernels/cuda/attention_common.cuh"
#include "kernels/cuda/wgmma.cuh"

// Requests a box of a map of pages, from a position of a page on.
HOPPER_FN void hopper_page_copy(uint to, const HopperTensorMap* map, int position, int head, int page, uint barrier,
                                unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
      "%4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(map), "r"(0), "r"(position), "r"(0), "r"(head), "r"(page), "r"(barrier), "l"(policy)
      : "memory");
}

// R: positions of a box, 8 or 16.
template <typename T, int D, int R>
struct HopperAttentionTeam {
  enum {
    kRowBytes = D * 2,
    kStage = kHopperTile * kRowBytes,
    kHalf = R * 128,            // from 128 bytes of a box's rows to the next 128
    kSixteen = 16 * kRowBytes,  // from 16 rows to the next
    kBoxes = kHopperTile / R,
    kStages = kHopperTeamStages,
    kKept = kHopperSplit / R / 32,  // boxes of a split whose pages a lane keeps
    kWarps = hopper_team_warps(D),
    kThreads = kWarps * 32,  // without the warp that brings tiles
    kSlice = D / kWarps,     // columns per warp: 16 or 32
    kBlocks = kSlice / 8,
    kParts = kWarps / 2,           // parts of a tile
    kPart = kHopperTile / kParts,  // positions per part
    kEights = kPart / 8,           // groups of eight positions per part
    kQueryStride = D + 8,
    kWeightStride = 2 * kHopperTile + 8
  };
  // What the team must know of a unit.
  struct Unit {
    int token;     // the first query
    int rows;      // queries times heads of the group
    int position;  // of the first query
    int kv_head;
    int split;       // counted from the first one that is seen
    int splits;      // of the sequence
    int start;       // position of the first tile
    int from, last;  // visible positions, counted from there
    int tiles;       // 0: there are no more units
  };
  struct Smem {                    // the ring comes before
    T weights[16][kWeightStride];  // T(p) of two tiles
    T q[2][16][kQueryStride];      // of this unit and the next
    float sums[kWarps][16][4];     // [warp][row][t]: the sums of each warp's part of a tile
    float most[kWarps][16];
    Unit units[2];
    unsigned long long landed[kStages], read[kStages], unit_here[2], unit_read[2];
  };
  static_assert(sizeof(Smem) <= hopper_team_memory(D, 0) - 1024, "as the host counts");

  // A place in the ring, and whether the ring has been around an odd number of times.
  struct Place {
    int slot = 0;
    uint turn = 0;
    HOPPER_METHOD void next(int by) {
      slot += by;
      if (slot == kStages) {
        slot = 0;
        turn ^= 1;
      }
    }
  };

  // Where a row of a tile begins. A tile has its rows box by box: of R rows the first 128 bytes, then their next ones.
  HOPPER_FN uint row_at(int r) { return r / R * R * kRowBytes + r % R * 128; }
  // Where a row has a piece of 16 bytes, counted from there.
  HOPPER_FN uint piece_at(int piece, int r) { return (piece >> 3) * kHalf + (((piece & 7) ^ (r & 7)) << 4); }

  // ---- the warp that brings tiles ----

  // The sequences of this step, 32 at a time, and how many units they have.
  struct Finder {
    const HopperAttentionParams& p;
    int group;
    const int* cu_seqlens;
    const int* context_lens;
    int lane, base = -32;        // the sequence of lane 0
    int before = 0, within = 0;  // units before these sequences, and of them
    int count = 0, upto = 0;     // units of the lane's sequence, and of all up to it
    HopperSequence s = {};

    HOPPER_METHOD void next() {
      before += within;
      base += 32;
      const int seq = base + lane;
      count = 0;
      if (seq < p.seqs) {
        s = hopper_sequence(p, seq, cu_seqlens, context_lens);
        const int rows = s.queries * group;
        if (rows >= p.rows_from && rows <= p.rows_to) count = s.splits * p.kv_heads;
      }
      upto = count;
      UNROLL for (int by = 1; by < 32; by *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, upto, by);
        if (lane >= by) upto += other;
      }
      within = __shfl_sync(0xffffffffu, upto, 31);
    }
    // Finds the unit; numbers must grow. Afterwards `before` is the number of all units if there is no such one.
    HOPPER_METHOD bool find(int number, Unit& unit, int& seq) {
      while (number >= before + within) {
        if (base + 32 >= p.seqs) {
          before += within;
          within = 0;
          return false;
        }
        next();
      }
      const int at = number - before;
      const int from = __ffs(__ballot_sync(0xffffffffu, at < upto)) - 1;
      const int index = at - __shfl_sync(0xffffffffu, upto - count, from);
      const auto of = [&](int v) { return __shfl_sync(0xffffffffu, v, from); };
      const int queries = of(s.queries), context = of(s.context), first_split = of(s.first_split);
      seq = base + from;
      unit.token = of(s.first);
      unit.rows = queries * group;
      unit.position = context - queries;
      unit.kv_head = index % p.kv_heads;
      unit.split = index / p.kv_heads;
      unit.splits = of(s.splits);
      // Tiles before the first visible position are passed over.
      const int split_start = (first_split + unit.split) * kHopperSplit;
      const int low = max(hopper_low(p, unit.position), split_start);
      unit.start = low / kHopperTile * kHopperTile;
      unit.from = low - unit.start;
      unit.last = min(context, split_start + kHopperSplit) - unit.start;
      unit.tiles = (unit.last + kHopperTile - 1) / kHopperTile;
      return true;
    }
  };

  // The page of each of a split's boxes, and where the box begins there: lane i has those of boxes i, i + 32, ...
  struct Pages {
    int page[kKept], position[kKept];
    HOPPER_METHOD void load(const HopperTeamParams& p, const Unit& unit, const int* blocks, int lane) {
      UNROLL for (int i = 0; i < kKept; i++) {
        const int at = (32 * i + lane) * R;
        const int size = p.attention.block_size, from = unit.start + at;
        const int block = p.block_shift >= 0 ? from >> p.block_shift : from / size;
        page[i] = at + R > unit.from && at < unit.last ? blocks[block] : 0;
        position[i] = from - block * size;
      }
    }
    // What is kept for a box, in all lanes.
    HOPPER_METHOD int of(const int (&kept)[kKept], int box) const {
      int here = kept[0];
      UNROLL for (int i = 1; i < kKept; i++) here = box >= 32 * i ? kept[i] : here;
      return __shfl_sync(0xffffffffu, here, box & 31);
    }
  };

  // Brings K of the first pair of tiles, and then by turns K of the next pair and V of this one.
  HOPPER_FN void bring(const HopperTeamParams& p, Smem& sm, uint ring, const T* q, const int* block_tables,
                       const int* cu_seqlens, const int* context_lens, uint* counter, int lane) {
    const HopperAttentionParams& a = p.attention;
    const unsigned long long policy = hopper_read_once();
    const int group = p.group;
    if (lane == 0) {
      hopper_prefetch_map(&p.k);
      hopper_prefetch_map(&p.v);
    }
    Finder finder = {a, group, cu_seqlens, context_lens, lane};
    bool waited = !a.early;  // for the launch before this one
    if (waited) ptx_grid_wait();
    Place place;
    Unit unit, next_unit;
    Pages pages, next_pages;
    int number = -1;          // of the unit, among those of this threadgroup
    int drawn = 0;            // in lane 0: what came from the counter
    int step = 0, end = 0;    // of the unit: two tiles of K and two of V by turns
    int stages = 0, old = 0;  // of the unit: stages so far, tiles without a position of this step
    bool begun = true;        // the unit's queries are requested
    bool found = true;        // the next unit is known
    int seq = 0;              // of the next unit
    bool more = finder.find((int)blockIdx.x, next_unit, seq);
    if (more) next_pages.load(p, next_unit, block_tables + (i64)seq * a.max_blocks, lane);
    __syncthreads();  // the barriers are ready
    for (;;) {
      // Without queries the team does not begin, and no place of the ring becomes free.
      const int values = step & 2, tile = step / 4 * 2 - values + (step & 1);
      const bool ends = step == end;
      if (!begun && (waited || ends || stages == kStages || tile >= old)) {
        begun = true;
        if (!waited) ptx_grid_wait();
        waited = true;
        const uint here = ptx_shared_address(&sm.unit_here[number & 1]);
        if (lane == 0) {
          drawn = (int)atomicAdd(counter, 1u);
          hopper_barrier_expect(here, unit.rows * kRowBytes);
        }
        __syncwarp();
        if (lane < unit.rows) {
          const T* row =
              q + (i64)(unit.token + lane / group) * a.q_stride + (i64)(unit.kv_head * group + lane % group) * D;
          hopper_copy_bulk(ptx_shared_address(&sm.q[number & 1][lane][0]), row, kRowBytes, here);
        }
      }
      // The ring is full, so there is time.
      if (!found && (ends || stages == kStages)) {
        found = true;
        more = finder.find((int)gridDim.x + __shfl_sync(0xffffffffu, drawn, 0), next_unit, seq);
        if (more) next_pages.load(p, next_unit, block_tables + (i64)seq * a.max_blocks, lane);
      }
      if (ends) {
        number++;
        hopper_barrier_wait(ptx_shared_address(&sm.unit_read[number & 1]), ((number >> 1) & 1) ^ 1);
        if (!more) break;
        unit = next_unit;
        pages = next_pages;
        if (lane == 0) sm.units[number & 1] = unit;
        begun = found = false;
        step = stages = 0;
        end = (unit.tiles + 1) / 2 * 4 + 4;
        old = max(0, min(unit.position - unit.start, unit.last)) / kHopperTile;
        continue;
      }
      step++;
      // The second tile of the last pair has a stage even if there is no such tile.
      if (tile < 0 || (tile & ~1) >= unit.tiles) continue;
      stages++;
      int page[kBoxes], position[kBoxes], bytes = 0;
      UNROLL for (int i = 0; i < kBoxes; i++) {
        const int at = tile * kHopperTile + i * R;
        const bool seen = at + R > unit.from && at < unit.last;
        const int here = pages.of(pages.page, tile * kBoxes + i);
        page[i] = seen ? here : -1;
        position[i] = pages.of(pages.position, tile * kBoxes + i);
        bytes += seen ? R * kRowBytes : 0;
      }
      const uint landed = ptx_shared_address(&sm.landed[place.slot]), to = ring + place.slot * kStage;
      const HopperTensorMap* map = values ? &p.v : &p.k;
      hopper_barrier_wait(ptx_shared_address(&sm.read[place.slot]), place.turn ^ 1);
      if (hopper_elected()) {
        hopper_barrier_expect(landed, (uint)bytes);
        UNROLL for (int i = 0; i < kBoxes; i++) {
          if (page[i] >= 0) {
            hopper_page_copy(to + i * R * kRowBytes, map, position[i], unit.kv_head, page[i], landed, policy);
          }
        }
      }
      __syncwarp();
      place.next(1);
    }
    if (!waited) ptx_grid_wait();
    if (lane == 0) {
      sm.units[number & 1].tiles = 0;
      hopper_barrier_arrive(ptx_shared_address(&sm.unit_here[number & 1]));
      // Each unit took one number from the counter when it began, so the last number taken is the number of units less
      // one. Whoever has it clears the counter for the next launch.
      if (number > 0 && drawn == finder.before - 1) __stcg(counter, 0u);
    }
  }

  // ---- the team ----

  HOPPER_FN void wait(Smem& sm, const Place& place, int i) {
    hopper_barrier_wait(ptx_shared_address(&sm.landed[place.slot + i]), place.turn);
  }
  // The warp has read these stages.
  HOPPER_FN void done(Smem& sm, const Place& place, int count, int lane) {
    __syncwarp();
    if (lane != 0) return;
    for (int i = 0; i < count; i++) hopper_barrier_arrive(ptx_shared_address(&sm.read[place.slot + i]));
  }
  HOPPER_FN void sync() { asm volatile("bar.sync 1, %0;" ::"n"(int{kThreads}) : "memory"); }

  // Scores of positions outside of [low, high) of the warp's part become none.
  HOPPER_FN void mask(float (&s)[kEights][4], int i, int low, int high, int t) {
    UNROLL for (int b = 0; b < kEights; b++) {
      UNROLL for (int j = 0; j < 2; j++) {
        const int at = 8 * b + 2 * t + j;
        if (at < low || at >= high) s[b][2 * i + j] = HOPPER_NONE;
      }
    }
  }
  HOPPER_FN float most_of(const float (&s)[kEights][4], int i) {
    float most = max(s[0][2 * i], s[0][2 * i + 1]);
    UNROLL for (int b = 1; b < kEights; b++) most = max(most, max(s[b][2 * i], s[b][2 * i + 1]));
    return row_max(most);
  }

  // Writes the warp's weights of a row to shared memory, and the sum of their pairs. If `partly`, the row sees the
  // positions [low, high) of the warp's part, and the weights of others are set to zero: q_exp2() is never less than
  // 2^-100.
  HOPPER_FN void weigh(const float (&s)[kEights][4], int i, float most, bool partly, int low, int high, uint* weights,
                       float* sum, int t) {
    const float base = most == HOPPER_NONE ? 0.0f : most;
    float e[kEights];
    UNROLL for (int b = 0; b < kEights; b++) {
      float p0 = q_exp2(s[b][2 * i] - base), p1 = q_exp2(s[b][2 * i + 1] - base);
      if (partly) {
        const int at = 8 * b + 2 * t;
        if (at < low || at >= high) p0 = 0.0f;
        if (at + 1 < low || at + 1 >= high) p1 = 0.0f;
      }
      e[b] = p0 + p1;
      weights[4 * b + t] = hopper_pack<T>(p0, p1);
    }
    sum[t] = kEights == 4 ? hopper_tree(e[0], e[1], e[kEights - 2], e[kEights - 1]) : e[0] + e[1];
  }

  // The sum of a tile's weights, in the order of the tree.
  HOPPER_FN float tile_sum(const Smem& sm, int which, int row, int t) {
    const auto sums = sm.sums + which * kParts;
    const float first = sums[0][row][t] + sums[1][row][t];
    return kParts == 2 ? first : first + (sums[kParts - 2][row][t] + sums[kParts - 1][row][t]);
  }
  HOPPER_FN float tile_most(const Smem& sm, int which, int row) {
    float most = sm.most[which * kParts][row];
    UNROLL for (int i = 1; i < kParts; i++) most = max(most, sm.most[which * kParts + i][row]);
    return most;
  }

  // The state of a lane's two rows, g and g + 8.
  struct Rows {
    float o[kBlocks][4], m[2], l[2];
  };

  HOPPER_FN void write(const HopperAttentionParams& p, const Unit& unit, const Rows& r, T* out, float* scratch,
                       const float* sinks, int tokens, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3, group = p.heads / p.kv_heads;
    UNROLL for (int i = 0; i < 2; i++) {
      const int row = g + 8 * i;
      float sum = row_sum(r.l[i]);
      if (row >= unit.rows) continue;
      const int token = unit.token + row / group, head = unit.kv_head * group + row % group;
      const int column = warp * kSlice + 2 * t;
      if (unit.splits == 1) {
        T* to_row = out + (i64)token * p.out_stride + (i64)head * D + column;
        const float by = hopper_sink(p, sinks, head, r.m[i], sum);
        UNROLL for (int d = 0; d < kBlocks; d++) {
          *(uint*)(to_row + d * 8) =
              hopper_pack<T>((r.o[d][2 * i] * by + 0.0f) / sum, (r.o[d][2 * i + 1] * by + 0.0f) / sum);
        }
      } else {
        const HopperScratch to_row = hopper_scratch(p, scratch, tokens, token, head, unit.split, D);
        UNROLL for (int d = 0; d < kBlocks; d++) {
          *(float2*)(to_row.o + column + d * 8) = make_float2(r.o[d][2 * i], r.o[d][2 * i + 1]);
        }
        if (warp == 0 && t == 0) *(float2*)to_row.ml = make_float2(r.m[i], sum);
      }
    }
  }

  // One k16 step of the scores of the warp's part of a tile. from[i]: where the lane finds pieces 2 i and 2 i + 1.
  HOPPER_FN void score_step(float (&s)[kEights][4], const uint (&q)[4], const uint (&from)[4], int k) {
    UNROLL for (int b = 0; b < kEights; b += 2) {
      uint f[4];
      hopper_ldmatrix(f, from[k & 3] + (k >> 2) * kHalf + b / 2 * kSixteen);
      hopper_mma<T>(s[b], q, f[0], f[1]);
      hopper_mma<T>(s[b + 1], q, f[2], f[3]);
    }
  }

  // One k16 step of the warp's columns of p V of a tile.
  HOPPER_FN void value_step(float (&o)[kBlocks][4], uint weights, const uint (&from)[kBlocks / 2], int k) {
    uint a[4];
    hopper_ldmatrix(a, weights + k * 32);
    UNROLL for (int d = 0; d < kBlocks; d += 2) {
      uint f[4];
      hopper_ldmatrix_trans(f, from[d / 2] + k * kSixteen);
      hopper_mma<T>(o[d], a, f[0], f[1]);
      hopper_mma<T>(o[d + 1], a, f[2], f[3]);
    }
  }

  // Rows of V that nobody sees become zeros, since a weight of zero does not make a zero of everything. Each warp does
  // so for its own columns.
  HOPPER_FN void blank(const Unit& unit, int first, uint tile, int warp, int lane) {
    for (int r = lane; r < kHopperTile; r += 32) {
      if (first + r >= unit.from && first + r < unit.last) continue;
      UNROLL for (int i = 0; i < kBlocks; i++) {
        asm volatile(
            "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(tile + row_at(r) + piece_at(warp * kBlocks + i, r)), "r"(0)
            : "memory");
      }
    }
    hopper_fence_async();  // the copy engine writes there next
    __syncwarp();
  }

  // Works through all pairs of tiles. While p V of a pair is computed, so are the scores of the next one.
  HOPPER_FN void work(const HopperAttentionParams& p, const Unit& unit, Smem& sm, uint ring,
                      const uint (&qf)[D / 16][4], Rows& r, Place& place, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3, group = p.heads / p.kv_heads, last_query = (unit.rows - 1) / group;
    const int which = warp / kParts,
              part = warp % kParts * kPart;  // which tile of the pair, and the warp's first position in it
    // All rows see the positions from `low` to `high`.
    const int low = hopper_low(p, unit.position + last_query) - unit.start, high = unit.position + 1 - unit.start;
    const bool wide = unit.rows > 8;  // otherwise rows g + 8 are unused
    const uint keys = ring + which * kStage + row_at(part + (lane & 7) + ((lane >> 4) << 3));
    const uint values = ring + row_at(lane & 15);
    float s[kEights][4];
    float upto[2][2], a[2][2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};  // [tile of the pair][row]
    // Whether the scores in s have a position that some row does not see, and what a lane's row sees of the part that
    // begins at `first`.
    bool partly = false;
    const auto low_of = [&](int i, int first) {
      return hopper_low(p, unit.position + (g + 8 * i) / group) - unit.start - first;
    };
    const auto high_of = [&](int i, int first) { return unit.position + (g + 8 * i) / group + 1 - unit.start - first; };
#pragma unroll 1
    for (int tile = -2; tile < unit.tiles; tile += 2) {
      const bool one = tile >= 0, both = one && tile + 1 < unit.tiles;
      if (one) {
        sync();  // the maxima are visible, and p V of the previous pair is done
        UNROLL for (int i = 0; i < 2; i++) {
          if (i == 1 && !wide) break;
          const int row = g + 8 * i;
          upto[0][i] = max(r.m[i], tile_most(sm, 0, row));
          upto[1][i] = both ? max(upto[0][i], tile_most(sm, 1, row)) : upto[0][i];
          UNROLL for (int j = 0; j < 2; j++) {
            const float earlier = j == 0 ? r.m[i] : upto[0][i];
            a[j][i] = q_exp2(earlier - (upto[j][i] == HOPPER_NONE ? 0.0f : upto[j][i]));
          }
          if ((which == 0 || both) && row < unit.rows) {
            const int first = (tile + which) * kHopperTile + part;
            int from = 0, end = 0;
            if (partly) {
              from = low_of(i, first);
              end = high_of(i, first);
            }
            weigh(s, i, which == 0 ? upto[0][i] : upto[1][i], partly, from, end,
                  (uint*)&sm.weights[row][which * kHopperTile + part], sm.sums[warp][row], t);
          }
          r.m[i] = upto[1][i];
        }
        sync();
      }
      // The next pair's K and this pair's V, which are in the ring in this order.
      const bool next = tile + 2 < unit.tiles;
      const Place k_place = place;
      if (next) {
        place.next(2);
        wait(sm, k_place, which);
      }
      UNROLL for (int b = 0; b < kEights; b++) {
        UNROLL for (int i = 0; i < 4; i++) s[b][i] = 0.0f;
      }
      uint from[4];
      UNROLL for (int i = 0; i < 4; i++) {
        from[i] = keys + k_place.slot * kStage + piece_at(2 * i + ((lane >> 3) & 1), lane);
      }
      if (!one) {
        UNROLL for (int k = 0; k < D / 16; k++) score_step(s, qf[k], from, k);
        done(sm, k_place, 2, lane);
      } else {
        const Place v_place = place;
        place.next(2);
        UNROLL for (int j = 0; j < 2; j++) {
          if (j == 1 && !both) break;
          wait(sm, v_place, j);
          const int first = (tile + j) * kHopperTile;
          if (first < unit.from || first + kHopperTile > unit.last) {
            blank(unit, first, ring + (v_place.slot + j) * kStage, warp, lane);
          }
          UNROLL for (int i = 0; i < 2; i++) {
            if (i == 1 && !wide) break;
            r.l[i] = fma(r.l[i], a[j][i], tile_sum(sm, j, g + 8 * i, t));
            UNROLL for (int d = 0; d < kBlocks; d++) {
              r.o[d][2 * i] *= a[j][i];
              r.o[d][2 * i + 1] *= a[j][i];
            }
          }
          uint v_from[kBlocks / 2];
          UNROLL for (int d = 0; d < kBlocks; d += 2) {
            v_from[d / 2] = values + (v_place.slot + j) * kStage + piece_at(warp * kBlocks + d + (lane >> 4), lane);
          }
          const uint weights = ptx_shared_address(&sm.weights[lane & 15][j * kHopperTile + (lane >> 4) * 8]);
          UNROLL for (int k = 0; k < 4; k++) {
            value_step(r.o, weights, v_from, k);
            // Beside the first tile the scores of the next pair. Without one, nobody uses them.
            UNROLL for (int i = 0; i < D / 16; i++) {
              if (j == 0 && i * 4 / (D / 16) == k) score_step(s, qf[i], from, i);
            }
          }
          if (j == 0 && next) done(sm, k_place, 2, lane);
          if (j == 0) done(sm, v_place, 1, lane);
        }
        // Waiting for the stage of a tile that does not exist keeps the team behind the warp that brings tiles: it must
        // not miss that a place became free, and would if the place became free twice.
        if (!both) wait(sm, v_place, 1);
        done(sm, {v_place.slot + 1, v_place.turn}, 1, lane);
      }
      const int first = (tile + 2 + which) * kHopperTile;
      if (!next || first >= unit.last) continue;
      if (p.cap > 0.0f) {
        UNROLL for (int b = 0; b < kEights; b++) {
          UNROLL for (int i = 0; i < 4; i++) s[b][i] = hopper_score(p, s[b][i]);
        }
      }
      partly = first < low || first + kHopperTile > high || first + kHopperTile > unit.last;
      UNROLL for (int i = 0; i < 2; i++) {
        if (i == 1 && !wide) break;
        if (partly) mask(s, i, low_of(i, first + part), high_of(i, first + part), t);
        const float most = most_of(s, i);
        if (t == 0) sm.most[warp][g + 8 * i] = most;
      }
    }
  }

  HOPPER_FN void attend(const HopperTeamParams& params, Smem& sm, uint ring, T* out, const int* cu_seqlens,
                        float* scratch, const float* sinks, int warp, int lane) {
    const HopperAttentionParams& p = params.attention;
    Place place;
    __syncthreads();  // the barriers are ready
    ptx_grid_wait();
    const int tokens = cu_seqlens[p.seqs];
#pragma unroll 1
    for (int number = 0;; number++) {
      const int which = number & 1;
      hopper_barrier_wait(ptx_shared_address(&sm.unit_here[which]), (number >> 1) & 1);
      const Unit unit = sm.units[which];
      if (unit.tiles == 0) return;
      uint qf[D / 16][4];
      UNROLL for (int k = 0; k < D / 16; k++) {
        hopper_ldmatrix(qf[k], ptx_shared_address(&sm.q[which][lane & 15][k * 16 + (lane >> 4) * 8]));
      }
      UNROLL for (int half = 0; half < 2; half++) {  // rows g, and g + 8
        if (half == 1 && unit.rows <= 8) break;
        UNROLL for (int k = 0; k < D / 16; k++) {
          UNROLL for (int i = half; i < 4; i += 2) {
            const uint two = qf[k][i];
            qf[k][i] = hopper_pack<T>(to_f(from_bits16<T>((ushort)two)) * p.c,
                                      to_f(from_bits16<T>((ushort)(two >> 16))) * p.c);
          }
        }
      }
      __syncwarp();
      if (lane == 0) hopper_barrier_arrive(ptx_shared_address(&sm.unit_read[which]));
      Rows r;
      UNROLL for (int d = 0; d < kBlocks; d++) {
        UNROLL for (int i = 0; i < 4; i++) r.o[d][i] = 0.0f;
      }
      UNROLL for (int i = 0; i < 2; i++) {
        r.m[i] = HOPPER_NONE;
        r.l[i] = 0.0f;
      }
      work(p, unit, sm, ring, qf, r, place, warp, lane);
      write(p, unit, r, out, scratch, sinks, tokens, warp, lane);
    }
  }

  HOPPER_FN void run(const HopperTeamParams& p, T* out, const T* q, const int* block_tables, const int* cu_seqlens,
                     const int* context_lens, float* scratch, const float* sinks, uint* counter) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint unaligned = ptx_shared_address(shared), ring = (unaligned + 1023) & ~1023u;
    Smem& sm = *(Smem*)(shared + (ring - unaligned) + kStages * kStage);
    ptx_grid_release();
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; i++) {
        hopper_barrier_init(ptx_shared_address(&sm.landed[i]), 1);
        hopper_barrier_init(ptx_shared_address(&sm.read[i]), kWarps);
      }
      for (int i = 0; i < 2; i++) {
        hopper_barrier_init(ptx_shared_address(&sm.unit_here[i]), 1);
        hopper_barrier_init(ptx_shared_address(&sm.unit_read[i]), kWarps);
      }
      hopper_barrier_init_done();
    }
    if (warp == kWarps) {
      bring(p, sm, ring, q, block_tables, cu_seqlens, context_lens, counter, lane);
    } else {
      attend(p, sm, ring, out, cu_seqlens, scratch, sinks, warp, lane);
    }
  }
};

#define HOPPER_ATTENTION_TEAM(types, T, D, R)                                                                      \
  extern "C" __global__ void __launch_bounds__(hopper_team_threads(D), hopper_team_at_once(D))                     \
      hopper_attention_team_##types##_d##D##_b##R(                                                                 \
          const __grid_constant__ HopperTeamParams p, T* out, const T* q, const int* block_tables,                 \
          const int* cu_seqlens, const int* context_lens, float* scratch, const float* sinks, uint* counter) {     \
    HopperAttentionTeam<T, D, R>::run(p, out, q, block_tables, cu_seqlens, context_lens, scratch, sinks, counter); \
  }
#define HOPPER_ATTENTION_TEAMS(types, T)   \
  HOPPER_ATTENTION_TEAM(types, T, 64, 16)  \
  HOPPER_ATTENTION_TEAM(types, T, 128, 16) \
  HOPPER_ATTENTION_TEAM(types, T, 256, 16) \
  HOPPER_ATTENTION_TEAM(types, T, 64, 8)   \
  HOPPER_ATTENTION_TEAM(types, T, 128, 8)  \
  HOPPER_ATTENTION_TEAM(types, T, 256, 8)
HOPPER_ATTENTION_TEAMS(bf16, bfloat)
HOPPER_ATTENTION_TEAMS(f16, half)
