// SPDX-License-Identifier: Apache-2.0
// Finds models by path, or by name in the cache.
#include "cli/hub/model_cache.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/env.h"
#include "base/strings.h"
#include "base/suggest.h"
#include "cli/hub/pull_record.h"

namespace quire::cli {
namespace fs = std::filesystem;
namespace {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return ascii_lower(a) == ascii_lower(b);
}

bool ends_with_ignoring_case(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && equal_ignoring_case(text.substr(text.size() - end.size()), end);
}

bool is_regular(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed);
}

bool is_folder(const fs::path& path) {
  std::error_code failed;
  return fs::is_directory(path, failed);
}

// The entries of a folder, sorted by name; empty if it cannot be read.
std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    entries.push_back(it->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// Temporary files of a download are not part of a model.
bool is_finished_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return !name.starts_with(".") && !name.ends_with(".part") && !name.ends_with(".part.etag") && is_regular(path);
}

uint64_t folder_bytes(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code failed;
  for (fs::recursive_directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    if (!is_finished_file(it->path())) continue;
    std::error_code unknown;
    const uint64_t size = fs::file_size(it->path(), unknown);
    if (!unknown) bytes += size;
  }
  return bytes;
}

// The GGUF files directly in a folder. A split file is listed by its first part, and only if all parts exist.
std::vector<std::string> gguf_files_of(const std::vector<fs::path>& entries) {
  std::set<std::string> all;
  for (const auto& entry : entries) {
    if (is_finished_file(entry) && ends_with_ignoring_case(entry.filename().string(), ".gguf")) {
      all.insert(entry.filename().string());
    }
  }
  std::vector<std::string> files;
  for (const auto& name : all) {
    const GgufPart part = gguf_part(name);
    if (part.part != 1) continue;
    const auto same_split = [&](const std::string& other) {
      const GgufPart p = gguf_part(other);
      return p.stem == part.stem && p.parts == part.parts;
    };
    if (part.parts == 1 || std::count_if(all.begin(), all.end(), same_split) == part.parts) files.push_back(name);
  }
  return files;
}

// Describes a folder if it is a model.
std::optional<CachedModel> look_at(const fs::path& folder, std::string name) {
  CachedModel model;
  const auto entries = sorted_entries(folder);
  model.gguf_files = gguf_files_of(entries);
  model.has_config = is_regular(folder / "config.json");
  model.complete = PullRecord::load(folder).complete();
  if (model.gguf_files.empty() && !model.has_config && model.complete) return std::nullopt;
  model.name = std::move(name);
  model.folder = folder;
  return model;
}

// Whether the text after ":" means this GGUF file: its name, its name without ".gguf", or its quantisation.
bool variant_means(std::string_view variant, const std::string& file) {
  return equal_ignoring_case(variant, file) || equal_ignoring_case(std::string(variant) + ".gguf", file) ||
         (!gguf_quant(file).empty() && equal_ignoring_case(variant, gguf_quant(file)));
}

// The short names of the GGUF files of a model.
std::vector<std::string> variants_of(const CachedModel& model) {
  std::vector<std::string> words;
  for (const auto& file : model.gguf_files) {
    const std::string quant = gguf_quant(file);
    const auto same = [&](const std::string& other) { return gguf_quant(other) == quant; };
    const bool unique = std::count_if(model.gguf_files.begin(), model.gguf_files.end(), same) == 1;
    words.push_back(!quant.empty() && unique ? quant : file);
  }
  return words;
}

// Whether the model is the folder, and not a .gguf file in it.
bool is_whole_folder(const CachedModel& model) {
  return model.has_config && (model.gguf_files.empty() || is_regular(model.folder / "model.safetensors") ||
                              is_regular(model.folder / "model.safetensors.index.json"));
}

