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
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes) override { return inner_->allocate(bytes); }
  size_t kv_page_bytes(DType dtype, int64_t block_size, int64_t num_kv_heads, int64_t head_dim) const override {
    return inner_->kv_page_bytes(dtype, block_size, num_kv_heads, head_dim);
  }
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
  void reshape_and_cache(const ReshapeAndCacheArgs& args) override {
    const OpSpan span("reshape_and_cache %lldx%lld %s", ll(args.k.rows), ll(args.k.cols), name(args.kv.dtype));
    inner_->reshape_and_cache(args);
  }
  void attention(const AttentionArgs& args) override {
    int64_t positions = 0;
    for (const int32_t length : args.context_lens) positions += length;
    const OpSpan span("attention %lld rows %zu seqs %lld positions %lld/%lldx%lld %s", ll(args.q.rows),
                      args.context_lens.size(), ll(positions), ll(args.num_heads), ll(args.kv.num_kv_heads),
                      ll(args.kv.head_dim), name(args.kv.dtype));
    inner_->attention(args);
  }

  void synchronise() override { inner_->synchronise(); }

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace

std::unique_ptr<Backend> make_tracing_backend(std::unique_ptr<Backend> inner) {
  return std::make_unique<TracingBackend>(std::move(inner));
}

}  // namespace quire
