// SPDX-License-Identifier: Apache-2.0
// Layouts of packed weights and of the activations that are multiplied with them.
//
// A weight [N, K] is divided into panels of 16 columns (outputs n); the last is padded with zero codes and scales.
//  - plain (F32, F16, BF16): a panel is [k][16 columns] in the weight's own type.
//  - quantised: K is divided into blocks of 32. A panel has the codes of all its blocks, then their scales.
// This is Packing::kColumns; some ISA levels use other packings for their products.
//
// Codes of one block: 16 columns x 32 k, unsigned, seen as 8 groups of 64 bytes: byte 4*column + j of group g is the
// code of k = 4g + j (the operand order of vpdpbusd and sdot). They are stored in bit planes, low bits first:
//   8 bits: 8 x 64 bytes, the groups themselves
//   4 bits: 4 x 64 bytes, vector i: low nibbles are group 2i, high nibbles group 2i+1
//   2 bits: 2 x 64 bytes, vector i: bits 2s, 2s+1 are group 4i+s
//   1 bit:  8 x uint64, bit j of word g is byte j of group g
//
// Packing::kRows, BF16 for AMX: [pair of k][16 columns][2 k], K padded with zeros to blocks of 32.
//
// Packing::kFixed, quantised weights for AMX: kColumns with the highest bit of a code flipped, which makes it signed
// (tables: not), and behind the scales of each panel 16 floats: the bounds of its columns (see FixedForm), zero if
// tiny.
//
// Packing::kPairs, for smmla and bfmmla, which multiply two columns side by side. Eight columns of all blocks are
// stored together, [half][block][quad of 4 columns]; a quad's block is seen as 8 vectors of 16 bytes, vector 2s + p: k
// 8s to 8s + 7 of columns 2p and 2p + 1 of the quad, byte 8 * (column % 2) + k % 8. Bit planes:
//   8 bits: the 8 vectors themselves
//   4 bits: 4 vectors, 2h + p: low nibbles are step s = 2h, high nibbles step 2h + 1
//   2 bits: 2 vectors, p: bits 2s, 2s + 1 are step s
//   1 bit:  1 vector: bit 2s + p is vector 2s + p
// Q8_0 and Q4_0 have the highest bit of a code flipped, which makes it signed. BF16 is [4 k][8 column pairs]
// [2 columns][4 k], K padded with zeros to whole blocks.
//
// Scales, by scheme (fp16 means 16 of them, one per column):
//   kScale       [block]: fp16 d
//   kScaleMin    [block]: fp16 d, fp16 m
//   kSuperMin    [super-block of 8 blocks]: fp16 d, fp16 dmin, then 8 x {u8 sc[16], u8 mn[16]}
//   kSubScale    [super-block]: fp16 d, then 8 x {i8 sc_lo[16], i8 sc_hi[16]}                (sub-blocks of 16 k)
//   kSubScaleMin [super-block]: fp16 d, fp16 dmin, then 8 x {u8 lo[16], u8 hi[16]}, each sc | mn << 4
//   kGroupMin    [group of 2^group_shift blocks]: float d, float m
//   kSuperScale  [super-block]: fp16 d, then 8 x i8 sc[16]
//   kExponent    [block]: u8 e[16], for 2^(e-128); 0: zero
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/math.h"
#include "ops/dtype.h"

