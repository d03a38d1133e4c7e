// SPDX-License-Identifier: Apache-2.0
// Attention shapes, one list for the tests and the micro-benchmark, and a paged cache filled with random tokens.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/attention_layout.h"
#include "ops/attention.h"

namespace quire::cpu {

struct AttentionSequence {
  int32_t queries;  // tokens of this step
  int32_t context;  // positions after it
};

struct AttentionCase {
  std::string name;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t block_size;
  DType dtype;
  bool causal;
  std::vector<AttentionSequence> sequences;
  int64_t v_head_dim = 0;
  bool v_in_k = false;
  int64_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
  int64_t max_distance = 0;  // > 0: scores have a bias by distance; on a CPU with F32 pages alone

  int64_t v_dim() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  KvPageShape page() const { return {dtype, block_size, num_kv_heads, head_dim, v_head_dim, v_in_k}; }
};

// A handful of shapes that between them have every head_dim, GQA ratio, block size and type, and every kind of
// attention.
inline std::vector<AttentionCase> attention_cases() {
  const std::vector<AttentionSequence> mixed = {{1, 1}, {7, 7}, {0, 0}, {1, 130}, {33, 70}, {1, 300}, {5, 261}};
  const std::vector<AttentionSequence> few = {{1, 150}, {9, 70}, {2, 258}};
  const std::vector<AttentionSequence> windowed = {{1, 1}, {1, 700}, {40, 330}, {3, 520}, {0, 0}, {20, 80}};
  return {
      {"mha_d16_f32", 4, 4, 16, 16, DType::kF32, true, mixed},
      {"gqa2_d32_f16", 4, 2, 32, 32, DType::kF16, true, mixed},
      {"gqa3_d64_f16", 9, 3, 64, 16, DType::kF16, true, mixed},
      {"gqa4_d80_bf16", 8, 2, 80, 64, DType::kBF16, true, mixed},
      {"gqa7_d96_f16", 7, 1, 96, 128, DType::kF16, true, mixed},
      {"gqa8_d100_f32", 8, 1, 100, 16, DType::kF32, true, mixed},
      {"gqa2_d128_bf16", 4, 2, 128, 48, DType::kBF16, true, mixed},
      {"mha_d256_f16", 2, 2, 256, 32, DType::kF16, true, mixed},
      {"mha_d7_bf16", 2, 2, 7, 16, DType::kBF16, true, mixed},
      {"gqa3_d64_f16_all_see_all", 6, 2, 64, 16, DType::kF16, false, mixed},
      {.name = "mha_d32_f32_bias_by_distance",
       .num_heads = 4,
       .num_kv_heads = 2,
       .head_dim = 32,
       .block_size = 16,
       .dtype = DType::kF32,
       .causal = false,
       .sequences = mixed,
       .max_distance = 20},
      {"decode_long", 3, 1, 64, 16, DType::kF16, true, {{1, 1500}, {2, 1025}}},
      {"prefill_over_splits", 3, 1, 64, 64, DType::kBF16, true, {{300, 300}, {20, 552}}},
      {"splits_seen_by_some_rows", 2, 2, 32, 16, DType::kF32, true, {{20, 265}, {3, 257}, {3, 65}, {8, 520}}},
      {.name = "mha_d192_v128_f16",
       .num_heads = 2,
       .num_kv_heads = 2,
       .head_dim = 192,
       .block_size = 8,
       .dtype = DType::kF16,
       .causal = true,
       .sequences = few,
       .v_head_dim = 128},
      {.name = "gqa2_d64_v112_bf16",
       .num_heads = 4,
       .num_kv_heads = 2,
       .head_dim = 64,
       .block_size = 32,
       .dtype = DType::kBF16,
       .causal = true,
       .sequences = mixed,
       .v_head_dim = 112},
      {.name = "mqa8_d512_bf16_block544",
       .num_heads = 8,
       .num_kv_heads = 1,
       .head_dim = 512,
       .block_size = 544,
       .dtype = DType::kBF16,
       .causal = true,
       .sequences = {{1, 600}, {3, 70}}},
      {.name = "mla_f16",
       .num_heads = 8,
       .num_kv_heads = 1,
       .head_dim = 576,
       .block_size = 16,
       .dtype = DType::kF16,
       .causal = true,
       .sequences = {{3, 70}, {1, 130}},
       .v_head_dim = 512,
       .v_in_k = true},
      {.name = "mla_bf16",
       .num_heads = 128,
       .num_kv_heads = 1,
       .head_dim = 576,
       .block_size = 32,
       .dtype = DType::kBF16,
       .causal = true,
       .sequences = {{1, 90}, {2, 20}},
       .v_head_dim = 512,
       .v_in_k = true},
      {.name = "mla_odd_f32",
       .num_heads = 5,
       .num_kv_heads = 1,
       .head_dim = 40,
       .block_size = 24,
       .dtype = DType::kF32,
       .causal = true,
       .sequences = mixed,
       .v_head_dim = 24,
       .v_in_k = true},
      {.name = "mla_odd_bf16",
       .num_heads = 20,
       .num_kv_heads = 1,
       .head_dim = 56,
       .block_size = 8,
       .dtype = DType::kBF16,
       .causal = true,
       .sequences = mixed,
       .v_head_dim = 40,
       .v_in_k = true},
      {.name = "window1_f16",
       .num_heads = 6,
       .num_kv_heads = 2,
       .head_dim = 64,
       .block_size = 16,
       .dtype = DType::kF16,
       .causal = true,
       .sequences = windowed,
       .window = 1},
      {.name = "window128_bf16",
       .num_heads = 6,
       .num_kv_heads = 2,
       .head_dim = 64,
       .block_size = 16,
       .dtype = DType::kBF16,
       .causal = true,
       .sequences = windowed,
       .window = 128},
      {.name = "window37_block8_bf16",
       .num_heads = 4,
       .num_kv_heads = 2,
       .head_dim = 80,
       .block_size = 8,
       .dtype = DType::kBF16,
       .causal = true,
       .sequences = windowed,
       .window = 37},
      {.name = "window100_f32_both_sides",
       .num_heads = 3,
       .num_kv_heads = 1,
       .head_dim = 32,
       .block_size = 16,
       .dtype = DType::kF32,
       .causal = false,
       .sequences = windowed,
       .window = 100},
      {.name = "cap50_window128_d256_f16",
       .num_heads = 4,
       .num_kv_heads = 2,
       .head_dim = 256,
       .block_size = 32,
       .dtype = DType::kF16,
       .causal = true,
       .sequences = few,
       .window = 128,
       .soft_cap = 50},
      {.name = "sinks_window128_bf16",
       .num_heads = 8,
       .num_kv_heads = 1,
       .head_dim = 64,
       .block_size = 16,
       .dtype = DType::kBF16,
       .causal = true,
       .sequences = windowed,
       .window = 128,
       .sinks = true},
      {.name = "all_kinds_mla_bf16",
       .num_heads = 6,
       .num_kv_heads = 1,
       .head_dim = 96,
       .block_size = 16,
       .dtype = DType::kBF16,
       .causal = true,
       .sequences = windowed,
       .v_head_dim = 64,
       .v_in_k = true,
       .window = 70,
       .soft_cap = 5,
       .sinks = true},
      {.name = "all_kinds_f16",
       .num_heads = 6,
       .num_kv_heads = 2,
       .head_dim = 32,
       .block_size = 16,
       .dtype = DType::kF16,
       .causal = true,
       .sequences = windowed,
       .v_head_dim = 48,
       .window = 70,
       .soft_cap = 5,
       .sinks = true},
      {"gqa3_d64_i8", 9, 3, 64, 16, DType::kI8, true, mixed},
      {"mha_d80_e4m3", 2, 2, 80, 8, DType::kF8E4M3, true, mixed},
      {"gqa4_d128_e5m2", 4, 1, 128, 32, DType::kF8E5M2, true, few},
      {.name = "all_kinds_mla_i8",
       .num_heads = 16,
       .num_kv_heads = 1,
       .head_dim = 72,
       .block_size = 16,
       .dtype = DType::kI8,
       .causal = true,
       .sequences = windowed,
       .v_head_dim = 64,
       .v_in_k = true,
       .window = 70,
       .soft_cap = 5,
       .sinks = true},
  };
}

// K and V of random sequences in pages. Pages are given out in random order; unused slots and pages hold NaN, unused
// table entries an index far outside.
struct PagedCache {
  AttentionCase shape;
  std::vector<float> k, v;       // [all positions of all sequences, kv_cols or v_cols], as given to reshape_and_cache
  std::vector<int64_t> slots;    // one a position
  std::vector<int32_t> first;    // of each sequence, in k and v
  std::vector<int32_t> tables;   // [seqs, max_blocks]
  std::vector<int32_t> lengths;  // positions of each sequence
  int64_t max_blocks = 0;
  std::vector<char> memory;
  KvLayer layer;

