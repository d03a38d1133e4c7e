// SPDX-License-Identifier: Apache-2.0
// The checks of the self-test. Each is written once and runs on both sides.
#include <algorithm>
#include <cctype>
#include <numeric>

#include "backend/gpu/selftest.h"
#include "backend/lora_image.h"
#include "backend/testing/linear_cases.h"

namespace quire::gpu {
namespace {

constexpr DType kActivations[] = {DType::kBF16, DType::kF16, DType::kF32};

// "bf16", "q4_k"
std::string type_name(DType type) {
  std::string out = name(type);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// The largest error that rounding inputs, weights and outputs to this type may cause.
double bound_of(DType type) {
  return type == DType::kBF16 ? 0.02 : type == DType::kF16 ? 0.0025 : 2e-5;
}

class Cases {
 public:
  using Run = std::function<std::vector<float>(SelftestSide&)>;
  void add(std::string op, std::string types, DType activation, Run run) {
    all.push_back({std::move(op), std::move(types), activation, bound_of(activation), std::move(run)});
  }
  void add(std::string op, DType activation, Run run) {
    add(std::move(op), type_name(activation), activation, std::move(run));
  }
  std::vector<SelftestCase> all;
};

void norms(Cases& cases, DType t) {
  const std::string from_f32 = "f32 to " + type_name(t);
  cases.add("rms_norm", from_f32, t, [](SelftestSide& s) {
    const Tensor x = s.random(3, 600, 1, 2.0f, DType::kF32), out = s.room(3, 600);
    const float* w = s.floats(600, 2, -1, 1);
    s.go([&](Backend& b) { b.rms_norm({x, w, 600, 1e-5f, out}); });
    return s.read(out);
  });
  cases.add("rms_norm of heads", t, [](SelftestSide& s) {
    const Tensor x = s.random(3, 256, 1, 2.0f);
    const float* w = s.floats(64, 2, -1, 1);
    s.go([&](Backend& b) { b.rms_norm({x, w, 64, 1e-5f, x}); });
    return s.read(x);
  });
  cases.add("add_norm", t, [](SelftestSide& s) {
    const Tensor x = s.random(3, 512, 1, 2.0f), sum = s.random(3, 512, 2, 2.0f, DType::kF32), out = s.room(3, 512);
    const float *before = s.floats(512, 3, -1, 1), *after = s.floats(512, 4, -1, 1);
    s.go([&](Backend& b) {
      const AddNormArgs args{x, before, 0.5f, sum, after, 1e-5f, out};
      if (b.joins_add_norm(args)) return b.add_norm(args);
      b.rms_norm({x, before, 512, 1e-5f, x});
      b.residual_add({x, sum, 0.5f, sum});
      b.rms_norm({sum, after, 512, 1e-5f, out});
    });
    return s.read(out);
  });
  cases.add("layer_norm", from_f32, t, [](SelftestSide& s) {
    const Tensor x = s.random(3, 600, 1, 2.0f, DType::kF32), out = s.room(3, 600);
    const float *w = s.floats(600, 2, -1, 1), *bias = s.floats(600, 3, -1, 1);
    s.go([&](Backend& b) { b.layer_norm({x, w, bias, 600, 1e-5f, out}); });
    return s.read(out);
  });
  cases.add("gated_rms_norm", t, [](SelftestSide& s) {
    const Tensor x = s.random(3, 256, 1), gate = s.random(3, 256, 2, 4.0f), out = s.room(3, 256);
    const float* w = s.floats(128, 3, -1, 1);
    s.go([&](Backend& b) { b.gated_rms_norm({x, gate, w, 128, 128, 1e-5f, false, out}); });
    return s.read(out);
  });
}

void elementwise(Cases& cases, DType t) {
  for (const bool interleaved : {false, true}) {
    cases.add(interleaved ? "rope, neighbours" : "rope, halves", t, [interleaved](SelftestSide& s) {
      const Tensor x = s.random(3, 160, 1);
      const float *cosines = s.floats(50 * 32, 2, -1, 1), *sines = s.floats(50 * 32, 3, -1, 1);
      const auto positions = s.ints({49, 0, 7});
      s.go([&](Backend& b) { b.rope({x, 80, 64, interleaved, cosines, sines, positions, 16}); });
      return s.read(x);
    });
  }
  constexpr std::pair<Activation, const char*> kKinds[] = {
      {Activation::kSilu, "silu"}, {Activation::kGelu, "gelu"},   {Activation::kGeluTanh, "gelu_tanh"},
      {Activation::kRelu, "relu"}, {Activation::kRelu2, "relu2"}, {Activation::kSigmoid, "sigmoid"}};
  for (const auto& [kind, name] : kKinds) {
    cases.add(std::string("glu, ") + name, t, [kind = kind](SelftestSide& s) {
      const Tensor gate = s.random(3, 70, 1, 6.0f), up = s.random(3, 70, 2), out = s.room(3, 70);
      s.go([&](Backend& b) {
        b.glu({gate, up, kind, out});
        b.activation({out, kind, out});
      });
      return s.read(out);
    });
  }
  cases.add("glu, clamped", t, [](SelftestSide& s) {
    const Tensor gate = s.random(3, 64, 1, 12.0f), up = s.random(3, 64, 2, 12.0f), out = s.room(3, 64);
    s.go([&](Backend& b) { b.glu({gate, up, Activation::kSilu, out, 7.0f}); });
    return s.read(out);
  });
  cases.add("residual_add", type_name(t) + " to f32", t, [](SelftestSide& s) {
    const Tensor x = s.random(3, 64, 1), out = s.random(3, 64, 2, 1.0f, DType::kF32);
    s.go([&](Backend& b) { b.residual_add({x, out, 0.5f, out}); });
    return s.read(out);
  });
  cases.add("scale", "f32 to " + type_name(t), t, [](SelftestSide& s) {
    const Tensor x = s.random(3, 64, 1, 1.0f, DType::kF32), out = s.room(3, 64);
    const std::span<const float> rows(s.floats(3, 2, 0, 2), 3);
    s.go([&](Backend& b) { b.scale({x, 1.5f, rows, out}); });
    return s.read(out);
  });
  cases.add("soft_cap", t, [](SelftestSide& s) {
    const Tensor x = s.random(3, 65, 1, 80.0f);
    s.go([&](Backend& b) { b.soft_cap({x, 30.0f, x}); });
    return s.read(x);
  });
  cases.add("gather", t, [](SelftestSide& s) {
    const Tensor x = s.random(5, 70, 1), rows = s.room(3, 70), columns = s.room(3, 4);
    const auto taken = s.ints({4, 0, 4}), cut = s.ints({69, 3, 4, 0});
    s.go([&](Backend& b) {
      b.gather({x, taken, rows});
      b.gather_columns({rows, cut, columns});
    });
    std::vector<float> out = s.read(rows), more = s.read(columns);
    out.insert(out.end(), more.begin(), more.end());
    return out;
  });
  cases.all.back().bound = 0;  // copies
}

// --- weights ---

std::unique_ptr<PackedMatrix> packed(SelftestSide& s, const cases::Weight& weight) {
  if (!s.ops.packs(weight.dtype)) {
    return packed(s, cases::expanded(weight, s.type == DType::kF32 ? DType::kF32 : DType::kBF16));
  }
  const RawMatrix raw = weight.raw();
  PackOptions options;
  options.quantise_activations = false;
  options.activation = s.gpu == nullptr ? DType::kF32 : s.type;
  auto out = s.ops.pack({&raw, 1}, options);
  QUIRE_CHECK(out.ok(), "a weight of the self-test could not be packed");
  return std::move(out).value();
}

// Many rows, and the first of them alone.
void linears(Cases& cases, DType t) {
  std::vector<DType> weights(std::begin(cases::kPlainTypes), std::end(cases::kPlainTypes));
  const std::vector<DType> quantised = cases::gpu_quant_types();
  weights.insert(weights.end(), quantised.begin(), quantised.end());
  for (const DType weight : weights) {
    const std::string types = type_name(t) + " x " + type_name(weight);
    cases.add("linear", types, t, [weight](SelftestSide& s) {
      const auto w = packed(s, cases::random_weight_of(weight, 48, 256, 7));
      const Tensor x = s.random(20, 256, 1), out = s.room(20, 48), one = s.room(1, 48);
      const float* bias = s.floats(48, 3, -1, 1);
      s.go([&](Backend& b) { b.linear({x, w.get(), bias, out}); });
      s.go([&](Backend& b) { b.linear({x.first_rows(1), w.get(), bias, one}); });
      const std::vector<float> all = s.read(out);
      s.expect_same(s.read(one), std::vector<float>(all.begin(), all.begin() + 48), "a row alone has other bits");
      return all;
    });
  }
  cases.add("linear_heads", type_name(t) + " x " + type_name(t), t, [t](SelftestSide& s) {
    constexpr int64_t kHeads = 3, kN = 48, kK = 64;
    const auto w = packed(s, cases::random_weight_of(t, kHeads * kN, kK, 12));
    const Tensor x = s.random(70, kHeads * (kK + 16), 1), out = s.room(70, kHeads * kN), one = s.room(1, kHeads * kN);
    s.go([&](Backend& b) { b.linear_heads({x, w.get(), kHeads, kN, out}); });
    s.go([&](Backend& b) { b.linear_heads({x.first_rows(1), w.get(), kHeads, kN, one}); });
    const std::vector<float> all = s.read(out);
    s.expect_same(s.read(one), std::vector<float>(all.begin(), all.begin() + one.cols), "a row alone has other bits");
    return all;
  });
  cases.add("linear, gated", type_name(t) + " x " + type_name(t), t, [t](SelftestSide& s) {
    const auto w = packed(s, cases::random_weight_of(t, 96, 128, 8));
    const Tensor x = s.random(5, 128, 1, 0.2f), out = s.room(5, 48), both = s.room(5, 96);
    const FusedGlu form;
    LinearArgs args{x, w.get(), nullptr, out};
    args.gated = &form;
    if (s.gpu != nullptr) {
      s.go([&](Backend& b) { b.linear(args); });
      return s.read(out);
    }
    s.go([&](Backend& b) {
      b.linear({x, w.get(), nullptr, both});
      b.glu({both.columns(0, 48), both.columns(48, 48), Activation::kSilu, out});
    });
    return s.read(out);
  });
  cases.add("linear, joined", type_name(t) + " x " + type_name(t), t, [t](SelftestSide& s) {
    const auto w = packed(s, cases::random_weight_of(t, 128, 128, 9));
    const Tensor hidden = s.random(1, 128, 1, 1.0f, DType::kF32), normed = s.room(1, 128), out = s.room(1, 128);
    const FusedNorm norm{s.floats(128, 2, 0, 1), 1e-5f};
    if (s.ops.joins_linear(1)) {
      LinearArgs args{hidden, w.get(), nullptr, hidden};
      args.norm = &norm;
      args.out = out;
      s.go([&](Backend& b) { b.linear(args); });
      LinearArgs last{out, w.get(), nullptr, hidden};
      last.residual = hidden;
      last.residual_scale = 0.5f;
      s.go([&](Backend& b) { b.linear(last); });
      return s.read(hidden);
    }
    s.go([&](Backend& b) {
      b.rms_norm({hidden, norm.weight, 128, norm.eps, normed});
      b.linear({normed, w.get(), nullptr, out});
      b.linear({out, w.get(), nullptr, normed});
      b.residual_add({normed, hidden, 0.5f, hidden});
    });
    return s.read(hidden);
  });
  for (const DType table : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ6_K, DType::kG4}) {
    cases.add("embedding", type_name(table) + " to f32", t, [table](SelftestSide& s) {
      const auto w = packed(s, cases::random_weight_of(table, 30, 256, 11));
      const Tensor out = s.room(3, 256, DType::kF32);
      const auto tokens = s.ints({29, 0, 7});
      s.go([&](Backend& b) { b.embedding({w.get(), tokens, 2.0f, out}); });
      return s.read(out);
    });
    cases.all.back().bound = bound_of(DType::kF32);
  }
}

// --- attention ---

struct AttentionShape {
  const char* name = "attention";
  DType pages = DType::kBF16;
  int64_t heads = 4, kv_heads = 2, head_dim = 64, v_dim = 64;
  bool v_in_k = false;
  int64_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
};

// 70 tokens written and attended to at once, then the last of them alone, as a decode step would.
std::vector<float> attend(SelftestSide& s, const AttentionShape& shape) {
  constexpr int64_t kTokens = 70, kBlock = 16, kPages = 8;
  const KvPageShape page{shape.pages, kBlock, shape.kv_heads, shape.head_dim, shape.v_dim, shape.v_in_k};
  KvLayer kv;
  kv.page_stride = (static_cast<int64_t>(s.ops.kv_page_bytes(page)) + 63) / 64 * 64;
  kv.pages = s.zeros(static_cast<size_t>(kPages * kv.page_stride));
  kv.num_pages = kPages;
  kv.block_size = kBlock;
  kv.num_kv_heads = shape.kv_heads;
  kv.head_dim = shape.head_dim;
  kv.v_head_dim = shape.v_dim;
  kv.v_in_k = shape.v_in_k;
  kv.dtype = shape.pages;
  const std::vector<int32_t> table = {5, 2, 7, 0, 3};
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < kTokens; ++i) slots.push_back(table[static_cast<size_t>(i / kBlock)] * kBlock + i % kBlock);

