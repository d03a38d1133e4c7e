// SPDX-License-Identifier: Apache-2.0
// quire bench kernels: the limits of the machine, and each kernel's share of them.
#include "bench/kernels.h"

#include <unistd.h>

#include <cstdio>

#include "backend/gpu/device.h"
#include "bench/gpu_kernels.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/flags.h"

namespace quire::cli {
namespace {

struct KernelFlags {
  bench::KernelOptions options;
  BenchFlags output;
  std::string json_file;
  CLI::Option* json = nullptr;
};

// On a terminal, one line that is redrawn; elsewhere, a line for each level and type.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (terminal_ && drawn_) std::fputs("\r\x1b[K", stderr);
  }
  void operator()(const std::string& group, const std::string& what, size_t done, size_t total) {
    if (terminal_) {
      std::fprintf(stderr, "\r\x1b[K[%zu/%zu] %s %s", done, total, group.c_str(), what.c_str());
      drawn_ = true;
    } else if (group != group_) {
      std::fprintf(stderr, "[%zu/%zu] %s\n", done, total, group.c_str());
      group_ = group;
    }
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::string group_;
};

template <typename Figures>
int measure(KernelFlags& flags, Result<Figures> (*run)(const bench::KernelOptions&, const bench::KernelProgress&)) {
  Result<Figures> figures = [&] {
    ProgressLine progress;
    return run(flags.options, std::ref(progress));
  }();
  if (!figures.ok()) return report(figures.error());
  // --json alone prints to standard output; with a file it writes to it, as --output-json does.
  if (flags.json->count() > 0 && flags.json_file.empty()) flags.output.json = true;
  if (!flags.json_file.empty()) flags.output.output_json = flags.json_file;
  return finish_bench(flags.output, figures->to_json(), figures->to_text());
}

int kernels(KernelFlags& flags) {
  if (flags.options.quick && flags.options.samples == bench::KernelOptions{}.samples) flags.options.samples = 5;
  std::string& device = flags.options.device;
  if (device == "auto" && !gpu::make_gpu_backend(device).ok()) device = "cpu";
  return device == "cpu" ? measure(flags, bench::kernels) : measure(flags, bench::gpu_kernels);
}

}  // namespace

void add_bench_kernels(CLI::App& bench, int& exit_code) {
  auto f = std::make_shared<KernelFlags>();
  bench::KernelOptions& o = f->options;
  CLI::App* command = bench.add_subcommand(
      "kernels",
      "Measure the limits of the machine (arithmetic, reading) and each kernel's share of them, per ISA level");
  const auto list = [&](const char* name, auto& value, const char* doc) {
    command->add_option(name, value, doc)->delimiter(',')->envname(env_name(name));
  };
  list("--isa", o.isa, "ISA levels, or all (default: the best one)");
  list("--types", o.types, "Weight types such as Q8_0,BF16, or all (default: BF16 F16 F32 Q8_0 Q4_0 Q4_1 Q4_K Q6_K)");
  list("--rows", o.rows, "Rows per call: 1 is like decode, 512 like prefill (default: 1,4,32,512)");
  list("--shapes", o.shapes, "Weights as NxK (default: those of SmolLM2-135M and Qwen3-0.6B)");
  list("--kv-types", o.kv_types, "Types of the KV cache for attention (default: F16,BF16)");
  list(
      "--ops", o.ops,
      "linear, attention, delta (gated delta net), or limits for only the machine's (default: the first three); on a "
      "GPU linear, quantised, attention, delta, rows (norm, rope, glu, sampling), limits, exchange (only if named: the "
      "gathers of ranks, by one rank)");
  command
      ->add_option("--device", o.device,
                   "cpu or a GPU (cuda, metal, emulator), which is compared with its fastest copy and matrix product")
      ->check(CLI::IsMember({"auto", "cpu", "cuda", "metal", "emulator"}))
      ->envname("QUIRE_DEVICE");
  add_bench_option(*command, "--threads", o.threads, "Threads; 0: all cores");
  add_bench_option(*command, "--samples", o.samples, "Samples per figure; the median is reported");
  add_switch(*command, "--quick", o.quick, "Fewer cases and samples");
  f->json = command->add_option("--json", f->json_file, "Print JSON instead of the table, or write it to FILE")
                ->expected(0, 1)
                ->type_name("[FILE]");
  command->add_option("--output-json", f->output.output_json, "Write the results to this file")
      ->envname("QUIRE_OUTPUT_JSON")
      ->type_name(kFile);
  command->callback([f, &exit_code] { exit_code = kernels(*f); });
}

}  // namespace quire::cli
