// SPDX-License-Identifier: Apache-2.0
// The micro-benchmark of linear: the cases of linear_cases.h, timed on every ISA level.
#pragma once

namespace quire {

// Flags: --isa, --types, --rows, --shapes NxK (each a comma-separated list; all by default), --threads, --seconds (a
// case). Prints one line a case; returns an exit code.
int bench_kernels(int argc, const char* const* argv);

}  // namespace quire
