// SPDX-License-Identifier: Apache-2.0
// quire pull: downloads a model from a hub into the cache.
#include <cstdio>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/hub/pull.h"

namespace quire::cli {

void add_pull(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<PullOptions>();
  CLI::App* command = app.add_subcommand("pull", "Download a model from a Hugging Face-compatible hub into the cache");
  command->footer(
      "The hub is HF_ENDPOINT, else the public one. Run the same command again to resume an interrupted download.\n"
      "Examples:\n"
      "  quire pull HuggingFaceTB/SmolLM2-135M-Instruct\n"
      "  quire pull Qwen/Qwen3-0.6B-GGUF:Q8_0\n"
      "  quire pull https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/blob/main/x.gguf");
  command
      ->add_option("NAME", options->name,
                   "owner/name, with :QUANT for one of several GGUF files, or the address of a page on the hub")
      ->required();
  command->add_option("--revision", options->revision, "Branch, tag or commit")->envname("QUIRE_REVISION");
  command->add_option("--include", options->include, "Only files that match this glob; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--quant", options->quant, "The quantisation to download, if there are several GGUF files")
      ->envname("QUIRE_QUANT");
  command->add_option("--token", options->token, "Token for private and gated models (else HF_TOKEN)")
      ->envname("QUIRE_TOKEN");
  command->callback([options, &exit_code] {
    Progress progress(Progress::Plain::kLines);
    auto path = pull_model(*options, progress);
    if (!path.ok()) {
      exit_code = report(path.error());
      return;
    }
    std::printf("%s\n", path->string().c_str());
  });
}

}  // namespace quire::cli
