// SPDX-License-Identifier: Apache-2.0
// Groups and page sizes: the worked example of docs/kv-cache.md, each kind of mixture, and what is refused.
#include "kv/cache_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace quire::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A backend that pads nothing; int8 has a float for each head's K and one for its V.
int64_t plain_bytes(const KvPageShape& shape) {
  const int64_t element = shape.dtype == DType::kF32                                  ? 4
                          : shape.dtype == DType::kF16 || shape.dtype == DType::kBF16 ? 2
                                                                                      : 1;
  const int64_t scales = shape.dtype == DType::kI8 ? 8 : 0;
  const int64_t v = shape.v_in_k ? 0 : shape.v_head_dim > 0 ? shape.v_head_dim : shape.head_dim;
  return shape.block_size * shape.num_kv_heads * ((shape.head_dim + v) * element + scales);
}

LayerCache full(int64_t heads, int64_t dim) {
  return {.kind = CacheKind::kFull, .kv_heads = heads, .head_dim = dim, .v_head_dim = dim};
}
LayerCache window(int64_t heads, int64_t dim, int64_t size) {
  return {.kind = CacheKind::kWindow, .kv_heads = heads, .head_dim = dim, .v_head_dim = dim, .window = size};
}
LayerCache state(int64_t bytes) {
  return {.kind = CacheKind::kState, .state_bytes = bytes};
}
LayerCache mla(int64_t latent, int64_t rope) {
  return {.kind = CacheKind::kFull, .kv_heads = 1, .head_dim = latent + rope, .v_head_dim = latent, .v_in_k = true};
}

CacheLayout grouped(const std::vector<LayerCache>& layers, DType dtype = DType::kBF16, int64_t block_size = 16) {
  const auto layout = group_layers(layers, dtype, block_size, plain_bytes);
  EXPECT_TRUE(layout.ok()) << layout.error().message;
  return layout.ok() ? *layout : CacheLayout{};
}

Error refused(const std::vector<LayerCache>& layers, int64_t block_size = 16) {
  const auto layout = group_layers(layers, DType::kBF16, block_size, plain_bytes);
  EXPECT_FALSE(layout.ok());
  return layout.ok() ? Error{} : layout.error();
}

// Every layer has a place of its own, in a group of its kind, and fits into its slot.
void expect_sound(const std::vector<LayerCache>& layers, const CacheLayout& layout) {
  ASSERT_EQ(layout.layers.size(), layers.size());
  std::vector<int64_t> used(layout.groups.size());
  std::map<std::pair<int32_t, int32_t>, size_t> owners;
  for (size_t i = 0; i < layers.size(); ++i) {
    const CacheLayout::Layer& place = layout.layers[i];
    if (layers[i].shared_with >= 0) {
      const CacheLayout::Layer& owner = layout.layers[static_cast<size_t>(layers[i].shared_with)];
      EXPECT_EQ(place.group, owner.group);
      EXPECT_EQ(place.slot, owner.slot);
      EXPECT_EQ(place.shape.block_size, owner.shape.block_size);
      continue;
    }
    if (layers[i].kind == CacheKind::kNone) {
      EXPECT_EQ(place.group, -1);
      continue;
    }
    ASSERT_GE(place.group, 0);
    ASSERT_LT(static_cast<size_t>(place.group), layout.groups.size());
    ASSERT_GE(place.slot, 0);
    ASSERT_LT(place.slot, layout.slots);
    EXPECT_TRUE(owners.emplace(std::pair(place.group, place.slot), i).second) << "layer " << i;
    const CacheGroup& group = layout.groups[static_cast<size_t>(place.group)];
    ++used[static_cast<size_t>(place.group)];
    EXPECT_EQ(group.kind, layers[i].kind);
    EXPECT_LE(group.used_bytes, layout.slot_bytes);
    if (group.kind == CacheKind::kState) {
      EXPECT_EQ(group.used_bytes, layers[i].state_bytes);
      EXPECT_EQ(group.block_size, hit_unit(layout.groups));
      continue;
    }
    EXPECT_EQ(group.window, group.kind == CacheKind::kWindow ? layers[i].window : 0);
    EXPECT_EQ(place.shape.block_size, group.block_size);
    EXPECT_EQ(place.shape.num_kv_heads, layers[i].kv_heads);
    EXPECT_EQ(plain_bytes(place.shape), group.used_bytes);
    EXPECT_EQ(group.block_size % 16, 0);
  }
  for (size_t g = 0; g < used.size(); ++g) EXPECT_EQ(used[g], layout.groups[g].layers);
  EXPECT_EQ(layout.slot_bytes % 64, 0);
}

