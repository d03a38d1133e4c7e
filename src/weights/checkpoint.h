// SPDX-License-Identifier: Apache-2.0
// Opens the checkpoint at a path that the user gave: finds its format and its files.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/result.h"
#include "weights/gguf.h"
#include "weights/safetensors.h"
#include "weights/tensor_ref.h"

namespace quire::weights {

enum class CheckpointFormat { kSafetensors, kGguf };

// Where the parts of a checkpoint are; nothing has been opened yet.
struct CheckpointFiles {
  CheckpointFormat format = CheckpointFormat::kSafetensors;
  std::filesystem::path folder;  // where config.json, tokenizer.json and the like would be
  std::filesystem::path file;    // the .safetensors, the (first) .gguf, or the index of a sharded folder
  bool sharded = false;          // `file` is model.safetensors.index.json
};

// Accepts a Hugging Face folder, a .safetensors file, a .gguf file, or a folder with exactly one GGUF model. If a
// folder has both formats, the safetensors files are used. Errors say what was found instead and what to do.
Result<CheckpointFiles> locate_checkpoint(const std::filesystem::path& path);

// An open checkpoint. `gguf` is set for GGUF and is the same object as `weights`: its metadata() is the config.
struct Checkpoint {
  CheckpointFiles files;
  std::shared_ptr<const WeightSource> weights;
  std::shared_ptr<const GgufSource> gguf;
};

Result<Checkpoint> open_checkpoint(const std::filesystem::path& path);

}  // namespace quire::weights
