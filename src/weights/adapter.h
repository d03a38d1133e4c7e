// SPDX-License-Identifier: Apache-2.0
// Reads LoRA adapters: PEFT folders, MLX folders and GGUF files. What they are for is known to model/lora.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/tensor_ref.h"

namespace quire::weights {

// One module of an adapter: its output gets scale * B (A x) added. A is [rank, in] and B is [out, rank]; the file may
// hold either transposed.
struct AdapterModule {
  std::string name;        // "model.layers.0.self_attn.q_proj", or GGUF's "blk.0.attn_q"
  std::string own_name;    // in the model that was trained, which may be part of a larger one; patterns are for it
  bool embedding = false;  // A has a column for each token, and the module looks one up
  int64_t rank = 0, in = 0, out = 0;
  double scale = 1;
  const TensorRef *a = nullptr, *b = nullptr;
  bool a_transposed = false, b_transposed = false;
  // All experts of a layer (PEFT's target_parameters), `name` being that of the experts: expert e has rows
  // [e * rank / experts, ...) of A, and every experts-th column of B from e on. Which of the two products it is for
  // follows from its shape; each has its own rank per expert and scale.
  bool of_experts = false;
  int64_t gate_up_rank = 0, down_rank = 0;
  double gate_up_scale = 1, down_scale = 1;

  // The matrices as floats, [rank, in] and [out, rank]; an Error if one has a value that is not finite.
  Result<std::vector<float>> a_values() const;
  Result<std::vector<float>> b_values() const;
};

// An open adapter. Immutable; any thread may read it.
struct AdapterFiles {
  std::filesystem::path path;  // the folder or the GGUF file
  bool gguf = false;           // modules have GGUF's names
  std::string architecture;    // GGUF: of the base model; "": not known
  std::shared_ptr<const WeightSource> source;
  std::shared_ptr<std::deque<TensorRef>> parts;  // of tensors in the source that have the matrices of all experts
  std::vector<AdapterModule> modules;            // by name

  // Of all that decides what the adapter adds: tensors and scales. Reads all of it.
  std::string digest() const;
};

// `path` is a folder, a GGUF file, or the safetensors file of such a folder. What the adapter asks for and quire does
// not compute (DoRA, trained biases, replaced modules, ...) is an Error that names it.
Result<AdapterFiles> open_adapter(const std::filesystem::path& path);

}  // namespace quire::weights
