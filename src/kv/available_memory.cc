// SPDX-License-Identifier: Apache-2.0
// How much memory this process may take: the machine's, within the limits of its control groups.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>

#include "kv/memory_plan.h"

#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

namespace quire::kv {
namespace {

namespace fs = std::filesystem;

// Files in /proc and /sys report no size, so they are read to the end.
std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

std::optional<int64_t> parse_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() || value < 0) return std::nullopt;
  return value;
}

std::optional<int64_t> read_number(const fs::path& path) {
  const auto text = read_text(path);
  return text ? parse_number(*text) : std::nullopt;
}

// The number behind `key` at the start of a line ("MemTotal:   123 kB", "inactive_file 123").
std::optional<int64_t> number_after(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) return parse_number(std::string_view(line).substr(key.size()));
  }
  return std::nullopt;
}

// The files of a control group, in cgroup v1 and v2.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // the key in memory.stat of page cache that the kernel drops first
};
constexpr GroupFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kV2 = {"memory.max", "memory.current", "inactive_file "};

void apply_group(const fs::path& folder, const GroupFiles& files, MemoryInfo& info) {
  const auto limit = read_number(folder / files.limit);  // "max" is no number: no limit
  if (!limit) return;
  info.total = std::min(info.total, *limit);  // a parent group with a higher limit may still have less left
  const int64_t used = read_number(folder / files.usage).value_or(0);
  const auto stat = read_text(folder / "memory.stat");
  const int64_t reclaimable = stat ? number_after(*stat, files.reclaimable).value_or(0) : 0;
  const int64_t held = std::max<int64_t>(0, used - reclaimable);
  info.available = std::min(info.available, std::max<int64_t>(0, *limit - held));
}

// The limits of the group and of all its parents apply. In a container the group's path may be a path of the host that
// does not exist here; the walk then ends at the mount, which is the container's own group.
void apply_groups(const fs::path& mount, std::string_view group, const GroupFiles& files, MemoryInfo& info) {
  fs::path path = fs::path(group).relative_path();
  for (const fs::path& part : path) {
    if (part == "..") path.clear();  // outside of this namespace
    if (path.empty()) break;
  }
  for (; !path.empty(); path = path.parent_path()) apply_group(mount / path, files, info);
  apply_group(mount, files, info);
}

bool lists_memory(std::string_view controllers) {
  return ("," + std::string(controllers) + ",").find(",memory,") != std::string::npos;
}

void apply_control_groups(const fs::path& root, MemoryInfo& info) {
  const auto text = read_text(root / "proc/self/cgroup");
  if (!text) return;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {  // "id:controllers:path"; v2 has id 0 and no controllers
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const std::string_view group = std::string_view(line).substr(second + 1);
    if (controllers.empty()) {
      apply_groups(root / "sys/fs/cgroup", group, kV2, info);
    } else if (lists_memory(controllers)) {
      apply_groups(root / "sys/fs/cgroup/memory", group, kV1, info);
    }
  }
}

Result<MemoryInfo> linux_memory(const fs::path& root) {
  const fs::path path = root / "proc/meminfo";
  const auto text = read_text(path);
  if (!text) return unavailable({"Memory: ", path.string(), " cannot be read; set --kv-cache-memory-bytes."});
  const auto total = number_after(*text, "MemTotal:");
  const auto available = number_after(*text, "MemAvailable:");
  constexpr int64_t kMaxKib = int64_t{1} << 50;
  if (!total || !available || *total > kMaxKib || *available > kMaxKib) {
    return unavailable(
        {"Memory: ", path.string(), " has no usable MemTotal and MemAvailable; set --kv-cache-memory-bytes."});
  }
  MemoryInfo info{*total * 1024, *available * 1024};
  apply_control_groups(root, info);
  return info;
}

#if defined(__APPLE__)
Result<MemoryInfo> apple_memory() {
  int64_t total = 0;
  size_t size = sizeof total;
  vm_statistics64_data_t stats{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (sysctlbyname("hw.memsize", &total, &size, nullptr, 0) != 0 ||
      host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&stats), &count) !=
          KERN_SUCCESS) {
    return unavailable("Memory: the system did not report its size; set --kv-cache-memory-bytes.");
  }
  const int64_t pages = int64_t{stats.free_count} + stats.inactive_count + stats.purgeable_count;
  return MemoryInfo{total, std::min(total, pages * static_cast<int64_t>(vm_page_size))};
}
#endif

}  // namespace

Result<MemoryInfo> available_memory(const fs::path& root) {
#if defined(__APPLE__)
  if (root == "/") return apple_memory();
#endif
  return linux_memory(root);
}

}  // namespace quire::kv