// The path to load from a model's folder. `called` is the name that the user gave.
Result<fs::path> choose(const CachedModel& model, std::string_view variant, const std::string& called) {
  if (!variant.empty()) {
    std::vector<std::string> meant;
    for (const auto& file : model.gguf_files) {
      if (variant_means(variant, file)) meant.push_back(file);
    }
    if (meant.size() == 1) return model.folder / meant[0];
    if (meant.size() > 1) {
      return invalid_argument({"'", variant, "' matches several files of ", called, " (", joined(meant),
                               "): name one of them after the colon"});
    }
    const std::string has = model.gguf_files.empty() ? "no GGUF file" : joined(variants_of(model));
    return not_found({called, " has ", has, " in the cache, not '", variant, "'; get it with: quire pull ", model.name,
                      " --quant ", variant});
  }
  const bool whole_folder = is_whole_folder(model);
  if (whole_folder && model.complete) return model.folder;
  if (!whole_folder && model.gguf_files.size() == 1) return model.folder / model.gguf_files[0];
  if (!whole_folder && model.gguf_files.size() > 1) {
    return invalid_argument({called, " has several GGUF files: choose one with '", called, ":", variants_of(model)[0],
                             "' (it has ", joined(variants_of(model)), ")"});
  }
  return not_found({called, " is only partly downloaded; finish it with: quire pull ", model.name});
}

// The cached name that is nearest to a misspelt one, as a question; else "".
std::string suggestion(std::string_view name, const std::vector<CachedModel>& cached) {
  std::vector<std::string> known;
  for (const auto& model : cached) {
    known.push_back(model.name);
    if (const size_t slash = model.name.rfind('/'); slash != std::string::npos) {
      known.push_back(model.name.substr(slash + 1));
    }
  }
  return did_you_mean(name, known);
}

// How to get the default model: with the script of the source tree that the program was built in, else from the hub.
std::string default_model_command() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  const fs::path script = program.parent_path().parent_path() / "scripts" / "get-default-model";
  if (!failed && is_regular(script)) return script.string();
  return "quire pull " + std::string(kDefaultModelRepository);
}

std::string cached_names(const std::vector<CachedModel>& cached) {
  if (cached.empty()) return "no models are cached";
  std::vector<std::string> names;
  for (const auto& model : cached) names.push_back(model.name);
  return "cached models: " + joined(names);
}

// Looks a name (without ":QUANT") up in the cache: the full "owner/name" first, else only the last part.
Result<const CachedModel*> find_cached(const std::string& name, std::string_view argument,
                                       const std::vector<CachedModel>& cached) {
  std::vector<const CachedModel*> full;
  std::vector<const CachedModel*> last_part;
  for (const auto& model : cached) {
    if (equal_ignoring_case(model.name, name)) full.push_back(&model);
    const std::string last = model.name.substr(model.name.rfind('/') + 1);
    if (equal_ignoring_case(last, name)) last_part.push_back(&model);
  }
  const auto& found = full.empty() ? last_part : full;
  if (found.size() == 1) return found[0];
  for (const auto* model : found) {
    if (model->name == name) return model;
  }
  if (found.size() > 1) {
    std::vector<std::string> names;
    for (const auto* model : found) names.push_back(model->name);
    return invalid_argument({"'", name, "' matches several cached models: choose one of ", joined(names)});
  }
  const std::string what = "'" + std::string(argument) + "' is not a file, a folder or a cached model";
  const std::string meant = suggestion(name, cached);
  if (!meant.empty()) return not_found({what, meant, " (", cached_names(cached), ")"});
  return not_found({what, "; ", cached_names(cached), "; get it with: quire pull ", name});
}

Result<fs::path> resolve_cached(std::string_view argument, const std::vector<CachedModel>& cached) {
  const size_t colon = argument.find(':');
  const std::string_view variant = colon == std::string_view::npos ? "" : argument.substr(colon + 1);
  QUIRE_ASSIGN(const CachedModel* found, find_cached(std::string(argument.substr(0, colon)), argument, cached));
  return choose(*found, variant, found->name);
}

// The files of a GGUF model, which may be split, by its first part.
std::vector<fs::path> parts_of(const fs::path& first) {
  const GgufPart wanted = gguf_part(first.filename().string());
  std::vector<fs::path> out;
  for (const fs::path& entry : sorted_entries(first.parent_path())) {
    const GgufPart part = gguf_part(entry.filename().string());
    if (is_finished_file(entry) && ends_with_ignoring_case(entry.filename().string(), ".gguf") &&
        part.stem == wanted.stem && part.parts == wanted.parts) {
      out.push_back(entry);
    }
  }
  return out;
}

uint64_t gguf_bytes(const fs::path& first) {
  uint64_t bytes = 0;
  for (const fs::path& part : parts_of(first)) {
    std::error_code failed;
    const uint64_t size = fs::file_size(part, failed);
    if (!failed) bytes += size;
  }
  return bytes;
}

