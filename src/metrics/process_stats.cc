// SPDX-License-Identifier: Apache-2.0
// Reads the process's figures from /proc/self on Linux and from getrusage elsewhere.
#include "metrics/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace quire::metrics {
namespace {

std::string read_text(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Since Linux 6.2 the size of /proc/self/fd is the number of open files; before that it is 0 and the folder is listed.
std::optional<double> open_files() {
  struct stat status {};
  if (stat("/proc/self/fd", &status) != 0) return std::nullopt;
  if (status.st_size > 0) return static_cast<double>(status.st_size);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (!folder) return std::nullopt;
  int count = -3;  // without ".", ".." and the descriptor of the listing itself
  while (readdir(folder.get()) != nullptr) ++count;
  return count;
}

// When the machine was started, in seconds of Unix time.
std::optional<double> boot_time() {
  std::istringstream lines(read_text("/proc/stat"));
  std::string line;
  while (std::getline(lines, line)) {
    if (line.rfind("btime ", 0) == 0) return std::stod(line.substr(6));
  }
  return std::nullopt;
}

// In /proc/self/stat, fields 20 to 22 after the name (which may contain spaces and brackets) are the start time, the
// virtual size and the resident pages.
void read_stat(ProcessStats& stats) {
  const std::string text = read_text("/proc/self/stat");
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 19; ++i) fields >> skipped;
  double start = 0, virtual_bytes = 0, resident_pages = 0;
  if (!(fields >> start >> virtual_bytes >> resident_pages)) return;
  stats.virtual_bytes = virtual_bytes;
  stats.resident_bytes = resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
  static const std::optional<double> booted = boot_time();
  if (booted) stats.start_time = *booted + start / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

ProcessStats read_process_stats() {
  ProcessStats stats;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) stats.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  read_stat(stats);
  stats.open_fds = open_files();
  rlimit limit{};
  if (stats.open_fds && getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = static_cast<double>(limit.rlim_cur);
  return stats;
}

}  // namespace quire::metrics
