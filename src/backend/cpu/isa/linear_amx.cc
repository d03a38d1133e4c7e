// SPDX-License-Identifier: Apache-2.0
// linear of quantised weights with AMX: a tile is 16 rows x 16 columns of dots over one block of 32 k.
//
// Activations have 8 bits and a sign in units of a power of two, one per block: they are exact in bf16 with their
// scale. Codes are small integers, exact in bf16 as well, and so is every sum of their products in a block. So the
// tiles give, in float and in whatever order, just what the integer dots of the other kernels give, which serve few
// rows; and all that is left of the scales is one fma per dot (and one for a minimum). Blocks run through three stages:
// multiplied, two later stored, two later folded into sixteen accumulators that stay in registers.
//
// (Rounding the scaled weights to bf16 and leaving the sums of all K to the tiles, the level amx_bf16, is half again as
// fast with many rows and slower by a third with one: rounding a weight costs more than multiplying it.)
#include "backend/cpu/isa/linear_amx.h"
#include "backend/cpu/isa/linear_avx512.h"
#include "backend/cpu/isa/tiles_amx.h"

namespace quire::cpu::avx512 {
void linear_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
}

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

// A prepared block of a panel: codes less their offset, [pair of k][column], and scales.
struct alignas(64) CodeTile {
  uint16_t codes[16][kPanel][2];
  float sw[kPanel];
  float wm[kPanel];
};
static_assert(sizeof(CodeTile) <= kReadyBlockBytes);

// A block of a tile of rows: values, and the sum of each row's. The two k of pair 2g + h are 4g + h and 4g + h + 2:
// what two bytes apart gives from packed codes without moving them.
struct alignas(64) RowTile {
  uint16_t values[kRowTile][kBlock];
  float sums[kRowTile];
};

// From this many rows on tiles are faster than integer dots, one row at a time.
constexpr int64_t kLeastRows = 4;

QUIRE_KERNEL_INLINE bool takes_tiles(DType type, int64_t rows) {
  return rows >= kLeastRows && !has_halves(quant_format(type));
}

struct CodeWords {
  uint16_t values[32];
};
// bf16 of code - offset, or of the table's entry. Codes of four bits find theirs whatever the fifth bit is.
constexpr CodeWords code_words(QuantFormat format) {
  CodeWords table = {};
  for (int i = 0; i < 32; ++i) {
    const int code = format.low_bits + format.high_bits == 4 ? i % 16 : i;
    const int value = has_table(format) ? table_values(format)[code] : code - format.offset;
    int magnitude = value < 0 ? -value : value;
    int exponent = 134;  // of 128 to 255
    while (magnitude != 0 && magnitude < 128) {
      magnitude *= 2;
      --exponent;
    }
    const int bits = magnitude == 0 ? 0 : exponent << 7 | (magnitude & 127);
    table.values[i] = static_cast<uint16_t>(bits | (value < 0 ? 0x8000 : 0));
  }
  return table;
}
template <DType kType>
alignas(64) constexpr CodeWords kCodeWords = code_words(quant_format(kType));

// Signed bytes 0 and 2 (or, shifted before, 1 and 3) of each lane as bf16, times 2^24.
QUIRE_KERNEL_INLINE __m512i bytes_to_bf16(__m512i low, __m512i high) {
  const __m512i even = _mm512_castps_si512(_mm512_cvtepi32_ps(low));
  const __m512i odd = _mm512_castps_si512(_mm512_cvtepi32_ps(high));
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(even, 16), odd, _mm512_set1_epi32(-0x10000), 0xf8);
}

// Where a panel's codes and scales are.
struct PanelPlace {
  const uint8_t* codes;
  int64_t scale_offset;
  int group_shift;
};

