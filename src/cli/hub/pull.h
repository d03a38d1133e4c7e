// SPDX-License-Identifier: Apache-2.0
// `quire pull`: downloads a model from a hub into the cache and checks it.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hub/model_cache.h"
#include "cli/hub/progress.h"

namespace quire::cli {

struct PullOptions {
  std::string name;                  // "owner/name", optionally ":QUANT", or the address of a page (hub_address.h)
  std::string revision = "main";     // a branch, tag or commit
  std::vector<std::string> include;  // globs: exactly these files
  std::string quant;                 // the GGUF file of this quantisation
  std::string token;                 // default: HF_TOKEN
  std::string endpoint;              // default: HF_ENDPOINT, else kDefaultEndpoint
  std::filesystem::path models;      // default: models_folder()
  int tries = 5;                     // consecutive tries without new bytes
  int first_wait_ms = 500;           // before the second try; doubles each time
  int stall_seconds = 0;             // default: HF_HUB_DOWNLOAD_TIMEOUT, else 30
  const std::atomic<bool>* cancelled = nullptr;  // once it is true, the pull ends with an Error; what it has is kept
};

// Downloads the files of the model and returns the path to load it from, as resolve_model() would. Existing files are
// not downloaded again; an interrupted file is resumed; a file gets its final name only after its checksum was
// verified. Two pulls of one model wait for each other. Blocks; call it from one thread.
Result<std::filesystem::path> pull_model(const PullOptions& options, Progress& progress);

}  // namespace quire::cli
