// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_stage_services.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/pages.h"

#include <algorithm>

namespace gpusm {

namespace {

void count_failed_write(mca_btl_base_endpoint_t *to, status why)
{
    if (to->direct_copies.failed(why)) {
        log_line(log_level::info,
                 "memory of process %u is not written from here for now (%s); host memory is "
                 "streamed there",
                 static_cast<unsigned>(to->peer->identity().vpid), to_string(why));
    }
}

// What a copy into memory of the peer's device tells about that.
void note_copy(const sending &part_of, status outcome)
{
    mca_btl_base_endpoint_t *to = part_of.to;
    const bool good = status::ok == outcome;
    switch (part_of.goes) {
    case mode::device_ring:
        (void)(good ? to->its_rings.worked(part_of.on->index)
                    : to->its_rings.failed(part_of.on->index, outcome));
        break;
    case mode::pushed:
        if (good) {
            (void)to->direct_copies.worked();
        } else if (part_of.failures == to->direct_copies.failures()) {
            count_failed_write(to, outcome); // else one that failed with it has been counted
        }
        break;
    default: // shared, staged_ring: into host memory, of which failed writes are counted
        break;
    }
}

} // namespace

bool pushes_to(const mca_btl_base_endpoint_t *reader)
{
    return mca_btl_gpusm_component.use_direct_host && reader->direct_copies.may_try();
}

stage_services::~stage_services()
{
    for (const auto &[start, in] : registered_) {
        (void)gpu().driver.report(
            "cuMemHostUnregister", in_context(gpu().driver, in->context, [&, at = start] {
                return gpu().driver.mem_host_unregister(reinterpret_cast<void *>(at));
            }));
    }
    if (gpu_side *side = transport_.process.gpu_if_made(); side != nullptr) {
        device_rings_.free(*side);
    }
}

std::size_t stage_services::ring_bytes()
{
    return host_rings * (mca_btl_gpusm_component.staging_host_bytes + stream_slots_offset +
                         2 * system_page_bytes());
}

status stage_services::send(peer &to, const stream_message &message, const stream_memory *memory)
{
    return post_stream_message(transport_.endpoint_of(to), frag_kind::stage, message, memory);
}

// --- sender ---

// Maps what the receiver has named, in the thread's context, or in another one if that cannot reach
// it.
status stage_services::map_target(sending *made, const stream_memory &target, std::uint64_t address)
{
    gpu_side &side = gpu();
    device *first = nullptr;
    if (status::ok != side.devices.for_host(&first)) {
        const status s = side.devices.for_memory(inspect_pointer(side.driver, address), &first);
        if (status::ok != s) {
            return s;
        }
    }
    made->on = first;
    status s = side.import(*made->to->peer, target.handle, *first, &made->mapped);
    const std::size_t known = side.devices.all().size();
    for (std::size_t i = 0; i < known && (status::unsupported == s || status::driver_failed == s);
         ++i) {
        made->on = side.devices.all()[i].get();
        if (made->on != first && side.devices.is_alive(*made->on)) {
            s = side.import(*made->to->peer, target.handle, *made->on, &made->mapped);
        }
    }
    if (status::ok == s) {
        s = side.event_of(*made->to->peer, target.handle, *made->on, &made->wait_for);
        if (status::ok != s) {
            side.imports.release(std::exchange(made->mapped, nullptr));
        }
    }
    return s;
}

// Registered memory is copied without the processor's help. A refusal costs that, no more, and for
// a while.
void stage_services::register_ring(const stream_source &source, std::size_t bytes, device *in)
{
    // The pages that the slots lie in.
    const std::size_t page = system_page_bytes();
    const std::uint64_t pages = source.slots / page * page;
    if (!mca_btl_gpusm_component.register_segments || 0 != bytes % page_bytes ||
        std::any_of(registered_.begin(), registered_.end(),
                    [&](const auto &each) { return each.first == pages; }) ||
        !registrations_.may_try(pages)) {
        return;
    }
    const CUresult result = in_context(gpu().driver, in->context, [&] {
        return gpu().driver.mem_host_register(reinterpret_cast<void *>(pages),
                                              in_system_pages(source.slots + bytes - pages),
                                              CU_MEMHOSTREGISTER_PORTABLE);
    });
    if (CUDA_SUCCESS == result) {
        registered_.emplace_back(pages, in);
        (void)registrations_.worked(pages);
    } else if (registrations_.failed(pages, status::driver_failed)) {
        log_line(log_level::info, "the ring of a peer stays unregistered with the driver: %s",
                 gpu().driver.error_name(result));
    }
}

bool stage_services::forget_rings(const unsigned char *begin, std::size_t len_bytes)
{
    bool all = true;
    std::erase_if(registered_, [&](const auto &each) {
        const auto &[at, in] = each;
        const bool is_there = at - reinterpret_cast<std::uint64_t>(begin) < len_bytes;
        if (!is_there || nullptr == in || !gpu().devices.is_alive(*in)) {
            return is_there;
        }
        if (!gpu().may_wait_for_kernels(*in)) {
            all = false;
            return false;
        }
        (void)gpu().driver.report(
            "cuMemHostUnregister", in_context(gpu().driver, in->context, [&, start = at] {
                return gpu().driver.mem_host_unregister(reinterpret_cast<void *>(start));
            }));
        return true;
    });
    return all;
}

namespace {

// Sender's side. `named`: what the receiver wants, if it is not an export.
bool is_so(fact asked, const mca_btl_base_endpoint_t *to, const stream_message &message,
           const registration *named)
{
    gpu_side *side = to->transport->process.gpu_if_made();
    switch (asked) {
    case fact::single_copies:
        return smsc_writes_to(to);
    case fact::sender_writes:
    case fact::rings:
        return true;
    case fact::pushes:
        return side != nullptr && pushes_to(to);
    case fact::page_locked_source:
        return named != nullptr && 0 != (named->handle.remote.flags & page_locked);
    case fact::device_rings:
        return stream_memory_use::slots == message.uses;
    case fact::bounce_copies:
        return side != nullptr && side->bounces.available();
    default: // the receiver knows it, and does its part
        return false;
    }
}

} // namespace

// Of a view that is described to peers, as long as the message lasts. False: it is not, or no
// kernel could read it.
bool stage_services::find_view(const stream_message &message, sending *found,
                               stream_source *out) const
{
    auto *named = static_cast<registration *>(gpu().described.owner_of(message.handle));
    if (nullptr == named || !covers(named->handle.remote, message.address, message.len_bytes) ||
        !gpu().has_kernels() || !named->view->kernel_touches) {
        return false;
    }
    found->entry = named->exported;
    found->on = named->view->on;
    found->for_kernel = true;
    named->streamed = true;
    out->owner = named;
    return true;
}

// Of an export that the receiver has mapped.
bool stage_services::find_export(const stream_message &message, sending *found) const
{
    std::uint64_t plain_bytes = 0;
    found->entry = gpu().exports.live_export(message.handle);
    return found->entry != nullptr && covers(*found->entry, message.address, message.len_bytes) &&
           status::ok == gpu().devices.for_address(message.address, &found->on, &plain_bytes) &&
           found->on != nullptr;
}

// A part of what the receiver has mapped goes into its host memory. The range is the peer's word.
void stage_services::open_shared(mca_btl_base_endpoint_t *to, const stream_message &message,
                                 const stream_memory &target, stream_source *out)
{
    out->by_services = true;
    out->target = target.address;
    out->parts = shared_parts;
    sending found{};
    if (share_kind::strided == message.handle.kind ? find_view(message, &found, out)
                                                   : find_export(message, &found)) {
        sending *made = sendings_.take();
        *made = found;
        made->goes = mode::shared;
        gpu().exports.add_reference(made->entry);
        made->to = to;
        out->user = made;
        out->memory = reinterpret_cast<const unsigned char *>(message.address);
    }
}

// The copy engine reads page-locked memory without the processor, so the range goes straight into
// the memory that the receiver has named. False: it cannot.
bool stage_services::open_pushed(sending *made, const stream_message &message,
                                 const stream_memory &target, stream_source *out)
{
    const status s = map_target(made, target, message.address);
    if (status::ok == s) {
        made->failures = made->to->direct_copies.failures();
        out->by_services = true;
        out->target = made->mapped->local_base + (target.address - made->mapped->remote_base);
        return true;
    }
    if (status::not_ready == s && share_kind::legacy != target.handle.kind) {
        (void)gpu().fds.ask(made->to->peer->number, target.handle); // for the next one
    } else if (status::not_found != s) { // else that export has been replaced meanwhile
        count_failed_write(made->to, s);
    }
    made->on = nullptr;
    return false;
}

// False: this process cannot map the ring.
bool stage_services::open_device_ring(sending *made, const stream_message &message,
                                      const stream_memory &ring, const registration &named,
                                      stream_source *out)
{
    if (!made->to->its_rings.may_try(made->on->index) || share_kind::legacy != ring.handle.kind ||
        status::ok != gpu().import(*made->to->peer, ring.handle, *made->on, &made->mapped)) {
        return false;
    }
    out->by_services = true;
    out->slots = made->mapped->local_base + (ring.address - made->mapped->remote_base);
    made->for_kernel = message.address + message.len_bytes <= named.plain_until &&
                       gpu_side::kernel_reads(*made->mapped, *made->on);
    return true;
}

void stage_services::open(peer &to, const stream_message &message, const stream_memory *memory,
                          stream_source *out)
{
    mca_btl_base_endpoint_t *reader = transport_.endpoint_of(to);
    registration *named =
        memory_kind::mappable == memory_named(message.handle.kind)
            ? nullptr
            : transport_.registrations->named(message.handle, message.address, message.len_bytes);
    // Memory of the receiver's that it does not name cannot be mapped.
    const bool has_target = stream_memory_use::target == message.uses;
    facts known{memory_named(message.handle.kind),
                has_target ? memory_named(memory->handle.kind) : memory_kind::unmappable,
                message.len_bytes};
    const auto answer = [&](fact asked) { return is_so(asked, reader, message, named); };
    mode goes = choose(&known, answer);
    if (memory_kind::host == known.target) {
        if (mode::shared == goes) {
            open_shared(reader, message, *memory, out);
        } else {
            out->unreachable = true;
        }
        return;
    }
    const bool has_slots = stream_memory_use::slots == message.uses;
    if (nullptr == named || has_slots != (mode::device_ring == goes) ||
        (memory_kind::host == known.source) != (nullptr == named->device)) {
        return;
    }
    sending *made = sendings_.take();
    made->to = reader;
    made->on = named->device;
    out->user = made;
    if (mode::pushed == goes && !open_pushed(made, message, *memory, out)) {
        known.set(fact::pushes, false);
        goes = choose(&known, answer);
    }
    if (mode::device_ring == goes && !open_device_ring(made, message, *memory, *named, out)) {
        out->unreachable = true;
        return;
    }
    if (mode::staged_ring == goes && made->on != nullptr) { // host memory the processor copies
        out->by_services = true;
        register_ring(*out, std::size_t{message.pieces} * message.slot_bytes, made->on);
    }
    made->goes = goes;
    if (named->device != nullptr) {
        made->wait_for = gpu().event_before_copies(*named->device);
    }
    named->streamed = true;
    out->owner = named;
    out->memory = reinterpret_cast<const unsigned char *>(message.address);
}

void stage_services::close(const stream_source &source)
{
    if (auto *made = static_cast<sending *>(source.user); made != nullptr) {
        if (made->mapped != nullptr) {
            gpu().imports.release(made->mapped);
        }
        if (made->entry != nullptr) {
            gpu().exports.release(made->entry);
        }
        sendings_.give(made);
    }
}

stage_copy *stage_services::take_copy(stream_copy *of, const sending *part_of)
{
    stage_copy *made = copies_.take();
    made->of = of;
    made->part_of = part_of;
    made->by = this;
    made->job.copy.part_of = static_cast<std::uint8_t>(copy_part::stage);
    made->job.copy.destination = of->destination;
    made->job.copy.source = of->source;
    made->job.copy.len_bytes = of->len_bytes;
    return made;
}

// Through registered memory.
void stage_services::bounce_copy(stage_copy *made, bounce_way way, device *on,
                                 mca_btl_base_endpoint_t *with, std::uint64_t message_bytes)
{
    bounce &job = made->job;
    job.way = way;
    job.on = on;
    job.message_bytes = message_bytes;
    job.peer = with->peer;
    job.over = [](bounce *ended) {
        stage_copy *over = enclosing<stage_copy>(ended, offsetof(stage_copy, job));
        over->by->end(over);
    };
    gpu().bounces.start(&job);
}

void stage_services::copied(copy_request *copy)
{
    end(enclosing<stage_copy>(copy, offsetof(stage_copy, job.copy)));
}

void stage_services::end(stage_copy *over)
{
    const status outcome = over->job.copy.outcome;
    if (over->part_of != nullptr) {
        note_copy(*over->part_of, outcome);
    }
    over->of->state = status::ok == outcome ? stream_copy::is::done : stream_copy::is::failed;
    copies_.give(over);
}

void stage_services::copy_in(const stream_source &source, stream_copy *copy)
{
    const auto *from = static_cast<const sending *>(source.user);
    stage_copy *made = take_copy(copy, from);
    made->job.copy.kernel_reaches = from->for_kernel;
    if (mode::shared == from->goes) {
        constexpr std::uint64_t longer = UINT64_MAX; // only parts of longer messages are pushed
        bounce_copy(made, bounce_way::push, from->on, from->to, longer);
        return;
    }
    made->job.copy.wait_for = from->wait_for;
    made->job.copy.processor_waits = mode::staged_ring == from->goes;
    gpu().copies.submit(*from->on, &made->job.copy);
}

// --- receiver ---

void stage_services::made_ring(const unsigned char *ring, std::size_t bytes)
{
    (void)gpu().is_registered(ring, bytes); // or later
    log_line(log_level::info, "a ring of %zu KiB in host memory", bytes / 1024);
}

status stage_services::make_slots(const stream_pool &pool, std::size_t bytes, std::uint64_t *slots,
                                  stream_memory *memory)
{
    return device_rings_.make(gpu(), pool, bytes, slots, memory);
}

void stage_services::name_slots(const stream_pool &pool, std::uint64_t slots, stream_memory *memory)
{
    device_rings_.name(pool, slots, memory);
}

stream_pool *stage_services::device_pool_for(const transfer *get)
{
    return 0 != mca_btl_gpusm_component.staging_device_bytes &&
                   get->endpoint->rings.may_try(get->into->index)
               ? device_rings_.pool_on(gpu(), *get->into)
               : nullptr;
}

void stage_services::copy_out(const stream_fetch &fetch, stream_copy *copy)
{
    const transfer *get = transfer_of(&fetch);
    const bool by_host = mode::device_ring != get->goes;
    const auto *from = reinterpret_cast<const unsigned char *>(copy->source);
    stage_copy *made = take_copy(copy);
    made->job.copy.processor_waits = by_host;
    made->job.copy.kernel_reaches =
        get->job.copy.kernel_reaches && (!by_host || gpu().kernel_touches(*get->into, from));
    gpu().copies.submit(*get->into, &made->job.copy);
}

void stage_services::copy_back(const stream_fetch &fetch, stream_copy *copy)
{
    const transfer *get = transfer_of(&fetch);
    const bool mapped = mode::shared == get->goes; // else pulled
    // What is mapped has an address of this process.
    copy->source += mapped ? get->job.copy.source - get->remote_address : 0;
    stage_copy *made = take_copy(copy);
    made->job.copy.kernel_reaches =
        get->from_blocks ? get->kernel_reads : !mapped && get->job.copy.kernel_reaches;
    bounce_copy(made, mapped ? bounce_way::out : bounce_way::pull, get->into, get->endpoint,
                fetch.len_bytes);
}

} // namespace gpusm
