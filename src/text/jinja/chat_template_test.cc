// SPDX-License-Identifier: Apache-2.0
// Chat templates: which one is chosen, what shape messages take, where a continued prompt ends.
#include "text/jinja/chat_template.h"

#include <gtest/gtest.h>
