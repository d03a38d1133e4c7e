// SPDX-License-Identifier: Apache-2.0
// TracingBackend: the shape that the span of each op shows, and the forwards.
#include "backend/tracing_backend.h"

#include <cstdarg>
#include <cstdio>
#include <numeric>

#include "backend/exchange.h"
#include "base/trace.h"

namespace quire {
namespace {

using trace::OpSpan;

long long ll(int64_t value) {
  return static_cast<long long>(value);
}

__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...) {
  char out[200];
  va_list args;
  va_start(args, format);
  std::vsnprintf(out, sizeof out, format, args);
  va_end(args);
  return out;
}

// What a span says after the name of its op. An op without a function of its own shows the shape of its output, or of
// the tensor that it changes in place.
template <typename Args>
std::string shape_of(const Args& args, bool /*host_memory*/) {
  if constexpr (requires { args.out; }) return text("%lldx%lld", ll(args.out.rows), ll(args.out.cols));
  if constexpr (requires { args.x; }) return text("%lldx%lld", ll(args.x.rows), ll(args.x.cols));
}
std::string shape_of(const EmbeddingArgs& args, bool) {
  return text("%lld rows", ll(args.out.rows));
}
std::string shape_of(const LinearArgs& args, bool) {
  const PackedMatrix& w = *args.weight;
  return text("%lld rows %lldx%lld %s", ll(args.x.rows), ll(w.n()), ll(w.k()), name(w.dtype()));
}
std::string shape_of(const LinearHeadsArgs& args, bool) {
  const PackedMatrix& w = *args.weight;
  return text("%lld rows %lld heads %lldx%lld %s", ll(args.x.rows), ll(args.heads), ll(args.n), ll(w.k()),
              name(w.dtype()));
}
std::string shape_of(const LoraArgs& args, bool) {
  return text("%lld of %lld rows %lldx%lld", ll(args.rows.num_adapted), ll(args.out.rows), ll(args.out.cols),
              ll(args.x.cols));
}
std::string shape_of(const ReshapeAndCacheArgs& args, bool) {
  return text("%lldx%lld %s", ll(args.k.rows), ll(args.k.cols), name(args.kv.dtype));
}
std::string shape_of(const QkvToCacheArgs& args, bool) {
  return text("%lldx%lld %s", ll(args.q.rows), ll(args.q.cols), name(args.kv.dtype));
}
std::string shape_of(const MlaToCacheArgs& args, bool) {
  return text("%lldx%lld %s", ll(args.q.rows), ll(args.q.cols), name(args.kv.dtype));
}
std::string shape_of(const AttentionArgs& args, bool host_memory) {
  int64_t positions = 0;
  if (host_memory) positions = std::accumulate(args.context_lens.begin(), args.context_lens.end(), positions);
  return text("%lld rows %zu seqs %lld positions %lld/%lldx%lld %s", ll(args.q.rows), args.context_lens.size(),
              ll(positions), ll(args.num_heads), ll(args.kv.num_kv_heads), ll(args.kv.head_dim), name(args.kv.dtype));
}
std::string shape_of(const GatedDeltaNetArgs& args, bool) {
  return text("%lld rows %zu seqs %lld/%lld heads %lldx%lld", ll(args.qkv.rows), args.sequences.source.size(),
              ll(args.value_heads), ll(args.key_heads), ll(args.dk), ll(args.dv));
}
std::string shape_of(const Mamba2Args& args, bool) {
  return text("%lld rows %zu seqs %lld heads %lldx%lld", ll(args.xbc.rows), args.sequences.source.size(),
              ll(args.heads), ll(args.head_dim), ll(args.state_size));
}
std::string shape_of(const ShortConvArgs& args, bool) {
  return text("%lld rows %zu seqs %lld channels", ll(args.bcx.rows), args.sequences.source.size(),
              ll(args.conv.channels));
}
std::string shape_of(const MoeRouteArgs& args, bool) {
  return text("%lld rows %lld of %lld", ll(args.logits.rows), ll(args.k), ll(args.logits.cols));
}
std::string shape_of(const MoeExpertsArgs& args, bool) {
  const PackedMatrix& w = *args.gate_up.front();
  return text("%lld rows %lld of %zu %lldx%lld %s", ll(args.x.rows), ll(args.k), args.gate_up.size(), ll(w.n()),
              ll(w.k()), name(w.dtype()));
}
std::string shape_of(const OwnIdsArgs& args, bool) {
  return text("%zu", args.ids.size());
}
std::string shape_of(const DigestRowsArgs& args, bool) {
  return text("%zu of %lldx%lld", args.rows.size(), ll(args.x.rows), ll(args.x.cols));
}
std::string shape_of(const SampleArgs& args, bool) {
  return text("%lldx%lld", ll(args.logits.rows), ll(args.logits.cols));
}
std::string shape_of(const TakeSampledArgs& args, bool) {
  return text("%zu", args.tokens.size());
}
std::string shape_of(const SkipAcceptedArgs& args, bool) {
  return text("%zu of %zu", args.wanted.size(), args.tokens.size());
}

// Forwards every virtual function of Backend, also those with a default: a missing one would silently run the default
// instead of the inner backend's.
class TracingBackend final : public Backend {
 public:
  explicit TracingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string describe() const override { return inner_->describe(); }
  std::string isa() const override { return inner_->isa(); }
  std::span<const DType> kv_dtypes() const override { return inner_->kv_dtypes(); }
  DType activation_dtype(DType model) const override { return inner_->activation_dtype(model); }
  bool chunks_mamba2(int64_t state_size, int64_t head_dim, DType activation) const override {
    return inner_->chunks_mamba2(state_size, head_dim, activation);
  }
  bool chunks_delta_net(int64_t dk, int64_t dv, DType activation) const override {
    return inner_->chunks_delta_net(dk, dv, activation);
  }
  bool host_memory() const override { return inner_->host_memory(); }
  bool packs(DType type) const override { return inner_->packs(type); }
  double library_seconds() const override { return inner_->library_seconds(); }
  bool makes(DType type) const override { return inner_->makes(type); }
  size_t memory_bytes() const override { return inner_->memory_bytes(); }
  Result<const void*> upload(std::span<const std::byte> values) override { return inner_->upload(values); }
  const void* stage(std::span<const std::byte> values) override { return inner_->stage(values); }
  void begin_step() override { inner_->begin_step(); }
  void begin_step_beside() override { inner_->begin_step_beside(); }
  void reserve_stage(size_t bytes, size_t arrays) override { inner_->reserve_stage(bytes, arrays); }
  bool replay_step(const GraphKey& shape) override { return inner_->replay_step(shape); }
  void end_step() override { inner_->end_step(); }
  int64_t table_width(int64_t blocks, int64_t block_size) const override {
    return inner_->table_width(blocks, block_size);
  }
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes) override { return inner_->allocate(bytes); }
  void write(void* to, std::span<const std::byte> values) override { inner_->write(to, values); }
  void copy(void* to, const void* from, size_t bytes) override { inner_->copy(to, from, bytes); }
  Result<std::unique_ptr<Buffer>> allocate_host(size_t bytes) override { return inner_->allocate_host(bytes); }
  void copy_to_host(void* to, const void* from, size_t bytes) override { inner_->copy_to_host(to, from, bytes); }
  void copy_from_host(void* to, const void* from, size_t bytes) override { inner_->copy_from_host(to, from, bytes); }
  uint64_t mark() override { return inner_->mark(); }
  void wait(uint64_t mark) override { inner_->wait(mark); }
  Status stack(std::span<const PackedMatrix* const> experts) override { return inner_->stack(experts); }
  Result<size_t> reserve(const WorkspaceLimits& sizes) override { return inner_->reserve(sizes); }
  int64_t max_head_dim() const override { return inner_->max_head_dim(); }
  size_t kv_page_bytes(const KvPageShape& shape) const override { return inner_->kv_page_bytes(shape); }
  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options) override {
    int64_t n = 0;
    for (const RawMatrix& part : parts) n += part.n;
    const RawMatrix first = parts.empty() ? RawMatrix{} : parts.front();
    const OpSpan span("pack %lldx%lld %s", ll(n), ll(first.k), name(first.dtype));
    return inner_->pack(parts, options);
  }

