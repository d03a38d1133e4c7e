// SPDX-License-Identifier: Apache-2.0
// quire devices: lists the devices of this machine, and why others are not available.
#include <cstdio>

#include "backend/cpu/isa_level.h"
#include "backend/cpu/topology.h"
#include "backend/gpu/device.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "kv/memory_plan.h"

namespace quire::cli {
namespace {

json::Value row_of(const char* device) {
  json::Value row{json::Object{}};
  row.set("device", device);
  return row;
}

json::Value cpu_row() {
  json::Value row = row_of("cpu");
  const auto isa = cpu::choose_isa("");
  row.set("available", isa.ok());
  if (!isa.ok()) {
    row.set("why", isa.error().message);
    return row;
  }
  row.set("name", std::string(cpu::name(*isa)));
  row.set("architecture", std::string(cpu::name(*isa)));
  row.set("compute_units", int64_t{cpu::choose_cpus().threads});
  if (const auto memory = kv::available_memory(); memory.ok()) {
    row.set("memory_bytes", memory->total);
    row.set("free_bytes", memory->available);
  }
  return row;
}

json::Value gpu_row(const char* device, const Result<std::unique_ptr<gpu::Device>>& opened) {
  json::Value row = row_of(device);
  row.set("available", opened.ok());
  if (!opened.ok()) {
    row.set("why", opened.error().message);
    return row;
  }
  const gpu::DeviceInfo& info = (*opened)->info();
  row.set("name", info.name);
  row.set("architecture", info.architecture);
  row.set("compute_units", int64_t{info.compute_units});
  row.set("memory_bytes", static_cast<int64_t>(info.memory_bytes));
  row.set("free_bytes", static_cast<int64_t>((*opened)->free_bytes()));
  row.set("unified_memory", info.unified);
  return row;
}

void print_row(const json::Value& row, bool chosen) {
  const std::string device = row.find("device")->as_string();
  if (!row.find("available")->as_bool()) {
    std::printf("  %-9s not available: %s\n", device.c_str(), row.find("why")->as_string().c_str());
    return;
  }
  std::string text = row.find("name")->as_string();
  if (device != "cpu") text += ", " + row.find("architecture")->as_string();
  const char* units = device == "cpu" || device == "emulator" ? " threads" : " compute units";
  text += ", " + std::to_string(row.find("compute_units")->as_int()) + units;
  if (const json::Value* memory = row.find("memory_bytes")) {
    text +=
        ", " + kv::format_bytes(memory->as_int()) + ", " + kv::format_bytes(row.find("free_bytes")->as_int()) + " free";
  }
  if (device == "emulator") text += " (runs GPU kernels on the CPU; slow, for tests)";
  std::printf("%s %-9s %s\n", chosen ? "*" : " ", device.c_str(), text.c_str());
}

int devices(bool as_json) {
  json::Array rows;
  rows.push_back(cpu_row());
  rows.push_back(gpu_row("cuda", gpu::open_cuda(0)));
  rows.push_back(gpu_row("metal", gpu::open_metal(0)));
  rows.push_back(gpu_row("emulator", gpu::open_emulator()));
  // What --device auto chooses.
  const auto there = [&](size_t i) { return rows[i].find("available")->as_bool(); };
  const size_t chosen = there(1) ? 1 : there(2) ? 2 : 0;
  if (!as_json) {
    for (size_t i = 0; i < rows.size(); ++i) print_row(rows[i], i == chosen);
    std::printf("* is the choice of --device auto.\n");
    return 0;
  }
  json::Value out{json::Object{}};
  out.set("auto", rows[chosen].find("device")->as_string());
  out.set("devices", std::move(rows));
  std::printf("%s\n", json::dump(out, 2).c_str());
  return 0;
}

}  // namespace

void add_devices(CLI::App& app, int& exit_code) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("devices", "List the devices that can run models here, and why others cannot");
  add_switch(*command, "--json", *as_json, "Print a JSON object");
  command->callback([as_json, &exit_code] { exit_code = devices(*as_json); });
}

}  // namespace quire::cli
