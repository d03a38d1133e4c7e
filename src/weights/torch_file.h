// SPDX-License-Identifier: Apache-2.0
// The reader of small files that torch.save wrote: plain tensors by name, without running anything of the pickle.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "weights/tensor_table.h"

namespace quire::weights {

// A pickle is a program. This reader knows the few instructions with which torch.save writes a state dict (strings,
// numbers, tuples, dicts, and calls of the two functions that make a tensor) and does nothing but note what they say;
// any other instruction or name is an Error. It is for the small files beside a model, such as BGE-M3's heads: the
// weights themselves should be safetensors. F32, F16 and BF16 are usable. Immutable after opening.
class TorchSource final : public TableSource {
 public:
  static Result<std::shared_ptr<const TorchSource>> open(const std::filesystem::path& file);
  // A whole file in memory. `name` stands for it in messages; `owner` keeps the bytes alive.
  static Result<std::shared_ptr<const TorchSource>> parse(std::span<const std::byte> bytes, std::string name,
                                                          std::shared_ptr<const void> owner);
  std::string describe() const override;

 private:
  TorchSource() = default;
};

}  // namespace quire::weights
