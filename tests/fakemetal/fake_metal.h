// SPDX-License-Identifier: Apache-2.0
// What tests may ask of the fake of Metal and tell it to do.
//
// The fake behaves as Metal with its API validation switched on: a misuse ends the program with a line that begins with
// "fake Metal:". Kernels are those of the emulator's table, found by the names in the text that the driver compiles; the
// program decides what the table holds (tests/kernels/msl_table.cc: the flat Metal text itself).
//
// Environment: FAKE_METAL_DEFER=1 runs committed work only when somebody waits for it, as late as a GPU ever could.
// FAKE_METAL_MACOS=14 plays an older system, whose objects lack what came later. At exit a line says what is still
// alive.
#pragma once

#include <cstddef>
#include <string>

namespace fakemetal {

struct Counts {
  long libraries = 0;         // texts compiled
  long pipelines = 0;         // kernels compiled
  long archive_hits = 0;      // kernels found in a binary archive
  long command_buffers = 0;   // committed
  long dispatches = 0;        // run
  long blits = 0;             // copies and fills run
  size_t resident_bytes = 0;  // in residency sets, as last committed
};
Counts counts();

long objects_alive();
std::string objects_alive_by_class();

// The next command buffer that runs fails with this code of MTLCommandBufferError and these words.
void fail_next_command(long code, const std::string& words);
// The device's recommendedMaxWorkingSetSize, 2 GiB at start, and the longest buffer it allows.
void set_working_set(size_t bytes);
void set_longest_buffer(size_t bytes);
// The compiler found that this kernel needs so many registers that only `threads` fit.
void set_thread_limit(const std::string& kernel, int threads);

}  // namespace fakemetal
