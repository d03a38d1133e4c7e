// SPDX-License-Identifier: Apache-2.0
// CPU topology from Linux's /sys, and quotas from its control groups.
#include "backend/cpu/topology.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace quire::cpu {
namespace {

namespace fs = std::filesystem;
using Cpus = std::vector<int>;  // sorted

constexpr int kMaxCpus = 1 << 16;
// Cores below this share of the best one's capacity are not used: they would be the last to finish each region. Arm's
// capacities are 1024 for the best core, 700 to 1000 for its middle ones and 150 to 450 for the small ones; frequencies
// of equal cores differ by a few percent (the favoured ones boost higher), those of small cores by a quarter or more.
constexpr double kLeastCapacity = 0.5;
constexpr double kLeastFrequency = 0.8;

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  return std::move(text).str();
}

std::optional<int64_t> read_number(const fs::path& path) {
  const std::string text = read_text(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// "0-3,8,10-11\n"; anything else is an empty list.
Cpus parse_list(const std::string& text) {
  Cpus cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    const char* end = part.data() + part.size();
    const auto [dash, error] = std::from_chars(part.data(), end, first);
    if (error != std::errc()) return {};
    last = first;
    if (dash != end && *dash == '-' && std::from_chars(dash + 1, end, last).ec != std::errc()) return {};
    if (first < 0 || last >= kMaxCpus) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::ranges::sort(cpus);
  return cpus;
}

Cpus common(const Cpus& a, const Cpus& b) {
  Cpus out;
  std::ranges::set_intersection(a, b, std::back_inserter(out));
  return out;
}

fs::path folder_of(const fs::path& root, int cpu) {
  return root / "sys/devices/system/cpu" / ("cpu" + std::to_string(cpu));
}

// Those whose number in `file` is at least `least` of the highest; all of them when one has no such file.
Cpus keep_highest(const fs::path& root, const Cpus& cpus, const char* file, double least) {
  std::vector<int64_t> values;
  for (const int cpu : cpus) {
    const auto value = read_number(folder_of(root, cpu) / file);
    if (!value || *value <= 0) return cpus;
    values.push_back(*value);
  }
  const double highest = static_cast<double>(*std::ranges::max_element(values));
  Cpus out;
  for (size_t i = 0; i < cpus.size(); ++i) {
    if (static_cast<double>(values[i]) >= least * highest) out.push_back(cpus[i]);
  }
  return out;
}

Cpus performance_cores(const fs::path& root, const Cpus& cpus) {
  // Intel's hybrid processors list their two kinds.
  const Cpus fast = common(cpus, parse_list(read_text(root / "sys/devices/cpu_core/cpus")));
  if (!fast.empty()) return fast;
  const Cpus capable = keep_highest(root, cpus, "cpu_capacity", kLeastCapacity);
  return keep_highest(root, capable, "cpufreq/cpuinfo_max_freq", kLeastFrequency);
}

// The largest node's share of the CPUs; the lowest node among equals.
Cpus one_node(const fs::path& root, const Cpus& cpus) {
  Cpus best;
  for (const int node : parse_list(read_text(root / "sys/devices/system/node/online"))) {
    const fs::path folder = root / "sys/devices/system/node" / ("node" + std::to_string(node));
    Cpus here = common(cpus, parse_list(read_text(folder / "cpulist")));
    if (here.size() > best.size()) best = std::move(here);
  }
  return best.empty() ? cpus : best;
}

// How many cores these CPUs are on.
int count_cores(const fs::path& root, const Cpus& cpus) {
  int cores = 0;
  for (const int cpu : cpus) {
    const Cpus siblings = common(cpus, parse_list(read_text(folder_of(root, cpu) / "topology/thread_siblings_list")));
    if (siblings.empty() || siblings.front() == cpu) ++cores;  // a core is counted at its first CPU
  }
  return cores;
}

// The quota of one group in CPUs, if it has one.
std::optional<double> quota_of(const fs::path& folder, bool v2) {
  int64_t quota = 0, period = 0;
  if (v2) {
    std::istringstream line(read_text(folder / "cpu.max"));  // "150000 100000", or "max 100000"
    if (!(line >> quota >> period)) return std::nullopt;
  } else {
    quota = read_number(folder / "cpu.cfs_quota_us").value_or(-1);
    period = read_number(folder / "cpu.cfs_period_us").value_or(0);
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

// The least quota of the process's control group and those above it. In a container the group's path may be one of the
// host that does not exist here; the walk then ends at the mount, which is the container's own group.
std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> least;
  const auto walk = [&](const fs::path& mount, const std::string& group, bool v2) {
    fs::path path = fs::path(group).relative_path();
    if (std::ranges::find(path, fs::path("..")) != path.end()) path.clear();  // outside of what this namespace shows
    for (;; path = path.parent_path()) {
      const auto quota = quota_of(mount / path, v2);
      if (quota) least = std::min(least.value_or(*quota), *quota);
      if (path.empty()) return;
    }
  };
  std::istringstream lines(read_text(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {  // "id:controllers:path"; v2 has id 0 and no controllers
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") walk(root / "sys/fs/cgroup", line.substr(second + 1), true);
    if (controllers.find(",cpu,") != std::string::npos)
      walk(root / "sys/fs/cgroup/cpu", line.substr(second + 1), false);
  }
  return least;
}

std::string explain(int threads, int cpus, const std::string& why) {
  return std::to_string(threads) + (threads == 1 ? " thread on " : " threads on ") + std::to_string(cpus) +
         " CPUs: " + why + "; --threads overrides";
}

}  // namespace

CpuChoice choose_cpus(const fs::path& root, std::span<const int> allowed) {
  const Cpus all(allowed.begin(), allowed.end());
  std::string why;
  const auto because = [&](const std::string& part) { why += (why.empty() ? "" : ", ") + part; };
  const Cpus fast = performance_cores(root, all);
  if (fast.size() < all.size()) because("performance cores only");
  const Cpus near = one_node(root, fast);
  if (near.size() < fast.size()) because("one NUMA node");
  CpuChoice out;
  if (near.size() < all.size()) out.cpus = near;
  out.threads = std::max<int>(1, static_cast<int>(near.size()));
  const int cores = count_cores(root, near);
  if (cores > 1 && cores < out.threads) {
    out.threads = cores;
    because("one thread a core");
  }
  if (const auto quota = cpu_quota(root); quota && std::round(*quota) < out.threads) {
    out.threads = std::max(1, static_cast<int>(std::round(*quota)));
    because("the control group's quota");
  }
  if (why.empty()) return out;
  out.reason = explain(out.threads, static_cast<int>(all.size()), why);
  return out;
}

CpuChoice choose_cpus() {
#if defined(__linux__)
  // The kernel refuses a set that is smaller than its own.
  for (int size = CPU_SETSIZE; size <= kMaxCpus; size *= 2) {
    std::vector<cpu_set_t> set(static_cast<size_t>(size / CPU_SETSIZE));
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) != 0) continue;
    Cpus allowed;
    for (int cpu = 0; cpu < size; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set.data())) allowed.push_back(cpu);
    }
    if (!allowed.empty()) return choose_cpus("/", allowed);
  }
#endif
  CpuChoice out;
  out.threads = std::max<int>(1, static_cast<int>(std::thread::hardware_concurrency()));
#if defined(__APPLE__)
  int fast = 0;
  size_t size = sizeof fast;
  if (sysctlbyname("hw.perflevel0.physicalcpu", &fast, &size, nullptr, 0) == 0 && fast > 0 && fast < out.threads) {
    out.reason = explain(fast, out.threads, "performance cores only");
    out.threads = fast;
  }
#endif
  return out;
}

