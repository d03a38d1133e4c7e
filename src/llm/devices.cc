// SPDX-License-Identifier: Apache-2.0
// From --device and a rank to a GPU.
#include "llm/devices.h"

#include <algorithm>
#include <charconv>

#include "backend/gpu/device.h"

namespace quire::llm {
namespace {

constexpr const char* kDeviceKinds[] = {"auto", "cpu", "cuda", "metal", "emulator"};

// Of this host, through all engines whose GPUs are their own.
int rank_here(const Options& options, int part) {
  if (options.processes.group != nullptr) return options.processes.host_rank;
  return options.engine * static_cast<int>(options.ranks()) + part;
}
int ranks_here(const Options& options) {
  if (options.processes.group != nullptr) return options.processes.host_ranks;
  return static_cast<int>(options.engines * options.ranks());
}

}  // namespace

Status check_gpus(const Options& options, const DeviceChoice& choice, const Backend& gpu) {
  if (options.engines > 1 && options.processes.group != nullptr) {
    return invalid_argument({"--data-parallel-size is ", options.engines,
                             ", but GPUs of several engines belong to one process: leave out mpirun, or start a server "
                             "for each engine behind a router"});
  }
  const int ranks = ranks_here(options);
  if (ranks == 1 || !gpu.describe().starts_with("cuda")) return {};
  const auto named = static_cast<int>(choice.indices.size());
  const std::string what = std::to_string(ranks) + (options.ranks() == 1 ? " engines" : " ranks on this host");
  if (named > 0 && named < ranks) {
    return invalid_argument(
        {"--device ", options.device, " names ", named, " GPUs, but there are ", what, ": name one for each"});
  }
  QUIRE_ASSIGN(const int devices, gpu::count_cuda());
  if (named == 0 && devices < ranks) {
    return invalid_argument({"there are ", what, " (--tensor-parallel-size times --pipeline-parallel-size",
                             options.engines > 1 ? " times --data-parallel-size" : "", "), but ", devices,
                             " CUDA devices: lower one of the flags, name a GPU several times (--device cuda:0,0), or "
                             "use --device cpu"});
  }
  return {};
}

int DeviceChoice::index(int rank) const {
  return indices.empty() ? rank : indices[std::min(static_cast<size_t>(rank), indices.size() - 1)];
}

int DeviceChoice::sharing(int rank, int begin, int end) const {
  int out = 0;
  for (int r = begin; r < end; ++r) out += index(r) == index(rank) ? 1 : 0;
  return out;
}

Result<DeviceChoice> parse_device(const std::string& text) {
  DeviceChoice out;
  const size_t colon = text.find(':');
  out.kind = text.substr(0, colon);
  const bool known = std::find(std::begin(kDeviceKinds), std::end(kDeviceKinds), out.kind) != std::end(kDeviceKinds);
  const Error error = invalid_argument(
      {"--device is '", text, "'; choose auto, cpu, cuda, metal or emulator, or name GPUs as in cuda:1 or cuda:0,1"});
  if (!known || (colon != std::string::npos && out.kind != "cuda")) return error;
  if (colon == std::string::npos) return out;
  const char* at = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  for (;; ++at) {
    const auto [after, code] = std::from_chars(at, end, out.indices.emplace_back());
    if (code != std::errc() || out.indices.back() < 0 || (after != end && *after != ',')) return error;
    at = after;
    if (at == end) return out;
  }
}

Result<std::unique_ptr<Backend>> open_gpu(const Options& options, const DeviceChoice& choice, int part) {
  return gpu::make_gpu_backend(choice.kind, choice.index(rank_here(options, part)));
}

MemoryRanks ranks_on_memory(const Options& options, const Backend& backend) {
  const auto ranks = static_cast<int>(options.ranks());
  int here = 0, end = ranks_here(options);
  if (options.processes.group == nullptr) {
    // The engines of a CPU divide what a rank gets by the plan. Those of GPUs are loaded one after the other.
    if (backend.host_memory()) {
      end = ranks;
    } else {
      here = options.engine * ranks;
    }
  }
  const auto choice = parse_device(options.device);
  if (!choice.ok() || !backend.describe().starts_with("cuda")) return {.before = here, .all = end};
  const int rank = rank_here(options, 0);
  return {.before = choice->sharing(rank, 0, here), .all = choice->sharing(rank, 0, end)};
}

bool share_memory(const Options& options, const Backend& gpu, int engine) {
  const auto choice = parse_device(options.device);
  if (!choice.ok() || !gpu.describe().starts_with("cuda")) return true;
  const auto ranks = static_cast<int>(options.ranks());
  return choice->sharing(0, engine * ranks, (engine + 1) * ranks) > 0;
}

}  // namespace quire::llm
