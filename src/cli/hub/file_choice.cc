// SPDX-License-Identifier: Apache-2.0
// Chooses the files of a model by their names.
#include "cli/hub/file_choice.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "base/strings.h"
#include "cli/hub/model_cache.h"

namespace quire::cli {
namespace {

// Small and good types first; then larger, smaller and unquantised ones.
constexpr std::array<std::string_view, 19> kQuantOrder = {
    "Q4_K_M", "Q4_K_S", "Q4_1",   "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0",
    "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16",   "F16",    "FP16", "F32",  "FP32"};

bool at_top(std::string_view path) {
  return path.find('/') == std::string_view::npos;
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

// Files beside the weights: configuration, tokenizer and templates.
bool is_companion(std::string_view path) {
  if (path.starts_with("additional_chat_templates/") && path.ends_with(".jinja")) return true;
  if (!at_top(path)) return false;
  return path.ends_with(".json") || path.ends_with(".jinja") || path == "tokenizer.model" || path == "merges.txt" ||
         path == "vocab.txt" || path.starts_with("LICENSE");
}

void sort_small_first(std::vector<HubFile>& files) {
  std::stable_sort(files.begin(), files.end(), [](const HubFile& a, const HubFile& b) { return a.size < b.size; });
}

Result<FileChoice> choose_included(const std::vector<HubFile>& all, const ChoiceOptions& options) {
  FileChoice choice;
  for (const auto& file : all) {
    const auto matches = [&](const std::string& glob) { return glob_matches(glob, file.path); };
    if (std::any_of(options.include.begin(), options.include.end(), matches)) choice.files.push_back(file);
  }
  if (choice.files.empty()) {
    return not_found({"no file of ", options.name, " matches --include ", joined(options.include)});
  }
  sort_small_first(choice.files);
  return choice;
}

FileChoice choose_safetensors(const std::vector<HubFile>& all) {
  // Some repositories have the weights twice (consolidated.safetensors and model-*.safetensors): use the latter.
  const bool has_model = std::any_of(all.begin(), all.end(), [](const HubFile& file) {
    return file.path.starts_with("model") && at_top(file.path) && file.path.ends_with(".safetensors");
  });
  FileChoice choice;
  for (const auto& file : all) {
    const bool is_weights =
        at_top(file.path) && file.path.ends_with(".safetensors") && (!has_model || file.path.starts_with("model"));
    if (is_weights || is_companion(file.path)) choice.files.push_back(file);
  }
  sort_small_first(choice.files);
  return choice;
}

// The GGUF files by quantisation. Projectors and importance matrices are not models.
std::map<std::string, std::vector<HubFile>> gguf_groups(const std::vector<HubFile>& all) {
  std::map<std::string, std::vector<HubFile>> groups;
  for (const auto& file : all) {
    const std::string name = file.path.substr(file.path.rfind('/') + 1);
    if (!name.ends_with(".gguf") || name.find("mmproj") != std::string::npos ||
        name.find("imatrix") != std::string::npos) {
      continue;
    }
    const std::string quant = gguf_quant(name);
    groups[quant.empty() ? name : quant].push_back(file);
  }
  return groups;
}

Result<FileChoice> choose_gguf(const std::map<std::string, std::vector<HubFile>>& groups,
                               const ChoiceOptions& options) {
  std::vector<std::string> names;
  for (const auto& [name, files] : groups) names.push_back(name);
  auto chosen = groups.end();
  if (!options.quant.empty()) {
    chosen = groups.find(upper(options.quant));
    if (chosen == groups.end()) {
      return not_found({options.name, " has no ", options.quant, " GGUF file; it has ", joined(names)});
    }
  } else if (groups.size() == 1) {
    chosen = groups.begin();
  } else {
    for (const auto quant : kQuantOrder) {
      if (chosen == groups.end()) chosen = groups.find(std::string(quant));
    }
  }
  if (chosen == groups.end()) {
    return invalid_argument(
        {options.name, " has several GGUF files (", joined(names), "): choose one with --quant or --include"});
  }
  // Several files of one quantisation are parts of one split file or different models; do not guess between models.
  std::set<std::string> stems;
  std::vector<std::string> paths;
  for (const auto& file : chosen->second) {
    stems.insert(gguf_part(file.path).stem);
    paths.push_back(file.path);
  }
  if (stems.size() > 1) {
    return invalid_argument(
        {options.name, " has several ", chosen->first, " files (", joined(paths), "): choose with --include"});
  }
  FileChoice choice;
  choice.files = chosen->second;
  sort_small_first(choice.files);
  if (groups.size() > 1 && options.quant.empty()) {
    choice.note = chosen->first + " of " + joined(names) + " (choose another with --quant)";
  }
  return choice;
}

}  // namespace

Result<FileChoice> choose_files(const std::vector<HubFile>& all, const ChoiceOptions& options) {
  if (!options.include.empty()) return choose_included(all, options);
  const auto has = [&](auto&& predicate) {
    return std::any_of(all.begin(), all.end(), [&](const HubFile& file) { return predicate(file.path); });
  };
  const bool safetensors =
      has([](const std::string& path) { return at_top(path) && path.ends_with(".safetensors"); }) &&
      has([](const std::string& path) { return path == "config.json"; });
  const auto groups = gguf_groups(all);
  if (safetensors && options.quant.empty()) return choose_safetensors(all);
  if (!groups.empty()) return choose_gguf(groups, options);
  if (!options.quant.empty()) {
    return not_found({options.name, " has no GGUF files, so --quant ", options.quant, " does not apply"});
  }
  return unsupported({options.name,
                      " has neither safetensors with a config.json nor GGUF files (other formats are not supported); "
                      "--include chooses files by name"});
}

namespace {

// Matches one [...] of a glob; pattern[at] is just after '['. Returns the index after ']', or npos if it is not closed.
size_t match_class(std::string_view pattern, size_t at, char c, bool& matched) {
  const bool negated = at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^');
  if (negated) ++at;
  bool found = false;
  const size_t first = at;
  while (at < pattern.size() && (pattern[at] != ']' || at == first)) {
    char low = pattern[at];
    char high = low;
    if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
      high = pattern[at + 2];
      at += 2;
    }
    const auto u = [](char x) { return static_cast<unsigned char>(x); };
    if (u(low) <= u(c) && u(c) <= u(high)) found = true;
    ++at;
  }
  if (at >= pattern.size()) return std::string_view::npos;
  matched = found != negated;
  return at + 1;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view path) {
  // Greedy, backtracking only to the last star: constant memory, at worst quadratic time.
  size_t p = 0;
  size_t s = 0;
  size_t star = std::string_view::npos;
  size_t star_at = 0;
  while (s < path.size()) {
    bool matched = false;
    size_t next = p;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_at = s;
      continue;
    }
    if (p < pattern.size() && pattern[p] == '[') {
      next = match_class(pattern, p + 1, path[s], matched);
      if (next == std::string_view::npos) {  // no closing bracket: an ordinary character
        matched = path[s] == '[';
        next = p + 1;
      }
    } else if (p < pattern.size()) {
      matched = pattern[p] == '?' || pattern[p] == path[s];
      next = p + 1;
    }
    if (matched) {
      p = next;
      ++s;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      s = ++star_at;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > 1024 || path.front() == '/') return false;
  for (const unsigned char c : path) {
    if (c < 0x20 || c == 0x7f || c == '\\') return false;
  }
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t slash = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, slash - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 200 || part.starts_with(".quire-pull")) {
      return false;
    }
    begin = slash + 1;
  }
  return !path.ends_with(".part") && !path.ends_with(".part.etag");
}

}  // namespace quire::cli
