// SPDX-License-Identifier: Apache-2.0
// quire bench speculation: what --speculative-config gains.
#include "bench/speculation.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/flags.h"

namespace quire::cli {
namespace {

struct SpeculationFlags {
  BenchFlags common;
  bench::SpeculationBench bench;
};

int speculation(SpeculationFlags& flags) {
  llm::Options& options = flags.common.options;
  options.model = flags.common.model;
  if (options.speculative_config.empty()) {
    options.speculative_config =
        R"({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2})";
  }
  auto llm = load_llm(options);
  if (!llm.ok()) return report(llm.error());
  auto figures = [&] {
    BenchLine line;
    return bench::speculation(**llm, flags.bench, std::ref(line));
  }();
  if (!figures.ok()) return report(figures.error());
  const int code = finish_bench(flags.common, figures->to_json(), figures->to_text());
  return code != 0 || figures->same() ? code : kExitFailure;
}

}  // namespace

void add_bench_speculation(CLI::App& bench, int& exit_code) {
  auto f = std::make_shared<SpeculationFlags>();
  CLI::App* command = bench.add_subcommand("speculation",
                                           "Compare the speed with and without --speculative-config; exits with 1 "
                                           "unless all answers are identical to the bit");
  add_bench_output(*command, f->common);
  add_bench_option(*command, "--num-iters", f->bench.rounds, "Rounds, each without and with drafts");
  add_bench_option(*command, "--batch-size", f->bench.batch_size, "Requests at a time");
  add_bench_option(*command, "--output-len", f->bench.output_len, "Maximum tokens per answer");
  command
      ->add_option("--acceptance", f->bench.acceptance,
                   "Cost of a draft model without a trained one: replace its drafts by tokens that are right with this "
                   "probability; default: its own")
      ->envname("QUIRE_ACCEPTANCE");
  command
      ->add_option("--prompt", f->bench.prompt,
                   "The only task; default: an edit of a program, a repetition of records, and prose")
      ->envname("QUIRE_PROMPT");
  add_model_flags(*command, f->common.options);
  command->callback([f, &exit_code] { exit_code = speculation(*f); });
}

}  // namespace quire::cli
