// SPDX-License-Identifier: Apache-2.0
// Stands in for CUDA's header of this name; cuda_shim.h, which is included before it, has it all.
#pragma once
