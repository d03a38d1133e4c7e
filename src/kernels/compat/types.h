// SPDX-License-Identifier: Apache-2.0
// The integer types of the dialect, for parameter structs that host and device share. Includes nothing.
#pragma once

#if defined(__METAL_VERSION__)
typedef char i8;  // signed in Metal
typedef long i64;
#elif defined(__OPENCL_CPP_VERSION__)
typedef signed char i8;
typedef long i64;
#else
typedef signed char i8;
typedef long long i64;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
#endif
