// SPDX-License-Identifier: Apache-2.0
// Creates random inputs for a GPU's kernels, and times them.
#include "bench/gpu_rig.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "bench/report.h"

namespace quire::bench {
namespace {

using Clock = std::chrono::steady_clock;
// A GPU that never rests lowers its clock, so that a time depends on what ran before. So samples are short.
constexpr double kSampleSeconds = 1e-3;
constexpr std::chrono::milliseconds kRest(10);
constexpr size_t kWalkBytes = size_t{320} << 20;  // several times the size of any cache
constexpr int64_t kFreshElements = 1 << 20, kFreshRows = 257;

// A weight of n rows that repeat up to kFreshRows random rows.
cases::Weight repeated_weight(DType type, int64_t n, int64_t k) {
  const int64_t fresh = std::min(n, kFreshRows);
  cases::Weight out = cases::random_weight_of(type, fresh, k, 1);
  const auto repeat = [&](auto& values) {
    const size_t row = values.size() / static_cast<size_t>(fresh);
    values.resize(row * static_cast<size_t>(n));
    for (int64_t i = fresh; i < n; ++i) {
      std::copy_n(values.begin() + static_cast<int64_t>(row) * (i % fresh), row,
                  values.begin() + static_cast<int64_t>(row) * i);
    }
  };
  repeat(out.bytes);
  repeat(out.scales);
  repeat(out.mins);
  out.n = n;
  return out;
}

}  // namespace

Result<std::unique_ptr<GpuRig>> GpuRig::open(const std::string& device, int64_t samples) {
  std::unique_ptr<GpuRig> out(new GpuRig);
  QUIRE_ASSIGN(out->backend_, gpu::make_gpu_backend(device));
  out->device_ = &static_cast<gpu::GpuBackend&>(*out->backend_).device();
  out->samples_ = samples;
  return out;
}

Result<void*> GpuRig::memory(size_t bytes) {
  QUIRE_ASSIGN(auto buffer, backend_->allocate(bytes));
  buffers_.push_back(std::move(buffer));
  return buffers_.back()->data();
}

void GpuRig::randomise(void* address, DType type, int64_t elements, uint64_t seed) {
  const size_t element = static_cast<size_t>(info(type).block_bytes);
  const int64_t fresh = std::min(elements, kFreshElements);
  const std::vector<std::byte> values = cases::random_weight(type, 1, fresh, seed);
  device_->upload(address, values.data(), values.size());
  auto* bytes = static_cast<std::byte*>(address);
  for (int64_t done = fresh; done < elements;) {
    const int64_t part = std::min(done, elements - done);
    device_->copy(bytes + static_cast<size_t>(done) * element, bytes, static_cast<size_t>(part) * element);
    done += part;
  }
}

Result<Tensor> GpuRig::tensor(DType type, int64_t rows, int64_t cols, uint64_t seed) {
  QUIRE_ASSIGN(void* const address, memory(static_cast<size_t>(rows * cols * info(type).block_bytes)));
  randomise(address, type, rows * cols, seed);
  return Tensor{address, type, rows, cols, cols};
}

Result<std::vector<const PackedMatrix*>> GpuRig::weights(DType type, int64_t n, int64_t k, size_t most) {
  const cases::Weight weight = repeated_weight(type, n, k);
  const RawMatrix raw = weight.raw();
  const size_t copies = std::clamp<size_t>(kWalkBytes / weight.bytes.size() + 1, 1, most);
  std::vector<const PackedMatrix*> out;
  for (size_t i = 0; i < copies; ++i) {
    PackOptions options;
    options.activation = backend_->activation_dtype(is_quantised(type) ? DType::kBF16 : type);
    QUIRE_ASSIGN(auto packed, backend_->pack({&raw, 1}, options));
    packed_.push_back(std::move(packed));
    out.push_back(packed_.back().get());
  }
  return out;
}

void GpuRig::release() {
  backend_->synchronise();
  packed_.clear();
  buffers_.clear();
}

Result<double> GpuRig::time(size_t calls, const std::function<void(size_t)>& call, int64_t samples, bool plain) {
  const auto all = [&] {
    for (size_t i = 0; i < calls; ++i) call(i);
  };
  all();  // loads kernels and allocates scratch memory, which is not allowed in a recording
  QUIRE_TRY(device_->synchronise());
  std::unique_ptr<gpu::Graph> graph;
  if (device_->info().graphs && !plain) {
    device_->begin_recording();
    all();
    QUIRE_ASSIGN(graph, device_->end_recording());
  }
  const auto seconds = [&](int64_t runs) -> Result<double> {
    const auto start = Clock::now();
    for (int64_t i = 0; i < runs; ++i) {
      if (graph != nullptr) {
        device_->run(*graph);
      } else {
        all();
      }
    }
    QUIRE_TRY(device_->wait(device_->mark()));
    return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(runs);
  };
  QUIRE_ASSIGN(double once, seconds(1));
  QUIRE_ASSIGN(once, seconds(1));
  const auto runs = static_cast<int64_t>(std::clamp(std::ceil(kSampleSeconds / once), 1.0, 1000.0));
  std::vector<double> all_samples;
  for (int64_t i = 0; i < samples; ++i) {
    std::this_thread::sleep_for(kRest);
    QUIRE_ASSIGN(const double one, seconds(runs));
    all_samples.push_back(one / static_cast<double>(calls));
  }
  return percentile(all_samples, 50);
}

}  // namespace quire::bench
