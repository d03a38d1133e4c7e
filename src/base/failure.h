// SPDX-License-Identifier: Apache-2.0
// The bodies of FailureOf, for the one file that instantiates it for a type of errors.
#pragma once

#include <atomic>

#include "base/check.h"
#include "base/result.h"

namespace quire {

template <typename E>
struct FailureOf<E>::Shared {
  E error;
  std::atomic<int> holders{1};
};

template <typename E>
FailureOf<E>::FailureOf(const E& error) : shared_(new Shared{error}) {}

template <typename E>
FailureOf<E>::FailureOf(E&& error) : shared_(new Shared{std::move(error)}) {}

template <typename E>
const E& FailureOf<E>::get() const {
  QUIRE_CHECK(shared_ != nullptr, "a result without an error was asked for its error");
  return shared_->error;
}

template <typename E>
void FailureOf<E>::share() noexcept {
  shared_->holders.fetch_add(1, std::memory_order_relaxed);
}

template <typename E>
void FailureOf<E>::forget() noexcept {
  if (shared_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared_;
}

template <typename E>
void FailureOf<E>::no_value() const {
  check_failed("result.h", 0, "ok()", get().message.c_str());
}

}  // namespace quire
