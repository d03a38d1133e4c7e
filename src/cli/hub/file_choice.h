// SPDX-License-Identifier: Apache-2.0
// Which files of a hub's repository a model needs.
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
  std::string digest;  // see digest.h; "" when the hub gave none
};

struct FileChoice {
  std::vector<HubFile> files;  // small ones first, so that a wrong repository is noticed early
  std::string note;            // what was chosen among what, when there was a choice; else ""
};

struct ChoiceOptions {
  std::string name;                  // for messages
  std::vector<std::string> include;  // globs; when given, exactly the files that match one
  std::string quant;                 // "Q4_K_M": this one of the GGUF files
};

// Without options: safetensors with their config, tokenizer and chat template; else of the GGUF files one quantisation
// (the first there is in a fixed order that begins with Q4_K_M). The Error lists the choices.
Result<FileChoice> choose_files(const std::vector<HubFile>& all, const ChoiceOptions& options);

// A shell glob over a whole path: * and ? (both also match a slash, as hub clients do), [a-z], [!a-z].
bool glob_matches(std::string_view pattern, std::string_view path);

// Whether a path from a hub may be used under a folder: relative, no empty, "." or ".." part, no backslash, no control
// character, no name that the cache uses itself, and of a sane length.
bool is_safe_path(std::string_view path);

}  // namespace quire::cli
