// SPDX-License-Identifier: Apache-2.0
// The model cache on disk: its layout, its contents, and how a MODEL argument becomes a path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::cli {

// The layout, in QUIRE_HOME or else ~/.cache/quire:
//   models/<name>/...            a model without an owner (scripts/get-default-model stores the default one there)
//   models/<owner>/<name>/...    a model pulled from a hub, with its original file names
//   models/<...>/.quire-pull.json   the files that `quire pull` downloads, with checksums (see pull_record.h)
//   *.part, *.part.etag, .quire-pull.lock   unfinished downloads
inline constexpr std::string_view kDefaultModel = "SmolLM2-135M-Instruct";
// The same model on the public hub, for programs that were installed without the scripts.
inline constexpr std::string_view kDefaultModelRepository = "HuggingFaceTB/SmolLM2-135M-Instruct";

std::filesystem::path models_folder();

// One model of the cache. A plain value: what was on disk when it was listed.
struct CachedModel {
  std::string name;  // "name" or "owner/name", like the folders
  std::filesystem::path folder;
  uint64_t bytes = 0;                   // of its finished files
  std::vector<std::string> gguf_files;  // file names, sorted; a split file counts once, by its first part
  bool has_config = false;              // a Hugging Face folder: config.json beside safetensors
  bool complete = true;                 // false if files of a pull are missing
};

// All models in the cache, sorted by name. Folders that cannot be read are skipped.
std::vector<CachedModel> list_cached_models(const std::filesystem::path& models = models_folder());

// One model that can be loaded.
struct LoadableModel {
  std::string name;  // of its folder or file; with ":" and a quantisation if the folder has several GGUF files
  std::filesystem::path path;  // as resolve_model() returns it
  uint64_t bytes = 0;          // of its files
};
// The models of a folder, sorted by name: folders as in the cache, and .gguf files. Those that are partly downloaded
// are left out.
std::vector<LoadableModel> list_loadable_models(const std::filesystem::path& models);

// The path that a MODEL argument means: a Hugging Face folder or one .gguf file. The argument is
//   nothing                   the default model, from the cache;
//   a folder or a .gguf file  itself (a folder that holds one .gguf means that file);
//   a cached name             "owner/name" or only "name", in any case of letters, and optionally ":" with a GGUF
//                             file's name or its quantisation ("owner/name:Q4_K_M").
// The Error is one sentence that says what to do. A path to a model has priority over a cached name.
Result<std::filesystem::path> resolve_model(std::string_view argument,
                                            const std::filesystem::path& models = models_folder());

// What `quire rm` deletes: a whole model of the cache, complete or not, or one of several GGUF files of its folder. The
// name is looked up as resolve_model() does. An Error for anything that is not in the cache.
struct CacheEntry {
  std::string name;
  std::filesystem::path path;  // the model's folder, or the file (of a split one, the first part)
  uint64_t bytes = 0;
};
Result<CacheEntry> find_in_cache(std::string_view argument, const std::filesystem::path& models = models_folder());
// Deletes it, and the owner's folder if that is empty then.
Status remove_from_cache(const CacheEntry& entry, const std::filesystem::path& models = models_folder());

// The quantisation in a GGUF file's name ("x-Q4_K_M.gguf", "x.q8_0-00001-of-00002.gguf"), in capitals; "" if none.
std::string gguf_quant(std::string_view file_name);
// "x-00002-of-00003.gguf" is part 2 of 3. A file that is not split is part 1 of 1.
struct GgufPart {
  int part = 1;
  int parts = 1;
  std::string stem;  // the name without the part and ".gguf"
};
GgufPart gguf_part(std::string_view file_name);

// "98.4 MB": decimal units, three digits.
std::string human_bytes(uint64_t bytes);

}  // namespace quire::cli
