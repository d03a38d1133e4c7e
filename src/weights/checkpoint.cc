// SPDX-License-Identifier: Apache-2.0
// Finds the files of a checkpoint at the path that the user named.
#include "weights/checkpoint.h"

#include <algorithm>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "weights/file_sniff.h"

namespace quire::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr size_t kMaxFiles = 100'000;

// The files of a folder by kind; names are sorted, so that messages do not depend on the file system.
struct Listing {
  std::vector<std::string> safetensors;
  std::vector<std::string> gguf;
  std::vector<std::string> pytorch;
  std::vector<std::string> unfinished;  // left by an interrupted download
  bool has_index = false;
  bool has_config = false;
  bool empty = true;
};

Result<Listing> list_folder(const fs::path& folder) {
  Listing out;
  std::error_code error;
  size_t count = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (++count > kMaxFiles) return invalid_argument({in_quotes(folder.string()), " has too many files to be a model"});
    out.empty = false;
    const std::string name = it->path().filename().string();
    if (name.starts_with(".")) continue;  // such as "._model.gguf" in archives made on a Mac
    const std::string extension = it->path().extension().string();
    if (extension == ".safetensors") out.safetensors.push_back(name);
    if (extension == ".gguf") out.gguf.push_back(name);
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") out.pytorch.push_back(name);
    if (extension == ".incomplete" || extension == ".part" || extension == ".aria2") out.unfinished.push_back(name);
    out.has_index = out.has_index || name == kIndexName;
    out.has_config = out.has_config || name == "config.json";
  }
  if (error) return unavailable({"cannot list ", in_quotes(folder.string()), ": ", error.message()});
  for (auto* names : {&out.safetensors, &out.gguf, &out.pytorch, &out.unfinished}) {
    std::sort(names->begin(), names->end());
  }
  return out;
}

// "'a', 'b' and 3 more".
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) out += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  if (names.size() > kShown) out += " and " + std::to_string(names.size() - kShown) + " more";
  return out;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Result<CheckpointFiles> locate_safetensors(const fs::path& folder, const Listing& listing) {
  // The order of Hugging Face: the single file if it exists, else the index. A repository may have a second copy of the
  // weights under another name.
  if (contains(listing.safetensors, kSingleName)) {
    return CheckpointFiles{CheckpointFormat::kSafetensors, folder, folder / kSingleName, false};
  }
  if (listing.has_index) return CheckpointFiles{CheckpointFormat::kSafetensors, folder, folder / kIndexName, true};
  if (listing.safetensors.size() == 1) {
    return CheckpointFiles{CheckpointFormat::kSafetensors, folder, folder / listing.safetensors[0], false};
  }
  return not_found({in_quotes(folder.string()), " has the safetensors files ", some_of(listing.safetensors), " but no ",
                    kIndexName, " that says which tensor is where: fetch it too, or name one file"});
}

// One GGUF model: a file, or the parts of a split set.
Result<CheckpointFiles> locate_gguf(const fs::path& folder, const Listing& listing) {
  std::set<std::string> models;  // file names, the first part for a split set
  for (const std::string& name : listing.gguf) {
    auto part = parse_gguf_split_name(name);
    if (part) part->number = 1;
    models.insert(part ? gguf_split_name(*part) : name);
  }
  if (models.size() > 1) {
    return invalid_argument({in_quotes(folder.string()), " has several GGUF models (",
                             some_of({models.begin(), models.end()}), "): name the one to use"});
  }
  return CheckpointFiles{CheckpointFormat::kGguf, folder, folder / *models.begin(), false};
}

Result<CheckpointFiles> locate_in_folder(const fs::path& folder) {
  QUIRE_ASSIGN(const Listing listing, list_folder(folder));
  if (!listing.safetensors.empty() || listing.has_index) return locate_safetensors(folder, listing);
  if (!listing.gguf.empty()) return locate_gguf(folder, listing);
  const std::string where = in_quotes(folder.string());
  if (listing.empty) return not_found({where, " is an empty folder: it should hold a model"});
  if (!listing.pytorch.empty()) {
    return unsupported({where, " has its weights in PyTorch's format (", some_of(listing.pytorch),
                        "): convert them to safetensors, or get the model's safetensors or GGUF files"});
  }
  if (!listing.unfinished.empty()) {
    return not_found({where, " has only unfinished downloads (", some_of(listing.unfinished), "): fetch it again"});
  }
  if (listing.has_config) {
    return not_found({where, " has a config.json but no weights (*.safetensors or *.gguf): fetch them, or use ",
                      "--load-format dummy for random ones"});
  }
  return not_found({where, " holds no model: there is no *.safetensors and no *.gguf in it"});
}

// A .safetensors file that belongs to its folder's checkpoint stands for the whole checkpoint, else for itself.
Result<CheckpointFiles> locate_safetensors_file(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const CheckpointFiles alone{CheckpointFormat::kSafetensors, folder, file, false};
  QUIRE_ASSIGN(const Listing listing, list_folder(folder));
  if (!listing.has_index || file.filename() == kSingleName) return alone;
  QUIRE_ASSIGN(const std::vector<std::string> shards, safetensors_index_files(folder / kIndexName));
  if (!contains(shards, file.filename().string())) return alone;
  return CheckpointFiles{CheckpointFormat::kSafetensors, folder, folder / kIndexName, true};
}

}  // namespace

Result<CheckpointFiles> locate_checkpoint(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found || path.empty()) {
    return not_found({"there is no model at ", in_quotes(path.string()), ": no such file or folder"});
  }
  if (error) return unavailable({"cannot access ", in_quotes(path.string()), ": ", error.message()});
  if (fs::is_directory(status)) return locate_in_folder(path);
  if (!fs::is_regular_file(status)) {
    return invalid_argument({in_quotes(path.string()), " is neither a file nor a folder"});
  }
  if (path.extension() == ".gguf") {
    return CheckpointFiles{CheckpointFormat::kGguf, path.has_parent_path() ? path.parent_path() : fs::path("."), path,
                           false};
  }
  if (path.extension() == ".safetensors") return locate_safetensors_file(path);
  if (path.filename() == kIndexName || path.filename() == "config.json") {
    return locate_in_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
  }
  QUIRE_ASSIGN(const std::shared_ptr<const MappedFile> map, MappedFile::open(path));
  const auto bytes = map->bytes();
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 4));
  if (head == "GGUF") {  // the file of a blob store is named by its hash, without an extension
    return CheckpointFiles{CheckpointFormat::kGguf, path.has_parent_path() ? path.parent_path() : fs::path("."), path,
                           false};
  }
  if (const auto instead = recognise_wrong_file(bytes)) return corrupt({in_quotes(path.string()), " ", *instead});
  return unsupported({in_quotes(path.string()),
                      " is not a model that quire reads: give a folder with safetensors files, ", "or a .gguf file"});
}

Result<Checkpoint> open_checkpoint(const fs::path& path) {
  Checkpoint out;
  QUIRE_ASSIGN(out.files, locate_checkpoint(path));
  if (out.files.format == CheckpointFormat::kGguf) {
    QUIRE_ASSIGN(out.gguf, GgufSource::open(out.files.file));
    out.weights = out.gguf;
  } else if (out.files.sharded) {
    QUIRE_ASSIGN(out.weights, SafetensorsSource::open_sharded(out.files.file));
  } else {
    QUIRE_ASSIGN(out.weights, SafetensorsSource::open(out.files.file));
  }
  return out;
}

}  // namespace quire::weights
