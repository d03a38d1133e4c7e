// SPDX-License-Identifier: Apache-2.0
// kSanitized: for tests that may do less where each step takes several times as long.
#pragma once

#if defined(__has_feature)  // clang's way to say it; gcc has macros
#define QUIRE_HAS_SANITIZER (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_HAS_SANITIZER 1
#else
#define QUIRE_HAS_SANITIZER 0
#endif

namespace quire {

inline constexpr bool kSanitized = QUIRE_HAS_SANITIZER;

// How many of `count` random trials to make: a sanitizer sees the same lines in a quarter of them.
constexpr int trials(int count) {
  return kSanitized ? (count + 3) / 4 : count;
}

}  // namespace quire
