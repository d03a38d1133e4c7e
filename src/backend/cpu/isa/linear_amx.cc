// SPDX-License-Identifier: Apache-2.0
// linear of quantised weights with AMX, in 16-bit fixed point.
//
// A tile cannot sum over all of K while every block of 32 has scales of its own. So weights become whole numbers of a
// unit per column, and activations of a unit per row; sixteen bits are two bytes, W = 256 Wh + Wl, and tiles of bytes
// sum Wh Xh and Wl Xh + Wh Xl over all of K exactly (of Wl Xl only its mean is kept). From its code to its number a
// weight takes one multiplication, vpmulhrsw. Whole numbers have the same sums in every order, so the forms below
// give the same bits:
//  - one row multiplies words in registers, without a way through memory into a tile;
//  - up to a tile of rows, words are multiplied as they are, both bytes side by side in a tile: least to do for a
//    weight, four products for 64 k;
//  - more rows share a panel whose high and low bytes were put apart: three products for 64 k. Up to two tiles of rows
//    multiply it while it is unpacked, others when it is ready.
#include "backend/cpu/isa/linear_amx.h"
#include "backend/cpu/isa/activation_functions.h"
#include "backend/cpu/isa/linear_avx512.h"
#include "backend/cpu/isa/linear_outputs_amx.h"
#include "backend/cpu/isa/tiles_amx.h"

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

constexpr int kStep = 64;  // k of one tile of bytes: two blocks

// The bytes of 64 k apart: of a panel, [4 k][column][k of the four], and of a tile of rows.
struct alignas(64) WeightStep {
  int8_t high[kStep / 4][4 * kPanel];
  uint8_t low[kStep / 4][4 * kPanel];
};
struct alignas(64) RowStep {
  int8_t high[kRowTile][kStep];
  int8_t low[kRowTile][kStep];
};
static_assert(sizeof(WeightStep) <= 2 * kReadyBlockBytes);

// The words of 32 k: [k 0 and 2 of four, then 1 and 3][column][low, high, low, high], with 128 added to high bytes so
// that all are unsigned. A row multiplies them with [high, low, high, low] for the mixed sums and with [0, high, 0,
// high] for the high ones.
using WeightBlock = uint8_t[kBlock / 2][4 * kPanel];
constexpr int kWordRowBytes = 2 * 2 * kBlock;  // of a row, mixed and high

// Up to this many rows are multiplied with words.
constexpr int64_t kMostWordRows = kRowTile;
// Up to this many, a panel is unpacked while it is multiplied; more rows need it several times.
constexpr int64_t kMostRowsInOnePass = 2 * kRowTile;

// A row's unit, and what its sums start from.
struct alignas(16) RowStart {
  float sa;
  int32_t high;
  int32_t mixed;
};

// A row of x in units of its largest magnitude: 16 numbers at a time.
struct RowUnit {
  float sa;
  float inverse;
};
QUIRE_KERNEL_INLINE RowUnit row_unit(const float* x, int64_t k) {
  const __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
  __m512i most = _mm512_setzero_si512();
  for (int64_t i = 0; i < k; i += 16) {
    most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
  }
  const uint32_t bits = _mm512_reduce_max_epu32(most);
  float amax;
  std::memcpy(&amax, &bits, sizeof amax);
  if (bits >= 0x7f800000) return {__builtin_nanf(""), 0.0f};  // an infinity or a NaN
  if (amax < kFixedTiny) return {0.0f, 0.0f};
  return {amax / kFixedMax, kFixedMax / amax};
}
QUIRE_KERNEL_INLINE __m512i fixed_point(const float* x, const RowUnit& unit) {
  const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(unit.inverse)));
  return unit.inverse == 0.0f ? _mm512_setzero_si512() : v;
}
// The high byte of a number whose low byte has a sign.
QUIRE_KERNEL_INLINE __m512i high_part(__m512i v) {
  return _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
}

