// SPDX-License-Identifier: Apache-2.0
// Stand-in for Apple's header: types that metal-cpp mentions.
#pragma once

typedef int kern_return_t;
typedef unsigned task_id_token_t;
typedef unsigned mach_port_t;