namespace quire::cpu {

constexpr int kPanel = 16;      // columns in a panel
constexpr int kBlock = 32;      // k in a block
constexpr int kSuperBlock = 8;  // blocks in a K-quant's super-block
constexpr int kCodeMax = 2032;  // largest activation code: 127 * 16
constexpr int kRowTile = 16;    // rows in a tile of quantised activations
// Bytes of activations (for experts: of their rows) that one piece of a product reads repeatedly: they should stay in
// L2.
constexpr int64_t kRowBlockBytes = 1 << 20;
constexpr int kReadyBlockBytes = 1280;  // the most that any level's unpacked block takes

// At most so many panels, for pieces of work: kernels take four side by side (AVX-512, up to eight rows) or two, and a
// piece begins at an even panel.
constexpr int64_t whole_sets(int64_t panels) {
  return panels < 4 ? 2 : panels / 4 * 4;
}
static_assert(whole_sets(0) == 2 && whole_sets(3) == 2 && whole_sets(7) == 4 && whole_sets(8) == 8);

enum class Scheme : uint8_t {
  kPlain,
  kScale,
  kScaleMin,
  kSuperMin,
  kSubScale,
  kSubScaleMin,
  kGroupMin,
  kSuperScale,
  kExponent
};

// Codes that are indices into a table of 16 values (ops/dtype.h).
enum class CodeTable : uint8_t { kNone, kIq4, kFp4 };

struct QuantFormat {
  Scheme scheme;
  uint8_t low_bits;   // 8, 4 or 2
  uint8_t high_bits;  // 0, 1 or 2: code = low | high << low_bits
  uint8_t offset;     // is subtracted from a code, or from its table's entry
  CodeTable table = CodeTable::kNone;
};

// Always inlined: as a function of its own it would be shared by objects of several ISA levels.
[[gnu::always_inline]] constexpr QuantFormat quant_format(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return {Scheme::kScale, 8, 0, 128};
    case DType::kQ4_0:
      return {Scheme::kScale, 4, 0, 8};
    case DType::kQ5_0:
      return {Scheme::kScale, 4, 1, 16};
    case DType::kQ4_1:
      return {Scheme::kScaleMin, 4, 0, 0};
    case DType::kQ5_1:
      return {Scheme::kScaleMin, 4, 1, 0};
    case DType::kQ4_K:
      return {Scheme::kSuperMin, 4, 0, 0};
    case DType::kQ5_K:
      return {Scheme::kSuperMin, 4, 1, 0};
    case DType::kQ6_K:
      return {Scheme::kSubScale, 4, 2, 32};
    case DType::kQ3_K:
      return {Scheme::kSubScale, 2, 1, 4};
    case DType::kQ2_K:
      return {Scheme::kSubScaleMin, 2, 0, 0};
    case DType::kG4:
      return {Scheme::kGroupMin, 4, 0, 0};
    case DType::kG8:
      return {Scheme::kGroupMin, 8, 0, 128};
    case DType::kIQ4_NL:
      return {Scheme::kScale, 4, 0, 128, CodeTable::kIq4};
    case DType::kIQ4_XS:
      return {Scheme::kSuperScale, 4, 0, 128, CodeTable::kIq4};
    case DType::kMXFP4:
      return {Scheme::kExponent, 4, 0, 128, CodeTable::kFp4};
    default:
      return {Scheme::kPlain, 0, 0, 0};
  }
}

constexpr bool has_table(QuantFormat f) {
  return f.table != CodeTable::kNone;
}
constexpr const int8_t* table_values(QuantFormat f) {
  return f.table == CodeTable::kFp4 ? kFp4Values : kIq4Values;
}
// The table repeated four times to fill a register, each entry plus `add`.
struct TableBytes {
  uint8_t bytes[64];
};
constexpr TableBytes table_bytes(QuantFormat f, int add) {
  TableBytes out = {};
  for (int i = 0; i < 64; ++i) out.bytes[i] = static_cast<uint8_t>(table_values(f)[i % 16] + add);
  return out;
}

