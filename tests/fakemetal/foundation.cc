// SPDX-License-Identifier: Apache-2.0
// The fake's part of Foundation: objects, pools, strings, errors, arrays, file URLs, the process.
#include <cstdio>
#include <cstdlib>

#include "objects.h"

namespace fakemetal {

void push_pool();  // in runtime.cc
void pop_pool();
bool responds(const void* receiver, SEL selector);
void install_classes();

namespace {

struct Pool : Object {
  ~Pool() { pop_pool(); }
};
struct OperatingSystemVersion {
  intptr_t major, minor, patch;
};

Counts all_counts;

void install_object() {
  method("NSObject", "retain", [](Object* self, SEL) {
    retain(self);
    return self;
  });
  method("NSObject", "release", [](Object* self, SEL) { release(self); });
  method("NSObject", "autorelease", [](Object* self, SEL) { return autoreleased(self); });
  method("NSObject", "retainCount", [](Object* self, SEL) -> uintptr_t { return self->references; });
  method("NSObject", "init", [](Object* self, SEL) { return self; });
  method("NSObject", "setLabel:", [](Object*, SEL, String*) {});
  method("NSObject", "respondsToSelector:", [](Object* self, SEL, SEL asked) { return responds(self, asked); });
  method("NSObject", "methodSignatureForSelector:", [](Object*, SEL, SEL) -> Object* { return nullptr; });
  class_method("NSAutoreleasePool", "alloc", [](Class, SEL) -> Object* {
    push_pool();
    return make<Pool>("NSAutoreleasePool");
  });
  method("NSAutoreleasePool", "drain", [](Object* self, SEL) { release(self); });
}

void install_values() {
  class_method("NSString", "stringWithCString:encoding:", [](Class, SEL, const char* text, uintptr_t) {
    return make_string(text);
  });
  method("NSString", "UTF8String", [](String* self, SEL) { return self->text.c_str(); });
  method("NSString", "length", [](String* self, SEL) -> uintptr_t { return self->text.size(); });
  method("NSError", "localizedDescription", [](Error* self, SEL) { return make_string(self->words); });
  method("NSError", "code", [](Error* self, SEL) { return self->code; });
  class_method("NSArray", "arrayWithObject:", [](Class, SEL, Object* item) {
    auto* array = autoreleased(make<Array>("NSArray"));
    array->items.push_back(Ref<Object>::take(item));
    return array;
  });
  method("NSArray", "count", [](Array* self, SEL) -> uintptr_t { return self->items.size(); });
  method("NSArray", "objectAtIndex:", [](Array* self, SEL, uintptr_t index) {
    if (index >= self->items.size()) misuse("objectAtIndex: " + std::to_string(index) + " is beyond the array");
    return self->items[index].get();
  });
  class_method("NSURL", "fileURLWithPath:", [](Class, SEL, String* path) {
    auto* url = autoreleased(make<Url>("NSURL"));
    url->path = path->text;
    return url;
  });
}

void install_process() {
  class_method("NSProcessInfo", "processInfo", [](Class, SEL) {
    static Object* const process = [] {  // the system's own object: never counted, never released
      auto* made = new Object;
      made->isa = class_named("NSProcessInfo");
      made->references = 1 << 30;
      return made;
    }();
    return process;
  });
  method("NSProcessInfo", "operatingSystemVersion", [](Object*, SEL) { return OperatingSystemVersion{macos(), 1, 0}; });
  method("NSProcessInfo", "operatingSystemVersionString",
         [](Object*, SEL) { return make_string("Version " + std::to_string(macos()) + ".1 (Build fake)"); });
  method("NSProcessInfo", "physicalMemory", [](Object*, SEL) -> unsigned long long { return 4ull << 30; });
}

void tell_what_is_alive() {
  std::fprintf(stderr, "fake Metal: %ld objects alive at exit: %s\n", objects_alive(),
               objects_alive_by_class().c_str());
}

}  // namespace

String* make_string(const std::string& text) {
  auto* made = autoreleased(make<String>("NSString"));
  made->text = text;
  return made;
}

void report(Error** to, const std::string& words, long code) {
  if (to == nullptr) return;
  auto* error = autoreleased(make<Error>("NSError"));
  error->words = words;
  error->code = code;
  *to = error;
}

Counts& counters() {
  return all_counts;
}

Counts counts() {
  return all_counts;
}

void install_foundation() {
  install_object();
  install_values();
  install_process();
}

void install_classes() {
  install_foundation();
  install_compiler();
  install_memory();
  install_commands();
  std::atexit(tell_what_is_alive);
}

}  // namespace fakemetal
