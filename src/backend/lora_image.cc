// SPDX-License-Identifier: Apache-2.0
// Arranging the matrices of an adapter.
#include "backend/lora_image.h"

#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "base/math.h"
#include "base/parallel.h"

namespace quire {
namespace {

constexpr int64_t kPartAlign = 64;  // bytes

int64_t matrix_bytes(DType dtype, int64_t rows, int64_t cols) {
  return round_up(rows * lora_padded(cols) * info(dtype).block_bytes, kPartAlign);
}

int64_t rank_of(std::span<const LoraPart> parts) {
  int64_t rank = 0;
  for (const LoraPart& part : parts) rank += part.a.empty() ? 0 : part.rank;
  return rank;
}

}  // namespace

LoraImage::LoraImage(int64_t num_sites, DType dtype) : dtype_(dtype) {
  reserve(header_bytes(num_sites));
}

int64_t LoraImage::header_bytes(int64_t num_sites) {
  return round_up(num_sites * static_cast<int64_t>(sizeof(LoraSite)), kPartAlign);
}

int64_t LoraImage::site_bytes(DType dtype, int64_t k, int64_t rank, std::span<const LoraPart> parts) {
  int64_t total = matrix_bytes(dtype, k, rank) + matrix_bytes(DType::kF32, 1, rank) +
                  round_up(std::ssize(parts) * static_cast<int64_t>(sizeof(LoraSlice)), kPartAlign);
  for (const LoraPart& part : parts) total += matrix_bytes(dtype, part.rank, part.n);
  return total;
}

int64_t LoraImage::reserve(int64_t bytes) {
  const auto at = static_cast<int64_t>(bytes_.size());
  bytes_.resize(bytes_.size() + static_cast<size_t>(round_up(bytes, kPartAlign)));
  return at;
}

template <typename Get>
int64_t LoraImage::matrix(int64_t rows, int64_t cols, const Get& get) {
  const int64_t padded = lora_padded(cols);
  const int64_t at = reserve(rows * padded * info(dtype_).block_bytes);
  std::byte* out = bytes_.data() + at;
  parallel_blocks(rows, std::max<int64_t>(1, (int64_t{1} << 16) / padded), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const float value = get(r, c);
        const int64_t i = (c / kLoraAlign * rows + r) * kLoraAlign + c % kLoraAlign;
        if (dtype_ == DType::kF32) {
          std::memcpy(out + 4 * i, &value, sizeof value);
        } else {
          const uint16_t bits = dtype_ == DType::kF16 ? float_to_fp16(value) : float_to_bf16(value);
          std::memcpy(out + 2 * i, &bits, sizeof bits);
        }
      }
    }
  });
  return at;
}

void LoraImage::add(int64_t site, int64_t k, std::span<const LoraPart> parts) {
  LoraSite header;
  header.rank = static_cast<int32_t>(rank_of(parts));
  header.num_slices = static_cast<int32_t>(parts.size());
  QUIRE_CHECK(header.rank > 0 && !parts.front().a.empty());
  std::vector<LoraSlice> slices;
  std::vector<const float*> rows;  // of A
  std::vector<float> scales(static_cast<size_t>(lora_padded(header.rank)));
  for (const LoraPart& part : parts) {
    QUIRE_CHECK(part.a.empty() || std::ssize(part.a) == part.rank * k);
    QUIRE_CHECK(part.map.empty() ? std::ssize(part.b) == part.n * part.rank : std::ssize(part.map) == part.n);
    for (int64_t j = 0; j < part.rank && !part.a.empty(); ++j) {
      scales[rows.size()] = part.scale;
      rows.push_back(part.a.data() + j * k);
    }
    LoraSlice slice;
    slice.column = static_cast<int32_t>(part.column);
    slice.n = static_cast<int32_t>(part.n);
    slice.rank = static_cast<int32_t>(part.rank);
    slice.first = static_cast<int32_t>(rows.size()) - slice.rank;
    slices.push_back(slice);
  }
  header.a = matrix(k, header.rank, [&](int64_t r, int64_t c) { return rows[static_cast<size_t>(c)][r]; });
  for (size_t i = 0; i < parts.size(); ++i) {
    const LoraPart& part = parts[i];
    slices[i].b = matrix(part.rank, part.n, [&](int64_t r, int64_t c) {
      const int64_t row = part.map.empty() ? c : part.map[static_cast<size_t>(c)];
      return part.b[static_cast<size_t>(row * part.rank + r)];
    });
  }
  const auto copy = [&](const auto& values) {
    const auto raw = std::as_bytes(std::span(values));
    const int64_t at = reserve(std::ssize(raw));
    std::memcpy(bytes_.data() + at, raw.data(), raw.size());
    return at;
  };
  header.scales = copy(scales);
  header.slices = copy(slices);
  std::memcpy(bytes_.data() + site * static_cast<int64_t>(sizeof header), &header, sizeof header);
}

}  // namespace quire