  const Tensor k = s.random(kTokens, shape.kv_heads * shape.head_dim, 1);
  const Tensor v = shape.v_in_k ? Tensor{} : s.random(kTokens, shape.kv_heads * shape.v_dim, 2);
  const Tensor q = s.random(kTokens, shape.heads * shape.head_dim, 3, 2.0f);
  const Tensor out = s.room(kTokens, shape.heads * shape.v_dim), one = s.room(1, shape.heads * shape.v_dim);
  AttentionArgs args;
  args.q = q;
  args.kv = kv;
  args.num_heads = shape.heads;
  args.scale = 0.125f;
  args.window = shape.window;
  args.soft_cap = shape.soft_cap;
  if (shape.sinks) args.sinks = s.floats(shape.heads, 4, -1, 1);
  args.cu_seqlens_q = s.ints({0, kTokens});
  args.context_lens = s.ints({kTokens});
  args.block_tables = s.ints(table);
  args.max_blocks = static_cast<int64_t>(table.size());
  args.out = out;
  AttentionArgs decode = args;
  decode.q = q.some_rows(kTokens - 1, 1);
  decode.cu_seqlens_q = s.ints({0, 1});
  decode.out = one;
  const auto mapping = s.longs(slots);
  s.go([&](Backend& b) {
    b.reshape_and_cache({k, v, mapping, kv});
    b.attention(args);
    b.attention(decode);
  });
  const std::vector<float> all = s.read(out);
  s.expect_same(s.read(one), std::vector<float>(all.end() - one.cols, all.end()), "decode has other bits than prefill");
  return all;
}

// The latent vectors of three tokens written to pages, and one that attends to them with queries that are zero but for
// their rotated ends.
std::vector<float> cache_latents(SelftestSide& s, DType pages) {
  constexpr int64_t kTokens = 3, kHeads = 2, kRank = 96, kRot = 32, kNope = 16, kDim = kRank + kRot;
  KvLayer kv;
  kv.page_stride = (static_cast<int64_t>(s.ops.kv_page_bytes({pages, 16, 1, kDim, kRank, true})) + 63) / 64 * 64;
  kv.pages = s.zeros(static_cast<size_t>(kv.page_stride));
  kv.num_pages = 1;
  kv.block_size = 16;
  kv.num_kv_heads = 1;
  kv.head_dim = kDim;
  kv.v_head_dim = kRank;
  kv.v_in_k = true;
  kv.dtype = pages;
  MlaToCacheArgs args;
  args.q = s.random(kTokens, kHeads * (kNope + kRot), 1);
  args.latent = s.random(kTokens, kDim, 2);
  args.q_latent = s.random(kTokens, kHeads * kDim, 3, 0.0f);
  args.num_heads = kHeads;
  args.norm = s.floats(kRank, 4, 0, 1);
  args.eps = 1e-5f;
  args.rot_dim = kRot;
  args.interleaved = true;
  args.cos_table = s.floats(50 * kRot / 2, 5, -1, 1);
  args.sin_table = s.floats(50 * kRot / 2, 6, -1, 1);
  args.positions = s.ints({49, 0, 7});
  args.slot_mapping = s.longs({2, 0, 1});
  args.kv = kv;
  AttentionArgs attend;
  attend.q = args.q_latent.first_rows(1);
  attend.kv = kv;
  attend.num_heads = kHeads;
  attend.scale = 0.125f;
  attend.cu_seqlens_q = s.ints({0, 1});
  attend.context_lens = s.ints({kTokens});
  attend.block_tables = s.ints({0});
  attend.max_blocks = 1;
  attend.out = s.room(1, kHeads * kRank);
  s.go([&](Backend& b) {
    if (b.joins_mla(args)) {
      b.mla_to_cache(args);
    } else {
      const Tensor latent = args.latent.columns(0, kRank);
      b.rms_norm({latent, args.norm, kRank, args.eps, latent});
      b.rope({args.latent, kDim, kRot, true, args.cos_table, args.sin_table, args.positions, kRank});
      b.rope({args.q, kNope + kRot, kRot, true, args.cos_table, args.sin_table, args.positions, kNope, args.q_latent,
              kDim});
      b.reshape_and_cache({args.latent, {}, args.slot_mapping, kv});
    }
    b.attention(attend);
  });
  std::vector<float> out = s.read(attend.out), queries = s.read(args.q_latent);
  out.insert(out.end(), queries.begin(), queries.end());
  return out;
}

void attentions(Cases& cases, DType t) {
  const auto add = [&](AttentionShape shape) {
    const std::string types = type_name(t) + ", pages " + type_name(shape.pages);
    cases.add(shape.name, types, t, [shape](SelftestSide& s) { return attend(s, shape); });
  };
  for (const DType pages : {t, DType::kI8, DType::kF8E4M3, DType::kF8E5M2}) add({.pages = pages});
  add({.name = "attention, window", .pages = t, .window = 33});
  add({.name = "attention, soft cap", .pages = t, .head_dim = 128, .v_dim = 128, .soft_cap = 20.0f});
  add({.name = "attention, sinks", .pages = t, .heads = 2, .head_dim = 80, .v_dim = 80, .sinks = true});
  cases.add("mla_to_cache", t, [t](SelftestSide& s) { return cache_latents(s, t); });
  add({.name = "attention, MLA", .pages = t, .heads = 2, .kv_heads = 1, .head_dim = 576, .v_dim = 512, .v_in_k = true});
}

// --- recurrent layers ---

// Five tokens of one sequence and two of another at once, then one more of each.
StateSequences first_step(SelftestSide& s) {
  return {s.ints({0, 5, 7}), s.ints({-1, -1}), s.ints({1, 0})};
}
StateSequences second_step(SelftestSide& s) {
  return {s.ints({0, 1, 2}), s.ints({1, 0}), s.ints({1, 2})};
}

// `run` gives the op one step's inputs and outputs.
template <typename Run>
std::vector<float> two_steps(SelftestSide& s, int64_t in_cols, int64_t out_cols, const Run& run) {
  std::vector<float> result;
  for (const bool first : {true, false}) {
    const int64_t rows = first ? 7 : 2;
    const Tensor in = s.random(rows, in_cols, first ? 1 : 2), out = s.room(rows, out_cols);
    const StateSequences sequences = first ? first_step(s) : second_step(s);
    s.go([&](Backend& b) { run(b, in, sequences, out); });
    const std::vector<float> got = s.read(out);
    result.insert(result.end(), got.begin(), got.end());
  }
  return result;
}

StateLayer state_of(SelftestSide& s, int64_t bytes) {
  return {s.zeros(static_cast<size_t>(3 * bytes)), bytes, 3};
}

void recurrent(Cases& cases, DType t) {
  cases.add("gated_delta_net", t, [](SelftestSide& s) {
    constexpr int64_t kKeys = 2, kValues = 4, kDk = 48, kDv = 80;
    constexpr int64_t kChannels = 2 * kKeys * kDk + kValues * kDv;
    const StateLayer state = state_of(s, gated_delta_net_state_bytes(kKeys, kValues, kDk, kDv, 4));
    const CausalConv conv{kChannels, 4, s.floats(4 * kChannels, 3, -1, 1), nullptr};
    const float *decay = s.floats(kValues, 4, -1, 0), *bias = s.floats(kValues, 5, -2, 2);
    return two_steps(s, kChannels + 2 * kValues, kValues * kDv,
                     [&](Backend& b, const Tensor& in, const StateSequences& sequences, const Tensor& out) {
                       b.gated_delta_net({in.columns(0, kChannels), in.columns(kChannels, kValues),
                                          in.columns(kChannels + kValues, kValues), kKeys, kValues, kDk, kDv, conv,
                                          decay, bias, state, sequences, out});
                     });
  });
  cases.add("mamba2", t, [](SelftestSide& s) {
    constexpr int64_t kHeads = 4, kDim = 40, kGroups = 2, kSize = 24;
    constexpr int64_t kChannels = kHeads * kDim + 2 * kGroups * kSize;
    const StateLayer state = state_of(s, mamba2_state_bytes(kHeads, kDim, kGroups, kSize, 4));
    const CausalConv conv{kChannels, 4, s.floats(4 * kChannels, 3, -1, 1), s.floats(kChannels, 4, -1, 1)};
    const float *decay = s.floats(kHeads, 5, -1, 0), *skip = s.floats(kHeads, 6, -1, 1);
    const float* bias = s.floats(kHeads, 7, -1, 1);
    return two_steps(s, kChannels + kHeads, kHeads * kDim,
                     [&](Backend& b, const Tensor& in, const StateSequences& sequences, const Tensor& out) {
                       b.mamba2({in.columns(0, kChannels), in.columns(kChannels, kHeads), kHeads, kDim, kGroups, kSize,
                                 conv, decay, skip, bias, 0.1f, 2.0f, state, sequences, out});
                     });
  });
  cases.add("short_conv", t, [](SelftestSide& s) {
    const StateLayer state = state_of(s, short_conv_state_bytes(150, 3));
    const CausalConv conv{150, 3, s.floats(450, 3, -1, 1), nullptr};
    return two_steps(s, 450, 150,
                     [&](Backend& b, const Tensor& in, const StateSequences& sequences, const Tensor& out) {
                       b.short_conv({in, conv, state, sequences, out});
                     });
  });
}

// --- experts and sampling ---

std::vector<float> run_experts(SelftestSide& s, DType weight, bool clamped, int64_t tokens) {
  constexpr int64_t kExperts = 4, kHidden = 64, kInner = 32, kChosen = 2;
  std::vector<std::unique_ptr<PackedMatrix>> matrices;
  std::vector<const PackedMatrix*> gate_up, down;
  for (uint64_t e = 0; e < kExperts; ++e) {
    matrices.push_back(packed(s, cases::random_weight_of(weight, 2 * kInner, kHidden, 20 + e)));
    gate_up.push_back(matrices.back().get());
    matrices.push_back(packed(s, cases::random_weight_of(weight, kHidden, kInner, 40 + e)));
    down.push_back(matrices.back().get());
  }
  QUIRE_CHECK(s.ops.stack(gate_up).ok() && s.ops.stack(down).ok());
  const Tensor logits = s.random(tokens, kExperts, 1, 2.0f, DType::kF32), x = s.random(tokens, kHidden, 2);
  const Tensor ids = s.room(tokens, kChosen, DType::kF32), weights = s.room(tokens, kChosen, DType::kF32);
  const Tensor out = s.room(tokens, kHidden);
  MoeRouteArgs route;
  route.logits = logits;
  route.k = kChosen;
  route.normalise = true;
  route.ids = static_cast<int32_t*>(ids.data);
  route.weights = weights.f32();
  MoeExpertsArgs experts;
  experts.x = x;
  experts.ids = route.ids;
  experts.weights = route.weights;
  experts.k = kChosen;
  experts.gate_up = gate_up;
  experts.down = down;
  experts.limit = clamped ? 7.0f : 0.0f;
  experts.out = out;
  s.go([&](Backend& b) {
    b.moe_route(route);
    b.moe_experts(experts);
  });
  return s.read(out);
}

void experts(Cases& cases, DType t) {
  for (const DType weight : {t, DType::kQ8_0, DType::kMXFP4}) {
    const std::string types = type_name(t) + " x " + type_name(weight);
    cases.add("experts, few tokens", types, t,
              [weight](SelftestSide& s) { return run_experts(s, weight, weight == DType::kMXFP4, 3); });
    cases.add("experts, many tokens", types, t,
              [weight](SelftestSide& s) { return run_experts(s, weight, weight == DType::kMXFP4, 90); });
  }
}

// The likeliest tokens, asked for in two ways; the host looks for them itself.
void adapters(Cases& cases, DType t) {
  cases.add("lora", t, [](SelftestSide& s) {
    std::vector<float> a(12 * 70), b(50 * 12);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 37 % 41) / 32 - 0.625f;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 29 % 41) / 32 - 0.625f;
    LoraImage image(1, s.type);
    const LoraPart part{3, 50, 12, a, b, {}, 0.5f};
    image.add(0, 70, {&part, 1});
    const LoraMemory memory{static_cast<std::byte*>(s.zeros(static_cast<size_t>(image.bytes()))), image.bytes(),
                            s.type};
    s.ops.write(const_cast<std::byte*>(memory.data), image.take());
    const std::span<const int32_t> run = s.ints({0, 0, 2, 0});  // slot 0: two rows from the first one on
    const LoraRows rows{
        s.ints({1, 3, 0, 2}), s.ints({0, 0, -1, -1}), 2, 0, {reinterpret_cast<const LoraRun*>(run.data()), 1}};
    const Tensor x = s.random(4, 70, 1), out = s.random(4, 64, 2), between = s.room(4, 16, DType::kF32);
    s.go([&](Backend& backend) { backend.lora({x, {}, memory, rows, 0, between, out, 16}); });
    return s.read(out);
  });
}

