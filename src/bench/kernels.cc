// SPDX-License-Identifier: Apache-2.0
// The cases of linear, attention and gated delta net, timed between samples of the machine's limits.
#include "bench/kernels.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "backend/backend.h"
#include "backend/cpu/page_memory.h"
#include "backend/cpu/topology.h"
#include "backend/testing/attention_cases.h"
#include "backend/testing/linear_cases.h"
#include "bench/report.h"

namespace quire::bench {
namespace {

using cpu::Arithmetic;
using cpu::Isa;
using cpu::LimitsMeter;
using cpu::PeakProbe;
using Clock = std::chrono::steady_clock;

constexpr Arithmetic kArithmetics[] = {Arithmetic::kFp32, Arithmetic::kBf16, Arithmetic::kInt8};
constexpr double kSampleSeconds = 4e-3;  // a kernel is called repeatedly for this long
// With few rows, a model reads all its weights before it uses one again; with many rows, a weight stays in a cache for
// all of its rows.
constexpr int64_t kStreamRows = 4;

// qkv, o, gate+up, down and the head of SmolLM2-135M; the same of Qwen3-0.6B (q 2048, kv 1024) without its head, which
// is like its other shapes, only longer.
constexpr cases::LinearShape kShapes[] = {{960, 576},   {576, 576},   {3072, 576},  {576, 1536}, {49152, 576},
                                          {4096, 1024}, {1024, 2048}, {6144, 1024}, {1024, 3072}};
constexpr cases::LinearShape kQuickShapes[] = {{3072, 576}, {6144, 1024}};

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

Result<std::vector<Isa>> levels_of(const std::vector<std::string>& names) {
  const std::vector<Isa> present = cpu::available_isas();
  std::vector<Isa> out;
  for (const std::string& wanted : names) {
    if (wanted == "all") return present;
    QUIRE_ASSIGN(const Isa level, cpu::choose_isa(wanted));
    out.push_back(level);
  }
  if (out.empty()) {
    QUIRE_ASSIGN(const Isa best, cpu::choose_isa(""));
    out.push_back(best);
  }
  return out;
}

struct AttentionShape {
  const char* op;
  int64_t heads, kv_heads, head_dim;
  int32_t sequences, queries, context;
};
// SmolLM2-135M has head_dim 64, Qwen3-0.6B 128.
constexpr AttentionShape kAttentionShapes[] = {
    {"prefill", 9, 3, 64, 1, 512, 512},     {"prefill", 9, 3, 64, 1, 2048, 2048}, {"prefill", 16, 8, 128, 1, 512, 512},
    {"prefill", 16, 8, 128, 1, 2048, 2048}, {"decode", 9, 3, 64, 1, 1, 512},      {"decode", 9, 3, 64, 1, 1, 8192},
    {"decode", 9, 3, 64, 32, 1, 512},       {"decode", 16, 8, 128, 1, 1, 4096},   {"decode", 16, 8, 128, 32, 1, 512},
};
constexpr AttentionShape kQuickAttentionShapes[] = {{"prefill", 16, 8, 128, 1, 512, 512},
                                                    {"decode", 9, 3, 64, 32, 1, 512}};

// The limits at one moment.
struct LimitSample {
  std::array<double, 3> operations = {};  // by Arithmetic; 0: not available
  double read = 0;
};

class Runner {
 public:
  Runner(const KernelOptions& o, LimitsMeter& meter, const std::vector<PeakProbe>& probes, KernelFigures& figures)
      : options_(o), meter_(meter), probes_(probes), figures_(figures) {}

  void measure_limits() {
    const int64_t samples = options_.samples * 2;
    const auto add = [&](std::string name, std::string kind, const auto& sample) {
      std::vector<double> rates;
      for (int64_t i = 0; i < samples; ++i) rates.push_back(sample());
      figures_.limits.push_back({std::move(name), std::move(kind), percentile(rates, 50), percentile(rates, 100)});
    };
    for (const PeakProbe& probe : probes_) {
      add(probe.instruction, cpu::name(probe.arithmetic), [&] { return meter_.operations_per_s(probe); });
    }
    add("4 KiB pages", "read", [&] { return meter_.read_bytes_per_s(LimitsMeter::Pages::kSmall); });
    add("2 MiB pages", "read", [&] { return meter_.read_bytes_per_s(LimitsMeter::Pages::kHuge); });
    const double small = figures_.limits[figures_.limits.size() - 2].rate;
    read_pages_ = figures_.limits.back().rate >= small ? LimitsMeter::Pages::kHuge : LimitsMeter::Pages::kSmall;
  }