// Qwen3.5-0.8B: three layers of gated delta net, then one of attention, six times.
std::vector<LayerCache> qwen35() {
  const int64_t delta_net = 16 * 128 * 128 * 4, tail = 3 * 6144 * 4;
  std::vector<LayerCache> layers;
  for (int i = 0; i < 24; ++i) layers.push_back(i % 4 == 3 ? full(2, 256) : state(delta_net + tail));
  return layers;
}

TEST(CacheGroups, TheWorkedExampleOfTheDocs) {
  const auto layers = qwen35();
  EXPECT_EQ(layers[0].state_bytes, 1'122'304);
  const CacheLayout layout = grouped(layers);
  expect_sound(layers, layout);
  // 2 heads x (256 + 256) x 2 bytes = 2048 a token: 548 tokens hold a state, 576 is the next multiple of 32.
  EXPECT_EQ(main_block_size(layout), 576);
  EXPECT_EQ(layout.slot_bytes, 1'179'648);
  EXPECT_EQ(layout.slots, 6);
  EXPECT_EQ(layout.page_bytes(), 7'077'888);
  ASSERT_EQ(layout.groups.size(), 4u);
  for (const CacheGroup& group : layout.groups) {
    EXPECT_EQ(group.block_size, group.kind == CacheKind::kState ? 16 : 576);
  }
  EXPECT_EQ(layout.layers[0].group, 0);
  EXPECT_EQ(layout.layers[8].group, 1);  // the seventh state
  EXPECT_EQ(layout.layers[3].group, 3);
  EXPECT_EQ(layout.layers[23].slot, 5);
  EXPECT_EQ(describe(layout),
            "groups: 3 of states (18 layers, 1.07 MiB each, hits every 16 tokens), 1 of full attention (6 "
            "layers, 576 tokens per page); 6 slots of 1.12 MiB per page, 3.6% padding");
  // A request of 32768 tokens: 57 pages of attention, and in each of three groups a state and a checkpoint.
  EXPECT_EQ(max_pages(layout.groups, 32768, {2048, true}), 57 + 3 * 2);
  EXPECT_EQ(max_pages(layout.groups, 32768, {2048, false}), 57 + 3);
  EXPECT_EQ(max_pages(layout.groups, 16, {2048, true}), 1 + 3);
  EXPECT_EQ(max_pages(layout.groups, 576, {2048, true}), 1 + 3 * 2);
  EXPECT_EQ(max_pages(layout.groups, 577, {2048, true}), 2 + 3 * 2);
}

TEST(CacheGroups, TheBlockSizeFollowsTheElementType) {
  const auto block_size = [](DType dtype) { return main_block_size(grouped(qwen35(), dtype)); };
  EXPECT_EQ(block_size(DType::kF32), 288);  // 4096 bytes a token: 274
  EXPECT_EQ(block_size(DType::kF16), 576);
  EXPECT_EQ(block_size(DType::kBF16), 576);
  EXPECT_EQ(block_size(DType::kF8E4M3), 1120);  // 1024: 1096
  EXPECT_EQ(block_size(DType::kF8E5M2), 1120);
  EXPECT_EQ(block_size(DType::kI8), 1088);  // 1040: 1079.2
}

TEST(CacheGroups, ABlockSizeThatIsEnoughAlreadyIsKept) {
  EXPECT_EQ(main_block_size(grouped(qwen35(), DType::kBF16, 1024)), 1024);
  EXPECT_EQ(main_block_size(grouped(qwen35(), DType::kBF16, 560)), 560);  // holds 548, and is no multiple of 32
  EXPECT_EQ(main_block_size(grouped(qwen35(), DType::kBF16, 544)), 576);
  // A short convolution's tail fits into any page.
  const std::vector<LayerCache> lfm = {state(2 * 2048 * 4), state(2 * 2048 * 4), full(8, 64)};
  EXPECT_EQ(main_block_size(grouped(lfm)), 16);
}

TEST(CacheGroups, LayersOfOneKindAreOneGroupWithTheUsersPages) {
  const std::vector<LayerCache> layers(30, full(3, 64));
  for (const int64_t block_size : {16, 32, 48, 1024}) {
    const CacheLayout layout = grouped(layers, DType::kF16, block_size);
    expect_sound(layers, layout);
    ASSERT_EQ(layout.groups.size(), 1u);
    EXPECT_EQ(layout.groups[0].block_size, block_size);
    EXPECT_EQ(layout.slots, 30);
    EXPECT_EQ(layout.page_bytes(), 30 * block_size * 3 * 128 * 2);
    EXPECT_EQ(describe(layout), "");
  }
}

