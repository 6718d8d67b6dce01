// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reduce_driver_test.cc: the reduce kernel on whatever driver there is, real or tests/softcuda. On
// a GPU this is the proof that the PTX combines what it should and writes nothing else. Each test
// runs in a process of its own.
#include "opal/mca/common/gpusm/gpu/reduce_kernel.h"

#include "tests/unit/gpu_memory_support.h"
#include "tests/unit/reduce_support.h"

#include <cstdint>

using namespace softcuda_test;

// ThreadSanitizer asks for this. It sees the copies of the software driver, which is not built with
// it, but not what orders them.
extern "C" const char *__tsan_default_suppressions()
{
    return "called_from_lib:libcuda.so.1";
}

namespace {

using namespace gpusm;
using namespace gpusm_test;

// One reduction that is to be made: how many sources and elements, by how much each buffer is out
// of alignment, which targets there are, and in which sources some of them lie.
struct task {
    reduce_op op;
    reduce_type type;
    std::size_t sources;
    std::size_t elements;
    std::vector<std::size_t> offsets = {0}; // from a multiple of 16 on; buffers take turns
    std::size_t targets = 1;                // of their own
    std::vector<std::size_t> in_place = {}; // further targets: these sources
};

// The kernel, a stream, and device memory with an image here of what it must hold.
struct machine {
    explicit machine(unsigned blocks, std::size_t len_bytes)
        : context(start()), kernel(driver(), blocks), stream(make_stream(CU_STREAM_NON_BLOCKING)),
          at(allocate(len_bytes)), image(pattern(len_bytes, 1))
    {
        if (!kernel.load()) {
            ADD_FAILURE() << "the driver does not take the kernel";
            _exit(12);
        }
    }
    ~machine()
    {
        (void)CU(cuCtxSetCurrent)(context);
        kernel.unload();
    }
    machine(const machine &) = delete;
    machine &operator=(const machine &) = delete;

    // The next buffer's place in the image. At least 16 bytes before it and behind it are nobody's.
    std::size_t place(const task &what, std::size_t len_bytes)
    {
        const std::size_t begin =
            (next_ + 31) / 16 * 16 + what.offsets[buffers_ % what.offsets.size()];
        next_ = begin + len_bytes;
        ++buffers_;
        if (next_ + 16 > image.size()) {
            ADD_FAILURE() << "the test's memory is too small";
            _exit(13);
        }
        return begin;
    }

    // Makes it, and compares all that the buffers lie in. The flag alone says when it has ended:
    // nothing is synchronized.
    void expect_reduced(const task &what, std::uint32_t slot = 0)
    {
        const std::size_t len_bytes = what.elements * element_bytes(what.type);
        std::vector<std::string> sources;
        std::vector<std::size_t> targets;
        reduction made = {};
        made.op = what.op;
        made.type = what.type;
        made.elements = what.elements;
        next_ = buffers_ = 0;
        for (std::size_t i = 0; i < what.sources; ++i) {
            sources.push_back(random_elements(what.type, what.elements, random_));
            const std::size_t begin = place(what, len_bytes);
            image.replace(begin, len_bytes, sources[i]);
            made.sources[made.source_count++] = at + begin;
            if (std::count(what.in_place.begin(), what.in_place.end(), i) > 0) {
                targets.push_back(begin);
            }
        }
        for (std::size_t i = 0; i < what.targets; ++i) {
            targets.push_back(place(what, len_bytes));
        }
        for (const std::size_t each : targets) {
            made.targets[made.target_count++] = at + each;
        }
        OK(CU(cuMemcpyHtoD)(at, image.data(), next_ + 16));
        OK(CU(cuCtxSynchronize)()); // until it has arrived
        ASSERT_EQ(kernel.launch(stream, slot, made), CUDA_SUCCESS);
        const deadline end(30);
        while (!kernel.finished(slot) && !end.over()) {
        }
        ASSERT_TRUE(kernel.finished(slot));
        std::string now(next_ + 16, ' ');
        OK(CU(cuMemcpyDtoH)(now.data(), at, now.size()));
        const std::string wanted = reduced(what.op, what.type, sources);
        for (const std::size_t each : targets) {
            std::string result = now.substr(each, len_bytes);
            EXPECT_EQ(first_difference(what.type, result, wanted), what.elements)
                << "is the first wrong element";
            for (std::size_t i = 0; i < len_bytes; ++i) { // but for what lies between the elements
                const bool is_written =
                    (written_bytes(what.type) >> i % reduce_vector_bytes & 1) != 0;
                result[i] = is_written ? result[i] : image[each + i];
            }
            image.replace(each, len_bytes, result); // of which some bits are free
        }
        EXPECT_EQ(image.compare(0, now.size(), now), 0) << "other memory has been written";
    }

    const CUcontext context;
    reduce_kernel kernel;
    const CUstream stream;
    const CUdeviceptr at;
    std::string image;