  // Times `call` between samples of the limits of its ISA level, and adds the figure to the results.
  template <typename Call>
  void run_case(KernelFigure figure, Isa level, const Call& call) {
    figure.isa = cpu::name(level);
    call();
    call();
    std::vector<double> seconds, reads;
    std::array<std::vector<double>, 3> shares;
    LimitSample before = limits_of(level);
    for (int64_t i = 0; i < options_.samples; ++i) {
      int64_t calls = 0;
      const auto start = Clock::now();
      double passed = 0;
      do {
        call();
        ++calls;
        passed = std::chrono::duration<double>(Clock::now() - start).count();
      } while (passed < kSampleSeconds);
      const double one = passed / static_cast<double>(calls);
      const LimitSample after = limits_of(level);
      seconds.push_back(one);
      reads.push_back(figure.bytes / one / ((before.read + after.read) / 2));
      for (size_t a = 0; a < shares.size(); ++a) {
        const double peak = (before.operations[a] + after.operations[a]) / 2;
        if (peak > 0) shares[a].push_back(figure.operations / one / peak);
      }
      before = after;
    }
    figure.seconds = percentile(seconds, 50);
    figure.share_read = percentile(reads, 50);
    std::optional<double>* places[] = {&figure.share_fp32, &figure.share_bf16, &figure.share_int8};
    for (size_t a = 0; a < shares.size(); ++a) {
      if (!shares[a].empty()) *places[a] = percentile(shares[a], 50);
    }
    figures_.kernels.push_back(std::move(figure));
  }

  // The arithmetic whose peak a case is compared with: that of its values, if the level multiplies them faster than
  // floats (vdpbf16ps is slower than a plain fma on some machines), else float.
  std::string peak_kind(Isa level, Arithmetic wanted) const {
    return cpu::name(measured(level, wanted) > measured(level, Arithmetic::kFp32) ? wanted : Arithmetic::kFp32);
  }
  size_t stream_bytes() const { return meter_.buffer_bytes(); }

 private:
  double measured(Isa level, Arithmetic arithmetic) const {
    const PeakProbe* probe = cpu::strongest(probes_, level, arithmetic);
    for (const LimitFigure& limit : figures_.limits) {
      if (probe != nullptr && limit.name == probe->instruction) return limit.rate;
    }
    return 0;
  }
  LimitSample limits_of(Isa level) {
    LimitSample out;
    for (const Arithmetic a : kArithmetics) {
      const PeakProbe* probe = cpu::strongest(probes_, level, a);
      if (probe != nullptr) out.operations[static_cast<size_t>(a)] = meter_.operations_per_s(*probe);
    }
    out.read = meter_.read_bytes_per_s(read_pages_);
    return out;
  }

