// SPDX-License-Identifier: Apache-2.0
// Compiles the bodies of Asio and Beast once, for everything that links quire_asio.
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
