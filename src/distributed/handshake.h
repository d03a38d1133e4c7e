// SPDX-License-Identifier: Apache-2.0
// The first thing that ranks exchange: what must be the same on all of them for the same bits.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "distributed/group.h"

namespace quire::distributed {

// One thing that must be equal on every rank.
struct Fact {
  std::string name;   // "the build", "--dtype": the subject of a sentence
  std::string value;  // longer than 64 bytes: its digest is sent
};

// What every build says of itself: the digest of the running program.
std::vector<Fact> build_facts();

// Exchanges the facts of all ranks, in records of a size that no version changes. If one differs from rank 0's, every
// rank returns the same Error, a sentence that names the first such rank, its host and what differs. Every rank calls
// it.
Status shake_hands(Group& group, const std::vector<Fact>& facts);

}  // namespace quire::distributed