  const KernelOptions& options_;
  LimitsMeter& meter_;
  const std::vector<PeakProbe>& probes_;
  KernelFigures& figures_;
  LimitsMeter::Pages read_pages_ = LimitsMeter::Pages::kHuge;
};

Arithmetic arithmetic_of(DType type) {
  if (type == DType::kF32) return Arithmetic::kFp32;
  return is_quantised(type) ? Arithmetic::kInt8 : Arithmetic::kBf16;
}

// All row counts of one weight, which is packed often enough to fill the buffer of the read limit.
Status run_linear(Runner& runner, Backend& backend, Isa level, DType type, cases::LinearShape shape,
                  const std::vector<int64_t>& rows, const std::function<void(int64_t)>& next) {
  const int64_t n = shape.n, k = cases::rounded_k(type, shape.k);
  const cases::Weight weight = cases::random_weight_of(type, n, k, 1);
  const RawMatrix raw = weight.raw();
  const size_t bytes = weight.bytes.size() + sizeof(float) * (weight.scales.size() + weight.mins.size());
  const bool streams = std::any_of(rows.begin(), rows.end(), [](int64_t m) { return m <= kStreamRows; });
  constexpr size_t kMostCopies = 4096;  // if these do not fill the buffer, the weight is in a cache anyway
  const size_t copies = streams ? std::clamp<size_t>(runner.stream_bytes() / bytes, 1, kMostCopies) : 1;
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  for (size_t i = 0; i < copies; ++i) {
    QUIRE_ASSIGN(auto one, backend.pack({&raw, 1}, {}));
    packed.push_back(std::move(one));
  }
  for (const int64_t m : rows) {
    next(m);
    KernelFigure figure;
    figure.op = "linear";
    figure.type = name(type);
    figure.shape = std::to_string(n) + "x" + std::to_string(k);
    figure.rows = m;
    figure.operations = 2.0 * static_cast<double>(m * n * k);
    figure.bytes = static_cast<double>(bytes);
    figure.peak_kind = runner.peak_kind(level, arithmetic_of(type));
    // Rows begin where they do in a model: in the backend's own memory.
    const std::vector<float> values = cases::random_rows(m, k, 2);
    QUIRE_ASSIGN(auto x, backend.allocate(values.size() * sizeof(float)));
    QUIRE_ASSIGN(auto y, backend.allocate(static_cast<size_t>(m * n) * sizeof(float)));
    backend.write(x->data(), std::as_bytes(std::span(values)));
    const size_t used = m <= kStreamRows ? packed.size() : 1;
    size_t at = 0;
    runner.run_case(std::move(figure), level, [&] {
      backend.linear(
          {{x->data(), DType::kF32, m, k, k}, packed[at++ % used].get(), nullptr, {y->data(), DType::kF32, m, n, n}});
    });
  }
  return {};
}

// One attention case with pages of one type, in enough layers to fill the buffer of the read limit.
Status run_attention(Runner& runner, Backend& backend, Isa level, DType type, const AttentionShape& shape) {
  cpu::AttentionCase c = {"", shape.heads, shape.kv_heads, shape.head_dim, 16, type, true, {}};
  c.sequences.assign(static_cast<size_t>(shape.sequences), {shape.queries, shape.context});
  cpu::PagedCache cache = cpu::make_paged_cache(c, 1);
  const auto positions = static_cast<int64_t>(cache.slots.size());
  const auto layer_bytes = static_cast<size_t>(cache.layer.page_stride * cache.layer.num_pages);
  const bool streams = shape.queries == 1;
  const size_t layers = streams ? std::clamp<size_t>(runner.stream_bytes() / layer_bytes, 1, 64) : 1;
  QUIRE_ASSIGN(auto memory, backend.allocate(layers * layer_bytes));
  std::vector<KvLayer> pages(layers, cache.layer);
  for (size_t i = 0; i < layers; ++i) {
    pages[i].pages = static_cast<std::byte*>(memory->data()) + i * layer_bytes;
    backend.reshape_and_cache({{cache.k.data(), DType::kF32, positions, cache.kv_cols(), cache.kv_cols()},
                               {cache.v.data(), DType::kF32, positions, cache.kv_cols(), cache.kv_cols()},
                               cache.slots,
                               pages[i]});
  }
  std::vector<int32_t> cu = {0};
  double pairs = 0;
  for (int32_t s = 0; s < shape.sequences; ++s) {
    cu.push_back(cu.back() + shape.queries);
    for (int32_t t = 0; t < shape.queries; ++t) pairs += static_cast<double>(shape.context - shape.queries + t + 1);
  }
  const int64_t tokens = cu.back();
  const auto q = cases::random_rows(tokens, cache.q_cols(), 3);
  std::vector<float> queries = q, out(q.size());

  KernelFigure figure;
  figure.op = shape.op;
  figure.type = name(type);
  figure.rows = tokens;
  figure.shape = std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) + "x" +
                 std::to_string(shape.head_dim) + " " + std::to_string(shape.sequences) + "@" +
                 std::to_string(shape.context);
  figure.operations = 4.0 * pairs * static_cast<double>(shape.heads * shape.head_dim);
  figure.bytes = 2.0 * static_cast<double>(positions * cache.kv_cols() * info(type).block_bytes);
  figure.peak_kind = runner.peak_kind(level, arithmetic_of(type));
  size_t at = 0;
  runner.run_case(std::move(figure), level, [&] {
    backend.attention({.q = {queries.data(), DType::kF32, tokens, cache.q_cols(), cache.q_cols()},
                       .kv = pages[at++ % layers],
                       .num_heads = shape.heads,
                       .scale = 0.125f,
                       .causal = true,
                       .cu_seqlens_q = cu,
                       .context_lens = cache.lengths,
                       .block_tables = cache.tables,
                       .max_blocks = cache.max_blocks,
                       .out = {out.data(), DType::kF32, tokens, cache.q_cols(), cache.q_cols()}});
  });
  return {};
}

// A gated delta net with the shape of Qwen3.5-0.8B. In decode, its states fill the buffer of the read limit.
constexpr int64_t kDeltaHeads = 16, kDeltaDim = 128, kDeltaKernel = 4;
struct DeltaShape {
  int32_t sequences, tokens;
};
constexpr DeltaShape kDeltaShapes[] = {{1, 512}, {1, 1}, {32, 1}};

Status run_delta(Runner& runner, Backend& backend, Isa level, const DeltaShape& shape) {
  const int64_t heads = kDeltaHeads, dim = kDeltaDim, channels = 3 * heads * dim;
  const int64_t rows = int64_t{shape.sequences} * shape.tokens;
  const int64_t state_bytes = gated_delta_net_state_bytes(heads, heads, dim, dim, kDeltaKernel);
  const size_t step_bytes = static_cast<size_t>(state_bytes) * static_cast<size_t>(shape.sequences);
  const size_t layers = shape.tokens == 1 ? std::clamp<size_t>(runner.stream_bytes() / step_bytes, 1, 64) : 1;
  QUIRE_ASSIGN(auto memory, backend.allocate(layers * step_bytes));
  std::memset(memory->data(), 0, layers * step_bytes);  // so that no sample pays for the first touch of a page
  // Not cases::random_rows(), whose products of tiny numbers are subnormal: a processor takes many times as long for
  // them.
  const auto uniform = [](int64_t count, uint64_t seed) {
    cases::Random random(seed);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = random.uniform(-1, 1);
    return out;
  };
  std::vector<float> qkv = uniform(rows * channels, 1), gates = uniform(rows * 2 * heads, 2);
  const std::vector<float> weight = uniform(channels * kDeltaKernel, 3), bias(static_cast<size_t>(heads));
  const std::vector<float> decay(static_cast<size_t>(heads), -0.1f);
  std::vector<float> out(static_cast<size_t>(rows * heads * dim));
  std::vector<int32_t> cu = {0}, pages;
  for (int32_t i = 0; i < shape.sequences; ++i) {
    cu.push_back(cu.back() + shape.tokens);
    pages.push_back(i);
  }
  const Tensor both = {gates.data(), DType::kF32, rows, 2 * heads, 2 * heads};

  KernelFigure figure;
  figure.op = "delta";
  figure.type = "F32";
  figure.rows = rows;
  figure.shape = std::to_string(heads) + "x" + std::to_string(dim) + "x" + std::to_string(dim) + " " +
                 std::to_string(shape.sequences) + "@" + std::to_string(shape.tokens);
  figure.operations =
      7.0 * static_cast<double>(rows * heads * dim * dim);  // a multiplication and three fma per element
  figure.bytes = 2.0 * static_cast<double>(step_bytes);     // read and written
  figure.peak_kind = runner.peak_kind(level, Arithmetic::kFp32);
  size_t at = 0;
  runner.run_case(std::move(figure), level, [&] {
    std::byte* states = static_cast<std::byte*>(memory->data()) + at++ % layers * step_bytes;
    backend.gated_delta_net({.qkv = {qkv.data(), DType::kF32, rows, channels, channels},
                             .a = both.columns(0, heads),
                             .b = both.columns(heads, heads),
                             .key_heads = heads,
                             .value_heads = heads,
                             .dk = dim,
                             .dv = dim,
                             .conv = {channels, kDeltaKernel, weight.data(), nullptr},
                             .decay = decay.data(),
                             .dt_bias = bias.data(),
                             .state = {states, state_bytes, shape.sequences},
                             .sequences = {cu, pages, pages},
                             .out = {out.data(), DType::kF32, rows, heads * dim, heads * dim}});
  });
  return {};
}

struct Plan {
  std::vector<Isa> levels;
  std::vector<DType> types, kv_types;
  std::vector<cases::LinearShape> shapes;
  std::vector<AttentionShape> attention;
  std::vector<int64_t> rows;
  std::vector<DeltaShape> delta;
  bool linear = true;
  size_t cases() const {
    return levels.size() * ((linear ? types.size() * shapes.size() * rows.size() : 0) +
                            attention.size() * kv_types.size() + delta.size());
  }
};

Result<Plan> plan(const KernelOptions& o) {
  Plan out;
  const auto op = [&](const char* name) {
    return o.ops.empty() || std::find(o.ops.begin(), o.ops.end(), name) != o.ops.end();
  };
  for (const std::string& wanted : o.ops) {
    if (wanted != "linear" && wanted != "attention" && wanted != "delta" && wanted != "limits") {
      return invalid_argument({"--ops has '", wanted, "'; choose from linear, attention, delta and limits"});
    }
  }
  QUIRE_ASSIGN(out.levels, levels_of(o.isa));
  using enum DType;
  std::vector<DType> usual = {kBF16, kF16, kF32, kQ8_0, kQ4_0, kQ4_1, kQ4_K, kQ6_K};
  if (o.quick) usual = {kBF16, kQ8_0, kQ4_0, kQ4_1};
  QUIRE_ASSIGN(out.types, types_of(o.types, usual));
  QUIRE_ASSIGN(out.kv_types, types_of(o.kv_types, o.quick ? std::vector{kF16} : std::vector{kF16, kBF16}));
  QUIRE_ASSIGN(out.shapes, shapes_of(o));
  out.rows = o.rows;
  if (out.rows.empty()) out.rows = o.quick ? std::vector<int64_t>{1, 512} : std::vector<int64_t>{1, 4, 32, 512};
  for (const int64_t m : out.rows) {
    constexpr int64_t kMost = 1 << 16;
    if (m < 1 || m > kMost) {
      return invalid_argument({"--rows has ", m, "; it must be from 1 to ", kMost});
    }
  }
  if (o.samples < 1 || o.samples > 10000) return invalid_argument("--samples must be 1 to 10000");
  out.linear = op("linear");
  if (op("attention") && o.quick) {
    out.attention.assign(std::begin(kQuickAttentionShapes), std::end(kQuickAttentionShapes));
  } else if (op("attention")) {
    out.attention.assign(std::begin(kAttentionShapes), std::end(kAttentionShapes));
  }
  if (op("delta") && (!o.quick || !o.ops.empty())) out.delta.assign(std::begin(kDeltaShapes), std::end(kDeltaShapes));
  return out;
}

std::string percent(std::optional<double> share) {
  char text[32];
  if (!share) return "-";
  std::snprintf(text, sizeof text, "%.1f%%", 100 * *share);
  return text;
}

}  // namespace

