// SPDX-License-Identifier: Apache-2.0
// The constants of row digests (ops/row_digest.h), which the GPU's kernel shares. Includes nothing.
#pragma once

enum RowDigestConstant {
  kRowDigestLanes = 32,
  kRowDigestChunk = 1024,           // words
  kRowDigestStart = 0x85EBCA6Bu,    // between the first states of two lanes
  kRowDigestFactor1 = 0x9E3779B1u,  // odd, so that a product can be undone
  kRowDigestFactor2 = 0xC2B2AE3Du
};