template <DType kType>
QUIRE_KERNEL_INLINE void unpack_block(const PanelPlace& p, int64_t block, CodeTile& out) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const uint8_t* codes = p.codes + block * code_bytes(kFormat);
  Scales512 s = load_scales<kType>(p.codes + p.scale_offset, block, p.group_shift);
  if constexpr (kFormat.low_bits == 8) {
    const __m512i top = _mm512_set1_epi32(-0x1000000);
    for (int g = 0; g < 8; ++g) {
      const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(codes + 64 * g), _mm512_set1_epi8(-128));
      const __m512i b0 = _mm512_slli_epi32(v, 24);
      const __m512i b1 = _mm512_and_si512(_mm512_slli_epi32(v, 16), top);
      const __m512i b2 = _mm512_and_si512(_mm512_slli_epi32(v, 8), top);
      const __m512i b3 = _mm512_and_si512(v, top);
      _mm512_store_si512(out.codes[2 * g], bytes_to_bf16(b0, b2));
      _mm512_store_si512(out.codes[2 * g + 1], bytes_to_bf16(b1, b3));
    }
    s.sw = _mm512_mul_ps(s.sw, _mm512_set1_ps(0x1p-24f));
  } else {
    const __m512i table = _mm512_load_si512(kCodeWords<kType>.values);
    if constexpr (kFormat.high_bits == 0) {
      for (int i = 0; i < 4; ++i) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * i);
        _mm512_store_si512(out.codes[4 * i], _mm512_permutexvar_epi16(v, table));
        _mm512_store_si512(out.codes[4 * i + 1], _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), table));
        _mm512_store_si512(out.codes[4 * i + 2], _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), table));
        _mm512_store_si512(out.codes[4 * i + 3], _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), table));
      }
    } else {
      const Codes512 bytes = load_codes<kType>(codes);
      for (int g = 0; g < 8; ++g) {
        _mm512_store_si512(out.codes[2 * g], _mm512_permutexvar_epi16(bytes.group[g], table));
        _mm512_store_si512(out.codes[2 * g + 1], _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes.group[g], 8), table));
      }
    }
  }
  _mm512_store_ps(out.sw, s.sw);
  if constexpr (has_min(kFormat)) _mm512_store_ps(out.wm, s.wm);
}

using Dots = float[kRowTile][kPanel];

// What one tile of rows and one panel need.
struct TileTask {
  PanelPlace panel;
  int64_t panel_stride;
  const RowTile* x;
  int64_t blocks;
  float* out;  // first row, first column
  int64_t out_stride;
  const float* bias;  // of the first column, or null
  int columns;
  int rows;
};

template <int kRows, bool kMin>
QUIRE_KERNEL_INLINE void fold(__m512* acc, const Dots& dots, const CodeTile& w, const RowTile& x) {
  const __m512 sw = _mm512_load_ps(w.sw);
  const __m512 wm = kMin ? _mm512_load_ps(w.wm) : _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    acc[r] = _mm512_fmadd_ps(_mm512_load_ps(dots[r]), sw, acc[r]);
    if constexpr (kMin) acc[r] = _mm512_fmadd_ps(wm, _mm512_set1_ps(x.sums[r]), acc[r]);
  }
}

// Prefetches a share of the next panel, which follows this one in memory, with each block: otherwise few rows would
// wait for memory.
QUIRE_KERNEL_INLINE void prefetch_share(const TileTask& t, int64_t block) {
  const int64_t share = t.panel_stride / t.blocks;
  const uint8_t* soon = t.panel.codes + t.panel_stride + block * share;
  for (int64_t i = 0; i < share; i += 64) _mm_prefetch(soon + i, _MM_HINT_T0);
}

constexpr int64_t kRing = 8;  // blocks on their way through the stages; a power of two

// The stages of block i at step i (sums c), i + 2 and i + 4. kEdge: not all of them exist.
#define QUIRE_STAGES(i, c, c_store, a, b)                                                                \
  do {                                                                                                   \
    const int64_t at = (i);                                                                              \
    if constexpr (kStream) {                                                                             \
      if (!kEdge || at + 1 < t.blocks) unpack_block<kType>(t.panel, at + 1, ring[(at + 1) % kRing]);     \
      if (!kEdge || at < t.blocks) prefetch_share(t, at);                                                \
    }                                                                                                    \
    if (!kEdge || at < t.blocks) {                                                                       \
      QUIRE_TILE_LOAD(a, t.x[at].values, 64);                                                            \
      QUIRE_TILE_LOAD(b, tile_of(at).codes, 64);                                                         \
      QUIRE_TILE_ZERO(c);                                                                                \
      QUIRE_TILE_MULTIPLY(c, a, b);                                                                      \
    }                                                                                                    \
    if (!kEdge || (at >= 2 && at - 2 < t.blocks)) QUIRE_TILE_STORE(c_store, dots[(at - 2) % kRing], 64); \
    if (!kEdge || (at >= 4 && at - 4 < t.blocks)) {                                                      \
      fold<kRows, kMin>(acc, dots[(at - 4) % kRing], tile_of(at - 4), t.x[at - 4]);                      \
    }                                                                                                    \
  } while (0)

