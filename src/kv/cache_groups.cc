// SPDX-License-Identifier: Apache-2.0
// Finds the types of layers, the size of a slot, and the groups.
#include "kv/cache_groups.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/math.h"
#include "kv/memory_plan.h"

namespace quire::kv {
namespace {

constexpr int64_t kMaxBlockSize = 65536;
constexpr int64_t kBlockStep = 8;                // block sizes are multiples of it (ops/attention.h)
constexpr int64_t kStateAlignment = 32;          // tokens: a block size raised for a state is a multiple of it
constexpr int64_t kSlotAlignment = 64;           // bytes
constexpr int64_t kMaxPage = int64_t{1} << 35;   // bytes; sums over layers stay far below 2^63
constexpr int64_t kMaxState = int64_t{1} << 32;  // bytes

// Layers that keep the same data.
struct Type {
  LayerCache what;
  std::vector<int64_t> layers;
  int64_t block_size = 0;
  int64_t used_bytes = 0;  // of a slot

  bool is_state() const { return what.kind == CacheKind::kState; }
  bool holds(const LayerCache& layer) const {
    if (layer.kind != what.kind) return false;
    if (is_state()) return layer.state_bytes == what.state_bytes;
    return layer.kv_heads == what.kv_heads && layer.head_dim == what.head_dim && layer.v_head_dim == what.v_head_dim &&
           layer.v_in_k == what.v_in_k && (what.kind == CacheKind::kFull || layer.window == what.window);
  }
  KvPageShape shape(DType dtype, int64_t block) const {
    return {dtype, block, what.kv_heads, what.head_dim, what.v_head_dim, what.v_in_k};
  }
};

Status check_number(int64_t layer, const char* what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid_argument(
      {"KV cache: ", what, " of layer ", layer, " is ", value, "; it must be between ", least, " and ", most, "."});
}

Status check_layer(std::span<const LayerCache> layers, size_t i) {
  const LayerCache& layer = layers[i];
  const auto number = static_cast<int64_t>(i);
  if (layer.shared_with >= 0) {
    QUIRE_TRY(check_number(number, "the layer whose pages are shared", layer.shared_with, 0, number - 1));
    const LayerCache& owner = layers[static_cast<size_t>(layer.shared_with)];
    if (owner.shared_with >= 0 || owner.kind == CacheKind::kFull || owner.kind == CacheKind::kWindow) return {};
    return unsupported(
        {"KV cache: layer ", i, " reads the pages of layer ", layer.shared_with, ", which has no K and V."});
  }
  switch (layer.kind) {
    case CacheKind::kNone:
      return {};
    case CacheKind::kState:
      return check_number(number, "the size of the state", layer.state_bytes, 1, kMaxState);
    case CacheKind::kWindow:
      QUIRE_TRY(check_number(number, "the window", layer.window, 1, int64_t{1} << 31));
      [[fallthrough]];
    case CacheKind::kFull:
      QUIRE_TRY(check_number(number, "the number of KV heads", layer.kv_heads, 1, 8192));
      QUIRE_TRY(check_number(number, "the head size of K", layer.head_dim, 1, 16384));
      return check_number(number, "the head size of V", layer.v_head_dim, 0, 16384);
  }
  return unsupported(
      {"KV cache: layer ", i, " has the cache kind ", static_cast<int>(layer.kind), ", which has no pages."});
}

Status check_block_size(int64_t block_size, const std::string& flag) {
  if (block_size >= kBlockStep && block_size <= kMaxBlockSize && block_size % kBlockStep == 0) return {};
  return invalid_argument({"KV cache: ", flag, " is ", block_size, "; it must be a multiple of ", kBlockStep, " from ",
                           kBlockStep, " to ", kMaxBlockSize, "."});
}

Result<std::vector<Type>> find_types(std::span<const LayerCache> layers) {
  if (layers.size() > 4096) {
    return invalid_argument({"KV cache: the number of layers is ", layers.size(), "; it must be between 1 and 4096."});
  }
  std::vector<Type> types;
  for (size_t i = 0; i < layers.size(); ++i) {
    QUIRE_TRY(check_layer(layers, i));
    if (layers[i].kind == CacheKind::kNone || layers[i].shared_with >= 0) continue;
    auto type = std::ranges::find_if(types, [&](const Type& t) { return t.holds(layers[i]); });
    if (type == types.end()) type = types.insert(types.end(), Type{layers[i], {}, 0, 0});
    type->layers.push_back(static_cast<int64_t>(i));
  }
  if (types.empty()) return unsupported("KV cache: no layer of the model keeps anything per sequence.");
  return types;
}

// The block size of the attention type that sets the slot size: the user's, raised if a page would not hold a state.
Result<int64_t> raised_block_size(int64_t block_size, int64_t state_bytes,
                                  const std::function<int64_t(int64_t)>& bytes) {
  if (bytes(block_size) >= state_bytes) return block_size;
  const int64_t step = bytes(kStateAlignment);
  int64_t raised = std::max(round_up(block_size, kStateAlignment), ceil_div(state_bytes, step) * kStateAlignment);
  while (raised <= kMaxBlockSize && bytes(raised) < state_bytes)
    raised += kStateAlignment;  // page sizes may be rounded
  if (raised <= kMaxBlockSize) return raised;
  return unsupported({"KV cache: a state of ", format_bytes(state_bytes),
                      " needs attention pages of more than 65536 tokens (", format_bytes(step),
                      " hold 32); no page size fits both."});
}

// Sets the block size and the bytes per slot of each type, and returns the size of a slot.
Result<int64_t> unify(std::vector<Type>& types, DType dtype, int64_t block_size, const PageBytes& page_bytes,
                      int64_t match_unit) {
  int64_t state_bytes = 0;
  const Type* widest = nullptr;
  const auto bytes = [&](const Type& type, int64_t block) { return page_bytes(type.shape(dtype, block)); };
  for (const Type& type : types) {
    if (type.is_state()) {
      state_bytes = std::max(state_bytes, type.what.state_bytes);
    } else if (widest == nullptr || bytes(type, block_size) > bytes(*widest, block_size)) {
      widest = &type;
    }
  }
  int64_t slot_bytes = round_up(state_bytes, kSlotAlignment);
  if (widest != nullptr) {
    QUIRE_ASSIGN(block_size,
                 raised_block_size(block_size, state_bytes, [&](int64_t block) { return bytes(*widest, block); }));
    slot_bytes = round_up(bytes(*widest, block_size), kSlotAlignment);
  }
  int64_t unit = 1;
  for (Type& type : types) {
    if (type.is_state()) continue;
    // As many times as fit. Fewer if the unit of hits, which end at a page boundary of every type, would get too long.
    const int64_t fitting = slot_bytes / bytes(type, block_size);
    for (const int64_t times :
         {fitting, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(fitting))), int64_t{1}}) {
      type.block_size = block_size * times;
      if (type.block_size <= kMaxBlockSize && std::lcm(unit, type.block_size) <= kMaxBlockSize) break;
    }
    type.used_bytes = bytes(type, type.block_size);
    QUIRE_CHECK(type.used_bytes <= slot_bytes);
    unit = std::lcm(unit, type.block_size);
  }
  for (const Type& type : types) {
    if (!type.is_state()) match_unit = std::gcd(match_unit, type.block_size);
  }
  for (Type& type : types) {
    if (!type.is_state()) continue;
    type.block_size = match_unit;
    type.used_bytes = type.what.state_bytes;
  }
  return slot_bytes;
}

