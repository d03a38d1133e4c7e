// SPDX-License-Identifier: Apache-2.0
// Stand-in for Apple's header: a type that metal-cpp mentions.
#pragma once

struct CGSize {
  double width, height;
};