// One tile of rows times one panel. kStream: blocks are unpacked on the way; else `ready` has them all.
template <DType kType, int kRows, bool kStream>
static __attribute__((noinline)) void tile_times_panel(const TileTask& t, const CodeTile* ready) {
  constexpr bool kMin = has_min(quant_format(kType));
  alignas(64) Dots dots[kRing];
  CodeTile ring[kStream ? kRing : 1];
  const auto tile_of = [&](int64_t i) __attribute__((always_inline))->const CodeTile& {
    return kStream ? ring[i % kRing] : ready[i];
  };
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
  if constexpr (kStream) unpack_block<kType>(t.panel, 0, ring[0]);
  for (int64_t i = 0; i < t.blocks + 4; i += 4) {
    if (i >= 4 && i + 4 < t.blocks) {
      constexpr bool kEdge = false;
      QUIRE_STAGES(i, 0, 2, 4, 6);
      QUIRE_STAGES(i + 1, 1, 3, 5, 7);
      QUIRE_STAGES(i + 2, 2, 0, 4, 6);
      QUIRE_STAGES(i + 3, 3, 1, 5, 7);
    } else {
      constexpr bool kEdge = true;
      QUIRE_STAGES(i, 0, 2, 4, 6);
      QUIRE_STAGES(i + 1, 1, 3, 5, 7);
      QUIRE_STAGES(i + 2, 2, 0, 4, 6);
      QUIRE_STAGES(i + 3, 3, 1, 5, 7);
    }
  }
  store_rows<kRows>(t, acc);
}
#undef QUIRE_STAGES

struct Product {
  const RowTile* x;  // all rows
  const PackedView* w;
  const LinearArgs* args;
  int64_t blocks;
  int64_t row_begin;
  int64_t row_end;
};

QUIRE_KERNEL_INLINE TileTask tile_task(const Product& p, int64_t row, int64_t panel) {
  TileTask t;
  t.panel = {p.w->panel(panel), p.w->scale_offset, p.w->group_shift};
  t.panel_stride = p.w->panel_stride;
  t.x = p.x + row / kRowTile * p.blocks;
  t.blocks = p.blocks;
  t.out = static_cast<float*>(p.args->out.data) + row * p.args->out.stride + panel * kPanel;
  t.out_stride = p.args->out.stride;
  t.bias = p.args->bias == nullptr ? nullptr : p.args->bias + panel * kPanel;
  t.columns = static_cast<int>(p.w->n - panel * kPanel < kPanel ? p.w->n - panel * kPanel : kPanel);
  t.rows = static_cast<int>(p.row_end - row < kRowTile ? p.row_end - row : kRowTile);
  return t;
}

template <DType kType>
static __attribute__((noinline)) void unpack_panel(const TileTask& t, CodeTile* out) {
  for (int64_t b = 0; b < t.blocks; ++b) unpack_block<kType>(t.panel, b, out[b]);
}

template <DType kType>
void all_panels(const Product& p, int64_t panel_begin, int64_t panel_end, CodeTile* scratch) {
  const int64_t rows = p.row_end - p.row_begin;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const TileTask first = tile_task(p, p.row_begin, panel);
    if (rows <= kRowTile / 2) {
      tile_times_panel<kType, kRowTile / 2, true>(first, nullptr);
    } else if (rows <= kRowTile) {
      tile_times_panel<kType, kRowTile, true>(first, nullptr);
    } else {
      unpack_panel<kType>(first, scratch);
      for (int64_t row = p.row_begin; row < p.row_end; row += kRowTile) {
        tile_times_panel<kType, kRowTile, false>(tile_task(p, row, panel), scratch);
      }
    }
  }
}

void multiply(const Product& p, int64_t panel_begin, int64_t panel_end, CodeTile* scratch) {
  switch (p.w->dtype) {
    case DType::kQ8_0:
      return all_panels<DType::kQ8_0>(p, panel_begin, panel_end, scratch);
    case DType::kQ4_0:
      return all_panels<DType::kQ4_0>(p, panel_begin, panel_end, scratch);
    case DType::kQ4_1:
      return all_panels<DType::kQ4_1>(p, panel_begin, panel_end, scratch);
    case DType::kQ5_0:
      return all_panels<DType::kQ5_0>(p, panel_begin, panel_end, scratch);
    case DType::kQ5_1:
      return all_panels<DType::kQ5_1>(p, panel_begin, panel_end, scratch);
    case DType::kQ4_K:
      return all_panels<DType::kQ4_K>(p, panel_begin, panel_end, scratch);
    case DType::kIQ4_NL:
      return all_panels<DType::kIQ4_NL>(p, panel_begin, panel_end, scratch);
    case DType::kIQ4_XS:
      return all_panels<DType::kIQ4_XS>(p, panel_begin, panel_end, scratch);
    case DType::kMXFP4:
      return all_panels<DType::kMXFP4>(p, panel_begin, panel_end, scratch);
    case DType::kG4:
      return all_panels<DType::kG4>(p, panel_begin, panel_end, scratch);
    case DType::kG8:
      return all_panels<DType::kG8>(p, panel_begin, panel_end, scratch);
    default:
      return all_panels<DType::kQ5_K>(p, panel_begin, panel_end, scratch);
  }
}

