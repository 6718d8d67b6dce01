// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// peer.cc: the process that opens another one's memory, whatever it is asked to.
#include "tools/gpusm_info/shared_memory.h"

#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace gpusm::info {

namespace {

share_answer answer_of(const std::string &call, const std::string &error)
{
    share_answer answer{};
    (void)std::snprintf(answer.call, sizeof(answer.call), "%s", call.c_str());
    (void)std::snprintf(answer.error, sizeof(answer.error), "%s", error.c_str());
    return answer;
}

// Host memory, by its address alone. Open MPI's smsc/cma asks first whether it may compare the
// processes, and leaves it where that is refused; seccomp filters of containers may refuse the one
// and not the other.
share_answer read_host(const share_request &request)
{
    std::vector<std::uint32_t> got(pattern_bytes / sizeof(std::uint32_t));
    const iovec here = {got.data(), pattern_bytes};
    const iovec there = {reinterpret_cast<void *>(request.address), pattern_bytes};
    const ssize_t count = process_vm_readv(request.pid, &here, 1, &there, 1, 0);
    if (count < 0) {
        return answer_of("process_vm_readv", std::strerror(errno));
    }
    if (static_cast<std::size_t>(count) != pattern_bytes || 0 != count_wrong(got, request.seed)) {
        return answer_of("process_vm_readv", "not all bytes are right");
    }
    if (syscall(SYS_kcmp, getpid(), request.pid, KCMP_VM, 0, 0) < 0) {
        return answer_of("kcmp", std::strerror(errno));
    }
    return {};
}

share_answer use(const driver_table &driver, const share_request &request, descriptor fd)
{
    calls work(driver);
    {
        shared_memory memory(driver, request.kind, request.device);
        (void)(memory.open(&work, request, std::move(fd)) && memory.check(&work, request.seed) &&
               memory.write(&work, request.seed + 1));
    }
    return answer_of(work.failed(), work.error());
}

} // namespace

int be_peer()
{
    driver_table driver;
    bool ready = false;
    std::string why;
    share_request request{};
    int fd = -1;
    while (receive_packet(peer_socket_fd, &request, sizeof(request), &fd)) {
        descriptor held(fd);
        share_answer answer{};
        if (share_kind::host == request.kind) {
            answer = read_host(request);
        } else {
            calls begin(driver);
            if (!ready) { // the owner has found that there is a driver
                ready =
                    open_driver(&driver, &why) != nullptr && begin.make("cuInit", driver.init, 0u);
            }
            answer = ready ? use(driver, request, std::move(held))
                           : answer_of(begin.failed(), begin.good() ? why : begin.error());
        }
        if (!send_packet(peer_socket_fd, &answer, sizeof(answer), -1)) {
            return 1;
        }
    }
    return 0;
}

} // namespace gpusm::info