// Bug: a bfloat16 model got float16 pages, because the type was fixed in the code instead of taken from the model, and
// the size of the cache was computed from an assumed element size; outputs differed and the number of pages was wrong.
TEST(CacheGroupsRegression, PagesHaveTheTypeThatWasAskedForAndItsBytes) {
  const std::vector<LayerCache> layers(28, full(8, 128));
  const int64_t elements = 28 * 2 * 16 * 8 * 128;
  for (const auto& [dtype, bytes] : {std::pair(DType::kF32, 4), {DType::kF16, 2}, {DType::kBF16, 2}}) {
    const CacheLayout layout = grouped(layers, dtype);
    EXPECT_EQ(layout.page_bytes(), elements * bytes);
    EXPECT_EQ(layout.layers[5].shape.dtype, dtype);
  }
}

TEST(CacheGroups, WindowsAndFullLayersShareThePool) {
  std::vector<LayerCache> layers;  // Gemma 3 270M: every sixth of 18 layers is full
  for (int i = 0; i < 18; ++i) layers.push_back(i % 6 == 5 ? full(1, 256) : window(1, 256, 512));
  const CacheLayout layout = grouped(layers);
  expect_sound(layers, layout);
  EXPECT_EQ(layout.slots, 3);
  ASSERT_EQ(layout.groups.size(), 6u);
  EXPECT_EQ(describe(layout),
            "groups: 5 of a window of 512 (15 layers, 16 tokens per page), 1 of full attention (3 layers, 16 tokens "
            "per page); 3 slots of 16.0 KiB per page, 0.0% padding");
  // 8192 tokens: 512 full pages; a window needs the step's 64 tokens and 511 before, which touch 37 pages.
  EXPECT_EQ(max_pages(layout.groups, 8192, {64, true}), 512 + 5 * 37);
  EXPECT_EQ(max_pages(layout.groups, 100, {64, true}), 6 * 7);
  EXPECT_EQ(max_pages(layout.groups, 8192, {0, true}), 6 * 512);
}

TEST(CacheGroups, LayersOfDifferentWidthGetBlockSizesOfTheSameBytes) {
  // 8 heads of 256 and 4 heads of 512 have the same bytes; 2 heads of 256 a quarter of them.
  std::vector<LayerCache> layers = {window(8, 256, 1024), window(8, 256, 1024), full(4, 512), full(2, 256)};
  CacheLayout layout = grouped(layers);
  expect_sound(layers, layout);
  EXPECT_EQ(layout.groups[0].block_size, 16);
  EXPECT_EQ(layout.layers[2].shape.block_size, 16);
  EXPECT_EQ(layout.layers[3].shape.block_size, 64);
  EXPECT_EQ(hit_unit(layout.groups), 64);
  EXPECT_EQ(main_block_size(layout), 16);
  // 5 to 2: twice fits, and a fifth is padding.
  layers = {full(5, 64), full(2, 64)};
  layout = grouped(layers);
  expect_sound(layers, layout);
  EXPECT_EQ(layout.layers[1].shape.block_size, 32);
  EXPECT_THAT(describe(layout), HasSubstr("10.0% padding"));
}

TEST(CacheGroups, HitsStayShortWhereRatiosHaveNothingInCommon) {
  std::vector<LayerCache> layers = {full(1000, 64)};
  for (const int64_t heads : {1, 7, 11, 13, 17}) layers.push_back(full(heads, 64));
  const CacheLayout layout = grouped(layers);
  expect_sound(layers, layout);
  EXPECT_LE(hit_unit(layout.groups), 65536);
}

TEST(CacheGroups, AnMlaHybridHoldsItsStateInLatentPages) {
  // 576 elements a token, no V: 1152 bytes. A state of 2 MiB needs 1821 of them.
  std::vector<LayerCache> layers = {state(2 << 20), state(2 << 20), state(2 << 20), mla(512, 64)};
  CacheLayout layout = grouped(layers);
  expect_sound(layers, layout);
  EXPECT_EQ(main_block_size(layout), 1824);
  EXPECT_EQ(layout.slots, 1);
  EXPECT_TRUE(layout.layers[3].shape.v_in_k);
  EXPECT_EQ(layout.layers[3].shape.v_head_dim, 512);
  // Without states MLA is one kind like any other.
  layers = {mla(512, 64), mla(512, 64)};
  layout = grouped(layers);
  EXPECT_EQ(layout.groups.size(), 1u);
  EXPECT_EQ(layout.page_bytes(), 2 * 16 * 576 * 2);
  // MLA beside plain attention: 1152 bytes a token against 4096, three times 16.
  layers = {mla(512, 64), full(8, 128)};
  EXPECT_EQ(grouped(layers).layers[0].shape.block_size, 48);
}