#define QUIRE_TRACED_OP(name, Args, ...)                                              \
  void name(const Args& args) override {                                              \
    const OpSpan span("%s %s", #name, shape_of(args, inner_->host_memory()).c_str()); \
    inner_->name(args);                                                               \
  }
  QUIRE_OPS(QUIRE_TRACED_OP)
  QUIRE_OPTIONAL_OPS(QUIRE_TRACED_OP)
  QUIRE_RANK_OPS(QUIRE_TRACED_OP)
#undef QUIRE_TRACED_OP

  bool joins_linear(int64_t rows) const override {
    return inner_->joins_linear(rows);
  }
  bool joins_residual(int64_t rows) const override {
    return inner_->joins_residual(rows);
  }
  bool joins_head(int64_t rows) const override {
    return inner_->joins_head(rows);
  }
  bool joins_add_norm(const AddNormArgs& args) const override {
    return inner_->joins_add_norm(args);
  }
  bool joins_qkv(const QkvToCacheArgs& args) const override {
    return inner_->joins_qkv(args);
  }
  bool joins_mla(const MlaToCacheArgs& args) const override {
    return inner_->joins_mla(args);
  }

  bool joins_lora(const LinearArgs& args) override {
    return inner_->joins_lora(args);
  }
  bool splits_lora() const override {
    return inner_->splits_lora();
  }
  int64_t lora_spans(int64_t k) const override {
    return inner_->lora_spans(k);
  }
  bool splits_experts() const override {
    return inner_->splits_experts();
  }
  Result<std::unique_ptr<Exchange>> join(distributed::Group& group, bool gathers) override {
    return inner_->join(group, gathers);
  }
  void watch_steps(distributed::Group* group) override {
    inner_->watch_steps(group);
  }
  bool samples() const override {
    return inner_->samples();
  }
  Status prepare_sampling(int64_t rows, int64_t rows_of_a_call, int64_t vocab) override {
    return inner_->prepare_sampling(rows, rows_of_a_call, vocab);
  }
  uint64_t finish_samples(int64_t rows) override {
    return inner_->finish_samples(rows);
  }
  SampledRows sampled(uint64_t finished) override {
    const OpSpan span("sampled");
    return inner_->sampled(finished);
  }
  void synchronise() override {
    inner_->synchronise();
  }
  std::span<const float> read(const Tensor& t) override {
    return inner_->read(t);
  }

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace

std::unique_ptr<Backend> make_tracing_backend(std::unique_ptr<Backend> inner) {
  return std::make_unique<TracingBackend>(std::move(inner));
}

}  // namespace quire
