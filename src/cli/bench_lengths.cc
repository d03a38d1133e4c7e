// SPDX-License-Identifier: Apache-2.0
// quire bench lengths and quire bench engine, which measure the engine itself.
#include "bench/ceiling.h"
#include "bench/lengths.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "llm/text_side.h"

namespace quire::cli {
namespace {

struct LengthsFlags {
  BenchFlags common;
  bench::LengthsOptions lengths;
};

int lengths(LengthsFlags& flags) {
  if (flags.lengths.dataset_path.empty()) {
    return report(invalid_argument("--dataset-path is missing; give a ShareGPT JSON file"));
  }
  flags.lengths.seed = flags.common.options.seed.value_or(0);
  const auto load = [&](int64_t seqs) {
    llm::Options options = flags.common.options;
    options.model = flags.common.model;
    options.max_num_seqs = seqs;
    return load_llm(options);
  };
  auto figures = [&] {
    BenchLine line;
    return bench::lengths(flags.lengths, load, [&](int64_t seqs, int64_t done, int64_t total) {
      line("--max-num-seqs " + std::to_string(seqs) + ", outputs", done, total);
    });
  }();
  if (!figures.ok()) return report(figures.error());
  const int code = finish_bench(flags.common, figures->to_json(), figures->to_text());
  return code != 0 || figures->difference.empty() ? code : kExitFailure;
}

struct EngineFlags {
  BenchFlags common;
  bench::CeilingOptions ceiling;
  bool text = false;
};

int engine(EngineFlags& flags) {
  if (flags.text) {
    llm::Options options;
    options.model = flags.common.model;
    if (auto status = resolve_model_argument(options); !status.ok()) return report(status.error());
    auto files = llm::open_text_files(options);
    if (!files.ok()) return report(files.error());
    auto side = llm::load_text_side(*files, options);
    if (!side.ok()) return report(side.error());
    if (side->tokenizer == nullptr) return report(unsupported("--text needs a model with a tokenizer"));
    flags.ceiling.tokenizer = side->tokenizer;
  }
  auto figures = [&] {
    BenchLine line;
    return bench::engine_ceiling(flags.ceiling, [&](int64_t done, int64_t total) { line("steps", done, total); });
  }();
  if (!figures.ok()) return report(figures.error());
  return finish_bench(flags.common, figures->to_json(), figures->to_text());
}

}  // namespace

void add_bench_lengths(CLI::App& bench, int& exit_code) {
  auto f = std::make_shared<LengthsFlags>();
  CLI::App* command = bench.add_subcommand(
      "lengths", "Compare the outputs at different --max-num-seqs; exits with 1 unless they are identical to the bit");
  add_bench_output(*command, f->common);
  add_model_flags(*command, f->common.options);
  // The model flag of that name is one number; here it is a list.
  command->remove_option(command->get_option("--max-num-seqs"));
  command->add_option("--max-num-seqs", f->lengths.max_num_seqs, "Values to compare, one row each (default: 1 8 32)");
  command->add_option("--dataset-path", f->lengths.dataset_path, "ShareGPT JSON")
      ->envname("QUIRE_DATASET_PATH")
      ->type_name(kFile);
  add_bench_option(*command, "--num-prompts", f->lengths.num_prompts, "Number of prompts");
  add_bench_option(*command, "--output-len", f->lengths.output_len, "Maximum tokens per output");
  command->add_option("--temperature", f->lengths.temperature, "Replaces the model's default; 0 is greedy")
      ->envname("QUIRE_TEMPERATURE");
  command->callback([f, &exit_code] { exit_code = lengths(*f); });
}

void add_bench_engine(CLI::App& bench, int& exit_code) {
  auto f = std::make_shared<EngineFlags>();
  CLI::App* command =
      bench.add_subcommand("engine", "Measure the engine's steps per second, with a model that computes nothing");
  add_bench_output(*command, f->common);
  add_bench_option(*command, "--num-streams", f->ceiling.num_streams, "Concurrent streams");
  add_bench_option(*command, "--input-len", f->ceiling.input_len, "Tokens per prompt");
  add_bench_option(*command, "--output-len", f->ceiling.output_len, "Tokens per output");
  add_bench_option(*command, "--vocab-size", f->ceiling.vocab_size, "Logits per row");
  add_switch(*command, "--enable-prefix-caching", f->ceiling.prefix_caching, "Hash full pages, as a server does");
  add_switch(*command, "--text", f->text, "Also convert tokens to text, with the tokenizer of --model");
  command->callback([f, &exit_code] { exit_code = engine(*f); });
}

}  // namespace quire::cli