// Where a panel's parts are.
struct PanelPlace {
  const uint8_t* codes;
  const uint8_t* scales;
  int group_shift;
  __m512 unit;     // of the sums' 256 in each column
  __m512 inverse;  // weights to whole units
};
QUIRE_KERNEL_INLINE PanelPlace panel_place(const PackedView& w, int64_t panel) {
  const uint8_t* at = w.panel(panel);
  const __m512 bound = _mm512_loadu_ps(at + w.bound_offset);
  // A column that is zero, or broken by an infinity or a NaN in a scale, has no whole units.
  const __mmask16 kept = _mm512_cmp_ps_mask(bound, _mm512_setzero_ps(), _CMP_GT_OQ) &
                         _mm512_cmp_ps_mask(bound, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
  return {at, at + w.scale_offset, w.group_shift, _mm512_div_ps(bound, _mm512_set1_ps(kFixedMax / 256)),
          _mm512_maskz_div_ps(kept, _mm512_set1_ps(kFixedMax), bound)};
}

// Rounds v * factor + add, with a whole `add`, to a number of 16 bits, and puts it into both halves of its lane: floats
// of this size are whole, and their lower bits are those of the number.
constexpr float kWholeFloats = 0x1.8p23f;
QUIRE_KERNEL_INLINE __m512i round_twice(__m512 v, __m512 factor, int add) {
  const __m512i lower = _mm512_set1_epi64(0x0504050401000100);
  const __m512i both = _mm512_add_epi64(_mm512_broadcast_i32x4(_mm_set_epi64x(0x0808080808080808, 0)), lower);
  const __m512 sum = _mm512_fmadd_ps(v, factor, _mm512_set1_ps(kWholeFloats + static_cast<float>(add)));
  return _mm512_shuffle_epi8(_mm512_castps_si512(sum), both);
}

// A block's scale and what is added to its products, in units of each column; apart for the halves of a block that has
// such. `bias` is added to every weight as well.
struct BlockUnits {
  __m512i scale[2];
  __m512i add[2];
};
template <DType kType>
QUIRE_KERNEL_INLINE BlockUnits block_units(const PanelPlace& p, const Scales512& s, int bias) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr FixedForm kForm = fixed_form(kFormat);
  const __m512 factor = _mm512_mul_ps(p.inverse, _mm512_set1_ps(static_cast<float>(kForm.half)));
  BlockUnits out;
#pragma GCC unroll 2
  for (int h = 0; h < (has_halves(kFormat) ? 2 : 1); ++h) {
    const __m512 sw = has_halves(kFormat) ? _mm512_mul_ps(s.sw, s.sc[h]) : s.sw;
    out.scale[h] = round_twice(sw, factor, 0);
    if constexpr (has_min(kFormat) || kForm.shift != 0) {
      __m512 wm = _mm512_setzero_ps();
      if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
        wm = _mm512_mul_ps(s.wm, s.mn[h]);
      } else if constexpr (has_min(kFormat)) {
        wm = s.wm;
      }
      const __m512 o = _mm512_fmadd_ps(_mm512_set1_ps(static_cast<float>(kForm.shift)), sw, wm);
      out.add[h] = round_twice(o, p.inverse, bias);
    } else {
      out.add[h] = _mm512_set1_epi16(static_cast<int16_t>(bias));
    }
  }
  if constexpr (!has_halves(kFormat)) {
    out.scale[1] = out.scale[0];
    out.add[1] = out.add[0];
  }
  return out;
}

template <DType kType>
QUIRE_KERNEL_INLINE BlockUnits block_units(const PanelPlace& p, int64_t block, int bias) {
  return block_units<kType>(p, load_scales<kType>(p.scales, block, p.group_shift), bias);
}

// Calls use(group, even, odd) for the eight groups of a block: the signed codes of k 0 and 2, and of 1 and 3, of the
// four, at the upper end of words.
template <DType kType, typename Use>
QUIRE_KERNEL_INLINE void each_group(const uint8_t* codes, Use use) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr FixedForm kForm = fixed_form(kFormat);
  constexpr int kTop = 16 - kForm.bits;
  const __m512i upper = _mm512_set1_epi16(static_cast<int16_t>(0xffff << kTop));
  if constexpr (kFormat.low_bits == 4 && kFormat.high_bits == 0 && !has_table(kFormat)) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i v = _mm512_loadu_si512(codes + 64 * i);
      __asm__("" : "+v"(v));  // or the compiler loads it four times
      use(2 * i, _mm512_slli_epi16(v, 12), _mm512_and_si512(_mm512_slli_epi16(v, 4), upper));
      use(2 * i + 1, _mm512_and_si512(_mm512_slli_epi16(v, 8), upper), _mm512_and_si512(v, upper));
    }
  } else {
    const Codes512 bytes = load_codes<kType, 0>(codes);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      const __m512i v = bytes.group[g];
      use(g, _mm512_slli_epi16(v, kTop), _mm512_and_si512(_mm512_slli_epi16(v, kTop - 8), upper));
    }
  }
}

// Whole numbers of the codes of a group.
template <DType kType, bool kBiased>
QUIRE_KERNEL_INLINE __m512i whole(__m512i codes, const BlockUnits& units, int g) {
  const __m512i v = _mm512_mulhrs_epi16(codes, units.scale[g / 4]);
  constexpr QuantFormat kFormat = quant_format(kType);
  if constexpr (kBiased || has_min(kFormat) || fixed_form(kFormat).shift != 0) {
    return _mm512_add_epi16(v, units.add[g / 4]);
  } else {
    return v;
  }
}