int64_t group_size(const std::vector<Type>& types) {
  const auto count = [](const Type& type) { return static_cast<int64_t>(type.layers.size()); };
  const int64_t least = count(*std::ranges::min_element(types, {}, count));
  const int64_t most = count(*std::ranges::max_element(types, {}, count));
  return 4 * most < 5 * least ? most : least;
}

void assign_groups(const std::vector<Type>& types, DType dtype, CacheLayout& layout) {
  for (const Type& type : types) {
    for (size_t i = 0; i < type.layers.size(); ++i) {
      const auto slot = static_cast<int32_t>(static_cast<int64_t>(i) % layout.slots);
      if (slot == 0) {
        const bool window = type.what.kind == CacheKind::kWindow;
        layout.groups.push_back({type.what.kind, type.block_size, window ? type.what.window : 0, 0, type.used_bytes});
      }
      ++layout.groups.back().layers;
      CacheLayout::Layer& place = layout.layers[static_cast<size_t>(type.layers[i])];
      place = {static_cast<int32_t>(layout.groups.size()) - 1, slot, {}};
      if (!type.is_state()) place.shape = type.shape(dtype, type.block_size);
    }
  }
}

std::string plural(int64_t n, const std::string& word) {
  return std::to_string(n) + " " + word + (n == 1 ? "" : "s");
}

std::string describe_group(const CacheGroup& group, int64_t groups, int64_t layers) {
  const std::string count = std::to_string(groups) + " of ";
  const std::string tokens = std::to_string(group.block_size) + " tokens per page";
  switch (group.kind) {
    case CacheKind::kFull:
      return count + "full attention (" + plural(layers, "layer") + ", " + tokens + ")";
    case CacheKind::kWindow:
      return count + "a window of " + std::to_string(group.window) + " (" + plural(layers, "layer") + ", " + tokens +
             ")";
    default:
      return count + "states (" + plural(layers, "layer") + ", " + format_bytes(group.used_bytes) +
             " each, hits every " + std::to_string(group.block_size) + " tokens)";
  }
}

}  // namespace

