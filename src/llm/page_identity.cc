// SPDX-License-Identifier: Apache-2.0
// Names the pages of a model, and remembers the digests of weights.
#include "llm/page_identity.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"
#include "base/program.h"
#include "weights/weights_digest.h"

namespace quire::llm {
namespace {

namespace fs = std::filesystem;

// Enough for the metadata of any GGUF file, which comes first in it.
constexpr size_t kMetadataBytes = size_t{64} << 20;
// A file that was written this recently may be written again within the same tick of the file system's clock.
constexpr int64_t kSettledSeconds = 3;

std::string digest_of_start(const fs::path& path) {
  const auto file = MappedFile::open(path);
  if (!file.ok()) return "none";
  const auto bytes = (*file)->bytes();
  return digest_of(bytes.first(std::min(bytes.size(), kMetadataBytes))).hex();
}

// The names, sizes, times and numbers of the files in a folder, one per line; "" if one of them is too new to be sure.
std::string file_states(const fs::path& folder) {
  std::vector<std::string> lines;
  const int64_t now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    struct stat info {};
    if (::stat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
#ifdef __APPLE__
    const timespec &written = info.st_mtimespec, &changed = info.st_ctimespec;
#else
    const timespec &written = info.st_mtim, &changed = info.st_ctim;
#endif
    if (std::max<int64_t>(written.tv_sec, changed.tv_sec) + kSettledSeconds > now) return "";
    lines.push_back(fmt::format("{} {} {}.{} {}.{} {} {}\n", it->path().filename().string(), info.st_size,
                                static_cast<int64_t>(written.tv_sec), written.tv_nsec,
                                static_cast<int64_t>(changed.tv_sec), changed.tv_nsec,
                                static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino)));
  }
  if (error) return "";
  std::ranges::sort(lines);
  std::string out;
  for (const std::string& line : lines) out += line;
  return out;
}

fs::path folder_of(const Options& options) {
  std::error_code ignored;
  if (!fs::is_regular_file(options.model, ignored)) return options.model;
  return options.model.parent_path().empty() ? "." : options.model.parent_path();
}

std::string layout_text(const kv::CacheLayout& layout) {
  std::string out = fmt::format("slots {} of {} bytes\n", layout.slots, layout.slot_bytes);
  for (const kv::CacheLayout::Group& group : layout.groups) {
    out += fmt::format("group {} {} {} {} {}\n", static_cast<int>(group.kind), group.block_size, group.window,
                       group.layers, group.used_bytes);
  }
  for (const kv::CacheLayout::Layer& layer : layout.layers)
    out += fmt::format("layer {} {}\n", layer.group, layer.slot);
  return out;
}

}  // namespace

std::string config_digest(const Options& options) {
  std::error_code ignored;
  const bool is_file = fs::is_regular_file(options.model, ignored);
  return digest_of(digest_of_start(folder_of(options) / "config.json") +
                   (is_file ? digest_of_start(options.model) : ""))
      .hex();
}

std::string remembered_weights_digest(const weights::WeightSource& source, const fs::path& folder,
                                      const fs::path& memo) {
  const std::string states = file_states(folder);
  // Its first line is the digest of the rest, so that a file that was cut off or damaged is not believed.
  const auto signed_text = [&](const std::string& digest) {
    const std::string rest = digest + "\n" + states;
    return digest_of(rest).hex() + "\n" + rest;
  };
  if (const auto text = read_file(memo); text.ok() && !states.empty() && text->size() > 66) {
    const std::string digest = text->substr(33, 32);
    if (*text == signed_text(digest)) return digest;
  }
  const auto start = std::chrono::steady_clock::now();
  std::string digest = weights::weights_digest(source);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("KV offload: the weights were read in {:.2f} s for their digest", seconds);
  if (states.empty() || states != file_states(folder)) return digest;
  const fs::path fresh = memo.string() + ".new";
  std::error_code error;
  if (write_file(fresh, signed_text(digest)).ok()) fs::rename(fresh, memo, error);
  return digest;
}

std::function<std::string()> page_identity(const Options& options, const model::ModelFiles& files,
                                           const Backend& backend, const kv::MemoryPlan& plan, bool drafts) {
  const std::string device = backend.describe();
  std::string text = "program " + program_digest().hex() + "\n";
  text += "backend " + device.substr(0, device.find(' ')) + "\n";
  text += "isa " + backend.isa() + "\n";
  text += "dtype " + options.dtype + "\n";
  text += std::string("kv_cache_dtype ") + kv::name(plan.dtype) + "\n";
  text += "max_model_len " + std::to_string(plan.max_model_len) + "\n";  // some models scale RoPE by it
  text += layout_text(plan.layout);
  text += "lora " + options.lora_dtype + " " + std::to_string(options.max_lora_rank) + "\n";
  if (drafts) text += "draft layers of " + options.speculative_config + "\n";
  std::error_code ignored;
  const bool is_file = fs::is_regular_file(options.model, ignored);
  const fs::path folder = folder_of(options);
  text += "config " + digest_of_start(folder / "config.json") + "\n";
  text += "model " + (is_file ? digest_of_start(options.model) : std::string("none")) + "\n";
  if (files.source->is_dummy()) {
    text += "weights dummy, seed " + std::to_string(options.seed.value_or(0)) + " " + options.quantization + "\n";
    return [text] { return text; };
  }
  const fs::path memo =
      options.kv_offload_dir / ("weights-" + digest_of(fs::absolute(options.model, ignored).string()).hex());
  return [text, source = files.source, folder, memo] {
    return text + "weights " + remembered_weights_digest(*source, folder, memo) + "\n";
  };
}

Result<kv::OffloadOptions> offload_options(const Options& options, const Backend& backend) {
  kv::OffloadOptions out;
  if (options.kv_offload_dir.empty() != options.kv_offload_size.empty()) {
    return invalid_argument(
        "--kv-offload-dir and --kv-offload-size belong together: a folder, and how many bytes its files may have");
  }
  if ((!options.kv_offload_dir.empty() || !options.kv_offload_host_bytes.empty()) && !options.enable_prefix_caching) {
    return invalid_argument(
        "--kv-offload-dir and --kv-offload-host-bytes need the prefix cache; leave out --no-enable-prefix-caching");
  }
  const auto bytes_of = [](const std::string& text, const char* flag) -> Result<int64_t> {
    QUIRE_ASSIGN(const int64_t bytes, kv::parse_bytes(text, flag));
    if (bytes < 1) return invalid_argument({flag, " must be at least 1 byte"});
    return bytes;
  };
  if (!options.kv_offload_dir.empty()) {
    out.folder = options.kv_offload_dir;
    QUIRE_ASSIGN(out.folder_bytes, bytes_of(options.kv_offload_size, "--kv-offload-size"));
  }
  if (!options.kv_offload_host_bytes.empty()) {
    QUIRE_ASSIGN(out.host_bytes, bytes_of(options.kv_offload_host_bytes, "--kv-offload-host-bytes"));
    if (backend.host_memory()) {
      return invalid_argument(
          "--kv-offload-host-bytes is for GPUs; on a CPU the KV cache is in host memory already "
          "(--kv-cache-memory-bytes)");
    }
  }
  return out;
}

}  // namespace quire::llm