// Bytes of one block's codes.
constexpr int code_bytes(QuantFormat f) {
  return 64 * (f.low_bits + f.high_bits);
}
// Blocks that share one header of scales (kGroupMin: see scale_record_at), the header's bytes, and the bytes of the
// whole record of scales.
constexpr int scale_group(QuantFormat f) {
  return f.scheme == Scheme::kScale || f.scheme == Scheme::kScaleMin || f.scheme == Scheme::kGroupMin ||
                 f.scheme == Scheme::kExponent
             ? 1
             : kSuperBlock;
}
constexpr int scale_header_bytes(QuantFormat f) {
  switch (f.scheme) {
    case Scheme::kGroupMin:
      return 8 * kPanel;
    case Scheme::kExponent:
      return kPanel;
    case Scheme::kScale:
    case Scheme::kSubScale:
    case Scheme::kSuperScale:
      return 2 * kPanel;
    default:
      return 4 * kPanel;
  }
}
// Bytes of one block's own part in a super-block's record.
constexpr int block_scale_bytes(QuantFormat f) {
  return f.scheme == Scheme::kSuperScale ? kPanel : 2 * kPanel;
}
constexpr int scale_bytes(QuantFormat f) {
  return scale_header_bytes(f) + (scale_group(f) == 1 ? 0 : kSuperBlock * block_scale_bytes(f));
}
// A block's record, in bytes from the panel's scales.
constexpr int64_t scale_record_at(QuantFormat f, int64_t block, int group_shift) {
  const int64_t record = f.scheme == Scheme::kGroupMin ? block >> group_shift : block / scale_group(f);
  return record * scale_bytes(f);
}
constexpr bool has_min(QuantFormat f) {
  return f.scheme == Scheme::kScaleMin || f.scheme == Scheme::kSuperMin || f.scheme == Scheme::kSubScaleMin ||
         f.scheme == Scheme::kGroupMin;
}
// Sub-blocks of 16 k with integer scales of their own.
constexpr bool has_halves(QuantFormat f) {
  return f.scheme == Scheme::kSubScale || f.scheme == Scheme::kSubScaleMin;
}
// Types whose rows of x need a second sum: halves, and a minimum beside an offset.
constexpr bool has_second_sum(QuantFormat f) {
  return has_halves(f) || (has_min(f) && f.offset != 0);
}

// How kFixed makes 16-bit numbers of a type's codes: a code, less half of its range (a table's entry as it is), is a
// signed number q of `bits` bits, and a weight is q * sw + o with o = wm + shift * sw.
struct FixedForm {
  int bits;
  int half;   // 2^(bits - 1)
  int shift;  // half less the type's offset
};
constexpr FixedForm fixed_form(QuantFormat f) {
  if (f.table == CodeTable::kFp4) return {5, 16, 0};
  if (f.table == CodeTable::kIq4) return {8, 128, 0};
  const int bits = f.low_bits + f.high_bits;
  return {bits, 1 << (bits - 1), (1 << (bits - 1)) - f.offset};
}
// The bit of a code that kFixed flips.
constexpr int fixed_flip(QuantFormat f) {
  return has_table(f) ? 0 : fixed_form(f).half;
}
constexpr float kFixedMax = 32256.0f;  // 126 * 256: the largest magnitude of a fixed-point number
// Whether |w| <= bound is so small that a column or a row counts as zero.
constexpr float kFixedTiny = 0x1p-100f;
constexpr int64_t kBoundBytes = kPanel * static_cast<int64_t>(sizeof(float));

enum class Packing : uint8_t { kColumns, kRows, kPairs, kFixed };

// The packings that a level's product takes. BF16 in kColumns means that it takes none: `plain` multiplies them.
struct Packings {
  Packing quantised = Packing::kColumns;
  Packing bf16 = Packing::kColumns;
};

// Packing::kPairs: the place of a code's bits in its quad's plane, and the bits that are flipped.
struct PlanePlace {
  int byte;
  int shift;
};
constexpr PlanePlace pair_place(int bits, int column, int k) {
  const int step = k / 8;
  const int pair = column % 4 / 2;
  const int byte = 8 * (column % 2) + k % 8;
  switch (bits) {
    case 8:
      return {16 * (2 * step + pair) + byte, 0};
    case 4:
      return {16 * (step / 2 * 2 + pair) + byte, step % 2 * 4};
    case 2:
      return {16 * pair + byte, 2 * step};
    default:
      return {byte, 2 * step + pair};
  }
}
constexpr int pair_flip(QuantFormat f) {
  return f.high_bits == 0 && !has_table(f) ? f.offset : 0;
}
// The planes of one column's quad in one block begin here, in bytes from the panel's start.
constexpr int64_t pair_codes_at(QuantFormat f, int64_t blocks, int64_t block, int column) {
  return ((column / 8 * blocks + block) * 2 + column % 8 / 4) * (code_bytes(f) / 4);
}
// BF16 in kPairs: the element's index in the panel.
constexpr int64_t pair_element_at(int column, int64_t k) {
  return k / 4 * 4 * kPanel + column * 4 + k % 4;
}

