// SPDX-License-Identifier: Apache-2.0
// Reads and writes the record of a pull.
#include "cli/hub/pull_record.h"

#include <algorithm>
#include <limits>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/json.h"

namespace quire::cli {
namespace {

constexpr size_t kMaxRecordBytes = size_t{16} << 20;

}  // namespace

PullRecord PullRecord::load(const std::filesystem::path& folder) {
  PullRecord record;
  const auto path = folder / kPullRecordName;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return record;
  const auto text = read_file(path, kMaxRecordBytes);
  if (!text.ok()) return record;
  const auto parsed = json::parse(*text);
  if (!parsed.ok()) return record;
  const json::Value* files = parsed->find("files");
  if (files == nullptr || !files->is_object()) return record;
  const auto name = json::get_string_or(*parsed, "name", "");
  if (name.ok()) record.name = *name;
  const auto revision = json::get_string_or(*parsed, "revision", "");
  if (revision.ok()) record.revision = *revision;
  for (const auto& [path_in_repo, entry] : files->as_object()) {
    File file;
    const auto size = json::get_int_or(entry, "size", 0, 0, std::numeric_limits<int64_t>::max());
    const auto digest = json::get_string_or(entry, "digest", "");
    const auto done = json::get_bool_or(entry, "done", false);
    if (!size.ok() || !digest.ok() || !done.ok()) continue;
    file.size = static_cast<uint64_t>(*size);
    file.digest = *digest;
    file.done = *done;
    record.files.emplace(path_in_repo, std::move(file));
  }
  return record;
}

Status PullRecord::save(const std::filesystem::path& folder) const {
  json::Object entries;
  for (const auto& [path, file] : files) {
    json::Object entry;
    entry.emplace_back("size", static_cast<int64_t>(file.size));
    entry.emplace_back("digest", file.digest);
    entry.emplace_back("done", file.done);
    entries.emplace_back(path, std::move(entry));
  }
  json::Object top;
  top.emplace_back("name", name);
  top.emplace_back("revision", revision);
  top.emplace_back("files", std::move(entries));
  const auto path = folder / kPullRecordName;
  const auto fresh = folder / (std::string(kPullRecordName) + ".new");
  QUIRE_TRY(write_file(fresh, json::dump(json::Value(std::move(top)), 1) + "\n"));
  std::error_code failed;
  std::filesystem::rename(fresh, path, failed);
  if (failed) return Error{ErrorCode::kInternal, "cannot rename " + fresh.string() + ": " + failed.message()};
  return {};
}

bool PullRecord::complete() const {
  return std::all_of(files.begin(), files.end(), [](const auto& entry) { return entry.second.done; });
}

}  // namespace quire::cli
