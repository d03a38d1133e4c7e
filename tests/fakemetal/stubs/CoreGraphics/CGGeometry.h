// SPDX-License-Identifier: Apache-2.0
// Stub of Apple's header: a type that metal-cpp refers to.
#pragma once

struct CGSize {
  double width, height;
};