  private:
    std::mt19937_64 random_{2};
    std::size_t next_ = 0;
    std::size_t buffers_ = 0;
};

std::string name_of(const task &what)
{
    std::string name = "operation " + std::to_string(static_cast<int>(what.op)) + " type " +
                       std::to_string(static_cast<int>(what.type)) + " sources " +
                       std::to_string(what.sources) + " elements " + std::to_string(what.elements) +
                       " offsets";
    for (const std::size_t each : what.offsets) {
        name += ' ' + std::to_string(each);
    }
    return name;
}

// Three elements, an odd number of them, and several rounds of a block.
ALONE(ReduceOnDriver, EveryOperationOfEveryTypeAndAlignmentIsRightAndNothingElseIsWritten)
{
    machine m(2, mib);
    std::uint32_t slot = 0;
    for_all_that_mpi_defines([&](reduce_op op, reduce_type type) {
        for (const std::size_t sources : {1, 2, 3, 5}) {
            for (const std::size_t elements : {1, 3, 16, 333}) {
                for (const std::vector<std::size_t> &offsets :
                     {std::vector<std::size_t>{0}, {8}, {0, 4}, {2, 6, 12}, {0, 1, 7}}) {
                    const task what = {op, type, sources, elements, offsets};
                    SCOPED_TRACE(name_of(what));
                    m.expect_reduced(what, slot++ % reduce_slots);
                    if (testing::Test::HasFailure()) {
                        return; // one such line says enough
                    }
                }
            }
        }
    });
}

// As many as a block takes several rounds for, with full groups of loads and without.
ALONE(ReduceOnDriver, LongBuffersAreReducedWhateverTheGridAndHoweverManySources)
{
    const std::pair<reduce_op, reduce_type> kinds[] = {
        {reduce_op::sum, reduce_type::float32},       {reduce_op::max, reduce_type::int8},
        {reduce_op::maxloc, reduce_type::double_int}, {reduce_op::prod, reduce_type::complex64},
        {reduce_op::sum, reduce_type::bfloat16},
    };
    for (const unsigned blocks : {1U, 64U}) {
        machine m(blocks, 8 * mib);
        for (const auto &[op, type] : kinds) {
            for (const std::size_t sources : {1, 2, 3, 4, 7, 8, 9, 16}) {
                for (const std::size_t offset : {0, 4}) {
                    const std::size_t bytes = 3 * 512 * 16 * 8 + 16 * 77 + 4 * offset;
                    const task what = {op, type, sources, bytes / element_bytes(type), {offset}};
                    SCOPED_TRACE(name_of(what));
                    m.expect_reduced(what);
                }
            }
        }
    }
}

// The tail of a buffer that begins at a multiple of 16 is its own case.
ALONE(ReduceOnDriver, EveryNumberOfElementsIsReducedToTheLastOne)
{
    machine m(4, mib);
    for (const reduce_type type : {reduce_type::int8, reduce_type::float16, reduce_type::int32,
                                   reduce_type::float64, reduce_type::float32}) {
        for (std::size_t elements = 1; elements < 70; ++elements) {
            const task what = {reduce_op::sum, type, 2, elements};
            SCOPED_TRACE(name_of(what));
            m.expect_reduced(what);
        }
        m.expect_reduced({reduce_op::sum, type, 3, 20001});
    }
}

ALONE(ReduceOnDriver, TargetsMayBeSourcesAndThereMayBeSeveral)
{
    machine m(8, 8 * mib);
    const std::vector<std::size_t> places[] = {{0}, {2}, {0, 1, 2}, {1, 2}};
    for (const std::vector<std::size_t> &in_place : places) {
        for (const std::size_t targets : {0, 1, 4}) {
            for (const std::size_t elements : {5, 4096, 100001}) {
                for (const std::size_t offset : {0, 4}) {
                    const task what = {reduce_op::sum, reduce_type::int32, 3,
                                       elements,       {offset},           targets,
                                       in_place};
                    SCOPED_TRACE(name_of(what));
                    m.expect_reduced(what);
                }
            }
        }
    }
    // As many as there may be, in place, and of only one source.
    std::vector<std::size_t> all(reduce_most_ranks);
    std::iota(all.begin(), all.end(), std::size_t{0});
    m.expect_reduced({reduce_op::min, reduce_type::int16, reduce_most_ranks, 9999, {0}, 0, all});
    m.expect_reduced({reduce_op::sum, reduce_type::uint8, 1, 9999, {0}, reduce_most_ranks});
    m.expect_reduced({reduce_op::sum, reduce_type::uint8, 1, 9999, {3}, 7, {0}});
}

// The answer does not depend on how the elements are dealt out: (a + b) + c is not a + (b + c).
ALONE(ReduceOnDriver, SourcesAreCombinedInTheirOrder)
{
    machine m(4, mib);
    for (const std::size_t sources : {3, 9, 16}) {
        m.expect_reduced({reduce_op::sum, reduce_type::float64, sources, 1000});
        m.expect_reduced({reduce_op::sum, reduce_type::float16, sources, 1000});
    }
}

ALONE(ReduceOnDriver, ABadAddressFailsTheStreamAndSetsNoFlag)
{
    machine m(4, mib);
    reduction bad = {};
    bad.sources[bad.source_count++] = m.at;
    bad.sources[bad.source_count++] = 4096;
    bad.targets[bad.target_count++] = m.at + 4096;
    bad.elements = 100;
    bad.op = reduce_op::sum;
    bad.type = reduce_type::float32;
    OK(m.kernel.launch(m.stream, 2, bad));
    const deadline end(30);
    CUresult answer = CUDA_ERROR_NOT_READY;
    while (CUDA_ERROR_NOT_READY == answer && !end.over()) {
        answer = driver().stream_query(m.stream);
    }
    EXPECT_EQ(answer, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_FALSE(m.kernel.finished(2));
}

} // namespace