// What is prefetched while a panel is used. A core reads several places together faster than one after the other, so
// the lines of codes come from several places in turn, one at a time, because more at once would take the buffers that
// this panel's own lines pass through. The places are the panels of a set: while the panels of one set are used, those
// of the next are read, each panel of this set for a part of all panels of the next. Of long panels, they are parts of
// the next panel.
constexpr int64_t kLongPanel = 3072;  // its k; the parts of such a panel are 6 KiB from each other
template <DType kType>
struct Ahead {
  static constexpr QuantFormat kFormat = quant_format(kType);
  static constexpr int kLines = code_bytes(kFormat) / 64;  // of a block
  static constexpr int kPlaces = kLines == 8 ? 4 : kLines;
  const uint8_t* codes;   // at the first place
  const uint8_t* scales;  // of the next panel
  int64_t stride;         // from one place to the next
  int group_shift;
};
template <DType kType>
QUIRE_KERNEL_INLINE Ahead<kType> ahead_of(const PackedView& w, int64_t panel) {
  constexpr int kPlaces = Ahead<kType>::kPlaces;
  const int64_t part = w.k / kBlock * (Ahead<kType>::kLines / kPlaces) * 64;
  const uint8_t* next = w.panel_ahead(panel + 1);
  _mm_prefetch(next + w.bound_offset, _MM_HINT_T1);
  if (w.k >= kLongPanel) return {next, next + w.scale_offset, part, w.group_shift};
  const int64_t place = panel % kPlaces;
  const int64_t set = panel - place + kPlaces;
  // Nothing is known to come behind the last set: its own panel's lines are here already.
  if (set >= w.panels() && w.soon == nullptr) return {w.panel(panel), next + w.scale_offset, 0, w.group_shift};
  return {w.panel_ahead(set) + place * part, next + w.scale_offset, w.panel_stride, w.group_shift};
}
template <DType kType>
QUIRE_KERNEL_INLINE void prefetch_scales(const Ahead<kType>& a, int64_t block) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const int64_t record = scale_record_at(kFormat, block, a.group_shift);
  _mm_prefetch(a.scales + record + block % scale_group(kFormat) * block_scale_bytes(kFormat), _MM_HINT_T1);
}
// The lines of one of a block's eight groups.
template <DType kType>
QUIRE_KERNEL_INLINE void prefetch_group(const Ahead<kType>& a, int64_t block, int g) {
  constexpr int kLines = Ahead<kType>::kLines, kPlaces = Ahead<kType>::kPlaces;
  const uint8_t* at = a.codes + block * (kLines / kPlaces) * 64;
#pragma GCC unroll 8
  for (int line = g * kLines / 8; line < (g + 1) * kLines / 8; ++line) {
    _mm_prefetch(at + line % kPlaces * a.stride + line / kPlaces * 64, _MM_HINT_T1);
  }
}

// One block of a panel into half of a step; beside(group) is called for each of its groups.
template <DType kType, typename Beside>
QUIRE_KERNEL_INLINE void unpack_bytes(const PanelPlace& p, int64_t block, WeightStep& out, Beside beside) {
  const BlockUnits units = block_units<kType>(p, block, 0);
  const int first = block % 2 * 8;
  const __m512i low_bytes = _mm512_set1_epi16(0xff);
  each_group<kType>(
      p.codes + block * code_bytes(quant_format(kType)), [&](int g, __m512i even,
                                                             __m512i odd) __attribute__((always_inline)) {
        beside(g);
        even = whole<kType, false>(even, units, g);
        odd = whole<kType, false>(odd, units, g);
        // Bytes of the second operand where the first has ones, of the third elsewhere.
        const __m512i high = _mm512_ternarylogic_epi32(low_bytes, _mm512_srli_epi16(even, 8), odd, 0xca);
        const __m512i low = _mm512_ternarylogic_epi32(low_bytes, even, _mm512_slli_epi16(odd, 8), 0xca);
        _mm512_store_si512(out.high[first + g], high);
        _mm512_store_si512(out.low[first + g], low);
      });
}

template <DType kType>
QUIRE_KERNEL_INLINE void unpack_words(const PanelPlace& p, int64_t block, const Ahead<kType>& ahead, WeightBlock& out) {
  prefetch_scales(ahead, block);
  const BlockUnits units = block_units<kType>(p, block, -0x8000);
  const uint8_t* codes = p.codes + block * code_bytes(quant_format(kType));
  each_group<kType>(
      codes, [&](int g, __m512i even, __m512i odd) __attribute__((always_inline)) {
        prefetch_group(ahead, block, g);
        _mm512_store_si512(out[2 * g], whole<kType, true>(even, units, g));
        _mm512_store_si512(out[2 * g + 1], whole<kType, true>(odd, units, g));
      });
}

struct Task {
  const PackedView* w;
  const LinearArgs* args;
  const RowStart* start;  // of row_begin
  const RowStep* x;       // of row_begin: steps of bytes, or
  const int8_t* words;    // blocks of words
  int64_t blocks;
  int64_t steps;
  int64_t row_begin;
  int64_t row_end;
  int height;  // rows of a tile of words: as many as there are, or kRowTile
};

// Sixteen columns of the output in units of the sums' 256.
struct UnitColumns : Columns {
  __m512 unit;
};
QUIRE_KERNEL_INLINE UnitColumns unit_columns_of(const Task& t, int64_t panel, __m512 unit) {
  return {columns_of(*t.w, *t.args, panel), unit};
}
QUIRE_KERNEL_INLINE __m512 row_values(const UnitColumns& c, __m512i high, __m512i mixed, const RowStart& start) {
  high = _mm512_add_epi32(high, _mm512_set1_epi32(start.high));
  mixed = _mm512_add_epi32(mixed, _mm512_set1_epi32(start.mixed));
  const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(mixed));
  const __m512 v = _mm512_mul_ps(_mm512_mul_ps(sum, c.unit), _mm512_set1_ps(start.sa));
  return with_bias(c, v);
}
QUIRE_KERNEL_INLINE void put_row(const UnitColumns& c, __m512i high, __m512i mixed, const RowStart& start, float* y) {
  put_values(c, row_values(c, high, mixed, start), y);
}

using Sums = int32_t[kRowTile][kPanel];

