// SPDX-License-Identifier: Apache-2.0
// Compiles the bodies of Asio, and those of Beast's parser of HTTP, once for everything that links quire_asio. All of
// Beast (boost/beast/src.hpp, which has WebSocket and zlib, too) would take a quarter longer.
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/core/detail/config.hpp>
#define BOOST_BEAST_SOURCE  // as boost/beast/src.hpp has it
#include <boost/beast/core/detail/impl/temporary_buffer.ipp>
#include <boost/beast/core/impl/error.ipp>
#include <boost/beast/core/impl/string.ipp>
#include <boost/beast/http/detail/basic_parser.ipp>
#include <boost/beast/http/detail/rfc7230.ipp>
#include <boost/beast/http/impl/basic_parser.ipp>
#include <boost/beast/http/impl/error.ipp>
#include <boost/beast/http/impl/field.ipp>
#include <boost/beast/http/impl/fields.ipp>
#include <boost/beast/http/impl/rfc7230.ipp>
#include <boost/beast/http/impl/status.ipp>
#include <boost/beast/http/impl/verb.ipp>
