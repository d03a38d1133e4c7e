// SPDX-License-Identifier: Apache-2.0
// A small Objective-C runtime for tests on Linux: classes as tables of functions, messages, reference counts, pools.
//
// metal-cpp consists of messages only, so a runtime that answers them is all that the Metal driver needs to run
// anywhere. Any misuse of an object (an unknown message, a message to a released object, an autorelease without a pool)
// ends the program with a line that begins with "fake Metal:".
#pragma once

#include <objc/message.h>
#include <objc/runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fakemetal {

// Ends the program: what the driver did would be an error, a hang or a leak on a Mac.
[[noreturn]] void misuse(const std::string& what);

// The head of every object. As in Objective-C, the class pointer comes first; so there are no virtual functions, and
// the class knows how to destroy its objects.
struct Object {
  Class isa = nullptr;
  std::atomic<long> references{1};
};

using Method = void (*)();

// The class of that name, created at the first call.
Class class_named(const char* name);
void set_destructor(Class of, void (*destroy)(Object*));
// Adds the method `selector` to the objects of the class, or (class_method) to the class itself; `macos` is the first
// system version that has it.
void add_method(Class to, const char* selector, Method method, int macos = 0);
void add_class_method(Class to, const char* selector, Method method, int macos = 0);

void adopt(Object* object, Class isa);  // a new object, with one reference, the caller's
void retain(Object* object);
void release(Object* object);
void autorelease(Object* object);

// A new object of type T, which is destroyed with its last reference. Its memory stays allocated, so that a late
// message is noticed.
template <typename T>
T* make(const char* class_name) {
  const Class isa = class_named(class_name);
  set_destructor(isa, [](Object* object) { static_cast<T*>(object)->~T(); });
  T* object = new T;
  adopt(object, isa);
  return object;
}

template <typename T>
T* autoreleased(T* object) {
  autorelease(object);
  return object;
}

// The live objects: their number, and as text: "2 MTLBuffer, 1 MTLDevice".
long objects_alive();
std::string objects_alive_by_class();

// The version of macOS whose methods the objects have: FAKE_METAL_MACOS, or 15.
int macos();

}  // namespace fakemetal
