// SPDX-License-Identifier: Apache-2.0
// The argument checks of attention and of the ops that write its pages.
#include "ops/attention.h"

namespace quire {
namespace {

void check_pages(const KvLayer& kv) {
  QUIRE_CHECK(kv.num_kv_heads > 0 && kv.head_dim > 0 && kv.head_dim <= kMaxHeadDim);
  QUIRE_CHECK(kv.v_dim() <= (kv.v_in_k ? kv.head_dim : kMaxHeadDim));
  QUIRE_CHECK(kv.block_size > 0 && kv.block_size % kKvBlockStep == 0);
}

}  // namespace

void check(const AttentionArgs& args) {
  check_pages(args.kv);
  QUIRE_CHECK(args.num_heads > 0 && args.num_heads % args.kv.num_kv_heads == 0);
  check_shape(args.q, args.out.rows, args.num_heads * args.kv.head_dim);
  check_shape(args.out, args.q.rows, args.num_heads * args.kv.v_dim());
  QUIRE_CHECK(args.q.dtype == args.out.dtype && args.window >= 0 && args.soft_cap >= 0);
  QUIRE_CHECK(args.distance_bias == nullptr || args.max_distance > 0);
  QUIRE_CHECK(args.cu_seqlens_q.size() == args.context_lens.size() + 1);
  QUIRE_CHECK(args.block_tables.size() >= args.context_lens.size() * static_cast<size_t>(args.max_blocks));
}

void check(const ReshapeAndCacheArgs& args) {
  const KvLayer& kv = args.kv;
  check_pages(kv);
  check_shape(args.k, std::ssize(args.slot_mapping), kv.num_kv_heads * kv.head_dim);
  if (kv.v_in_k) return;
  check_shape(args.v, args.k.rows, kv.num_kv_heads * kv.v_dim());
  QUIRE_CHECK(args.v.dtype == args.k.dtype);
}

void check_indices(const ReshapeAndCacheArgs& args) {
  for (const int64_t slot : args.slot_mapping) QUIRE_CHECK(slot < args.kv.num_pages * args.kv.block_size);
}

void check(const QkvToCacheArgs& args) {
  const KvLayer& kv = args.kv;
  check_pages(kv);
  check_shape(args.q, std::ssize(args.slot_mapping), args.num_heads * kv.head_dim);
  check_shape(args.k, args.q.rows, kv.num_kv_heads * kv.head_dim);
  check_shape(args.v, args.q.rows, kv.num_kv_heads * kv.v_dim());
  QUIRE_CHECK(args.q.dtype == args.k.dtype && args.q.dtype == args.v.dtype);
}

void check(const MlaToCacheArgs& args) {
  const KvLayer& kv = args.kv;
  check_pages(kv);
  QUIRE_CHECK(kv.v_in_k && kv.num_kv_heads == 1 && args.num_heads > 0 && args.norm != nullptr);
  QUIRE_CHECK(args.rot_dim > 0 && args.rot_dim % 2 == 0 && kv.v_dim() + args.rot_dim == kv.head_dim);
  check_shape(args.q, std::ssize(args.slot_mapping), args.q.cols);
  check_shape(args.latent, args.q.rows, kv.head_dim);
  check_shape(args.q_latent, args.q.rows, args.num_heads * kv.head_dim);
  QUIRE_CHECK(args.q.cols % args.num_heads == 0 && args.q.cols / args.num_heads >= args.rot_dim);
  QUIRE_CHECK(std::ssize(args.positions) == args.q.rows);
  QUIRE_CHECK(args.q.dtype == args.latent.dtype && args.q.dtype == args.q_latent.dtype);
}

}  // namespace quire
