// SPDX-License-Identifier: Apache-2.0
// Parameters of the tests' own kernels.
#pragma once

struct DialectParams {
  int n, threads;
};
