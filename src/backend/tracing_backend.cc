// SPDX-License-Identifier: Apache-2.0
// TracingBackend: one function an op.
#include "backend/tracing_backend.h"

#include "base/trace.h"

namespace quire {
namespace {

using trace::OpSpan;

long long ll(int64_t value) {
  return static_cast<long long>(value);
}

// Every virtual function of Backend is forwarded here, also those that have a body of their own there: an op that is
// missing would silently take that body instead of the inner backend's.
class TracingBackend final : public Backend {
 public:
  explicit TracingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string describe() const override { return inner_->describe(); }
  std::span<const DType> kv_dtypes() const override { return inner_->kv_dtypes(); }
  DType activation_dtype(DType model) const override { return inner_->activation_dtype(model); }
  bool host_memory() const override { return inner_->host_memory(); }
  size_t memory_bytes() const override { return inner_->memory_bytes(); }
  Result<const void*> upload(std::span<const std::byte> values) override { return inner_->upload(values); }
  const void* stage(std::span<const std::byte> values) override { return inner_->stage(values); }
  void begin_step() override { inner_->begin_step(); }
  void reserve_stage(size_t bytes, size_t arrays) override { inner_->reserve_stage(bytes, arrays); }
  bool replay_step(const StepShape& shape) override { return inner_->replay_step(shape); }
  void end_step() override { inner_->end_step(); }
  int64_t table_width(int64_t blocks) const override { return inner_->table_width(blocks); }
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes) override { return inner_->allocate(bytes); }
  Status stack(std::span<const PackedMatrix* const> experts) override { return inner_->stack(experts); }
  Result<size_t> reserve(const StepSizes& sizes) override { return inner_->reserve(sizes); }
  int64_t max_head_dim() const override { return inner_->max_head_dim(); }
  size_t kv_page_bytes(const KvPageShape& shape) const override { return inner_->kv_page_bytes(shape); }
  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options) override {
    int64_t n = 0;
    for (const RawMatrix& part : parts) n += part.n;
    const RawMatrix first = parts.empty() ? RawMatrix{} : parts.front();
    const OpSpan span("pack %lldx%lld %s", ll(n), ll(first.k), name(first.dtype));
    return inner_->pack(parts, options);
  }

  void embedding(const EmbeddingArgs& args) override {
    const OpSpan span("embedding %lld rows", ll(args.out.rows));
    inner_->embedding(args);
  }
  void rms_norm(const RmsNormArgs& args) override {
    const OpSpan span("rms_norm %lldx%lld", ll(args.x.rows), ll(args.x.cols));
    inner_->rms_norm(args);
  }
  void layer_norm(const LayerNormArgs& args) override {
    const OpSpan span("layer_norm %lldx%lld", ll(args.x.rows), ll(args.x.cols));
    inner_->layer_norm(args);
  }
  void rope(const RopeArgs& args) override {
    const OpSpan span("rope %lldx%lld", ll(args.x.rows), ll(args.x.cols));
    inner_->rope(args);
  }
  void linear(const LinearArgs& args) override {
    const PackedMatrix& w = *args.weight;
    const OpSpan span("linear %lld rows %lldx%lld %s", ll(args.x.rows), ll(w.n()), ll(w.k()), name(w.dtype()));
    inner_->linear(args);
  }
  void glu(const GluArgs& args) override {
    const OpSpan span("glu %lldx%lld", ll(args.out.rows), ll(args.out.cols));
    inner_->glu(args);
  }
  void activation(const ActivationArgs& args) override {
    const OpSpan span("activation %lldx%lld", ll(args.x.rows), ll(args.x.cols));
    inner_->activation(args);
  }
  void residual_add(const ResidualAddArgs& args) override {
    const OpSpan span("residual_add %lldx%lld", ll(args.x.rows), ll(args.x.cols));
    inner_->residual_add(args);
  }
  void gather(const GatherArgs& args) override {
    const OpSpan span("gather %lldx%lld", ll(args.out.rows), ll(args.out.cols));
    inner_->gather(args);
  }
  void gather_columns(const GatherColumnsArgs& args) override {
    const OpSpan span("gather_columns %lldx%lld", ll(args.out.rows), ll(args.out.cols));
    inner_->gather_columns(args);
  }
  void scale(const ScaleArgs& args) override {
    const OpSpan span("scale %lldx%lld", ll(args.x.rows), ll(args.x.cols));
    inner_->scale(args);
  }
  void soft_cap(const SoftCapArgs& args) override {
    const OpSpan span("soft_cap %lldx%lld", ll(args.x.rows), ll(args.x.cols));
    inner_->soft_cap(args);
  }
  void gated_rms_norm(const GatedRmsNormArgs& args) override {
    const OpSpan span("gated_rms_norm %lldx%lld", ll(args.x.rows), ll(args.x.cols));
    inner_->gated_rms_norm(args);
  }
  void reshape_and_cache(const ReshapeAndCacheArgs& args) override {
    const OpSpan span("reshape_and_cache %lldx%lld %s", ll(args.k.rows), ll(args.k.cols), name(args.kv.dtype));
    inner_->reshape_and_cache(args);
  }
  void attention(const AttentionArgs& args) override {
    int64_t positions = 0;
    if (inner_->host_memory()) {
      for (const int32_t length : args.context_lens) positions += length;
    }
    const OpSpan span("attention %lld rows %zu seqs %lld positions %lld/%lldx%lld %s", ll(args.q.rows),
                      args.context_lens.size(), ll(positions), ll(args.num_heads), ll(args.kv.num_kv_heads),
                      ll(args.kv.head_dim), name(args.kv.dtype));
    inner_->attention(args);
  }