// The outputs of a tile of rows from its high and its mixed sums.
QUIRE_KERNEL_INLINE void put_tile(const Task& t, const UnitColumns& c, int64_t panel, int64_t row, const Sums* sums) {
  const int64_t rows = t.row_end - row < kRowTile ? t.row_end - row : kRowTile;
  const RowStart* start = t.start + (row - t.row_begin);
  float* y = static_cast<float*>(t.args->out.data) + row * t.args->out.stride + panel * kPanel;
  for (int64_t r = 0; r < rows; ++r, y += t.args->out.stride) {
    put_row(c, _mm512_load_si512(sums[0][r]), _mm512_load_si512(sums[1][r]), start[r], y);
  }
}
// Words. Up to kMostJoinedRows rows are one tile with their mixed and their high operands below each other, and four
// tiles of sums take turns, so that no product waits for the one before it. More rows have a tile for each operand.
constexpr int kMostJoinedRows = kRowTile / 2;
enum class WordTiles { kJoined, kOne };

template <int kTurn>
QUIRE_KERNEL_INLINE void multiply_joined(const int8_t* x, const WeightBlock& w) {
  if constexpr (kTurn % 2 == 0) {
    QUIRE_TILE_LOAD(6, w, 64);
    QUIRE_TILE_LOAD(4, x, 64);
  } else {
    QUIRE_TILE_LOAD(7, w, 64);
    QUIRE_TILE_LOAD(5, x, 64);
  }
  if constexpr (kTurn == 0) QUIRE_TILE_DOT_UNSIGNED(0, 4, 6);
  if constexpr (kTurn == 1) QUIRE_TILE_DOT_UNSIGNED(1, 5, 7);
  if constexpr (kTurn == 2) QUIRE_TILE_DOT_UNSIGNED(2, 4, 6);
  if constexpr (kTurn == 3) QUIRE_TILE_DOT_UNSIGNED(3, 5, 7);
}
QUIRE_KERNEL_INLINE void multiply_words(const int8_t* x, const WeightBlock& w) {
  QUIRE_TILE_LOAD(6, w, 64);
  QUIRE_TILE_LOAD(4, x, 64);
  QUIRE_TILE_DOT_UNSIGNED(1, 4, 6);
  QUIRE_TILE_LOAD(5, x + 64 * kRowTile, 64);
  QUIRE_TILE_DOT_UNSIGNED(0, 5, 6);
}

// The outputs of joined rows.
QUIRE_KERNEL_INLINE void put_joined(const Task& t, const UnitColumns& c, int64_t panel, const Sums* sums) {
  float* y = static_cast<float*>(t.args->out.data) + t.row_begin * t.args->out.stride + panel * kPanel;
  for (int r = 0; r < t.height; ++r, y += t.args->out.stride) {
    __m512i mixed = _mm512_load_si512(sums[0][r]);
    __m512i high = _mm512_load_si512(sums[0][t.height + r]);
    for (int i = 1; i < 4; ++i) {
      mixed = _mm512_add_epi32(mixed, _mm512_load_si512(sums[i][r]));
      high = _mm512_add_epi32(high, _mm512_load_si512(sums[i][t.height + r]));
    }
    put_row(c, high, mixed, t.start[r], y);
  }
}

// Blocks that are unpacked ahead of their products: a tile cannot be loaded while its stores are on their way.
constexpr int kAhead = 4;

// Up to two tiles of rows, straight from the packed weight: blocks are unpacked while earlier ones are multiplied.
template <DType kType, WordTiles kTiles>
static __attribute__((noinline)) void stream_panel(const Task& t, int64_t panel) {
  const PanelPlace p = panel_place(*t.w, panel);
  const Ahead<kType> ahead = ahead_of<kType>(*t.w, panel);
  const int64_t block_bytes = int64_t{kWordRowBytes} * t.height;
  const int8_t* x = t.words;
  alignas(64) WeightBlock ready[2 * kAhead];
  clear_sums();
  for (int64_t b = 0; b < kAhead && b < t.blocks; ++b) unpack_words<kType>(p, b, ahead, ready[b]);
  for (int64_t b = 0; b < t.blocks; b += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i, x += block_bytes) {
      if (b + i >= t.blocks) break;
      const int64_t soon = b + i + kAhead;
      if (soon < t.blocks) unpack_words<kType>(p, soon, ahead, ready[soon % (2 * kAhead)]);
      const WeightBlock& w = ready[(b + i) % (2 * kAhead)];
      if constexpr (kTiles == WordTiles::kJoined) {
        switch (i) {
          case 0:
            multiply_joined<0>(x, w);
            break;
          case 1:
            multiply_joined<1>(x, w);
            break;
          case 2:
            multiply_joined<2>(x, w);
            break;
          default:
            multiply_joined<3>(x, w);
        }
      } else {
        multiply_words(x, w);
      }
    }
  }
  const UnitColumns c = unit_columns_of(t, panel, p.unit);
  alignas(64) Sums sums[4];
  store_sums(sums);
  if constexpr (kTiles == WordTiles::kJoined) {
    put_joined(t, c, panel, sums);
  } else {
    put_tile(t, c, panel, t.row_begin, sums);
  }
}