TEST(CacheGroups, ACountCloseToTheSmallestMakesNoSmallGroups) {
  const auto layers_of = [](int windows, int fulls) {
    std::vector<LayerCache> layers(static_cast<size_t>(windows), window(1, 64, 128));
    layers.insert(layers.end(), static_cast<size_t>(fulls), full(1, 64));
    return layers;
  };
  EXPECT_EQ(grouped(layers_of(9, 8)).slots, 9);  // 9 < 1.25 * 8: one group each, one slot empty
  EXPECT_EQ(grouped(layers_of(9, 8)).groups.size(), 2u);
  EXPECT_THAT(describe(grouped(layers_of(9, 8))), HasSubstr("5.6% padding"));
  EXPECT_EQ(grouped(layers_of(10, 8)).slots, 8);  // not less: 8 and 2
  EXPECT_EQ(grouped(layers_of(10, 8)).groups.size(), 3u);
  expect_sound(layers_of(10, 8), grouped(layers_of(10, 8)));
}

TEST(CacheGroups, LayersThatKeepNothingOrShareHaveNoSlots) {
  std::vector<LayerCache> layers = {full(2, 64), window(2, 64, 32), {.kind = CacheKind::kNone}, full(2, 64)};
  layers[3].shared_with = 0;
  layers.push_back(full(9, 9));
  layers[4].shared_with = 3;  // by way of layer 3
  const CacheLayout layout = grouped(layers);
  expect_sound(layers, layout);
  EXPECT_EQ(layout.slots, 1);
  EXPECT_EQ(layout.groups.size(), 2u);
  EXPECT_EQ(layout.layers[4].shape.num_kv_heads, 2);
}

TEST(CacheGroups, HitsEndWherePagesCanBeCut) {
  const auto unit = [](int64_t block_size, int64_t match_unit) {
    return hit_unit(group_layers(qwen35(), DType::kBF16, block_size, plain_bytes, match_unit)->groups);
  };
  EXPECT_EQ(unit(16, 0), 16);
  EXPECT_EQ(unit(16, 576), 576);
  EXPECT_EQ(unit(16, 8), 8);
  EXPECT_EQ(unit(16, 40), 8) << "576 is no multiple of 40";
  EXPECT_EQ(unit(1024, 0), 1024);
  EXPECT_EQ(unit(1024, 64), 64);
  const auto refused = group_layers(qwen35(), DType::kBF16, 16, plain_bytes, 12);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("--prefix-match-unit is 12; it must be a multiple of 8"));
}

TEST(CacheGroups, StatesAloneHavePagesOfTheirOwn) {
  const std::vector<LayerCache> layers = {state(1000), state(1000), state(500)};
  const CacheLayout layout = grouped(layers);
  expect_sound(layers, layout);
  EXPECT_EQ(layout.slot_bytes, 1024);
  EXPECT_EQ(hit_unit(layout.groups), 16);
  EXPECT_EQ(layout.slots, 1);
}

