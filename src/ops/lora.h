// SPDX-License-Identifier: Apache-2.0
// lora: the two products of LoRA adapters, for all adapters of a step at once.
//
// Contract. An adapter adds to some columns of a linear's output: y += (s (x A^T)) B^T, where A is [rank, K], B is
// [n, rank] and s is the adapter's scale. Each row of x names a slot, which holds an adapter, or has none; rows without
// an adapter are not touched. Row m depends only on row m of x, of y and on its adapter: not on the other rows, their
// adapters or the number of threads.
//  - The first product: t = s (x A^T), in float. On a CPU there are four sums, s_i over k = i, i + 4, ... ascending.
//    Each is an fma chain from +0: t = ((s_0 + s_1) + (s_2 + s_3)) * scale. On a GPU x is cut into spans of the same
//    length, whose sums are added in order (kernels/lora.h). With `tokens` instead of x, the row of A^T that a token
//    names is taken: t = A[:, token] * scale.
//  - The second: acc = fma(t[j], b[n, j], acc) over j ascending from +0, then y = y + acc, rounded to y's type.
// Products of A and B take the values of the stored type (F32, F16, BF16) as floats; activations are never rounded.
//
// A linear may be several matrices side by side (q, k, v), each with an adapter of its own: a *site* has one A, whose
// rows are those of all of them, and one slice per matrix, which takes some of the rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/tensor.h"

namespace quire {

// Matrices are stored in panels of 16 columns, which follow each other: [columns / 16, rows, 16], the last one padded
// with zeros. So a thread reads one piece of memory from its beginning to its end.
//
// The part of an adapter for some adjacent columns of the output. B is stored as a matrix of `rank` rows, n columns.
struct LoraSlice {
  int32_t column = 0, n = 0;    // of the output
  int32_t first = 0, rank = 0;  // of t: the elements that it takes
  int64_t b = 0;                // where B is, in bytes from the beginning of the slot
};
// The part of an adapter for one linear. A is stored as a matrix of K rows, `rank` columns.
struct LoraSite {
  int32_t rank = 0;                       // of all slices together; 0: the adapter leaves this linear as it is
  int32_t num_slices = 0;                 // which do not overlap
  int64_t a = 0, scales = 0, slices = 0;  // in bytes; scales are floats, one for each column of A and of its padding
};
inline constexpr int64_t kLoraAlign = 16;  // elements

constexpr int64_t lora_padded(int64_t n) {
  return (n + kLoraAlign - 1) / kLoraAlign * kLoraAlign;
}

// Slots of equal size, each of which begins with a LoraSite for every site of the model.
struct LoraMemory {
  const std::byte* data = nullptr;
  int64_t slot_bytes = 0;  // a multiple of 64
  DType dtype = DType::kF32;
};
// Which rows of a step have which adapter. `rows` lists all rows of the step, those of one slot together, and those
// without an adapter last; slots[i] belongs to rows[i], and is -1 for none.
struct LoraRows {
  std::span<const int32_t> rows, slots;
  int64_t num_adapted = 0;  // rows with an adapter
  int64_t first = 0;        // the row of the step that is row 0 of x and out: rows that they do not have are left out
  std::span<const struct LoraRun> runs = {};  // the same for a GPU
};
// Neighbours in the list of rows that have the same slot, at most kLoraRunRows of them.
struct LoraRun {
  int32_t slot = -1;             // -1: the run is empty
  int32_t first = 0, count = 0;  // entries of LoraRows::rows
  int32_t expert = 0;            // only where a GPU lists runs of experts' choices (MoeLora)
};
inline constexpr int64_t kLoraRunRows = 16;
// The runs of a list with the slots of its rows. Their number depends only on the lengths of the list and of the
// memory: behind the last one there are empty ones.
std::vector<LoraRun> list_lora_runs(std::span<const int32_t> slots, int64_t num_slots);
constexpr int64_t num_lora_runs(int64_t rows, int64_t num_slots) {
  return (rows + (kLoraRunRows - 1) * (rows < num_slots ? rows : num_slots)) / kLoraRunRows;
}

// A backend that runs ops side by side computes the first product before the linear (Backend::splits_lora()).
enum class LoraProducts { kBoth, kFirst, kSecond };

struct LoraArgs {
  Tensor x;                         // [M, K]; K alone counts if there are tokens
  std::span<const int32_t> tokens;  // [M], each below K; empty: take x
  LoraMemory memory;
  LoraRows rows;
  int64_t site = 0;
  Tensor t;          // [M, at least Backend::lora_spans(K) * rank] F32: scratch between the products
  Tensor out;        // [M, N]
  int64_t rank = 0;  // the largest one of the site's adapters, padded
  LoraProducts products = LoraProducts::kBoth;
};
void check(const LoraArgs& args);
void check_indices(const LoraArgs& args);

}  // namespace quire