// Two tiles of rows, with the bytes apart: three products for 64 k and a tile of rows where words need four, and half
// of the bytes of the rows, which come from L2.
QUIRE_KERNEL_INLINE void multiply_two(const RowStep& x0, const RowStep& x1, const WeightStep& w) {
  QUIRE_TILE_LOAD(6, w.low, 64);
  QUIRE_TILE_LOAD(4, x0.high, kStep);
  QUIRE_TILE_DOT_UNSIGNED(1, 4, 6);
  QUIRE_TILE_LOAD(7, w.high, 64);
  QUIRE_TILE_DOT(0, 4, 7);
  QUIRE_TILE_LOAD(5, x1.high, kStep);
  QUIRE_TILE_DOT_UNSIGNED(3, 5, 6);
  QUIRE_TILE_DOT(2, 5, 7);
  QUIRE_TILE_LOAD(4, x0.low, kStep);
  QUIRE_TILE_DOT(1, 4, 7);
  QUIRE_TILE_LOAD(5, x1.low, kStep);
  QUIRE_TILE_DOT(3, 5, 7);
}
template <DType kType>
static __attribute__((noinline)) void stream_two(const Task& t, int64_t panel) {
  constexpr int64_t kStepsAhead = kAhead / 2;
  const PanelPlace p = panel_place(*t.w, panel);
  const Ahead<kType> ahead = ahead_of<kType>(*t.w, panel);
  alignas(64) WeightStep ready[2 * kStepsAhead];
  const auto unpack = [&](int64_t step) __attribute__((always_inline)) {
    WeightStep& to = ready[step % (2 * kStepsAhead)];
    for (int64_t b = 2 * step; b < 2 * step + 2 && b < t.blocks; ++b) {
      prefetch_scales(ahead, b);
      unpack_bytes<kType>(
          p, b, to, [&](int g) __attribute__((always_inline)) { prefetch_group(ahead, b, g); });
    }
  };
  const RowStep* x = t.x;
  const RowStep* x1 = t.row_end - t.row_begin > kRowTile ? x + t.steps : x;
  clear_sums();
  for (int64_t s = 0; s < kStepsAhead && s < t.steps; ++s) unpack(s);
  for (int64_t s = 0; s < t.steps; ++s) {
    if (s + kStepsAhead < t.steps) unpack(s + kStepsAhead);
    multiply_two(x[s], x1[s], ready[s % (2 * kStepsAhead)]);
  }
  const UnitColumns c = unit_columns_of(t, panel, p.unit);
  alignas(64) Sums sums[4];
  store_sums(sums);
  put_tile(t, c, panel, t.row_begin, sums);
  put_tile(t, c, panel, t.row_begin + kRowTile, sums + 2);
}

// One row.
template <DType kType>
static __attribute__((noinline)) void dot_panel(const Task& t, int64_t panel) {
  const PanelPlace p = panel_place(*t.w, panel);
  const Ahead<kType> ahead = ahead_of<kType>(*t.w, panel);
  const uint8_t* codes = p.codes;
  const int8_t* x = t.words;
  __m512i mixed[4], high[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) mixed[i] = high[i] = _mm512_setzero_si512();
  constexpr int kGroup = scale_group(quant_format(kType));
  for (int64_t first = 0; first < t.blocks; first += kGroup) {
    const uint8_t* record = p.scales + scale_record_at(quant_format(kType), first, p.group_shift);
    const Header512 header = load_header<kType>(record);
    for (int64_t b = first; b < first + kGroup; ++b, codes += code_bytes(quant_format(kType)), x += kWordRowBytes) {
      prefetch_scales(ahead, b);
      const BlockUnits units = block_units<kType>(p, block_scales<kType>(header, record, b), -0x8000);
      each_group<kType>(
          codes, [&](int g, __m512i even, __m512i odd) __attribute__((always_inline)) {
            prefetch_group(ahead, b, g);
            const int turn = g % 2 * 2;
            even = whole<kType, true>(even, units, g);
            mixed[turn] = _mm512_dpbusd_epi32(mixed[turn], even, four_codes(x + 8 * g));
            high[turn] = _mm512_dpbusd_epi32(high[turn], even, four_codes(x + 2 * kBlock + 8 * g));
            odd = whole<kType, true>(odd, units, g);
            mixed[turn + 1] = _mm512_dpbusd_epi32(mixed[turn + 1], odd, four_codes(x + 8 * g + 4));
            high[turn + 1] = _mm512_dpbusd_epi32(high[turn + 1], odd, four_codes(x + 2 * kBlock + 8 * g + 4));
          });
    }
  }
  const auto sum = [](const __m512i* v) __attribute__((always_inline)) {
    return _mm512_add_epi32(_mm512_add_epi32(v[0], v[1]), _mm512_add_epi32(v[2], v[3]));
  };
  float* y = static_cast<float*>(t.args->out.data) + t.row_begin * t.args->out.stride + panel * kPanel;
  put_row(unit_columns_of(t, panel, p.unit), sum(high), sum(mixed), t.start[0], y);
}

template <DType kType>
static __attribute__((noinline)) void unpack_panel(const PanelPlace& p, int64_t blocks, WeightStep* out) {
  for (int64_t b = 0; b < blocks; ++b) unpack_bytes<kType>(p, b, out[b / 2], [](int) {});
}

