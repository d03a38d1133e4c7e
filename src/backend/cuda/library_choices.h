// SPDX-License-Identifier: Apache-2.0
// Which of the library's algorithms were chosen, kept in a file, so that a later start need not time them again.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "backend/cuda/library.h"
#include "base/json.h"

namespace quire::cuda {

// By the output's type and the step of rows.
using Choices = std::map<std::pair<DType, int64_t>, LtAlgo>;

// Best effort: a file that cannot be read holds nothing, one that cannot be written is a line in the log. What it holds
// is a proposal, to be checked like any other. Used by one thread at a time.
class ChoiceFile {
 public:
  ChoiceFile() = default;  // keeps nothing
  // The file of that folder for what `whose` describes: a GPU, its driver, a version of the library. No folder: none.
  ChoiceFile(const std::filesystem::path& folder, const std::string& whose);

  std::optional<Choices> find(const ProductShape& shape) const;
  void keep(const ProductShape& shape, const Choices& choices);
  const std::filesystem::path& path() const { return path_; }

 private:
  json::Value read() const;

  std::filesystem::path path_;
  std::string whose_;
};

}  // namespace quire::cuda
