// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic that every folder needs: division that rounds up, and rounding up to a multiple.
#pragma once

#include <type_traits>

namespace quire {

// Both REQUIRE a >= 0 (n >= 0), a divisor > 0, and a sum of the two that T can hold. They are always inlined: kernels
// that are compiled once per ISA level must not share functions (backend/cpu/isa/declare.h).
template <typename T>
[[gnu::always_inline]] constexpr inline T ceil_div(T a, std::type_identity_t<T> b) {
  return (a + b - 1) / b;
}
template <typename T>
[[gnu::always_inline]] constexpr inline T round_up(T n, std::type_identity_t<T> unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace quire
