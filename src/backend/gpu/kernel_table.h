// SPDX-License-Identifier: Apache-2.0
// The table of all kernels that ops launch: their names, element types and parameters. It is resolved when a backend
// opens, so that a kernel that is missing is an error at load.
#pragma once

#include <array>
#include <string>

#include "backend/gpu/device.h"
#include "ops/dtype.h"

// X(id, name, types, parameters). A '#' in a name stands for an element type ("f32", "f16", "bf16"); `types` says for
// which types the kernel exists (KernelTypes of kernel_table.cc).
#define QUIRE_GPU_KERNELS(X)                                                   \
  X(Activation, "activation_#", kAnyType, RowsParams)                          \
  X(Glu, "glu_#", kAnyType, RowsParams)                                        \
  X(ResidualAdd, "residual_add_#_#", kResidualPairs, RowsParams)               \
  X(Scale, "scale_#_#", kPairs, RowsParams)                                    \
  X(SoftCap, "soft_cap_#", kAnyType, RowsParams)                               \
  X(Rope, "rope_#", kAnyType, RopeParams)                                      \
  X(GatherRows, "gather_rows_#", kAnyType, GatherRowsParams)                   \
  X(GatherColumns, "gather_columns_#", kAnyType, GatherColumnsParams)          \
  X(JoinBlocks2, "join_blocks_2", kNoType, JoinBlocksParams)                   \
  X(JoinBlocks4, "join_blocks_4", kNoType, JoinBlocksParams)                   \
  X(JoinBlocks16, "join_blocks_16", kNoType, JoinBlocksParams)                 \
  X(OwnedRows2, "owned_rows_2", kNoType, OwnedRowsParams)                      \
  X(OwnedRows4, "owned_rows_4", kNoType, OwnedRowsParams)                      \
  X(OwnedRows16, "owned_rows_16", kNoType, OwnedRowsParams)                    \
  X(OwnBlocks2, "own_blocks_2", kNoType, OwnBlocksParams)                      \
  X(OwnBlocks4, "own_blocks_4", kNoType, OwnBlocksParams)                      \
  X(OwnBlocks16, "own_blocks_16", kNoType, OwnBlocksParams)                    \
  X(OwnIds, "own_ids", kNoType, OwnIdsParams)                                  \
  X(RmsNorm, "rms_norm_#_#", kPairs, NormParams)                               \
  X(LayerNorm, "layer_norm_#_#", kPairs, NormParams)                           \
  X(GatedRmsNorm, "gated_rms_norm_#", kAnyType, NormParams)                    \
  X(AddNorm, "add_norm_#", k16Bits, AddNormParams)                             \
  X(FillDummy, "fill_dummy_#", kAnyType, DummyParams)                          \
  X(FillDummyCodes, "fill_dummy_codes", kNoType, DummyCodesParams)             \
  X(Embedding, "embedding_#", kAnyType, EmbeddingParams)                       \
  X(ExpandPanels, "expand_panels_#", k16Bits, EmbeddingParams)                 \
  X(LinearF32, "linear_#_any", kF32Only, LinearParams)                         \
  X(LinearFew, "linear_#_few", k16Bits, LinearParams)                          \
  X(LinearMany, "linear_#_many", k16Bits, LinearParams)                        \
  X(LinearAnyFew, "linear_#_any_few", k16Bits, LinearParams)                   \
  X(LinearAnyMany, "linear_#_any_many", k16Bits, LinearParams)                 \
  X(LinearFinish, "linear_finish_#", k16Bits, LinearFinishParams)              \
  X(LinearHeadsF32, "linear_heads_#_any", kF32Only, LinearHeadsParams)         \
  X(LinearHeadsFew, "linear_heads_#_few", k16Bits, LinearHeadsParams)          \
  X(LinearHeadsDeep, "linear_heads_#_deep", k16Bits, LinearHeadsParams)        \
  X(LinearHeadsMany, "linear_heads_#_many", k16Bits, LinearHeadsParams)        \
  X(LinearHeadsAnyFew, "linear_heads_#_any_few", k16Bits, LinearHeadsParams)   \
  X(LinearHeadsAnyMany, "linear_heads_#_any_many", k16Bits, LinearHeadsParams) \
  X(LoraShrink, "lora_shrink_#", kAnyType, LoraParams)                         \
  X(LoraExpand, "lora_expand_#_#", kResidualPairs, LoraParams)                 \
  X(MoeRoute, "moe_route", kNoType, MoeRouteParams)                            \
  X(MoeCount, "moe_count", kNoType, MoeOrderParams)                            \
  X(MoePlace, "moe_place", kNoType, MoeOrderParams)                            \
  X(MoeLoraKeys, "moe_lora_keys", kNoType, MoeLoraKeysParams)                  \
  X(MoeLoraPlace, "moe_lora_place", kNoType, MoeLoraPlaceParams)               \
  X(MoeLinearF32, "moe_linear_#_any", kF32Only, LinearParams)                  \
  X(MoeLinearFew, "moe_linear_#_few", k16Bits, LinearParams)                   \
  X(MoeLinearMany, "moe_linear_#_many", k16Bits, LinearParams)                 \
  X(MoeLinearAnyFew, "moe_linear_#_any_few", k16Bits, LinearParams)            \
  X(MoeLinearAnyMany, "moe_linear_#_any_many", k16Bits, LinearParams)          \
  X(MoeCombine, "moe_combine_#", kAnyType, MoeCombineParams)                   \
  X(ReshapeAndCache, "reshape_and_cache_#", kAnyType, CacheParams)             \
  X(QkvToCache, "qkv_to_cache_#", kAnyType, QkvToCacheParams)                  \
  X(MlaToCache, "mla_to_cache_#", kAnyType, MlaToCacheParams)                  \
  X(AttentionF32, "attention_#", kF32Only, AttentionParams)                    \
  X(AttentionD128, "attention_#_d128", k16Bits, AttentionParams)               \
  X(AttentionD256, "attention_#_d256", k16Bits, AttentionParams)               \
  X(AttentionD576, "attention_#_d576", k16Bits, AttentionParams)               \
  X(AttentionRowsD64, "attention_rows_#_d64", k16Bits, AttentionParams)        \
  X(AttentionRowsD128, "attention_rows_#_d128", k16Bits, AttentionParams)      \
  X(AttentionScores, "attention_scores_#", k16Bits, AttentionParams)           \
  X(AttentionValues, "attention_values_#", k16Bits, AttentionParams)           \
  X(AttentionMerge, "attention_merge_#", kAnyType, AttentionParams)            \
  X(StatePrepare, "state_prepare_#", kAnyType, StateParams)                    \
  X(GatedDeltaNetR128, "gated_delta_net_r128", kNoType, StateParams)           \
  X(GatedDeltaNetR256, "gated_delta_net_r256", kNoType, StateParams)           \
  X(Mamba2R128, "mamba2_r128", kNoType, StateParams)                           \
  X(Mamba2R256, "mamba2_r256", kNoType, StateParams)                           \
  X(GatedDeltaNetR128One, "gated_delta_net_r128_one", kNoType, StateParams)    \
  X(GatedDeltaNetR256One, "gated_delta_net_r256_one", kNoType, StateParams)    \
  X(Mamba2R128One, "mamba2_r128_one", kNoType, StateParams)                    \
  X(Mamba2R256One, "mamba2_r256_one", kNoType, StateParams)                    \
  X(DeltaScores, "delta_scores_#", k16Bits, StateParams)                       \
  X(DeltaChunks, "delta_chunks_#", k16Bits, StateParams)                       \
  X(MambaChunks, "mamba_chunks_#", k16Bits, StateParams)                       \
  X(DeltaKeys, "delta_keys_#", k16Bits, StateParams)                           \
  X(ShortConv, "short_conv_#", kAnyType, ShortConvParams)                      \
  X(SampleLogprobChunks, "sample_logprob_chunks", kNoType, SampleParams)       \
  X(SampleLogprobRows, "sample_logprob_rows", kNoType, SampleParams)           \
  X(SampleDigest, "sample_digest", kNoType, SampleDigestParams)                \
  X(SampleEdits, "sample_edits", kNoType, SampleParams)                        \
  X(SampleChunks, "sample_chunks", kNoType, SampleParams)                      \
  X(SampleBinning, "sample_binning", kNoType, SampleParams)                    \
  X(SampleList, "sample_list", kNoType, SampleParams)                          \
  X(SampleCuts, "sample_cuts", kNoType, SampleParams)                          \
  X(SampleDraws, "sample_draws", kNoType, SampleParams)                        \
  X(SampleRows, "sample_rows", kNoType, SampleParams)                          \
  X(TakeSampled, "take_sampled", kNoType, TakeSampledParams)                   \
  X(SkipAccepted, "skip_accepted", kNoType, SkipAcceptedParams)                \
  QUIRE_HOPPER_KERNELS(X)

