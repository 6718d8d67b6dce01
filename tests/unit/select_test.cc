// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// select_test.cc: which way host messages go, by all that is known when it is chosen.
#include "opal/mca/btl/gpusm/protocol/select.h"

#include <gtest/gtest.h>

namespace {

using gpusm::dear_call_ns;
using gpusm::host_facts;
using gpusm::host_protocol;
using gpusm::host_way;

constexpr std::uint64_t cheap = dear_call_ns - 1;
constexpr std::uint64_t dear = dear_call_ns;

TEST(Select, HostMessages)
{
    static constexpr struct {
        host_facts facts;
        host_way way;
    } rows[] = {
        // asked for, single copies, oversubscribed, cost of a system call
        {{host_protocol::automatic, true, false, dear}, host_way::stream},
        {{host_protocol::automatic, true, false, cheap}, host_way::single_copy},
        {{host_protocol::automatic, true, false, 0}, host_way::single_copy},
        {{host_protocol::automatic, true, true, dear}, host_way::single_copy},
        {{host_protocol::automatic, false, false, cheap}, host_way::stream},
        {{host_protocol::automatic, false, true, 0}, host_way::stream},
        {{host_protocol::stream, true, true, cheap}, host_way::stream},
        {{host_protocol::stream, false, false, dear}, host_way::stream},
        {{host_protocol::single_copy, true, false, dear}, host_way::single_copy},
        {{host_protocol::single_copy, false, false, dear}, host_way::stream},
    };
    for (const auto &row : rows) {
        EXPECT_EQ(row.way, gpusm::select_for_host(row.facts)) << "row " << &row - rows;
    }
}

TEST(Select, TheParameterHasThreeValues)
{
    host_protocol chosen = host_protocol::stream;
    EXPECT_TRUE(gpusm::parse_host_protocol("auto", &chosen));
    EXPECT_EQ(host_protocol::automatic, chosen);
    EXPECT_TRUE(gpusm::parse_host_protocol("single_copy", &chosen));
    EXPECT_EQ(host_protocol::single_copy, chosen);
    EXPECT_TRUE(gpusm::parse_host_protocol("stream", &chosen));
    EXPECT_EQ(host_protocol::stream, chosen);
    EXPECT_FALSE(gpusm::parse_host_protocol("", &chosen));
    EXPECT_FALSE(gpusm::parse_host_protocol("Stream", &chosen));
    EXPECT_EQ(host_protocol::stream, chosen);
}

} // namespace
