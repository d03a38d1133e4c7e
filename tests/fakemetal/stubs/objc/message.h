// SPDX-License-Identifier: Apache-2.0
// Stub of Apple's header: the three functions that every message goes through; the caller casts them.
#pragma once

extern "C" {
void objc_msgSend(void);
void objc_msgSend_stret(void);
void objc_msgSend_fpret(void);
}
