// SPDX-License-Identifier: Apache-2.0
// metal-cpp (Apple's C++ face of Metal) as the driver uses it, and the autorelease pool that its temporaries need.
//
// The headers are not part of this repository: on a Mac and on Linux alike they come from PyPI's macOS wheel of
// mlx-metal (scripts/lib.sh fetches them into the build folder). On Linux they compile against stand-ins for the
// Objective-C runtime (tests/fakemetal/stubs), so that the driver runs there, on a fake of Metal.
#pragma once

#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>

namespace quire::metal {

// Objects whose method's name does not begin with new, alloc, copy or create belong to the innermost pool of the thread
// and die with it. The engine's threads have no pool of their own, so each function that asks Metal for such an object
// opens one; what must live longer is retained (NS::RetainPtr).
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
