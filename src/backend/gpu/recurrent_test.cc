// SPDX-License-Identifier: Apache-2.0
// gated_delta_net, mamba2 and short_conv on a GPU: near the CPU's values for all types, and the same bits whatever the
// chunks, the batch, the pages and the order of lanes are.
#include <algorithm>
#include <cmath>

#include "backend/gpu/test_device.h"

namespace quire::gpu {
namespace {

std::vector<float> random_floats(int64_t n, uint32_t seed, float range = 1.0f) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-range, range);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = uniform(random);
  return out;
}

// Where a layer's constants are: on the host, or copied to a device.
using Place = std::function<const float*(const std::vector<float>&)>;
const float* on_host(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

// What one step gives an op. All inputs of a token are one row.
struct Step {
  Tensor in;
  StateLayer state;
  StateSequences sequences;
  Tensor out;
};

class Layer {
 public:
  Layer(std::string name, int64_t channels, int64_t kernel, bool bias, int64_t in_cols, int64_t out_cols,
        int64_t matrix_floats)
      : name(std::move(name)),
        in_cols(in_cols),
        out_cols(out_cols),
        state_floats(channels * (kernel - 1) + matrix_floats),
        channels_(channels),
        kernel_(kernel),
        weight_(random_floats(channels * kernel, 11)),
        bias_(random_floats(bias ? channels : 0, 12)) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  virtual void run(Backend& backend, const Place& place, const Step& step) const = 0;

  const std::string name;
  const int64_t in_cols, out_cols, state_floats;

 protected:
  CausalConv conv(const Place& place) const { return {channels_, kernel_, place(weight_), place(bias_)}; }
  int64_t channels_, kernel_;

 private:
  std::vector<float> weight_, bias_;
};

class GatedDeltaNet final : public Layer {
 public:
  GatedDeltaNet(int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv, int64_t kernel, bool bias,
                bool tiled = false)
      : Layer("gated delta net " + std::to_string(key_heads) + "/" + std::to_string(value_heads) +
                  (tiled ? " tiled heads, " : " heads, ") + std::to_string(dk) + "x" + std::to_string(dv) +
                  ", kernel " + std::to_string(kernel),
              2 * key_heads * dk + value_heads * dv, kernel, bias,
              2 * key_heads * dk + value_heads * dv + 2 * value_heads, value_heads * dv, value_heads * dk * dv),
        hk_(key_heads),
        hv_(value_heads),
        dk_(dk),
        dv_(dv),
        tiled_(tiled),
        decay_(random_floats(value_heads, 13)),
        dt_bias_(random_floats(value_heads, 14, 4.0f)) {
    for (float& x : decay_) x = -std::fabs(x) * 0.5f;
  }
  void run(Backend& backend, const Place& place, const Step& step) const override {
    backend.gated_delta_net({.qkv = step.in.columns(0, channels_),
                             .a = step.in.columns(channels_, hv_),
                             .b = step.in.columns(channels_ + hv_, hv_),
                             .key_heads = hk_,
                             .value_heads = hv_,
                             .dk = dk_,
                             .dv = dv_,
                             .conv = conv(place),
                             .decay = place(decay_),
                             .dt_bias = place(dt_bias_),
                             .state = step.state,
                             .sequences = step.sequences,
                             .out = step.out,
                             .tiled = tiled_});
  }

 private:
  int64_t hk_, hv_, dk_, dv_;
  bool tiled_;
  std::vector<float> decay_, dt_bias_;
};

class Mamba2 final : public Layer {
 public:
  Mamba2(int64_t heads, int64_t head_dim, int64_t groups, int64_t state_size, int64_t kernel, bool bias)
      : Layer("Mamba-2 " + std::to_string(heads) + "/" + std::to_string(groups) + " heads, " +
                  std::to_string(state_size) + "x" + std::to_string(head_dim) + ", kernel " + std::to_string(kernel),
              heads * head_dim + 2 * groups * state_size, kernel, bias,
              heads * head_dim + 2 * groups * state_size + heads, heads * head_dim, heads * head_dim * state_size),
        heads_(heads),
        groups_(groups),
        dim_(head_dim),
        size_(state_size),
        decay_(random_floats(heads, 15)),
        skip_(random_floats(heads, 16)),
        dt_bias_(random_floats(heads, 17)) {
    for (float& x : decay_) x = -std::fabs(x);
  }
  void run(Backend& backend, const Place& place, const Step& step) const override {
    backend.mamba2({.xbc = step.in.columns(0, channels_),
                    .dt = step.in.columns(channels_, heads_),
                    .heads = heads_,
                    .head_dim = dim_,
                    .groups = groups_,
                    .state_size = size_,
                    .conv = conv(place),
                    .decay = place(decay_),
                    .skip = place(skip_),
                    .dt_bias = place(dt_bias_),
                    .dt_min = 0.3f,  // so that both bounds are met
                    .dt_max = 1.1f,
                    .state = step.state,
                    .sequences = step.sequences,
                    .out = step.out});
  }

 private:
  int64_t heads_, groups_, dim_, size_;
  std::vector<float> decay_, skip_, dt_bias_;
};

class ShortConv final : public Layer {
 public:
  ShortConv(int64_t channels, int64_t kernel, bool bias)
      : Layer("short conv of " + std::to_string(channels) + ", kernel " + std::to_string(kernel), channels, kernel,
              bias, 3 * channels, channels, 0) {}
  void run(Backend& backend, const Place& place, const Step& step) const override {
    backend.short_conv({step.in, conv(place), step.state, step.sequences, step.out});
  }
};

// A piece of a sequence in a step.
struct Chunk {
  size_t sequence;
  int64_t begin, end;
  int32_t source, destination;
};

// Sequences of random inputs; what a step of chunks takes of them.
struct Inputs {
  Inputs(const Layer& layer, const std::vector<int64_t>& lengths, DType type) : layer(layer), type(type) {
    for (size_t s = 0; s < lengths.size(); ++s) {
      sequences.push_back(random_floats(lengths[s] * layer.in_cols, static_cast<uint32_t>(21 + s), 2.0f));
      for (float& x : sequences.back()) x = rounded(x, type);
    }
  }
  int64_t length(size_t s) const { return static_cast<int64_t>(sequences[s].size()) / layer.in_cols; }
  HostMatrix rows(const std::vector<Chunk>& chunks) const {
    int64_t count = 0;
    for (const Chunk& c : chunks) count += c.end - c.begin;
    HostMatrix out(count, layer.in_cols, type, 1);
    int64_t row = 0;
    for (const Chunk& c : chunks) {
      for (int64_t t = c.begin; t < c.end; ++t, ++row) {
        for (int64_t i = 0; i < layer.in_cols; ++i) {
          out.at(row, i) = sequences[c.sequence][static_cast<size_t>(t * layer.in_cols + i)];
        }
      }
    }
    return out;
  }
  const Layer& layer;
  DType type;
  std::vector<std::vector<float>> sequences;
};

struct Spans {
  explicit Spans(const std::vector<Chunk>& chunks) {
    for (const Chunk& c : chunks) {
      cu.push_back(cu.back() + static_cast<int32_t>(c.end - c.begin));
      source.push_back(c.source);
      destination.push_back(c.destination);
    }
  }
  std::vector<int32_t> cu = {0}, source, destination;
};

// Outputs of all tokens and the state after each, of one sequence from its beginning, token by token.
struct Trail {
  std::vector<std::vector<uint8_t>> outputs;  // [tokens]
  std::vector<std::vector<float>> states;     // [tokens + 1]
};

Trail cpu_trail(const Inputs& inputs, size_t sequence) {
  auto backend = make_cpu_backend({1, ""});
  QUIRE_CHECK(backend.ok());
  const Layer& layer = inputs.layer;
  std::vector<float> state(static_cast<size_t>(layer.state_floats));
  state.reserve(1);  // so that there is memory to point to
  Trail trail;
  trail.states.push_back(state);
  for (int64_t t = 0; t < inputs.length(sequence); ++t) {
    const std::vector<Chunk> chunk = {{sequence, t, t + 1, t == 0 ? -1 : 0, 0}};
    HostMatrix in = inputs.rows(chunk), out(1, layer.out_cols, DType::kF32, 2);
    const Spans s(chunk);
    layer.run(*backend.value(), on_host,
              {{in.values.data(), DType::kF32, 1, in.cols, in.stride},
               {state.data(), layer.state_floats * 4, 1},
               {s.cu, s.source, s.destination},
               {out.values.data(), DType::kF32, 1, out.cols, out.stride}});
    const auto* bytes = reinterpret_cast<const uint8_t*>(out.values.data());
    trail.outputs.emplace_back(bytes, bytes + out.cols * 4);
    trail.states.push_back(state);
  }
  return trail;
}

// The pages of a layer on a device, poisoned, each with room behind its state; and steps over them.
class Pages {
 public:
  Pages(TestDevice& device, const Inputs& inputs, int64_t count)
      : device_(device),
        inputs_(inputs),
        stride_(inputs.layer.state_floats + 3),
        host_(static_cast<size_t>(count * stride_), std::nanf("")) {
    pages_ = device.put(host_);
    place_ = [this](const std::vector<float>& values) -> const float* {
      if (values.empty()) return nullptr;
      auto found = placed_.find(&values);
      if (found == placed_.end()) found = placed_.emplace(&values, device_.put(values)).first;
      return found->second;
    };
  }
  ~Pages() { device_.clear(); }

  // The outputs of the step, row by row.
  std::vector<std::vector<uint8_t>> step(const std::vector<Chunk>& chunks) {
    const HostMatrix in = inputs_.rows(chunks);
    const Spans s(chunks);
    const Tensor out = device_.room(in.rows, inputs_.layer.out_cols, inputs_.type);
    inputs_.layer.run(device_.ops(), place_,
                      {device_.put(in),
                       {pages_, stride_ * 4, static_cast<int64_t>(host_.size()) / stride_},
                       {{device_.put(s.cu), s.cu.size()},
                        {device_.put(s.source), s.source.size()},
                        {device_.put(s.destination), s.destination.size()}},
                       out});
    const std::vector<uint8_t> all = device_.rows_of(out);
    std::vector<std::vector<uint8_t>> rows;
    const auto bytes = static_cast<ptrdiff_t>(inputs_.layer.out_cols * info(inputs_.type).block_bytes);
    for (auto at = all.begin(); at != all.end(); at += bytes) rows.emplace_back(at, at + bytes);
    return rows;
  }

  std::vector<float> page(int32_t index) {
    const auto bytes = device_.get(pages_ + index * stride_, static_cast<size_t>(inputs_.layer.state_floats) * 4);
    std::vector<float> out(static_cast<size_t>(inputs_.layer.state_floats));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  // Runs a step that must give what the trails say, and change no page but its destinations.
  void expect(const std::vector<Chunk>& chunks, const std::vector<Trail>& trails, const std::string& what) {
    const std::vector<std::vector<uint8_t>> rows = step(chunks);
    size_t row = 0;
    for (const Chunk& c : chunks) {
      const Trail& trail = trails[c.sequence];
      for (int64_t t = c.begin; t < c.end; ++t, ++row) {
        ASSERT_EQ(rows[row], trail.outputs[static_cast<size_t>(t)])
            << inputs_.layer.name << ", " << what << ": sequence " << c.sequence << " token " << t;
      }
      const std::vector<float>& state = trail.states[static_cast<size_t>(c.end)];
      std::copy(state.begin(), state.end(), host_.begin() + c.destination * stride_);
    }
    const std::vector<uint8_t> bytes = device_.get(pages_, host_.size() * sizeof(float));
    for (size_t i = 0; i < host_.size(); ++i) {
      ASSERT_EQ(std::memcmp(&host_[i], bytes.data() + 4 * i, 4), 0)
          << inputs_.layer.name << ", " << what << ": page " << i / static_cast<size_t>(stride_) << " float "
          << i % static_cast<size_t>(stride_);
    }
  }

 private:
  TestDevice& device_;
  const Inputs& inputs_;
  int64_t stride_;  // floats
  std::vector<float> host_;
  float* pages_ = nullptr;
  std::map<const std::vector<float>*, const float*> placed_;
  Place place_;
};

Trail gpu_trail(const Inputs& inputs, size_t sequence) {
  Pages pages(test_device(), inputs, 1);
  Trail trail;
  trail.states.emplace_back(static_cast<size_t>(inputs.layer.state_floats));
  for (int64_t t = 0; t < inputs.length(sequence); ++t) {
    trail.outputs.push_back(pages.step({{sequence, t, t + 1, t == 0 ? -1 : 0, 0}}).front());
    trail.states.push_back(pages.page(0));
  }
  return trail;
}

// A sum of up to 256 products and a decayed past: some hundred roundings of the largest value, and one of the output.
void expect_near(const std::vector<float>& got, const std::vector<float>& want, DType type, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (const float x : want) largest = std::max(largest, std::fabs(double{x}));
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = std::fabs(double{want[i]}) * 1.01 * rounding(type) + largest * 300 * 0x1p-24 + 0x1p-25;
    ASSERT_NEAR(double{got[i]}, double{want[i]}, bound) << what << ": " << i;
  }
}

void check(const Layer& layer, const std::vector<int64_t>& lengths, DType type) {
  const Inputs inputs(layer, lengths, type);
  const std::string what = spelling(type);
  const size_t count = lengths.size();
  std::vector<Trail> trails;
  for (size_t s = 0; s < count; ++s) {
    trails.push_back(gpu_trail(inputs, s));
    const Trail cpu = cpu_trail(inputs, s);
    for (size_t t = 0; t < cpu.outputs.size(); ++t) {
      const std::string at =
          layer.name + ", " + what + ", sequence " + std::to_string(s) + " token " + std::to_string(t);
      ASSERT_NO_FATAL_FAILURE(
          expect_near(floats_of(trails[s].outputs[t], type), floats_of(cpu.outputs[t], DType::kF32), type, at));
      ASSERT_NO_FATAL_FAILURE(expect_near(trails[s].states[t + 1], cpu.states[t + 1], DType::kF32, at + ", state"));
    }
  }
  for (const int order : {0, 1}) {
    Pages pages(test_device(order), inputs, 4);
    std::vector<Chunk> chunks;
    for (size_t s = 0; s < count; ++s) chunks.push_back({s, 0, lengths[s], -1, static_cast<int32_t>(s)});
    ASSERT_NO_FATAL_FAILURE(pages.expect(chunks, trails, what + ", all at once, order " + std::to_string(order)));
  }
  // Cut at random, with pages that change, checkpoints that stay and steps that carry a state over.
  Pages pages(test_device(), inputs, 12);
  std::mt19937 random(5);
  std::vector<int64_t> done(count);
  std::vector<int32_t> page(count, -1);
  ASSERT_NO_FATAL_FAILURE(pages.expect({{0, 0, 0, -1, 3}}, trails, what + ", nothing yet"));
  page[0] = 3;
  for (int step = 0; step < 12; ++step) {
    std::vector<Chunk> chunks;
    for (size_t s = 0; s < count; ++s) {
      const int64_t left = lengths[s] - done[s];
      const int64_t tokens = std::min<int64_t>(left, random() % (step % 2 == 0 ? 3 : 14));
      const bool in_place = page[s] >= 0 && random() % 2 == 0;
      const auto next = in_place ? page[s] : static_cast<int32_t>(4 * s + random() % 4);
      chunks.push_back({s, done[s], done[s] + tokens, page[s], next});
      done[s] += tokens;
      page[s] = next;
    }
    ASSERT_NO_FATAL_FAILURE(pages.expect(chunks, trails, what + ", random step " + std::to_string(step)));
  }
}

TEST(GpuStateOps, GatedDeltaNetHasTheSameBitsInAnyChunksAndIsNearTheCpu) {
  check(GatedDeltaNet(1, 1, 16, 16, 4, false), {20, 1, 5}, DType::kF32);
  check(GatedDeltaNet(2, 4, 24, 40, 4, true), {9, 2, 5}, DType::kBF16);
  check(GatedDeltaNet(2, 6, 24, 70, 4, false, true), {5, 1, 3}, DType::kF16);
  check(GatedDeltaNet(1, 2, 7, 71, 2, false), {6, 17, 1}, DType::kF32);
  check(GatedDeltaNet(1, 3, 33, 130, 1, true), {3, 5}, DType::kF32);
  check(GatedDeltaNet(1, 1, 200, 33, 8, false), {2, 9}, DType::kF32);
}

TEST(GpuStateOps, Mamba2HasTheSameBitsInAnyChunksAndIsNearTheCpu) {
  check(Mamba2(2, 24, 1, 16, 4, true), {20, 1, 5}, DType::kF32);
  check(Mamba2(6, 40, 2, 33, 3, true), {4, 6}, DType::kBF16);
  check(Mamba2(3, 5, 3, 7, 1, false), {5, 1, 12}, DType::kF16);
  check(Mamba2(2, 70, 1, 256, 8, false), {3, 1}, DType::kF32);
}

TEST(GpuStateOps, ShortConvHasTheSameBitsInAnyChunksAndIsNearTheCpu) {
  check(ShortConv(1, 3, false), {4, 30}, DType::kF32);
  check(ShortConv(17, 1, true), {4, 2}, DType::kF32);
  check(ShortConv(300, 3, false), {5, 1, 24}, DType::kBF16);
  check(ShortConv(33, 8, true), {3, 12}, DType::kF16);
}

}  // namespace
}  // namespace quire::gpu