Result<CacheLayout> group_layers(std::span<const LayerCache> layers, DType dtype, int64_t block_size,
                                 const PageBytes& page_bytes, int64_t match_unit) {
  QUIRE_TRY(check_block_size(block_size, "--block-size"));
  if (match_unit == 0) match_unit = block_size;
  QUIRE_TRY(check_block_size(match_unit, "--prefix-match-unit"));
  QUIRE_ASSIGN(std::vector<Type> types, find_types(layers));
  CacheLayout layout;
  QUIRE_ASSIGN(layout.slot_bytes, unify(types, dtype, block_size, page_bytes, match_unit));
  layout.slots = group_size(types);
  layout.layers.resize(layers.size());
  assign_groups(types, dtype, layout);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].shared_with >= 0) layout.layers[i] = layout.layers[static_cast<size_t>(layers[i].shared_with)];
  }
  if (layout.slot_bytes > kMaxPage / layout.slots) {
    return invalid_argument({"KV cache: a page of ", main_block_size(layout), " positions would have ",
                             plural(layout.slots, "slot"), " of ", format_bytes(layout.slot_bytes),
                             "; lower --block-size."});
  }
  return layout;
}

CacheLayout layout_without_pages(size_t layers) {
  CacheLayout layout;
  layout.layers.resize(layers);
  return layout;
}

int64_t main_block_size(const CacheLayout& layout) {
  if (layout.groups.empty()) return 2 * kBlockStep;  // no page is ever taken
  std::optional<int64_t> least;
  for (const CacheGroup& group : layout.groups) {
    if (group.kind != CacheKind::kState) least = std::min(least.value_or(group.block_size), group.block_size);
  }
  return least.value_or(layout.groups.front().block_size);
}

CacheLayout some_layers(const CacheLayout& layout, int64_t first, int64_t count, int64_t last) {
  CacheLayout out = layout;
  out.layers = {layout.layers.begin() + first, layout.layers.begin() + first + count};
  out.layers.insert(out.layers.end(), layout.layers.end() - last, layout.layers.end());
  out.slots = 1;  // a page has some bytes, also where no layer keeps anything
  for (CacheGroup& group : out.groups) group.layers = 0;
  std::map<std::pair<int32_t, int32_t>, int32_t> places;  // a layer may read the pages of another
  for (CacheLayout::Layer& layer : out.layers) {
    if (layer.group < 0) continue;
    CacheGroup& group = out.groups[static_cast<size_t>(layer.group)];
    const auto [place, added] = places.emplace(std::pair(layer.group, layer.slot), static_cast<int32_t>(group.layers));
    if (added) out.slots = std::max(out.slots, ++group.layers);
    layer.slot = place->second;
  }
  return out;
}

int64_t hit_unit(std::span<const CacheGroup> groups) {
  int64_t unit = 1;
  for (const CacheGroup& group : groups) {
    if (group.kind == CacheKind::kState) return group.block_size;
    unit = std::lcm(unit, group.block_size);
  }
  return unit;
}

bool has_states(std::span<const CacheGroup> groups) {
  return std::ranges::any_of(groups, [](const CacheGroup& group) { return group.kind == CacheKind::kState; });
}

std::string describe(const CacheLayout& layout) {
  if (layout.groups.size() == 1 && layout.groups.front().kind == CacheKind::kFull) return {};
  std::string text;
  int64_t used = 0;
  for (size_t i = 0; i < layout.groups.size();) {
    const CacheGroup& group = layout.groups[i];
    int64_t count = 0, layers = 0;
    for (; i < layout.groups.size() && group.same_type(layout.groups[i]); ++i, ++count) {
      layers += layout.groups[i].layers;
    }
    used += layers * group.used_bytes;
    text += (text.empty() ? "" : ", ") + describe_group(group, count, layers);
  }
  const double all = static_cast<double>(layout.page_bytes()) * static_cast<double>(layout.groups.size());
  char padding[32];
  std::snprintf(padding, sizeof padding, "%.1f%%", 100.0 * (1.0 - static_cast<double>(used) / all));
  return "groups: " + text + "; " + plural(layout.slots, "slot") + " of " + format_bytes(layout.slot_bytes) +
         " per page, " + padding + " padding";
}

int64_t max_pages(const CacheGroup& group, int64_t unit, int64_t num_tokens, const CachePolicy& policy) {
  const auto blocks_for = [&](int64_t tokens) { return (tokens + group.block_size - 1) / group.block_size; };
  switch (group.kind) {
    case CacheKind::kState:
      // A step that starts at a checkpoint reads one page and writes another.
      return policy.prefix_caching && num_tokens > unit ? 2 : 1;
    case CacheKind::kWindow: {
      if (policy.max_step_tokens == 0) return blocks_for(num_tokens);
      // The positions of the step and window - 1 before them, starting anywhere in a page.
      const int64_t span = group.window + policy.max_step_tokens - 2;
      return std::min(blocks_for(num_tokens), blocks_for(span) + 1);
    }
    default:
      return blocks_for(num_tokens);
  }
}

int64_t max_pages(std::span<const CacheGroup> groups, int64_t num_tokens, const CachePolicy& policy) {
  const int64_t unit = hit_unit(groups);
  int64_t pages = 0;
  for (const CacheGroup& group : groups) pages += max_pages(group, unit, num_tokens, policy);
  return pages;
}

}  // namespace quire::kv
