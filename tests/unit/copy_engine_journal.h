// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_journal.h: a journal between a copy engine and the scripted driver. It notes which
// copies were really started and what their end is, so that a test can check every answer of the
// engine. There is one at a time, as of the fake: book().
#ifndef GPUSM_TESTS_COPY_ENGINE_JOURNAL_H
#define GPUSM_TESTS_COPY_ENGINE_JOURNAL_H

#include "tests/unit/fake_driver.h"

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace gpusm_test {

// Copies that have one end: those before an event, or of one launch.
struct started_unit {
    bool by_kernel = false;
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    CUevent event = nullptr; // not by kernel
    std::size_t launch = 0;  // by kernel: which one of the fake's
    std::vector<fake_copy> copies;
    bool ended = false;
    bool badly = false;
    bool handed_back = false; // the engine has told
};

class journal {
  public:
    // Puts itself between `api`, the table of a fresh fake, and who uses it from now on.
    void attach(gpusm::driver_api *api);
    // Forgets everything.
    void clear()
    {
        *this = journal(real_);
        fake().launches.clear();
    }

    std::vector<started_unit> units;
    std::set<std::size_t> running;                   // units that have not ended
    std::map<std::uint64_t, std::size_t> unit_of;    // by a copy's destination
    std::map<CUstream, std::vector<fake_copy>> open; // started, and no event after them yet
    // Destinations of what may have been started in a batch that failed, or before an event that
    // could not be recorded, or which runs while a question about it fails.
    std::map<CUstream, std::set<std::uint64_t>> loose;
    bool in_doubt = false; // the driver did not say whether something had ended

    // A unit ends: the driver will say so when it is asked, a kernel's flag is written.
    void end(std::size_t number, bool badly)
    {
        started_unit &unit = units[number];
        note_end(number, badly);
        if (!unit.by_kernel) {
            fake().query_answer[unit.event] = badly ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
        } else if (!badly) {
            fake().finish_launch(unit.launch);
        }
    }
    // The same where nobody asks any more.
    void note_end(std::size_t number, bool badly)
    {
        started_unit &unit = units[number];
        unit.ended = true;
        unit.badly = badly;
        if (unit.by_kernel) {
            fake().launches[unit.launch].finished = true;
        }
        running.erase(number);
    }
    // What runs of those units may have no end that anybody sees.
    template <class predicate> void lose(predicate is_meant)
    {
        for (const std::size_t number : running) {
            for (const fake_copy &each : units[number].copies) {
                if (is_meant(units[number])) {
                    loose[units[number].stream].insert(each.destination);
                }
            }
        }
    }
    // May that copy be running, and nobody will see its end?
    bool is_loose(std::uint64_t destination) const
    {
        for (const auto &[stream, destinations] : loose) {
            if (destinations.count(destination) != 0) {
                return true;
            }
        }
        return false;
    }

    journal() = default;

  private:
    explicit journal(const gpusm::driver_api &real) : real_(real) {}

    void add(started_unit made)
    {
        const std::size_t number = units.size();
        made.context = fake().current();
        for (const fake_copy &each : made.copies) {
            unit_of[each.destination] = number;
            loose[made.stream].erase(each.destination);
        }
        running.insert(number);
        units.push_back(std::move(made));
    }

    gpusm::driver_api real_;
};

inline journal &book()
{
    static journal the_one;
    return the_one;
}

inline void journal::attach(gpusm::driver_api *api)
{
    *this = journal(*api);
    api->memcpy_async = [](CUdeviceptr to, CUdeviceptr from, size_t len_bytes, CUstream stream) {
        const CUresult result = book().real_.memcpy_async(to, from, len_bytes, stream);
        if (CUDA_SUCCESS == result) {
            book().open[stream].push_back({to, from, len_bytes, stream, fake().current()});
        }
        return result;
    };
#if GPUSM_HAVE_BATCH_COPY
    api->batch_copy = [](CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                         CUmemcpyAttributes *, size_t *, size_t, CUstream stream) {
        const CUresult result = fake().enter("batch_copy");
        for (size_t i = 0; i < count && CUDA_SUCCESS == result; ++i) {
            EXPECT_GT(sizes[i], 0U);
            book().open[stream].push_back({to[i], from[i], sizes[i], stream, fake().current()});
        }
        // One that fails may have started some, here every other one.
        for (size_t i = 0; i < count && CUDA_SUCCESS != result; i += 2) {
            book().loose[stream].insert(to[i]);
        }
        return result;
    };
#endif
    api->event_record = [](CUevent event, CUstream stream) {
        const CUresult result = book().real_.event_record(event, stream);
        started_unit made;
        made.stream = stream;
        made.event = event;
        made.copies = std::exchange(book().open[stream], {});
        if (CUDA_SUCCESS == result) {
            book().add(std::move(made));
        } else {
            for (const fake_copy &each : made.copies) {
                book().loose[stream].insert(each.destination);
            }
        }
        return result;
    };
    api->stream_synchronize = [](CUstream stream) {
        book().loose[stream].clear();
        return book().real_.stream_synchronize(stream);
    };
    api->launch_kernel = [](CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            CUstream stream, void **parameters, void **extra) {
        const CUresult result =
            book().real_.launch_kernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                       shared, stream, parameters, extra);
        if (CUDA_SUCCESS != result) {
            return result;
        }
        const auto &now = fake().launches.back().arguments;
        for (const std::size_t number : book().running) {
            const started_unit &each = book().units[number];
            EXPECT_FALSE(each.by_kernel && each.context == fake().current() &&
                         fake().launches[each.launch].arguments.slot == now.slot &&
                         !book().in_doubt)
                << "slot " << now.slot << " is in use";
        }
        started_unit made;
        made.by_kernel = true;
        made.stream = stream;
        made.launch = fake().launches.size() - 1;
        for (std::uint32_t i = 0; i < now.copies; ++i) {
            made.copies.push_back({now.copy[i].destination, now.copy[i].source,
                                   now.copy[i].len_bytes, stream, fake().current()});
        }
        book().add(std::move(made));
        return result;
    };
    api->event_query = [](CUevent event) {
        const CUresult result = book().real_.event_query(event);
        if (result != fake().query_answer[event]) {
            book().in_doubt = true;
            book().lose([event](const started_unit &each) { return each.event == event; });
        }
        return result;
    };
    // After a bad end the driver says so about everything on that stream.
    api->stream_query = [](CUstream stream) {
        CUresult result = book().real_.stream_query(stream);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
            book().in_doubt = true;
            book().lose([stream](const started_unit &each) { return each.stream == stream; });
        }
        bool others_run = false;
        for (const started_unit &each : book().units) {
            if (each.by_kernel && each.stream == stream && !each.handed_back) {
                others_run = others_run || !each.ended;
                result = each.badly ? CUDA_ERROR_LAUNCH_FAILED : result;
            }
        }
        book().in_doubt = book().in_doubt || (others_run && CUDA_ERROR_LAUNCH_FAILED == result);
        return result;
    };
}

} // namespace gpusm_test

#endif
