// SPDX-License-Identifier: Apache-2.0
// The GGUF reader: versions 2 and 3, little-endian, one file or a split set.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "weights/gguf_metadata.h"
#include "weights/tensor_ref.h"
#include "weights/tensor_table.h"

namespace quire::weights {

// A GGUF checkpoint: metadata and tensors. Owns the maps of its files; immutable after opening. Every count, length,
// offset, type and shape was checked against the file's size; the tensors follow each other in the data section at the
// file's alignment, and the file ends with the last one. GGUF writes the innermost dimension first; a TensorRef has it
// last. Tensors with ggml types outside the DType table are listed as unsupported.
class GgufSource final : public TableSource {
 public:
  // One file, or the whole split set if it is the first part (name-00001-of-0000N.gguf).
  static Result<std::shared_ptr<const GgufSource>> open(const std::filesystem::path& file);
  // A whole file in memory, not a part of a split set. `name` is for messages; `owner` keeps the bytes alive.
  static Result<std::shared_ptr<const GgufSource>> parse(std::span<const std::byte> bytes, std::string name,
                                                         std::shared_ptr<const void> owner);

  std::string describe() const override;
  const GgufMetadata& metadata() const { return metadata_; }
  int version() const { return version_; }

 private:
  GgufSource() = default;
  Result<GgufMetadata> add_file(std::span<const std::byte> bytes, const std::string& file,
                                const std::shared_ptr<const void>& owner);
  Status add_rest_of_split(const std::filesystem::path& first, int64_t count);

  std::shared_ptr<const void> owner_;  // keeps a parsed buffer alive for the metadata's views
  GgufMetadata metadata_;
  int version_ = 0;
  int files_ = 0;
};

// ggml's name for a tensor type number, supported or not; empty if the number is unknown.
std::string_view ggml_type_name(uint32_t type);

// Parses the file name of a part of a split set ("x-00002-of-00005.gguf"): its number, counted from 1, and the count.
struct GgufSplitName {
  std::string stem;  // "x"
  int number = 0;
  int count = 0;
};
std::optional<GgufSplitName> parse_gguf_split_name(std::string_view file_name);
std::string gguf_split_name(const GgufSplitName& part);

}  // namespace quire::weights
