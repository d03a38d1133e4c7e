// SPDX-License-Identifier: Apache-2.0
// Computes the number of KV pages; parses and prints sizes in bytes.
#include "kv/memory_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>

namespace quire::kv {
namespace {

constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

// A suffix, its multiplier, and whether it may follow a decimal number.
struct Unit {
  std::string_view suffix;
  int64_t bytes;
  bool decimals;
};
constexpr int64_t kKi = 1024, kMi = kKi * 1024, kGi = kMi * 1024, kTi = kGi * 1024;
constexpr int64_t kK = 1000, kM = kK * 1000, kG = kM * 1000, kT = kG * 1000;
constexpr Unit kUnits[] = {
    {"", 1, false},     {"B", 1, false},    {"k", kK, true},    {"m", kM, true},   {"g", kG, true},
    {"t", kT, true},    {"K", kKi, false},  {"M", kMi, false},  {"G", kGi, false}, {"T", kTi, false},
    {"kB", kK, true},   {"MB", kM, true},   {"GB", kG, true},   {"TB", kT, true},  {"KiB", kKi, true},
    {"MiB", kMi, true}, {"GiB", kGi, true}, {"TiB", kTi, true},
};

const Unit* find_unit(std::string_view suffix) {
  const auto it = std::ranges::find(kUnits, suffix, &Unit::suffix);
  return it == std::end(kUnits) ? nullptr : it;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

Result<int64_t> parse_bytes(std::string_view text, std::string_view flag) {
  const auto wrong = [&](const std::string& why) { return invalid_argument({flag, ": '", text, "' ", why}); };
  const std::string examples = "write for example 4GiB, 512M or 1.5g.";
  size_t pos = 0;
  int64_t whole = 0;
  while (pos < text.size() && is_digit(text[pos])) {
    if (__builtin_mul_overflow(whole, 10, &whole) || __builtin_add_overflow(whole, text[pos] - '0', &whole)) {
      return wrong("is too large.");
    }
    ++pos;
  }
  if (pos == 0) return wrong("is not a size; " + examples);
  // The fraction, in millionths of the unit.
  bool has_fraction = false;
  int64_t millionths = 0;
  if (pos < text.size() && text[pos] == '.') {
    has_fraction = true;
    ++pos;
    const size_t begin = pos;
    for (int64_t place = 100'000; pos < text.size() && is_digit(text[pos]); ++pos, place /= 10) {
      millionths += (text[pos] - '0') * place;
    }
    if (pos == begin) return wrong("is not a size; " + examples);
  }
  const Unit* unit = find_unit(text.substr(pos));
  if (unit == nullptr) return wrong("has an unknown suffix; " + examples);
  if (has_fraction && !unit->decimals) {
    return wrong(unit->bytes == 1 ? "is not a whole number of bytes."
                                  : "has decimals before an upper-case suffix, which takes whole numbers; write " +
                                        std::string(text) + "iB.");
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(whole, unit->bytes, &bytes)) return wrong("is too large.");
  const int64_t part = unit->bytes / 1'000'000 * millionths + unit->bytes % 1'000'000 * millionths / 1'000'000;
  if (__builtin_add_overflow(bytes, part, &bytes)) return wrong("is too large.");
  return bytes;
}

std::string format_bytes(int64_t bytes) {
  QUIRE_CHECK(bytes >= 0);
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return fixed(value, decimals) + " " + kNames[unit];
}

int64_t MemoryPlan::num_tokens() const {
  const bool plain = layout.groups.size() == 1 && layout.groups.front().kind == CacheKind::kFull;
  if (plain) return (num_blocks - 1) * layout.groups.front().block_size;
  return static_cast<int64_t>(full_length_requests() * static_cast<double>(max_model_len));
}

double MemoryPlan::full_length_requests() const {
  if (layout.groups.empty()) return 0;
  return static_cast<double>(num_blocks - 1) / static_cast<double>(pages_for(max_model_len));
}

namespace {

// The part of the K and V that a draft model has, for example ", 12% of them for the draft model".
std::string draft_share(const CacheLayout& layout, int64_t draft_layers) {
  if (draft_layers == 0) return {};
  double all = 0, draft = 0;
  const auto first = static_cast<int64_t>(layout.layers.size()) - draft_layers;
  for (int64_t i = 0; i < static_cast<int64_t>(layout.layers.size()); ++i) {
    const CacheLayout::Layer& layer = layout.layers[static_cast<size_t>(i)];
    if (layer.group < 0) continue;
    const CacheGroup& group = layout.groups[static_cast<size_t>(layer.group)];
    if (group.kind == CacheKind::kState) continue;
    const double bytes = static_cast<double>(group.used_bytes) / static_cast<double>(group.block_size);
    all += bytes;
    if (i >= first) draft += bytes;
  }
  return ", " + fixed(100 * draft / all, 0) + "% of K and V for drafting";
}

}  // namespace

std::string MemoryPlan::line() const {
  if (layout.groups.empty()) {
    return (device.empty() ? "Memory" : "Memory of " + device) + ": weights " + format_bytes(weights_bytes) +
           ", no KV cache (an encoder keeps nothing), scratch " + (engines > 1 ? std::to_string(engines) + " x " : "") +
           format_bytes(scratch_bytes) + ", left " + (left_bytes ? format_bytes(*left_bytes) : std::string("unknown")) +
           ".";
  }
  const std::string groups = describe(layout);
  const std::string times = engines > 1 ? std::to_string(engines) + " x " : "";
  return (device.empty() ? "Memory" : "Memory of " + device) + ": weights " + format_bytes(weights_bytes) +
         (engines > 1 ? ", once for " + std::to_string(engines) + " engines" : "") +
         (draft_layers > 0 ? " (" + format_bytes(draft_weights_bytes) + " of them the draft model's)" : "") +
         ", KV cache " + times + format_bytes(kv_bytes) + " (" + std::to_string(num_blocks) + " pages of " +
         std::to_string(main_block_size(layout)) + " tokens, " + name(dtype) + ", " + format_bytes(page_bytes()) +
         " each" + draft_share(layout, draft_layers) + (groups.empty() ? "" : "; " + groups) + "), scratch " + times +
         format_bytes(scratch_bytes) + ", left " + (left_bytes ? format_bytes(*left_bytes) : std::string("unknown")) +
         "; " + times + fixed(full_length_requests(), 2) + " requests of " + std::to_string(max_model_len) +
         " tokens fit at once.";
}

namespace {

Status check_inputs(const MemoryInputs& in) {
  QUIRE_CHECK(in.layout.groups.empty() || in.layout.page_bytes() > 0);
  const auto out_of_range = [](const char* flag, int64_t value, int64_t least, int64_t most) {
    return invalid_argument({flag, ": ", value, " is out of range; it must be between ", least, " and ", most, "."});
  };
  constexpr int64_t kMaxLen = int64_t{1} << 31, kMaxSeqs = int64_t{1} << 20;
  if (in.max_model_len < 1 || in.max_model_len > kMaxLen) {
    return out_of_range("--max-model-len", in.max_model_len, 1, kMaxLen);
  }
  if (in.max_num_seqs < 1 || in.max_num_seqs > kMaxSeqs) {
    return out_of_range("--max-num-seqs", in.max_num_seqs, 1, kMaxSeqs);
  }
  if (in.num_gpu_blocks_override && (*in.num_gpu_blocks_override < 2 || *in.num_gpu_blocks_override > kMaxBlocks)) {
    return out_of_range("--num-gpu-blocks-override", *in.num_gpu_blocks_override, 2, kMaxBlocks);
  }
  if (in.kv_cache_memory_bytes && *in.kv_cache_memory_bytes < 1) {
    return out_of_range("--kv-cache-memory-bytes", *in.kv_cache_memory_bytes, 1, std::numeric_limits<int64_t>::max());
  }
  QUIRE_CHECK(in.weights_bytes >= 0 && in.scratch_bytes >= 0 && in.available_bytes >= 0);
  return {};
}

int64_t pages_for(const MemoryInputs& in, int64_t num_tokens) {
  return max_pages(in.layout.groups, num_tokens, in.policy);
}

// The longest request, up to max_model_len, for which this many pages are enough; 0 if not even one token fits.
int64_t longest_request(const MemoryInputs& in, int64_t usable) {
  int64_t fits = 0, too_long = in.max_model_len + 1;
  while (too_long - fits > 1) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (pages_for(in, middle) <= usable ? fits : too_long) = middle;
  }
  return fits;
}

// The most bytes that the pages of an engine may take (plan_memory).
int64_t budget(const MemoryInputs& in, int64_t room) {
  return (in.device.empty() ? std::min(in.available_bytes / 2, room) : room) / in.engines;
}

// The number of pages that the flags ask for, or the default. `room` is what weights and scratch leave.
int64_t wanted_blocks(const MemoryInputs& in, std::optional<int64_t> room) {
  if (in.num_gpu_blocks_override) return *in.num_gpu_blocks_override;
  const int64_t page = in.layout.page_bytes();
  if (in.kv_cache_memory_bytes) return std::min(kMaxBlocks, *in.kv_cache_memory_bytes / in.engines / page);
  const int64_t all = std::min(kMaxBlocks, in.max_num_seqs * pages_for(in, in.max_model_len) + 1);
  if (!room) return all;
  return std::min(all, budget(in, *room) / page);
}

Failure too_small_for_one_request(const MemoryInputs& in, int64_t blocks, std::optional<int64_t> room) {
  const int64_t page = in.layout.page_bytes();
  const int64_t longest = longest_request(in, std::max<int64_t>(0, blocks - 1));
  const int64_t need = pages_for(in, in.max_model_len) + 1;
  const std::string need_bytes = need <= std::numeric_limits<int64_t>::max() / page
                                     ? format_bytes(need * page)
                                     : "more than " + format_bytes(std::numeric_limits<int64_t>::max());
  std::string message = "KV cache: one request of --max-model-len " + std::to_string(in.max_model_len) + " needs " +
                        need_bytes + " (" + std::to_string(need) + " pages of " + format_bytes(page) +
                        ", including the null page), but there is room for " +
                        std::to_string(std::max<int64_t>(0, blocks)) + " pages";
  if (!in.num_gpu_blocks_override && !in.kv_cache_memory_bytes && room) {
    message += " (" + format_bytes(budget(in, *room)) + ", of " + format_bytes(in.available_bytes) + " available)";
  }
  const std::string flag = in.num_gpu_blocks_override
                               ? "--num-gpu-blocks-override to " + std::to_string(need)
                               : "--kv-cache-memory-bytes to " + std::to_string(in.engines * need * page);
  message += longest > 0 ? "; lower --max-model-len to " + std::to_string(longest) + " or raise " + flag + "."
                         : "; raise " + flag + ".";
  return exhausted(std::move(message));
}

}  // namespace

Result<MemoryPlan> plan_memory(const MemoryInputs& in) {
  QUIRE_TRY(check_inputs(in));
  const int64_t page = in.layout.page_bytes();
  std::optional<int64_t> room;
  if (in.available_bytes > 0) {
    room = in.available_bytes - in.weights_bytes - in.engines * in.scratch_bytes;
    if (*room <= 0) {
      return exhausted({"Memory: the weights need ", format_bytes(in.weights_bytes), " and a step needs ",
                        format_bytes(in.engines * in.scratch_bytes), " of scratch, but only ",
                        format_bytes(in.available_bytes),
                        " are available; use a smaller or more quantised model, or lower --max-num-batched-tokens."});
    }
  }
  MemoryPlan plan;
  plan.layout = in.layout;
  plan.dtype = in.dtype;
  plan.policy = in.policy;
  plan.max_model_len = in.max_model_len;
  plan.weights_bytes = in.weights_bytes;
  plan.draft_weights_bytes = in.draft_weights_bytes;
  plan.draft_layers = in.draft_layers;
  plan.scratch_bytes = in.scratch_bytes;
  plan.engines = in.engines;
  plan.device = in.device;

  if (in.layout.groups.empty()) {
    plan.num_blocks = 1;
    plan.layout.num_pages = 1;
    plan.left_bytes = room;
    return plan;
  }
  const int64_t blocks = wanted_blocks(in, room);
  if (in.max_model_len_auto) {
    if (const int64_t longest = longest_request(in, blocks - 1); longest > 0) plan.max_model_len = longest;
  }
  if (blocks - 1 < pages_for(in, plan.max_model_len)) return too_small_for_one_request(in, blocks, room);
  if (__builtin_mul_overflow(blocks, page, &plan.kv_bytes) || (room && plan.kv_bytes > *room / in.engines)) {
    return exhausted({"KV cache: ", (in.engines > 1 ? std::to_string(in.engines) + " x " : ""), blocks, " pages of ",
                      format_bytes(page), " do not fit into the memory that weights and scratch leave (",
                      format_bytes(room.value_or(std::numeric_limits<int64_t>::max())), " of ",
                      format_bytes(in.available_bytes), "); lower ",
                      (in.num_gpu_blocks_override ? "--num-gpu-blocks-override." : "--kv-cache-memory-bytes.")});
  }
  plan.num_blocks = static_cast<int32_t>(blocks);
  plan.layout.num_pages = blocks;
  if (room) plan.left_bytes = *room - in.engines * plan.kv_bytes;
  return plan;
}

}  // namespace quire::kv
