// SPDX-License-Identifier: Apache-2.0
// Types and scales of random quantised weights.
#include "weights/dummy_form.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/half.h"
#include "base/philox.h"
#include "weights/quant_scheme.h"

namespace quire::weights {
namespace {

// The codes of a type: a value is a scale times (q - offset), or times an entry of a table; with minima, times
// (q - middle of the codes).
struct CodeType {
  DType type;
  int bits;
  int offset;
  bool has_minima;
  int sub;  // the least scale of a sub-block: half of the largest
  const int8_t* table = nullptr;
};
constexpr CodeType kCodeTypes[] = {
    {DType::kQ8_0, 8, 128, false, 0},
    {DType::kQ4_0, 4, 8, false, 0},
    {DType::kQ4_1, 4, 0, true, 0},
    {DType::kQ5_0, 5, 16, false, 0},
    {DType::kQ5_1, 5, 0, true, 0},
    {DType::kQ2_K, 2, 0, true, 8},
    {DType::kQ3_K, 3, 4, false, 16},
    {DType::kQ4_K, 4, 0, true, 32},
    {DType::kQ5_K, 5, 0, true, 32},
    {DType::kQ6_K, 6, 32, false, 64},
    {DType::kIQ4_NL, 4, 0, false, 0, kIq4Values},
    {DType::kIQ4_XS, 4, 0, false, 16, kIq4Values},
    {DType::kMXFP4, 4, 0, false, 0, kFp4Values},
    {DType::kG4, 4, 0, true, 0},
    {DType::kG8, 8, 0, true, 0},
    {DType::kGF8, 8, 0, false, 0},
};

const CodeType& code_type(DType type) {
  const auto* found = std::ranges::find(kCodeTypes, type, &CodeType::type);
  QUIRE_CHECK(found != std::end(kCodeTypes), "a plain type has no codes");
  return *found;
}

// The root of the mean square of a scale of 1 times its values.
double spread_of_codes(const CodeType& t, int bits, double middle) {
  double sum = 0;
  const int codes = 1 << bits;
  for (int q = 0; q < codes; ++q) {
    double value = t.table != nullptr ? t.table[q] : t.has_minima ? q - middle : q - t.offset;
    if (t.type == DType::kGF8) value = fp8_e4m3_to_float(static_cast<uint8_t>(88 + ((q >> 2) & 31)));
    sum += value * value;
  }
  double subs = t.sub == 0 ? 16 : 0;
  for (int i = 0; i < 16 && t.sub > 0; ++i) {
    const int sub = t.sub + (i * t.sub >> 4);
    subs += sub * sub;
  }
  return std::sqrt(sum / codes * subs / 16);
}

DummyForm in_groups(int bits, int64_t group, int64_t k) {
  constexpr int64_t kUsual = 128;
  const int64_t size = group < 0 ? k : std::min(group == 0 ? kUsual : group, k);
  if (size % 32 != 0 || k % size != 0) return {};
  return {bits <= 4 ? DType::kG4 : DType::kG8, bits, size, 1, size};
}

std::optional<DummyForm> in_blocks(DType type, int64_t k) {
  if (k % info(type).block_elems != 0) {
    switch (type) {
      case DType::kQ2_K:
      case DType::kQ3_K:
      case DType::kIQ4_XS:
        type = DType::kIQ4_NL;
        break;
      case DType::kQ4_K:
        type = DType::kQ5_0;
        break;
      case DType::kQ5_K:
        type = DType::kQ5_1;
        break;
      case DType::kQ6_K:
        type = DType::kQ8_0;
        break;
      default:
        break;
    }
  }
  const int64_t block = info(type).block_elems;
  if (k % block != 0) return std::nullopt;
  return DummyForm{type, code_type(type).bits, 0, 1, block};
}

}  // namespace

Status check_dummy_scheme(const QuantScheme& scheme) {
  for (const QuantScheme::Stored& stored : scheme.stored) {
    if (stored.bits >= 1 && stored.bits <= 8) continue;
    return unsupported(
        "quantization_config: random weights need the num_bits of each group, 1 to 8 for the type int and "
        "8 for float, and a positive group_size");
  }
  return {};
}

std::optional<DummyForm> dummy_form(const QuantScheme& scheme, std::string_view module, int64_t n, int64_t k) {
  if (scheme.method == QuantMethod::kNone || scheme.ignored.contains(module)) return std::nullopt;
  if (scheme.method == QuantMethod::kGguf) return in_blocks(scheme.gguf_type, k);
  if (scheme.method == QuantMethod::kMxfp4) return in_blocks(DType::kMXFP4, k);
  if (scheme.method == QuantMethod::kMlx) {
    QuantScheme::Override mode{{}, scheme.bits, scheme.group, scheme.fp4};
    for (const auto& own : scheme.overrides) {
      if (own.module == module) mode = own;
    }
    return mode.fp4 ? in_blocks(DType::kMXFP4, k) : in_groups(mode.bits, mode.group, k);
  }
  const auto has = [&](const QuantScheme::Stored& stored) { return stored.all || stored.targets.contains(module); };
  const auto stored = std::ranges::find_if(scheme.stored, has);
  if (stored == scheme.stored.end()) return std::nullopt;
  DummyForm out;
  if (stored->fp8) {
    const bool blocks = scheme.block_rows > 0;
    const int64_t columns = blocks ? std::min(scheme.block_columns, k) : k, group = std::gcd(columns, k);
    out = {DType::kGF8, 8, group % 32 == 0 ? group : 0, 1, columns};
    out.scale_rows = blocks ? scheme.block_rows : stored->scale_rows > 0 ? stored->scale_rows : n;
    return out;
  }
  out = in_groups(stored->bits, stored->group, k);
  out.reordered = stored->act_order && out.bits > 0 && out.group < k;
  return out;
}

void set_codes(const DummyForm& form, int64_t k, RandomElements& random) {
  const bool fp8 = !is_quantised(form.type) || form.type == DType::kGF8;  // expanded, or not
  const CodeType& type = code_type(fp8 ? DType::kGF8 : form.type);
  const double middle = type.has_minima ? ((1 << form.bits) - 1) / 2.0 : 0;
  const double scale = 1 / (std::sqrt(static_cast<double>(k)) * spread_of_codes(type, form.bits, middle));
  random.codes = {form.bits, fp8, static_cast<float>(middle), type.sub, form.scale_rows, form.scale_columns};
  random.scale = static_cast<float>(scale);
  if (form.type == DType::kMXFP4) {  // half of the blocks have half of the scale
    random.scale = std::ldexp(1.0f, static_cast<int>(std::lround(std::log2(scale / std::sqrt(1.25 / 2)))));
  }
}

std::vector<int32_t> dummy_order(uint64_t key, int64_t k) {
  std::vector<uint32_t> words(static_cast<size_t>(k));
  for (size_t i = 0; i < words.size(); ++i) words[i] = Philox::generate(key, i, 1)[0];
  std::vector<int32_t> out(words.size());
  std::iota(out.begin(), out.end(), 0);
  std::ranges::stable_sort(out, {}, [&](int32_t i) { return words[static_cast<size_t>(i)]; });
  return out;
}

double dummy_element_bytes(const QuantScheme& scheme, double plain) {
  const auto of = [](DType type) {
    return static_cast<double>(info(type).block_bytes) / static_cast<double>(info(type).block_elems);
  };
  double least = plain;
  if (scheme.method == QuantMethod::kGguf) least = of(scheme.gguf_type);
  if (scheme.method == QuantMethod::kMxfp4 || scheme.fp4) least = of(DType::kMXFP4);
  const auto in_bits = [&](int bits) { least = std::min(least, bits <= 4 ? 0.5 : 1.0); };
  if (scheme.method == QuantMethod::kMlx && !scheme.fp4) in_bits(scheme.bits);
  for (const QuantScheme::Override& own : scheme.overrides) in_bits(own.bits);
  for (const QuantScheme::Stored& stored : scheme.stored) in_bits(stored.bits);
  return std::min(least, plain);
}

}  // namespace quire::weights
