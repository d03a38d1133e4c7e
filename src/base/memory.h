// SPDX-License-Identifier: Apache-2.0
// Memory that the allocator keeps for later use.
#pragma once

namespace quire {

// Gives memory that was freed, but that malloc keeps in its arenas, back to the system. It takes some milliseconds
// after a burst, and does nothing with a C library other than glibc. Any thread.
void give_back_memory();

// Makes malloc take large blocks from the system and give them back when they are freed, however often that happens
// (glibc would keep them after the first), so that the buffers of a burst leave no holes. For a server, at its start.
void keep_large_blocks_apart();

}  // namespace quire