  void gated_delta_net(const GatedDeltaNetArgs& args) override {
    const OpSpan span("gated_delta_net %lld rows %zu seqs %lld/%lld heads %lldx%lld", ll(args.qkv.rows),
                      args.sequences.source.size(), ll(args.value_heads), ll(args.key_heads), ll(args.dk), ll(args.dv));
    inner_->gated_delta_net(args);
  }
  void mamba2(const Mamba2Args& args) override {
    const OpSpan span("mamba2 %lld rows %zu seqs %lld heads %lldx%lld", ll(args.xbc.rows), args.sequences.source.size(),
                      ll(args.heads), ll(args.head_dim), ll(args.state_size));
    inner_->mamba2(args);
  }
  void short_conv(const ShortConvArgs& args) override {
    const OpSpan span("short_conv %lld rows %zu seqs %lld channels", ll(args.bcx.rows), args.sequences.source.size(),
                      ll(args.conv.channels));
    inner_->short_conv(args);
  }
  void moe_route(const MoeRouteArgs& args) override {
    const OpSpan span("moe_route %lld rows %lld of %lld", ll(args.logits.rows), ll(args.k), ll(args.logits.cols));
    inner_->moe_route(args);
  }
  void moe_experts(const MoeExpertsArgs& args) override {
    const PackedMatrix& w = *args.gate_up.front();
    const OpSpan span("moe_experts %lld rows %lld of %zu %lldx%lld %s", ll(args.x.rows), ll(args.k),
                      args.gate_up.size(), ll(w.n()), ll(w.k()), name(w.dtype()));
    inner_->moe_experts(args);
  }

  bool joins_linear(int64_t rows) const override { return inner_->joins_linear(rows); }
  bool joins_head(int64_t rows) const override { return inner_->joins_head(rows); }
  bool joins_qkv(const QkvToCacheArgs& args) const override { return inner_->joins_qkv(args); }
  void qkv_to_cache(const QkvToCacheArgs& args) override {
    const OpSpan span("qkv_to_cache %lldx%lld %s", ll(args.q.rows), ll(args.q.cols), name(args.kv.dtype));
    inner_->qkv_to_cache(args);
  }

  bool samples() const override { return inner_->samples(); }
  Status prepare_sampling(int64_t rows, int64_t rows_of_a_call, int64_t vocab) override {
    return inner_->prepare_sampling(rows, rows_of_a_call, vocab);
  }
  void sample(const SampleArgs& args) override {
    const OpSpan span("sample %lldx%lld", ll(args.logits.rows), ll(args.logits.cols));
    inner_->sample(args);
  }
  uint64_t finish_samples(int64_t rows) override { return inner_->finish_samples(rows); }
  SampledRows sampled(uint64_t finished) override {
    const OpSpan span("sampled");
    return inner_->sampled(finished);
  }
  void take_sampled(const TakeSampledArgs& args) override {
    const OpSpan span("take_sampled %lld", ll(static_cast<int64_t>(args.tokens.size())));
    inner_->take_sampled(args);
  }
  void synchronise() override { inner_->synchronise(); }
  std::span<const float> read(const Tensor& t) override { return inner_->read(t); }

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace

std::unique_ptr<Backend> make_tracing_backend(std::unique_ptr<Backend> inner) {
  return std::make_unique<TracingBackend>(std::move(inner));
}

}  // namespace quire
