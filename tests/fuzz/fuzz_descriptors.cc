// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fuzz_descriptors.cc: packets of any content, with any number of descriptors or none, to the
// socket of a process that waits for some; and requests for those of its own memory. What is taken
// has as many lengths as descriptors, an honest packet behind the garbage arrives, and all are
// closed.
#include "opal/mca/common/gpusm/ipc/fd_passing.h"

#include "tests/fuzz/fuzz_support.h"
#include "tests/unit/fd_services.h"
#include "tests/unit/counted_driver.h"

#include <sys/socket.h>
#include <sys/un.h>

using namespace gpusm_test;
using namespace gpusm;

namespace {

enum step : std::uint8_t { packet, ask, answer, collect, want, receive, progress, steps };
constexpr std::uint64_t chunk_bytes = 2 * mib, chunks = 4;
player owner(1), broken(2);

// Of an export of the broken process, which does not exist.
remote_handle theirs(std::uint32_t slot)
{
    return {slot, 0, share_kind::descriptors, 0, 1, 0, 0};
}

void send_packet(fuzz_input &in, int by, const std::string &path)
{
    const std::uint32_t counts[] = {1, 2, in.below(254), 0};
    const std::uint32_t fds = counts[in.below(4)];
    const std::uint32_t said = in.one_of(4) ? in.below(254) : fds;
    const descriptor_packet head{
        descriptor_magic, wire_version, 0, owner.own().identity(), broken.own().identity(), 1,
        in.below(2),      said};
    std::string payload = bytes_of(in.spoilt(head)) + std::string(8 * said, '\1');
    payload.resize(in.one_of(4) ? in.next<std::uint16_t>() % 4096 : payload.size());
    sockaddr_un address{AF_UNIX, {}};
    (void)path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    iovec part{payload.data(), payload.size()};
    alignas(cmsghdr) unsigned char control[2 * CMSG_SPACE(254 * sizeof(int))] = {};
    msghdr message{&address, sizeof(address), &part, 1, control, 0, 0};
    // All together, or the first one apart; all of them are standard input.
    for (std::uint32_t left = fds, some = in.one_of(4) ? 1 : fds; left > 0; some = left) {
        const cmsghdr rights{CMSG_LEN(some * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        std::memcpy(control + message.msg_controllen, &rights, sizeof(rights));
        message.msg_controllen += CMSG_SPACE(some * sizeof(int));
        left -= some;
    }
    (void)sendmsg(by, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

const std::string taken = bytes_of(ask, '\0', packet, '\0', '\0', '\1', '\0', '\0', '\1', '\1',
                                   answer, '\0', collect, '\0');
const std::string wanted = bytes_of(want, '\0', receive, progress);

} // namespace

const std::vector<std::string> seeds{taken, wanted, taken + wanted + taken, std::string(160, want)};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t bytes)
{
    static const CUcontext context = softcuda_test::start();
    static const CUdeviceptr memory_at =
        allocate_chunks(std::vector<std::int64_t>(chunks, chunk_bytes));
    require(context != nullptr && memory_at != 0, "there is no driver");
    static const file_descriptor by(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    fuzz_input in{data, bytes};
    owner.begin();
    broken.begin();
    const std::size_t opened = open_descriptors();
    const driver_api api = counted_driver();
    {
        const std::string &folder = player::folder();
        const segment_identity self = owner.own().identity();
        device_table devices(api);
        export_directory exports(api, devices, owner.own(), false);
        fd_services services(&owner.towards(broken));
        fd_passing fds(owner.own(), exports, services);
        descriptor_socket socket(folder, broken.own().identity());
        exported *entry = nullptr;
        remote_handle ours{};
        require(status::ok == exports.export_range(memory_at, chunks * chunk_bytes, 0,
                                                   export_use::read, &entry, &ours),
                "no export");
        descriptor_message got;
        while (in.left > 0) {
            const std::uint32_t step = in.below(steps);
            if (packet == step) {
                send_packet(in, by.get(), descriptor_socket_path(folder, self));
            } else if (ask == step) {
                (void)fds.ask(0, theirs(in.below(2)));
            } else if (answer == step) {
                fds.answered(0, theirs(in.below(2)));
            } else if (collect == step) {
                const bool some = status::ok == fds.take(0, theirs(in.below(2)), &got);
                require(!some || (!got.fds.empty() && got.fds.size() == got.lengths.size()),
                        "a message without descriptors, or lengths, was taken");
            } else if (want == step) {
                fds.send(0, in.spoilt(ours));
            } else if (receive == step) {
                require(status::ok != socket.receive(&got) || chunk_bytes == got.lengths[0],
                        "another length was sent");
            } else {
                fds.progress();
            }
        }
        for (const std::uint32_t slot : {0U, 1U}) { // empties the socket, and gives back what came
            fds.answered(0, theirs(slot));
            (void)fds.take(0, theirs(slot), &got);
        }
        got = {};
        require(open_descriptors() < opened + most_descriptors + 20, "too many are kept open");
        require(fds.ask(0, theirs(9)), "there is no socket");
        got = {broken.own().identity(), 1, 9, {1}, {}};
        got.fds.emplace_back(dup(0));
        require(status::ok == socket.send(folder, self, got), "an honest packet cannot be sent");
        fds.answered(0, theirs(9));
        require(status::ok == fds.take(0, theirs(9), &got), "an honest packet does not arrive");
        exports.release(entry);
    }
    owner.end();
    broken.end();
    require(all_given_back() && opened == open_descriptors(), "something stays open");
    return 0;
}
