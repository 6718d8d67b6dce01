// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fuzz_exports.cc: what a broken owner of device memory may say of it: entries of its export
// directory and events, handles, and descriptors of other lengths or of something else. The
// importer never takes memory for mapped that is not, and gives back all that it has got.
#include "opal/mca/common/gpusm/ipc/import_table.h"

#include "tests/fuzz/fuzz_support.h"
#include "tests/unit/fd_services.h"
#include "tests/unit/counted_driver.h"

using namespace gpusm_test;
using namespace gpusm;

namespace {

enum step : std::uint8_t { entry, header, import, release, descriptors, event, idle, steps };
constexpr std::uint64_t chunk_bytes = 2 * mib, pooled_bytes = 0x8000;
player importer(1), broken(2);

// What there is in truth, of this process.
struct memory_of_each_kind {
    program owner{2 * chunk_bytes}; // with an allocation
    parcel chunk = of(share_kind::descriptors, allocate_chunks({chunk_bytes}), chunk_bytes);
    parcel pooled = of(share_kind::pool, allocate_from(make_pool(), pooled_bytes), pooled_bytes);

    parcel of(share_kind kind, CUdeviceptr at, std::size_t len_bytes)
    {
        return parcel::of(kind, owner.device_of(at), at, len_bytes);
    }
};
memory_of_each_kind &truth()
{
    static memory_of_each_kind all;
    return all;
}

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
    memory_handle handle = truth().pooled.memory.handle;
    handle[0] ^= said.base == about.base ? 0 : 1;
    if (share_kind::pool != about.kind) { // see counted_driver.h
        const std::uint64_t at = truth().owner.at + said.base - about.base;
        std::memcpy(handle.data(), &at, sizeof(at));
    }
    std::memcpy(to.memory_handle, handle.data(), handle.size());
    to.generation = said.generation;
}

descriptor_message message_about(fuzz_input &in, const remote_handle &about)
{
    const bool pooled = share_kind::pool == about.kind;
    descriptor_message made{broken.own().identity(), about.generation, about.slot, {}, {}};
    for (auto left = in.one_of(4) ? in.below(4) : pooled ? 1U : 2U; left > 0; --left) {
        made.lengths.push_back(in.one_of(8) ? in.word(chunk_bytes) : chunk_bytes);
        const parcel &of = pooled != in.one_of(8) ? truth().pooled : truth().chunk;
        made.fds.emplace_back(dup(of.chunks.fds[0].get()));
    }
    return made;
}

// Is there memory behind all of it?
bool is_mapped(std::uint64_t at, std::uint64_t end)
{
    while (at < end) {
        CUdeviceptr base = 0;
        std::size_t len_bytes = 0;
        if (CUDA_SUCCESS != driver().mem_get_address_range(&base, &len_bytes, at)) {
            return false;
        }
        at = base + len_bytes;
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
    (void)truth(); // has descriptors of its own
    const std::size_t opened = open_descriptors();
    peer &from = importer.towards(broken);
    (void)from.attach();
    driver_api api = counted_driver();
    api.ipc_open_event_handle = [](CUevent *out, CUipcEventHandle) {
        return driver().event_create(out, CU_EVENT_DISABLE_TIMING);
    };
    const segment_view &theirs = broken.own().view();
    theirs.header->exports_committed = 4;
    {
        device_table devices(api);
        device *into = nullptr;
        require(status::ok == devices.for_host(&into), "there is no device");
        const export_directory exports(api, devices, importer.own(), false);
        fd_services services(&importer.towards(broken));
        fd_passing fds(importer.own(), exports, services);
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
    require(all_given_back(), "something stays mapped");
    importer.end();
    broken.end();
    require(opened == open_descriptors(), "a descriptor stays open");
    return 0;
}
