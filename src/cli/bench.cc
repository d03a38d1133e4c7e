// SPDX-License-Identifier: Apache-2.0
// quire bench: latency and throughput of a model on this machine, with vLLM's flag names.
#include "cli/bench.h"

#include <cstdio>
#include <functional>

#include "base/file.h"
#include "cli/command.h"
#include "cli/constraint_flags.h"
#include "cli/flags.h"
#include "cli/serve_ranks.h"
#include "llm/text_side.h"

namespace quire::cli {
namespace {

void add_common(CLI::App& command, BenchFlags& flags) {
  add_bench_output(command, flags);
  add_bench_option(command, "--input-len", flags.workload.input_len, "Tokens per prompt");
  add_bench_option(command, "--output-len", flags.workload.output_len, "Tokens per output");
  command
      .add_option(
          "--json-schema", flags.json_schemas,
          "File with a JSON Schema that the answers follow; several: in turn. After its end an answer repeats EOS")
      ->allow_extra_args(false)
      ->envname(env_name("--json-schema"))
      ->type_name(kFile);
  add_model_flags(command, flags.options);
  add_rank_flags(command, flags.ranks);
}

Status read_schemas(BenchFlags& flags) {
  for (const std::string& path : flags.json_schemas) {
    QUIRE_ASSIGN(grammar::Spec spec, read_schema(path, "--json-schema"));
    flags.workload.constraints.push_back(std::move(spec));
  }
  return {};
}

// The whole batch should run at once: only an explicit --max-num-seqs limits it.
void widen_batch(BenchFlags& flags) {
  constexpr int64_t kUsualSeqs = 128;
  if (flags.options.max_num_seqs == 0 && flags.workload.batch_size > kUsualSeqs) {
    flags.options.max_num_seqs = flags.workload.batch_size;
  }
}

int latency(BenchFlags& flags, FirstRank& ranks) {
  flags.options.model = flags.model;
  if (auto status = resolve_model_argument(flags.options); !status.ok()) return report(status.error());
  if (auto status = read_schemas(flags); !status.ok()) return report(status.error());
  ranks.start_others(flags.model);
  auto llm = load_llm(flags.options);
  if (!llm.ok()) return report(llm.error());
  auto figures = [&] {
    BenchLine line;
    return bench::latency(**llm, flags.workload, flags.warmup, flags.iters, std::ref(line));
  }();
  if (!figures.ok()) return report(figures.error());
  return finish_bench(flags, figures->to_json(), figures->to_text());
}

// As in vLLM, the default dataset is sharegpt with --dataset-path, else random tokens.
struct DatasetFlags {
  bench::DatasetOptions options;
  bool oversample = true;
  CLI::Option* name = nullptr;
  CLI::Option* output_len = nullptr;
};

void settle_dataset(BenchFlags& flags, DatasetFlags& dataset) {
  bench::DatasetOptions& o = dataset.options;
  if (dataset.name->count() == 0 && o.path.empty()) return;
  if (dataset.name->count() == 0) o.name = "sharegpt";
  const bench::Workload& w = flags.workload;
  o.num_prompts = w.num_prompts;
  o.no_oversample = !dataset.oversample;
  o.seed = flags.options.seed.value_or(0);
  o.random_input_len = w.input_len;
  o.random_output_len = w.output_len;
  if (dataset.output_len->count() > 0) {
    o.sharegpt_output_len = w.output_len;
    o.custom_output_len = o.prefix_repetition_output_len = o.sonnet_output_len = w.output_len;
  }
  flags.workload.dataset = o;
}

int throughput(BenchFlags& flags, DatasetFlags& dataset, FirstRank& ranks) {
  flags.options.model = flags.model;
  if (auto status = resolve_model_argument(flags.options); !status.ok()) return report(status.error());
  if (auto status = read_schemas(flags); !status.ok()) return report(status.error());
  settle_dataset(flags, dataset);
  llm::TextSide side;
  if (flags.workload.dataset) {
    auto files = llm::open_text_files(flags.options);
    if (!files.ok()) return report(files.error());
    auto loaded = llm::load_text_side(*files, flags.options);
    if (!loaded.ok()) return report(loaded.error());
    side = std::move(*loaded);
  }
  ranks.start_others(flags.model);
  auto llm = load_llm(flags.options);
  if (!llm.ok()) return report(llm.error());
  auto figures = [&] {
    BenchLine line;
    return bench::throughput(**llm, flags.workload, side, std::ref(line));
  }();
  if (!figures.ok()) return report(figures.error());
  for (const std::string& note : figures->notes) std::fprintf(stderr, "quire: %s\n", note.c_str());
  return finish_bench(flags, figures->to_json(), figures->to_text());
}

void add_latency(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  flags->options.enable_prefix_caching = false;  // as in vLLM: no round reuses pages of another
  CLI::App* command =
      bench.add_subcommand("latency", "Measure the time of one batch of equal requests, for prefill and decode");
  add_common(*command, *flags);
  add_bench_option(*command, "--batch-size", flags->workload.batch_size, "Requests per batch");
  add_bench_option(*command, "--num-iters", flags->iters, "Rounds that are measured");
  add_bench_option(*command, "--num-iters-warmup", flags->warmup, "Rounds before the measured ones");
  command->callback([flags, &exit_code] {
    widen_batch(*flags);
    exit_code = on_all_ranks(flags->ranks, flags->options, [&](FirstRank& ranks) { return latency(*flags, ranks); });
  });
}

void add_throughput(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  auto dataset = std::make_shared<DatasetFlags>();
  flags->workload.num_prompts = 64;
  CLI::App* command = bench.add_subcommand("throughput", "Measure tokens per second over many concurrent requests");
  add_common(*command, *flags);
  dataset->output_len = command->get_option("--output-len");
  add_bench_option(*command, "--num-prompts", flags->workload.num_prompts, "Number of requests");
  add_bench_option(*command, "--num-warmups", flags->workload.num_warmups, "Requests before the measured ones");
  dataset->name = command
                      ->add_option("--dataset-name", dataset->options.name,
                                   "sharegpt, random, sonnet, custom, prefix_repetition, burstgpt or timed_trace; "
                                   "default: sharegpt with --dataset-path, else random token ids")
                      ->envname("QUIRE_DATASET_NAME")
                      ->type_name(kDatasetName);
  command->add_option("--dataset-path", dataset->options.path, "Its file; --output-len overrides its output lengths")
      ->envname("QUIRE_DATASET_PATH")
      ->type_name(kFile);
  add_switch(*command, "--skip-chat-template", dataset->options.skip_chat_template, "Use custom prompts unchanged");
  add_switch(*command, "--disable-shuffle", dataset->options.disable_shuffle, "Use samples in the order of the file");
  add_switch(*command, "--oversample", dataset->oversample, "Repeat samples if the file has too few");
  command->callback([flags, dataset, &exit_code] {
    exit_code = on_all_ranks(flags->ranks, flags->options,
                             [&](FirstRank& ranks) { return throughput(*flags, *dataset, ranks); });
  });
}

}  // namespace

void BenchLine::operator()(const std::string& what, int64_t done, int64_t total) {
  if (!line_.due()) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  char text[128];
  std::snprintf(text, sizeof text, "%s: %s of %s, %.1f s", what.c_str(), with_commas(done).c_str(),
                with_commas(total).c_str(), seconds);
  line_.show(text);
}

void add_bench_option(CLI::App& command, const std::string& name, int64_t& value, const std::string& doc) {
  command.add_option(name, value, doc + " (default " + std::to_string(value) + ")")->envname(env_name(name));
}

void add_bench_output(CLI::App& command, BenchFlags& flags) {
  command.add_option("--model", flags.model, "A folder, a .gguf, a cached name, or omitted for the default model")
      ->envname("QUIRE_MODEL")
      ->type_name(kModelValue);
  command.add_option("--output-json", flags.output_json, "Write the results to this file")
      ->envname("QUIRE_OUTPUT_JSON")
      ->type_name(kFile);
  add_switch(command, "--json", flags.json, "Print the results as one JSON object");
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
  CLI::App* command = app.add_subcommand("bench", "Benchmark a server, or a model on this machine");
  command->require_subcommand(1);
  add_bench_serve(*command, exit_code);

  add_latency(*command, exit_code);
  add_throughput(*command, exit_code);
  add_bench_lengths(*command, exit_code);
  add_bench_speculation(*command, exit_code);
  add_bench_engine(*command, exit_code);
  add_bench_kernels(*command, exit_code);
}

}  // namespace quire::cli
