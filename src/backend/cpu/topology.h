// SPDX-License-Identifier: Apache-2.0
// Which of the machine's CPUs the cpu backend works on, when nobody says how many threads it should have.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace quire::cpu {

struct CpuChoice {
  int threads = 1;
  // The CPUs that the workers keep to; empty: wherever the system puts them. Set where some CPUs are better left alone
  // (efficiency cores, other NUMA nodes).
  std::vector<int> cpus;
  std::string reason;  // "8 threads on 24 CPUs: ..."; empty when there is one thread for each usable CPU
};

// From the CPUs that the process may use (sorted): performance cores where cores differ, of one NUMA node (the one with
// the most of them, which reads its own memory), one thread per physical core (a second one shares its matrix unit and
// caches) unless that leaves a single thread, no more than the control group's quota. `root` stands for "/" in tests; a
// file that is missing means "no difference".
CpuChoice choose_cpus(const std::filesystem::path& root, std::span<const int> allowed);
// The same for this process on this machine.
CpuChoice choose_cpus();

// The threads and CPUs of one of `parts` backends that divide a choice among them; the first ones get what is left
// over. REQUIRES: 0 <= part < parts <= all.threads.
CpuChoice part_of(const CpuChoice& all, int part, int parts);

// Lets the calling thread run on these CPUs alone; best effort.
void keep_to_cpus(std::span<const int> cpus);

}  // namespace quire::cpu