Result<std::vector<DType>> types_of(const std::vector<std::string>& names, std::vector<DType> fallback, bool gpu) {
  std::vector<DType> out;
  std::string choices;
  std::vector<DTypeInfo> known(kGgufDTypes.begin(), kGgufDTypes.end());
  for (const DType grouped : {DType::kG4, DType::kG8}) known.push_back(info(grouped));
  if (gpu) known.push_back(info(DType::kGF8));
  for (const DTypeInfo& type : known) choices += std::string(choices.empty() ? "" : ", ") + type.name;
  for (const std::string& wanted : names) {
    bool found = false;
    for (const DTypeInfo& type : known) {
      if (wanted != "all" && upper(wanted) != type.name) continue;
      out.push_back(type.type);
      found = true;
    }
    if (!found) return invalid_argument({"'", wanted, "' is not a weight type; choose all, or from: ", choices});
  }
  return out.empty() ? fallback : out;
}

Result<std::vector<cases::LinearShape>> shapes_of(const KernelOptions& o) {
  std::vector<cases::LinearShape> out;
  for (const std::string& text : o.shapes) {
    char* rest = nullptr;
    const int64_t n = std::strtoll(text.c_str(), &rest, 10);
    const int64_t k = *rest == 'x' ? std::strtoll(rest + 1, &rest, 10) : 0;
    constexpr int64_t kMost = int64_t{1} << 20;
    if (n < 1 || k < 1 || n > kMost || k > kMost || *rest != '\0') {
      return invalid_argument({"--shapes has '", text, "'; it must be NxK such as 3072x576, each from 1 to ", kMost});
    }
    out.push_back({n, k});
  }
  if (out.empty() && o.quick) out.assign(std::begin(kQuickShapes), std::end(kQuickShapes));
  if (out.empty()) out.assign(std::begin(kShapes), std::end(kShapes));
  return out;
}

