// SPDX-License-Identifier: Apache-2.0
// Stub of Apple's header: the fake pretends to be a Mac.
#pragma once

#define TARGET_OS_MAC 1
#define TARGET_OS_OSX 1
#define TARGET_OS_IPHONE 0
#define __MAC_OS_X_VERSION_MIN_REQUIRED 140000