// An argument that exists on disk; nothing if it is not a model, since it may still be a cached name.
std::optional<Result<fs::path>> resolve_path(const std::string& argument) {
  const fs::path path(argument);
  if (is_folder(path)) {
    const auto model = look_at(path, argument);
    if (!model) return std::nullopt;
    return choose(*model, "", argument);
  }
  if (!is_regular(path)) return std::nullopt;
  if (ends_with_ignoring_case(argument, ".gguf")) return Result<fs::path>(path);
  if (ends_with_ignoring_case(argument, ".safetensors")) {
    return Result<fs::path>(invalid_argument({"'", argument,
                                              "' is a single safetensors file: give the folder that has it "
                                              "and its config.json"}));
  }
  return std::nullopt;
}

}  // namespace

fs::path models_folder() {
  return home_folder() / "models";
}

std::vector<CachedModel> list_cached_models(const fs::path& models) {
  std::vector<CachedModel> found;
  for (const auto& entry : sorted_entries(models)) {
    const std::string owner = entry.filename().string();
    if (!is_folder(entry) || owner.starts_with(".")) continue;
    if (auto model = look_at(entry, owner)) {
      found.push_back(std::move(*model));
      continue;
    }
    for (const auto& inner : sorted_entries(entry)) {
      const std::string name = inner.filename().string();
      if (!is_folder(inner) || name.starts_with(".")) continue;
      if (auto model = look_at(inner, owner + "/" + name)) found.push_back(std::move(*model));
    }
  }
  for (auto& model : found) model.bytes = folder_bytes(model.folder);
  return found;
}

std::vector<LoadableModel> list_loadable_models(const fs::path& models) {
  std::vector<LoadableModel> out;
  for (const CachedModel& model : list_cached_models(models)) {
    if (is_whole_folder(model)) {
      if (model.complete) out.push_back({model.name, model.folder, model.bytes});
      continue;
    }
    const std::vector<std::string> variants = variants_of(model);
    for (size_t i = 0; i < model.gguf_files.size(); ++i) {
      const std::string name = variants.size() > 1 ? model.name + ":" + variants[i] : model.name;
      const fs::path path = model.folder / model.gguf_files[i];
      out.push_back({name, path, gguf_bytes(path)});
    }
  }
  for (const std::string& file : gguf_files_of(sorted_entries(models))) {
    out.push_back({gguf_part(file).stem, models / file, gguf_bytes(models / file)});
  }
  std::sort(out.begin(), out.end(), [](const LoadableModel& a, const LoadableModel& b) { return a.name < b.name; });
  return out;
}

Result<CacheEntry> find_in_cache(std::string_view argument, const fs::path& models) {
  const auto cached = list_cached_models(models);
  const size_t colon = argument.find(':');
  const std::string name(argument.substr(0, colon));
  auto found = find_cached(name, argument, cached);
  if (!found.ok()) {
    if (found.error().code != ErrorCode::kNotFound) return found.failure();
    const bool path = name.find('\0') == std::string::npos && (is_folder(name) || is_regular(name));
    const std::string hint = path ? "; quire rm does not delete other files" : suggestion(name, cached);
    return not_found(
        {"'", argument, "' is not a model of the cache in ", models.string(), hint, " (", cached_names(cached), ")"});
  }
  const CachedModel& model = **found;
  if (colon == std::string_view::npos) return CacheEntry{model.name, model.folder, model.bytes};
  QUIRE_ASSIGN(const fs::path file, choose(model, argument.substr(colon + 1), model.name));
  const bool only = model.gguf_files.size() == 1 && !is_whole_folder(model);
  if (only) return CacheEntry{model.name, model.folder, model.bytes};
  return CacheEntry{model.name + ":" + std::string(argument.substr(colon + 1)), file, gguf_bytes(file)};
}

