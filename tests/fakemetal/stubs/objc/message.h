// SPDX-License-Identifier: Apache-2.0
// Stand-in for Apple's header: the three entries through which every message goes; the caller casts them.
#pragma once

extern "C" {
void objc_msgSend(void);
void objc_msgSend_stret(void);
void objc_msgSend_fpret(void);
}
