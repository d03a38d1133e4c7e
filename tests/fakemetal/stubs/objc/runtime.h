// SPDX-License-Identifier: Apache-2.0
// Stub of Apple's header: what metal-cpp needs of the Objective-C runtime (implemented in tests/fakemetal/runtime.cc).
#pragma once

#include <cstddef>
#include <cstdint>

struct objc_class;
struct objc_selector;
typedef objc_class* Class;
typedef objc_selector* SEL;
typedef signed char BOOL;
struct objc_object {
  Class isa;
};
typedef objc_object* id;
typedef objc_object Protocol;

extern "C" {
SEL sel_registerName(const char* name);
void* objc_lookUpClass(const char* name);
void* objc_getProtocol(const char* name);
}