Status remove_from_cache(const CacheEntry& entry, const fs::path& models) {
  std::error_code failed;
  const fs::path home = fs::canonical(models, failed), inside = fs::canonical(entry.path.parent_path(), failed);
  if (failed || std::mismatch(home.begin(), home.end(), inside.begin(), inside.end()).first != home.end()) {
    return invalid_argument(
        {"'", entry.path.string(), "' leads out of the cache in ", models.string(), "; delete it yourself"});
  }
  const auto gone = [&](const fs::path& path) -> Status {
    fs::remove_all(path, failed);  // of a link, only the link
    if (!failed) return {};
    return unavailable({"cannot delete '", path.string(), "': ", failed.message()});
  };
  if (is_regular(entry.path)) {
    const fs::path folder = entry.path.parent_path();
    PullRecord record = PullRecord::load(folder);
    const std::vector<fs::path> parts = parts_of(entry.path);
    bool recorded = false;
    for (const fs::path& part : parts) recorded = record.files.erase(part.filename().string()) > 0 || recorded;
    if (recorded) QUIRE_TRY(record.save(folder));
    for (const fs::path& part : parts) QUIRE_TRY(gone(part));
    return {};
  }
  QUIRE_TRY(gone(entry.path));
  const fs::path owner = entry.path.parent_path();
  if (owner != models && fs::is_empty(owner, failed) && !failed) fs::remove(owner, failed);
  return {};
}

Result<fs::path> resolve_model(std::string_view argument, const fs::path& models) {
  const auto cached = list_cached_models(models);
  if (argument.empty()) {
    // Where scripts/get-default-model stores it, else where quire pull does.
    for (const std::string_view name : {kDefaultModel, kDefaultModelRepository}) {
      for (const auto& model : cached) {
        if (model.name == name) return choose(model, "", model.name);
      }
    }
    return not_found({"the default model ", kDefaultModel, " is not in ", models.string(),
                      "; get it with: ", default_model_command(), ", or name another model"});
  }
  if (argument.find('\0') != std::string_view::npos) return invalid_argument("a model's name contains a zero byte");
  const std::string text(argument);
  if (const auto at_path = resolve_path(text)) return *at_path;
  const bool looks_like_path =
      text.front() == '/' || text.front() == '.' || text.front() == '~' || ends_with_ignoring_case(text, ".gguf");
  if (is_folder(text) && (looks_like_path || text.back() == '/')) {
    return not_found({"the folder '", text, "' has neither config.json nor a .gguf file"});
  }
  if (is_regular(text)) return invalid_argument({"'", text, "' is neither a folder nor a .gguf file"});
  if (looks_like_path && text.find(':') == std::string::npos) {
    std::error_code error;
    const char* what = fs::exists(text, error) ? "' is neither a folder nor a regular file; " : "' does not exist; ";
    return not_found({"'", text, what, cached_names(cached)});
  }
  auto found = resolve_cached(argument, cached);
  if (!found.ok() && is_folder(text)) {
    return not_found({"the folder '", text, "' has neither config.json nor a .gguf file"});
  }
  return found;
}

GgufPart gguf_part(std::string_view file_name) {
  GgufPart result;
  std::string_view stem = file_name;
  if (ends_with_ignoring_case(stem, ".gguf")) stem.remove_suffix(5);
  result.stem = std::string(stem);
  // "-00001-of-00003" has a fixed width.
  constexpr size_t kTail = 15;
  if (stem.size() <= kTail) return result;
  const std::string_view tail = stem.substr(stem.size() - kTail);
  const auto digits = [](std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
  };
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !digits(tail.substr(1, 5)) || !digits(tail.substr(10))) {
    return result;
  }
  result.part = std::stoi(std::string(tail.substr(1, 5)));
  result.parts = std::stoi(std::string(tail.substr(10)));
  result.stem = std::string(stem.substr(0, stem.size() - kTail));
  return result;
}

std::string gguf_quant(std::string_view file_name) {
  std::string stem = gguf_part(file_name).stem;
  std::transform(stem.begin(), stem.end(), stem.begin(), [](unsigned char c) { return std::toupper(c); });
  // The last word between dots and dashes that looks like a quantisation.
  size_t end = stem.size();
  while (end > 0) {
    const size_t cut = stem.find_last_of(".-", end - 1);
    const size_t begin = cut == std::string::npos ? 0 : cut + 1;
    const std::string word = stem.substr(begin, end - begin);
    if (word == "F32" || word == "F16" || word == "BF16" || word == "FP16" || word == "FP32" || word == "MXFP4") {
      return word;
    }
    const size_t q = word.starts_with("IQ") || word.starts_with("TQ") ? 2 : word.starts_with("Q") ? 1 : 0;
    if (q > 0 && word.size() > q + 1 && std::isdigit(static_cast<unsigned char>(word[q])) && word[q + 1] == '_') {
      return word;
    }
    if (cut == std::string::npos || cut == 0) break;
    end = cut;
  }
  return "";
}

std::string human_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, kUnits[unit]);
  return text;
}

}  // namespace quire::cli