// A tile of rows and two panels: sums 0 and 1 are of the first, 2 and 3 of the second.
QUIRE_KERNEL_INLINE void multiply_bytes(const RowStep& x, const WeightStep& w0, const WeightStep& w1) {
  QUIRE_TILE_LOAD_ONCE(4, x.high, kStep);
  QUIRE_TILE_LOAD(6, w0.low, 64);
  QUIRE_TILE_DOT_UNSIGNED(1, 4, 6);
  QUIRE_TILE_LOAD(7, w0.high, 64);
  QUIRE_TILE_DOT(0, 4, 7);
  QUIRE_TILE_LOAD_ONCE(5, x.low, kStep);
  QUIRE_TILE_DOT(1, 5, 7);
  QUIRE_TILE_LOAD(6, w1.high, 64);
  QUIRE_TILE_DOT(3, 5, 6);
  QUIRE_TILE_DOT(2, 4, 6);
  QUIRE_TILE_LOAD(7, w1.low, 64);
  QUIRE_TILE_DOT_UNSIGNED(3, 4, 7);
}

// Two panels made ready for many tiles of rows: neighbours, or those of gate and up. If there is no second neighbour,
// both are the same, and the second is not written.
struct ReadyPanels {
  const Task* task;
  const WeightStep* w[2];
  UnitColumns columns[2];
  const uint8_t* soon[2];  // the packed panels that are unpacked next, which come into L2 meanwhile
  int64_t first;           // panel of outputs
  bool alone;
};

// What becomes of the two panels' sums of a row.
struct Neighbours {
  QUIRE_KERNEL_INLINE void put(const UnitColumns* c, const Sums* sums, int64_t r, const RowStart& start, bool alone,
                               float* y) {
    put_row(c[0], _mm512_load_si512(sums[0][r]), _mm512_load_si512(sums[1][r]), start, y);
    if (!alone) put_row(c[1], _mm512_load_si512(sums[2][r]), _mm512_load_si512(sums[3][r]), start, y + kPanel);
  }
};
template <typename Act>
struct GateAndUp {
  QUIRE_KERNEL_INLINE void put(const UnitColumns* c, const Sums* sums, int64_t r, const RowStart& start, bool,
                               float* y) {
    const F32x16 gate = {row_values(c[0], _mm512_load_si512(sums[0][r]), _mm512_load_si512(sums[1][r]), start)};
    const F32x16 up = {row_values(c[1], _mm512_load_si512(sums[2][r]), _mm512_load_si512(sums[3][r]), start)};
    put_values(c[0], (Act::of(gate) * up).v, y);
  }
};

// Steps before the first outputs of the last tile of rows are written: until then its sums are on their way to memory.
constexpr int64_t kSumsOnTheirWay = 2;

// Two panels of up to kStepsInL1 steps stay in L1 while rows pass by. Longer ones are taken in parts of about
// kPartSteps, each for kBlockTiles tiles of rows, whose sums are kept in between.
constexpr int64_t kStepsInL1 = 10;
constexpr int64_t kPartSteps = 8;
constexpr int64_t kBlockTiles = 8;

// The outputs of a tile of rows are written a few rows at a time between the products of the next tile: vectors have
// nothing else to do there.
template <typename Outputs>
static __attribute__((noinline)) void multiply_ready(const ReadyPanels& p) {
  const Task& t = *p.task;
  const int64_t steps = t.steps;
  const int64_t parts = steps <= kStepsInL1 ? 1 : ceil_div(steps, kPartSteps);
  const int64_t tiles = ceil_div(t.row_end - t.row_begin, kRowTile);
  const int64_t block = parts == 1 ? tiles : kBlockTiles;
  const int64_t stride = t.args->out.stride;
  float* y = static_cast<float*>(t.args->out.data) + t.row_begin * stride + p.first * kPanel;
  const RowStart* start = t.start;
  const UnitColumns columns[2] = {p.columns[0], p.columns[1]};
  const bool alone = p.alone;
  const int64_t soon_bytes = ceil_div(t.w->panel_stride, tiles * steps);
  int64_t soon = 0;
  alignas(64) Sums buffers[kBlockTiles][4];  // with one part, two take turns
  const Sums* sums = buffers[0];
  int64_t rows = 0, done = 0;
  const auto put = [&](int64_t most) __attribute__((always_inline)) {
    const int64_t end = rows - done < most ? rows : done + most;
    for (; done < end; ++done, ++start, y += stride) Outputs::put(columns, sums, done, *start, alone, y);
  };
  for (int64_t first_tile = 0; first_tile < tiles; first_tile += block) {
    const int64_t last_tile = tiles - first_tile < block ? tiles : first_tile + block;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = steps * part / parts, end = steps * (part + 1) / parts;
      const bool last = part + 1 == parts;
      const int64_t free_steps = end - begin > kSumsOnTheirWay ? end - begin - kSumsOnTheirWay : 1;
      const int64_t share = last ? ceil_div(kRowTile, free_steps) : 0;
      for (int64_t tile = first_tile; tile < last_tile; ++tile) {
        const RowStep* x = t.x + tile * steps;
        Sums* now = buffers[parts == 1 ? tile % 2 : tile - first_tile];
        if (part == 0) {
          clear_sums();
        } else {
          load_sums(now);
        }
        for (int64_t s = begin; s < end; ++s) {
          multiply_bytes(x[s], p.w[0][s], p.w[1][s]);
          for (const int64_t until = soon + soon_bytes; soon < until; soon += 64) {
            _mm_prefetch(p.soon[0] + soon, _MM_HINT_T1);
            _mm_prefetch(p.soon[1] + soon, _MM_HINT_T1);
          }
          if (s >= begin + kSumsOnTheirWay) put(share);
        }
        if (last) put(kRowTile);
        store_sums(now);
        if (!last) continue;
        sums = now;
        const int64_t left = t.row_end - t.row_begin - tile * kRowTile;
        rows = left < kRowTile ? left : kRowTile;
        done = 0;
      }
    }
    put(kRowTile);
  }
}

