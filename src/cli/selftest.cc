// SPDX-License-Identifier: Apache-2.0
// quire selftest: loads every GPU kernel on this machine and compares every op with the CPU. The output is meant for
// bug reports.
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>

#include "backend/gpu/selftest.h"
#include "base/env.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "kv/memory_plan.h"

namespace quire::cli {
namespace {

constexpr const char* kDevices = "auto (the first of cuda and metal), cuda, metal or emulator";

Result<std::unique_ptr<gpu::Device>> open_first() {
  auto cuda = gpu::open_cuda(0);
  if (cuda.ok()) return cuda;
  auto metal = gpu::open_metal(0);
  if (metal.ok()) return metal;
  return unavailable({"there is no GPU to test: cuda: ", cuda.error().message, "; metal: ", metal.error().message,
                      "; --device emulator runs the kernels on the CPU"});
}

Result<std::unique_ptr<gpu::Device>> open_device(const std::string& name) {
  if (name == "cuda") return gpu::open_cuda(0);
  if (name == "metal") return gpu::open_metal(0);
  if (name == "emulator") return gpu::open_emulator();
  if (name != "cpu") return open_first();
  // QUIRE_DEVICE was set for other commands; a user who runs the test wants a GPU to be tested anyway.
  if (env("QUIRE_DEVICE") != "cpu") {
    return invalid_argument({"--device is cpu, which the selftest compares GPUs with; choose ", kDevices});
  }
  auto device = open_first();
  if (device.ok()) {
    std::fprintf(stderr, "quire: QUIRE_DEVICE is cpu, which the selftest compares GPUs with; it uses %s\n",
                 (*device)->info().name.c_str());
  }
  return device;
}

std::string system_line() {
  utsname name = {};
  if (uname(&name) != 0) return "unknown";
  return std::string(name.sysname) + " " + name.release + " " + name.machine;
}

const char* api_name(gpu::Api api) {
  return api == gpu::Api::kCuda ? "cuda" : api == gpu::Api::kMetal ? "metal" : "emulator";
}

void print_check(const gpu::SelftestCheck& check) {
  std::printf("%-22s %-18s %9.1e %9.1e %9.2f  %s%s%s\n", check.op.c_str(), check.types.c_str(), check.error,
              check.bound, check.milliseconds, check.passed() ? "ok" : "FAILED", check.note.empty() ? "" : ": ",
              check.note.c_str());
  std::fflush(stdout);  // shows how far it got if it crashes
}

void print_summary(const gpu::SelftestReport& report) {
  for (const gpu::BrokenKernel& kernel : report.broken) {
    std::printf("kernel %s FAILED:\n%s\n", kernel.name.c_str(), kernel.log.c_str());
  }
  if (!report.broken.empty()) {
    std::printf("%zu of %zu kernels failed, so no op was run.\n", report.broken.size(), report.kernels);
    return;
  }
  const auto failed = static_cast<size_t>(std::count_if(report.checks.begin(), report.checks.end(),
                                                        [](const gpu::SelftestCheck& c) { return !c.passed(); }));
  std::printf("%zu kernels were loaded in %.2f s. ", report.kernels, report.kernel_seconds);
  if (failed == 0) {
    std::printf("All %zu checks passed.\n", report.checks.size());
  } else {
    std::printf("%zu of %zu checks FAILED.\n", failed, report.checks.size());
  }
}

json::Value report_json(const gpu::DeviceInfo& info, const gpu::SelftestReport& report) {
  json::Value device{json::Object{}};
  device.set("device", api_name(info.api));
  device.set("name", info.name);
  device.set("architecture", info.architecture);
  device.set("compute_units", int64_t{info.compute_units});
  device.set("memory_bytes", static_cast<int64_t>(info.memory_bytes));
  json::Array broken, checks;
  for (const gpu::BrokenKernel& kernel : report.broken) {
    json::Value row{json::Object{}};
    row.set("name", kernel.name);
    row.set("log", kernel.log);
    broken.push_back(std::move(row));
  }
  for (const gpu::SelftestCheck& check : report.checks) {
    json::Value row{json::Object{}};
    row.set("op", check.op);
    row.set("types", check.types);
    if (check.error == check.error) row.set("error", check.error);  // JSON has no NaN
    row.set("bound", check.bound);
    row.set("milliseconds", check.milliseconds);
    if (!check.note.empty()) row.set("note", check.note);
    row.set("passed", check.passed());
    checks.push_back(std::move(row));
  }
  json::Value out{json::Object{}};
  out.set("version", QUIRE_VERSION);
  out.set("system", system_line());
  out.set("device", std::move(device));
  out.set("kernels", static_cast<int64_t>(report.kernels));
  out.set("kernel_seconds", report.kernel_seconds);
  out.set("broken_kernels", std::move(broken));
  out.set("checks", std::move(checks));
  out.set("passed", report.passed());
  return out;
}

int selftest(const std::string& name, bool as_json) {
  auto device = open_device(name);
  if (!device.ok()) return report(device.error());
  const gpu::DeviceInfo info = (*device)->info();
  if (!as_json) {
    std::printf("quire %s, %s\n%s: %s, %s, %d compute units, %s\n\n%-22s %-18s %9s %9s %9s  %s\n", QUIRE_VERSION,
                system_line().c_str(), api_name(info.api), info.name.c_str(), info.architecture.c_str(),
                info.compute_units, kv::format_bytes(static_cast<int64_t>(info.memory_bytes)).c_str(), "op", "types",
                "error", "bound", "ms", "verdict");
    std::fflush(stdout);
  }
  const auto tested = gpu::run_selftest(std::move(device).value(), [&](const gpu::SelftestCheck& check) {
    if (!as_json) print_check(check);
  });
  if (!tested.ok()) return report(tested.error());
  if (as_json) {
    std::printf("%s\n", json::dump(report_json(info, *tested), 2).c_str());
  } else {
    print_summary(*tested);
  }
  return tested->passed() ? 0 : kExitFailure;
}

}  // namespace

void add_selftest(CLI::App& app, int& exit_code) {
  struct Flags {
    std::string device = "auto";
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "selftest", "Load every GPU kernel on this machine and compare each op with the CPU, for bug reports");
  command->add_option("--device", flags->device, kDevices)
      ->envname(env_name("--device"))
      ->check(CLI::IsMember({"auto", "cpu", "cuda", "metal", "emulator"}));
  add_switch(*command, "--json", flags->json, "Print a JSON object");
  command->callback([flags, &exit_code] { exit_code = selftest(flags->device, flags->json); });
}

}  // namespace quire::cli
