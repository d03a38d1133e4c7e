// SPDX-License-Identifier: Apache-2.0
// Times linear: the fastest and the median of many runs, because a shared machine only ever makes a run slower.
#include "backend/bench_kernels.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/linear_cases.h"

namespace quire {

namespace {

struct Options {
  std::vector<std::string> isas, types, rows, shapes;
  int threads = 0;
  double seconds = 0.3;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool parse(int argc, const char* const* argv, Options& o) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--isa") {
      o.isas = split(value);
    } else if (flag == "--types") {
      o.types = split(value);
    } else if (flag == "--rows") {
      o.rows = split(value);
    } else if (flag == "--shapes") {
      o.shapes = split(value);
    } else if (flag == "--threads") {
      o.threads = std::atoi(value.c_str());
    } else if (flag == "--seconds") {
      o.seconds = std::atof(value.c_str());
    } else {
      return false;
    }
  }
  return argc % 2 == 1;
}

struct Timing {
  double least = 0;
  double median = 0;
};

template <typename Fn>
Timing measure(double seconds, const Fn& fn) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 3; ++i) fn();
  std::vector<double> samples;
  const auto stop = Clock::now() + std::chrono::duration<double>(seconds);
  while (samples.size() < 5 || (Clock::now() < stop && samples.size() < 20000)) {
    const auto begin = Clock::now();
    fn();
    samples.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(samples.begin(), samples.end());
  return {samples.front(), samples[samples.size() / 2]};
}

// With few rows a model streams all its weights before it meets one again, so the case walks through copies that no
// near cache holds.
constexpr int64_t kStreamBytes = 64 << 20;
constexpr int64_t kStreamRows = 4;

void run_case(Backend& backend, const char* isa, DType type, cases::LinearShape shape, int64_t rows, double seconds) {
  const int64_t n = shape.n, k = cases::rounded_k(type, shape.k);
  const auto weight = cases::random_weight(type, n, k, 1);
  const RawMatrix raw{type, n, k, weight.data()};
  const auto bytes = static_cast<int64_t>(weight.size());
  const int64_t copies = rows <= kStreamRows ? std::max<int64_t>(1, kStreamBytes / bytes) : 1;
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  for (int64_t i = 0; i < copies; ++i) {
    auto one = backend.pack({&raw, 1}, {});
    if (!one.ok()) return;
    packed.push_back(std::move(one).value());
  }
  std::vector<float> x = cases::random_rows(rows, k, 2), y(static_cast<size_t>(rows * n));
  size_t next = 0;
  const Timing t = measure(seconds, [&] {
    backend.linear({{x.data(), DType::kF32, rows, k, k},
                    packed[next++ % packed.size()].get(),
                    nullptr,
                    {y.data(), DType::kF32, rows, n, n}});
  });
  const double ops = 2.0 * static_cast<double>(rows * n * k);
  std::printf("%-9s %-5s n %6lld k %5lld rows %4lld: least %9.2f us, median %9.2f us; %8.1f GOP/s, %6.2f GB/s\n", isa,
              name(type), static_cast<long long>(n), static_cast<long long>(k), static_cast<long long>(rows),
              t.least * 1e6, t.median * 1e6, ops / t.median * 1e-9, static_cast<double>(bytes) / t.median * 1e-9);
  std::fflush(stdout);
}

bool wanted(const std::vector<std::string>& list, const std::string& name) {
  return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
}

std::vector<cases::LinearShape> shapes_of(const Options& o) {
  std::vector<cases::LinearShape> shapes;
  for (const std::string& text : o.shapes) {
    const size_t x = text.find('x');
    if (x != std::string::npos) shapes.push_back({std::atoll(text.c_str()), std::atoll(text.c_str() + x + 1)});
  }
  if (shapes.empty()) shapes.assign(std::begin(cases::kBenchShapes), std::end(cases::kBenchShapes));
  return shapes;
}

}  // namespace

int bench_kernels(int argc, const char* const* argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: %s [--isa LIST] [--types LIST] [--rows LIST] [--shapes NxK,..] [--threads N]\n",
                 argv[0]);
    return 2;
  }
  std::vector<int64_t> rows;
  for (const std::string& text : options.rows) rows.push_back(std::atoll(text.c_str()));
  if (rows.empty()) rows.assign(std::begin(cases::kBenchRows), std::end(cases::kBenchRows));
  for (const cpu::Isa isa : cpu::available_isas()) {
    if (!wanted(options.isas, cpu::name(isa))) continue;
    auto backend = make_cpu_backend({.threads = options.threads, .isa = cpu::name(isa)});
    if (!backend.ok()) continue;
    for (const DTypeInfo& type : kDTypes) {
      if (!wanted(options.types, type.name)) continue;
      for (const cases::LinearShape& shape : shapes_of(options)) {
        for (const int64_t m : rows) run_case(**backend, cpu::name(isa), type.type, shape, m, options.seconds);
      }
    }
  }
  return 0;
}

}  // namespace quire