alignas(64) constexpr uint16_t kPairOrder[32] = {0,  2,  1,  3,  4,  6,  5,  7,  8,  10, 9,  11, 12, 14, 13, 15,
                                                 16, 18, 17, 19, 20, 22, 21, 23, 24, 26, 25, 27, 28, 30, 29, 31};
// 2^-90 and 2^90, as in linear_prepare.cc.
constexpr uint32_t kTinyBits = 0x12800000;
constexpr uint32_t kHugeBits = 0x6c800000;

// One block of one row: rounded to multiples of a power of two, of which the largest has 128 to 256.
QUIRE_KERNEL_INLINE void round_block(const float* x, RowTile& out, int r) {
  const __m512 low = _mm512_loadu_ps(x);
  const __m512 high = _mm512_loadu_ps(x + 16);
  const __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
  const __m512i most = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                        _mm512_and_si512(_mm512_castps_si512(high), magnitude));
  const uint32_t bits = _mm512_reduce_max_epu32(most);
  if (bits < kTinyBits || bits >= kHugeBits) {
    const bool broken = bits >= kHugeBits;
    _mm512_store_si512(out.values[r], _mm512_set1_epi16(static_cast<int16_t>(broken ? 0x7fc0 : 0)));
    out.sums[r] = broken ? __builtin_nanf("") : 0.0f;
    return;
  }
  // 1.5 * 2^23 units: what is added to it is rounded to whole units, half to even.
  const __m512 shift =
      _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(((bits & 0x7f800000u) + (16u << 23)) | 0x400000u)));
  const __m512 a = _mm512_sub_ps(_mm512_add_ps(low, shift), shift);
  const __m512 b = _mm512_sub_ps(_mm512_add_ps(high, shift), shift);
  const auto pairs = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
  _mm512_store_si512(out.values[r], _mm512_permutexvar_epi16(_mm512_load_si512(kPairOrder), pairs));
  out.sums[r] = _mm512_reduce_add_ps(_mm512_add_ps(a, b));  // exact
}

}  // namespace

int64_t linear_prepared_bytes(const PackedView& w, int64_t rows) {
  if (w.dtype == DType::kBF16) return rounded_bytes(w, rows);
  if (!takes_tiles(w.dtype, rows)) return linear_quantised_bytes(w, rows);
  return row_tile_blocks(rows, w.k) * static_cast<int64_t>(sizeof(RowTile));
}

void linear_prepare(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& out) {
  if (w.dtype == DType::kBF16) return rounded_prepare(x, w, row_begin, row_end, out);
  if (!takes_tiles(w.dtype, out.rows)) return linear_quantise(x, w, row_begin, row_end, out);
  const int64_t blocks = w.k / kBlock;
  auto* tiles = reinterpret_cast<RowTile*>(out.data);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* from = static_cast<const float*>(x.data) + row * x.stride;
    RowTile* tile = tiles + row / kRowTile * blocks;
    for (int64_t b = 0; b < blocks; ++b) round_block(from + b * kBlock, tile[b], static_cast<int>(row % kRowTile));
  }
}

void linear_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  if (w.dtype == DType::kBF16) return rounded_product(x, w, args, row_begin, row_end, panel_begin, panel_end, scratch);
  if (!takes_tiles(w.dtype, x.rows)) {
    return avx512::linear_product(x, w, args, row_begin, row_end, panel_begin, panel_end, scratch);
  }
  const Product p = {reinterpret_cast<const RowTile*>(x.data), &w, &args, w.k / kBlock, row_begin, row_end};
  configure_tiles(row_end - row_begin <= kRowTile / 2 ? kRowTile / 2 : kRowTile, kPanel);
  multiply(p, panel_begin, panel_end, static_cast<CodeTile*>(scratch));
  release_tiles();
}

}  // namespace quire::cpu::QUIRE_ISA_NS
