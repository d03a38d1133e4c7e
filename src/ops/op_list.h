// SPDX-License-Identifier: Apache-2.0
// The list of ops. Each is written here once, as X(name, Args, ...), and Backend's virtual functions, the overrides of
// every backend, the forwards of TracingBackend and the CPU's kernel table are made from this list.
#pragma once

#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/gather.h"
#include "ops/linear.h"
#include "ops/lora.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/recurrent.h"
#include "ops/rope.h"
#include "ops/row_digest.h"
#include "ops/sampling.h"

// Ops that compute each row from that row alone. The CPU backend needs only a kernel for a range of rows: it splits the
// rows over threads by itself. The third argument is the work per element, a copied element being 1.
#define QUIRE_ROW_OPS(X)                 \
  X(rms_norm, RmsNormArgs, 1)            \
  X(layer_norm, LayerNormArgs, 1)        \
  X(gated_rms_norm, GatedRmsNormArgs, 4) \
  X(rope, RopeArgs, 1)                   \
  X(glu, GluArgs, 4)                     \
  X(activation, ActivationArgs, 4)       \
  X(residual_add, ResidualAddArgs, 1)    \
  X(scale, ScaleArgs, 1)                 \
  X(soft_cap, SoftCapArgs, 4)            \
  X(reshape_and_cache, ReshapeAndCacheArgs, 2)

// All ops that every backend has.
#define QUIRE_OPS(X)                    \
  QUIRE_ROW_OPS(X)                      \
  X(embedding, EmbeddingArgs)           \
  X(gather, GatherArgs)                 \
  X(gather_columns, GatherColumnsArgs)  \
  X(linear, LinearArgs)                 \
  X(linear_heads, LinearHeadsArgs)      \
  X(lora, LoraArgs)                     \
  X(attention, AttentionArgs)           \
  X(gated_delta_net, GatedDeltaNetArgs) \
  X(mamba2, Mamba2Args)                 \
  X(short_conv, ShortConvArgs)          \
  X(moe_route, MoeRouteArgs)            \
  X(moe_experts, MoeExpertsArgs)

// Ops that a backend may leave out; backend.h says how a model asks for them.
#define QUIRE_OPTIONAL_OPS(X)      \
  X(add_norm, AddNormArgs)         \
  X(qkv_to_cache, QkvToCacheArgs)  \
  X(mla_to_cache, MlaToCacheArgs)  \
  X(digest_rows, DigestRowsArgs)   \
  X(sample, SampleArgs)            \
  X(take_sampled, TakeSampledArgs) \
  X(skip_accepted, SkipAcceptedArgs)

// QUIRE_OPS(QUIRE_OVERRIDE_OP) declares the overrides of all ops in a class derived from Backend.
#define QUIRE_OVERRIDE_OP(name, Args, ...) void name(const Args& args) override;