// Makes panels `first` and `second` ready, and multiplies many rows with them. `step`: to the panels that come next.
template <DType kType>
ReadyPanels make_ready(const Task& t, int64_t first, int64_t second, int64_t step, WeightStep* scratch) {
  ReadyPanels ready;
  ready.task = &t;
  ready.first = first;
  ready.alone = first == second;
  const int64_t panels[2] = {first, second};
  for (int i = 0; i < 2; ++i) {
    const PanelPlace place = panel_place(*t.w, panels[i]);
    WeightStep* to = ready.alone ? scratch : scratch + i * t.steps;
    if (to != scratch || i == 0) unpack_panel<kType>(place, t.blocks, to);
    ready.w[i] = to;
    ready.columns[i] = unit_columns_of(t, panels[i], place.unit);
    ready.soon[i] = t.w->panel_ahead(panels[i] + step);
  }
  return ready;
}

template <DType kType>
void all_panels(const Task& t, int64_t panel_begin, int64_t panel_end, WeightStep* scratch) {
  if (t.words == nullptr && t.row_end - t.row_begin <= kMostRowsInOnePass) {
    for (int64_t p = panel_begin; p < panel_end; ++p) stream_two<kType>(t, p);
    return;
  }
  if (t.words == nullptr) {
    for (int64_t p = panel_begin; p < panel_end; p += 2) {
      multiply_ready<Neighbours>(make_ready<kType>(t, p, p + 1 < panel_end ? p + 1 : p, 2, scratch));
    }
    return;
  }
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    if (t.height == 1) {
      dot_panel<kType>(t, p);
    } else if (t.height <= kMostJoinedRows) {
      stream_panel<kType, WordTiles::kJoined>(t, p);
    } else {
      stream_panel<kType, WordTiles::kOne>(t, p);
    }
  }
}

template <typename Act>
void gated_ready(const ReadyPanels& ready) {
  multiply_ready<GateAndUp<Act>>(ready);
}
template <DType kType>
void gated_panels(const Task& t, Activation activation, int64_t panel_begin, int64_t panel_end, WeightStep* scratch) {
  const int64_t half = t.w->panels() / 2;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const ReadyPanels ready = make_ready<kType>(t, p, half + p, 1, scratch);
    [&] { QUIRE_DISPATCH_ACTIVATION(activation, gated_ready, ready) }();
  }
}

// PreparedRows: tiles of steps or blocks, then a RowStart for each row.
QUIRE_KERNEL_INLINE bool takes_words(int64_t rows) {
  return rows <= kMostWordRows;
}
QUIRE_KERNEL_INLINE int word_height(int64_t rows) {
  return static_cast<int>(rows <= kMostJoinedRows ? rows : kRowTile);
}
QUIRE_KERNEL_INLINE int64_t tile_bytes(const PackedView& w, int64_t rows) {
  return takes_words(rows) ? w.k / kBlock * kWordRowBytes * word_height(rows)
                           : ceil_div(w.k, kStep) * static_cast<int64_t>(sizeof(RowStep));
}
QUIRE_KERNEL_INLINE RowStart* starts_of(const PreparedRows& rows, const PackedView& w) {
  return reinterpret_cast<RowStart*>(rows.data + ceil_div(rows.rows, kRowTile) * tile_bytes(w, rows.rows));
}

// Of Wl Xl, which sums leave out, the mean is half of Xl.
QUIRE_KERNEL_INLINE int32_t mean_of_low(int32_t lows) {
  return lows >> 1;
}

// Packing two vectors works in quarters: where the four bytes that belong together end up.
struct PackedOrder {
  int32_t from[16];
};
constexpr PackedOrder packed_order() {
  PackedOrder order = {};
  for (int i = 0; i < 16; ++i) order.from[i] = i % 4 * 4 + i / 4;
  return order;
}
alignas(64) constexpr PackedOrder kPackedOrder = packed_order();

void prepare_bytes(const float* x, int64_t k, RowStep* out, int r, RowStart* start) {
  const RowUnit unit = row_unit(x, k);
  const __m512i order = _mm512_load_si512(kPackedOrder.from);
  const __m512i byte = _mm512_set1_epi16(0xff);
  __m512i lows = _mm512_setzero_si512();
  const auto high_bytes = [](__m512i words) __attribute__((always_inline)) {
    return _mm512_srai_epi16(_mm512_add_epi16(words, _mm512_set1_epi16(128)), 8);
  };
  for (int64_t i = 0; i < k; i += kStep) {
    const bool whole = i + kStep <= k;
    const __m512i first = _mm512_packs_epi32(fixed_point(x + i, unit), fixed_point(x + i + 16, unit));
    const __m512i second = whole ? _mm512_packs_epi32(fixed_point(x + i + 32, unit), fixed_point(x + i + 48, unit))
                                 : _mm512_setzero_si512();
    const __m512i high = _mm512_packs_epi16(high_bytes(first), high_bytes(second));
    const __m512i low = _mm512_packus_epi16(_mm512_and_si512(first, byte), _mm512_and_si512(second, byte));
    lows = _mm512_dpbusd_epi32(lows, _mm512_set1_epi8(1), low);
    _mm512_store_si512(out[i / kStep].high[r], _mm512_permutexvar_epi32(order, high));
    _mm512_store_si512(out[i / kStep].low[r], _mm512_permutexvar_epi32(order, low));
  }
  *start = {unit.sa, 0, mean_of_low(_mm512_reduce_add_epi32(lows))};
}