std::optional<double> KernelFigure::share_peak() const {
  return peak_kind == "int8" ? share_int8 : peak_kind == "bf16" ? share_bf16 : share_fp32;
}

Result<KernelFigures> kernels(const KernelOptions& options, const KernelProgress& progress) {
  QUIRE_ASSIGN(const Plan p, plan(options));
  if (options.threads < 0 || options.threads > 1024) return invalid_argument("--threads must be 0 to 1024");
  KernelFigures out;
  out.threads = options.threads > 0 ? static_cast<int>(options.threads) : cpu::choose_cpus().threads;
  const size_t total = p.cases();
  progress("the machine's limits", "", 0, total);
  QUIRE_ASSIGN(const auto meter, LimitsMeter::make(out.threads, cpu::stream_bytes(options.quick)));
  out.buffer_bytes = static_cast<int64_t>(meter->buffer_bytes());
  const std::vector<PeakProbe> probes = cpu::peak_probes();
  Runner runner(options, *meter, probes, out);
  runner.measure_limits();
  for (const Isa level : p.levels) {
    QUIRE_ASSIGN(const auto backend, make_cpu_backend({.threads = out.threads, .isa = cpu::name(level)}));
    const auto tell = [&](const std::string& group, const std::string& what) {
      progress(std::string(cpu::name(level)) + " " + group, what, out.kernels.size(), total);
    };
    // A case that a level cannot run is skipped with a note.
    const auto note = [&](const std::string& what, const Status& status) {
      if (!status.ok()) out.notes.push_back(what + " on " + cpu::name(level) + ": " + status.error().message);
    };
    for (const DType type : p.linear ? p.types : std::vector<DType>{}) {
      for (const cases::LinearShape& shape : p.shapes) {
        const std::string what =
            std::string(name(type)) + " " + std::to_string(shape.n) + "x" + std::to_string(shape.k);
        note(what, run_linear(runner, *backend, level, type, shape, p.rows, [&](int64_t m) {
               tell(std::string("linear ") + name(type), what + " rows " + std::to_string(m));
             }));
      }
    }
    for (const DType type : p.kv_types) {
      const auto known = backend->kv_dtypes();
      const bool pages = std::find(known.begin(), known.end(), type) != known.end();
      if (!pages && !p.attention.empty())
        note(std::string("attention ") + name(type), unsupported("there are no pages of that type"));
      for (const AttentionShape& shape : pages ? p.attention : std::vector<AttentionShape>{}) {
        const std::string what =
            std::string(shape.op) + " " + std::to_string(shape.sequences) + " at " + std::to_string(shape.context);
        tell(std::string("attention ") + name(type), what);
        note(what, run_attention(runner, *backend, level, type, shape));
      }
    }
    for (const DeltaShape& shape : p.delta) {
      const std::string what = std::to_string(shape.sequences) + " of " + std::to_string(shape.tokens) + " tokens";
      tell("gated delta net", what);
      note("gated delta net, " + what, run_delta(runner, *backend, level, shape));
    }
  }
  return out;
}

