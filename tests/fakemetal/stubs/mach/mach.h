// SPDX-License-Identifier: Apache-2.0
// Stub of Apple's header: types that metal-cpp refers to.
#pragma once

typedef int kern_return_t;
typedef unsigned task_id_token_t;
typedef unsigned mach_port_t;
