// SPDX-License-Identifier: Apache-2.0
// digest_rows on the CPU: threads take pieces of rows, whose sums are added.
#include "backend/cpu/cpu_backend.h"

namespace quire::cpu {

void CpuBackend::digest_rows(const DigestRowsArgs& args) {
  check(args);
  constexpr int64_t kPieceChunks = kElementsPerPiece / kRowDigestChunk;
  const int64_t chunks = row_digest_chunks(args.x.cols);
  const int64_t pieces = ceil_div(chunks, kPieceChunks);  // of a row
  const auto count = static_cast<int64_t>(args.rows.size()) * pieces;
  digest_sums_.assign(static_cast<size_t>(count), {});
  pool_.for_each_piece(
      count, std::max<int64_t>(4, ceil_div(count, 4 * pool_.threads())), [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = i % pieces * kPieceChunks;
          kernels_.row_digest(args.x.row_f32(args.rows[static_cast<size_t>(i / pieces)]), args.x.cols, first,
                              std::min(first + kPieceChunks, chunks), digest_sums_[static_cast<size_t>(i)]);
        }
      });
  for (size_t r = 0; r < args.rows.size(); ++r) {
    RowDigestSums sum;
    for (const RowDigestSums& part : std::span(digest_sums_).subspan(r * static_cast<size_t>(pieces)).first(pieces)) {
      sum.high += part.high;
      sum.low += part.low;
    }
    args.out[r] = row_digest_of(sum, args.x.cols);
  }
}

}  // namespace quire::cpu
