// SPDX-License-Identifier: Apache-2.0
// The whole program as one function. A header of its own, since CLI11, which command.h includes, takes seconds to
// compile.
#pragma once

namespace quire::cli {

// What the program does with its arguments; returns the exit code.
int run_program(int argc, const char* const* argv);

}  // namespace quire::cli
