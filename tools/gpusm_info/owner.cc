// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// owner.cc: the process that looks at the devices and has another one open memory of each kind.
// What it finds it writes as records, and what it begins before it begins it: a driver may not
// answer, or end the process.
#include "tools/gpusm_info/devices.h"
#include "tools/gpusm_info/shared_memory.h"
#include "tools/gpusm_info/text.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

namespace gpusm::info {

namespace {

// Each pair of them is tried.
constexpr int most_devices = 8;

bool exchange(const share_request &request, int fd, share_answer *answer)
{
    int none = -1;
    return send_packet(peer_socket_fd, &request, sizeof(request), fd) &&
           receive_packet(peer_socket_fd, answer, sizeof(*answer), &none);
}

// "call: error"; empty: it has worked.
std::string error_of(const share_answer &answer)
{
    return '\0' == answer.call[0] ? "" : std::string(answer.call) + ": " + answer.error;
}

// False: the peer is gone.
bool try_single_copies()
{
    std::vector<std::uint32_t> memory;
    share_request request{};
    request.kind = share_kind::host;
    request.seed = 1;
    request.pid = getpid();
    write_pattern(&memory, request.seed);
    request.address = reinterpret_cast<std::uintptr_t>(memory.data());
    share_answer plain{};
    share_answer permitted{};
    put(record("begin").set("what", "a copy of another process's host memory"));
    if (!exchange(request, -1, &plain)) {
        return false;
    }
    // What smsc/cma of Open MPI does where ptrace_scope is not 0.
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (!exchange(request, -1, &permitted)) {
        return false;
    }
    put(record("single").set("error", error_of(plain)).set("permitted_error", error_of(permitted)));
    return true;
}

std::string result_of(const calls &work)
{
    return work.good()                       ? "mapped"
           : reading_failed == work.failed() ? "wrong bytes"
           : not_offered == work.error()     ? "not offered"
                                             : "refused";
}

// The same memory for all devices of the peer. False: the peer is gone.
bool try_kind(const driver_table &driver, share_kind kind, int from, int devices)
{
    calls making(driver);
    shared_memory memory(driver, kind, from);
    share_request request{};
    int fd = -1;
    put(record("begin").set("what",
                            format("making %s memory on device %d", kind_name(kind), from)));
    memory.make(&making, &request, &fd);
    for (int to = 0; to < devices; ++to) {
        calls work(driver);
        record result("share");
        result.set("kind", kind_name(kind)).set("from", from).set("to", to);
        request.device = to;
        request.seed = static_cast<std::uint32_t>(100 * from + 2 * to + 1);
        put(record("begin").set("what", format("opening %s memory of device %d on device %d",
                                               kind_name(kind), from, to)));
        share_answer answer{};
        if (!making.good()) {
            work.fail(making.failed(), making.error());
        }
        if (enter_context(&work, from) && memory.write(&work, request.seed)) {
            if (!exchange(request, fd, &answer)) {
                return false;
            }
            if (answer.call[0] != '\0') {
                work.fail(answer.call, answer.error);
            }
            memory.check(&work, request.seed + 1);
        }
        put(result.set("result", result_of(work))
                .set("call", work.failed())
                .set("error", work.error()));
    }
    return true;
}

void try_devices(const driver_table &driver, int count)
{
    const int devices = std::min(count, most_devices);
    put(record("tried").set("devices", devices).set("all", count <= most_devices ? 1 : 0));
    for (const share_kind kind : {share_kind::device, share_kind::vmm, share_kind::pool,
                                  share_kind::managed, share_kind::page_locked}) {
        for (int from = 0; from < devices; ++from) {
            if (!try_kind(driver, kind, from, devices)) {
                put(record("lost").set("what", "the process that opens memory has ended"));
                return;
            }
        }
    }
}

} // namespace

void put(const record &what)
{
    const std::string line = what.line();
    std::size_t done = 0;
    while (done < line.size()) {
        const ssize_t now = write(record_fd, line.data() + done, line.size() - done);
        if (now <= 0) {
            _exit(1); // nobody reads any more
        }
        done += static_cast<std::size_t>(now);
    }
}

int be_owner(bool tries)
{
    if (tries && !try_single_copies()) {
        put(record("lost").set("what", "the process that opens memory has ended"));
        tries = false;
    }
    driver_table driver;
    const int devices = look_at_devices(&driver);
    if (tries && devices > 0) {
        try_devices(driver, devices);
    }
    put(record("end"));
    return 0;
}

} // namespace gpusm::info