// A packed weight as kernels see it: a view that owns nothing. Panels are aligned to 64 bytes.
struct PackedView {
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  const uint8_t* data = nullptr;
  int64_t panel_stride = 0;  // bytes
  int64_t scale_offset = 0;  // bytes from a panel's start to its scales
  int64_t bound_offset = 0;  // kFixed: bytes from a panel's start to its bounds
  Packing packing = Packing::kColumns;
  int group_shift = 0;  // kGroupMin: 2^group_shift blocks share scales
  // What a thread is expected to read after the last panel, or null: kernels prefetch there, nothing else.
  const uint8_t* soon = nullptr;

  int64_t panels() const { return ceil_div(n, kPanel); }
  const uint8_t* panel(int64_t p) const { return data + p * panel_stride; }
  // Where to prefetch panel p, which may be behind the last one.
  const uint8_t* panel_ahead(int64_t p) const {
    return soon == nullptr || p < panels() ? panel(p) : soon + (p - panels()) * panel_stride;
  }
};

// The activations of one linear, prepared for its weight in the form of the ISA level: a view.
struct PreparedRows {
  std::byte* data = nullptr;  // aligned to 64
  int64_t rows = 0;
};

// One block of 16 rows of quantised activations; x in [tile][block]. A code of 12 bits is kept as two bytes,
// X = 16 * high + low with low in -8..7, so that byte dot products serve: dot(q, X) = 16 dot(q, high) + dot(q, low),
// exact in integers. A row of 64 bytes is the high parts, then the low ones. The contents of `aux` follow from the
// weight's scheme:
//   offset types: int32 -(offset * xsum);  32-wide minimum types: float sa * float(xsum)
//   types with halves: int32 of the low 16 k (kSubScale: -(offset * xsum_lo); kSubScaleMin: xsum_lo)
// and `high`, for types with a second sum: the same of the high 16 k; or, with a minimum and an offset,
// int32 -(offset * xsum).
struct RowTileBlock {
  int8_t codes[kRowTile][2 * kBlock];
  float sa[kRowTile];
  int32_t aux[kRowTile];
};
static_assert(sizeof(RowTileBlock) == 1152);

// PreparedRows of the levels that quantise activations. Rows past `rows` in the last tile are undefined.
struct QuantisedRows {
  RowTileBlock* tiles = nullptr;        // [ceil(rows/16)][blocks]
  int32_t (*high)[kRowTile] = nullptr;  // [ceil(rows/16)][blocks]: the second sums, if any
  int64_t rows = 0;
  int64_t blocks = 0;
};

// Both arrays one after the other in the memory of PreparedRows.
constexpr int64_t row_tile_blocks(int64_t rows, int64_t k) {
  return ceil_div(rows, kRowTile) * (k / kBlock);
}
constexpr int64_t quantised_rows_bytes(DType weight, int64_t rows, int64_t k) {
  const bool second = has_second_sum(quant_format(weight));
  return row_tile_blocks(rows, k) *
         static_cast<int64_t>(sizeof(RowTileBlock) + (second ? sizeof(int32_t[kRowTile]) : 0));
}
inline QuantisedRows quantised_rows(const PreparedRows& x, const PackedView& w) {
  QuantisedRows q;
  q.rows = x.rows;
  q.blocks = w.k / kBlock;
  q.tiles = reinterpret_cast<RowTileBlock*>(x.data);
  if (has_second_sum(quant_format(w.dtype))) {
    q.high = reinterpret_cast<int32_t(*)[kRowTile]>(q.tiles + row_tile_blocks(x.rows, w.k));
  }
  return q;
}

}  // namespace quire::cpu
