// SPDX-License-Identifier: Apache-2.0
// `quire pull`: gets a model from a hub into the cache, whole and checked, or says why not.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hub/model_cache.h"
#include "cli/hub/progress.h"

namespace quire::cli {

struct PullOptions {
  std::string name;                  // "owner/name", optionally ":QUANT", or a page's address (hub_address.h)
  std::string revision = "main";     // a branch, tag or commit
  std::vector<std::string> include;  // globs: exactly these files
  std::string quant;                 // of the GGUF files, this one
  std::string token;                 // else HF_TOKEN
  std::string endpoint;              // else HF_ENDPOINT, else kDefaultEndpoint
  std::filesystem::path models;      // else models_folder()
  int tries = 5;                     // in a row without a new byte
  int first_wait_ms = 500;           // before the second try; doubles each time
  int stall_seconds = 0;             // else HF_HUB_DOWNLOAD_TIMEOUT, else 30
};

// Downloads what the model needs and gives the path to load it from, as resolve_model would. What is there already is
// not fetched again; an interrupted file goes on where it stopped; a file has its final name only once its checksum was
// right. Two pulls of one model wait for each other. Blocks; call from one thread.
Result<std::filesystem::path> pull_model(const PullOptions& options, Progress& progress);

}  // namespace quire::cli