// Any mixture has a layout whose parts fit, or a sentence: also with a backend that pads rows and pages.
TEST(CacheGroups, RandomMixturesAreSoundOrRefused) {
  const auto padded_bytes = [](const KvPageShape& shape) {
    KvPageShape wide = shape;
    if (!shape.v_in_k) wide.v_head_dim = ((shape.v_head_dim > 0 ? shape.v_head_dim : shape.head_dim) + 15) / 16 * 16;
    return (plain_bytes(wide) + 63) / 64 * 64;
  };
  std::mt19937 random(7);
  const auto draw = [&](int n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
  int made = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<LayerCache> kinds;
    for (int64_t i = 1 + draw(4); i > 0; --i) {
      const int64_t heads = 1 + draw(8), dim = 1 + draw(300);
      const LayerCache choices[] = {full(heads, dim), window(heads, dim, 1 + draw(5000)), state(1 + draw(1 << 20)),
                                    mla(1 + draw(512), 1 + draw(64))};
      kinds.push_back(choices[draw(4)]);
    }
    std::vector<LayerCache> layers;
    for (int64_t i = 1 + draw(40); i > 0; --i) {
      layers.push_back(kinds[static_cast<size_t>(draw(static_cast<int>(kinds.size())))]);
    }
    const int64_t block_size = 16 * (1 + draw(8));
    const auto layout = group_layers(layers, DType::kBF16, block_size, padded_bytes);
    if (!layout.ok()) {
      EXPECT_THAT(layout.error().message, HasSubstr("no page size fits both."));
      continue;
    }
    ++made;
    ASSERT_EQ(layout->layers.size(), layers.size());
    EXPECT_LE(hit_unit(layout->groups), 65536);
    EXPECT_EQ(layout->slot_bytes % 64, 0);
    int64_t seats = 0;
    for (const CacheGroup& group : layout->groups) {
      EXPECT_LE(group.layers, layout->slots);
      EXPECT_LE(group.used_bytes, layout->slot_bytes);
      const int64_t unit = hit_unit(layout->groups);
      EXPECT_EQ(has_states(layout->groups) ? group.block_size % unit : unit % group.block_size, 0);
      seats += group.layers;
    }
    EXPECT_EQ(seats, static_cast<int64_t>(layers.size()));
    for (size_t i = 0; i < layers.size(); ++i) {
      const CacheLayout::Layer& place = layout->layers[i];
      if (layers[i].kind == CacheKind::kState) continue;
      EXPECT_GE(place.shape.block_size, block_size);
      EXPECT_LE(padded_bytes(place.shape), layout->slot_bytes);
    }
    EXPECT_GE(max_pages(layout->groups, 1000, {64, true}), static_cast<int64_t>(layout->groups.size()));
  }
  EXPECT_GT(made, 400);
}

TEST(CacheGroups, WhatCanNotBeIsRefusedInOneSentence) {
  EXPECT_EQ(refused({full(2, 64), state(0)}).message,
            "KV cache: the size of the state of layer 1 is 0; it must be between 1 and 4294967296.");
  EXPECT_THAT(refused({full(2, 64), state(-5)}).message, HasSubstr("is -5"));
  EXPECT_EQ(refused({{.kind = static_cast<CacheKind>(9)}}).message,
            "KV cache: layer 0 has the cache kind 9, which has no pages.");
  EXPECT_EQ(refused({}).message, "KV cache: no layer of the model keeps anything per sequence.");
  EXPECT_THAT(refused({{.kind = CacheKind::kNone}}).message, HasSubstr("keeps anything"));
  EXPECT_THAT(refused({window(1, 64, 0)}).message, HasSubstr("the window of layer 0 is 0"));
  // 1 GiB of state in pages of 128 bytes a token.
  const Error too_large = refused({full(1, 32), state(int64_t{1} << 30)});
  EXPECT_EQ(too_large.code, ErrorCode::kUnsupported);
  EXPECT_EQ(too_large.message,
            "KV cache: a state of 1.00 GiB needs attention pages of more than 65536 tokens (4.00 KiB hold 32); no page "
            "size fits both.");
  EXPECT_THAT(refused(std::vector<LayerCache>(4096, full(8192, 16384))).message, HasSubstr("lower --block-size"));
  std::vector<LayerCache> shares = {state(64), full(1, 64)};
  shares[1].shared_with = 0;
  EXPECT_THAT(refused(shares).message, HasSubstr("layer 1 reads the pages of layer 0, which has no K and V."));
  shares[1].shared_with = 1;
  EXPECT_THAT(refused(shares).message, HasSubstr("of layer 1 is 1; it must be between 0 and 0."));
}

// 8 and 40 were refused, although attention takes every multiple of 8.
TEST(CacheGroups, ABlockSizeIsAMultipleOf8) {
  for (const int64_t bad : {-16, 0, 1, 12, 17, 65536 + 8, 1 << 20}) {
    EXPECT_EQ(refused({full(1, 64)}, bad).message,
              "KV cache: --block-size is " + std::to_string(bad) + "; it must be a multiple of 8 from 8 to 65536.");
  }
  for (const int64_t good : {8, 16, 24, 40, 65536}) {
    EXPECT_EQ(main_block_size(grouped({full(1, 64)}, DType::kBF16, good)), good);
  }
}

TEST(CacheGroups, ShapesFromALyingFileAreRefused) {
  for (const int64_t bad : {int64_t{-1}, int64_t{0}, int64_t{1} << 40}) {
    for (const auto field : {&LayerCache::kv_heads, &LayerCache::head_dim}) {
      LayerCache layer = full(3, 64);
      layer.*field = bad;
      EXPECT_THAT(refused({layer}).message, HasSubstr(std::to_string(bad)));
    }
  }
  EXPECT_THAT(refused(std::vector<LayerCache>(5000, full(1, 64))).message, HasSubstr("5000"));
}

}  // namespace
}  // namespace quire::kv