json::Value KernelFigures::to_json() const {
  json::Value out{json::Object{}};
  out.set("threads", threads);
  out.set("buffer_bytes", buffer_bytes);
  json::Array limit_list, kernel_list, note_list;
  for (const LimitFigure& f : limits) {
    json::Value item{json::Object{}};
    item.set("name", f.name);
    item.set("kind", f.kind);
    item.set(f.kind == "read" ? "gb_per_s" : "gop_per_s", f.rate * 1e-9);
    item.set(f.kind == "read" ? "most_gb_per_s" : "most_gop_per_s", f.most * 1e-9);
    limit_list.push_back(std::move(item));
  }
  const auto optional = [](const std::optional<double>& value) { return value ? json::Value(*value) : json::Value(); };
  for (const KernelFigure& f : kernels) {
    json::Value item{json::Object{}};
    item.set("op", f.op);
    item.set("isa", f.isa);
    item.set("type", f.type);
    item.set("shape", f.shape);
    item.set("rows", f.rows);
    item.set("us", f.seconds * 1e6);
    item.set("gop_per_s", f.operations / f.seconds * 1e-9);
    item.set("peak_kind", f.peak_kind);
    item.set("share_peak", optional(f.share_peak()));
    item.set("share_fp32", optional(f.share_fp32));
    item.set("share_bf16", optional(f.share_bf16));
    item.set("share_int8", optional(f.share_int8));
    item.set("gb_per_s", f.bytes / f.seconds * 1e-9);
    item.set("share_read", f.share_read);
    kernel_list.push_back(std::move(item));
  }
  for (const std::string& note : notes) note_list.emplace_back(note);
  out.set("limits", std::move(limit_list));
  out.set("kernels", std::move(kernel_list));
  if (!notes.empty()) out.set("notes", std::move(note_list));
  return out;
}

