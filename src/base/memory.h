// SPDX-License-Identifier: Apache-2.0
// Controls how malloc keeps memory that was freed.
#pragma once

namespace quire {

// Returns freed memory that malloc still keeps in its arenas to the system. Takes some milliseconds after a burst; does
// nothing with a C library other than glibc. Any thread may call it.
void trim_malloc();

// Makes malloc map large blocks from the system, however often they are freed (by default glibc keeps them after the
// first time), so that the buffers of a burst leave no holes in the heap. Call it once when a server starts.
void mmap_large_blocks();

}  // namespace quire
