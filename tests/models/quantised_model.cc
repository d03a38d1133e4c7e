// SPDX-License-Identifier: Apache-2.0
// Writes the tiny GGUF.
#include "models/quantised_model.h"

#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/file.h"
#include "models/harness.h"
#include "weights/dummy.h"
#include "weights/quant.h"

namespace quire::testing {
namespace {

constexpr int64_t kVocab = 300, kHidden = 256, kLayers = 2, kHeads = 4, kKvHeads = 2, kHeadDim = 64, kFfn = 512;

// Little-endian bytes of a GGUF file, piece by piece.
class Writer {
 public:
  template <typename T>
  void number(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.append(raw, sizeof(T));
  }
  void text(const std::string& s) {
    number<uint64_t>(s.size());
    bytes_ += s;
  }
  void key(const std::string& name, uint32_t value) {
    text(name);
    number<uint32_t>(4);
    number(value);
  }
  void key(const std::string& name, float value) {
    text(name);
    number<uint32_t>(6);
    number(value);
  }
  void key(const std::string& name, const std::string& value) {
    text(name);
    number<uint32_t>(8);
    text(value);
  }
  void pad() { bytes_.resize((bytes_.size() + 31) / 32 * 32); }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

struct Spec {
  std::string name;
  std::vector<int64_t> shape;  // outermost first
  DType type;
};

std::vector<Spec> tensors(DType type) {
  std::vector<Spec> out = {{"token_embd.weight", {kVocab, kHidden}, type},
                           {"output_norm.weight", {kHidden}, DType::kF32},
                           {"output.weight", {kVocab, kHidden}, type}};
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    out.push_back({layer + "attn_norm.weight", {kHidden}, DType::kF32});
    out.push_back({layer + "ffn_norm.weight", {kHidden}, DType::kF32});
    out.push_back({layer + "attn_q.weight", {kHeads * kHeadDim, kHidden}, type});
    out.push_back({layer + "attn_k.weight", {kKvHeads * kHeadDim, kHidden}, type});
    out.push_back(
        {layer + "attn_v.weight", {kKvHeads * kHeadDim, kHidden}, i == 0 ? type : DType::kQ8_0});  // types may be mixed
    out.push_back({layer + "attn_output.weight", {kHidden, kHeads * kHeadDim}, type});
    out.push_back({layer + "ffn_gate.weight", {kFfn, kHidden}, type});
    out.push_back({layer + "ffn_up.weight", {kFfn, kHidden}, type});
    out.push_back({layer + "ffn_down.weight", {kHidden, kFfn}, type});
  }
  return out;
}

int64_t elements(const Spec& spec) {
  int64_t n = 1;
  for (const int64_t dim : spec.shape) n *= dim;
  return n;
}

void append_data(Writer& out, const Spec& spec) {
  std::vector<float> values(static_cast<size_t>(elements(spec)));
  weights::fill_dummy(3, spec.name, spec.shape, 0, values);
  const int64_t k = spec.shape.back();
  std::vector<std::byte> row(static_cast<size_t>(row_bytes(spec.type, k)));
  for (size_t at = 0; at < values.size(); at += static_cast<size_t>(k)) {
    weights::quantise_row(spec.type, values.data() + at, row.data(), k);
    out.bytes().append(reinterpret_cast<const char*>(row.data()), row.size());
  }
  out.pad();
}

}  // namespace

QuantisedModel::QuantisedModel(DType type) {
  file_ = std::filesystem::temp_directory_path() /
          ("quire_test_" + std::to_string(::getpid()) + "_" + std::string(name(type)) + ".gguf");
  const std::vector<Spec> specs = tensors(type);
  Writer out;
  out.bytes() = "GGUF";
  out.number<uint32_t>(3);
  out.number<uint64_t>(specs.size());
  out.number<uint64_t>(9);
  out.key("general.architecture", std::string("llama"));
  out.key("llama.block_count", static_cast<uint32_t>(kLayers));
  out.key("llama.context_length", uint32_t{1024});
  out.key("llama.embedding_length", static_cast<uint32_t>(kHidden));
  out.key("llama.feed_forward_length", static_cast<uint32_t>(kFfn));
  out.key("llama.attention.head_count", static_cast<uint32_t>(kHeads));
  out.key("llama.attention.head_count_kv", static_cast<uint32_t>(kKvHeads));
  out.key("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  out.key("llama.rope.freq_base", 10000.0f);
  uint64_t offset = 0;
  for (const Spec& spec : specs) {
    out.text(spec.name);
    out.number<uint32_t>(static_cast<uint32_t>(spec.shape.size()));
    for (auto dim = spec.shape.rbegin(); dim != spec.shape.rend(); ++dim)
      out.number<uint64_t>(static_cast<uint64_t>(*dim));
    out.number<uint32_t>(static_cast<uint32_t>(info(spec.type).gguf_type));
    out.number<uint64_t>(offset);
    const uint64_t bytes =
        static_cast<uint64_t>(elements(spec) / spec.shape.back() * row_bytes(spec.type, spec.shape.back()));
    offset += (bytes + 31) / 32 * 32;
  }
  out.pad();
  for (const Spec& spec : specs) append_data(out, spec);
  QUIRE_CHECK(write_file(file_, out.bytes()).ok());
}

QuantisedModel::~QuantisedModel() {
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
}

llm::Options QuantisedModel::options() const {
  llm::Options options;
  options.model = file_;
  options.device = test_device();
  options.max_num_seqs = 16;
  options.num_gpu_blocks_override = 400;
  return options;
}

int64_t QuantisedModel::vocab() const {
  return kVocab;
}

}  // namespace quire::testing
