// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels with seeded errors.
#pragma once

struct BadParams {
  int n;
  float t[4];
};
