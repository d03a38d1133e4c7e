// SPDX-License-Identifier: Apache-2.0
// What tests can read from the fake of Metal and make it do.
//
// The fake behaves like Metal with API validation switched on: a misuse ends the program with a line that begins with
// "fake Metal:". The kernels are those of the flattened Metal sources as the emulator runs them
// (tests/kernels/msl_kernels.h), found by the names in the source that the driver compiles.
//
// Environment: FAKE_METAL_DEFER=1 runs committed work only when somebody waits for it, which is as late as a GPU could.
// FAKE_METAL_MACOS=14 imitates an older system, whose objects lack what came later. At exit a line lists what is still
// alive.
#pragma once

#include <cstddef>
#include <string>

namespace fakemetal {

struct Counts {
  long libraries = 0;         // sources compiled
  long pipelines = 0;         // kernels compiled
  long archive_hits = 0;      // kernels found in a binary archive
  long command_buffers = 0;   // committed
  long dispatches = 0;        // run
  long blits = 0;             // copies and fills run
  size_t resident_bytes = 0;  // in residency sets, as of the last commit
};
Counts counts();

long objects_alive();
std::string objects_alive_by_class();

// Makes the next command buffer that runs fail with this MTLCommandBufferError code and message.
void fail_next_command(long code, const std::string& words);
// Sets the device's recommendedMaxWorkingSetSize (2 GiB at the start), and the longest buffer that it allows.
void set_working_set(size_t bytes);
void set_longest_buffer(size_t bytes);
// Pretends that this kernel needs so many registers that only `threads` threads fit, or that it asks for so many.
void set_thread_limit(const std::string& kernel, int threads);
// Pretends that this kernel declares so many bytes of threadgroup memory.
void set_threadgroup_memory(const std::string& kernel, size_t bytes);

}  // namespace fakemetal
