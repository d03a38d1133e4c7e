// SPDX-License-Identifier: Apache-2.0
// The runtime: method tables, the entry points that metal-cpp calls, reference counts and autorelease pools.
#include "runtime.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace fakemetal {
void install_classes();  // in metal.cc
}

namespace {

struct Entry {
  fakemetal::Method method = nullptr;
  int macos = 0;
};
using Methods = std::unordered_map<SEL, Entry>;

}  // namespace

// A class is an object, too. Its own class is the only metaclass, which distinguishes messages to a class from others.
struct objc_class {
  Class isa = nullptr;
  std::string name;
  Methods methods;
  Methods class_methods;
  void (*destroy)(fakemetal::Object*) = nullptr;
  std::atomic<long> alive{0};
};

namespace fakemetal {
namespace {

struct Tables {
  std::mutex mutex;
  std::map<std::string, Class> classes;
  std::set<std::string> selectors;
  objc_class metaclass;
};

// Never destroyed, because global objects may be released after main().
Tables& tables() {
  static Tables* const made = new Tables;
  return *made;
}

// The `isa` of an object that has been destroyed.
objc_class& gone() {
  static objc_class* const made = new objc_class;
  return *made;
}

const char* name_of(SEL selector) {
  return reinterpret_cast<const char*>(selector);
}

Class root_class() {
  static const Class made = class_named("NSObject");
  return made;
}

// metal-cpp looks up its classes during static initialisation, so they are installed at the first lookup.
void install_once() {
  static const bool done = [] {
    install_classes();
    return true;
  }();
  (void)done;
}

// The pools of this thread, innermost last; each holds the objects that it will release.
thread_local std::vector<std::vector<Object*>> pools;

uintptr_t answer_of_nil() {
  return 0;
}

}  // namespace

[[noreturn]] void misuse(const std::string& what) {
  std::fprintf(stderr, "fake Metal: %s\n", what.c_str());
  std::abort();
}

int macos() {
  const char* set = std::getenv("FAKE_METAL_MACOS");
  return set == nullptr ? 15 : std::atoi(set);
}

Class class_named(const char* name) {
  Tables& all = tables();
  const std::lock_guard lock(all.mutex);
  Class& found = all.classes[name];
  if (found == nullptr) {
    found = new objc_class;
    found->isa = &all.metaclass;
    found->name = name;
  }
  return found;
}

void set_destructor(Class of, void (*destroy)(Object*)) {
  of->destroy = destroy;
}

void add_method(Class to, const char* selector, Method method, int macos) {
  to->methods[sel_registerName(selector)] = {method, macos};
}

void add_class_method(Class to, const char* selector, Method method, int macos) {
  to->class_methods[sel_registerName(selector)] = {method, macos};
}

void adopt(Object* object, Class isa) {
  object->isa = isa;
  isa->alive++;
}

void retain(Object* object) {
  object->references++;
}

void release(Object* object) {
  if (object->isa == &gone()) misuse("release of an object that was released before");
  if (--object->references > 0) return;
  const Class isa = object->isa;
  if (isa->destroy != nullptr) isa->destroy(object);
  isa->alive--;
  object->isa = &gone();  // its memory is kept, so that no other object gets the address
}

void autorelease(Object* object) {
  if (pools.empty()) misuse("autorelease of a " + object->isa->name + " without a pool: it would leak");
  pools.back().push_back(object);
}

void push_pool() {
  pools.emplace_back();
}

void pop_pool() {
  const std::vector<Object*> held = std::move(pools.back());
  pools.pop_back();
  for (Object* object : held) release(object);
}

long objects_alive() {
  long sum = 0;
  for (const auto& [name, one] : tables().classes) sum += one->alive;
  return sum;
}

std::string objects_alive_by_class() {
  std::string words;
  for (const auto& [name, one] : tables().classes) {
    if (one->alive > 0) words += (words.empty() ? "" : ", ") + std::to_string(one->alive) + " " + name;
  }
  return words.empty() ? "nothing" : words;
}

bool responds(const void* receiver, SEL selector) {
  const Class isa = static_cast<const Object*>(receiver)->isa;
  for (const Class one : {isa, root_class()}) {
    const auto found = one->methods.find(selector);
    if (found != one->methods.end()) return found->second.macos <= macos();
  }
  return false;
}

// The function that implements `selector`; the trampolines below jump to it.
extern "C" Method fake_metal_method(void* receiver, SEL selector) {
  // A message to nil returns 0, as in Objective-C.
  if (receiver == nullptr) return reinterpret_cast<Method>(&answer_of_nil);
  const Class isa = static_cast<Object*>(receiver)->isa;
  if (isa == &gone()) misuse(std::string("message ") + name_of(selector) + " to an object that was released");
  const bool to_class = isa == &tables().metaclass;
  const Class subject = to_class ? static_cast<Class>(receiver) : isa;
  for (const Class one : {subject, root_class()}) {
    const Methods& methods = to_class ? one->class_methods : one->methods;
    const auto found = methods.find(selector);
    if (found == methods.end()) continue;
    if (found->second.macos > macos()) {
      misuse(std::string(name_of(selector)) + " needs macOS " + std::to_string(found->second.macos) +
             ", this is macOS " + std::to_string(macos()));
    }
    return found->second.method;
  }
  misuse(std::string(to_class ? "+[" : "-[") + subject->name + " " + name_of(selector) + "] is unknown to the fake");
}

}  // namespace fakemetal

