// SPDX-License-Identifier: Apache-2.0
// Sampling on a GPU: the ops of device_sampler.h.
#include "backend/gpu/gpu_backend.h"

namespace quire::gpu {

Status GpuBackend::prepare_sampling(int64_t rows, int64_t rows_of_a_call, int64_t vocab) {
  return sampler_.prepare(rows, rows_of_a_call, vocab);
}

void GpuBackend::sample(const SampleArgs& args) {
  QUIRE_CHECK(!recorder_.recording());
  sampler_.sample(args, joined_.largest_logits(args));
}

// There is no such op on a GPU: rows are digested where they are sampled (SampleRow::digest).
void GpuBackend::digest_rows(const DigestRowsArgs& args) {
  Backend::digest_rows(args);
}

uint64_t GpuBackend::finish_samples(int64_t rows) {
  const uint64_t out = sampler_.finish(rows);
  if (watch_ != nullptr) watch_->probe();
  return out;
}

SampledRows GpuBackend::sampled(uint64_t finished) {
  const SampledRows out = sampler_.sampled(finished);
  if (watch_ != nullptr) watch_->stay_if_aborted();
  return out;
}

void GpuBackend::take_sampled(const TakeSampledArgs& args) {
  QUIRE_CHECK(!recorder_.recording());
  sampler_.set_pending_tokens(args);
}

void GpuBackend::skip_accepted(const SkipAcceptedArgs& args) {
  QUIRE_CHECK(!recorder_.recording());
  sampler_.set_pending_rows(args);
}

}  // namespace quire::gpu
