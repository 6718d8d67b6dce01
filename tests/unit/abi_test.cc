// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// abi_test.cc: a component and an Open MPI that do not fit are told apart.
#include "opal/mca/btl/gpusm/base/abi.h"

#include <gtest/gtest.h>

#include <netinet/in.h>

#include <vector>

namespace gpusm {

namespace {

const abi_library built = {"5.0.7", true};
const std::vector<abi_part> fitting = {{"asked", 16, 16}, {"silent", 16, 0}};

TEST(Abi, AnyReleaseOfAMinorVersionFits)
{
    EXPECT_EQ(abi_difference(built, {"5.0.7", true}, fitting), "");
    EXPECT_EQ(abi_difference(built, {"5.0.10", true}, fitting), "");
    EXPECT_EQ(abi_difference(built, {"Open MPI v5.0.8rc1, packaged by you", true}, fitting), "");
}

TEST(Abi, OtherVersionsDoNot)
{
    EXPECT_NE(abi_difference(built, {"5.1.0", true}, fitting), "");
    EXPECT_NE(abi_difference(built, {"6.0.7", true}, fitting), "");
    EXPECT_NE(abi_difference(built, {"v15.0.7", true}, fitting), "");
}

TEST(Abi, AVersionWithoutNumbersIsLeftToTheSoname)
{
    EXPECT_EQ(abi_difference(built, {"gitclone", true}, fitting), "");
}

TEST(Abi, TheLayoutOfCudaMatters)
{
    const std::string why = abi_difference(built, {"5.0.7", false}, fitting);
    EXPECT_NE(why.find("without CUDA"), std::string::npos) << why;
}

TEST(Abi, ATypeOfAnotherLengthIsNamed)
{
    const std::vector<abi_part> parts = {{"fits", 16, 16}, {"grown", 16, 24}};
    const std::string why = abi_difference(built, {"5.0.9", true}, parts);
    EXPECT_NE(why.find("grown has 24 bytes instead of 16"), std::string::npos) << why;
}

TEST(Abi, ALibraryTellsTheLengthOfItsVariables)
{
    EXPECT_EQ(length_of_variable("in6addr_any"), sizeof(in6addr_any));
    EXPECT_EQ(length_of_variable(&in6addr_any), sizeof(in6addr_any));
}

TEST(Abi, WhatIsNotThereHasNoLength)
{
    const int local = 0;
    EXPECT_EQ(length_of_variable("gpusm_no_such_variable"), 0u);
    EXPECT_EQ(length_of_variable(&local), 0u);
    EXPECT_EQ(length_of_variable(static_cast<const void *>(nullptr)), 0u);
}

} // namespace

} // namespace gpusm