// Digests as whole numbers that floats hold.
void add_digests(std::span<const uint64_t> digests, std::vector<float>& values) {
  for (const uint64_t digest : digests) {
    for (int shift = 0; shift < 64; shift += 16) values.push_back(static_cast<float>(digest >> shift & 0xFFFF));
  }
}

void sampling(Cases& cases) {
  cases.all.push_back({"sampling", "f32", DType::kF32, 0, [](SelftestSide& s) {
                         constexpr int64_t kVocab = 5000;
                         const Tensor logits = s.random(4, kVocab, 1, 10.0f, DType::kF32);
                         std::vector<float> tokens;
                         if (s.gpu == nullptr) {
                           for (int64_t r = 0; r < logits.rows; ++r) {
                             const float* row = logits.row_f32(r);
                             tokens.push_back(static_cast<float>(std::max_element(row, row + kVocab) - row));
                           }
                           const std::vector<int32_t> all = {0, 1, 2, 3};
                           std::vector<uint64_t> digests(all.size());
                           s.ops.digest_rows({logits, all, digests});
                           add_digests(digests, tokens);
                           return tokens;
                         }
                         std::vector<SampleRow> rows(4);
                         for (SampleRow& row : rows) row.digest = true;
                         for (size_t r = 2; r < 4; ++r) {
                           rows[r].temperature = 1.0f;
                           rows[r].top_k = 1;
                         }
                         if (!s.ops.prepare_sampling(4, 4, kVocab).ok()) return tokens;
                         s.go([&](Backend& b) {
                           b.sample({logits, rows, {}, {}, 0});
                           const SampledRows found = b.sampled(b.finish_samples(4));
                           for (const SampledRow& row : found.rows) {
                             tokens.push_back(row.faults == 0 ? static_cast<float>(row.token) : -1.0f);
                           }
                           add_digests(found.digests, tokens);
                         });
                         return tokens;
                       }});
}

}  // namespace

std::vector<SelftestCase> selftest_cases() {
  Cases cases;
  for (const DType t : kActivations) {
    norms(cases, t);
    elementwise(cases, t);
    linears(cases, t);
    attentions(cases, t);
    recurrent(cases, t);
    experts(cases, t);
    adapters(cases, t);
  }
  sampling(cases);
  return std::move(cases.all);
}

}  // namespace quire::gpu
