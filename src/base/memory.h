// SPDX-License-Identifier: Apache-2.0
// Memory that the allocator keeps for later use.
#pragma once

namespace quire {

// Gives memory that was freed, but that malloc keeps in its arenas, back to the system. It takes some milliseconds
// after a burst, and does nothing with a C library other than glibc. Any thread.
void give_back_memory();

}  // namespace quire
