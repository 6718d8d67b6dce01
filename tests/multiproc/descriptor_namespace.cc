// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// descriptor_namespace.cc: a file descriptor passes between processes that do not see each other:
// in PID namespaces beside each other or one in the other, also with networks of their own, as
// containers have them. They forbid being traced, so nothing here can depend on that.
#include "opal/mca/common/gpusm/ipc/descriptor_socket.h"

#include "tests/unit/descriptor_support.h"

#include <sys/prctl.h>

using namespace gpusm_test;

namespace {

using namespace gpusm;
constexpr int patience_s = 30;

// How a process ends.
enum result { right = 0, wrong = 1, no_namespace = 2 };

// What `body` returns as the first process of a PID namespace, and of what else `flags` say.
template <typename Body> int in_namespaces(int flags, Body &&body)
{
    return result_in_child([&]() -> int {
        if (!enter_namespaces(flags)) {
            std::printf("no namespaces: %s\n", std::strerror(errno));
            return no_namespace;
        }
        return result_in_child([&]() -> int {
            if (getpid() != 1 || prctl(PR_SET_DUMPABLE, 0) != 0) {
                return no_namespace;
            }
            return body();
        });
    });
}

// Both send a file to each other and look at what came.
int exchange(const std::string &folder, std::uint32_t self, std::uint32_t peer)
{
    const auto text_of = [](std::uint32_t vpid) {
        return "from process " + std::to_string(vpid) + " with love";
    };
    descriptor_socket own(folder, identity_of(self));
    const file_descriptor file = file_with(text_of(self));
    const deadline end(patience_s);
    status sent = status::peer_gone; // until the peer has made its socket
    while ((status::peer_gone == sent || status::busy == sent) && !end.over()) {
        sent = send_from(own, self, folder, peer, 3, {file.get(), file.get()});
        (void)usleep(100);
    }
    descriptor_message got;
    status received = status::not_found;
    while (status::not_found == received && !end.over()) {
        received = own.receive(&got);
        (void)usleep(100);
    }
    const bool good = status::ok == sent && status::ok == received && 2 == got.fds.size() &&
                      got.from == identity_of(peer) && text_in(got.fds[1].get()) == text_of(peer);
    if (!good) {
        std::printf("process %u: sent: %s, received: %s\n", self, to_string(sent),
                    to_string(received));
    }
    return good ? right : wrong;
}

// One process in namespaces made with `first`, one with `second`; 0: where this program runs.
int a_pair(const char *name, int first, int second)
{
    const scratch_folder folder;
    const auto run = [&folder](int flags, std::uint32_t self, std::uint32_t peer) {
        const auto body = [&] { return exchange(folder.path(), self, peer); };
        return 0 == flags ? result_in_child(body) : in_namespaces(flags, body);
    };
    // Before anybody waits for somebody who cannot come.
    for (const int flags : {first, second}) {
        if (flags != 0 && in_namespaces(flags, [] { return right; }) != right) {
            std::printf("SKIP: %s: this user may not make such namespaces\n", name);
            return 0;
        }
    }
    const pid_t other = fork();
    if (0 == other) {
        _exit(run(first, 1, 2));
    }
    const int here = run(second, 2, 1);
    int state = -1;
    const bool ended = waitpid(other, &state, 0) == other && WIFEXITED(state);
    // Nor may a socket's file be left.
    const bool pass = right == here && ended && right == WEXITSTATUS(state) && 0 == folder.files();
    std::printf("%s: %s\n", pass ? "PASS" : "FAIL", name);
    return pass ? 0 : 1;
}

} // namespace

int main()
{
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    (void)alarm(240);
    constexpr int network_too = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    int failed = a_pair("DescriptorsPassWithinANamespace", 0, 0);
    failed += a_pair("DescriptorsPassIntoAPidNamespaceAndOut", CLONE_NEWPID, 0);
    failed += a_pair("DescriptorsPassBetweenPidNamespaces", CLONE_NEWPID, CLONE_NEWPID);
    failed += a_pair("DescriptorsPassBetweenNetworkNamespacesToo", network_too, network_too);
    return 0 == failed ? 0 : 1;
}
