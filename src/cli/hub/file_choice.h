// SPDX-License-Identifier: Apache-2.0
// Chooses the files of a hub's repository that a model needs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::cli {

// One file of a repository, as the hub lists it.
struct HubFile {
  std::string path;  // relative, with slashes; checked by is_safe_path before it is ever used on disk
  uint64_t size = 0;
  bool size_known = false;
  std::string digest;  // see digest.h; "" if the hub has none
};

struct FileChoice {
  std::vector<HubFile> files;  // small files first, so that a wrong repository is noticed early
  std::string note;            // describes the choice if there was one; else ""
};

struct ChoiceOptions {
  std::string name;                  // for messages
  std::vector<std::string> include;  // globs; if not empty, exactly the files that match one
  std::string quant;                 // "Q4_K_M": the GGUF file of this quantisation
};

// By default, safetensors with their config, tokenizer and chat template; else the GGUF files of one quantisation (the
// first that exists, in a fixed order that begins with Q4_K_M). The Error lists the choices.
Result<FileChoice> choose_files(const std::vector<HubFile>& all, const ChoiceOptions& options);

// A shell glob over a whole path: * and ? (both also match a slash, as hub clients do), [a-z], [!a-z].
bool glob_matches(std::string_view pattern, std::string_view path);

// Whether a path from a hub may be used inside a folder: relative, no empty, "." or ".." part, no backslash, no control
// character, no name that the cache uses, and not too long.
bool is_safe_path(std::string_view path);

}  // namespace quire::cli