// The bytes of 16 numbers, high and low in turns, in the order of the mixed sums, then of the high ones.
struct WordOrder {
  uint8_t from[64];
};
constexpr WordOrder word_order() {
  WordOrder order = {};
  for (int i = 0; i < 32; ++i) {
    const int k = i / 8 * 4 + i % 4 / 2 * 2 + i / 4 % 2;  // 0 and 2 of four, then 1 and 3
    order.from[i] = static_cast<uint8_t>(2 * k + i % 2);
    order.from[32 + i] = static_cast<uint8_t>(2 * k);
  }
  return order;
}
alignas(64) constexpr WordOrder kWordOrder = word_order();
constexpr uint64_t kWordZeros = 0x5555555500000000u;

void prepare_words(const float* x, int64_t k, int8_t* out, int height, RowStart* start) {
  const RowUnit unit = row_unit(x, k);
  const __m512i order = _mm512_load_si512(kWordOrder.from);
  __m512i highs = _mm512_setzero_si512();
  __m512i lows = _mm512_setzero_si512();
  for (int64_t i = 0; i < k; i += 16) {
    const __m512i v = fixed_point(x + i, unit);
    const __m512i high = high_part(v);
    const __m512i low = _mm512_sub_epi32(v, _mm512_slli_epi32(high, 8));
    highs = _mm512_add_epi32(highs, high);
    lows = _mm512_add_epi32(lows, low);
    const __m512i both = _mm512_or_si512(_mm512_and_si512(high, _mm512_set1_epi32(0xff)), _mm512_slli_epi32(low, 8));
    const __m512i bytes =
        _mm512_maskz_permutexvar_epi8(~kWordZeros, order, _mm512_castsi256_si512(_mm512_cvtepi32_epi16(both)));
    int8_t* to = out + i / kBlock * kWordRowBytes * height + i % kBlock * 2;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(bytes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 64 * height), _mm512_extracti64x4_epi64(bytes, 1));
  }
  const int32_t high = _mm512_reduce_add_epi32(highs);
  const int32_t low = _mm512_reduce_add_epi32(lows);
  *start = {unit.sa, -128 * high, mean_of_low(low) - 128 * low};
}

}  // namespace

int64_t linear_prepared_bytes(const PackedView& w, int64_t rows) {
  if (w.dtype == DType::kBF16) return rounded_bytes(w, rows);
  return ceil_div(rows, kRowTile) * tile_bytes(w, rows) + rows * static_cast<int64_t>(sizeof(RowStart));
}

void linear_prepare(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& out) {
  if (w.dtype == DType::kBF16) return rounded_prepare(x, w, row_begin, row_end, out);
  RowStart* starts = starts_of(out, w);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* from = static_cast<const float*>(x.data) + row * x.stride;
    std::byte* tile = out.data + row / kRowTile * tile_bytes(w, out.rows);
    const int r = static_cast<int>(row % kRowTile);
    if (takes_words(out.rows)) {
      prepare_words(from, w.k, reinterpret_cast<int8_t*>(tile) + 64 * r, word_height(out.rows), starts + row);
    } else {
      prepare_bytes(from, w.k, reinterpret_cast<RowStep*>(tile), r, starts + row);
    }
  }
}

static Task task_of(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                    int64_t row_end) {
  const std::byte* tile = x.data + row_begin / kRowTile * tile_bytes(w, x.rows);
  Task t;
  t.w = &w;
  t.args = &args;
  t.start = starts_of(x, w) + row_begin;
  t.x = reinterpret_cast<const RowStep*>(tile);
  t.words = takes_words(x.rows) ? reinterpret_cast<const int8_t*>(tile) : nullptr;
  t.blocks = w.k / kBlock;
  t.steps = ceil_div(w.k, kStep);
  t.row_begin = row_begin;
  t.row_end = row_end;
  t.height = word_height(x.rows);
  return t;
}

void linear_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  if (w.dtype == DType::kBF16) return rounded_product(x, w, args, row_begin, row_end, panel_begin, panel_end);
  const Task t = task_of(x, w, args, row_begin, row_end);
  configure_tiles(t.height <= kMostJoinedRows ? 2 * t.height : kRowTile, kPanel);
  [&] { QUIRE_DISPATCH_QUANT(w.dtype, all_panels, t, panel_begin, panel_end, static_cast<WeightStep*>(scratch)) }();
  release_tiles();
}

bool linear_gated(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                  int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  if (w.dtype == DType::kBF16) return rounded_gated(x, w, args, row_begin, row_end, panel_begin, panel_end);
  if (x.rows <= kMostRowsInOnePass || args.gated->limit > 0) return false;
  const Task t = task_of(x, w, args, row_begin, row_end);
  configure_tiles(kRowTile, kPanel);
  [&] {
    QUIRE_DISPATCH_QUANT(w.dtype, gated_panels, t, args.gated->activation, panel_begin, panel_end,
                         static_cast<WeightStep*>(scratch))
  }();
  release_tiles();
  return true;
}

}  // namespace quire::cpu::QUIRE_ISA_NS
