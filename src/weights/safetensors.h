// SPDX-License-Identifier: Apache-2.0
// The safetensors reader: one file, or the shards that model.safetensors.index.json lists.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/tensor_ref.h"
#include "weights/tensor_table.h"

namespace quire::weights {

// A safetensors checkpoint. Owns the maps of its files (or shares the owner of a parsed buffer); immutable after
// opening. The whole header was checked: the size, the JSON, each dtype and shape, and that the tensors cover the data
// exactly, without overlaps or gaps. F32, F16 and BF16 are usable; other types are listed as unsupported, with their
// bytes for the readers of quantised formats.
class SafetensorsSource final : public TableSource {
 public:
  // One .safetensors file.
  static Result<std::shared_ptr<const SafetensorsSource>> open(const std::filesystem::path& file);
  // A folder sharded by `index` (…/model.safetensors.index.json): every tensor must be in the shard that the index
  // names, and no tensor may be in two. File names with a path in them are errors.
  static Result<std::shared_ptr<const SafetensorsSource>> open_sharded(const std::filesystem::path& index);
  // A whole file in memory. `name` stands for it in messages; `owner` keeps the bytes alive.
  static Result<std::shared_ptr<const SafetensorsSource>> parse(std::span<const std::byte> bytes, std::string name,
                                                                std::shared_ptr<const void> owner);

  std::string describe() const override;
  // The strings of `__metadata__` in the first file that has any: usually {"format": "pt"}.
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }

 private:
  SafetensorsSource() = default;
  Status add_file(std::span<const std::byte> bytes, const std::string& file, const std::shared_ptr<const void>& owner);

  std::vector<std::pair<std::string, std::string>> metadata_;
  int files_ = 0;
};

// The files of an index, each once, in the order in which they are first mentioned; checked to be plain names.
Result<std::vector<std::string>> safetensors_index_files(const std::filesystem::path& index);

}  // namespace quire::weights
