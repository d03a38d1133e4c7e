// SPDX-License-Identifier: Apache-2.0
// A small Objective-C runtime for tests on Linux: classes as tables of functions, messages, reference counts, pools.
//
// metal-cpp is nothing but messages, so a runtime that answers them is all that the Metal driver needs to run anywhere.
// Whoever misuses an object is told at once: an unknown message, a message to an object that was released, an
// autorelease without a pool, each ends the program with a line that begins with "fake Metal:".
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

// The head of every object. The class comes first, as Objective-C has it; so there are no virtual functions, and the
// class knows how to destroy its objects.
struct Object {
  Class isa = nullptr;
  std::atomic<long> references{1};
};

using Method = void (*)();

// The class of that name, made at its first mention.
Class class_named(const char* name);
void set_destructor(Class of, void (*destroy)(Object*));
// Adds the method `selector` to objects of the class, or (class_method) to the class itself; `macos` is the first
// system that has it.
void add_method(Class to, const char* selector, Method method, int macos = 0);
void add_class_method(Class to, const char* selector, Method method, int macos = 0);

void adopt(Object* object, Class isa);  // a new object, with one reference that is the caller's
void retain(Object* object);
void release(Object* object);
void autorelease(Object* object);

// A new object of type T, which is destroyed with its last reference. What is left of it afterwards stays, so that a
// late message is noticed.
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

// Objects that are alive now, and the same as words: "2 MTLBuffer, 1 MTLDevice".
long objects_alive();
std::string objects_alive_by_class();

// The macOS whose methods the objects have: FAKE_METAL_MACOS, else 15.
int macos();

}  // namespace fakemetal
