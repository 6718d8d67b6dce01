// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fuzz_exports.cc: what a broken owner of device memory may say of it: entries of its export
// directory and events, handles, and descriptors of other lengths or of something else. The
// importer, on a scripted driver, never takes memory for mapped that is not, and gives back all
// that it has got.
#include "opal/mca/btl/gpusm/ipc/import_table.h"

#include "tests/fuzz/fuzz_support.h"
#include "tests/unit/fake_sharing.h"

using namespace gpusm_test;
using namespace gpusm;

namespace {

enum step : std::uint8_t { entry, header, import, release, descriptors, event, idle, steps };
constexpr std::uint64_t chunk_bytes = 0x10000, pooled_bytes = 0x8000;
constexpr std::uint64_t elsewhere = 1ULL << 32; // where the scripted driver maps what is not VMM
player importer(1), broken(2);
std::uint64_t chunk, pool; // as descriptors of the scripted driver name them

const fd_passing_calls calls{[](std::uint32_t, const ipc_message &) { return true; },
                             [](std::uint32_t) { return &importer.towards(broken); }};

// One export of each kind, in the slots 1 to 3, in two generations.
remote_handle honest(fuzz_input &in)
{
    const std::uint32_t slot = 1 + in.below(3);
    const auto kind = static_cast<share_kind>(slot);
    return {slot,
            0,
            kind,
            0,
            1 + in.below(2),
            std::uint64_t{slot} << 28,
            share_kind::pool == kind ? pooled_bytes : 2 * chunk_bytes};
}

void write_entry(const remote_handle &about, const remote_handle &said)
{
    export_slot &to = broken.own().view().exports[about.slot];
    to.base = said.base;
    to.len_bytes = said.len_bytes;
    to.kind = said.kind;
    std::memcpy(to.memory_handle, &said.base, sizeof(said.base));
    to.generation = said.generation;
}

descriptor_message message_about(fuzz_input &in, const remote_handle &about)
{
    const bool pooled = share_kind::pool == about.kind;
    descriptor_message made{broken.own().identity(), about.generation, about.slot, {}, {}};
    for (auto left = in.one_of(4) ? in.below(4) : pooled ? 1U : 2U; left > 0; --left) {
        made.lengths.push_back(in.one_of(8) ? in.word(chunk_bytes) : chunk_bytes);
        made.fds.emplace_back(fake_descriptor(pooled != in.one_of(8) ? pool : chunk));
    }
    return made;
}

// Is there memory behind all of it?
bool is_mapped(std::uint64_t at, std::uint64_t end)
{
    while (at < end) {
        const auto pointer = fake_find(sharing().pointers, at);
        const auto mapped = fake_find(sharing().mapped, at);
        const bool is_pointer = pointer != sharing().pointers.end();
        if (!is_pointer && mapped == sharing().mapped.end()) {
            return false;
        }
        at = is_pointer ? pointer->first + pointer->second.len_bytes
                        : mapped->first + mapped->second.len_bytes;
    }
    return true;
}

std::string one(char slot)
{
    const std::string what = bytes_of(slot, '\0', '\0');
    return bytes_of(entry) + what + bytes_of(import) + what + bytes_of(descriptors, slot, '\0') +
           std::string(5, '\1') + bytes_of(import) + what + bytes_of(event, slot, release, '\0');
}

} // namespace

const std::vector<std::string> seeds{one(0), one(1), one(2),
                                     one(0) + bytes_of(header, '\1', '\1', '\1') + one(1)};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t bytes)
{
    static const descriptor_socket sender(player::folder(), {1, 2, 3});
    fuzz_input in{data, bytes};
    importer.begin();
    broken.begin();
    const std::size_t opened = open_descriptors();
    peer &from = importer.towards(broken);
    (void)from.attach();
    const driver_api api = reset_fake_sharing();
    fake().stack = {handle_of<CUcontext>(0xc0)};
    sharing().pointers[(1ULL << 28) + elsewhere].len_bytes = 2 * chunk_bytes;
    pool = reinterpret_cast<std::uintptr_t>(sharing().add_pool(1));
    sharing().allocations[chunk = 0xa000].len_bytes = chunk_bytes;
    const segment_view &theirs = broken.own().view();
    theirs.header->exports_committed = 4;
    {
        device_table devices(api);
        device *into = nullptr;
        require(status::ok == devices.for_host(&into), "there is no device");
        const export_directory exports(api, devices, importer.own(), false);
        fd_passing fds(importer.own(), exports, calls);
        import_table imports(api, devices, fds, 3 * chunk_bytes);
        std::vector<mapping *> held;
        while (in.left > 0) {
            const std::uint32_t what = in.below(steps);
            const remote_handle right = honest(in);
            if (entry == what) {
                write_entry(right, in.spoilt(right));
            } else if (header == what) {
                auto &committed = theirs.header->exports_committed;
                committed = static_cast<std::uint32_t>(in.word(committed));
                theirs.header->retire_epoch = in.word(theirs.header->retire_epoch);
            } else if (import == what) {
                const remote_handle handle = in.spoilt(right);
                mapping *got = nullptr;
                const status s = imports.import(0, from, handle, *into, &got);
                if (status::ok == s) {
                    held.push_back(got);
                    require(is_mapped(got->local_base, got->local_base + handle.len_bytes),
                            "a mapping is shorter than it says");
                } else if (status::not_ready == s) {
                    (void)fds.ask(0, handle);
                }
            } else if (release == what && !held.empty()) {
                imports.release(held.back());
                held.pop_back();
            } else if (descriptors == what) {
                (void)sender.send(player::folder(), importer.own().identity(),
                                  message_about(in, right));
                fds.answered(0, right);
            } else if (event == what) {
                theirs.events[in.below(theirs.event_slots)].ready = 1;
                CUevent got = nullptr;
                (void)imports.event_of(0, from, in.spoilt(right), *into, &got);
            } else {
                imports.close_over(0, from);
                imports.close_idle(in.below(8));
            }
        }
        for (mapping *each : held) {
            imports.release(each);
        }
    }
    require(0 == sharing().references() && sharing().reserved.empty() &&
                1 == sharing().pools.size() &&
                fake().calls["ipc_open_mem_handle"] == fake().calls["ipc_close_mem_handle"],
            "something stays mapped");
    importer.end();
    broken.end();
    require(opened == open_descriptors(), "a descriptor stays open");
    return 0;
}