std::string KernelFigures::limits_text() const {
  char text[160];
  std::snprintf(text, sizeof text, "Limits of this machine, %d thread%s (reading %lld MiB)\n", threads,
                threads == 1 ? "" : "s", static_cast<long long>(buffer_bytes >> 20));
  std::string out = text;
  for (const LimitFigure& f : limits) {
    std::snprintf(text, sizeof text, "  %-5s %-24s %9.1f %s  (best %.1f)\n", f.kind.c_str(), f.name.c_str(),
                  f.rate * 1e-9, f.kind == "read" ? "GB/s " : "GOP/s", f.most * 1e-9);
    out += text;
  }
  return out;
}

std::string KernelFigures::to_text() const {
  std::string out = limits_text();
  if (!kernels.empty()) {
    out += "\nShares of these limits, measured with each case; the limit that applies is marked\n";
    out +=
        "  op      isa          type  shape               rows         us     GOP/s    of int8   of bf16   of fp32   ";
    out += "  GB/s   of read\n";
  }
  for (const KernelFigure& f : kernels) {
    const auto share = [&](const char* kind, std::optional<double> value) {
      return percent(value) + (f.peak_kind == kind ? "*" : " ");
    };
    char text[240];
    std::snprintf(text, sizeof text, "  %-7s %-12s %-5s %-18s %5lld %10.1f %9.1f  %9s %9s %9s %8.2f %8s\n",
                  f.op.c_str(), f.isa.c_str(), f.type.c_str(), f.shape.c_str(), static_cast<long long>(f.rows),
                  f.seconds * 1e6, f.operations / f.seconds * 1e-9, share("int8", f.share_int8).c_str(),
                  share("bf16", f.share_bf16).c_str(), share("fp32", f.share_fp32).c_str(), f.bytes / f.seconds * 1e-9,
                  percent(f.share_read).c_str());
    out += text;
  }
  for (const std::string& note : notes) out += "  skipped: " + note + "\n";
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace quire::bench