extern "C" {

SEL sel_registerName(const char* name) {
  fakemetal::Tables& all = fakemetal::tables();
  const std::lock_guard lock(all.mutex);
  return reinterpret_cast<SEL>(const_cast<char*>(all.selectors.insert(name).first->c_str()));
}

void* objc_lookUpClass(const char* name) {
  fakemetal::install_once();
  fakemetal::Tables& all = fakemetal::tables();
  const std::lock_guard lock(all.mutex);
  const auto found = all.classes.find(name);
  return found == all.classes.end() ? nullptr : found->second;
}

void* objc_getProtocol(const char* /*name*/) {
  return nullptr;
}

// The parts of blocks (closures of Objective-C). metal-cpp refers to them in functions that the driver does not call.
void* _NSConcreteStackBlock[32];
void _Block_object_assign(void*, const void*, int) {
  fakemetal::misuse("blocks are not supported");
}
void _Block_object_dispose(const void*, int) {}
void* _Block_copy(const void*) {
  fakemetal::misuse("blocks are not supported");
}
void _Block_release(const void*) {}

}  // extern "C"

// objc_msgSend is called as if it were the method: all registers that can carry an argument are saved while the method
// is looked up, and the jump leaves the stack as the caller made it. The _stret entry of x86-64 is for results that are
// returned in memory, whose address comes before the receiver.
#if defined(__x86_64__)
#define QUIRE_SAVE_ARGUMENTS                                                                                  \
  "  push %rbp\n  mov %rsp, %rbp\n  sub $192, %rsp\n"                                                         \
  "  mov %rdi, (%rsp)\n  mov %rsi, 8(%rsp)\n  mov %rdx, 16(%rsp)\n  mov %rcx, 24(%rsp)\n"                     \
  "  mov %r8, 32(%rsp)\n  mov %r9, 40(%rsp)\n  mov %rax, 48(%rsp)\n"                                          \
  "  movups %xmm0, 64(%rsp)\n  movups %xmm1, 80(%rsp)\n  movups %xmm2, 96(%rsp)\n  movups %xmm3, 112(%rsp)\n" \
  "  movups %xmm4, 128(%rsp)\n  movups %xmm5, 144(%rsp)\n  movups %xmm6, 160(%rsp)\n  movups %xmm7, 176(%rsp)\n"
#define QUIRE_CALL_METHOD                                                                                        \
  "  call fake_metal_method\n  mov %rax, %r11\n"                                                                 \
  "  mov (%rsp), %rdi\n  mov 8(%rsp), %rsi\n  mov 16(%rsp), %rdx\n  mov 24(%rsp), %rcx\n"                        \
  "  mov 32(%rsp), %r8\n  mov 40(%rsp), %r9\n  mov 48(%rsp), %rax\n"                                             \
  "  movups 64(%rsp), %xmm0\n  movups 80(%rsp), %xmm1\n  movups 96(%rsp), %xmm2\n  movups 112(%rsp), %xmm3\n"    \
  "  movups 128(%rsp), %xmm4\n  movups 144(%rsp), %xmm5\n  movups 160(%rsp), %xmm6\n  movups 176(%rsp), %xmm7\n" \
  "  leave\n  jmp *%r11\n"
asm(".text\n.globl objc_msgSend\n.globl objc_msgSend_fpret\n.globl objc_msgSend_stret\n"
    ".type objc_msgSend, @function\n.type objc_msgSend_fpret, @function\n.type objc_msgSend_stret, @function\n"
    "objc_msgSend:\nobjc_msgSend_fpret:\n" QUIRE_SAVE_ARGUMENTS QUIRE_CALL_METHOD
    "objc_msgSend_stret:\n" QUIRE_SAVE_ARGUMENTS "  mov %rsi, %rdi\n  mov %rdx, %rsi\n" QUIRE_CALL_METHOD);
#elif defined(__aarch64__)
asm(".text\n.globl objc_msgSend\n.type objc_msgSend, %function\nobjc_msgSend:\n"
    "  stp x29, x30, [sp, #-224]!\n  mov x29, sp\n"
    "  stp x0, x1, [sp, #16]\n  stp x2, x3, [sp, #32]\n  stp x4, x5, [sp, #48]\n  stp x6, x7, [sp, #64]\n"
    "  str x8, [sp, #80]\n"
    "  stp q0, q1, [sp, #96]\n  stp q2, q3, [sp, #128]\n  stp q4, q5, [sp, #160]\n  stp q6, q7, [sp, #192]\n"
    "  bl fake_metal_method\n  mov x16, x0\n"
    "  ldp x0, x1, [sp, #16]\n  ldp x2, x3, [sp, #32]\n  ldp x4, x5, [sp, #48]\n  ldp x6, x7, [sp, #64]\n"
    "  ldr x8, [sp, #80]\n"
    "  ldp q0, q1, [sp, #96]\n  ldp q2, q3, [sp, #128]\n  ldp q4, q5, [sp, #160]\n  ldp q6, q7, [sp, #192]\n"
    "  ldp x29, x30, [sp], #224\n  br x16\n");
#else
#error "the fake of Metal knows x86-64 and aarch64"
#endif
