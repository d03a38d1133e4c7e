// SPDX-License-Identifier: Apache-2.0
// The chosen algorithms of the library, kept in a file so that a later start need not time them again.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "backend/cuda/library.h"
#include "base/json.h"

namespace quire::cuda {

// Algorithms by the output's type and the number of rows that ends the range.
using Choices = std::map<std::pair<DType, int64_t>, LtAlgo>;

// Best effort: a file that cannot be read counts as empty, and one that cannot be written is logged. Its algorithms are
// proposals that are checked like all others. Used by one thread at a time.
class ChoiceFile {
 public:
  ChoiceFile() = default;  // keeps nothing
  // The file in `folder` for what `whose` describes: a GPU, its driver, a version of the library. Nothing is kept if
  // `folder` is empty.
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
