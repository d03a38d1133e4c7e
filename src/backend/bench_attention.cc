// SPDX-License-Identifier: Apache-2.0
// quire_bench_attention: times attention on every ISA level, one thread by CPU time and all threads by the clock.
//
// GFLOP/s counts unmasked work alone: 4 * head_dim operations a pair of a row and a position that it sees. GB/s counts
// each K and V once a kv head.
#include <ctime>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/attention_cases.h"
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/isa.h"

namespace quire::cpu {
namespace {

std::vector<AttentionCase> bench_cases() {
  std::vector<AttentionCase> cases = {
      {"smollm2 prefill 512", 9, 3, 64, 16, DType::kF16, true, {{512, 512}}},
      {"smollm2 prefill 2048", 9, 3, 64, 16, DType::kF16, true, {{2048, 2048}}},
      {"smollm2 prefill 64", 9, 3, 64, 16, DType::kF16, true, {{64, 64}}},
      {"smollm2 decode 512", 9, 3, 64, 16, DType::kF16, true, {{1, 512}}},
      {"smollm2 decode 8192", 9, 3, 64, 16, DType::kF16, true, {{1, 8192}}},
      {"llama3 prefill 512", 32, 8, 128, 16, DType::kF16, true, {{512, 512}}},
      {"llama3 decode 4096", 32, 8, 128, 16, DType::kBF16, true, {{1, 4096}}},
      {"mha prefill 512 f32", 12, 12, 64, 16, DType::kF32, true, {{512, 512}}},
  };
  AttentionCase batch = {"smollm2 decode 32x512", 9, 3, 64, 16, DType::kF16, true, {}};
  batch.sequences.assign(32, {1, 512});
  cases.push_back(batch);
  return cases;
}

double cpu_seconds() {  // of this thread: what other programs take does not count
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run_case(const AttentionCase& shape, Isa isa, int threads, double seconds) {
  auto backend = make_cpu_backend({.threads = threads, .isa = name(isa)});
  if (!backend.ok()) return;
  PagedCache cache = make_paged_cache(shape, 1);
  const auto positions = static_cast<int64_t>(cache.slots.size());
  backend.value()->reshape_and_cache({{cache.k.data(), DType::kF32, positions, cache.kv_cols(), cache.kv_cols()},
                                      {cache.v.data(), DType::kF32, positions, cache.kv_cols(), cache.kv_cols()},
                                      cache.slots,
                                      cache.layer});
  std::vector<int32_t> cu = {0};
  double pairs = 0;
  for (const AttentionSequence& s : shape.sequences) {
    cu.push_back(cu.back() + s.queries);
    for (int64_t t = 0; t < s.queries; ++t) {
      pairs += static_cast<double>(visible_positions(shape.causal, s.context, s.queries, t) * shape.num_heads);
    }
  }
  const int64_t tokens = cu.back();
  std::vector<float> q(static_cast<size_t>(tokens * cache.q_cols())), out(q.size());
  std::mt19937 random(1);
  for (float& x : q) x = random_float(random);
  const AttentionArgs args = {.q = {q.data(), DType::kF32, tokens, cache.q_cols(), cache.q_cols()},
                              .kv = cache.layer,
                              .num_heads = shape.num_heads,
                              .scale = 0.125f,
                              .causal = shape.causal,
                              .cu_seqlens_q = cu,
                              .context_lens = cache.lengths,
                              .block_tables = cache.tables,
                              .max_blocks = cache.max_blocks,
                              .out = {out.data(), DType::kF32, tokens, cache.q_cols(), cache.q_cols()}};
  const auto now = threads == 1 ? cpu_seconds : wall_seconds;
  std::vector<double> samples;
  for (const double stop = wall_seconds() + seconds; samples.size() < 5 || wall_seconds() < stop;) {
    const double begin = now();
    backend.value()->attention(args);
    samples.push_back(now() - begin);
  }
  std::sort(samples.begin(), samples.end());
  const double least = samples.front(), median = samples[samples.size() / 2];
  const KvGeometry g = kv_geometry(cache.layer);
  const double bytes = static_cast<double>(positions * shape.num_kv_heads * (shape.head_dim + g.v_stride) * g.element);
  std::printf("%-9s %-22s threads %d: least %9.2f us, median %9.2f us; at least %7.2f GFLOP/s, %6.2f GB/s\n", name(isa),
              shape.name.c_str(), threads, least * 1e6, median * 1e6,
              4e-9 * pairs * static_cast<double>(shape.head_dim) / least, bytes / least * 1e-9);
  std::fflush(stdout);
}

}  // namespace
}  // namespace quire::cpu

int main(int argc, char** argv) {
  using namespace quire::cpu;
  const std::string wanted = argc > 1 ? argv[1] : "";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 0.5;
  if (wanted == "--help") {
    std::printf("usage: %s [ISA or \"\" for all] [THREADS] [SECONDS a case]\n", argv[0]);
    return 0;
  }
  for (const Isa isa : available_isas()) {
    if (!wanted.empty() ? wanted != name(isa) : isa == Isa::kAmx || isa == Isa::kNeonDotprod) continue;
    for (const AttentionCase& shape : bench_cases()) run_case(shape, isa, threads, seconds);
  }
  return 0;
}
