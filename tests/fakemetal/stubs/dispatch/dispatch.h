// SPDX-License-Identifier: Apache-2.0
// Stand-in for Apple's header: types that metal-cpp mentions.
#pragma once

typedef struct dispatch_queue_s* dispatch_queue_t;
typedef struct dispatch_data_s* dispatch_data_t;
