// SPDX-License-Identifier: Apache-2.0
// metal-cpp (Apple's C++ interface to Metal) as the driver uses it, and the autorelease pool for its temporary objects.
//
// The headers are not part of this repository. On a Mac and on Linux alike they come from PyPI's macOS wheel of
// mlx-metal (scripts/lib.sh puts them into the build folder). On Linux they are compiled against stubs of the
// Objective-C runtime (tests/fakemetal/stubs), so that the driver can run there, on a fake of Metal.
#pragma once

#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>

namespace quire::metal {

// An object from a method whose name does not begin with new, alloc, copy or create belongs to the thread's innermost
// pool and is released with it. The engine's threads have no pool of their own, so each function that gets such objects
// from Metal opens one; what must live longer is retained (NS::RetainPtr).
class AutoreleasePool {
 public:
  AutoreleasePool() : pool_(NS::AutoreleasePool::alloc()->init()) {}
  ~AutoreleasePool() { pool_->release(); }
  AutoreleasePool(const AutoreleasePool&) = delete;
  AutoreleasePool& operator=(const AutoreleasePool&) = delete;

 private:
  NS::AutoreleasePool* pool_;
};

}  // namespace quire::metal
