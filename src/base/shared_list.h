// SPDX-License-Identifier: Apache-2.0
// SharedList: a list that many copies share until one of them changes it.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace quire {

// An immutable vector behind a reference count: copying it costs a pointer, however long it is. edit() is the only way
// to change one, and it copies the elements first if another SharedList still uses them. Any thread may read a copy;
// only one thread at a time may change an object.
template <typename T>
class SharedList {
 public:
  using value_type = T;

  SharedList() = default;
  SharedList(std::vector<T> items)  // NOLINT: implicit on purpose
      : items_(items.empty() ? nullptr : std::make_shared<std::vector<T>>(std::move(items))) {}
  SharedList(std::initializer_list<T> items)
      : items_(items.size() == 0 ? nullptr : std::make_shared<std::vector<T>>(items)) {}

  const std::vector<T>& get() const {
    static const std::vector<T> kNone;
    return items_ != nullptr ? *items_ : kNone;
  }
  operator const std::vector<T>&() const { return get(); }  // NOLINT: implicit on purpose
  auto begin() const { return get().begin(); }
  auto end() const { return get().end(); }
  size_t size() const { return get().size(); }
  bool empty() const { return get().empty(); }
  const T& operator[](size_t i) const { return get()[i]; }
  const T& front() const { return get().front(); }

  std::vector<T>& edit() {
    if (items_ == nullptr) {
      items_ = std::make_shared<std::vector<T>>();
    } else if (items_.use_count() > 1) {
      items_ = std::make_shared<std::vector<T>>(*items_);
    }
    return *items_;
  }

 private:
  std::shared_ptr<std::vector<T>> items_;
};

}  // namespace quire