// The kernels of kernels/cuda, which only a build for sm_90a has: a backend works without them.
#define QUIRE_HOPPER_KERNELS(X)                                                                                       \
  X(HopperLinearM8D8, "hopper_linear_#_m8_d8", kHopper16Bits, HopperLinearParams)                                     \
  X(HopperLinearM8D24, "hopper_linear_#_m8_d24", kHopper16Bits, HopperLinearParams)                                   \
  X(HopperLinearM16D8, "hopper_linear_#_m16_d8", kHopper16Bits, HopperLinearParams)                                   \
  X(HopperLinearM16D24, "hopper_linear_#_m16_d24", kHopper16Bits, HopperLinearParams)                                 \
  X(HopperLinearM16Wide, "hopper_linear_#_m16_wide", kHopper16Bits, HopperLinearParams)                               \
  X(HopperLinearM32Wide, "hopper_linear_#_m32_wide", kHopper16Bits, HopperLinearParams)                               \
  X(HopperTallN16, "hopper_linear_#_tall_n16", kHopper16Bits, HopperTallParams)                                       \
  X(HopperTallN32, "hopper_linear_#_tall_n32", kHopper16Bits, HopperTallParams)                                       \
  X(HopperTallN48, "hopper_linear_#_tall_n48", kHopper16Bits, HopperTallParams)                                       \
  X(HopperTallN128, "hopper_linear_#_tall_n128", kHopper16Bits, HopperTallParams)                                     \
  X(HopperTallN192, "hopper_linear_#_tall_n192", kHopper16Bits, HopperTallParams)                                     \
  X(HopperTallN256, "hopper_linear_#_tall_n256", kHopper16Bits, HopperTallParams)                                     \
  X(HopperTallN32Pair, "hopper_linear_#_tall_n32_pair", kHopper16Bits, HopperTallParams)                              \
  X(HopperTallN48Pair, "hopper_linear_#_tall_n48_pair", kHopper16Bits, HopperTallParams)                              \
  X(HopperTallN64Pair, "hopper_linear_#_tall_n64_pair", kHopper16Bits, HopperTallParams)                              \
  X(HopperTallN192M128, "hopper_linear_#_tall_n192_m128", kHopper16Bits, HopperTallParams)                            \
  X(HopperTallN256M128, "hopper_linear_#_tall_n256_m128", kHopper16Bits, HopperTallParams)                            \
  X(HopperTallAcrossPair, "hopper_linear_#_tall_across_pair", kHopper16Bits, HopperTallParams)                        \
  X(HopperLoraShrink, "hopper_lora_shrink_#", kHopper16Bits, LoraParams)                                              \
  X(HopperLoraFinish, "hopper_lora_finish_#", kHopper16Bits, HopperLoraFinishParams)                                  \
  X(HopperFew_q8_0, "hopper_linear_#_few_q8_0", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_q4_0, "hopper_linear_#_few_q4_0", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_q4_1, "hopper_linear_#_few_q4_1", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_q5_0, "hopper_linear_#_few_q5_0", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_q5_1, "hopper_linear_#_few_q5_1", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_q2_k, "hopper_linear_#_few_q2_k", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_q3_k, "hopper_linear_#_few_q3_k", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_q4_k, "hopper_linear_#_few_q4_k", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_q5_k, "hopper_linear_#_few_q5_k", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_q6_k, "hopper_linear_#_few_q6_k", kHopper16Bits, HopperQuantisedParams)                                 \
  X(HopperFew_iq4_nl, "hopper_linear_#_few_iq4_nl", kHopper16Bits, HopperQuantisedParams)                             \
  X(HopperFew_iq4_xs, "hopper_linear_#_few_iq4_xs", kHopper16Bits, HopperQuantisedParams)                             \
  X(HopperFew_mxfp4, "hopper_linear_#_few_mxfp4", kHopper16Bits, HopperQuantisedParams)                               \
  X(HopperFew_g4, "hopper_linear_#_few_g4", kHopper16Bits, HopperQuantisedParams)                                     \
  X(HopperFew_z4, "hopper_linear_#_few_z4", kHopper16Bits, HopperQuantisedParams)                                     \
  X(HopperFew_g8, "hopper_linear_#_few_g8", kHopper16Bits, HopperQuantisedParams)                                     \
  X(HopperFew_gf8, "hopper_linear_#_few_gf8", kHopper16Bits, HopperQuantisedParams)                                   \
  X(HopperWide16_q8_0, "hopper_linear_#_wide16_q8_0", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_q4_0, "hopper_linear_#_wide16_q4_0", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_q4_1, "hopper_linear_#_wide16_q4_1", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_q5_0, "hopper_linear_#_wide16_q5_0", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_q5_1, "hopper_linear_#_wide16_q5_1", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_q2_k, "hopper_linear_#_wide16_q2_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_q3_k, "hopper_linear_#_wide16_q3_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_q4_k, "hopper_linear_#_wide16_q4_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_q5_k, "hopper_linear_#_wide16_q5_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_q6_k, "hopper_linear_#_wide16_q6_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide16_iq4_nl, "hopper_linear_#_wide16_iq4_nl", kHopper16Bits, HopperQuantisedWideParams)                   \
  X(HopperWide16_iq4_xs, "hopper_linear_#_wide16_iq4_xs", kHopper16Bits, HopperQuantisedWideParams)                   \
  X(HopperWide16_mxfp4, "hopper_linear_#_wide16_mxfp4", kHopper16Bits, HopperQuantisedWideParams)                     \
  X(HopperWide16_g4, "hopper_linear_#_wide16_g4", kHopper16Bits, HopperQuantisedWideParams)                           \
  X(HopperWide16_z4, "hopper_linear_#_wide16_z4", kHopper16Bits, HopperQuantisedWideParams)                           \
  X(HopperWide16_g8, "hopper_linear_#_wide16_g8", kHopper16Bits, HopperQuantisedWideParams)                           \
  X(HopperWide16_gf8, "hopper_linear_#_wide16_gf8", kHopper16Bits, HopperQuantisedWideParams)                         \
  X(HopperWide32_q8_0, "hopper_linear_#_wide32_q8_0", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_q4_0, "hopper_linear_#_wide32_q4_0", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_q4_1, "hopper_linear_#_wide32_q4_1", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_q5_0, "hopper_linear_#_wide32_q5_0", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_q5_1, "hopper_linear_#_wide32_q5_1", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_q2_k, "hopper_linear_#_wide32_q2_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_q3_k, "hopper_linear_#_wide32_q3_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_q4_k, "hopper_linear_#_wide32_q4_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_q5_k, "hopper_linear_#_wide32_q5_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_q6_k, "hopper_linear_#_wide32_q6_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide32_iq4_nl, "hopper_linear_#_wide32_iq4_nl", kHopper16Bits, HopperQuantisedWideParams)                   \
  X(HopperWide32_iq4_xs, "hopper_linear_#_wide32_iq4_xs", kHopper16Bits, HopperQuantisedWideParams)                   \
  X(HopperWide32_mxfp4, "hopper_linear_#_wide32_mxfp4", kHopper16Bits, HopperQuantisedWideParams)                     \
  X(HopperWide32_g4, "hopper_linear_#_wide32_g4", kHopper16Bits, HopperQuantisedWideParams)                           \
  X(HopperWide32_z4, "hopper_linear_#_wide32_z4", kHopper16Bits, HopperQuantisedWideParams)                           \
  X(HopperWide32_g8, "hopper_linear_#_wide32_g8", kHopper16Bits, HopperQuantisedWideParams)                           \
  X(HopperWide32_gf8, "hopper_linear_#_wide32_gf8", kHopper16Bits, HopperQuantisedWideParams)                         \
  X(HopperWide64_q8_0, "hopper_linear_#_wide64_q8_0", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_q4_0, "hopper_linear_#_wide64_q4_0", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_q4_1, "hopper_linear_#_wide64_q4_1", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_q5_0, "hopper_linear_#_wide64_q5_0", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_q5_1, "hopper_linear_#_wide64_q5_1", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_q2_k, "hopper_linear_#_wide64_q2_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_q3_k, "hopper_linear_#_wide64_q3_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_q4_k, "hopper_linear_#_wide64_q4_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_q5_k, "hopper_linear_#_wide64_q5_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_q6_k, "hopper_linear_#_wide64_q6_k", kHopper16Bits, HopperQuantisedWideParams)                       \
  X(HopperWide64_iq4_nl, "hopper_linear_#_wide64_iq4_nl", kHopper16Bits, HopperQuantisedWideParams)                   \
  X(HopperWide64_iq4_xs, "hopper_linear_#_wide64_iq4_xs", kHopper16Bits, HopperQuantisedWideParams)                   \
  X(HopperWide64_mxfp4, "hopper_linear_#_wide64_mxfp4", kHopper16Bits, HopperQuantisedWideParams)                     \
  X(HopperWide64_g4, "hopper_linear_#_wide64_g4", kHopper16Bits, HopperQuantisedWideParams)                           \
  X(HopperWide64_z4, "hopper_linear_#_wide64_z4", kHopper16Bits, HopperQuantisedWideParams)                           \
  X(HopperWide64_g8, "hopper_linear_#_wide64_g8", kHopper16Bits, HopperQuantisedWideParams)                           \
  X(HopperWide64_gf8, "hopper_linear_#_wide64_gf8", kHopper16Bits, HopperQuantisedWideParams)                         \
  X(HopperMoeSort, "hopper_moe_sort", kHopperNoType, HopperMoeSortParams)                                             \
  X(HopperMoeR8, "hopper_moe_#_r8", kHopper16Bits, HopperMoeParams)                                                   \
  X(HopperMoeR16, "hopper_moe_#_r16", kHopper16Bits, HopperMoeParams)                                                 \
  X(HopperMoeR32, "hopper_moe_#_r32", kHopper16Bits, HopperMoeParams)                                                 \
  X(HopperMoeR64, "hopper_moe_#_r64", kHopper16Bits, HopperMoeParams)                                                 \
  X(HopperMoeR128, "hopper_moe_#_r128", kHopper16Bits, HopperMoeParams)                                               \
  X(HopperMoeFp4M8, "hopper_moe_fp4_m8", kHopperNoType, HopperMoeFp4Params)                                           \
  X(HopperMoeFp4M16, "hopper_moe_fp4_m16", kHopperNoType, HopperMoeFp4Params)                                         \
  X(HopperAttentionQuickD64, "hopper_attention_quick_#_d64", kHopper16Bits, HopperAttentionParams)                    \
  X(HopperAttentionQuickD128, "hopper_attention_quick_#_d128", kHopper16Bits, HopperAttentionParams)                  \
  X(HopperAttentionQuickD256, "hopper_attention_quick_#_d256", kHopper16Bits, HopperAttentionParams)                  \
  X(HopperAttentionQuickLatent, "hopper_attention_quick_latent_#", kHopper16Bits, HopperAttentionParams)              \
  X(HopperAttentionTeamD64B16, "hopper_attention_team_#_d64_b16", kHopper16Bits, HopperTeamParams)                    \
  X(HopperAttentionTeamD64B8, "hopper_attention_team_#_d64_b8", kHopper16Bits, HopperTeamParams)                      \
  X(HopperAttentionTeamD128B16, "hopper_attention_team_#_d128_b16", kHopper16Bits, HopperTeamParams)                  \
  X(HopperAttentionTeamD128B8, "hopper_attention_team_#_d128_b8", kHopper16Bits, HopperTeamParams)                    \
  X(HopperAttentionTeamD256B16, "hopper_attention_team_#_d256_b16", kHopper16Bits, HopperTeamParams)                  \
  X(HopperAttentionTeamD256B8, "hopper_attention_team_#_d256_b8", kHopper16Bits, HopperTeamParams)                    \
  X(HopperAttentionPrefillD64, "hopper_attention_prefill_#_d64", kHopper16Bits, HopperAttentionParams)                \
  X(HopperAttentionPrefillD128, "hopper_attention_prefill_#_d128", kHopper16Bits, HopperAttentionParams)              \
  X(HopperAttentionPrefillD256, "hopper_attention_prefill_#_d256", kHopper16Bits, HopperAttentionParams)              \
  X(HopperAttentionPrefillGeneralD64, "hopper_attention_prefill_general_#_d64", kHopper16Bits, HopperAttentionParams) \
  X(HopperAttentionPrefillGeneralD128, "hopper_attention_prefill_general_#_d128", kHopper16Bits,                      \
    HopperAttentionParams)                                                                                            \
  X(HopperAttentionPrefillGeneralD256, "hopper_attention_prefill_general_#_d256", kHopper16Bits,                      \
    HopperAttentionParams)                                                                                            \
  X(HopperAttentionMergeD64, "hopper_attention_merge_#_d64", kHopper16Bits, HopperAttentionParams)                    \
  X(HopperAttentionMergeD128, "hopper_attention_merge_#_d128", kHopper16Bits, HopperAttentionParams)                  \
  X(HopperAttentionMergeD256, "hopper_attention_merge_#_d256", kHopper16Bits, HopperAttentionParams)                  \
  X(HopperAttentionMergeD512, "hopper_attention_merge_#_d512", kHopper16Bits, HopperAttentionParams)                  \
  X(HopperAttentionLatent, "hopper_attention_latent_#", kHopper16Bits, HopperAttentionParams)                         \
  X(HopperGatedDeltaNetC128, "hopper_gated_delta_net_#_c128", kHopper16Bits, StateParams)                             \
  X(HopperMamba2C64, "hopper_mamba2_#_c64", kHopper16Bits, StateParams)                                               \
  X(HopperDeltaDecode, "hopper_delta_decode_#", kHopper16Bits, StateParams)                                           \
  X(HopperDecodeStepD64, "hopper_decode_step_#_d64", kHopper16Bits, DecodeStepParams)                                 \
  X(HopperDecodeStepD128, "hopper_decode_step_#_d128", kHopper16Bits, DecodeStepParams)                               \
  X(HopperDecodeStepGeneralD64, "hopper_decode_step_general_#_d64", kHopper16Bits, DecodeStepParams)                  \
  X(HopperDecodeStepGeneralD128, "hopper_decode_step_general_#_d128", kHopper16Bits, DecodeStepParams)                \
  X(HopperDecodeStepGeneralD256, "hopper_decode_step_general_#_d256", kHopper16Bits, DecodeStepParams)                \
  X(HopperNormRow, "hopper_norm_row_#", kHopper16Bits, HopperNormParams)                                              \
  X(HopperStageStep, "hopper_stage_step", kHopperNoType, StageStepParams)

namespace quire::gpu {

// A row of the table.
enum class KernelId : uint8_t {
#define QUIRE_KERNEL_ID(id, name, types, Params) k##id,
  QUIRE_GPU_KERNELS(QUIRE_KERNEL_ID)
#undef QUIRE_KERNEL_ID
      kNone  // no kernel; also the number of rows
};

// One kernel: a row, and the element types that stand in its name.
struct KernelRef {
  KernelRef(KernelId id) : id(id) {}
  KernelRef(KernelId id, DType type) : id(id), first(type) {}
  KernelRef(KernelId id, DType first, DType second) : id(id), first(first), second(second) {}

  KernelId id;
  DType first = DType::kF32, second = DType::kF32;
};

// The kernels of one device. Owned by the backend and used from its thread.
class KernelTable {
 public:
  // Asks the device for every kernel of the table.
  explicit KernelTable(Device& device);
  // An error that names the kernels which this build lacks for the device, those of Hopper aside.
  const Status& complete() const { return complete_; }
  bool has(KernelRef ref) const;
  // The kernel, made ready at its first use (Metal compiles it then).
  // REQUIRES: has(ref), and `params_bytes` is the size of the parameters that the table gives it.
  const Kernel& get(KernelRef ref, size_t params_bytes);

 private:
  static constexpr size_t kRows = static_cast<size_t>(KernelId::kNone), kTypes = 3;
  struct Entry {
    std::string name;  // empty: the device has no such kernel
    const Kernel* kernel = nullptr;
  };
  static size_t index(KernelRef ref);

  Device& device_;
  std::array<Entry, kRows * kTypes * kTypes> entries_;  // by row, first type and second type
  Status complete_;
};

}  // namespace quire::gpu