  std::vector<float> sinks;          // [heads], where the shape has them
  std::vector<float> distance_bias;  // [heads, 2 * max_distance + 1], likewise

  int64_t kv_cols() const { return shape.num_kv_heads * shape.head_dim; }
  int64_t v_cols() const { return shape.num_kv_heads * shape.v_dim(); }
  int64_t q_cols() const { return shape.num_heads * shape.head_dim; }
  int64_t out_cols() const { return shape.num_heads * shape.v_dim(); }
};

inline float random_float(std::mt19937& random) {  // in [-1, 1), the same on every machine
  return static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
}

// Lays out the pages; writing K and V to them is left to the kernel under test.
inline PagedCache make_paged_cache(const AttentionCase& shape, uint32_t seed) {
  PagedCache c;
  c.shape = shape;
  std::mt19937 random(seed);
  int64_t blocks = 0;
  for (const AttentionSequence& s : shape.sequences) {
    const int64_t n = (s.context + shape.block_size - 1) / shape.block_size;
    blocks += n;
    c.max_blocks = n > c.max_blocks ? n : c.max_blocks;
  }
  const int64_t pages = blocks + 3;
  std::vector<int32_t> order(static_cast<size_t>(pages));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);

  c.tables.assign(shape.sequences.size() * static_cast<size_t>(c.max_blocks), 0x7fffffff);
  size_t next = 0;
  for (size_t s = 0; s < shape.sequences.size(); ++s) {
    const int32_t context = shape.sequences[s].context;
    c.first.push_back(static_cast<int32_t>(c.slots.size()));
    c.lengths.push_back(context);
    for (int32_t position = 0; position < context; ++position) {
      const int64_t block = position / shape.block_size;
      int32_t& page = c.tables[s * static_cast<size_t>(c.max_blocks) + static_cast<size_t>(block)];
      if (position % shape.block_size == 0) page = order[next++];
      c.slots.push_back(page * shape.block_size + position % shape.block_size);
    }
  }
  c.k.resize(c.slots.size() * static_cast<size_t>(c.kv_cols()));
  c.v.resize(shape.v_in_k ? 0 : c.slots.size() * static_cast<size_t>(c.v_cols()));
  for (float& x : c.k) x = 2 * random_float(random);
  for (float& x : c.v) x = random_float(random);
  random.seed(seed);  // not of the number of pages
  for (int64_t head = 0; head < shape.num_heads; ++head) {
    if (shape.sinks) c.sinks.push_back(3 * random_float(random));
  }
  if (shape.max_distance > 0) {
    c.distance_bias.resize(static_cast<size_t>(shape.num_heads * (2 * shape.max_distance + 1)));
    for (float& x : c.distance_bias) x = 3 * random_float(random);
  }

  const int64_t page_bytes = kv_page_bytes(shape.page());
  c.memory.assign(static_cast<size_t>(pages * page_bytes + 64), '\xff');  // NaN in every type
  char* aligned = c.memory.data() + (64 - reinterpret_cast<uintptr_t>(c.memory.data()) % 64) % 64;
  c.layer = {.pages = aligned,
             .page_stride = page_bytes,
             .num_pages = pages,
             .block_size = shape.block_size,
             .num_kv_heads = shape.num_kv_heads,
             .head_dim = shape.head_dim,
             .v_head_dim = shape.v_head_dim,
             .v_in_k = shape.v_in_k,
             .dtype = shape.dtype};
  return c;
}

}  // namespace quire::cpu
