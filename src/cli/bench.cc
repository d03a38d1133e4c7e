// SPDX-License-Identifier: Apache-2.0
// quire bench: latency and throughput of a model on this machine, under vLLM's flag names.
#include "cli/bench.h"

#include <cstdio>

#include "base/file.h"
#include "cli/command.h"
#include "cli/flags.h"

namespace quire::cli {
namespace {

void add_common(CLI::App& command, BenchFlags& flags) {
  add_bench_output(command, flags);
  command.add_option("--input-len", flags.workload.input_len, "Tokens of each prompt")->envname("QUIRE_INPUT_LEN");
  command.add_option("--output-len", flags.workload.output_len, "Tokens of each answer")->envname("QUIRE_OUTPUT_LEN");
  add_model_flags(command, flags.options);
}

int latency(BenchFlags& flags) {
  flags.options.model = flags.model;
  auto llm = load_llm(flags.options);
  if (!llm.ok()) return report(llm.error());
  auto figures = bench::latency(**llm, flags.workload, flags.warmup, flags.iters);
  if (!figures.ok()) return report(figures.error());
  return finish_bench(flags, figures->to_json(), figures->to_text());
}

int throughput(BenchFlags& flags) {
  flags.options.model = flags.model;
  auto llm = load_llm(flags.options);
  if (!llm.ok()) return report(llm.error());
  auto figures = bench::throughput(**llm, flags.workload);
  if (!figures.ok()) return report(figures.error());
  return finish_bench(flags, figures->to_json(), figures->to_text());
}

}  // namespace

void add_bench_output(CLI::App& command, BenchFlags& flags) {
  command.add_option("--model", flags.model, "A folder, a .gguf, a cached name, or nothing: the default model")
      ->envname("QUIRE_MODEL");
  command.add_option("--output-json", flags.output_json, "Write the figures to this file")
      ->envname("QUIRE_OUTPUT_JSON");
  add_switch(command, "--json", flags.json, "Print the figures as one JSON object");
}

int finish_bench(const BenchFlags& flags, const json::Value& figures, const std::string& text) {
  if (!flags.output_json.empty()) {
    auto status = write_file(flags.output_json, json::dump(figures, 2) + "\n");
    if (!status.ok()) return report(status.error());
  }
  std::printf("%s\n", flags.json ? json::dump(figures).c_str() : text.c_str());
  return 0;
}

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "Measure a server, or a model on this machine");
  command->require_subcommand(1);
  add_bench_serve(*command, exit_code);

  auto l = std::make_shared<BenchFlags>();
  l->workload.batch_size = 1;
  CLI::App* lat = command->add_subcommand("latency", "Time of one batch of equal requests, prefill and decode apart");
  add_common(*lat, *l);
  lat->add_option("--batch-size", l->workload.batch_size, "Requests at once")->envname("QUIRE_BATCH_SIZE");
  lat->add_option("--num-iters", l->iters, "Measured rounds")->envname("QUIRE_NUM_ITERS");
  lat->add_option("--num-iters-warmup", l->warmup, "Rounds before")->envname("QUIRE_NUM_ITERS_WARMUP");
  lat->callback([l, &exit_code] { exit_code = latency(*l); });

  auto t = std::make_shared<BenchFlags>();
  t->workload.num_prompts = 64;
  CLI::App* thr = command->add_subcommand("throughput", "Tokens a second over many requests at once");
  add_common(*thr, *t);
  thr->add_option("--num-prompts", t->workload.num_prompts, "Requests in all")->envname("QUIRE_NUM_PROMPTS");
  thr->add_option("--dataset-path", t->workload.dataset,
                  "ShareGPT JSON: its prompts, and its answers' lengths unless --output-len is given")
      ->envname("QUIRE_DATASET_PATH");
  thr->callback([t, &exit_code] { exit_code = throughput(*t); });

  add_bench_lengths(*command, exit_code);
  add_bench_engine(*command, exit_code);
}

}  // namespace quire::cli