CpuChoice part_of(const CpuChoice& all, int part, int parts) {
  const auto begin_of = [&](size_t count, int at) {  // of part `at` among `count` things
    const size_t each = count / static_cast<size_t>(parts), more = count % static_cast<size_t>(parts);
    return static_cast<size_t>(at) * each + std::min(static_cast<size_t>(at), more);
  };
  CpuChoice out;
  const auto threads = static_cast<size_t>(all.threads);
  out.threads = std::max(1, static_cast<int>(begin_of(threads, part + 1) - begin_of(threads, part)));
  if (all.cpus.size() < static_cast<size_t>(parts)) return out;
  const auto at = [&](int number) {
    return all.cpus.begin() + static_cast<std::ptrdiff_t>(begin_of(all.cpus.size(), number));
  };
  out.cpus.assign(at(part), at(part + 1));
  return out;
}

void keep_to_cpus(std::span<const int> cpus) {
#if defined(__linux__)
  if (cpus.empty()) return;
  const int highest = *std::ranges::max_element(cpus);
  std::vector<cpu_set_t> set(static_cast<size_t>(highest / CPU_SETSIZE + 1));
  const size_t bytes = set.size() * sizeof(cpu_set_t);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set.data());
  sched_setaffinity(0, bytes, set.data());
#else
  static_cast<void>(cpus);
#endif
}

}  // namespace quire::cpu
