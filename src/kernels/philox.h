// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al. 2011): four random words of a counter and a key, as base/philox.h computes them on the
// host. No kernels here.
#pragma once

#include "kernels/compat/dialect.h"

// The upper 32 bits of a product.
FN uint philox_high(uint a, uint b) {
  const uint a0 = a & 0xffffu, a1 = a >> 16, b0 = b & 0xffffu, b1 = b >> 16;
  const uint low = a0 * b0, middle = a1 * b0 + (low >> 16), other = a0 * b1 + (middle & 0xffffu);
  return a1 * b1 + (middle >> 16) + (other >> 16);
}

FN uint4 philox_words(uint4 counter, uint k0, uint k1) {
  uint x = counter.x, y = counter.y, z = counter.z, w = counter.w;
  for (int round = 0; round < 10; round++) {
    const uint high0 = philox_high(0xD2511F53u, x), low0 = 0xD2511F53u * x;
    const uint high1 = philox_high(0xCD9E8D57u, z), low1 = 0xCD9E8D57u * z;
    x = high1 ^ y ^ k0;
    y = low1;
    z = high0 ^ w ^ k1;
    w = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(x, y, z, w);
}

FN uint philox_word(uint4 words, int j) {
  return j == 0 ? words.x : j == 1 ? words.y : j == 2 ? words.z : words.w;
}
